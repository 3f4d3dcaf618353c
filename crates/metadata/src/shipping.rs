//! Shipping of a group's log. The primary sends each log record to the other members, which append
//! and sync it, and write its changes to their stores (`docs/design/0014-metadata-groups.md`,
//! "Shipping").
//!
//! The modules are pure state machines, without clock, sockets and files:
//!
//! - `shipper`: the tasks of the primary. [`crate::target::MetadataTarget`] owns it.
//! - `member_link`: the primary's link to one member, with the progress of the member and the
//!   requests in flight.
//! - [`backup`]: the role of a member that is not the primary.
//! - `copy_sender`, [`copy_receiver`]: the primary and the member in the transfer of a copy of the
//!   store. A member gets a copy if it lacks records that the primary has already removed from its
//!   log.
//! - `old_records`: records for a member that lacks more than the primary has in memory. The
//!   primary reads them back from its log on disk.
//! - `standing`: whether the primary waits for a member, and whether the member is silent.
//! - [`former_primary`]: the last replies of a former primary whose disk hangs.
//! - `flap_damping`: when the primary counts a failed member again.
//! - `own_group`: the backup member's view of its group.
//! - `silence`: how long a backup member has received nothing from the primary.
//! - [`succession`]: when a new primary may reply to clients.
//! - `completeness`: whether a backup member may lack records.
//! - `sync_waits`: requests that wait until a backup member has synced its log.
//! - `record_window`: consecutive log records in memory, for both roles.
//!
//! This module does not own the queues in which replies wait for the acknowledgements of the
//! members (`target::gates`), or the sending of requests ([`crate::service`]). Management decides
//! which member is the primary.

pub mod backup;
mod completeness;
pub mod copy_receiver;
pub(crate) mod copy_sender;
mod flap_damping;
pub mod former_primary;
pub(crate) mod member_link;
mod old_records;
mod own_group;
pub(crate) mod record_window;
pub(crate) mod shipper;
mod silence;
mod standing;
pub mod succession;
mod sync_waits;

use skep_format::log::Record;
use skep_types::{Lsn, TargetId};
use skep_wire::log_shipping::{AwaitLogSync, CopyStore, ShipLog};

/// The records of the group's log that one member has appended and synced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Last record that the member has appended.
    pub(crate) appended: Lsn,
    /// Last record that the member has synced.
    pub(crate) synced: Lsn,
}

impl Progress {
    /// Returns the larger value of each field, because an old message about progress may arrive
    /// after a newer message.
    pub(crate) fn max(self, other: Self) -> Self {
        Self { appended: self.appended.max(other.appended), synced: self.synced.max(other.synced) }
    }
}

/// A request of the primary to another member of its group.
#[derive(Debug, Clone)]
pub struct MemberRequest {
    /// The member that receives the request.
    pub member: TargetId,
    /// Id of the request. The caller passes it back in [`crate::target::Event::MemberReply`] or
    /// [`crate::target::Event::CopyReply`].
    pub number: u64,
    /// The content of the request.
    pub message: MemberMessage,
}

/// The messages that a primary sends to other members. The reply to the first two messages is
/// [`skep_wire::log_shipping::LogHeld`]. The reply to `Copy` is
/// [`skep_wire::log_shipping::StoreCopied`].
#[derive(Debug, Clone)]
pub enum MemberMessage {
    /// Ships log records.
    Ship(ShipLog),
    /// Waits until the member has synced its log.
    AwaitSync(AwaitLogSync),
    /// Asks for the progress of a copy of the store, begins a copy, or sends a part of it.
    Copy(Box<CopyStore>),
}

/// Log records that the primary must read back from its log on disk, for a member that lacks them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRead {
    /// The member that lacks the records.
    pub member: TargetId,
    /// LSN of the first record.
    pub first: Lsn,
    /// LSN of the last record, which is greater than `first`. The caller may stop before this
    /// record, but must read at least two records. All these records are *safe*.
    pub last: Lsn,
}

/// The result of a [`LogRead`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundRecords {
    /// LSN of the oldest record that the log on disk still has.
    pub begins: Lsn,
    /// The records from [`LogRead::first`] on. Empty if the log begins after that record.
    pub records: Vec<Record>,
    /// Number of bytes of the log on disk after these records.
    pub bytes_after: u64,
}

/// Returns the LSN of the record after `lsn`.
fn following(lsn: Lsn) -> Lsn {
    Lsn::new(lsn.raw() + 1)
}

/// Returns the LSN of the record before `lsn`, or zero for the first record.
pub(crate) fn preceding(lsn: Lsn) -> Lsn {
    Lsn::new(lsn.raw().saturating_sub(1))
}

#[cfg(test)]
mod tests;
