//! Tracks when new work items reach the engine, where the jobs find them. Work items are records of
//! chunk files to remove, sizes to recover, and truncations.

use skep_format::metadata::{is_work_item, removal};
use skep_types::{ChunkFileKey, GroupId, Lsn};
use std::collections::VecDeque;

/// Work items that the engine does not have yet.
#[derive(Debug, Default)]
struct NewItems {
    any: bool,
    removals: Vec<(GroupId, ChunkFileKey)>,
}

/// The new work items that have not reached the engine, and whether the jobs must search the
/// engine.
#[derive(Debug, Default)]
pub(crate) struct WorkItems {
    /// Whether the engine may have work items that no job has read.
    look: bool,
    /// Work items written since the last sync of the log began.
    written: NewItems,
    /// Work items whose log records a sync covers, oldest first. Each layer begins with the LSN of
    /// the last log record that its sync covers.
    layers: VecDeque<(Lsn, NewItems)>,
}

impl WorkItems {
    /// Adds a work item if a transaction has written its key. `is_present` is false if the
    /// transaction has deleted the key, because the work is done.
    pub(crate) fn on_write(&mut self, key: &[u8], is_present: bool) {
        if is_present && is_work_item(key) {
            self.written.any = true;
            self.written.removals.extend(removal(key));
        }
    }

    /// Makes the next call of [`Self::take_look`] return `true`, so that the jobs search the engine
    /// for work items again.
    pub(crate) fn look_again(&mut self) {
        self.look = true;
    }

    /// Returns whether the jobs must search the engine now, and resets the flag. The caller must
    /// start the search.
    pub(crate) fn take_look(&mut self) -> bool {
        std::mem::take(&mut self.look)
    }

    /// A sync of the log up to record `last` begins now. Moves the work items that were written
    /// before to a new layer for this sync. Work items that are written during this sync belong to
    /// the next sync.
    pub(crate) fn before_sync(&mut self, last: Lsn) {
        let items = std::mem::take(&mut self.written);
        if items.any {
            self.layers.push_back((last, items));
        }
    }

    /// Marks the work items of the log records up to `stored` as present in the engine. Returns the
    /// chunk files that these work items remove.
    pub(crate) fn stored(&mut self, stored: Lsn) -> Vec<(GroupId, ChunkFileKey)> {
        let mut removals = Vec::new();
        while self.layers.front().is_some_and(|(last, _)| *last <= stored) {
            self.look = true;
            removals.extend(
                self.layers.pop_front().map(|(_, items)| items.removals).unwrap_or_default(),
            );
        }
        removals
    }
}
