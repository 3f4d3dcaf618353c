//! An operation: a request in progress, with the replies that it has received from other groups.

use skep_types::{Error, GroupId, Result, SessionId};
use skep_wire::Request;
use skep_wire::frame::Header;

use crate::tx::locks::Resource;
use crate::tx::work::InternalWork;

/// Number of a connection, assigned by the caller of the target.
pub type ConnectionId = u64;
/// Number of a request to another group, assigned by this target.
pub type CallId = u64;

/// The origin of an operation, to which its result goes.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// A request; the result goes to its sender.
    Peer { connection: ConnectionId, header: Header },
    /// The target's internal work; the result goes nowhere.
    Internal(InternalWork),
}

impl Source {
    /// Returns the trace id of the request. Zero means none.
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
    /// This resource is locked: by another transaction, by a pending truncation, or until clients
    /// have acknowledged a notification. The operation runs again when the resource is free.
    Held(Resource),
    /// The operation has called other groups and waits for a reply.
    AwaitsReplies,
    /// A participant was busy. The operation runs again after a pause.
    Busy,
    /// The operation waits until the log record of reserved numbers, or of the target's start, is
    /// safe.
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

/// A call to another group, remembered over the runs of an operation.
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
    /// Trace id of the operation that waits for the reply. Zero means none.
    pub trace: u128,
}

impl OutgoingCall {
    pub(crate) fn new<R: Request>(group: GroupId, request: &R) -> Self {
        let (message, message_version, body) = (R::ID, R::VERSION, request.to_bytes());
        Self { group, message, message_version, body, trace: 0 }
    }
}

/// A request in progress.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) id: u64,
    pub(crate) source: Source,
    /// Connections on which retries of the same request have arrived.
    pub(crate) repetitions: Vec<(ConnectionId, Header)>,
    pub(crate) body: Vec<u8>,
    /// Calls of the operation to other groups, in order.
    pub(crate) remote_calls: Vec<RemoteCall>,
    /// Number of the transaction that the operation coordinates; `None` means that it has asked no
    /// group to prepare.
    pub(crate) transaction: Option<u64>,
    /// Groups that were asked to prepare steps of `transaction`.
    pub(crate) participants: Vec<GroupId>,
    /// Number of the transaction that holds the rename lock for the operation, and the root's
    /// group.
    pub(crate) rename_lock: Option<(u64, GroupId)>,
    /// Number of times that the operation has started over.
    pub(crate) restarts: u32,
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
            rename_lock: None,
            restarts: 0,
        }
    }

    /// Returns the session that must exist for the operation to run. Only a request that modifies
    /// something needs a session.
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
