//! `Close`: subtracts one open from the open counts of a file. The last close of a file without a
//! name disposes of the file.

use crate::engine::Engine;
use crate::namespace::inodes::{check_generation, check_written};
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_wire::metadata::{AttributesReply, Close, ClosingReport};

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: Close,
) -> Result<AttributesReply, Stop> {
    let mut record = context.inode(request.inode)?;
    if let Some(ClosingReport { extent, pattern_generation }) = &request.written {
        check_written(extent)?;
        if let Some(generation) = pattern_generation {
            check_generation(&record, *generation)?;
        }
        // The inline component must stay if this target has lost the client's open in a power loss.
        // Close the file nevertheless, but ignore the reported size, because other clients do not
        // find the file's first bytes. The next sync of the client detects the missing size, and
        // reports it again.
        if context.end_inline_as_reported(&mut record, extent.ends_inline)? {
            context.merge_written(&mut record, extent);
        } else {
            // Record which chunk files the client may have written, so that a removal of the file
            // removes them.
            record.high_water = record.high_water.max(extent.end).max(extent.reach);
        }
        context.put_inode(&record);
    }
    let session = context.session()?;
    context.close_one(session, &record, request.open)?;
    Ok(AttributesReply { attributes: record.attributes })
}
