//! `SyncChunk`: syncs acknowledged writes to the device.

use super::Call;
use crate::chunk_store::ChunkStore;
use skep_env::Buf;
use skep_types::Result;
use skep_wire::storage::{SyncChunk, SyncChunkReply};
use std::rc::Rc;

pub(super) async fn handle(
    store: &Rc<ChunkStore>,
    call: Call<SyncChunk>,
) -> Result<(SyncChunkReply, Option<Buf>)> {
    let key = &call.request.key;
    store.sync(key).await?;
    let exists = store.exists(key)?;
    Ok((SyncChunkReply { incarnation: store.incarnation(), exists }, None))
}
