//! `WriteInline`: writes inline bytes of a file, which metadata stores with the inode. If these are
//! all bytes of the client's write (`extends`), the request also updates the file's size and times.

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_types::codec::crc32c;
use skep_types::{Attributes, Error, ErrorCode, Lsn};
use skep_wire::inline::{InlineMark, WriteInline, WriteInlineReply};
use skep_wire::metadata::WrittenExtent;

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: WriteInline,
) -> Result<WriteInlineReply, Stop> {
    let WriteInline { inode, generation, offset, bytes, checksum, extends, .. } = request;
    if crc32c(&bytes) != checksum {
        let what = format!(
            "cannot write inline bytes of file {inode}: the bytes do not match their checksum"
        );
        return Err(Error::new(ErrorCode::Protocol, what).into());
    }
    if bytes.is_empty() {
        return Err(Error::new(
            ErrorCode::InvalidArgument,
            "cannot write inline bytes: the request has no bytes",
        )
        .into());
    }
    let end = offset.checked_add(bytes.len() as u64);
    let mut record = context.inline_file(inode, generation, end)?;
    let Attributes { size, truncate_generation, .. } = record.attributes;
    // The client may also have a higher generation: the one of a truncation that a power loss has
    // reverted. If the client repeats a lost write that came after this truncation, the write must
    // stay lost: its bytes would mix with bytes that the truncation had removed.
    if request.truncate_generation != truncate_generation || (request.appends && offset < size) {
        let what = format!(
            "cannot write inline bytes of file {inode}: the end of the file has moved to byte \
             {size} since the client read the file"
        );
        return Err(Error::new(ErrorCode::EndMoved, what).into());
    }
    let Some(start_number) = context.shared.starts.current() else { return Err(Stop::Unsafe) };
    if context.write_inline(inode, offset, &bytes)? {
        context.check_free_space()?;
    }
    if extends {
        let written = WrittenExtent {
            end: offset + bytes.len() as u64,
            truncate_generation: record.attributes.truncate_generation,
            may_leave_holes: offset > record.attributes.size,
            reach: 0,
            ends_inline: None,
        };
        context.merge_written(&mut record, &written);
        context.put_inode(&record);
    } else if let Some(end) = end.filter(|end| *end > record.high_water) {
        // The client has not completed its write, so neither size nor times change.
        record.high_water = end;
        context.put_inode(&record);
    }
    // The target has not assigned the LSN of the log record yet. `inline::stamp` sets the LSN
    // later.
    let mark = InlineMark { start: start_number, record: Lsn::default() };
    Ok(WriteInlineReply { mark, attributes: record.attributes })
}
