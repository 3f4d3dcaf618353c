//! `ReadInline`: reads inline bytes of a file, which metadata stores with the inode.

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_types::codec::{Bytes, crc32c};
use skep_wire::inline::{ReadInline, ReadInlineReply};

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: ReadInline,
) -> Result<ReadInlineReply, Stop> {
    let end = request.offset.checked_add(u64::from(request.length));
    let record = context.inline_file(request.inode, request.generation, end)?;
    // `inline_file` has refused a range whose end overflows, so `end` has a value here.
    let range = request.offset..end.unwrap_or(request.offset);
    let bytes = context.inline_bytes(request.inode, range)?;
    let truncate_generation = record.attributes.truncate_generation;
    Ok(ReadInlineReply { truncate_generation, checksum: crc32c(&bytes), bytes: Bytes(bytes) })
}
