//! The messages between members, and their replies.
//!
//! A transport carries them as bytes. Each message has a bounded length: entries and snapshots are
//! sent in parts.

use skep_format::consensus::{LogEntry, LogPosition, MembersRecord, VoteRecord};
use skep_types::codec::{Bytes, choice};

choice! {
    /// A request of one member to another.
    pub enum PeerRequest {
        /// A candidate asks for a vote.
        Vote = 1 {
            /// The election.
            vote: VoteRecord,
            /// Position of the candidate's last entry.
            last: Option<LogPosition>,
        },
        /// The leader sends entries, or none to show that it lives.
        Append = 2 {
            /// The election that the leader has won.
            vote: VoteRecord,
            /// Position of the entry before the first one of `entries`.
            before: Option<LogPosition>,
            /// The entries.
            entries: Vec<LogEntry>,
            /// Position of the last entry that a majority has stored.
            committed: Option<LogPosition>,
        },
        /// The leader sends a part of a snapshot.
        Snapshot = 3 {
            /// The election that the leader has won.
            vote: VoteRecord,
            /// Position of the last entry whose effect the snapshot contains.
            last: Option<LogPosition>,
            /// Position of the entry with the members.
            members_at: Option<LogPosition>,
            /// The members.
            members: MembersRecord,
            /// Name of the snapshot.
            name: String,
            /// Offset of this part in the state.
            offset: u64,
            /// Length of the state, in bytes.
            total: u64,
            /// The bytes of this part.
            part: Bytes,
        },
    }
}

choice! {
    /// The reply to a [`PeerRequest`].
    pub enum PeerReply {
        /// The request was not executed.
        Failed = 1 {
            /// The reason.
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
        /// The member lacks the entry before the first one.
        Conflict = 4,
        /// The member follows a newer leader or candidate.
        HigherVote = 5 {
            /// The vote of the member.
            vote: VoteRecord,
        },
        /// The member has received a part of a snapshot, and waits for the next one.
        PartReceived = 6,
        /// The member has received all of the snapshot.
        Installed = 7 {
            /// The vote of the member.
            vote: VoteRecord,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use skep_types::codec::Codec;

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic_and_decoded_ones_encode_back(bytes: Vec<u8>) {
            if let Ok(request) = PeerRequest::from_bytes(&bytes) {
                prop_assert_eq!(request.to_bytes(), &bytes[..]);
            }
            if let Ok(reply) = PeerReply::from_bytes(&bytes) {
                prop_assert_eq!(reply.to_bytes(), bytes);
            }
        }
    }
}
