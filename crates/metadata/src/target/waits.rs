//! The reasons why requests wait, reported to the meter of the service.
//!
//! This module owns the list of the waits that began in the batch in progress. The meter measures
//! their duration, since the target has no clock.

use crate::tx::operation::ConnectionId;
use skep_types::GroupId;

/// The reason why a request waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitReason {
    /// This target has not synced a log record.
    OwnSync,
    /// Other members of the group have not appended or synced a log record, or have not confirmed
    /// the primary's lease.
    Copies,
    /// Another target has not replied, or another request, lock or client blocks the request.
    Others,
    /// The request has waited until now for this storage group, which truncates a file or has the
    /// last bytes of a file whose writer has died.
    Storage(GroupId),
}

/// A request that begins to wait, or that waits for another reason than before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestWait {
    /// The connection on which the request arrived.
    pub connection: ConnectionId,
    /// The tag of the request.
    pub tag: u64,
    /// The reason why the request waits from now on.
    pub reason: WaitReason,
}

/// The waits that began in the batch in progress, in order of time. If a request has several
/// elements, the last element has the present reason.
#[derive(Debug, Default)]
pub(crate) struct Waits(Vec<RequestWait>);

impl Waits {
    pub(super) fn begin_batch(&mut self) {
        self.0.clear();
    }

    pub(super) fn add(&mut self, connection: ConnectionId, tag: u64, reason: WaitReason) {
        self.0.push(RequestWait { connection, tag, reason });
    }

    pub(super) fn list(&self) -> &[RequestWait] {
        &self.0
    }
}
