//! `SeekChunk`: finds the next data or the next hole.

use super::Call;
use crate::chunk_store::ChunkStore;
use skep_env::Buf;
use skep_types::Result;
use skep_wire::storage::{SeekChunk, SeekChunkReply};
use std::rc::Rc;

pub(super) async fn handle(
    store: &Rc<ChunkStore>,
    call: Call<SeekChunk>,
) -> Result<(SeekChunkReply, Option<Buf>)> {
    let SeekChunk { key, offset, wants_data } = call.request;
    let at = if wants_data {
        store.next_data(&key, offset).await?
    } else {
        Some(store.next_hole(&key, offset).await?)
    };
    Ok((SeekChunkReply { at }, None))
}
