//! Requests to other members: turns the calls of the Raft library into messages of a [`Transport`].
//!
//! The transport owns the connections.

use crate::limits::{HEARTBEAT, MAX_APPEND_BYTES, SNAPSHOT_PART_BYTES, SNAPSHOT_PART_LIMIT};
use crate::messages::{PeerReply, PeerRequest};
use crate::raft_types::{
    Addresses, Entry, Types, log_id_of, position_of, record_of_entry, record_of_members,
    record_of_vote, vote_of,
};
use openraft::error::{
    Fatal, NetworkError, RPCError, RaftError, ReplicationClosed, StreamingError, Unreachable,
};
use openraft::network::{Backoff, RPCOption};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{OptionalSend, RaftNetwork, RaftNetworkFactory, Snapshot, Vote};
use skep_format::consensus::{EntryContent, LogEntry};
use skep_types::codec::{Bytes, Codec};
use skep_types::{Error, ErrorCode, Result};
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

/// Length in bytes of the header of an entry with a command: position, kind and command length.
const ENTRY_HEAD_BYTES: usize = 29;

/// Carries messages to other members.
pub trait Transport: 'static {
    /// Sends a request to the member `to`, and returns its reply. The reply is the result of
    /// [`crate::Member::handle`] in that member.
    ///
    /// # Errors
    /// `Disconnected` if the member cannot be reached, `TimedOut` if no reply arrives within
    /// `limit`. In both cases the member may have executed the request.
    fn call(
        &self,
        to: u64,
        addresses: &[String],
        request: Vec<u8>,
        limit: Duration,
    ) -> impl Future<Output = Result<Vec<u8>>>;
}

/// Creates a [`Peer`] for each other member.
pub(crate) struct Peers<T>(pub(crate) Rc<T>);

/// Sends requests to one other member.
pub(crate) struct Peer<T> {
    transport: Rc<T>,
    to: u64,
    addresses: Vec<String>,
}

impl<T: Transport> RaftNetworkFactory<Types> for Peers<T> {
    type Network = Peer<T>;

    async fn new_client(&mut self, to: u64, node: &Addresses) -> Peer<T> {
        Peer { transport: Rc::clone(&self.0), to, addresses: node.0.clone() }
    }
}

impl<T: Transport> Peer<T> {
    async fn call(&self, request: &PeerRequest, limit: Duration) -> Result<PeerReply> {
        let bytes = request.to_bytes();
        let reply = self.transport.call(self.to, &self.addresses, bytes, limit).await?;
        match PeerReply::from_bytes(&reply)? {
            PeerReply::Failed { reason } => Err(Error::new(ErrorCode::NotReady, reason)),
            reply => Ok(reply),
        }
    }

    async fn send_snapshot(
        &self,
        vote: &Vote<u64>,
        snapshot: &Snapshot<Types>,
    ) -> Result<Vote<u64>> {
        let state = &*snapshot.snapshot;
        let mut offset = 0;
        loop {
            let end = state.len().min(offset + SNAPSHOT_PART_BYTES);
            let request = PeerRequest::Snapshot {
                vote: record_of_vote(vote),
                last: snapshot.meta.last_log_id.as_ref().map(position_of),
                members_at: snapshot.meta.last_membership.log_id().as_ref().map(position_of),
                members: record_of_members(snapshot.meta.last_membership.membership()),
                name: snapshot.meta.snapshot_id.clone(),
                offset: offset as u64,
                total: state.len() as u64,
                part: Bytes(state[offset..end].to_vec()),
            };
            match self.call(&request, SNAPSHOT_PART_LIMIT).await? {
                PeerReply::PartReceived if end < state.len() => offset = end,
                PeerReply::Installed { vote } | PeerReply::HigherVote { vote } => {
                    return Ok(vote_of(&vote));
                }
                other => return Err(unexpected(&other)),
            }
        }
    }
}

fn unexpected(reply: &PeerReply) -> Error {
    Error::new(
        ErrorCode::Protocol,
        format!("a member sent the reply {reply:?} to a request of another kind"),
    )
}

/// Returns the longest prefix of `entries` that fits into one message. Returns the first entry even
/// if this entry alone exceeds [`MAX_APPEND_BYTES`].
fn fitting(entries: &[Entry]) -> Vec<LogEntry> {
    let mut bytes = 0;
    let mut fitting = Vec::new();
    for entry in entries.iter().map(record_of_entry) {
        bytes += match &entry.content {
            EntryContent::Command { command } => command.0.len() + ENTRY_HEAD_BYTES,
            EntryContent::Blank | EntryContent::Members { .. } => entry.to_bytes().len(),
        };
        if bytes > MAX_APPEND_BYTES && !fitting.is_empty() {
            break;
        }
        fitting.push(entry);
    }
    fitting
}

