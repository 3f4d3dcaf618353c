//! `ListChunks`: returns one page of the list of chunk files.

use super::Call;
use crate::chunk_store::ChunkStore;
use skep_env::Buf;
use skep_types::Result;
use skep_wire::storage::{ChunkList, ListChunks};
use std::rc::Rc;

pub(super) async fn handle(
    store: &Rc<ChunkStore>,
    call: Call<ListChunks>,
) -> Result<(ChunkList, Option<Buf>)> {
    let ListChunks { cursor, limit } = call.request;
    let (keys, next) = store.list(cursor, limit)?;
    Ok((ChunkList { keys, next }, None))
}
