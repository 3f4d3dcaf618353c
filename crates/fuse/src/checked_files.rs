//! A cache of files that have neither a set-user-id nor a set-group-id bit.
//!
//! The workers of a mount share their checks, because the kernel may send the writes of one program
//! to several workers. Each worker also has a copy of the checks that it uses, so that a write of a
//! checked file takes no mutex.

use crate::limits;
use skep_types::InodeId;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Files, each with the time until which its check is valid.
type Checks = HashMap<InodeId, Duration>;

fn add(checks: &mut Checks, inode: InodeId, until: Duration) {
    if checks.len() >= limits::MAX_CHECKED_FILES {
        checks.clear();
    }
    checks.insert(inode, until);
}

/// The checks of all workers of a mount.
#[derive(Debug, Default)]
pub(crate) struct SharedChecks {
    /// Number of permission changes through this mount. The worker that makes such a change
    /// increments the number.
    changes: AtomicU64,
    /// The checks, and the number of changes before the oldest of them. The mutex protects only
    /// these two values.
    checks: Mutex<(u64, Checks)>,
}

impl SharedChecks {
    /// Locks the table of checks. If `changes` shows a newer change than the table has seen, first
    /// removes all checks.
    fn after(&self, changes: u64) -> MutexGuard<'_, (u64, Checks)> {
        let mut checks = self.checks.lock().unwrap_or_else(PoisonError::into_inner);
        if checks.0 < changes {
            *checks = (changes, Checks::new());
        }
        checks
    }
}

/// One worker's cache of files without set-user-id and set-group-id bits. An entry is valid for at
/// most the time for which the kernel may cache attributes. This time begins with the request for
/// the attributes.
#[derive(Debug, Default)]
pub(crate) struct CheckedFiles {
    shared: Arc<SharedChecks>,
    seen_changes: Cell<u64>,
    own: RefCell<Checks>,
}

/// The moment before a worker sends a request whose reply contains attributes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CheckStart {
    /// Number of changes of permissions through this mount before this moment.
    changes: u64,
    at: Duration,
}

impl CheckedFiles {
    /// Creates the cache of one worker. All workers of a mount must use the same `shared`.
    pub(crate) fn new(shared: Arc<SharedChecks>) -> Self {
        Self { shared, ..Self::default() }
    }

    /// Empties the caches of all workers of the mount. At each change of permissions, a worker must
    /// call this function before it sends the request and after the reply. The second call removes
    /// a file that another worker has added because of attributes from before the change.
    pub(crate) fn forget_all(&self) {
        self.shared.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Empties the cache of this worker if permissions have changed since the last call. Returns
    /// the number of changes.
    fn follow_changes(&self) -> u64 {
        let changes = self.shared.changes.load(Ordering::Relaxed);
        if self.seen_changes.replace(changes) != changes {
            self.own.borrow_mut().clear();
        }
        changes
    }

    pub(crate) fn contains(&self, inode: InodeId) -> bool {
        let (changes, now) = (self.follow_changes(), skep_env::now());
        if self.own.borrow().get(&inode).is_some_and(|until| now < *until) {
            return true;
        }
        let checked = self.shared.after(changes).1.get(&inode).copied();
        let Some(until) = checked.filter(|until| now < *until) else { return false };
        add(&mut self.own.borrow_mut(), inode, until);
        true
    }

    /// Returns the present moment. A worker calls this function before it sends a request whose
    /// reply contains the attributes of a file.
    pub(crate) fn begin_check(&self) -> CheckStart {
        CheckStart { changes: self.shared.changes.load(Ordering::Relaxed), at: skep_env::now() }
    }

    /// Adds a file for `validity` after `start`, the moment before the worker sent the request for
    /// its attributes. Does nothing if permissions have changed since `start`.
    pub(crate) fn insert(&self, inode: InodeId, validity: Duration, start: CheckStart) {
        // First empty the cache if permissions have changed earlier. Otherwise the next check would
        // empty it, and remove the new entry.
        if self.follow_changes() != start.changes {
            return;
        }
        let until = start.at + validity;
        add(&mut self.own.borrow_mut(), inode, until);
        let mut checks = self.shared.after(start.changes);
        // Another worker may have emptied the shared cache for a new change since the comparison
        // above.
        if checks.0 == start.changes {
            add(&mut checks.1, inode, until);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permission_change_clears_cached_checks_of_all_threads() {
        let shared = Arc::new(SharedChecks::default());
        let here = CheckedFiles::new(Arc::clone(&shared));
        let there = CheckedFiles::new(shared);
        here.insert(InodeId::new(9), limits::VALIDITY, here.begin_check());
        assert!(here.contains(InodeId::new(9)));
        assert!(there.contains(InodeId::new(9)), "the workers share their checks");
        there.forget_all();
        assert!(!here.contains(InodeId::new(9)) && !there.contains(InodeId::new(9)));
    }

    #[test]
    fn late_check_does_not_enter_the_shared_cache_after_a_change() {
        let shared = Arc::new(SharedChecks::default());
        let (here, there) =
            (CheckedFiles::new(Arc::clone(&shared)), CheckedFiles::new(Arc::clone(&shared)));
        let start = here.begin_check();
        there.forget_all();
        assert!(!there.contains(InodeId::new(9)));
        here.insert(InodeId::new(9), limits::VALIDITY, start);
        assert!(!there.contains(InodeId::new(9)) && !here.contains(InodeId::new(9)));
        there.insert(InodeId::new(9), limits::VALIDITY, there.begin_check());
        assert!(here.contains(InodeId::new(9)));
    }

    #[test]
    fn file_is_not_cached_if_permissions_change_during_its_check() {
        let here = CheckedFiles::default();
        let insert = |inode, start| here.insert(InodeId::new(inode), limits::VALIDITY, start);
        insert(7, here.begin_check());
        assert!(here.contains(InodeId::new(7)));
        let start = here.begin_check();
        here.forget_all();
        // This lookup of file 7 lets the worker notice the change of permissions. The worker must
        // still not cache file 8, because the check of file 8 began before the change.
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
    fn age_of_a_cached_check_counts_from_its_attribute_request() {
        let here = CheckedFiles::default();
        let start = here.begin_check();
        let late = CheckStart { at: start.at.saturating_sub(limits::VALIDITY), ..start };
        here.insert(InodeId::new(8), limits::VALIDITY, late);
        assert!(!here.contains(InodeId::new(8)), "the validity ended before the reply");
    }
}
