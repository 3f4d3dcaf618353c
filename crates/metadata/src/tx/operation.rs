//! An operation: a request at work, with the replies that it has got from other groups.

use skep_types::{Error, GroupId, Result, SessionId};
use skep_wire::Request;
use skep_wire::frame::Header;

use crate::tx::locks::Resource;
use crate::tx::work::InternalWork;

/// A connection, as numbered by the caller of the target.
pub type ConnectionId = u64;
/// A request to another group, as numbered by this target.
pub type CallId = u64;

/// Where the result of an operation goes.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// To the sender of the request.
    Peer { connection: ConnectionId, header: Header },
    /// Nowhere: the target's own work.
    Internal(InternalWork),
}

/// Why an operation stops before its end.
#[derive(Debug)]
pub(crate) enum Stop {
    /// It has failed; nothing of it remains.
    Fail(Error),
    /// Another transaction holds this: run it again when that has ended.
    Held(Resource),
    /// It has called other groups and waits for a reply.
    AwaitsReplies,
    /// A participant was busy: run it again after a pause.
    Busy,
    /// It waits for the log to be synced (numbers are being reserved).
    Unsynced,
    /// It waits until storage has truncated chunk files, as these calls request.
    Truncating(Vec<OutgoingCall>),
    /// Its calls to other groups differ from those of an earlier run: run it again from scratch.
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

/// A call to another group, remembered over runs.
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
    /// The group that serves the request.
    pub group: GroupId,
    /// Message number.
    pub message: u16,
    /// Version of the message's layout.
    pub message_version: u16,
    /// Its body.
    pub body: Vec<u8>,
}

impl OutgoingCall {
    pub(crate) fn new<R: Request>(group: GroupId, request: &R) -> Self {
        Self { group, message: R::ID, message_version: R::VERSION, body: request.to_bytes() }
    }
}

/// One request on its way.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) id: u64,
    pub(crate) source: Source,
    /// The connections on which repetitions of the same request have arrived.
    pub(crate) repetitions: Vec<(ConnectionId, Header)>,
    pub(crate) body: Vec<u8>,
    /// Its calls to other groups, in order.
    pub(crate) remote_calls: Vec<RemoteCall>,
    /// The transaction that it coordinates, once it has asked a group to prepare.
    pub(crate) transaction: Option<u64>,
    /// Groups that were asked for prepared transactions under `transaction`.
    pub(crate) participants: Vec<GroupId>,
    /// The transaction that holds the rename lock at the root's group for it.
    pub(crate) rename_lock: Option<(u64, GroupId)>,
    /// The file whose chunk files it has begun to truncate.
    pub(crate) truncation: Option<skep_types::InodeId>,
    /// How often it had to start again.
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
            truncation: None,
            restarts: 0,
        }
    }

    /// The session that must exist for it to run: the session of a request that modifies something.
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
