//! The inodes that names have recently had, for names whose inode is at another metadata group than
//! their directory.
//!
//! A lookup of such a name takes two requests: the group of the directory returns the inode, and
//! then the group of the inode returns the attributes. The kernel repeats the lookup as soon as the
//! name has expired, and most names still have the same inode then. So the mount sends both
//! requests at the same time. It uses the attributes only if the group of the directory has replied
//! with the same inode. So a wrong hint costs one request, but never leads to a wrong reply.
//!
//! The attributes may be older than the reply about the name, but the mount requests them after the
//! kernel has begun the lookup. So the attributes show all changes that had completed when the
//! lookup began, as `docs/semantics.md` demands. The time for which the kernel may cache the
//! attributes also counts from the beginning of the lookup.

use crate::cache::recent::{Recent, TableKey};
use crate::limits::MAX_NAME_HINTS;
use skep_types::InodeId;
use std::hash::{BuildHasher, RandomState};

/// The hints of a mount: for each name, the inode that the name had in the last lookup.
#[derive(Debug)]
pub(crate) struct NameHints {
    inodes: Recent<InodeId, NameKey>,
    hasher: RandomState,
}

/// The key of a name: a hash of the name and its directory. Two names with the same hash share one
/// hint, which is then wrong for one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct NameKey(u64);

impl TableKey for NameKey {
    fn number(self) -> u64 {
        self.0
    }
}

impl NameHints {
    pub(crate) fn new() -> Self {
        Self { inodes: Recent::new(MAX_NAME_HINTS), hasher: RandomState::new() }
    }

    /// Returns the key of a name in a directory.
    pub(crate) fn key(&self, directory: InodeId, name: &[u8]) -> NameKey {
        NameKey(self.hasher.hash_one((directory, name)))
    }

    /// Returns the inode that a name probably has.
    pub(crate) fn get(&self, key: NameKey) -> Option<InodeId> {
        self.inodes.get(key)
    }

    /// Records that a name has this inode.
    pub(crate) fn note(&self, key: NameKey, inode: InodeId) {
        self.inodes.note(key, inode);
    }

    /// Forgets the inode of a name, because the name has no inode, another inode, or an inode at
    /// the group of its directory.
    pub(crate) fn forget(&self, key: NameKey) {
        self.inodes.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_hint_is_the_last_inode_until_it_is_forgotten() {
        let (hints, directory) = (NameHints::new(), InodeId::ROOT);
        let [a, b] = [b"a", b"b"].map(|name| hints.key(directory, name));
        assert_ne!(a, hints.key(InodeId::new(7), b"a"), "another directory");
        hints.note(a, InodeId::new(8));
        hints.note(a, InodeId::new(9));
        assert_eq!((hints.get(a), hints.get(b)), (Some(InodeId::new(9)), None));
        hints.forget(a);
        assert_eq!(hints.get(a), None);
    }
}
