//! A target whose directory was restored from a backup. Such a target lacks the newest changes.
//!
//! The target assigns only numbers above all that it may have assigned before the restore. So it
//! assigns no inode number, transaction number, start number or version a second time.
//!
//! The module `service::restored` owns the mark files in the directory. The module
//! `tx::removal_guard` owns the rule that storage keeps chunk files without an inode.

use super::MetadataTarget;
use crate::engine::Engine;
use skep_types::InodeId;

impl<E: Engine> MetadataTarget<E> {
    /// Makes the target assign only numbers above all that it may have assigned, since its
    /// directory was restored from a backup. The caller calls this before the first event.
    pub fn continue_above_copy(&mut self) {
        self.shared.numbers.skip();
        self.shared.starts.skip();
        // Clients have the newest of the changes that the backup lacks, and not those before them.
        self.sessions.replay.close();
    }

    /// Whether the start record and the number reservations after [`Self::continue_above_copy`] are
    /// safe. From then on, a restart also assigns only numbers above all that this target may have
    /// assigned.
    pub fn has_safe_numbers(&self) -> bool {
        self.shared.starts.current().is_some() && self.shared.numbers.has_usable()
    }

    /// Permits or forbids the removal of chunk files that no inode owns.
    pub fn permit_removal(&mut self, is_permitted: bool) {
        self.shared.removal.is_off = !is_permitted;
    }

    /// Returns an inode that has a chunk file, but whose number this target has not assigned yet.
    /// Such an inode shows that the directory of the target is an old backup. So the caller must
    /// start the target again with [`Self::continue_above_copy`].
    pub fn newer_inode(&self) -> Option<InodeId> {
        self.shared.removal.newer_inode
    }
}
