//! The steps of a sync of one file, and their order. Pure.
//!
//! - The bytes are durable when storage has synced the chunk files.
//! - The size is durable when metadata has synced a report of it. A report does not depend on the
//!   bytes, so both syncs run at the same time.
//! - Metadata records the chunk files that were ever synced, so that the loss of such a file is an
//!   error. So the first sync of a chunk file comes before the report that includes it.
//!
//! Does not own the requests (`files::sync`).

use super::Parts;

/// Whether metadata must sync, and whether before, during or after the sync of unsynced bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SyncOrder {
    /// Metadata need not sync: the size and the name of the file are durable.
    DataOnly,
    /// Metadata syncs at the same time as storage syncs the bytes.
    Together,
    /// Metadata syncs after storage has synced the bytes, since the report depends on the result of
    /// that sync.
    DataFirst,
}

/// The changes to names and attributes that this mount had made at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChangeCount {
    /// Number of changes to names of files whose inode was not in the reply of metadata.
    of_mount: u64,
    /// Number of changes to names and attributes of this file.
    of_file: u64,
}

/// The changes of the name and the attributes of a file that are durable.
#[derive(Debug, Default)]
pub(super) struct Settled {
    /// The changes that this mount had made when metadata last synced names and attributes. `None`
    /// means that metadata has not synced them since this mount opened the file.
    changes: Option<ChangeCount>,
    /// Number of changes of this mount to names and attributes of the file.
    of_file: u64,
}

impl Settled {
    /// Counts a change to a name or to attributes of the file.
    pub(super) fn count_change(&mut self) {
        self.of_file += 1;
    }

    /// Returns the changes so far. `of_mount` is the number of changes to names of any file.
    pub(super) fn changes(&self, of_mount: u64) -> ChangeCount {
        ChangeCount { of_mount, of_file: self.of_file }
    }

    /// Records that metadata has synced all these changes.
    pub(super) fn note(&mut self, changes: ChangeCount) {
        self.changes = Some(changes);
    }
}

/// Returns the steps of a sync of the file after these changes.
pub(super) fn order(parts: &Parts, changes: ChangeCount) -> SyncOrder {
    if parts.size.must_measure() || parts.unsynced.may_be_unrecorded() {
        return SyncOrder::DataFirst;
    }
    let is_settled = parts.settled.changes == Some(changes);
    // The size of a shared file may come from another client, which has not synced it.
    let is_durable = is_settled && parts.size.is_end_durable() && !parts.handles.is_shared();
    if is_durable { SyncOrder::DataOnly } else { SyncOrder::Together }
}
