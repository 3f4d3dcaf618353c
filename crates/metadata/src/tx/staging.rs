//! The part of an operation's result that makes its transaction *staged*: the coordinator logs its
//! own changes before the participant's prepared transaction is durable.

use skep_format::metadata::{StagedEntry, StagedRecord};
use skep_types::{GroupId, Timestamp};
use skep_wire::frame::Header;

/// The participant of a transaction that becomes staged, and the change of this group.
#[derive(Debug)]
pub(crate) struct Staging {
    /// The group that has prepared steps.
    pub(crate) participant: GroupId,
    /// The time at which it has prepared them.
    pub(crate) since: Timestamp,
    /// The entry that the operation has added or removed.
    pub(crate) entry: StagedEntry,
}

impl Staging {
    /// Returns the record of the staged transaction. `request` is the header of the request that
    /// the transaction executes.
    pub(crate) fn record(&self, request: &Header) -> StagedRecord {
        StagedRecord {
            participant: self.participant,
            since: self.since,
            entry: self.entry.clone(),
            session: request.session,
            slot: request.slot,
            sequence: request.sequence,
        }
    }
}
