//! `CopyChunk`: copies data between two chunk files of the target.

use super::Call;
use crate::chunk_store::{ChunkStore, CopySource, Destination};
use skep_env::Buf;
use skep_types::{Error, ErrorCode, Result};
use skep_wire::limits::MAX_DATA_BYTES;
use skep_wire::storage::{CopyChunk, CopyChunkReply};
use std::rc::Rc;

pub(super) async fn handle(
    store: &Rc<ChunkStore>,
    call: Call<CopyChunk>,
    check: impl Fn() -> Result<()>,
) -> Result<(CopyChunkReply, Option<Buf>)> {
    let CopyChunk { from, from_offset, to, stripe, to_offset, length, .. } = call.request;
    let CopyChunk { truncate_generation, must_exist, .. } = call.request;
    if length as usize > MAX_DATA_BYTES {
        return Err(Error::new(
            ErrorCode::LimitReached,
            format!("cannot copy {length} bytes in one request: the limit is {MAX_DATA_BYTES}"),
        ));
    }
    if from_offset.max(to_offset).checked_add(u64::from(length)).is_none() {
        return Err(Error::new(
            ErrorCode::FileTooLarge,
            format!(
                "cannot copy to chunk file {to}: the range ends beyond the maximum size of a chunk \
                 file"
            ),
        ));
    }
    let source = CopySource { key: &from, offset: from_offset };
    let offset = to_offset;
    let destination = Destination { key: &to, stripe, offset, truncate_generation, must_exist };
    let has_holes = store.copy(source, destination, length, check).await?;
    if call.is_durable {
        store.sync(&to).await?;
    }
    let (incarnation, source_exists) = (store.incarnation(), store.exists(&from)?);
    Ok((CopyChunkReply { incarnation, has_holes, source_exists }, None))
}
