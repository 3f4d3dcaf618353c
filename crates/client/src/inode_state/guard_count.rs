//! The number of operations in progress on an inode, for each kind of guard.
//!
//! A function that ends an operation returns whether another task may wait for this end.

/// The number of guards of each kind.
///
/// A caller may claim a truncation while writes are in progress. New writes then wait until the
/// claim is dropped, and the truncation begins after the writes in progress have ended.
#[derive(Debug, Default)]
pub(super) struct GuardCount {
    writers: u32,
    is_truncating: bool,
    /// Number of operations in progress that are allowed only while no other client uses the file.
    alone: u32,
    /// Whether a move of the inline bytes to storage is in progress.
    is_moving: bool,
    /// Number of times that a write or a truncation has begun or ended.
    changes: u64,
}

impl GuardCount {
    pub(super) fn try_write(&mut self) -> bool {
        self.writers += u32::from(!self.is_truncating);
        self.changes += u64::from(!self.is_truncating);
        !self.is_truncating
    }

    /// Begins a write while another write is in progress. A claimed truncation has not begun then.
    pub(super) fn begin_another_write(&mut self) {
        debug_assert!(self.writers > 0, "the caller has a write in progress");
        self.writers += 1;
        self.changes += 1;
    }

    pub(super) fn try_truncate(&mut self) -> bool {
        self.changes += u64::from(!self.is_truncating);
        !std::mem::replace(&mut self.is_truncating, true)
    }

    /// Returns the number of times that a write or a truncation of this mount has begun or ended.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    pub(super) fn begin_alone(&mut self) {
        self.alone += 1;
    }

    pub(super) fn is_used_alone(&self) -> bool {
        self.alone > 0
    }

    pub(super) fn end_write(&mut self) -> bool {
        debug_assert!(self.writers > 0, "only a write that has begun can end");
        self.writers -= 1;
        self.changes += 1;
        // Unless all handles of the file are being closed, only a task that has claimed a
        // truncation waits for writes.
        self.writers == 0 && self.is_truncating
    }

    pub(super) fn has_writers(&self) -> bool {
        self.writers > 0
    }

    pub(super) fn end_truncation(&mut self) -> bool {
        debug_assert!(self.is_truncating, "only a truncation that has begun can end");
        self.is_truncating = false;
        self.changes += 1;
        true
    }

    pub(super) fn begin_move(&mut self) -> bool {
        debug_assert!(self.is_truncating, "a move has the claim of the inode");
        !std::mem::replace(&mut self.is_moving, true)
    }

    pub(super) fn is_moving(&self) -> bool {
        self.is_moving
    }

    pub(super) fn end_move(&mut self) -> bool {
        self.is_moving = false;
        true
    }

    pub(super) fn end_alone(&mut self) -> bool {
        debug_assert!(self.alone > 0, "only an operation that has begun can end");
        self.alone -= 1;
        self.alone == 0
    }
}
