//! The guard that makes storage keep chunk files that no inode of the target owns.
//!
//! If the directory of the target was restored from a backup, files that were created after the
//! backup have chunk files but no inode. The clean-up of storage would treat these chunk files as
//! orphans, that is, as chunk files of removed files. So the target does not reply which inodes are
//! missing, until an administrator permits it.

use skep_types::{Error, ErrorCode, InodeId, Result};
use std::ops::Range;

/// Decides whether the target may reply that an inode does not exist. Storage asks this for its
/// clean-up.
#[derive(Debug, Default)]
pub(crate) struct RemovalGuard {
    /// Whether the target's directory was restored from a backup, and no administrator has
    /// permitted removals of chunk files yet.
    pub(crate) is_off: bool,
    /// An inode id from the name of a chunk file. The target has not assigned its number yet.
    pub(crate) newer_inode: Option<InodeId>,
}

impl RemovalGuard {
    /// Checks that storage may remove the chunk files of an inode that does not exist. If the
    /// number of `inode` is in `newer`, only a later state of this target can have assigned it. So
    /// the target's directory is an old backup.
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
