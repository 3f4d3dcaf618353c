//! One member of a replicated log: proposes commands, answers other members, and adds and removes
//! members.
//!
//! This module is not responsible for files, timers or connections.

mod failures;

use crate::limits::{
    ENTRIES_KEPT, ENTRIES_PER_SNAPSHOT, HEARTBEAT, MAX_COMMAND_BYTES, MAX_ELECTION, MAX_ENTRIES,
    MAX_MEMBERS, MIN_ELECTION, SNAPSHOT_PART_LIMIT,
};
use crate::log_file::LogFile;
use crate::log_store::LogStore;
use crate::messages::{PeerReply, PeerRequest, check_addresses};
use crate::peers::{Peers, Transport};
use crate::raft_types::{
    Addresses, CommandBytes, SnapshotMeta, StoredMembers, Types, entry_of, log_id_of, members_of,
    position_of, record_of_vote, vote_of,
};
use crate::state_store::{StateMachine, StateStore, write_snapshot};
use failures::{ended, not_leader, propose_error, remote_error};
use openraft::error::{CheckIsLeaderError, Fatal, RaftError};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, VoteRequest};
use openraft::{Config, Raft, Snapshot, SnapshotPolicy};
use skep_format::consensus::{LogPosition, MemberRecord, MembersRecord, VoteRecord};
use skep_types::codec::Codec;
use skep_types::{ClusterId, Error, ErrorCode, Result};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

/// The directory, the cluster and the id of a member.
#[derive(Debug, Clone)]
pub struct MemberSettings {
    /// Directory with the files of the log.
    pub directory: PathBuf,
    /// The cluster to which the log belongs.
    pub cluster: ClusterId,
    /// Id of the member. The directory belongs to this id for ever. A member with an emptied
    /// directory needs a new id, because with its old id the member could vote twice in one
    /// election.
    pub id: u64,
}

/// The reason why the log has not executed a command, or why the member cannot determine whether
/// the log has executed the command.
#[derive(Debug)]
pub enum ProposeError {
    /// This member is not the leader, and the log has not executed the command.
    NotLeader {
        /// The leader. `None` means that this member has received no message of a leader since the
        /// last election.
        leader: Option<u64>,
        /// Addresses of the leader. Empty if `leader` is `None`.
        addresses: Vec<String>,
    },
    /// The member refused the command, and has not proposed it.
    Refused(Error),
    /// The member has ended. The other members may have executed the command, or may still execute
    /// it. So the sender must repeat the command under the same id.
    Unknown(Error),
}

/// The state of a replicated log, according to one member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogStatus {
    /// The newest term in the messages that the member has received.
    pub term: u64,
    /// The leader in this term. This field is `None` while the member has no leader.
    pub leader: Option<u64>,
    /// Index of the last entry that the member has stored.
    pub last: u64,
    /// Index of the last entry that the member has applied.
    pub applied: u64,
    /// All members, in ascending order of their ids.
    pub members: Vec<MemberStatus>,
}

/// The state of a member of a replicated log, according to another member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberStatus {
    /// Id of the member.
    pub id: u64,
    /// Addresses of the member.
    pub addresses: Vec<String>,
    /// Whether the member votes. A member without a vote only receives the log.
    pub is_voter: bool,
    /// Index of the last entry that the member has stored. Only the leader has this index of other
    /// members.
    pub stored: Option<u64>,
}

/// The parts of a snapshot that have arrived from the leader.
struct Arriving {
    vote: VoteRecord,
    name: String,
    /// Length of the whole state, in bytes.
    total: u64,
    state: Vec<u8>,
}

/// A member of a replicated log.
pub struct Member<S> {
    raft: Raft<Types>,
    id: u64,
    state: StateStore<S>,
    log: LogStore,
    /// The snapshot that the leader is sending. A part with offset zero begins a new snapshot.
    arriving: RefCell<Option<Arriving>>,
}

fn config(cluster: ClusterId) -> Config {
    let ms = |span: std::time::Duration| span.as_millis() as u64;
    Config {
        cluster_name: cluster.to_string(),
        heartbeat_interval: ms(HEARTBEAT),
        election_timeout_min: ms(MIN_ELECTION),
        election_timeout_max: ms(MAX_ELECTION),
        install_snapshot_timeout: ms(SNAPSHOT_PART_LIMIT),
        max_payload_entries: MAX_ENTRIES,
        replication_lag_threshold: ENTRIES_PER_SNAPSHOT,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(ENTRIES_PER_SNAPSHOT),
        max_in_snapshot_log_to_keep: ENTRIES_KEPT,
        ..Config::default()
    }
}

