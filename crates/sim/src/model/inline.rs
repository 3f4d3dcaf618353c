//! The part of the reference model for inline bytes.

use super::{Inode, Model, Outcome};
use crate::operation::Summary;
use skep_format::metadata::INLINE_PART_BYTES;
use skep_types::codec::crc32c;
use skep_types::{ErrorCode, FileKind, InodeId, SessionId};
use skep_wire::inline::{ReadInline, RemoveInline, RemoveInlineReply, WriteInline};
use skep_wire::metadata::WrittenExtent;
use std::ops::Range;
use std::sync::Arc;

impl Model {
    /// Returns the file to which a request for inline bytes applies, or the error of the request.
    /// `end` is the end offset of the bytes in the request.
    pub(super) fn inline_file(
        &self,
        inode: InodeId,
        generation: u32,
        end: u64,
    ) -> Result<&Inode, ErrorCode> {
        let found = self.inode(inode)?;
        let pattern = found.pattern.as_ref().filter(|_| found.kind == FileKind::Regular);
        let pattern = pattern.ok_or(ErrorCode::InvalidArgument)?;
        if pattern.generation != generation {
            return Err(ErrorCode::Stale);
        }
        if pattern.has_moved_inline() && end != 0 {
            return Err(ErrorCode::Stale);
        }
        if end > pattern.inline_bytes() { Err(ErrorCode::InvalidArgument) } else { Ok(found) }
    }

    /// Returns the current outcome of a read of inline bytes.
    pub(super) fn read_inline(&self, it: &ReadInline) -> Outcome {
        let end = it.offset + u64::from(it.length);
        let bytes = &self.inline_file(it.inode, it.generation, end)?.inline;
        Ok(Summary::Bytes(without_zeros(bytes, it.offset..end).to_vec()))
    }
}

/// Returns a range of the inline bytes of a file, without the zeros at its end.
fn without_zeros(bytes: &[u8], range: Range<u64>) -> &[u8] {
    let place = |at: u64| (at as usize).min(bytes.len());
    let bytes = &bytes[place(range.start)..place(range.end)];
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    &bytes[..end]
}

impl Inode {
    /// Returns the bytes that the target stores for one part of the inline bytes.
    pub(crate) fn inline_part(&self, part: u16) -> &[u8] {
        let start = u64::from(part) * INLINE_PART_BYTES;
        without_zeros(&self.inline, start..start + INLINE_PART_BYTES)
    }

    /// Changes the inline bytes by calling `change`, and then removes trailing zeros.
    pub(super) fn set_inline(&mut self, change: impl FnOnce(&mut Vec<u8>)) {
        change(&mut self.inline);
        let end = without_zeros(&self.inline, 0..u64::MAX).len();
        self.inline.truncate(end);
    }

    /// Applies the removal of inline bytes, and checks that the target may remove these bytes. Does
    /// not check whether another client has the file open, because the model closes the files of
    /// ended sessions only after all requests of a batch. `World::inline_removed` checks the opens
    /// of other clients.
    pub(super) fn remove_inline(
        &mut self,
        it: &RemoveInline,
        session: SessionId,
        reply: &RemoveInlineReply,
    ) -> Result<(), String> {
        let Some(pattern) = self.pattern.as_deref().filter(|_| reply.is_removed) else {
            return Ok(());
        };
        if pattern.has_moved_inline() {
            return Ok(());
        }
        let writers = self.opens.get(&session).map_or(0, |(_, writers)| *writers);
        let is_empty = self.size == 0 && self.inline.is_empty();
        let is_grown = self.size > pattern.inline_bytes() || is_empty;
        let is_same = self.truncate_generation == it.truncate_generation
            && crc32c(&self.inline) == it.checksum;
        if writers == 0 || !is_grown || !is_same {
            return Err(format!(
                "inline bytes were removed; opens for writing: {writers}, file has grown or \
                 is empty: {is_grown}, bytes of the copy: {is_same}"
            ));
        }
        self.end_inline();
        Ok(())
    }

    /// Applies the end of the inline component in a report, and checks that the target may end the
    /// component. Does not check the opens of other clients, as in [`Self::remove_inline`].
    pub(super) fn end_inline_as_reported(
        &mut self,
        it: &WrittenExtent,
        session: SessionId,
    ) -> Result<(), String> {
        let pattern = self.pattern.as_deref().filter(|_| it.ends_inline.is_some());
        let Some(pattern) = pattern.filter(|it| !it.has_moved_inline()) else { return Ok(()) };
        let writers = self.opens.get(&session).map_or(0, |(_, writers)| *writers);
        let is_unused = self.size == 0 && self.truncate_generation == 0 && self.inline.is_empty();
        if writers == 0 || !is_unused || it.ends_inline != Some(pattern.generation) {
            return Err(format!(
                "ended an inline component; opens for writing: {writers}, unused: {is_unused}"
            ));
        }
        self.end_inline();
        Ok(())
    }

    /// Ends the inline component of the file, and removes its bytes.
    pub(crate) fn end_inline(&mut self) {
        let Some(mut moved) = self.pattern.as_deref().cloned() else { return };
        if let Some(next) = moved.components.get_mut(1) {
            next.start = 0;
        }
        self.pattern = Some(Arc::new(moved));
        self.inline.clear();
    }

    /// Applies a write of inline bytes.
    pub(super) fn write_inline(&mut self, it: &WriteInline) {
        let (start, end) = (it.offset as usize, it.offset as usize + it.bytes.len());
        self.set_inline(|bytes| {
            bytes.resize(bytes.len().max(end), 0);
            bytes[start..end].copy_from_slice(&it.bytes);
        });
        self.high_water = self.high_water.max(end as u64);
        if it.extends {
            self.size = self.size.max(end as u64);
        }
    }
}
