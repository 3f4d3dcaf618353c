//! `RemoveInline`: removes the inline bytes of a file and ends its inline component. Either the
//! client has copied the inline bytes to storage, or the file is empty
//! (docs/design/0009-first-bytes-in-metadata.md, "Moving the bytes").

use crate::engine::Engine;
use crate::handlers::sync_inline::check_marks;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_cluster::striping;
use skep_format::metadata::InodeRecord;
use skep_types::codec::crc32c;
use skep_types::{Lsn, StripePattern};
use skep_wire::inline::{InlineMark, RemoveInline, RemoveInlineReply};

/// Index of the component after the inline component.
const NEXT_COMPONENT: u16 = 1;

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: RemoveInline,
) -> Result<RemoveInlineReply, Stop> {
    check_marks(&request.written)?;
    let mut record = context.inline_file(request.inode, request.generation, Some(0))?;
    let starts = &context.shared.starts;
    let is_lost = request.written.iter().any(|mark| starts.is_lost(mark));
    let Some(start) = starts.current() else { return Err(Stop::Unsafe) };
    // The target has not assigned the LSN of the log record yet. `inline::stamp` sets the LSN
    // later.
    let mark = InlineMark { start, record: Lsn::default() };
    let reply = |is_removed| RemoveInlineReply { is_removed, is_lost, mark };
    let pattern = record.pattern.as_ref();
    if pattern.is_some_and(StripePattern::has_moved_inline) {
        // An earlier request of the client has ended the component, and its reply was lost.
        return Ok(reply(true));
    }
    let Some(moved) = pattern.and_then(striping::without_inline) else {
        return Ok(reply(false));
    };
    if !may_remove(context, &record, &request)? {
        return Ok(reply(false));
    }
    context.remove_inline(&record)?;
    // The client has synced the chunk file with the copied bytes. From now on, if the chunk file is
    // missing, its bytes are lost.
    if let Some(number) = moved.chunk_file_number(NEXT_COMPONENT, 0)
        && record.attributes.size > 0
    {
        record.synced_chunk_files.insert(number);
    }
    record.pattern = Some(moved);
    context.unlogged.changed_patterns.push(request.inode);
    context.put_inode(&record);
    Ok(reply(true))
}

/// Whether the request may remove the inline bytes: no other session has the file open, and either
/// the client has copied all inline bytes or the file is empty.
fn may_remove<E: Engine>(
    context: &Context<'_, E>,
    record: &InodeRecord,
    request: &RemoveInline,
) -> Result<bool, Stop> {
    let inode = request.inode;
    // Another client with the file open would continue to use the pattern from the reply to its
    // open.
    if !context.is_only_writer(context.session()?, inode)? {
        return Ok(false);
    }
    // A truncation or a size recovery in progress has computed sizes of chunk files from the
    // present pattern, so this pattern must not change now.
    if context.shared.truncations.get(inode).is_some() || context.has_size_recovery(inode)? {
        return Ok(false);
    }
    let inline = record.pattern.as_ref().map_or(0, StripePattern::inline_bytes);
    let attributes = &record.attributes;
    if attributes.truncate_generation != request.truncate_generation {
        return Ok(false);
    }
    let bytes = context.inline_bytes(inode, 0..inline)?;
    let is_empty = attributes.size == 0 && bytes.is_empty();
    Ok((attributes.size > inline || is_empty) && crc32c(&bytes) == request.checksum)
}
