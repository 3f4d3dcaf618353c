//! Locks of transactions between groups, held while the transactions are undecided.
//!
//! Only these hold a lock: prepared transactions of other groups, the holder of the rename lock,
//! truncations (`namespace::truncations`), and files about to be shared (`sharing`). Other
//! operations of this target hold no lock while they wait, because they run again from the start
//! and check everything in the transaction that commits. So no deadlock cycle can form.

use skep_types::InodeId;
use skep_wire::metadata::TransactionId;
use std::collections::BTreeMap;

/// A resource that can be locked.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Resource {
    /// An inode with its attributes. Nothing can be added to a directory whose inode is locked.
    Inode(InodeId),
    /// A name in a directory.
    Dentry(InodeId, Vec<u8>),
    /// The right to move directories between parents.
    Rename,
    /// The chunk files of a file, while storage truncates them.
    Truncation(InodeId),
    /// A file that becomes shared, until all sessions that have it open have acknowledged that.
    Sharing(InodeId),
}

/// The owner of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A prepared transaction.
    Prepared(TransactionId),
    /// An operation of this target. Operations can own only the rename lock.
    Operation(u64),
    /// The truncation of a file.
    Truncation(InodeId),
    /// The sessions that have a file open and must acknowledge that it becomes shared.
    Holders(InodeId),
}

/// The held locks, and the operations that wait for them.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    held: BTreeMap<Resource, Owner>,
    waiting: BTreeMap<Resource, Vec<u64>>,
}

impl Locks {
    /// Whether no owner other than `asker` holds a resource.
    pub(crate) fn is_free(&self, resource: &Resource, asker: Option<Owner>) -> bool {
        // A fast path, because almost always no resource is held.
        self.held.is_empty() || self.held.get(resource).is_none_or(|owner| Some(*owner) == asker)
    }

    /// Takes a resource if no other owner holds it. Returns whether `owner` holds it now.
    pub(crate) fn try_take(&mut self, resource: &Resource, owner: Owner) -> bool {
        let free = self.is_free(resource, Some(owner));
        if free {
            self.held.insert(resource.clone(), owner);
        }
        free
    }

    /// Returns a locked name in a directory, if there is one.
    pub(crate) fn any_dentry_of(&self, directory: InodeId) -> Option<Resource> {
        let mut of_directory = self
            .held
            .keys()
            .filter(|it| matches!(it, Resource::Dentry(within, _) if *within == directory));
        of_directory.next().cloned()
    }

    /// Adds an operation that waits for a resource. The resource must be held.
    pub(crate) fn wait(&mut self, resource: Resource, operation: u64) {
        self.waiting.entry(resource).or_default().push(operation);
    }

    /// Releases all locks of an owner. Returns the operations that waited for one of them.
    pub(crate) fn release(&mut self, owner: Owner) -> Vec<u64> {
        let mut released: Vec<_> =
            self.held.iter().filter(|(_, it)| **it == owner).map(|(it, _)| it.clone()).collect();
        // The fixed order makes simulations reproducible.
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
        for (resource, operations) in &self.waiting {
            assert!(
                self.held.contains_key(resource),
                "operations {operations:?} wait for {resource:?}, which is held"
            );
        }
    }

    /// Whether no resource is held.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}
