//! The messages between members, and their replies.
//!
//! A transport carries the messages as bytes. A member sends long snapshots and long lists of
//! entries in parts, so each message has a bounded length. The encoding permits any size and any
//! order of the entries. The receiver checks size and order ([`PeerRequest::from_peer`]), so that
//! no message from another member can damage the log.

use crate::limits::{
    MAX_ADDRESSES, MAX_COMMAND_BYTES, MAX_ENTRIES, MAX_MEMBERS, MAX_MESSAGE_BYTES, MAX_NAME_BYTES,
    MAX_SNAPSHOT_BYTES, SNAPSHOT_PART_BYTES,
};
use crate::log_contents::check_follows;
use skep_format::consensus::{EntryContent, LogEntry, LogPosition, MembersRecord, VoteRecord};
use skep_types::codec::{Bytes, Codec, choice};
use skep_types::{Error, ErrorCode, Result};

choice! {
    /// A request of one member to another.
    pub enum PeerRequest {
        /// A candidate asks for a vote.
        Vote = 1 {
            /// Term and candidate of the election.
            vote: VoteRecord,
            /// Position of the candidate's last entry.
            last: Option<LogPosition>,
        },
        /// The leader sends entries, or an empty list as a heartbeat.
        Append = 2 {
            /// Term and winner of the election of this leader.
            vote: VoteRecord,
            /// Position of the entry before the first entry of `entries`.
            before: Option<LogPosition>,
            /// The log entries to append.
            entries: Vec<LogEntry>,
            /// Position of the last entry that a majority has stored.
            committed: Option<LogPosition>,
        },
        /// The leader sends a part of a snapshot.
        Snapshot = 3 {
            /// Term and winner of the election of this leader.
            vote: VoteRecord,
            /// Position of the last entry whose effect the snapshot contains.
            last: Option<LogPosition>,
            /// Position of the log entry that contains `members`.
            members_at: Option<LogPosition>,
            /// The members of the log at the time of the snapshot.
            members: MembersRecord,
            /// Name of the snapshot.
            name: String,
            /// Offset of this part in the encoded state.
            offset: u64,
            /// Length of the encoded state, in bytes.
            total: u64,
            /// The bytes of this part of the snapshot.
            part: Bytes,
        },
    }
}

choice! {
    /// The reply to a [`PeerRequest`].
    pub enum PeerReply {
        /// The receiver has not executed the request.
        Failed = 1 {
            /// The reason why the receiver has not executed the request.
            reason: String,
        },
        /// Reply to a request for a vote.
        Voted = 2 {
            /// The vote of the member after the request.
            vote: VoteRecord,
            /// Whether the member votes for the candidate.
            is_granted: bool,
            /// Position of the member's last entry.
            last: Option<LogPosition>,
        },
        /// The member has stored the entries.
        Stored = 3,
        /// The receiver lacks the entry that precedes the entries of the request.
        Conflict = 4,
        /// The member follows a newer leader or candidate.
        HigherVote = 5 {
            /// The vote of the member.
            vote: VoteRecord,
        },
        /// The member has received a part of a snapshot, and waits for the next part.
        PartReceived = 6,
        /// The member has received all of the snapshot.
        Installed = 7 {
            /// The vote of the member.
            vote: VoteRecord,
        },
    }
}

impl PeerRequest {
    /// Decodes and checks the request of another member.
    ///
    /// # Errors
    /// `Corrupt` or `Protocol`, with the violated rule.
    pub(crate) fn from_peer(bytes: &[u8]) -> Result<Self> {
        if bytes.len() > MAX_MESSAGE_BYTES {
            return Err(broken(format!(
                "the message has {} bytes; the limit is {MAX_MESSAGE_BYTES}",
                bytes.len()
            )));
        }
        let request = Self::from_bytes(bytes)?;
        match &request {
            Self::Vote { .. } => {}
            Self::Append { vote, before, entries, .. } => check_entries(vote, *before, entries)?,
            Self::Snapshot { members, name, offset, total, part, .. } => {
                check_members(members)?;
                let end = offset.checked_add(part.0.len() as u64);
                if name.len() > MAX_NAME_BYTES
                    || part.0.len() > SNAPSHOT_PART_BYTES
                    || *total > MAX_SNAPSHOT_BYTES
                    || end.is_none_or(|end| end > *total)
                {
                    return Err(broken(format!(
                        "the message has a part of {} bytes at byte {offset} of a snapshot of \
                         {total} bytes; the limits are {SNAPSHOT_PART_BYTES} and \
                         {MAX_SNAPSHOT_BYTES}",
                        part.0.len()
                    )));
                }
            }
        }
        Ok(request)
    }
}

