//! Under which names the kernel was shown which inodes: whether it can have an entry of a name that
//! it asks for, or comes to the inode by a name that is new to it.
//!
//! Does not own: what the kernel still has of them. It may have forgotten any, and with the last of
//! an inode's entries the inode; of an inode with several names, whose entries it forgets one by
//! one, nothing that was shown says much.

use crate::limits::MAX_REMEMBERED_NAMES;
use crate::recent::Recent;
use skep_types::InodeId;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// What the kernel has of a name that it asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameSeen {
    /// It was shown this inode under it before.
    Before,
    /// It has no entry of this name that leads to this inode.
    Never,
    /// It was so long ago that nobody remembers, or never.
    Unsure,
}

/// Inodes by directory and name.
#[derive(Debug)]
pub(crate) struct ShownNames {
    /// By a hash of directory and name, in the place of the inode that the table is made for.
    inodes: Recent<InodeId>,
    hasher: RandomState,
}

impl ShownNames {
    pub(crate) fn new() -> Self {
        Self { inodes: Recent::new(MAX_REMEMBERED_NAMES), hasher: RandomState::new() }
    }

    fn key(&self, directory: InodeId, name: &[u8]) -> InodeId {
        InodeId::new(self.hasher.hash_one((directory, name)))
    }

    /// Notes that the kernel is shown an inode under a name.
    pub(crate) fn shown(&self, directory: InodeId, name: &[u8], inode: InodeId) -> NameSeen {
        let key = self.key(directory, name);
        match self.inodes.note(key, inode) {
            Some(before) if before == inode => NameSeen::Before,
            None if self.inodes.has_forgotten(key) => NameSeen::Unsure,
            _ => NameSeen::Never,
        }
    }

    /// Notes that there is no such name, and that the kernel learns it.
    pub(crate) fn gone(&self, directory: InodeId, name: &[u8]) {
        self.inodes.forget(self.key(directory, name));
    }

    /// Notes that the kernel moves an entry, since this mount has renamed it; with `swaps` also the
    /// one that was there to where it came from.
    pub(crate) fn renamed(&self, from: (InodeId, &[u8]), to: (InodeId, &[u8]), swaps: bool) {
        let (from, to) = (self.key(from.0, from.1), self.key(to.0, to.1));
        let (moved, replaced) = (self.inodes.get(from), self.inodes.get(to));
        for (key, inode) in [(to, moved), (from, replaced.filter(|_| swaps))] {
            match inode {
                Some(inode) => drop(self.inodes.note(key, inode)),
                None => self.inodes.forget(key),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: InodeId = InodeId::ROOT;

    #[test]
    fn names_are_known_by_what_was_shown_under_them() {
        let names = ShownNames::new();
        let [one, other] = [7, 8].map(InodeId::new);
        assert_eq!(names.shown(ROOT, b"a", one), NameSeen::Never);
        assert_eq!(names.shown(ROOT, b"a", one), NameSeen::Before);
        assert_eq!(names.shown(ROOT, b"b", one), NameSeen::Never);
        assert_eq!(names.shown(other, b"a", one), NameSeen::Never);
        assert_eq!(names.shown(ROOT, b"a", other), NameSeen::Never, "another took its place");
        assert_eq!(names.shown(ROOT, b"a", other), NameSeen::Before);
        names.gone(ROOT, b"a");
        assert_eq!(names.shown(ROOT, b"a", other), NameSeen::Never);
    }

    #[test]
    fn names_follow_renames_of_this_mount() {
        let names = ShownNames::new();
        let [one, other] = [7, 8].map(InodeId::new);
        names.shown(ROOT, b"a", one);
        names.renamed((ROOT, b"a"), (other, b"b"), false);
        assert_eq!(names.shown(other, b"b", one), NameSeen::Before);
        assert_eq!(names.shown(ROOT, b"a", one), NameSeen::Never, "it was moved away");
        names.shown(ROOT, b"c", other);
        names.renamed((ROOT, b"c"), (other, b"b"), true);
        assert_eq!(names.shown(other, b"b", other), NameSeen::Before);
        assert_eq!(names.shown(ROOT, b"c", one), NameSeen::Before);
    }

    #[test]
    fn of_what_was_forgotten_nobody_is_sure() {
        let names = ShownNames::new();
        for number in 1..3 * MAX_REMEMBERED_NAMES as u64 {
            names.shown(ROOT, &number.to_le_bytes(), InodeId::new(number));
        }
        assert_eq!(names.shown(ROOT, &1_u64.to_le_bytes(), InodeId::new(1)), NameSeen::Unsure);
    }
}
