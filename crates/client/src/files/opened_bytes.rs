//! Metadata sends the bytes of a small file in its reply to the open of the file. A read through
//! the new handle uses these bytes, so the read sends no request. No I/O.
//!
//! # When the bytes are valid
//! The bytes belong to one version of the file. A read uses the bytes only if the kernel could use
//! cached pages of the file, and if all of these conditions are true:
//! - The file is not shared. Metadata notifies this mount before another client can write. A shared
//!   file stays shared for this mount until this mount has closed all its handles of the file. So
//!   no read uses the bytes later either, even if the other client has closed the file.
//! - The mount has seen no newer version of the file in any reply. Another mount can truncate a
//!   file without an open, and then only the version shows the truncation.
//! - No write or truncation of this mount has begun or ended since the mount sent the open. A reply
//!   to an open may arrive after the reply to a later write.
//! - The lease of the client is valid, so metadata still notifies it. While the mount renews a lost
//!   session, its lease counts as invalid. The renewal opens the file again, and records the
//!   version that the file then has.
//! - The open is at most [`SIZE_TRUSTED_FOR`] old, and at most as old as the mount may use
//!   attributes (`attribute_timeout`). So when the shorter of these times has passed, reads show a
//!   truncation that no reply has shown before.

use crate::limits::{MAX_OPENED_BYTES, MAX_OPENED_FILE_BYTES, SIZE_TRUSTED_FOR};
use skep_types::codec::crc32c;
use skep_wire::inline::InlineContents;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// The number of changes of a file's data by this mount. Two equal values mean that no write or
/// truncation of this mount has begun or ended between the two moments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DataChanges {
    /// Changes of files whose state is no longer in the table of inodes. All files in one part of
    /// the table share this number.
    pub(crate) elsewhere: u64,
    /// Number of data changes that the state of the inode has counted.
    pub(crate) counted: u64,
}

#[cfg(test)]
impl DataChanges {
    pub(crate) fn and_one_more(self) -> Self {
        Self { counted: self.counted + 1, ..self }
    }
}

/// The state of the client when it sends an open.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpenStart {
    pub(crate) changes: DataChanges,
    pub(crate) at: Duration,
    /// Whether the client requests the bytes of the file.
    pub(crate) wants_bytes: bool,
}

/// The state of a file when a read begins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileState {
    pub(crate) version: u64,
    pub(crate) size: u64,
    pub(crate) changes: DataChanges,
    pub(crate) now: Duration,
}

/// All bytes of a file, from the reply to an open.
#[derive(Debug)]
pub(crate) struct OpenedBytes {
    bytes: Vec<u8>,
    size: u64,
    version: u64,
    start: OpenStart,
    max_age: Duration,
    _held: HeldBytes,
}

impl OpenedBytes {
    /// Returns the bytes if they are the current contents of the file. `None` means that the bytes
    /// may be out of date. Zeros at the end of the file may be missing.
    pub(crate) fn of(&self, file: &FileState) -> Option<&[u8]> {
        let is_current = self.version == file.version
            && self.size == file.size
            && self.start.changes == file.changes
            && file.now.saturating_sub(self.start.at) <= self.max_age;
        is_current.then_some(&self.bytes)
    }
}

/// The bytes of an [`OpenedBytes`], which count towards the limit [`MAX_OPENED_BYTES`].
#[derive(Debug)]
struct HeldBytes {
    all: Arc<AtomicUsize>,
    bytes: usize,
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Decides whether opens request the bytes of files, and limits the memory for these bytes.
#[derive(Debug)]
pub(crate) struct OpenedBytesPolicy {
    held: Arc<AtomicUsize>,
    /// How long reads may use the bytes after the open.
    max_age: Duration,
    /// Whether the kernel has lately read a file from the mount although the mount had sent the
    /// same version before. A repeated read of the same version means that the kernel drops pages
    /// because it needs the memory.
    has_dropped_pages: AtomicBool,
}

impl OpenedBytesPolicy {
    /// Creates the policy of a mount. `attribute_timeout` is the time for which the mount may use
    /// attributes from metadata.
    pub(crate) fn new(attribute_timeout: Duration) -> Self {
        let max_age = attribute_timeout.min(SIZE_TRUSTED_FOR);
        Self { held: Arc::default(), max_age, has_dropped_pages: AtomicBool::new(false) }
    }

    /// Returns the largest size of a file whose bytes an open requests. `is_known` means that the
    /// kernel probably has the pages of the file. No read would use the bytes then.
    pub(crate) fn limit(&self, is_known: bool) -> u32 {
        let is_needed = !is_known || self.has_dropped_pages.load(Ordering::Relaxed);
        if is_needed && !self.max_age.is_zero() { MAX_OPENED_FILE_BYTES } else { 0 }
    }

