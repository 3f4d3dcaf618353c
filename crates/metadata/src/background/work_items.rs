//! Tracks when the engine has new work items (chunk files to remove, sizes to recover) for the
//! jobs.

use skep_format::metadata::{is_work_item, removal};
use skep_types::{ChunkFileKey, GroupId, Lsn};
use std::collections::VecDeque;

/// Work items that the engine does not have yet: whether there are any, and the removals among
/// them.
#[derive(Debug, Default)]
struct NewItems {
    any: bool,
    removals: Vec<(GroupId, ChunkFileKey)>,
}

/// Follows work items from the transaction that writes them until they are in the engine.
#[derive(Debug, Default)]
pub(crate) struct WorkItems {
    /// Whether the engine may have work items that no job has read.
    look: bool,
    /// Work items written since the last sync of the log began.
    written: NewItems,
    /// Items that a sync covers, oldest first, each with the last log record of that sync.
    layers: VecDeque<(Lsn, NewItems)>,
}

impl WorkItems {
    /// Records that a transaction has written a key. If `is_present` is not set, the transaction
    /// has deleted the key, because the work is done.
    pub(crate) fn on_write(&mut self, key: &[u8], is_present: bool) {
        if is_present && is_work_item(key) {
            self.written.any = true;
            self.written.removals.extend(removal(key));
        }
    }

    /// Lets the jobs search the engine for work items again.
    pub(crate) fn look_again(&mut self) {
        self.look = true;
    }

    /// Returns whether the jobs must search the engine now, and resets that flag. The caller must
    /// start the search.
    pub(crate) fn take_look(&mut self) -> bool {
        std::mem::take(&mut self.look)
    }

    /// Assigns the written items to the sync up to record `last`, which begins now. Items written
    /// during this sync belong to the next sync, because this sync does not bring them into the
    /// engine.
    pub(crate) fn before_sync(&mut self, last: Lsn) {
        let items = std::mem::take(&mut self.written);
        if items.any {
            self.layers.push_back((last, items));
        }
    }

    /// Marks the items of the log records up to `stored` as present in the engine. Returns the new
    /// removals.
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
