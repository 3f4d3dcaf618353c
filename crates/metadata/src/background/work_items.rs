//! When the engine has new work items (chunk files to remove, sizes to recover) for the jobs.

use skep_format::metadata::{is_work_item, removal};
use skep_types::GroupId;
use std::collections::BTreeSet;

/// Work items that the engine does not have yet: whether there are any, and the groups of removals.
#[derive(Debug, Default)]
struct NewItems {
    any: bool,
    removals: BTreeSet<GroupId>,
}

/// Follows work items from the transaction that writes them into the engine.
#[derive(Debug, Default)]
pub(crate) struct WorkItems {
    /// Whether the engine may have work items that no job has looked at.
    look: bool,
    /// Items that were written since the last sync began.
    written: NewItems,
    /// Items that are being synced.
    syncing: NewItems,
}

impl WorkItems {
    /// Notes that a transaction has written a key.
    pub(crate) fn on_write(&mut self, key: &[u8]) {
        if is_work_item(key) {
            self.written.any = true;
            self.written.removals.extend(removal(key).map(|(group, _)| group));
        }
    }

    /// Lets the jobs look at the engine again.
    pub(crate) fn look_again(&mut self) {
        self.look = true;
    }

    /// Whether the jobs have to look at the engine now, which the caller then makes them do.
    pub(crate) fn take_look(&mut self) -> bool {
        std::mem::take(&mut self.look)
    }

    /// A sync begins. Items that are written while it runs belong to the next one: after this sync
    /// the engine would not have them, and the jobs would not look again.
    pub(crate) fn before_sync(&mut self) {
        self.syncing = std::mem::take(&mut self.written);
    }

    /// The sync has ended. Returns the groups that have new removals.
    pub(crate) fn after_sync(&mut self) -> BTreeSet<GroupId> {
        let items = std::mem::take(&mut self.syncing);
        self.look |= items.any;
        items.removals
    }
}
