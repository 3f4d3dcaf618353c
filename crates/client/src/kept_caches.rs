//! Which version of each file the kernel's page cache may hold (its listing, of a directory), and
//! of which it was shown the attributes, so that an open can say whether both are still right.
//!
//! A version is the inode's change counter. Each change of data or attributes raises it by one, so
//! a reply to a change of our own that is exactly one higher tells that nobody else changed the
//! file meanwhile, and the cache, which has our own writes, is still right.

use crate::limits::MAX_REMEMBERED_VERSIONS;
use crate::recent::Recent;
use skep_types::InodeId;

/// Versions by inode.
#[derive(Debug)]
pub(crate) struct KeptCaches {
    pages: Recent<u64>,
    attributes: Recent<u64>,
}

impl KeptCaches {
    pub(crate) fn new() -> Self {
        let table = || Recent::new(MAX_REMEMBERED_VERSIONS);
        Self { pages: table(), attributes: table() }
    }

    /// Whether a version was noted.
    pub(crate) fn is_known(&self, inode: InodeId) -> bool {
        self.pages.get(inode).is_some()
    }

    /// Notes that the cache will hold this version from now on; says whether it already does.
    pub(crate) fn opened(&self, inode: InodeId, version: u64) -> bool {
        self.pages.note(inode, version) == Some(version)
    }

    /// Notes that the kernel is shown the attributes of this version.
    pub(crate) fn shown(&self, inode: InodeId, version: u64) {
        self.attributes.note(inode, version);
    }

    /// Whether the attributes that the kernel was shown last are those of this version.
    pub(crate) fn is_shown(&self, inode: InodeId, version: u64) -> bool {
        self.attributes.get(inode) == Some(version)
    }

    /// Notes the version after a change of our own.
    pub(crate) fn changed_by_us(&self, inode: InodeId, version: u64) {
        for table in [&self.pages, &self.attributes] {
            table.replace_if(inode, version, |held| held + 1 == version);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_kept_over_own_changes_and_dropped_after_those_of_others() {
        let caches = KeptCaches::new();
        let inode = InodeId::new(9);
        assert!(!caches.opened(inode, 5), "never seen");
        assert!(caches.opened(inode, 5));
        caches.changed_by_us(inode, 6);
        assert!(caches.opened(inode, 6));
        caches.changed_by_us(inode, 8);
        assert!(!caches.opened(inode, 8), "somebody else made 7");
        caches.changed_by_us(InodeId::new(10), 3);
        assert!(!caches.opened(InodeId::new(10), 3));
    }

    #[test]
    fn attributes_that_were_shown_are_right_until_others_change_the_file() {
        let caches = KeptCaches::new();
        let inode = InodeId::new(9);
        assert!(!caches.is_shown(inode, 5));
        caches.shown(inode, 5);
        assert!(caches.is_shown(inode, 5));
        caches.changed_by_us(inode, 6);
        assert!(caches.is_shown(inode, 6), "the kernel knows what it wrote");
        assert!(!caches.is_shown(inode, 7));
    }
}
