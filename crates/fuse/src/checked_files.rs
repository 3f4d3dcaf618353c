//! A cache of files that have neither a set-user-id nor a set-group-id bit.

use crate::limits;
use skep_types::InodeId;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// One worker's cache of files without set-user-id and set-group-id bits. An entry is valid for at
/// most the time for which the kernel may cache attributes, from the request for the attributes on.
#[derive(Debug, Default)]
pub(crate) struct CheckedFiles {
    /// Counter that all workers share. A worker increments it at each change of permissions through
    /// this mount.
    changes: Arc<AtomicU64>,
    seen_changes: Cell<u64>,
    until: RefCell<HashMap<InodeId, Duration>>,
}

/// The moment before a worker sends a request whose reply contains attributes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CheckStart {
    /// Number of changes of permissions through this mount until then.
    changes: u64,
    at: Duration,
}

impl CheckedFiles {
    /// Creates the cache of one worker. All workers of a mount must share `changes`.
    pub(crate) fn new(changes: Arc<AtomicU64>) -> Self {
        Self { changes, ..Self::default() }
    }

    /// Empties the caches of all workers of the mount. At each change of permissions, a worker must
    /// call this function before it sends the request and after the reply. The second call removes
    /// a file that another worker has added because of attributes from before the change.
    pub(crate) fn forget_all(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Empties the cache of this worker if permissions have changed since the last call. Returns
    /// the number of changes.
    fn follow_changes(&self) -> u64 {
        let changes = self.changes.load(Ordering::Relaxed);
        if self.seen_changes.replace(changes) != changes {
            self.until.borrow_mut().clear();
        }
        changes
    }

    pub(crate) fn contains(&self, inode: InodeId) -> bool {
        self.follow_changes();
        self.until.borrow().get(&inode).is_some_and(|until| skep_env::now() < *until)
    }

    /// Returns the present moment. A worker calls this function before it sends a request whose
    /// reply contains the attributes of a file.
    pub(crate) fn begin_check(&self) -> CheckStart {
        CheckStart { changes: self.changes.load(Ordering::Relaxed), at: skep_env::now() }
    }

    /// Adds a file for `validity` after `start`, the moment before the worker sent the request for
    /// its attributes. Does nothing if permissions have changed since `start`.
    pub(crate) fn insert(&self, inode: InodeId, validity: Duration, start: CheckStart) {
        // Follow earlier changes first. Otherwise the next check would remove the new entry.
        if self.follow_changes() != start.changes {
            return;
        }
        let mut until = self.until.borrow_mut();
        if until.len() >= limits::MAX_CHECKED_FILES {
            until.clear();
        }
        until.insert(inode, start.at + validity);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permission_change_clears_cached_checks_of_all_threads() {
        let changes = Arc::new(AtomicU64::new(0));
        let here = CheckedFiles::new(Arc::clone(&changes));
        let there = CheckedFiles::new(changes);
        here.insert(InodeId::new(9), limits::VALIDITY, here.begin_check());
        assert!(here.contains(InodeId::new(9)));
        there.forget_all();
        assert!(!here.contains(InodeId::new(9)));
    }

    #[test]
    fn file_is_not_cached_if_permissions_change_during_its_check() {
        let here = CheckedFiles::default();
        let insert = |inode, start| here.insert(InodeId::new(inode), limits::VALIDITY, start);
        insert(7, here.begin_check());
        assert!(here.contains(InodeId::new(7)));
        let start = here.begin_check();
        here.forget_all();
        // A check of another file by this worker meanwhile must not hide the change.
        assert!(!here.contains(InodeId::new(7)));
        insert(8, start);
        assert!(!here.contains(InodeId::new(8)));
    }

    /// A program that unpacks an archive creates, writes and then changes one file after the other.
    #[test]
    fn file_checked_after_a_permission_change_is_cached() {
        let here = CheckedFiles::default();
        here.forget_all();
        here.insert(InodeId::new(8), limits::VALIDITY, here.begin_check());
        assert!(here.contains(InodeId::new(8)));
    }

    #[test]
    fn cached_check_is_valid_from_the_request_for_the_attributes() {
        let here = CheckedFiles::default();
        let start = here.begin_check();
        let late = CheckStart { at: start.at.saturating_sub(limits::VALIDITY), ..start };
        here.insert(InodeId::new(8), limits::VALIDITY, late);
        assert!(!here.contains(InodeId::new(8)), "the reply came after the validity");
    }
}
