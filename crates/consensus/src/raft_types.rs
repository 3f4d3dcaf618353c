//! The types that the Raft library uses, and their conversion to and from records.
//!
//! Only this crate depends on the library. The layout of the records ([`skep_format::consensus`])
//! does not depend on the library.

use crate::runtime::EventLoop;
use openraft::{CommittedLeaderId, EntryPayload, Membership, Vote};
use skep_format::consensus::{
    EntryContent, LogEntry, LogPosition, MemberRecord, MembersRecord, VoteRecord,
};
use skep_types::codec::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A command of the application.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct CommandBytes(pub(crate) Vec<u8>);

impl fmt::Debug for CommandBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a command of {} bytes", self.0.len())
    }
}

/// The encoded outcome of a command. `None` means that the entry is not a command.
pub(crate) type OutcomeBytes = Option<Vec<u8>>;

/// The addresses of a member.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Addresses(pub(crate) Vec<String>);

openraft::declare_raft_types!(
    /// The types of the replicated log.
    pub(crate) Types:
        D = CommandBytes,
        R = OutcomeBytes,
        NodeId = u64,
        Node = Addresses,
        Entry = openraft::Entry<Types>,
        SnapshotData = Vec<u8>,
        AsyncRuntime = EventLoop,
);

pub(crate) type Entry = openraft::Entry<Types>;
pub(crate) type LogId = openraft::LogId<u64>;
pub(crate) type Members = Membership<u64, Addresses>;
pub(crate) type StoredMembers = openraft::StoredMembership<u64, Addresses>;
pub(crate) type SnapshotMeta = openraft::SnapshotMeta<u64, Addresses>;
pub(crate) type StorageError = openraft::StorageError<u64>;

pub(crate) fn position_of(id: &LogId) -> LogPosition {
    LogPosition { term: id.leader_id.term, leader: id.leader_id.node_id, index: id.index }
}

pub(crate) fn log_id_of(position: &LogPosition) -> LogId {
    LogId::new(CommittedLeaderId::new(position.term, position.leader), position.index)
}

pub(crate) fn record_of_vote(vote: &Vote<u64>) -> VoteRecord {
    VoteRecord {
        term: vote.leader_id.term,
        candidate: vote.leader_id.node_id,
        is_elected: vote.committed,
    }
}

pub(crate) fn vote_of(record: &VoteRecord) -> Vote<u64> {
    match record.is_elected {
        true => Vote::new_committed(record.term, record.candidate),
        false => Vote::new(record.term, record.candidate),
    }
}

pub(crate) fn record_of_members(members: &Members) -> MembersRecord {
    let voters = members.get_joint_config().iter();
    let member = |(id, addresses): (&u64, &Addresses)| MemberRecord {
        id: *id,
        addresses: addresses.0.clone(),
    };
    MembersRecord {
        voters: voters.map(|set| set.iter().copied().collect()).collect(),
        members: members.nodes().map(member).collect(),
    }
}

pub(crate) fn members_of(record: &MembersRecord) -> Members {
    let voters: Vec<BTreeSet<u64>> =
        record.voters.iter().map(|set| set.iter().copied().collect()).collect();
    let members = record.members.iter().map(|it| (it.id, Addresses(it.addresses.clone())));
    Members::new(voters, members.collect::<BTreeMap<_, _>>())
}

pub(crate) fn record_of_entry(entry: &Entry) -> LogEntry {
    let content = match &entry.payload {
        EntryPayload::Blank => EntryContent::Blank,
        EntryPayload::Normal(command) => {
            EntryContent::Command { command: Bytes(command.0.clone()) }
        }
        EntryPayload::Membership(members) => {
            EntryContent::Members { members: record_of_members(members) }
        }
    };
    LogEntry { position: position_of(&entry.log_id), content }
}

pub(crate) fn entry_of(record: LogEntry) -> Entry {
    let payload = match record.content {
        EntryContent::Blank => EntryPayload::Blank,
        EntryContent::Command { command } => EntryPayload::Normal(CommandBytes(command.0)),
        EntryContent::Members { members } => EntryPayload::Membership(members_of(&members)),
    };
    Entry { log_id: log_id_of(&record.position), payload }
}
