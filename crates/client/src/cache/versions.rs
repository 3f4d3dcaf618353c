//! Keeps two versions of each inode. The first is the version of the data in the kernel's page
//! cache, or of the cached listing of a directory. The second is the version of the attributes that
//! the mount last sent to the kernel. At each open, the mount compares both with the version that
//! the metadata target has sent. The comparison shows whether the cached pages, attributes and
//! access control lists are still valid.
//!
//! A version is the change counter of the inode, which each change of data or attributes raises by
//! one. A metadata target never uses a version twice: after each start, the versions of all inodes
//! are higher than each version that the target may have assigned before a power loss. The counter
//! in the reply to this mount's own change may be exactly one higher than the recorded version. In
//! this case no other client has changed the file since. Then the kernel's cache, which includes
//! this mount's writes, is still valid.
//!
//! # Hazard: an open while the kernel drops pages
//! The kernel drops outdated pages of a file when it handles the reply to the open, or when the
//! mount notifies it after a lock. Until then, another program can open or lock the file, and this
//! mount must not permit the kernel to keep the pages. So the mount records the new version of the
//! pages only after the kernel has dropped them ([`CachedVersions::pages_dropped`]). For an open,
//! the first read, write or close through the new handle shows that the kernel has dropped the
//! pages. A directory has no handle at the mount, so the mount records the version of its listing
//! at once. If two programs open the directory at the same moment, one of them may read the old
//! listing once more.

use crate::cache::listing_ends::ListingEnds;
use crate::cache::listings::Listings;
use crate::cache::name_hints::NameHints;
use crate::cache::recent::Recent;
use crate::limits::MAX_REMEMBERED_VERSIONS;
use skep_types::{Attributes, InodeId};

/// For each inode, the versions of the data and of the attributes in the kernel's caches.
#[derive(Debug)]
pub(crate) struct CachedVersions {
    pages: Recent<u64>,
    attributes: Recent<ShownVersion>,
    /// The ages of the listings in the kernel's caches.
    pub(crate) listings: Listings,
    /// The ends of the listings that the kernel is reading.
    pub(crate) listing_ends: ListingEnds,
    /// The inodes that names at another group had when the kernel last looked them up.
    pub(crate) name_hints: NameHints,
}

/// The version of the attributes that the mount last sent to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ShownVersion {
    version: u64,
    has_acl: bool,
    /// Whether the kernel may still have the access control list of an older version in its cache.
    may_have_old_acl: bool,
}

impl CachedVersions {
    pub(crate) fn new() -> Self {
        let most = MAX_REMEMBERED_VERSIONS;
        Self {
            pages: Recent::new(most),
            attributes: Recent::new(most),
            listings: Listings::new(),
            listing_ends: ListingEnds::new(),
            name_hints: NameHints::new(),
        }
    }

    /// Returns whether the table has a cached version of the file's data or of the directory's
    /// listing.
    pub(crate) fn is_known(&self, inode: InodeId) -> bool {
        self.pages.get(inode).is_some()
    }

    /// Returns whether the kernel's cached pages of a file have this version. If the pages have
    /// this version, records it again, so that the table does not evict the version of a file that
    /// programs open often.
    pub(crate) fn has_pages(&self, inode: InodeId, version: u64) -> bool {
        let mut is_held = false;
        self.pages.update_if(inode, |held| {
            is_held = *held == version;
            is_held.then_some(version)
        });
        is_held
    }

    /// Records that the kernel has dropped its cached pages of a file since metadata has sent this
    /// version. So the pages that the kernel has cached since then are not older than this version
    /// of the file.
    pub(crate) fn pages_dropped(&self, inode: InodeId, version: u64) {
        self.pages.note(inode, version);
    }

    /// Records the version of the listing of a directory that the kernel caches from now on.
    /// Returns whether the kernel already cached this version.
    pub(crate) fn listed(&self, directory: InodeId, version: u64) -> bool {
        self.pages.note(directory, version) == Some(version)
    }

    /// Records that the mount sends these attributes to the kernel in the reply to a request for
    /// attributes, or to a change of them. The kernel drops the cached access control lists of the
    /// inode before it requests attributes, and after the reply to a change.
    pub(crate) fn shown(&self, attributes: &Attributes) {
        let Attributes { inode, change_counter: version, has_acl, .. } = *attributes;
        self.attributes.note(inode, ShownVersion { version, has_acl, may_have_old_acl: false });
    }

