//! `AwaitTruncation`: waits until the file has no pending truncation (`Context::check_truncation`).
//! After the wait, returns the attributes of the file, and the chunk files that clients have
//! reported as synced.

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_format::metadata::InodeRecord;
use skep_wire::metadata::{AwaitTruncation, AwaitTruncationReply};

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: AwaitTruncation,
) -> Result<AwaitTruncationReply, Stop> {
    let InodeRecord { attributes, synced_chunk_files, .. } = context.inode(request.inode)?;
    Ok(AwaitTruncationReply { attributes, synced: synced_chunk_files })
}