impl<S: StateMachine> Member<S> {
    /// Creates the files of a new member in a directory without a member. The start of an existing
    /// member must never create missing files, because the member could then vote twice in one
    /// election.
    ///
    /// # Errors
    /// - `Configuration` if the directory has a member.
    /// - Errors of the file system.
    pub fn create(settings: &MemberSettings) -> Result<()> {
        let MemberSettings { directory, cluster, id } = settings;
        LogFile::create(directory, *cluster, *id)
    }

    /// Creates the files of the only member of a new replicated log. The log begins with the state
    /// `machine` and the index `first`. The member is the leader as soon as [`Self::open`] has
    /// opened it.
    ///
    /// # Errors
    /// - `Configuration` if the directory has a member.
    /// - `TooLarge` if the state is too long for a snapshot.
    /// - `Protocol` if there are too many addresses.
    /// - Errors of the file system.
    pub fn found(
        settings: &MemberSettings,
        addresses: Vec<String>,
        (first, machine): (u64, &S),
    ) -> Result<()> {
        let MemberSettings { directory, cluster, id } = settings;
        check_addresses(&addresses)?;
        let first = LogPosition { term: 1, leader: *id, index: first };
        LogFile::refuse_existing(directory)?;
        let members = MembersRecord {
            voters: vec![vec![*id]],
            members: vec![MemberRecord { id: *id, addresses }],
        };
        write_snapshot(directory, (*cluster, first), members, machine)?;
        LogFile::found(directory, *cluster, first)
    }

    /// Opens the files of a member and takes part in the replicated log. `machine` is the state
    /// before the first command.
    ///
    /// # Errors
    /// - `Corrupt` with the path of the file if a file is damaged or missing.
    /// - `Corrupt` if log and snapshot do not belong together.
    /// - `Configuration` if the directory belongs to another member or cluster.
    /// - Errors of the file system.
    pub async fn open(
        settings: &MemberSettings,
        machine: S,
        transport: impl Transport,
    ) -> Result<Self> {
        let MemberSettings { directory, cluster, id } = settings;
        let mut log = LogFile::open(directory, *cluster, *id)?;
        let state = StateStore::open(directory, *cluster, machine)?;
        log.join_snapshot(state.snapshot_position())?;
        let log = LogStore::new(log, state.snapshot_end());
        let file = log.clone();
        let config = config(*cluster).validate();
        let config = Arc::new(config.expect("the limits are in order"));
        let peers = Peers(Rc::new(transport));
        let raft = Raft::new(*id, config, peers, log, state.clone()).await;
        let raft = raft.map_err(|error| ended(&error))?;
        // Before the first report of its metrics, the Raft library shows no members. So wait for
        // this report.
        if raft.metrics().changed().await.is_err() {
            return Err(ended(&Fatal::Stopped));
        }
        Ok(Self { raft, id: *id, state, log: file, arriving: RefCell::new(None) })
    }

    /// Proposes a command. Returns its outcome after a majority has stored the command and this
    /// member has applied it.
    ///
    /// # Errors
    /// See [`ProposeError`].
    pub async fn propose(&self, command: Vec<u8>) -> std::result::Result<Vec<u8>, ProposeError> {
        if command.len() > MAX_COMMAND_BYTES {
            let what = format!(
                "cannot store a command of {} bytes: the limit is {MAX_COMMAND_BYTES}",
                command.len()
            );
            return Err(ProposeError::Refused(Error::new(ErrorCode::TooLarge, what)));
        }
        self.log.reserve().map_err(ProposeError::Refused)?;
        match self.raft.client_write(CommandBytes(command)).await {
            Ok(written) => Ok(written.data.expect("a command has an outcome")),
            Err(error) => Err(propose_error(error)),
        }
    }

