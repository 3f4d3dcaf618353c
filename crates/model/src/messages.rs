//! The messages between the members, and the network.
//!
//! A request and its reply normally arrive immediately, or the request or the reply is lost. The
//! network may delay one message at a time, and deliver this message after other messages or never.
//! In the same way, the network may delay a request to management that would make its sender the
//! only serving member.

use crate::log::{Index, Log, Progress};

/// A request of the primary (`ShipLog`), with the records of `log` after the record `before`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Request {
    /// The primary that sends the request.
    pub primary: Index,
    /// Epoch of the sender.
    pub epoch: u8,
    /// Index of the record before the first record of the request.
    pub before: u8,
    /// The sender's log up to the last record of the request.
    pub log: Log,
    /// Last record of the sender.
    pub last: u8,
    /// Last record that is safe.
    pub safe: u8,
    /// Whether the request is addressed to the present process of the receiver.
    pub names_process: bool,
    /// Whether the sender still waits for the end of the leases of earlier primaries.
    pub waits: bool,
    /// Whether an acknowledgement of this request still grants a lease. The lease begins when the
    /// primary sends the request, so the lease may end before a late acknowledgement.
    pub is_fresh: bool,
    /// Whether the process that has sent the request still exists. `false` means that the reply
    /// will be lost.
    pub has_sender: bool,
}

/// The reply of a member (`LogHeld`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reply {
    /// Epoch of the request.
    pub epoch: u8,
    /// Whether the process that has sent the reply still exists.
    pub has_sender: bool,
    /// The records that the member has and that it has compared in this epoch.
    pub progress: Progress,
    /// Whether the member lacks the record before the first record of the request, so that the
    /// member appended none of the records.
    pub is_behind: bool,
    /// Whether the lease that this reply grants has not ended yet.
    pub grants: bool,
}

/// A message that the network has delayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LateMessage {
    /// A request to the member `to`.
    Request {
        /// The member that receives the request.
        to: Index,
        /// The content of the request.
        request: Request,
    },
    /// A reply of the member `from` to the member `to`.
    Reply {
        /// The member that sends the reply.
        from: Index,
        /// The member that receives the reply.
        to: Index,
        /// The content of the reply.
        reply: Reply,
    },
}

/// A request to management that waits in the network, in a queue of management, or in the log of a
/// previous leader. Management carries out this change only if the group is still in the epoch of
/// the request. So a second arrival of the same request has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LateChange {
    /// The request of this backup member to become the primary.
    TakeOver(Index),
    /// The request of the primary to drop this member.
    Drop(Index),
}

impl LateMessage {
    /// Notes that the promises of a member have ended, together with the leases that the member has
    /// granted.
    pub fn end_promise(&mut self, member: Index) {
        match self {
            Self::Request { to, request } if *to == member => request.is_fresh = false,
            Self::Reply { from, reply, .. } if *from == member => reply.grants = false,
            _ => {}
        }
    }

    /// Notes that the process of a member has ended. Returns `false` if the message is a reply to
    /// this process. The reply is then lost.
    pub fn end_process(&mut self, member: Index) -> bool {
        match self {
            Self::Request { to, request } => {
                request.names_process &= *to != member;
                request.has_sender &= request.primary != member;
            }
            Self::Reply { from, to, reply } => {
                reply.has_sender &= *from != member;
                return *to != member;
            }
        }
        true
    }
}
