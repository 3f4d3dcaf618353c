//! The guard of chunk files that no inode of the target owns.
//!
//! If the directory of the target was put back from a copy, files that were created after the copy
//! have chunk files and no inode. The clean-up of storage would take them for orphans. So the
//! target refuses to name inodes that do not exist, until an administrator permits it.

use skep_types::{Error, ErrorCode, InodeId, Result};
use std::ops::Range;

/// Decides whether the target replies to the clean-up of storage.
#[derive(Debug, Default)]
pub(crate) struct RemovalGuard {
    /// Whether the target was put back from a copy, and the removal is not permitted yet.
    pub(crate) is_off: bool,
    /// An inode id in the name of a chunk file, with a number that the target has not assigned.
    pub(crate) newer_inode: Option<InodeId>,
}

impl RemovalGuard {
    /// Checks that storage may remove the chunk files of an inode that does not exist. If the
    /// number of `inode` is in `newer`, only a later state of this target can have assigned it, so
    /// the directory is an old copy.
    ///
    /// # Errors
    /// `NotPermitted` if the target's directory is an old copy, or was put back from a copy.
    pub(crate) fn check(&mut self, inode: InodeId, newer: &Range<u64>) -> Result<()> {
        if newer.contains(&inode.number()) {
            self.newer_inode.get_or_insert(inode);
        }
        if !self.is_off && self.newer_inode.is_none() {
            return Ok(());
        }
        let what = "cannot list the inodes that do not exist: this metadata target was put back \
                    from a copy; `skep target restored --allow-removal` permits the removal of \
                    their chunk files";
        Err(Error::new(ErrorCode::NotPermitted, what))
    }
}
