//! A target whose directory was put back from a copy, so that it lacks its newest changes.
//!
//! The target continues with higher numbers. So it assigns no inode number, transaction number,
//! start number or version a second time.
//!
//! This module does not own the marks in the directory (`service::restored`), or the refusal to
//! name orphans (`tx::removal_guard`).

use super::MetadataTarget;
use crate::engine::Engine;
use skep_types::InodeId;

impl<E: Engine> MetadataTarget<E> {
    /// Continues with higher numbers, since the directory was put back from a copy. The caller
    /// calls this before the first event.
    pub fn continue_above_copy(&mut self) {
        self.shared.numbers.skip();
        self.shared.starts.skip();
    }

    /// Whether a restart continues above all numbers that this target may have assigned.
    pub fn has_safe_numbers(&self) -> bool {
        self.shared.starts.current().is_some() && self.shared.numbers.has_usable()
    }

    /// Permits or forbids the removal of chunk files that no inode owns.
    pub fn permit_removal(&mut self, is_permitted: bool) {
        self.shared.removal.is_off = !is_permitted;
    }

    /// Returns an inode that has a chunk file, but whose number this target has not assigned yet.
    /// Such an inode shows that the directory of the target is an old copy, so the caller must
    /// start the target again with [`Self::continue_above_copy`].
    pub fn newer_inode(&self) -> Option<InodeId> {
        self.shared.removal.newer_inode
    }
}
