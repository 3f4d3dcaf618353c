//! The table of lock owners on this mount: the ranges that each owner has locked, and the handle of
//! each lock request. The client needs this table to release locks. Metadata decides whether to
//! grant a lock.
//!
//! # Hazard: requests of one owner that overtake each other
//! The kernel does not wait for the reply when it releases a file, and a killed program does not
//! wait for its own requests. So a lock request and an unlock request of one owner could be in
//! flight at the same time. Metadata might then grant a lock after the unlock that should have
//! released it, or the kernel might reuse the owner's id for another process. So at most one
//! request of an owner is in progress at a time.

use crate::files::handles::HandleId;
use skep_cluster::lock_ranges::LockRanges;
use skep_env::SharedNotify;
use skep_types::InodeId;
use skep_wire::file_locks::{LockKind, LockMode};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One owner of locks on one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Owner {
    pub(crate) inode: InodeId,
    pub(crate) kind: LockKind,
    pub(crate) owner: u64,
}

/// The handle and the process id of the request that locked a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RangeLock {
    /// The handle of the lock request.
    pub(crate) handle: HandleId,
    pub(crate) mode: LockMode,
    /// The process id in the lock request.
    pub(crate) pid: u32,
}

#[derive(Debug, Default)]
struct OwnedRanges {
    ranges: LockRanges<RangeLock>,
    /// Whether a request of this owner is in progress.
    is_busy: bool,
}

/// Lock owners by file, then by kind and id.
type Table = HashMap<InodeId, HashMap<(LockKind, u64), OwnedRanges>>;

/// The lock owners of a mount.
#[derive(Debug, Default)]
pub(crate) struct FileLocks {
    /// The mutex protects only the table. No task awaits while it holds this mutex.
    owners: Mutex<Table>,
    /// Notifies tasks on all threads that a request of an owner has ended.
    ended: SharedNotify,
    waits: AtomicU64,
    is_used: AtomicBool,
    has_posix: AtomicBool,
}

/// The exclusive right of one request to change an owner's locks. A drop of this value lets the
/// next request run.
pub(crate) struct OwnerTurn {
    locks: Arc<FileLocks>,
    pub(crate) owner: Owner,
}

/// The outcome of an attempt to reserve an owner.
enum Attempt {
    Reserved(OwnerTurn),
    /// The owner has no locks.
    Unknown,
    /// Another request of the owner is in progress.
    Busy,
}

impl FileLocks {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other request of the owner is in progress. Then reserves the owner for the
    /// caller. If `must_exist` is set and the owner has no locks, returns `None`.
    pub(crate) async fn turn(
        self: &Arc<Self>,
        owner: Owner,
        must_exist: bool,
    ) -> Option<OwnerTurn> {
        let attempt = || match self.try_turn(owner, must_exist) {
            Attempt::Reserved(turn) => Some(Some(turn)),
            Attempt::Unknown => Some(None),
            Attempt::Busy => None,
        };
        self.ended.wait_until(attempt).await
    }

    fn try_turn(self: &Arc<Self>, owner: Owner, must_exist: bool) -> Attempt {
        let mut table = self.table();
        let key = (owner.kind, owner.owner);
        let is_known = table.get(&owner.inode).is_some_and(|file| file.contains_key(&key));
        if must_exist && !is_known {
            return Attempt::Unknown;
        }
        let owned = table.entry(owner.inode).or_default().entry(key).or_default();
        match std::mem::replace(&mut owned.is_busy, true) {
            true => Attempt::Busy,
            false => Attempt::Reserved(OwnerTurn { locks: Arc::clone(self), owner }),
        }
    }

    /// Returns whether an owner has locks, or a request for a lock in progress.
    pub(crate) fn is_known(&self, owner: Owner) -> bool {
        let key = (owner.kind, owner.owner);
        self.table().get(&owner.inode).is_some_and(|file| file.contains_key(&key))
    }

    /// Returns the owners of locks of a file: each owner that has locked a range through a handle,
    /// and each owner with a request in progress.
    pub(crate) fn owners_through(&self, inode: InodeId, handle: HandleId) -> Vec<(LockKind, u64)> {
        let table = self.table();
        let of_handle = |owned: &OwnedRanges| {
            owned.is_busy || owned.ranges.iter().any(|it| it.1.handle == handle)
        };
        let owners = table.get(&inode).into_iter().flatten();
        owners.filter(|(_, owned)| of_handle(owned)).map(|(key, _)| *key).collect()
    }

