//! Inline bytes: the first bytes of a file, if its stripe pattern places them in metadata
//! (docs/design/0009-first-bytes-in-metadata.md). This module reads, writes, truncates and removes
//! inline bytes. The module `tx::start_numbers` checks whether acknowledged inline writes have
//! survived a power loss.
//!
//! Each record stores one part, which has at most [`INLINE_PART_BYTES`] bytes, so that a write logs
//! only the parts that it changes. Earlier releases stored all inline bytes of a file in the record
//! of part 0. The target still reads this form, and splits it into parts before the first change.
//!
//! # Invariants
//! - Zeros at the end of a part are not stored, and a part of zeros has no record. So a range that
//!   a client has filled with zeros takes no space.
//! - No byte lies beyond [`InodeRecord::high_water`].
//! - Bytes beyond the file size belong to a write whose client has not reported the new size yet,
//!   or to a failed write, whose bytes the client will overwrite with zeros. If the writer dies,
//!   the size recovery counts these bytes, as it counts bytes of chunk files.
//!
//! [`InlineRecord::new`] ensures the first invariant, and `handlers::write_inline` the second
//! invariant. The third invariant relates the target to its clients, so no function here can check
//! it.
//!
//! Held by the tests `inline_parts_equal_one_flat_list_of_bytes`,
//! `removed_file_leaves_no_inline_bytes_beyond_its_size` and
//! `file_size_includes_inline_bytes_of_a_dead_writer`. The simulator also compares each stored part
//! and each read of a client with its reference model (`crates/sim/src/changes.rs`).

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_format::metadata::{
    INLINE_PART_BYTES, InlineRecord, InodeRecord, Key, decode_value, expect_parsed, inline_of,
    inline_parts,
};
use skep_types::codec::{Bytes, Codec, crc32c};
use skep_types::{Error, ErrorCode, FileKind, InodeId, Lsn, MAX_FILE_BYTES, Result, StripePattern};
use skep_wire::Request;
use skep_wire::inline::{
    InlineContents, RemoveInline, RemoveInlineReply, WriteInline, WriteInlineReply,
};
use skep_wire::metadata::{Replay, ReplayReply};
use std::ops::Range;

/// Adds the LSN of the log record to the reply to `WriteInline` or `RemoveInline`, even if a client
/// has repeated the inline write with `Replay`. The handler cannot add the LSN, because the target
/// assigns the LSN after the handler has run. `message` is the id of the request, and `body` has
/// its bytes.
pub(crate) fn stamp(message: u16, body: &[u8], lsn: Lsn, reply: &mut Vec<u8>) -> Result<()> {
    match message {
        WriteInline::ID => {
            let mut written = WriteInlineReply::from_bytes(reply)?;
            written.mark.record = lsn;
            *reply = written.to_bytes();
        }
        RemoveInline::ID => {
            let mut removed = RemoveInlineReply::from_bytes(reply)?;
            removed.mark.record = lsn;
            *reply = removed.to_bytes();
        }
        Replay::ID => {
            let Replay { message, request, .. } = Replay::from_bytes(body)?;
            let mut replayed = ReplayReply::from_bytes(reply)?;
            stamp(message, &request.0, lsn, &mut replayed.reply.0)?;
            *reply = replayed.to_bytes();
        }
        _ => {}
    }
    Ok(())
}