fn broken(what: String) -> Error {
    Error::new(ErrorCode::Protocol, what).within("cannot use the message of another member")
}

/// Checks that `entries` follow the entry at position `before`, and that no entry has a later term
/// than `vote`.
fn check_entries(
    vote: &VoteRecord,
    before: Option<LogPosition>,
    entries: &[LogEntry],
) -> Result<()> {
    if entries.len() as u64 > MAX_ENTRIES {
        return Err(broken(format!(
            "the message has {} entries; the limit is {MAX_ENTRIES}",
            entries.len()
        )));
    }
    let mut last = before;
    for LogEntry { position, content } in entries {
        if last.is_none() && position.index != 0 {
            return Err(broken(format!(
                "the first entry of the log has the index {}, not 0",
                position.index
            )));
        }
        check_follows(last, *position).map_err(|error| broken(error.to_string()))?;
        if position.term > vote.term {
            let (entry, vote) = (position.term, vote.term);
            return Err(broken(format!(
                "the leader of term {vote} sent an entry of the later term {entry}"
            )));
        }
        match content {
            EntryContent::Command { command } if command.0.len() > MAX_COMMAND_BYTES => {
                let len = command.0.len();
                return Err(broken(format!(
                    "the message has a command of {len} bytes; the limit is {MAX_COMMAND_BYTES}"
                )));
            }
            EntryContent::Members { members } => check_members(members)?,
            EntryContent::Command { .. } | EntryContent::Blank => {}
        }
        last = Some(*position);
    }
    Ok(())
}

/// Checks the number of members and of their addresses, and that each voter is a member. Before the
/// first command, a log has no voters.
fn check_members(record: &MembersRecord) -> Result<()> {
    let MembersRecord { voters, members } = record;
    let is_member = |id: &u64| members.iter().any(|member| member.id == *id);
    if members.len() > MAX_MEMBERS || voters.len() > 2 {
        let what = format!(
            "the message has {} members and {} sets of voters",
            members.len(),
            voters.len()
        );
        return Err(broken(format!("{what}; the limits are {MAX_MEMBERS} and 2")));
    }
    if voters.iter().any(|set| set.is_empty() || set.len() > MAX_MEMBERS)
        || !voters.iter().flatten().all(is_member)
    {
        return Err(broken("a set of voters is empty, or a voter is not a member".into()));
    }
    members.iter().try_for_each(|member| check_addresses(&member.addresses))
}

