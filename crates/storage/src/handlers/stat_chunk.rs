//! `StatChunk`: returns the attributes of a chunk file.

use super::Call;
use crate::chunk_store::ChunkStore;
use skep_env::Buf;
use skep_types::Result;
use skep_wire::storage::{ChunkStat, StatChunk};
use std::rc::Rc;

pub(super) async fn handle(
    store: &Rc<ChunkStore>,
    call: Call<StatChunk>,
) -> Result<(ChunkStat, Option<Buf>)> {
    Ok((store.stat(&call.request.key)?, None))
}
