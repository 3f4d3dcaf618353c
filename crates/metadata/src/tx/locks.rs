//! What transactions between groups hold while they are undecided.
//!
//! Only prepared transactions to other groups, the rename lock, truncations (`truncations`) and those who have a file
//! open that is about to be shared (`sharing`) hold anything.
//! Operations of this target hold nothing while they wait: they run again from the start and check
//! everything in the transaction that commits. So there is no cycle of waiters.

use skep_types::InodeId;
use skep_wire::metadata::TransactionId;
use std::collections::BTreeMap;

/// Something that can be held.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Resource {
    /// An inode with its attributes; for a directory also that nothing is added to it.
    Inode(InodeId),
    /// A name in a directory.
    Dentry(InodeId, Vec<u8>),
    /// The right to move directories between parents.
    Rename,
    /// The chunk files of a file, while a truncation truncations them.
    Truncation(InodeId),
    /// That others have a file open without knowing that they share it.
    Sharing(InodeId),
}

/// Who holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A prepared transaction to a transaction.
    Prepared(TransactionId),
    /// An operation of this target (the rename lock only).
    Operation(u64),
    /// The truncation of a file that is on its way.
    Truncation(InodeId),
    /// Those who have a file open and are being told that they share it.
    Holders(InodeId),
}

/// Who holds what, and who waits for it.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    held: BTreeMap<Resource, Owner>,
    waiting: BTreeMap<Resource, Vec<u64>>,
}

impl Locks {
    /// Whether nobody but `asker` holds it.
    pub(crate) fn is_free(&self, resource: &Resource, asker: Option<Owner>) -> bool {
        // Almost always nothing at all is held.
        self.held.is_empty() || self.held.get(resource).is_none_or(|owner| Some(*owner) == asker)
    }

    /// Takes it, if nobody else holds it.
    pub(crate) fn try_take(&mut self, resource: &Resource, owner: Owner) -> bool {
        let free = self.is_free(resource, Some(owner));
        if free {
            self.held.insert(resource.clone(), owner);
        }
        free
    }

    /// A name in a directory that is held, if any.
    pub(crate) fn any_dentry_of(&self, directory: InodeId) -> Option<Resource> {
        let mut of_directory = self
            .held
            .keys()
            .filter(|it| matches!(it, Resource::Dentry(within, _) if *within == directory));
        of_directory.next().cloned()
    }

    /// Notes that an operation waits for it.
    pub(crate) fn wait(&mut self, resource: Resource, operation: u64) {
        self.waiting.entry(resource).or_default().push(operation);
    }

    /// Gives back all that an owner holds; gives the operations that waited for any of it.
    pub(crate) fn release(&mut self, owner: Owner) -> Vec<u64> {
        let mut released: Vec<_> =
            self.held.iter().filter(|(_, it)| **it == owner).map(|(it, _)| it.clone()).collect();
        // In one order, so that a simulation repeats itself.
        released.sort();
        let mut woken = Vec::new();
        for resource in released {
            self.held.remove(&resource);
            woken.extend(self.waiting.remove(&resource).unwrap_or_default());
        }
        woken
    }

    /// Panics if an invariant of the module is broken.
    pub(crate) fn check_invariants(&self) {
        for (resource, operations) in &self.waiting {
            assert!(
                self.held.contains_key(resource),
                "operations {operations:?} wait for {resource:?}, which is held"
            );
        }
    }

    /// Whether nothing is held.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}
