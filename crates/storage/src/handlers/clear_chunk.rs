//! `ClearChunk`: clears a range, so that it reads as zeros, and makes the range a hole where
//! possible.

use super::Call;
use crate::chunk_store::ChunkStore;
use skep_env::Buf;
use skep_types::Result;
use skep_wire::storage::{ChunkRangeReply, ClearChunk};
use std::rc::Rc;

pub(super) async fn handle(
    store: &Rc<ChunkStore>,
    call: Call<ClearChunk>,
) -> Result<(ChunkRangeReply, Option<Buf>)> {
    let ClearChunk { key, offset, length, truncate_generation } = call.request;
    // A range that ends beyond the largest offset extends to the end of the file.
    let range = offset..offset.saturating_add(length);
    let end = store.clear(&key, range, truncate_generation).await?;
    if call.is_durable {
        store.sync(&key).await?;
    }
    Ok((ChunkRangeReply { incarnation: store.incarnation(), end }, None))
}
