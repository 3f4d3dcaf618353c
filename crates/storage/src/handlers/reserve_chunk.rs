//! `ReserveChunk`: reserves space for later writes.

use super::Call;
use crate::chunk_store::ChunkStore;
use skep_env::Buf;
use skep_types::Result;
use skep_wire::storage::{ChunkRangeReply, ReserveChunk};
use std::rc::Rc;

pub(super) async fn handle(
    store: &Rc<ChunkStore>,
    call: Call<ReserveChunk>,
) -> Result<(ChunkRangeReply, Option<Buf>)> {
    let ReserveChunk { key, offset, length } = call.request;
    // If the range ends beyond the largest offset, the store refuses it with `FileTooLarge`.
    let end = store.reserve(&key, offset..offset.saturating_add(length)).await?;
    if call.is_durable {
        store.sync(&key).await?;
    }
    Ok((ChunkRangeReply { incarnation: store.incarnation(), end }, None))
}
