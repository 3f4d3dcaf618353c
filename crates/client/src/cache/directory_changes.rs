//! The attributes of directories after this mount's own changes of their entries.
//!
//! After each change of an entry the kernel drops its cached attributes of the directory (Linux
//! 6.18). The kernel requests the attributes before the next system call that resolves a path
//! through the directory. Metadata has sent these attributes with the reply to the change. So the
//! mount answers this request of the kernel without asking metadata. The kernel may cache the
//! attributes only for a limited time, which begins when the mount sends the change.
//!
//! # Hazard: replies out of order
//! If two threads change one directory, the reply to the earlier change may arrive last. The
//! attributes in this reply do not include the effect of the later change. So the table keeps the
//! attributes with the highest version. A full table evicts the oldest directories with their
//! versions, but not sooner than [`LONGEST_REPLY`] after they were recorded. A reply that took
//! longer than this time may be older than a version that the table has evicted, so the table
//! ignores the reply.
//!
//! # Hazard: removed directories
//! The reply to a change may arrive after the reply to the removal of the same directory. The reply
//! to a removal does not describe the removed directory. So a removal makes the table forget the
//! attributes of all directories, and ignore the attributes in replies to changes that the mount
//! sent before the removal.

use crate::cache::recent::Recent;
use crate::limits::MAX_REMEMBERED_SPECIAL;
use skep_types::{Attributes, FileKind, InodeId};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The mount uses the attributes in the reply to a change only if the reply arrives within this
/// time. Within 100 ms a mount changes fewer directories than fit into the table.
const LONGEST_REPLY: Duration = Duration::from_millis(100);

/// The attributes of directories after this mount's own changes of their entries.
#[derive(Debug)]
pub(crate) struct DirectoryChanges {
    recent: Recent<Noted>,
    /// The number of times that the table has forgotten the attributes of all directories.
    epoch: AtomicU64,
}

/// The moment when the mount sent a change, as a time and as the epoch of the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SentChange {
    time: Duration,
    epoch: u64,
}

impl SentChange {
    /// Returns the time at which the mount sent the change.
    pub(crate) fn time(self) -> Duration {
        self.time
    }
}

#[derive(Debug, Clone)]
struct Noted {
    /// The highest version of the directory that the mount has seen.
    version: u64,
    /// The attributes of this version, if a change by this mount led to this version.
    known: Option<(Attributes, SentChange)>,
}

impl DirectoryChanges {
    pub(crate) fn new() -> Self {
        Self { recent: Recent::new(MAX_REMEMBERED_SPECIAL), epoch: AtomicU64::new(0) }
    }

    /// Returns the current moment. The caller passes it to [`Self::note`] with the reply to the
    /// change that it sends now.
    pub(crate) fn send(&self, now: Duration) -> SentChange {
        SentChange { time: now, epoch: self.epoch.load(Ordering::SeqCst) }
    }

    /// Records the attributes of a directory from the reply to a change of one of its entries.
    pub(crate) fn note(&self, sent: SentChange, attributes: &Attributes, now: Duration) {
        if now.saturating_sub(sent.time) > LONGEST_REPLY {
            return;
        }
        let version = attributes.change_counter;
        self.recent.update(attributes.inode, |noted| match noted {
            Some(newer) if newer.version > version => newer.clone(),
            _ => Noted { version, known: Some((attributes.clone(), sent)) },
        });
    }

    /// Records the attributes of an inode from a reply of metadata. For the reply to a change of an
    /// entry, the caller calls [`Self::note`] instead.
    pub(crate) fn observe(&self, attributes: &Attributes) {
        if attributes.kind == FileKind::Directory {
            let version = attributes.change_counter;
            self.recent.update_if(attributes.inode, |noted| {
                (version > noted.version).then_some(Noted { version, known: None })
            });
        }
    }

    /// Forgets the attributes of a directory, but keeps their version. Metadata may have executed a
    /// change of an entry although the reply to the change is missing or has no attributes.
    pub(crate) fn forget(&self, directory: InodeId) {
        self.recent.update_if(directory, |noted| {
            let version = noted.version;
            noted.known.is_some().then_some(Noted { version, known: None })
        });
    }

