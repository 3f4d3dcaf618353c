//! `ClearChunk`: makes a range zeros, with holes where possible.

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
    let ClearChunk { key, offset, length } = call.request;
    // A range beyond the largest offset means up to the end.
    let end = store.clear(&key, offset..offset.saturating_add(length)).await?;
    if call.is_durable {
        store.sync(&key).await?;
    }
    Ok((ChunkRangeReply { incarnation: store.incarnation(), end }, None))
}
