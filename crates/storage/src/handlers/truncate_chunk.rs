//! `TruncateChunk`: truncates a chunk file.

use super::Call;
use crate::chunk_store::ChunkStore;
use skep_env::Buf;
use skep_types::Result;
use skep_wire::storage::{TruncateChunk, TruncateChunkReply};
use std::rc::Rc;

pub(super) async fn handle(
    store: &Rc<ChunkStore>,
    call: Call<TruncateChunk>,
) -> Result<(TruncateChunkReply, Option<Buf>)> {
    let TruncateChunk { key, size, generation } = call.request;
    store.truncate(&key, size, generation).await?;
    if call.is_durable {
        store.sync(&key).await?;
    }
    Ok((TruncateChunkReply { incarnation: store.incarnation() }, None))
}
