//! A target whose directory was restored from a backup. The restored directory lacks the newest
//! changes.
//!
//! The target skips all inode numbers, transaction numbers, start numbers and versions that it may
//! have assigned after the backup was made. So the target assigns no number or version twice.
//!
//! The module `service::restored` owns the mark files in the directory. The module
//! `tx::removal_guard` owns the rule that storage keeps chunk files without an inode.

use super::MetadataTarget;
use crate::engine::Engine;
use skep_types::InodeId;

impl<E: Engine> MetadataTarget<E> {
    /// Makes the target skip all numbers that it may have assigned after the backup was made. The
    /// caller calls this function before the first event, if the target's directory was restored
    /// from a backup.
    pub fn continue_above_copy(&mut self) {
        self.shared.numbers.skip();
        self.shared.starts.skip();
        // Close the replay: clients have only the newest of the changes that the backup lacks, and
        // a replay of these changes without the earlier changes would be wrong.
        self.sessions.replay.close();
    }

    /// Whether the records of the new start number and of the new number reservation are safe. From
    /// then on, a restart skips the same numbers without [`Self::continue_above_copy`].
    pub fn has_safe_numbers(&self) -> bool {
        self.shared.starts.current().is_some() && self.shared.numbers.has_usable()
    }

    /// Sets whether storage may remove chunk files that no inode owns.
    pub fn permit_removal(&mut self, is_permitted: bool) {
        self.shared.removal.is_off = !is_permitted;
    }

    /// Returns an inode that has a chunk file, but whose number this target has not assigned yet.
    /// The existence of such an inode shows that the directory of the target is an old backup. So
    /// the caller must start the target again with [`Self::continue_above_copy`].
    pub fn newer_inode(&self) -> Option<InodeId> {
        self.shared.removal.newer_inode
    }
}
