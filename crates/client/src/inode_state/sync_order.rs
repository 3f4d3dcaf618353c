//! The steps of a sync of one file, and their order. Pure.
//!
//! - The bytes are durable when storage has synced the chunk files.
//! - The size is durable when metadata has synced a report of it. A report does not depend on the
//!   bytes, so both syncs run at the same time.
//! - Metadata records the chunk files that were ever synced, so that clients can detect the loss of
//!   such a file. So the client reports a chunk file only after its first sync.
//!
//! `files::sync` sends the requests.

use super::Parts;

/// Whether metadata must sync, and when it syncs relative to the sync of the bytes by storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SyncOrder {
    /// Metadata need not sync, because the size and the name of the file are durable already.
    DataOnly,
    /// Metadata syncs at the same time as storage syncs the bytes.
    Together,
    /// Metadata syncs after storage has synced the bytes, since the report depends on the result of
    /// that sync.
    DataFirst,
}

/// Numbers of changes to names and attributes that this mount had made at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChangeCount {
    /// Number of changes to names whose inode id the mount does not have, because metadata's reply
    /// to the change did not contain the id.
    of_mount: u64,
    /// Number of changes to names and attributes of this file.
    of_file: u64,
}

/// Records the number of changes to a file's name and attributes that metadata has synced.
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

    /// Returns the number of changes until now. `of_mount` is the number of changes to names whose
    /// inode id the mount does not have.
    pub(super) fn changes(&self, of_mount: u64) -> ChangeCount {
        ChangeCount { of_mount, of_file: self.of_file }
    }

    /// Records that metadata has synced the changes that `changes` counts.
    pub(super) fn note(&mut self, changes: ChangeCount) {
        self.changes = Some(changes);
    }
}

/// Returns in which order storage and metadata must sync, so that the bytes of the file and these
/// changes become durable.
pub(super) fn order(parts: &Parts, changes: ChangeCount) -> SyncOrder {
    if parts.size.must_measure() || parts.unsynced.may_be_unrecorded() {
        return SyncOrder::DataFirst;
    }
    let is_settled = parts.settled.changes == Some(changes);
    // For a shared file, metadata must sync too, because the recorded size may come from another
    // client that has not synced this size.
    let is_durable = is_settled && parts.size.is_end_durable() && !parts.handles.is_shared();
    if is_durable { SyncOrder::DataOnly } else { SyncOrder::Together }
}