/// Checks the number and the lengths of the addresses of a member.
///
/// # Errors
/// `Protocol` with the limit.
pub(crate) fn check_addresses(addresses: &[String]) -> Result<()> {
    if addresses.len() > MAX_ADDRESSES || addresses.iter().any(|it| it.len() > MAX_NAME_BYTES) {
        return Err(broken(format!(
            "a member has {} addresses; the limit is {MAX_ADDRESSES} addresses with \
             {MAX_NAME_BYTES} bytes each",
            addresses.len()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use skep_format::consensus::MemberRecord;

    fn entry(term: u64, index: u64) -> LogEntry {
        let position = LogPosition { term, leader: term, index };
        LogEntry { position, content: EntryContent::Blank }
    }

    /// Returns whether a member accepts an `Append` with `entries` from the leader of term 3.
    fn is_used(before: Option<LogEntry>, entries: Vec<LogEntry>) -> bool {
        let vote = VoteRecord { term: 3, candidate: 3, is_elected: true };
        let before = before.map(|entry| entry.position);
        let request = PeerRequest::Append { vote, before, entries, committed: None };
        PeerRequest::from_peer(&request.to_bytes()).is_ok()
    }

    #[test]
    fn entries_out_of_order_are_refused() {
        assert!(is_used(None, vec![entry(1, 0), entry(1, 1), entry(3, 2)]));
        assert!(is_used(Some(entry(2, 6)), vec![entry(2, 7)]));
        assert!(is_used(Some(entry(2, 6)), Vec::new()));
        assert!(!is_used(None, vec![entry(1, 1)]), "the entry 0 is missing");
        assert!(!is_used(Some(entry(2, 6)), vec![entry(2, 8)]), "the entry 7 is missing");
        assert!(!is_used(Some(entry(2, 6)), vec![entry(1, 7)]), "terms never fall");
        assert!(!is_used(None, vec![entry(2, 0), entry(2, 0)]), "no entry appears twice");
        assert!(!is_used(None, vec![entry(4, 0)]), "a leader sends no entries of a later term");
        assert!(!is_used(Some(entry(1, u64::MAX)), vec![entry(1, 0)]));
        let mut other_leader = entry(2, 7);
        other_leader.position.leader = 9;
        assert!(!is_used(Some(entry(2, 6)), vec![other_leader]), "a term has one leader");
    }

    #[test]
    fn entries_beyond_the_limits_are_refused() {
        let many = |count| (0..count).map(|index| entry(1, index)).collect();
        assert!(is_used(None, many(MAX_ENTRIES)) && !is_used(None, many(MAX_ENTRIES + 1)));
        let long = |len| {
            let content = EntryContent::Command { command: Bytes(vec![0; len]) };
            vec![LogEntry { content, ..entry(1, 0) }]
        };
        assert!(is_used(None, long(MAX_COMMAND_BYTES)));
        assert!(!is_used(None, long(MAX_COMMAND_BYTES + 1)));
        let members = |voters: Vec<Vec<u64>>, count, addresses| {
            let member = |id| MemberRecord { id, addresses: vec!["a:1".into(); addresses] };
            let members = MembersRecord { voters, members: (0..count).map(member).collect() };
            vec![LogEntry { content: EntryContent::Members { members }, ..entry(1, 0) }]
        };
        let most = MAX_MEMBERS as u64;
        assert!(is_used(None, members(vec![vec![0, 1]], most, MAX_ADDRESSES)));
        assert!(!is_used(None, members(vec![vec![0, 1]], most + 1, 1)));
        assert!(!is_used(None, members(vec![vec![0, 1]], 2, MAX_ADDRESSES + 1)));
        assert!(!is_used(None, members(vec![vec![2]], 2, 1)), "a voter is a member");
        assert!(!is_used(None, members(vec![vec![]], 2, 1)), "a set of voters is not empty");
        let message = vec![0; MAX_MESSAGE_BYTES + 1];
        assert_eq!(PeerRequest::from_peer(&message).unwrap_err().code(), ErrorCode::Protocol);
    }

    #[test]
    fn snapshot_parts_beyond_the_limits_are_refused() {
        let is_used = |offset: u64, total: u64, len: usize| {
            let request = PeerRequest::Snapshot {
                vote: VoteRecord { term: 3, candidate: 3, is_elected: true },
                last: None,
                members_at: None,
                members: MembersRecord { voters: Vec::new(), members: Vec::new() },
                name: "3-5".into(),
                offset,
                total,
                part: Bytes(vec![0; len]),
            };
            PeerRequest::from_peer(&request.to_bytes()).is_ok()
        };
        assert!(is_used(0, 10, 10) && is_used(5, 10, 5) && is_used(0, 0, 0));
        assert!(!is_used(5, 10, 6), "a part ends within the snapshot");
        assert!(!is_used(u64::MAX, 10, 5));
        assert!(!is_used(0, MAX_SNAPSHOT_BYTES, SNAPSHOT_PART_BYTES + 1));
        assert!(!is_used(0, MAX_SNAPSHOT_BYTES + 1, 10));
    }

    proptest! {
        #[test]
        fn decoded_peer_messages_encode_to_the_same_bytes(bytes: Vec<u8>) {
            if let Ok(request) = PeerRequest::from_bytes(&bytes) {
                prop_assert_eq!(request.to_bytes(), &bytes[..]);
            }
            if let Ok(reply) = PeerReply::from_bytes(&bytes) {
                prop_assert_eq!(reply.to_bytes(), bytes);
            }
        }
    }
}
