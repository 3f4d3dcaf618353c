//! `TruncateChunk`: truncates a chunk file.

use super::Call;
use crate::chunk_store::ChunkStore;
use skep_env::Buf;
use skep_types::Result;
use skep_wire::management::EmptyReply;
use skep_wire::storage::TruncateChunk;
use std::rc::Rc;

pub(super) async fn handle(
    store: &Rc<ChunkStore>,
    call: Call<TruncateChunk>,
) -> Result<(EmptyReply, Option<Buf>)> {
    let TruncateChunk { key, size } = call.request;
    store.truncate(&key, size).await?;
    if call.is_durable {
        store.sync(&key).await?;
    }
    Ok((EmptyReply {}, None))
}
