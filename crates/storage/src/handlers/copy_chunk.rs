//! `CopyChunk`: data from one chunk file of the target to another.

use super::Call;
use crate::chunk_store::{ChunkStore, CopySource};
use skep_env::Buf;
use skep_types::{Error, ErrorCode, Result};
use skep_wire::limits::MAX_DATA_BYTES;
use skep_wire::storage::{CopyChunk, CopyChunkReply};
use std::rc::Rc;

pub(super) async fn handle(
    store: &Rc<ChunkStore>,
    call: Call<CopyChunk>,
) -> Result<(CopyChunkReply, Option<Buf>)> {
    let CopyChunk { from, from_offset, to, stripe, to_offset, length } = call.request;
    if length as usize > MAX_DATA_BYTES {
        return Err(Error::new(
            ErrorCode::LimitReached,
            format!("{length} bytes to be copied, {MAX_DATA_BYTES} are copied at once"),
        ));
    }
    if from_offset.max(to_offset).checked_add(u64::from(length)).is_none() {
        return Err(Error::new(ErrorCode::FileTooLarge, format!("copy to chunk file {to}")));
    }
    let source = CopySource { key: &from, offset: from_offset };
    let has_holes = store.copy(source, &to, stripe, to_offset, length).await?;
    if call.is_durable {
        store.sync(&to).await?;
    }
    Ok((CopyChunkReply { incarnation: store.incarnation(), has_holes }, None))
}
