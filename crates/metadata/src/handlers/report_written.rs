//! `ReportWritten`: a writer reports the extent that it has written, and the chunk files that it
//! has synced.

use crate::engine::Engine;
use crate::namespace::inodes::check_written;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_types::{ErrorCode, FileKind};
use skep_wire::metadata::{AttributesReply, ReportWritten};

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: ReportWritten,
) -> Result<AttributesReply, Stop> {
    request.written.iter().try_for_each(check_written)?;
    let mut record = context.inode(request.inode)?;
    if record.attributes.kind != FileKind::Regular {
        return Err(ErrorCode::InvalidArgument.into());
    }
    if let Some(written) = &request.written {
        context.merge_written(&mut record, written);
    }
    // Skip the synced chunk files if they belong to another pattern than the file has now. The
    // pattern can only have changed because a power loss has lost this client's open.
    if let (Some(synced), Some(pattern)) = (&request.synced, &record.pattern)
        && synced.pattern_generation == pattern.generation
    {
        synced.chunk_files.check(pattern)?;
        record.synced_chunk_files.merge(&synced.chunk_files);
    }
    context.put_inode(&record);
    Ok(AttributesReply { attributes: record.attributes })
}
