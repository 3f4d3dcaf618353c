//! The guard that makes storage keep chunk files without an inode, if this target may have lost the
//! inode.
//!
//! If the directory of the target was restored from a backup, files that were created after the
//! backup have chunk files but no inode. The clean-up of storage would remove these chunk files as
//! orphans. So the target refuses to reply which inodes do not exist, until an administrator
//! permits it.

use skep_types::{Error, ErrorCode, InodeId, Result};
use std::ops::Range;

/// Decides whether the target may reply that an inode does not exist. Storage requests this reply
/// for its clean-up.
#[derive(Debug, Default)]
pub(crate) struct RemovalGuard {
    /// Whether the target's directory was restored from a backup, and no administrator has
    /// permitted removals of chunk files yet.
    pub(crate) is_off: bool,
    /// An inode id from the name of a chunk file, whose number this target has not assigned yet.
    /// `None` means that storage has asked about no inode with an unassigned number.
    pub(crate) newer_inode: Option<InodeId>,
}

impl RemovalGuard {
    /// Checks that storage may remove the chunk files of `inode`, which does not exist. If its
    /// number is in `newer`, only a later state of this target can have assigned it, so the
    /// target's directory is an old backup.
    ///
    /// # Errors
    /// `NotPermitted` if the target's directory is an old backup, or was restored from a backup.
    pub(crate) fn check(&mut self, inode: InodeId, newer: &Range<u64>) -> Result<()> {
        if newer.contains(&inode.number()) {
            self.newer_inode.get_or_insert(inode);
        }
        if !self.is_off && self.newer_inode.is_none() {
            return Ok(());
        }
        let what = "cannot list the inodes that do not exist: this metadata target was restored \
                    from a backup; `skep target restored --allow-removal` permits the removal of \
                    chunk files without an inode";
        Err(Error::new(ErrorCode::NotPermitted, what))
    }
}
