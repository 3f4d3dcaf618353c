//! `RemoveChunks`: removes chunk files durably.

use super::Call;
use crate::chunk_store::ChunkStore;
use crate::limits::MAX_REMOVED;
use skep_env::Buf;
use skep_types::{Error, ErrorCode, Result};
use skep_wire::management::EmptyReply;
use skep_wire::storage::RemoveChunks;
use std::rc::Rc;

pub(super) async fn handle(
    store: &Rc<ChunkStore>,
    call: Call<RemoveChunks>,
) -> Result<(EmptyReply, Option<Buf>)> {
    let keys = call.request.keys;
    if keys.len() > MAX_REMOVED {
        return Err(Error::new(
            ErrorCode::TooLarge,
            format!(
                "cannot remove {} chunk files in one request: the limit is {MAX_REMOVED}",
                keys.len()
            ),
        ));
    }
    store.remove(&keys).await?;
    Ok((EmptyReply {}, None))
}
