//! The interface of the state machine: its events and its actions.

use crate::shipping::{FoundRecords, LogRead, MemberRequest};
use crate::tx::operation::{CallId, ConnectionId, OutgoingCall};
use skep_types::group_change::GroupChange;
use skep_types::{ClusterMap, Epoch, Lsn, NodeId, Result, TargetId};
use skep_wire::frame::Header;
use skep_wire::log_shipping::{LogHeld, StoreCopied};
use skep_wire::management::AskTakeOver;
use std::sync::Arc;

/// An input of the state machine.
#[derive(Debug)]
pub enum Event {
    /// A request has arrived.
    Request {
        /// Connection on which the request arrived. The target sends the reply on this connection.
        connection: ConnectionId,
        /// Header of the request.
        header: Header,
        /// Body of the request.
        body: Vec<u8>,
    },
    /// Another group has replied to a call, or has finally refused it.
    Answer {
        /// Id of the call.
        call: CallId,
        /// Body of the reply, or the final refusal.
        result: Result<Vec<u8>>,
    },
    /// A sync of the log has ended.
    Synced {
        /// Last log record that is synced.
        lsn: Lsn,
    },
    /// Another member of the group has replied to a request of [`Action::SendToMember`], or the
    /// request has failed. The target then sends another request if the member lacks records.
    MemberReply {
        /// The member to which the target sent the request.
        member: TargetId,
        /// Id of the request.
        number: u64,
        /// The member's progress with the log. The target ignores progress of another epoch than
        /// its own.
        result: Result<LogHeld>,
    },
    /// Another member of the group has replied to a request about a copy of the store, or the
    /// request has failed.
    CopyReply {
        /// The member to which the target sent the request.
        member: TargetId,
        /// Id of the request.
        number: u64,
        /// The progress of the member's copy.
        result: Result<StoreCopied>,
    },
    /// A read of old log records for another member has ended.
    LogRead {
        /// The member that needs the old records.
        member: TargetId,
        /// LSN of the first record that the target requested in [`Action::ReadLog`].
        first: Lsn,
        /// The records. If the read has failed, the member gets a copy of the store.
        result: Result<FoundRecords>,
    },
    /// A new cluster map has arrived.
    Map(Arc<ClusterMap>),
    /// A checkpoint is complete.
    Checkpointed {
        /// Last log record whose changes are in the checkpoint of the engine.
        lsn: Lsn,
    },
    /// The caller has measured the free space on the disk of the log and the engine.
    FreeSpace {
        /// `None` means that there is enough free space. With a message, until the next `FreeSpace`
        /// event, the target refuses the requests that need space, with this message as the error.
        /// The message names a way to free space.
        shortage: Option<String>,
    },
    /// Time has passed since the last event.
    Tick,
}

/// An output of the state machine. The caller must perform the actions of a batch in order.
#[derive(Debug)]
pub enum Action {
    /// Append a record to the log before any later action of the same batch, because these actions
    /// rely on the record.
    Append {
        /// Epoch of the group.
        epoch: Epoch,
        /// LSN of the record.
        lsn: Lsn,
        /// Last record that this target had synced when it created this record.
        synced: Lsn,
        /// Contents of the record.
        payload: Vec<u8>,
    },
    /// Durably remove all log records after `after`, so that they do not reappear after a power
    /// loss. Only a backup member returns this action, and never while a sync is running.
    Truncate {
        /// Last log record that stays.
        after: Lsn,
    },
    /// Send one request to another member of the group, without retries. After the reply, report
    /// [`Event::MemberReply`], or [`Event::CopyReply`] for
    /// [`crate::shipping::MemberMessage::Copy`].
    SendToMember(MemberRequest),
    /// Read records back from the log, then report [`Event::LogRead`]. Only a primary returns this
    /// action.
    ReadLog(LogRead),
    /// Sync the log, then report [`Event::Synced`].
    Sync {
        /// Last log record to sync.
        lsn: Lsn,
    },
    /// Send a reply.
    Reply {
        /// Connection of the request.
        connection: ConnectionId,
        /// Header of the request.
        request: Header,
        /// Body of the reply, or the refusal.
        result: Result<Vec<u8>>,
    },
    /// Send a request to another group, and retry it until there is a reply or a final refusal. The
    /// caller then reports [`Event::Answer`].
    Call {
        /// Id of the call.
        call: CallId,
        /// The request to the group.
        request: OutgoingCall,
    },
    /// Ask management to remove a client from the cluster map, because the client has not renewed
    /// its lease. The target repeats this action until [`Event::Map`] brings a map without the
    /// client.
    Evict {
        /// The client to remove.
        client: NodeId,
        /// Keep the client if management receives its heartbeats.
        unless_heard: bool,
    },
    /// Send management one request for a change of the group, without retries. The change either
    /// drops a member that does not confirm records, or marks a member as in sync because it has
    /// all records. The target repeats this action until [`Event::Map`] brings a map with another
    /// epoch.
    ChangeGroup(GroupChange),
    /// Send management one request to make this member the primary, without retries. The caller
    /// adds the recorded state of the group. Only a backup member returns this action, and repeats
    /// it until [`Event::Map`] brings a map with another epoch.
    AskTakeOver(AskTakeOver),
    /// Make the current state of the engine durable, then report [`Event::Checkpointed`].
    Checkpoint {
        /// Last log record whose changes are in the engine.
        lsn: Lsn,
    },
}

impl Action {
    /// Returns the approximate number of bytes that the action adds to the log.
    pub(crate) fn logged_bytes(&self) -> u64 {
        match self {
            Self::Append { payload, .. } => payload.len() as u64,
            _ => 0,
        }
    }
}
