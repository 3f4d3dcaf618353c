//! `ReportWritten`: a writer reports the extent that it has written, and the chunk files that it
//! has synced.

use crate::engine::Engine;
use crate::namespace::inline_end;
use crate::namespace::inodes::{check_generation, check_written};
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
    // Compare only the generations of the patterns: the end of an inline component does not change
    // the generation.
    if let Some(synced) = &request.synced {
        check_generation(&record, synced.pattern_generation)?;
    }
    if let Some(written) = &request.written {
        if !context.end_inline_as_reported(&mut record, written.ends_inline)? {
            return Err(inline_end::refusal(request.inode).into());
        }
        context.merge_written(&mut record, written);
    }
    if let (Some(synced), Some(pattern)) = (&request.synced, &record.pattern) {
        synced.chunk_files.check(pattern)?;
        record.synced_chunk_files.merge(&synced.chunk_files);
    }
    context.put_inode(&record);
    Ok(AttributesReply { attributes: record.attributes })
}