    /// Forgets the attributes of all directories. The caller calls this function after a change
    /// that may have removed a directory, or if the reply to a change of a directory does not
    /// contain its new attributes. `sent` is the moment when the mount sent this change.
    ///
    /// Returns the moment to pass to [`Self::note`] with the reply to this change: the same time in
    /// the new epoch of the table. `None` means that another change has made the table forget all
    /// directories meanwhile, so the caller must ignore the reply.
    pub(crate) fn forget_all(&self, sent: SentChange) -> Option<SentChange> {
        let before = self.epoch.fetch_add(1, Ordering::SeqCst);
        (before == sent.epoch).then_some(SentChange { epoch: before + 1, ..sent })
    }

    /// Returns the attributes of a directory after a change by this mount, and the time since the
    /// mount sent this change. The mount has sent the change less than `max_age` ago.
    pub(crate) fn get(
        &self,
        directory: InodeId,
        max_age: Duration,
        now: Duration,
    ) -> Option<(Attributes, Duration)> {
        let (attributes, sent) = self.recent.get(directory)?.known?;
        let age = now.saturating_sub(sent.time);
        let is_valid = age < max_age && sent.epoch == self.epoch.load(Ordering::SeqCst);
        is_valid.then_some((attributes, age))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::Timestamp;

    const SECOND: Duration = Duration::from_secs(1);
    const NOW: Duration = Duration::from_secs(60);
    const D: InodeId = InodeId::ROOT;

    fn attributes(change_counter: u64) -> Attributes {
        let new = Attributes::new(D, FileKind::Directory, 0o755, Timestamp::default());
        Attributes { change_counter, ..new }
    }

    fn version(changes: &DirectoryChanges, now: Duration) -> Option<u64> {
        changes.get(D, SECOND, now).map(|(attributes, _)| attributes.change_counter)
    }

    #[test]
    fn reply_without_attributes_drops_cached_directory_attributes() {
        let changes = DirectoryChanges::new();
        changes.note(changes.send(NOW), &attributes(5), NOW);
        changes.forget(D);
        assert_eq!(version(&changes, NOW), None);
        changes.note(changes.send(NOW), &attributes(4), NOW);
        assert_eq!(version(&changes, NOW), None, "a late reply with older attributes");
        changes.note(changes.send(NOW), &attributes(6), NOW);
        assert_eq!(version(&changes, NOW), Some(6));
    }

    #[test]
    fn directory_attributes_expire_after_the_timeout() {
        let changes = DirectoryChanges::new();
        assert_eq!(version(&changes, NOW), None);
        changes.note(changes.send(NOW), &attributes(5), NOW + SECOND / 20);
        let (found, age) = changes.get(D, SECOND, NOW + SECOND / 2).unwrap();
        assert_eq!((found, age), (attributes(5), SECOND / 2), "the age counts from the send");
        assert_eq!(version(&changes, NOW + SECOND), None);
        assert!(
            changes.get(D, Duration::ZERO, NOW).is_none(),
            "nothing is valid at a maximum age of zero"
        );
    }

    #[test]
    fn late_reply_never_replaces_newer_attributes() {
        let changes = DirectoryChanges::new();
        let (first, second) = (changes.send(NOW), changes.send(NOW));
        changes.note(second, &attributes(6), NOW);
        changes.note(first, &attributes(5), NOW);
        assert_eq!(version(&changes, NOW), Some(6));
        // Another change of the directory, such as chmod, has led to version 7.
        changes.observe(&attributes(7));
        assert_eq!(version(&changes, NOW), None);
        changes.note(first, &attributes(5), NOW);
        assert_eq!(version(&changes, NOW), None);
        changes.note(first, &attributes(8), NOW + LONGEST_REPLY * 2);
        assert_eq!(version(&changes, NOW), None, "the reply took too long");
        changes.note(first, &attributes(8), NOW);
        changes.observe(&attributes(8));
        assert_eq!(version(&changes, NOW), Some(8));
    }

    #[test]
    fn directory_removal_drops_cached_attributes_and_late_replies() {
        let changes = DirectoryChanges::new();
        let (on_its_way, removal) = (changes.send(NOW), changes.send(NOW));
        changes.note(changes.send(NOW), &attributes(5), NOW);
        let own = changes.forget_all(removal);
        assert_eq!(version(&changes, NOW), None);
        changes.note(on_its_way, &attributes(6), NOW);
        assert_eq!(version(&changes, NOW), None, "this directory may have been removed");
        changes.note(own.unwrap(), &attributes(7), NOW);
        assert_eq!(version(&changes, NOW), Some(7));
        assert!(changes.forget_all(removal).is_none(), "another removal came meanwhile");
    }
}
