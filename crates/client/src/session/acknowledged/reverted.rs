//! The inodes of changes that stay lost, until a program has got an error for them. No I/O.

use super::{AcknowledgedChanges, Change};
use crate::limits::MAX_REVERTED_INODES;
use skep_types::InodeId;

impl AcknowledgedChanges {
    /// Marks the inodes of changes that stay lost as reverted.
    pub(crate) fn revert<'a>(&self, changes: impl Iterator<Item = &'a Change>) {
        self.with(|inner| {
            for inode in changes.filter_map(|it| it.inodes).flatten() {
                if inner.reverted.len() < MAX_REVERTED_INODES {
                    inner.reverted.insert(inode);
                }
                inner.is_name_reverted = true;
            }
        });
    }

    /// Returns whether one of the inodes has reverted changes. Forgets these changes, because the
    /// caller returns an error to the program.
    pub(crate) fn take_reverted(&self, inodes: &[InodeId]) -> bool {
        self.with(|inner| inodes.iter().filter(|inode| inner.reverted.remove(*inode)).count() > 0)
    }

    /// Returns whether a power loss has reverted a change since the last call of this function.
    pub(crate) fn take_name_reverted(&self) -> bool {
        self.with(|inner| std::mem::take(&mut inner.is_name_reverted))
    }
}
