//! Keeps two versions of each inode. The first is the version of the data in the kernel's page
//! cache, or of the cached listing of a directory. The second is the version of the attributes that
//! the mount last sent to the kernel. At each open, the mount compares both with the version that
//! the metadata target has sent. The comparison shows whether the cached pages, attributes and
//! access control lists are still valid.
//!
//! A version is the change counter of the inode, which each change of data or attributes raises by
//! one. A metadata target never uses a version twice: after each start, the versions of all inodes
//! are higher than each version that the target may have assigned before a power loss. If the reply
//! to this mount's own change has a counter that is exactly one higher than the recorded version,
//! no other client has changed the file since. Then the kernel's cache, which includes this mount's
//! writes, is still valid.

use crate::cache::listings::Listings;
use crate::cache::recent::Recent;
use crate::limits::MAX_REMEMBERED_VERSIONS;
use skep_types::InodeId;

/// For each inode, the versions of the data and of the attributes in the kernel's caches.
#[derive(Debug)]
pub(crate) struct CachedVersions {
    pages: Recent<u64>,
    attributes: Recent<ShownVersion>,
    /// The ages of the listings in the kernel's caches.
    pub(crate) listings: Listings,
}

/// The version of the attributes that the mount last sent to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShownVersion {
    pub(crate) version: u64,
    pub(crate) has_acl: bool,
}

impl CachedVersions {
    pub(crate) fn new() -> Self {
        let most = MAX_REMEMBERED_VERSIONS;
        let listings = Listings::new();
        Self { pages: Recent::new(most), attributes: Recent::new(most), listings }
    }

    /// Returns whether the table has a cached version of the file's data or of the directory's
    /// listing.
    pub(crate) fn is_known(&self, inode: InodeId) -> bool {
        self.pages.get(inode).is_some()
    }

    /// Records the version of the data or of the listing that the kernel caches from now on.
    /// Returns whether the kernel already cached this version.
    pub(crate) fn opened(&self, inode: InodeId, version: u64) -> bool {
        self.pages.note(inode, version) == Some(version)
    }

    /// Records that the mount sends these attributes to the kernel. Returns whether the kernel's
    /// cached access control list may be out of date. The kernel may have cached the list of
    /// another version of the inode, or the fact that another version has no list.
    pub(crate) fn shown(&self, inode: InodeId, now: ShownVersion) -> bool {
        match self.attributes.note(inode, now) {
            Some(before) => before.version != now.version && (before.has_acl || now.has_acl),
            None => now.has_acl,
        }
    }

    /// Returns whether the attributes last sent to the kernel have this version.
    pub(crate) fn is_shown(&self, inode: InodeId, version: u64) -> bool {
        self.attributes.get(inode).is_some_and(|shown| shown.version == version)
    }

    /// Records the version of an inode after a change of the inode by this mount.
    pub(crate) fn changed_by_us(&self, inode: InodeId, version: u64) {
        self.pages.update_if(inode, |held| (held + 1 == version).then_some(version));
        self.attributes.update_if(inode, |held| {
            (held.version + 1 == version).then_some(ShownVersion { version, ..*held })
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_acl_is_outdated_after_a_change_by_another_client() {
        let caches = CachedVersions::new();
        let is_old =
            |version, has_acl| caches.shown(InodeId::new(9), ShownVersion { version, has_acl });
        assert!(!is_old(5, false));
        assert!(!is_old(6, false));
        assert!(is_old(7, true), "another client set a list");
        assert!(!is_old(7, true));
        assert!(is_old(8, true));
        caches.changed_by_us(InodeId::new(9), 9);
        assert!(!is_old(9, true), "the mount sent the kernel this version");
        assert!(is_old(10, false), "another client removed the list");
        assert!(!is_old(11, false));
    }

    #[test]
    fn only_changes_by_other_clients_invalidate_the_cache() {
        let caches = CachedVersions::new();
        let inode = InodeId::new(9);
        assert!(!caches.opened(inode, 5), "the kernel has cached no version yet");
        assert!(caches.opened(inode, 5));
        caches.changed_by_us(inode, 6);
        assert!(caches.opened(inode, 6));
        caches.changed_by_us(inode, 8);
        assert!(!caches.opened(inode, 8), "another client made version 7");
        caches.changed_by_us(InodeId::new(10), 3);
        assert!(!caches.opened(InodeId::new(10), 3));
    }

    #[test]
    fn attributes_sent_to_the_kernel_stay_valid_after_own_changes() {
        let caches = CachedVersions::new();
        let inode = InodeId::new(9);
        assert!(!caches.is_shown(inode, 5));
        caches.shown(inode, ShownVersion { version: 5, has_acl: false });
        assert!(caches.is_shown(inode, 5));
        caches.changed_by_us(inode, 6);
        assert!(caches.is_shown(inode, 6), "the kernel has the version of its own write");
        assert!(!caches.is_shown(inode, 7));
    }
}
