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
    let ReserveChunk { key, offset, length, truncate_generation, must_exist } = call.request;
    // If the range ends beyond the largest offset, the store refuses the request with
    // `FileTooLarge`.
    let range = offset..offset.saturating_add(length);
    let end = store.reserve(&key, range, truncate_generation, must_exist).await?;
    if call.is_durable {
        store.sync(&key).await?;
    }
    Ok((ChunkRangeReply { incarnation: store.incarnation(), end }, None))
}