impl<E: Engine> Context<'_, E> {
    /// Returns the inode of a file, for a request that reads or writes a range of the file's inline
    /// bytes. `end` is the end of this range. `None` means that the client's offset and length have
    /// overflowed.
    ///
    /// # Errors
    /// - `Stale` if the file was removed or has a different stripe pattern now, or if its inline
    ///   bytes were moved to storage. The client then requests the pattern.
    /// - `InvalidArgument` if the inode is not a regular file, or if the range is not within the
    ///   bytes that the stripe pattern places in metadata.
    pub(crate) fn inline_file(
        &self,
        inode: InodeId,
        generation: u32,
        end: Option<u64>,
    ) -> Result<InodeRecord, Stop> {
        let record = self.inode(inode)?;
        let Some(pattern) = pattern_of(&record) else {
            let what =
                format!("cannot use the inline bytes of inode {inode}: it is not a regular file");
            return Err(Error::new(ErrorCode::InvalidArgument, what).into());
        };
        if pattern.generation != generation {
            let what = format!(
                "cannot use the inline bytes of file {inode}: its stripe pattern has changed; open \
                 the file again"
            );
            return Err(Error::new(ErrorCode::Stale, what).into());
        }
        let most = pattern.inline_bytes();
        if pattern.has_moved_inline() && end != Some(0) {
            let what = format!(
                "cannot use the inline bytes of file {inode}: they were moved to storage; open the \
                 file again"
            );
            return Err(Error::new(ErrorCode::Stale, what).into());
        }
        if end.is_none_or(|end| end > most) {
            let what = format!(
                "cannot use a range of the inline bytes of file {inode}: the range ends beyond \
                 byte {most}, which is the end of the inline bytes"
            );
            return Err(Error::new(ErrorCode::InvalidArgument, what).into());
        }
        Ok(record)
    }

    /// Returns the stored inline bytes in a range of a file, without zeros at the end.
    ///
    /// # Errors
    /// `Corrupt` if a part in the range does not match its checksum.
    pub(crate) fn inline_bytes(&self, inode: InodeId, range: Range<u64>) -> Result<Vec<u8>> {
        let mut first = self.get::<InlineRecord>(&Key::Inline(inode, 0))?;
        let has_all = first.as_ref().is_some_and(InlineRecord::has_all_parts);
        let pieces: Vec<_> =
            if has_all { vec![(0, range.clone())] } else { inline_parts(range.clone()).collect() };
        let mut bytes = Vec::new();
        for (part, piece) in pieces {
            let key = Key::Inline(inode, part);
            let record = if part == 0 { first.take() } else { self.get(&key)? };
            let Some(record) = record else { continue };
            let stored = checked(inode, record)?;
            let Range { start, end } = within(part, &piece);
            let end = end.min(stored.len());
            if start < end {
                // Fill with zeros up to this part, because earlier parts may be shorter or may have
                // no record.
                bytes.resize(to_usize(piece.start - range.start), 0);
                bytes.extend_from_slice(&stored[start..end]);
            }
        }
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        bytes.truncate(end);
        Ok(bytes)
    }

    /// Returns all bytes of a file. `None` means that the file is empty, that it is longer than
    /// `limit` or than its inline bytes, or that the bytes are damaged. If the bytes are damaged, a
    /// later read of the client gets the error.
    pub(crate) fn inline_contents(
        &self,
        record: &InodeRecord,
        limit: u32,
    ) -> Option<InlineContents> {
        let size = record.attributes.size;
        let most = pattern_of(record)?.inline_bytes().min(u64::from(limit));
        if size == 0 || size > most {
            return None;
        }
        // Leave out the bytes beyond the size, which belong to a write in progress.
        let bytes = self.inline_bytes(record.attributes.inode, 0..size).ok()?;
        Some(InlineContents { checksum: crc32c(&bytes), bytes: Bytes(bytes) })
    }

    /// Writes inline bytes at an offset of a file. Returns whether the stored bytes take more space
    /// than before.
    ///
    /// # Errors
    /// `Corrupt` if a part in the range does not match its checksum.
    pub(crate) fn write_inline(
        &mut self,
        inode: InodeId,
        offset: u64,
        bytes: &[u8],
    ) -> Result<bool> {
        let mut first = self.divide_inline(inode)?;
        let (mut removed, mut added) = (0, 0);
        for (part, piece) in inline_parts(offset..offset + bytes.len() as u64) {
            let mut part_bytes = self.inline_part((inode, part), &mut first)?;
            let stored = part_bytes.len();
            let Range { start, end } = within(part, &piece);
            part_bytes.resize(stored.max(end), 0);
            let from = to_usize(piece.start - offset);
            part_bytes[start..end].copy_from_slice(&bytes[from..from + (end - start)]);
            removed += stored;
            added += self.put_inline_part((inode, part), stored > 0, part_bytes);
        }
        Ok(added > removed)
    }

    /// Truncates the stored inline bytes of a file to `size` bytes. Does nothing if the inline
    /// bytes are not longer than the new size.
    ///
    /// # Errors
    /// `Corrupt` if the part with the last remaining byte does not match its checksum.
    pub(crate) fn truncate_inline(&mut self, record: &InodeRecord, size: u64) -> Result<()> {
        let inode = record.attributes.inode;
        if size == 0 {
            return self.remove_inline(record);
        }
        let reach = self.inline_reach(record)?;
        if size >= reach {
            return Ok(());
        }
        let mut first = self.divide_inline(inode)?;
        for (part, piece) in inline_parts(size..reach) {
            let remaining = within(part, &piece).start;
            if remaining > 0 {
                let mut part_bytes = self.inline_part((inode, part), &mut first)?;
                let is_stored = !part_bytes.is_empty();
                part_bytes.truncate(remaining);
                self.put_inline_part((inode, part), is_stored, part_bytes);
            } else if self.get::<InlineRecord>(&Key::Inline(inode, part))?.is_some() {
                self.delete(&Key::Inline(inode, part));
            }
        }
        Ok(())
    }

    /// Removes the inline bytes of a file that the target disposes of. `reach` is the result of
    /// [`Self::reach`]. If `reach` is a bound, this function need not search the store for parts. A
    /// search takes longer than the removal of a few keys. A part of zeros has no record, and its
    /// removal has no effect.
    pub(crate) fn dispose_of_inline(&mut self, record: &InodeRecord, reach: u64) -> Result<()> {
        if reach == MAX_FILE_BYTES {
            return self.remove_inline(record);
        }
        let most = pattern_of(record).map_or(0, StripePattern::inline_bytes);
        for (part, _) in inline_parts(0..reach.min(most)) {
            self.delete(&Key::Inline(record.attributes.inode, part));
        }
        Ok(())
    }

    /// Removes the stored inline bytes of a file. This transaction must not have written any inline
    /// bytes of the file.
    pub(crate) fn remove_inline(&mut self, record: &InodeRecord) -> Result<()> {
        for key in self.stored_inline(record)? {
            self.delete_raw(key);
        }
        Ok(())
    }

    /// Returns the offset at which the stored inline bytes of a file end. Does not include the
    /// writes of this transaction.
    pub(crate) fn inline_reach(&self, record: &InodeRecord) -> Result<u64> {
        let Some(key) = self.stored_inline(record)?.pop() else { return Ok(0) };
        let (inode, part) = expect_parsed(&key, inline_of(&key))?;
        let last = self.get_raw(&Key::Inline(inode, part))?.unwrap_or_default();
        let last: InlineRecord = decode_value(&key, &last)?;
        Ok(u64::from(part) * INLINE_PART_BYTES + last.bytes.len() as u64)
    }

    /// Returns the keys of all stored parts of a file's inline bytes, in ascending order. Does not
    /// include the writes of this transaction.
    fn stored_inline(&self, record: &InodeRecord) -> Result<Vec<Vec<u8>>> {
        if pattern_of(record).is_none_or(|pattern| pattern.inline_bytes() == 0) {
            return Ok(Vec::new());
        }
        self.scan_keys(&Key::inline_parts_of(record.attributes.inode), &[], usize::MAX)
    }

    /// Returns the stored bytes of one part. `first` is the result of [`Self::divide_inline`]. For
    /// part 0, this function moves the record out of `first`.
    fn inline_part(
        &self,
        (inode, part): (InodeId, u16),
        first: &mut Option<InlineRecord>,
    ) -> Result<Vec<u8>> {
        let record = match part {
            0 => first.take(),
            _ => self.get::<InlineRecord>(&Key::Inline(inode, part))?,
        };
        record.map_or(Ok(Vec::new()), |record| checked(inode, record))
    }

    /// Replaces the bytes of a part by `bytes`. `is_stored` means that the part has a record.
    /// Returns the number of bytes that the new record stores.
    fn put_inline_part(
        &mut self,
        (inode, part): (InodeId, u16),
        is_stored: bool,
        bytes: Vec<u8>,
    ) -> usize {
        let key = Key::Inline(inode, part);
        match InlineRecord::new(bytes) {
            Some(record) => {
                self.put(&key, &record);
                record.bytes.len()
            }
            None => {
                if is_stored {
                    self.delete(&key);
                }
                0
            }
        }
    }

    /// Splits the inline bytes of a file into parts if an earlier release has stored all of them in
    /// one record. Returns the record of part 0 after the split.
    fn divide_inline(&mut self, inode: InodeId) -> Result<Option<InlineRecord>> {
        let first = self.get::<InlineRecord>(&Key::Inline(inode, 0))?;
        if !first.as_ref().is_some_and(InlineRecord::has_all_parts) {
            return Ok(first);
        }
        let bytes = first.map_or(Ok(Vec::new()), |whole| checked(inode, whole))?;
        for (part, piece) in inline_parts(0..bytes.len() as u64) {
            let bytes = bytes[to_usize(piece.start)..to_usize(piece.end)].to_vec();
            self.put_inline_part((inode, part), part == 0, bytes);
        }
        self.get(&Key::Inline(inode, 0))
    }
}

/// Returns the bytes of a record of inline bytes.
///
/// # Errors
/// `Corrupt` if the bytes do not match their checksum.
fn checked(inode: InodeId, record: InlineRecord) -> Result<Vec<u8>> {
    record.checked().ok_or_else(|| {
        let what = format!(
            "cannot read the inline bytes of file {inode}: the bytes do not match their checksum"
        );
        Error::new(ErrorCode::Corrupt, what)
    })
}

/// Converts a range of a file into a range of the part that contains it.
fn within(part: u16, piece: &Range<u64>) -> Range<usize> {
    let start = u64::from(part) * INLINE_PART_BYTES;
    to_usize(piece.start - start)..to_usize(piece.end - start)
}

/// Converts an offset in inline bytes, which is at most 64 KiB.
fn to_usize(offset: u64) -> usize {
    offset as usize
}

/// Returns the stripe pattern of a regular file, and `None` for a directory, whose pattern only
/// applies to new files in it.
fn pattern_of(record: &InodeRecord) -> Option<&StripePattern> {
    record.pattern.as_ref().filter(|_| record.attributes.kind == FileKind::Regular)
}
