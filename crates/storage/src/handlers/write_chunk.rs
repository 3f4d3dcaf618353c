//! `WriteChunk`: writes to a chunk file.

use super::Call;
use crate::chunk_store::{ChunkStore, Destination};
use skep_env::Buf;
use skep_types::Result;
use skep_wire::storage::{WriteChunk, WriteChunkReply};
use std::rc::Rc;

pub(super) async fn handle(
    store: &Rc<ChunkStore>,
    call: Call<WriteChunk>,
) -> Result<(WriteChunkReply, Option<Buf>)> {
    let WriteChunk { key, stripe, offset, truncate_generation, must_exist, checksums } =
        call.request;
    let data = call.data.unwrap_or_else(|| Buf::new(0));
    let to = Destination { key: &key, stripe, offset, truncate_generation, must_exist };
    store.write(to, &data, &checksums).await?;
    if call.is_durable {
        store.sync(&key).await?;
    }
    let written =
        WriteChunkReply { incarnation: store.incarnation(), free_bytes: store.free_bytes() };
    Ok((written, None))
}
