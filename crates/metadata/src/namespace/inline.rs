//! Inline bytes are the bytes of files that the stripe pattern places in metadata. This module owns
//! the changes of these bytes by writes, truncations and removals
//! (docs/design/0009-first-bytes-in-metadata.md). The module `tx::start_numbers` owns the check
//! whether acknowledged inline writes have survived.
//!
//! # Invariants
//! - Zeros at the end of the inline bytes are not stored. So bytes that a client has cleared take
//!   no space.
//! - Bytes beyond the file size belong to a write in flight, or to a failed write that the client
//!   is about to clear. If the writer dies, the size recovery counts these bytes, as it counts
//!   bytes of chunk files.

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_format::metadata::{InlineRecord, InodeRecord, Key};
use skep_types::codec::{Bytes, Codec, crc32c};
use skep_types::{Error, ErrorCode, FileKind, InodeId, Lsn, Result, StripePattern};
use skep_wire::Request;
use skep_wire::frame::Header;
use skep_wire::inline::{InlineContents, WriteInline, WriteInlineReply};

/// Puts the number of the log record into the reply to an inline write. The handler cannot do this,
/// because the target assigns the number after the handler has run.
pub(crate) fn stamp(header: &Header, lsn: Lsn, reply: &mut Vec<u8>) -> Result<()> {
    if header.message == WriteInline::ID {
        let mut written = WriteInlineReply::from_bytes(reply)?;
        written.mark.record = lsn;
        *reply = written.to_bytes();
    }
    Ok(())
}

impl<E: Engine> Context<'_, E> {
    /// Returns the inode of a file, for a request that reads or writes a range of the file's inline
    /// bytes. `end` is the end of this range. `None` means that the end overflows.
    ///
    /// # Errors
    /// - `Stale` if the file was removed or has a different stripe pattern now.
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
            let what =
                format!("the stripe pattern of file {inode} has changed; open the file again");
            return Err(Error::new(ErrorCode::Stale, what).into());
        }
        let most = pattern.inline_bytes();
        if end.is_none_or(|end| end > most) {
            let what = format!(
                "cannot use a range of the inline bytes of file {inode}: the range ends beyond \
                 byte {most}, which is the end of the inline bytes"
            );
            return Err(Error::new(ErrorCode::InvalidArgument, what).into());
        }
        Ok(record)
    }

    /// Returns the stored inline bytes of a file, without zeros at the end.
    ///
    /// # Errors
    /// `Corrupt` if the inline bytes do not match their checksum.
    pub(crate) fn inline_bytes(&self, inode: InodeId) -> Result<Vec<u8>> {
        let Some(record) = self.get::<InlineRecord>(&Key::Inline(inode))? else {
            return Ok(Vec::new());
        };
        record.checked().ok_or_else(|| {
            let what = format!(
                "cannot read the inline bytes of file {inode}: the bytes do not match their \
                 checksum"
            );
            Error::new(ErrorCode::Corrupt, what)
        })
    }

    /// Returns all bytes of a file of up to `limit` bytes, or `None` if not all of its bytes are
    /// inline. Returns `None` for damaged bytes too: the client's read then gets the error.
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
        let mut bytes = self.inline_bytes(record.attributes.inode).ok()?;
        // Bytes beyond the size belong to a write in progress.
        bytes.truncate(usize::try_from(size).ok()?);
        Some(InlineContents { checksum: crc32c(&bytes), bytes: Bytes(bytes) })
    }

    /// Replaces the stored inline bytes of a file, which are `before`, by `bytes`. Returns whether
    /// the new bytes take more space.
    pub(crate) fn put_inline(&mut self, inode: InodeId, before: &[u8], bytes: Vec<u8>) -> bool {
        let key = Key::Inline(inode);
        match InlineRecord::new(bytes) {
            Some(record) => {
                self.put(&key, &record);
                return record.bytes.len() > before.len();
            }
            None if !before.is_empty() => self.delete(&key),
            None => {}
        }
        false
    }

    /// Truncates the stored inline bytes of a file when its size is set to `size`.
    ///
    /// # Errors
    /// `Corrupt` if the inline bytes do not match their checksum, unless the truncation removes all
    /// of them.
    pub(crate) fn truncate_inline(&mut self, record: &InodeRecord, size: u64) -> Result<()> {
        let inode = record.attributes.inode;
        if size == 0 {
            return self.remove_inline(record);
        }
        if size < self.inline_reach(record)? {
            let before = self.inline_bytes(inode)?;
            let kept = usize::try_from(size).unwrap_or(usize::MAX).min(before.len());
            self.put_inline(inode, &before, before[..kept].to_vec());
        }
        Ok(())
    }

    /// Removes the stored inline bytes of a file.
    pub(crate) fn remove_inline(&mut self, record: &InodeRecord) -> Result<()> {
        if self.inline_reach(record)? > 0 {
            self.delete(&Key::Inline(record.attributes.inode));
        }
        Ok(())
    }

    /// Returns the offset at which the stored inline bytes of a file end.
    pub(crate) fn inline_reach(&self, record: &InodeRecord) -> Result<u64> {
        if pattern_of(record).is_none_or(|pattern| pattern.inline_bytes() == 0) {
            return Ok(0);
        }
        let stored = self.get::<InlineRecord>(&Key::Inline(record.attributes.inode))?;
        Ok(stored.map_or(0, |stored| stored.bytes.len() as u64))
    }
}

/// Returns the stripe pattern of a regular file, and `None` for a directory, whose pattern only
/// applies to new files in it.
fn pattern_of(record: &InodeRecord) -> Option<&StripePattern> {
    record.pattern.as_ref().filter(|_| record.attributes.kind == FileKind::Regular)
}