    /// Returns after a majority has confirmed that this member is still the leader, and after this
    /// member has applied all commands that were committed before the call.
    ///
    /// # Errors
    /// - `NotLeader` if this member is not the leader.
    /// - `Refused` if no majority has replied in time.
    /// - `Unknown` if the member has ended.
    pub async fn confirm(&self) -> std::result::Result<(), ProposeError> {
        match self.raft.ensure_linearizable().await {
            Ok(_) => Ok(()),
            Err(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(forward))) => {
                Err(not_leader(forward))
            }
            Err(RaftError::APIError(CheckIsLeaderError::QuorumNotEnough(missing))) => {
                let what = format!("no majority of the members replies: {missing}");
                Err(ProposeError::Refused(Error::new(ErrorCode::NotReady, what)))
            }
            Err(RaftError::Fatal(error)) => Err(ProposeError::Unknown(ended(&error))),
        }
    }

    /// Copies the log to a new member, and then makes the member a voter.
    ///
    /// # Errors
    /// See [`ProposeError`]. The caller may repeat the call.
    pub async fn add_member(
        &self,
        id: u64,
        addresses: Vec<String>,
    ) -> std::result::Result<(), ProposeError> {
        check_addresses(&addresses).map_err(ProposeError::Refused)?;
        let members = self.members();
        if members.len() >= MAX_MEMBERS && !members.contains(&id) {
            let what = format!(
                "cannot add member {id}: there are {} members, and the limit is {MAX_MEMBERS}; \
                 remove another member first",
                members.len()
            );
            return Err(ProposeError::Refused(Error::new(ErrorCode::LimitReached, what)));
        }
        let learned = self.raft.add_learner(id, Addresses(addresses), true).await;
        learned.map_err(propose_error)?;
        let voters = openraft::ChangeMembers::AddVoterIds(BTreeSet::from([id]));
        self.raft.change_membership(voters, false).await.map(drop).map_err(propose_error)
    }

    /// Replaces the addresses of a member.
    ///
    /// # Errors
    /// See [`ProposeError`]. The caller may repeat the call.
    pub async fn set_addresses(
        &self,
        id: u64,
        addresses: Vec<String>,
    ) -> std::result::Result<(), ProposeError> {
        check_addresses(&addresses).map_err(ProposeError::Refused)?;
        let nodes = BTreeMap::from([(id, Addresses(addresses))]);
        let change = openraft::ChangeMembers::SetNodes(nodes);
        self.raft.change_membership(change, false).await.map(drop).map_err(propose_error)
    }

    /// Removes a member.
    ///
    /// # Errors
    /// See [`ProposeError`]. The caller may repeat the call.
    pub async fn remove_member(&self, id: u64) -> std::result::Result<(), ProposeError> {
        let voters = openraft::ChangeMembers::RemoveVoters(BTreeSet::from([id]));
        self.raft.change_membership(voters, false).await.map(drop).map_err(propose_error)
    }

    /// Returns the member that this member considers the leader. Another member may already have
    /// replaced that leader.
    pub fn leader(&self) -> Option<u64> {
        self.raft.metrics().borrow().current_leader
    }

    /// Returns the addresses of the member that this member considers the leader. An empty list
    /// means that this member has received no message of a leader since the last election began.
    pub fn leader_addresses(&self) -> Vec<String> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        let mut members = metrics.membership_config.nodes();
        let leader = members.find(|(id, _)| Some(**id) == metrics.current_leader);
        leader.map_or_else(Vec::new, |(_, addresses)| addresses.0.clone())
    }

    /// Returns the ids of the members that vote, in ascending order.
    pub fn voters(&self) -> Vec<u64> {
        self.raft.metrics().borrow().membership_config.voter_ids().collect()
    }

    /// Whether this member is the only voter.
    pub fn is_only_voter(&self) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        let mut voters = metrics.membership_config.voter_ids();
        (voters.next(), voters.next()) == (Some(self.id), None)
    }

    /// Returns the ids of all members in ascending order, including members that do not vote yet.
    fn members(&self) -> Vec<u64> {
        let metrics = self.raft.metrics();
        metrics.borrow().membership_config.nodes().map(|(id, _)| *id).collect()
    }

    /// Returns the state of the replicated log, according to this member.
    pub fn status(&self) -> LogStatus {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        let config = &metrics.membership_config;
        let voters: BTreeSet<u64> = config.voter_ids().collect();
        let last = metrics.last_log_index.unwrap_or_default();
        let stored = |id: u64| match (&metrics.replication, id == self.id) {
            (_, true) => Some(last),
            (Some(replication), _) => replication.get(&id).copied().flatten().map(|it| it.index),
            (None, _) => None,
        };
        let member = |(id, addresses): (&u64, &Addresses)| MemberStatus {
            id: *id,
            addresses: addresses.0.clone(),
            is_voter: voters.contains(id),
            stored: stored(*id),
        };
        LogStatus {
            term: metrics.current_term,
            leader: metrics.current_leader,
            last,
            applied: metrics.last_applied.map_or(0, |applied| applied.index),
            members: config.nodes().map(member).collect(),
        }
    }

    /// Waits until [`Self::status`] has changed.
    pub async fn status_changed(&self) {
        let mut metrics = self.raft.metrics();
        metrics.borrow_and_update();
        if metrics.changed().await.is_err() {
            // The task of the Raft library has ended. `failure` reports this, so this future never
            // completes.
            std::future::pending().await
        }
    }

    /// Waits until the member has ended because of a failure to write its files or to apply a
    /// command. Returns the reason.
    pub async fn failure(&self) -> Error {
        let mut metrics = self.raft.metrics();
        loop {
            if let Err(error) = &metrics.borrow_and_update().running_state {
                return ended(error);
            }
            if metrics.changed().await.is_err() {
                return ended(&Fatal::Stopped);
            }
        }
    }

    /// Calls `read` with the state machine. The state machine has applied all commands up to the
    /// commit index of this member.
    pub fn with_state<T>(&self, read: impl FnOnce(&S) -> T) -> T {
        self.state.with(read)
    }

    /// Handles the request of another member, and returns the reply.
    pub async fn handle(&self, request: &[u8]) -> Vec<u8> {
        let reply = match PeerRequest::from_peer(request) {
            Ok(request) => self.reply(request).await,
            Err(error) => Err(error),
        };
        reply.unwrap_or_else(|error| PeerReply::Failed { reason: error.to_string() }).to_bytes()
    }

    async fn reply(&self, request: PeerRequest) -> Result<PeerReply> {
        match request {
            PeerRequest::Vote { vote, last } => {
                let last = last.as_ref().map(log_id_of);
                let voted = self.raft.vote(VoteRequest::new(vote_of(&vote), last)).await;
                let voted = voted.map_err(|error| remote_error(&error))?;
                Ok(PeerReply::Voted {
                    vote: record_of_vote(&voted.vote),
                    is_granted: voted.vote_granted,
                    last: voted.last_log_id.as_ref().map(position_of),
                })
            }
            PeerRequest::Append { vote, before, entries, committed } => {
                let request = AppendEntriesRequest {
                    vote: vote_of(&vote),
                    prev_log_id: before.as_ref().map(log_id_of),
                    entries: entries.into_iter().map(entry_of).collect(),
                    leader_commit: committed.as_ref().map(log_id_of),
                };
                let appended = self.raft.append_entries(request).await;
                Ok(match appended.map_err(|error| remote_error(&error))? {
                    AppendEntriesResponse::Success => PeerReply::Stored,
                    AppendEntriesResponse::Conflict => PeerReply::Conflict,
                    AppendEntriesResponse::HigherVote(vote) => {
                        PeerReply::HigherVote { vote: record_of_vote(&vote) }
                    }
                    AppendEntriesResponse::PartialSuccess(_) => {
                        let what = "cannot reply to a request that has log entries: the Raft \
                                    library has stored only a part of the entries";
                        return Err(Error::new(ErrorCode::Protocol, what));
                    }
                })
            }
            PeerRequest::Snapshot {
                vote,
                last,
                members_at,
                members,
                name,
                offset,
                total,
                part,
            } => {
                let arrived = Arriving { vote, name: name.clone(), total, state: part.0 };
                let Some(state) = self.note_part(arrived, offset)? else {
                    return Ok(PeerReply::PartReceived);
                };
                let members_at = members_at.as_ref().map(log_id_of);
                let meta = SnapshotMeta {
                    last_log_id: last.as_ref().map(log_id_of),
                    last_membership: StoredMembers::new(members_at, members_of(&members)),
                    snapshot_id: name,
                };
                let snapshot = Snapshot { meta, snapshot: Box::new(state) };
                let installed = self.raft.install_full_snapshot(vote_of(&vote), snapshot).await;
                let installed = installed.map_err(|error| ended(&error))?;
                Ok(PeerReply::Installed { vote: record_of_vote(&installed.vote) })
            }
        }
    }

    /// Adds a part to the arriving snapshot. Returns the whole state if `part` was the last part.
    fn note_part(&self, part: Arriving, offset: u64) -> Result<Option<Vec<u8>>> {
        let mut arriving = self.arriving.borrow_mut();
        match &mut *arriving {
            slot if offset == 0 => *slot = Some(part),
            Some(former)
                if (former.vote, &former.name, former.total)
                    == (part.vote, &part.name, part.total)
                    && former.state.len() as u64 == offset =>
            {
                former.state.extend(part.state);
            }
            _ => {
                let what = format!(
                    "cannot accept the part at {offset} of snapshot {}: the parts before this part \
                     are missing",
                    part.name
                );
                return Err(Error::new(ErrorCode::Protocol, what));
            }
        }
        let is_complete = |it: &mut Arriving| it.state.len() as u64 >= it.total;
        Ok(arriving.take_if(is_complete).map(|it| it.state))
    }

    /// Whether the member has ended: the member could not write its files or apply a command, or
    /// the caller has called [`Self::end`].
    pub fn has_ended(&self) -> bool {
        self.raft.metrics().borrow().running_state.is_err()
    }

    /// Ends this member. If this member was the leader, the other members elect another leader.
    pub async fn end(&self) {
        // The call fails only if the task of the Raft library panicked, and a panic ends the
        // process.
        let _always_ok = self.raft.shutdown().await;
    }
}