type CallError = RPCError<u64, Addresses, RaftError<u64>>;

/// Converts the error of a call to the error type of the Raft library. If the member is
/// unreachable, the library pauses before its next request to this member.
fn call_error(error: Error) -> CallError {
    match error.code() {
        ErrorCode::TimedOut => RPCError::Network(NetworkError::new(&error)),
        _ => RPCError::Unreachable(Unreachable::new(&error)),
    }
}

impl<T: Transport> RaftNetwork<Types> for Peer<T> {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> std::result::Result<AppendEntriesResponse<u64>, CallError> {
        let entries = fitting(&request.entries);
        let is_whole = entries.len() == request.entries.len();
        let last_sent = entries.last().map(|entry| log_id_of(&entry.position));
        let request = PeerRequest::Append {
            vote: record_of_vote(&request.vote),
            before: request.prev_log_id.as_ref().map(position_of),
            entries,
            committed: request.leader_commit.as_ref().map(position_of),
        };
        match self.call(&request, option.hard_ttl()).await.map_err(call_error)? {
            PeerReply::Stored if is_whole => Ok(AppendEntriesResponse::Success),
            // The Raft library sends the remaining entries in its next request.
            PeerReply::Stored => Ok(AppendEntriesResponse::PartialSuccess(last_sent)),
            PeerReply::Conflict => Ok(AppendEntriesResponse::Conflict),
            PeerReply::HigherVote { vote } => Ok(AppendEntriesResponse::HigherVote(vote_of(&vote))),
            other => Err(call_error(unexpected(&other))),
        }
    }

    async fn vote(
        &mut self,
        request: VoteRequest<u64>,
        option: RPCOption,
    ) -> std::result::Result<VoteResponse<u64>, CallError> {
        let request = PeerRequest::Vote {
            vote: record_of_vote(&request.vote),
            last: request.last_log_id.as_ref().map(position_of),
        };
        match self.call(&request, option.hard_ttl()).await.map_err(call_error)? {
            PeerReply::Voted { vote, is_granted, last } => Ok(VoteResponse {
                vote: vote_of(&vote),
                vote_granted: is_granted,
                last_log_id: last.as_ref().map(log_id_of),
            }),
            other => Err(call_error(unexpected(&other))),
        }
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote<u64>,
        snapshot: Snapshot<Types>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> std::result::Result<SnapshotResponse<u64>, StreamingError<Types, Fatal<u64>>> {
        let cancelled = async { Err(StreamingError::Closed(cancel.await)) };
        let sending = async {
            let sent = self.send_snapshot(&vote, &snapshot).await;
            sent.map(SnapshotResponse::new)
                .map_err(|error| StreamingError::Unreachable(Unreachable::new(&error)))
        };
        futures_lite::future::or(cancelled, sending).await
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(HEARTBEAT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{MAX_COMMAND_BYTES, MAX_ENTRIES, MAX_MESSAGE_BYTES};
    use crate::raft_types::entry_of;
    use skep_format::consensus::{LogPosition, VoteRecord};

    fn entry(index: u64, len: usize) -> Entry {
        let content = EntryContent::Command { command: Bytes(vec![0; len]) };
        entry_of(LogEntry { position: LogPosition { term: 1, leader: 1, index }, content })
    }

    #[test]
    fn append_message_exceeds_its_size_limit_only_for_one_entry() {
        let longest: Vec<_> =
            (0..MAX_ENTRIES).map(|index| entry(index, MAX_COMMAND_BYTES)).collect();
        let sent = fitting(&longest);
        assert_eq!(sent.len(), 1, "two entries with their heads are longer than the limit");
        let half: Vec<_> = (0..64).map(|index| entry(index, MAX_COMMAND_BYTES / 2)).collect();
        assert_eq!(fitting(&half).len(), 3);
        let short: Vec<_> = (0..64).map(|index| entry(index, 100)).collect();
        assert_eq!(fitting(&short).len(), 64);
        let entries = fitting(&half);
        assert_eq!(fitting(&short)[0].to_bytes().len(), 100 + ENTRY_HEAD_BYTES);
        let vote = VoteRecord { term: 1, candidate: 1, is_elected: true };
        let request = PeerRequest::Append { vote, before: None, entries, committed: None };
        let bytes = request.to_bytes();
        assert!(bytes.len() <= MAX_MESSAGE_BYTES);
        assert_eq!(PeerRequest::from_peer(&bytes).unwrap(), request);
    }
}