    /// Records that the mount sends these attributes to the kernel together with a name of the
    /// inode. Returns whether the kernel may have an out-of-date access control list in its cache.
    /// The cached list is out of date if it belongs to another version of the inode. The cached
    /// fact that another version has no list is out of date too.
    ///
    /// # Hazard: the kernel drops a reply
    /// If the kernel looks up a cached name and finds another inode than before, it drops the
    /// reply, and looks up the name again. So the function returns true for each reply, until a
    /// call of [`Self::shown`] means that the kernel has dropped the list.
    pub(crate) fn shown_with_name(&self, attributes: &Attributes) -> bool {
        let Attributes { inode, change_counter: version, has_acl, .. } = *attributes;
        let mut may_have_old_acl = has_acl;
        self.attributes.update(inode, |before| {
            if let Some(before) = before {
                let is_changed = before.version != version && (before.has_acl || has_acl);
                may_have_old_acl = before.may_have_old_acl || is_changed;
            }
            ShownVersion { version, has_acl, may_have_old_acl }
        });
        may_have_old_acl
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
    use crate::limits::TABLE_PARTS;
    use skep_types::FileKind;

    /// Attributes of the inode 9.
    fn attributes(version: u64, has_acl: bool) -> Attributes {
        let now = skep_env::wall_time();
        let any = Attributes::new(InodeId::new(9), FileKind::Directory, 0o755, now);
        Attributes { change_counter: version, has_acl, ..any }
    }

    #[test]
    fn kernel_acl_is_outdated_after_a_change_by_another_client() {
        let caches = CachedVersions::new();
        // The kernel looks up a name, and requests the attributes if they are not valid.
        let is_old = |version, has_acl| {
            let attributes = attributes(version, has_acl);
            let is_old = caches.shown_with_name(&attributes);
            if is_old {
                caches.shown(&attributes);
            }
            is_old
        };
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
    fn acl_is_outdated_until_the_kernel_requests_attributes() {
        let caches = CachedVersions::new();
        caches.shown(&attributes(7, true));
        assert!(caches.shown_with_name(&attributes(8, true)), "the kernel may drop this reply");
        assert!(caches.shown_with_name(&attributes(8, true)));
        caches.changed_by_us(InodeId::new(9), 9);
        assert!(caches.shown_with_name(&attributes(9, false)));
        caches.shown(&attributes(9, false));
        assert!(!caches.shown_with_name(&attributes(9, false)));
    }

    #[test]
    fn only_changes_by_other_clients_invalidate_the_cache() {
        let caches = CachedVersions::new();
        let inode = InodeId::new(9);
        assert!(!caches.has_pages(inode, 5), "the kernel has cached no version yet");
        assert!(!caches.has_pages(inode, 5), "the kernel may not have dropped its pages yet");
        caches.pages_dropped(inode, 5);
        assert!(caches.has_pages(inode, 5));
        caches.changed_by_us(inode, 6);
        assert!(caches.has_pages(inode, 6));
        caches.changed_by_us(inode, 8);
        assert!(!caches.has_pages(inode, 8), "another client made version 7");
        caches.changed_by_us(InodeId::new(10), 3);
        assert!(!caches.has_pages(InodeId::new(10), 3));
    }

    #[test]
    fn version_of_an_often_opened_file_is_not_evicted() {
        let caches =
            CachedVersions { pages: Recent::new(16 * TABLE_PARTS), ..CachedVersions::new() };
        let often = InodeId::new(1);
        caches.pages_dropped(often, 5);
        for number in 2..=64 * TABLE_PARTS as u64 {
            caches.pages_dropped(InodeId::new(number), 1);
            assert!(caches.has_pages(often, 5));
        }
    }

    #[test]
    fn only_changes_by_other_clients_invalidate_a_listing() {
        let caches = CachedVersions::new();
        let directory = InodeId::new(9);
        assert!(!caches.listed(directory, 5), "the kernel has cached no version yet");
        assert!(caches.listed(directory, 5));
        caches.changed_by_us(directory, 6);
        assert!(caches.listed(directory, 6));
        assert!(!caches.listed(directory, 8));
    }

    #[test]
    fn attributes_sent_to_the_kernel_stay_valid_after_own_changes() {
        let caches = CachedVersions::new();
        let inode = InodeId::new(9);
        assert!(!caches.is_shown(inode, 5));
        caches.shown(&attributes(5, false));
        assert!(caches.is_shown(inode, 5));
        caches.changed_by_us(inode, 6);
        assert!(caches.is_shown(inode, 6), "the kernel has the version of its own write");
        assert!(!caches.is_shown(inode, 7));
    }
}
