//! The first bytes of files whose pattern has them in metadata: what is stored with an inode, and
//! how writes, truncations and removals change it (docs/design/0009-first-bytes-in-metadata.md).
//! Whether acknowledged writes are still there, `epochs` tells.
//!
//! # Invariants
//! - Zeros at the end are not stored; so what is cleared takes no space, and no byte is said to be
//!   there that nobody wrote.
//! - Bytes beyond the size are part of a write that is under way, or that has failed and is about
//!   to be cleared. When its writer dies the size is found out as that of chunk files is: it covers
//!   them.

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_format::metadata::{InlineRecord, InodeRecord, Key};
use skep_types::codec::Codec;
use skep_types::{Error, ErrorCode, FileKind, InodeId, Lsn, Result, StripePattern};
use skep_wire::Request;
use skep_wire::frame::Header;
use skep_wire::inline::{WriteInline, WriteInlineReply};

/// Puts the number of the log record into the answer to an inline write, which is known only when
/// the record is.
pub(crate) fn stamp(header: &Header, lsn: Lsn, reply: &mut Vec<u8>) -> Result<()> {
    if header.message == WriteInline::ID {
        let mut written = WriteInlineReply::from_bytes(reply)?;
        written.mark.record = lsn;
        *reply = written.to_bytes();
    }
    Ok(())
}

impl<E: Engine> Context<'_, E> {
    /// The file of a request about a range of inline bytes.
    ///
    /// # Errors
    /// `Stale` if it is gone or has another pattern by now, `InvalidArgument` for bytes that lie
    /// elsewhere.
    pub(crate) fn inline_file(
        &self,
        inode: InodeId,
        generation: u32,
        end: Option<u64>,
    ) -> Result<InodeRecord, Stop> {
        let record = self.inode(inode)?;
        let Some(pattern) = pattern_of(&record) else {
            let what = format!("inode {inode} is no file");
            return Err(Error::new(ErrorCode::InvalidArgument, what).into());
        };
        if pattern.generation != generation {
            let what = format!("file {inode} has another stripe pattern now: open it anew");
            return Err(Error::new(ErrorCode::Stale, what).into());
        }
        let most = pattern.inline_bytes();
        if end.is_none_or(|end| end > most) {
            let what =
                format!("file {inode} has {most} bytes in metadata, which the range isn't in");
            return Err(Error::new(ErrorCode::InvalidArgument, what).into());
        }
        Ok(record)
    }

    /// What is stored of a file's first bytes.
    ///
    /// # Errors
    /// `Corrupt` if it isn't what was written.
    pub(crate) fn inline_bytes(&self, inode: InodeId) -> Result<Vec<u8>> {
        let Some(record) = self.get::<InlineRecord>(&Key::Inline(inode))? else {
            return Ok(Vec::new());
        };
        record.checked().ok_or_else(|| {
            let what =
                format!("file {inode}: its first bytes, in metadata, don't match their checksum");
            Error::new(ErrorCode::Corrupt, what)
        })
    }

    /// Stores a file's first bytes in the place of `before`; gives whether they take more space.
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

    /// TruncationTable what is stored to a size of the file.
    ///
    /// # Errors
    /// `Corrupt` if it isn't what was written, and some of it would stay.
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

    /// Removes what is stored.
    pub(crate) fn remove_inline(&mut self, record: &InodeRecord) -> Result<()> {
        if self.inline_reach(record)? > 0 {
            self.delete(&Key::Inline(record.attributes.inode));
        }
        Ok(())
    }

    /// Up to where something is stored.
    pub(crate) fn inline_reach(&self, record: &InodeRecord) -> Result<u64> {
        if pattern_of(record).is_none_or(|pattern| pattern.inline_bytes() == 0) {
            return Ok(0);
        }
        let stored = self.get::<InlineRecord>(&Key::Inline(record.attributes.inode))?;
        Ok(stored.map_or(0, |stored| stored.bytes.len() as u64))
    }
}

/// The pattern of a regular file: directories have one too, for others.
fn pattern_of(record: &InodeRecord) -> Option<&StripePattern> {
    record.pattern.as_ref().filter(|_| record.attributes.kind == FileKind::Regular)
}
