//! Shipping of a group's log: the primary sends each record to the other serving members, which
//! append, sync and store it (`docs/design/0014-metadata-groups.md`, "Shipping").
//!
//! Pure state machines, without clock, sockets and files:
//!
//! - `shipper`: the part of the primary. It belongs to [`crate::target::MetadataTarget`].
//! - `member_link`: the primary's connection with one member: progress, requests under way.
//! - [`backup`]: the role of a member that is not the primary.
//! - `standing`: the part of a member in the group, as the primary sees it.
//! - `own_group`, `silence`, `sync_waits`: the backup's view of its group, the time since its
//!   primary sent something, and requests that wait for a sync.
//! - `record_window`: consecutive records in memory, which both roles keep.
//!
//! Does not own the gates that wait for the members (`target::gates`), the sending of requests
//! ([`crate::service`]), and the decision which member is the primary (management).

pub mod backup;
pub(crate) mod member_link;
mod own_group;
pub(crate) mod record_window;
pub(crate) mod shipper;
mod silence;
mod standing;
mod sync_waits;

use skep_types::{Lsn, TargetId};
use skep_wire::log_shipping::{AwaitLogSync, ShipLog};

/// The progress of one member.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Last record that the member has appended.
    pub(crate) appended: Lsn,
    /// Last record that the member has synced.
    pub(crate) synced: Lsn,
}

impl Progress {
    /// Returns the larger value of each field: messages about progress may overtake each other.
    pub(crate) fn max(self, other: Self) -> Self {
        Self { appended: self.appended.max(other.appended), synced: self.synced.max(other.synced) }
    }
}

/// A request of the primary to another member of its group. The reply to both is
/// [`skep_wire::log_shipping::LogHeld`].
#[derive(Debug, Clone)]
pub struct MemberRequest {
    /// The member.
    pub member: TargetId,
    /// Number of the request, for [`crate::target::Event::MemberReply`].
    pub number: u64,
    /// The request.
    pub message: MemberMessage,
}

/// The messages that a primary sends to other members.
#[derive(Debug, Clone)]
pub enum MemberMessage {
    /// Ships records.
    Ship(ShipLog),
    /// Waits for a sync.
    AwaitSync(AwaitLogSync),
}

/// Returns the number of the record after `lsn`.
fn following(lsn: Lsn) -> Lsn {
    Lsn::new(lsn.raw() + 1)
}

/// Returns the number of the record before `lsn`, or zero for the first record.
pub(crate) fn preceding(lsn: Lsn) -> Lsn {
    Lsn::new(lsn.raw().saturating_sub(1))
}

#[cfg(test)]
mod tests;
