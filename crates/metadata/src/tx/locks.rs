//! The locks of a target, which transactions over several groups and a few other long changes hold.
//!
//! The owner of a lock is a prepared transaction of another group, a staged transaction of this
//! group, the operation with the rename lock, a truncation (`namespace::truncations`), or a file
//! that becomes shared (`sharing`). Other operations of this target keep no lock of this target
//! while they wait. After a wait, an operation runs again from the start, and checks everything
//! again in the transaction that commits. A waiting operation also releases its locks at other
//! groups, unless it waits for a transaction of a group with a higher id (`keeps_transaction` in
//! the module `target`). A staged transaction waits for no lock. So no deadlock cycle can form.

use skep_types::InodeId;
use skep_wire::metadata::TransactionId;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

/// A resource that can be locked.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Resource {
    /// An inode with its attributes. While the inode of a directory is locked, no name can be added
    /// to the directory.
    Inode(InodeId),
    /// A name in a directory.
    Dentry(InodeId, Vec<u8>),
    /// The right to move directories between parents.
    Rename,
    /// The chunk files of a file, while storage truncates them.
    Truncation(InodeId),
    /// A file that becomes shared. The lock ends when all sessions that have the file open have
    /// acknowledged the notification.
    Sharing(InodeId),
}

/// The owner of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// A prepared transaction.
    Prepared(TransactionId),
    /// A staged transaction of this group, by its number. The transaction locks the name that it
    /// has added or removed.
    Staged(u64),
    /// An operation of this target. Operations can own only the rename lock.
    Operation(u64),
    /// The truncation of a file.
    Truncation(InodeId),
    /// The sessions that have a file open and must still acknowledge that it becomes shared.
    Holders(InodeId),
}

/// The owner of a locked resource, and the time at which it took the lock.
#[derive(Debug, Clone, Copy)]
struct Holder {
    owner: Owner,
    since: Duration,
}

/// The locks in use, and the operations that wait for them.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    held: BTreeMap<Resource, Holder>,
    /// The resources in `held`, by owner. Each operation that ends releases its locks, so it must
    /// not search the locks of all other owners.
    owned: BTreeMap<Owner, Vec<Resource>>,
    waiting: BTreeMap<Resource, Vec<u64>>,
}

impl Locks {
    /// Whether `resource` is not locked, or `asker` itself has the lock.
    pub(crate) fn is_free(&self, resource: &Resource, asker: Option<Owner>) -> bool {
        // A fast path, because there are almost never any locks.
        self.held.is_empty() || self.held.get(resource).is_none_or(|it| Some(it.owner) == asker)
    }

    /// Returns the owner of a locked resource. `None` means that the resource is free.
    pub(crate) fn owner_of(&self, resource: &Resource) -> Option<Owner> {
        self.held.get(resource).map(|it| it.owner)
    }

    /// Locks a resource for `owner`, if no other owner has the lock. Returns whether `owner` has
    /// the lock now. `now` is the present time.
    pub(crate) fn try_take(&mut self, resource: &Resource, owner: Owner, now: Duration) -> bool {
        let free = self.is_free(resource, Some(owner));
        if free && let Entry::Vacant(vacant) = self.held.entry(resource.clone()) {
            vacant.insert(Holder { owner, since: now });
            self.owned.entry(owner).or_default().push(resource.clone());
        }
        free
    }

    /// Returns the locked names in `directory`, in ascending order.
    pub(crate) fn dentries_of(&self, directory: InodeId) -> impl Iterator<Item = &[u8]> {
        self.holders_of(directory).map(|(name, _)| name)
    }

    /// Returns the names in `directory` that prepared transactions of other groups have locked, in
    /// ascending order. Leaves out the names of staged transactions, because their changes are in
    /// the store already.
    pub(crate) fn prepared_dentries_of(&self, directory: InodeId) -> impl Iterator<Item = &[u8]> {
        self.prepared_holders_of(directory).map(|(name, _)| name)
    }

    fn prepared_holders_of(&self, directory: InodeId) -> impl Iterator<Item = (&[u8], Holder)> {
        let is_prepared = |it: &Holder| matches!(it.owner, Owner::Prepared(_));
        self.holders_of(directory).filter(move |(_, it)| is_prepared(it))
    }

    fn holders_of(&self, directory: InodeId) -> impl Iterator<Item = (&[u8], Holder)> {
        let names = self.held.range(Resource::Dentry(directory, Vec::new())..);
        names.map_while(move |(resource, holder)| match resource {
            Resource::Dentry(within, name) if *within == directory => {
                Some((name.as_slice(), *holder))
            }
            _ => None,
        })
    }

    /// Returns the name in `directory` whose lock a prepared transaction has taken last, with the
    /// time of the lock. Considers only locks that were taken after `after` and not later than
    /// `until`.
    pub(crate) fn last_dentry_of(
        &self,
        directory: InodeId,
        (after, until): (Duration, Duration),
    ) -> Option<(Resource, Duration)> {
        let holders = self.prepared_holders_of(directory);
        let taken = holders.filter(|(_, it)| it.since > after && it.since <= until);
        let (name, holder) = taken.max_by_key(|(_, it)| it.since)?;
        Some((Resource::Dentry(directory, name.to_vec()), holder.since))
    }

    /// Adds an operation that waits for a resource. The resource must be locked.
    pub(crate) fn wait(&mut self, resource: Resource, operation: u64) {
        self.waiting.entry(resource).or_default().push(operation);
    }

    /// Releases all locks of `owner`. Returns the operations that waited for one of these locks.
    pub(crate) fn release(&mut self, owner: Owner) -> Vec<u64> {
        let mut released = self.owned.remove(&owner).unwrap_or_default();
        // Sort the operations, because a fixed order makes simulations reproducible.
        released.sort();
        let mut woken = Vec::new();
        for resource in released {
            self.held.remove(&resource);
            woken.extend(self.waiting.remove(&resource).unwrap_or_default());
        }
        woken
    }

    /// Panics if an invariant of the module is violated.
    pub(crate) fn check_invariants(&self) {
        for (owner, resources) in &self.owned {
            for resource in resources {
                assert_eq!(
                    self.owner_of(resource),
                    Some(*owner),
                    "`held` has the owner of {resource:?}"
                );
            }
        }
        let owned: usize = self.owned.values().map(Vec::len).sum();
        assert_eq!(owned, self.held.len(), "each lock belongs to one owner");
        for (resource, operations) in &self.waiting {
            assert!(
                self.held.contains_key(resource),
                "operations {operations:?} wait for {resource:?}, which is held"
            );
        }
    }

    /// Whether no resource is locked.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}