    /// Clears the ranges of all owners on files for which `is_lost` returns `true`. Returns the
    /// handles of the lock requests for these ranges.
    pub(crate) fn lose(&self, is_lost: impl Fn(InodeId) -> bool) -> Vec<HandleId> {
        let mut handles = Vec::new();
        for (_, owners) in self.table().iter_mut().filter(|(inode, _)| is_lost(**inode)) {
            for owned in owners.values_mut() {
                handles.extend(std::mem::take(&mut owned.ranges).iter().map(|it| it.1.handle));
            }
        }
        handles.sort_unstable();
        handles.dedup();
        handles
    }

    /// Returns the owners of locks on files for which `is_wanted` returns `true`, with their locks.
    pub(crate) fn owners(
        &self,
        is_wanted: impl Fn(InodeId) -> bool,
    ) -> HashMap<Owner, LockRanges<RangeLock>> {
        let mut found = HashMap::new();
        for (inode, owners) in self.table().iter().filter(|it| is_wanted(*it.0)) {
            for ((kind, owner), owned) in owners {
                let owner = Owner { inode: *inode, kind: *kind, owner: *owner };
                found.insert(owner, owned.ranges.clone());
            }
        }
        found
    }

    /// Records that a program sets a lock.
    pub(crate) fn note_use(&self) {
        self.is_used.store(true, Ordering::Relaxed);
    }

    /// Returns whether a program of this mount has ever set a lock.
    pub(crate) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// Returns a new id for one attempt to get a lock.
    pub(crate) fn new_wait(&self) -> u64 {
        self.waits.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Records that a program sets POSIX locks.
    pub(crate) fn note_posix(&self) {
        self.has_posix.store(true, Ordering::Relaxed);
    }

    /// Returns whether a program has ever set a POSIX lock. From the first POSIX lock on, the
    /// kernel must send each `close(2)` to this mount.
    pub(crate) fn has_posix(&self) -> bool {
        self.has_posix.load(Ordering::Relaxed)
    }
}

impl OwnerTurn {
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut LockRanges<RangeLock>) -> T) -> T {
        let mut table = self.locks.table();
        let file = table.entry(self.owner.inode).or_default();
        let key = (self.owner.kind, self.owner.owner);
        f(&mut file.entry(key).or_default().ranges)
    }

    /// Marks the owner as free, and removes it from the table if it has no locks.
    fn release(&self) {
        let mut table = self.locks.table();
        let Some(file) = table.get_mut(&self.owner.inode) else { return };
        let key = (self.owner.kind, self.owner.owner);
        if let Some(owned) = file.get_mut(&key) {
            owned.is_busy = false;
            if owned.ranges.is_empty() {
                file.remove(&key);
            }
        }
        if file.is_empty() {
            table.remove(&self.owner.inode);
        }
    }
}

impl Drop for OwnerTurn {
    fn drop(&mut self) {
        self.release();
        self.locks.ended.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wake_ups::check_wake_ups;

    const OWNER: Owner = Owner { inode: InodeId::ROOT, kind: LockKind::Posix, owner: 7 };

    #[test]
    fn lock_requests_of_one_owner_wait_for_each_other() {
        let locks = Arc::new(FileLocks::default());
        let begin = |locks: &Arc<FileLocks>| match locks.try_turn(OWNER, false) {
            Attempt::Reserved(turn) => turn,
            _ => panic!("the request of the other thread has ended"),
        };
        let wait = async |locks: &Arc<FileLocks>| drop(locks.turn(OWNER, false).await);
        check_wake_ups(&locks, begin, drop, wait);
        assert!(locks.table().is_empty());
    }

    #[test]
    fn unlock_for_an_unknown_lock_owner_does_not_wait() {
        let locks = Arc::new(FileLocks::default());
        assert!(matches!(locks.try_turn(OWNER, true), Attempt::Unknown));
        assert!(locks.table().is_empty());
    }
}
