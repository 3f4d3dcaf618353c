//! An operation: a request, or a piece of internal work of the target, that has not ended yet. An
//! operation contains the replies that it has received from other groups.

use skep_types::{Error, GroupId, InodeId, Result, SessionId, StripePattern};
use skep_wire::Request;
use skep_wire::frame::Header;

use crate::tx::locks::Resource;
use crate::tx::work::InternalWork;
use std::time::Duration;

/// Id of a connection, assigned by the caller of the target.
pub type ConnectionId = u64;
/// Id of a request to another group, assigned by this target.
pub type CallId = u64;

/// The origin of an operation, which gets the operation's result.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// A request. The target sends the result to the sender.
    Peer { connection: ConnectionId, header: Header },
    /// Internal work of the target. The target sends the result of internal work to no peer.
    Internal(InternalWork),
}

impl Source {
    /// Returns the trace id of the request. Zero means that the request has no trace id.
    pub(crate) fn trace(&self) -> u128 {
        match self {
            Self::Peer { header, .. } => header.trace,
            Self::Internal(_) => 0,
        }
    }
}

/// The reason why a run of an operation stops before its end.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The operation has failed, and the target drops all its writes.
    Fail(Error),
    /// The operation needs this resource, which is locked by another transaction, by a pending
    /// truncation, or by a file that becomes shared. The operation runs again when the resource is
    /// free.
    Held(Resource),
    /// As [`Self::Held`], but the operation runs again at the time `until` at the latest.
    HeldUntil { resource: Resource, until: Duration },
    /// The operation has called other groups and waits for their replies.
    AwaitsReplies,
    /// A participant was busy. The operation runs again after a pause.
    Busy,
    /// The target must first recover the size of this file. The operation runs again after a pause.
    RecoversSize(InodeId),
    /// The operation waits until a log record is *safe*: the record of reserved numbers, of the
    /// target's start, or of a change of a stripe pattern.
    Unsafe,
    /// The calls to other groups differ from the calls of an earlier run. The operation starts over
    /// without the earlier replies.
    Changed,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Fail(error)
    }
}

impl From<skep_types::ErrorCode> for Stop {
    fn from(code: skep_types::ErrorCode) -> Self {
        Self::Fail(code.into())
    }
}

/// A call of an operation to another group. A later run of the operation reuses the call and its
/// reply.
#[derive(Debug, Clone)]
pub(crate) struct RemoteCall {
    pub(crate) group: GroupId,
    pub(crate) message: u16,
    pub(crate) body: Vec<u8>,
    pub(crate) reply: Option<Result<Vec<u8>>>,
}

/// A request to another group.
#[derive(Debug, Clone)]
pub struct OutgoingCall {
    /// Group that serves the request.
    pub group: GroupId,
    /// Message number.
    pub message: u16,
    /// Version of the message's layout.
    pub message_version: u16,
    /// Body of the request.
    pub body: Vec<u8>,
    /// Trace id of the operation that waits for the reply. Zero means that the operation has no
    /// trace id.
    pub trace: u128,
}

impl OutgoingCall {
    pub(crate) fn new<R: Request>(group: GroupId, request: &R) -> Self {
        let (message, message_version, body) = (R::ID, R::VERSION, request.to_bytes());
        Self { group, message, message_version, body, trace: 0 }
    }
}

/// Values from the first reply to a request that a client replays after a power loss. The new reply
/// must have the same values, because the client has handles of the inode, and storage has its
/// chunk files.
#[derive(Debug, Clone)]
pub(crate) struct FirstReply {
    pub(crate) inode: InodeId,
    /// Whether the request created the inode.
    pub(crate) created: bool,
    /// Stripe pattern of the created file.
    pub(crate) pattern: Option<StripePattern>,
    /// Truncate generation of the file, if the request is an open that had truncated the file. Zero
    /// for any other request.
    pub(crate) truncate_generation: u64,
}

/// A request or a piece of internal work that is in progress.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) id: u64,
    pub(crate) source: Source,
    /// Connections on which retries of the same request have arrived.
    pub(crate) repetitions: Vec<(ConnectionId, Header)>,
    pub(crate) body: Vec<u8>,
    /// Calls of the operation to other groups, in the order in which it makes them.
    pub(crate) remote_calls: Vec<RemoteCall>,
    /// Id of the transaction that the operation coordinates. `None` means that the operation has
    /// asked no group to prepare steps.
    pub(crate) transaction: Option<u64>,
    /// Groups that the operation has asked to prepare steps of `transaction`.
    pub(crate) participants: Vec<GroupId>,
    /// The time until which the operation keeps this transaction while it waits for a lock of
    /// another group's transaction. `None` means that the operation has waited for no lock of
    /// another group since it last started over.
    pub(crate) keeps_until: Option<Duration>,
    /// The rename lock, if the operation has it: the id of the transaction that owns it, and
    /// the root's group, which has granted it.
    pub(crate) rename_lock: Option<(u64, GroupId)>,
    /// The time at which the operation has first run, if it reads attributes that undecided
    /// transactions change. `None` for all other operations.
    pub(crate) first_run: Option<Duration>,
    /// Number of times that the operation has restarted.
    pub(crate) restarts: u32,
    /// Number of restarts because a name led to no inode.
    pub(crate) revalidations: u32,
    /// The file whose truncation the operation has awaited since its last run. `None` means that
    /// the operation has awaited no truncation.
    pub(crate) awaited_truncation: Option<InodeId>,
    /// The first reply, if the operation replays a change. `None` for all other operations.
    pub(crate) first_reply: Option<FirstReply>,
    /// The id of the whiteout that a rename creates. All runs of the operation use the same id:
    /// another group prepares a step with this id, and a run with another id would start over.
    /// `None` until a run has chosen the id.
    pub(crate) whiteout: Option<InodeId>,
}

impl Operation {
    pub(crate) fn new(id: u64, source: Source, body: Vec<u8>) -> Self {
        Self {
            id,
            source,
            repetitions: Vec::new(),
            body,
            remote_calls: Vec::new(),
            transaction: None,
            participants: Vec::new(),
            keeps_until: None,
            rename_lock: None,
            first_run: None,
            restarts: 0,
            revalidations: 0,
            awaited_truncation: None,
            first_reply: None,
            whiteout: None,
        }
    }

    /// Returns the session that must exist for the operation to run. `None` means that the
    /// operation needs no session: the operation is internal work, or its request modifies nothing.
    pub(crate) fn session_needed(&self) -> Option<SessionId> {
        let header = self.header()?;
        let line = skep_wire::catalog::message(header.message)?;
        line.modifies.then_some(header.session)
    }

    pub(crate) fn header(&self) -> Option<&Header> {
        match &self.source {
            Source::Peer { header, .. } => Some(header),
            Source::Internal(_) => None,
        }
    }
}
