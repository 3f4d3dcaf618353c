//! `ReadChunk`: reads from a chunk file, and replies with the data and its checksums.

use super::Call;
use crate::chunk_store::{ChunkStore, ReadData};
use skep_env::Buf;
use skep_types::{Error, ErrorCode, Result};
use skep_wire::limits::MAX_DATA_BYTES;
use skep_wire::storage::{ReadChunk, ReadChunkReply};
use std::rc::Rc;

pub(super) async fn handle(
    store: &Rc<ChunkStore>,
    call: Call<ReadChunk>,
) -> Result<(ReadChunkReply, Option<Buf>)> {
    let ReadChunk { key, offset, length } = call.request;
    if length as usize > MAX_DATA_BYTES {
        return Err(Error::new(
            ErrorCode::LimitReached,
            format!("cannot read {length} bytes in one request: the limit is {MAX_DATA_BYTES}"),
        ));
    }
    let ReadData { data, checksums, exists } = store.read(&key, offset, length).await?;
    Ok((ReadChunkReply { exists, checksums }, Some(data)))
}