    /// Records whether the kernel seems to drop pages. `true` means that a read would have used
    /// bytes that its open did not request. `false` means that no read has used the bytes that an
    /// open returned.
    pub(crate) fn note_dropped_pages(&self, has_dropped: bool) {
        if self.has_dropped_pages.load(Ordering::Relaxed) != has_dropped {
            self.has_dropped_pages.store(has_dropped, Ordering::Relaxed);
        }
    }

    /// Keeps the bytes in a reply. Returns `None` if the checksum is wrong, or if the mount already
    /// keeps too many bytes. The first read then requests the bytes from a server.
    pub(crate) fn keep(
        &self,
        inline: InlineContents,
        (version, size): (u64, u64),
        start: OpenStart,
    ) -> Option<OpenedBytes> {
        let InlineContents { bytes, checksum } = inline;
        if crc32c(&bytes) != checksum || bytes.len() as u64 > size {
            return None;
        }
        let held = HeldBytes { all: Arc::clone(&self.held), bytes: bytes.len() };
        let before = self.held.fetch_add(held.bytes, Ordering::Relaxed);
        let is_possible = before + held.bytes <= MAX_OPENED_BYTES;
        let (bytes, max_age) = (bytes.0, self.max_age);
        is_possible.then_some(OpenedBytes { bytes, size, version, start, max_age, _held: held })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(3600);

    fn contents(bytes: &[u8]) -> InlineContents {
        InlineContents { checksum: crc32c(bytes), bytes: bytes.into() }
    }

    #[test]
    fn bytes_of_an_open_reply_are_used_for_one_file_version_only() {
        let policy = OpenedBytesPolicy::new(TIMEOUT);
        let changes = DataChanges::default();
        let start = OpenStart { changes, at: Duration::from_secs(5), wants_bytes: true };
        let kept = policy.keep(contents(b"abc"), (7, 4), start).unwrap();
        let now = FileState { version: 7, size: 4, changes, now: Duration::from_secs(6) };
        assert_eq!(kept.of(&now), Some(&b"abc"[..]));
        assert_eq!(kept.of(&FileState { version: 8, ..now }), None);
        assert_eq!(kept.of(&FileState { size: 5, ..now }), None);
        assert_eq!(kept.of(&FileState { changes: changes.and_one_more(), ..now }), None);
        assert_eq!(kept.of(&FileState { now: Duration::from_millis(6001), ..now }), None);
    }

    #[test]
    fn damaged_or_too_many_bytes_of_open_replies_are_not_kept() {
        let policy = OpenedBytesPolicy::new(TIMEOUT);
        let changes = DataChanges::default();
        let start = OpenStart { changes, at: Duration::ZERO, wants_bytes: true };
        let damaged = InlineContents { checksum: 1, ..contents(b"abc") };
        assert!(policy.keep(damaged, (7, 3), start).is_none());
        let whole = vec![1; MAX_OPENED_FILE_BYTES as usize];
        let size = whole.len() as u64;
        let mut kept: Vec<_> = (0..MAX_OPENED_BYTES / whole.len())
            .map(|_| policy.keep(contents(&whole), (7, size), start).unwrap())
            .collect();
        assert!(policy.keep(contents(&whole), (7, size), start).is_none());
        kept.pop();
        assert!(policy.keep(contents(&whole), (7, size), start).is_some());
    }

    #[test]
    fn open_requests_bytes_only_if_the_kernel_may_lack_the_pages() {
        let policy = OpenedBytesPolicy::new(TIMEOUT);
        assert_eq!((policy.limit(false), policy.limit(true)), (MAX_OPENED_FILE_BYTES, 0));
        policy.note_dropped_pages(true);
        assert_eq!(policy.limit(true), MAX_OPENED_FILE_BYTES);
        policy.note_dropped_pages(false);
        assert_eq!(policy.limit(true), 0);
    }

    /// docs/semantics.md 1.2: the option replaces the time after which a truncation by another
    /// mount is visible.
    #[test]
    fn bytes_of_an_open_reply_expire_after_the_attribute_timeout() {
        let timeout = Duration::from_millis(250);
        let policy = OpenedBytesPolicy::new(timeout);
        let changes = DataChanges::default();
        let start = OpenStart { changes, at: Duration::ZERO, wants_bytes: true };
        let kept = policy.keep(contents(b"abc"), (7, 3), start).unwrap();
        let now = FileState { version: 7, size: 3, changes, now: timeout };
        assert_eq!(kept.of(&now), Some(&b"abc"[..]));
        assert_eq!(kept.of(&FileState { now: Duration::from_millis(251), ..now }), None);
        assert_eq!(OpenedBytesPolicy::new(Duration::ZERO).limit(false), 0);
    }
}
