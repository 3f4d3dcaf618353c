//! A cache of files that have neither a set-user-id nor a set-group-id bit.

use crate::limits;
use skep_types::InodeId;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// One worker's cache of files without set-user-id and set-group-id bits. An entry is valid for at
/// most the time for which the kernel may cache attributes.
#[derive(Debug, Default)]
pub(crate) struct CheckedFiles {
    /// Counter that all workers share. A worker increments it at each change of permissions through
    /// this mount.
    changes: Arc<AtomicU64>,
    seen_changes: Cell<u64>,
    until: RefCell<HashMap<InodeId, Duration>>,
}

impl CheckedFiles {
    /// Creates the cache of one worker. All workers of a mount must share `changes`.
    pub(crate) fn new(changes: Arc<AtomicU64>) -> Self {
        Self { changes, ..Self::default() }
    }

    /// Empties the caches of all workers of the mount. A worker must call this function at each
    /// change of permissions.
    pub(crate) fn forget_all(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of changes of permissions through this mount so far.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Adds a file whose attributes have arrived in the reply to a request. `before` is
    /// [`Self::changes`] before the worker sent this request. Does nothing if permissions have
    /// changed since.
    pub(crate) fn insert_unless_changed(&self, inode: InodeId, validity: Duration, before: u64) {
        if self.changes() == before {
            self.insert(inode, validity);
        }
    }

    pub(crate) fn contains(&self, inode: InodeId) -> bool {
        let changes = self.changes();
        if self.seen_changes.replace(changes) != changes {
            self.until.borrow_mut().clear();
        }
        self.until.borrow().get(&inode).is_some_and(|until| skep_env::now() < *until)
    }

    pub(crate) fn insert(&self, inode: InodeId, validity: Duration) {
        let mut until = self.until.borrow_mut();
        if until.len() >= limits::MAX_CHECKED_FILES {
            until.clear();
        }
        until.insert(inode, skep_env::now() + validity);
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
        here.insert(InodeId::new(9), limits::VALIDITY);
        assert!(here.contains(InodeId::new(9)));
        there.forget_all();
        assert!(!here.contains(InodeId::new(9)));
    }

    #[test]
    fn file_is_not_cached_if_permissions_change_during_its_creation() {
        let here = CheckedFiles::default();
        let insert = |inode, before| {
            here.insert_unless_changed(InodeId::new(inode), limits::VALIDITY, before);
        };
        insert(7, here.changes());
        assert!(here.contains(InodeId::new(7)));
        let before = here.changes();
        here.forget_all();
        insert(8, before);
        assert!(!here.contains(InodeId::new(8)) && !here.contains(InodeId::new(7)));
    }
}
