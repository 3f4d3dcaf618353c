//! Records of a member of a replicated log: the vote and the log in the file `raft-log`, and the
//! snapshot in the file `raft-snapshot`.
//!
//! `docs/format/consensus.md` shows the layout of these records and states when a record is valid.
//! The module [`crate::log`] frames the records of the log, with target id zero. The rules of Raft
//! are outside this module.

use crate::sealed;
use skep_types::codec::{Bytes, choice, record};
use skep_types::{ClusterId, Lsn, Result};

const LOG_MAGIC: [u8; 8] = *b"SKEPRLOG";
const SNAPSHOT_MAGIC: [u8; 8] = *b"SKEPRSNP";
const VERSION: u16 = 1;

/// Length of the head of the log file, in bytes.
pub const LOG_HEAD_BYTES: usize = 16 + 32 + 4;

record! {
    /// Position of an entry in the replicated log.
    #[derive(Copy)]
    pub struct LogPosition {
        /// Term of the leader that proposed the entry.
        pub term: u64,
        /// Id of the leader that proposed the entry.
        pub leader: u64,
        /// Index of the entry, from 0 without gaps.
        pub index: u64,
    }
}

record! {
    /// The vote of a member: the candidate or leader that it follows.
    #[derive(Copy)]
    pub struct VoteRecord {
        /// Term of the election.
        pub term: u64,
        /// Id of the candidate.
        pub candidate: u64,
        /// Whether a majority has elected the candidate.
        pub is_elected: bool,
    }
}

record! {
    /// A member of the replicated log: a node that receives its entries.
    pub struct MemberRecord {
        /// Id of the member in the replicated log.
        pub id: u64,
        /// Addresses at which the other members reach this member.
        pub addresses: Vec<String>,
    }
}

record! {
    /// The members of the log.
    pub struct MembersRecord {
        /// The ids of the voters. While the voters change, there are two sets, and an entry needs a
        /// majority of each set.
        pub voters: Vec<Vec<u64>>,
        /// All members, in ascending order of their ids. A member that is not a voter only receives
        /// the log.
        pub members: Vec<MemberRecord>,
    }
}

choice! {
    /// Content of an entry of the replicated log.
    pub enum EntryContent {
        /// No content. The first entry of each leader is blank.
        Blank = 1,
        /// A command of the application that uses the replicated log.
        Command = 2 {
            /// The command, in the encoding of the application.
            command: Bytes,
        },
        /// The members of the log from this entry on.
        Members = 3 {
            /// The members.
            members: MembersRecord,
        },
    }
}

record! {
    /// An entry of the replicated log.
    pub struct LogEntry {
        /// Position of the entry.
        pub position: LogPosition,
        /// Content of the entry.
        pub content: EntryContent,
    }
}

choice! {
    /// A record in the log file.
    pub enum LogRecord {
        /// The member has voted, or a majority has elected its candidate.
        Vote = 1 {
            /// The vote, which replaces the previous vote.
            vote: VoteRecord,
        },
        /// The member has appended an entry after the last entry.
        Append = 2 {
            /// The entry.
            entry: LogEntry,
        },
        /// The member has removed the entries from an index on, because no majority had stored
        /// these entries.
        Truncate = 3 {
            /// Index of the first removed entry.
            from: u64,
        },
        /// The vote, and the position of the last removed entry, at the time when the member began
        /// this log file. Only the first record of a file is a `Base`.
        Base = 4 {
            /// The vote of the member. `None` means that the member has not voted.
            vote: Option<VoteRecord>,
            /// Position of the last entry that was removed because a snapshot contains its effect.
            removed: Option<LogPosition>,
        },
    }
}

record! {
    /// Head of the log file.
    pub struct RaftLogHead {
        /// The cluster to which the log belongs.
        pub cluster: ClusterId,
        /// Id of the member to which the log belongs.
        pub member: u64,
        /// Log sequence number of the first record in the file.
        pub first: Lsn,
    }
}

record! {
    /// Content of the snapshot file: the state after the entry `last`.
    pub struct RaftSnapshot {
        /// The cluster to which the state belongs.
        pub cluster: ClusterId,
        /// Position of the last entry whose effect the state contains.
        pub last: Option<LogPosition>,
        /// Position of the log entry that contains `members`.
        pub members_at: Option<LogPosition>,
        /// The members of the log in this state.
        pub members: MembersRecord,
        /// Id of this snapshot, which differs from the ids of all other snapshots.
        pub name: String,
        /// The state of the application, in its own encoding.
        pub state: Bytes,
    }
}

impl RaftLogHead {
    /// Encodes the head as the first bytes of the log file.
    pub fn to_file(&self) -> Vec<u8> {
        sealed::seal(LOG_MAGIC, VERSION, self)
    }

    /// Decodes the head from the first [`LOG_HEAD_BYTES`] bytes of the file.
    ///
    /// # Errors
    /// - `Corrupt` if the bytes are not a valid head.
    /// - `Unsupported` if the head has a different version.
    pub fn from_file(bytes: &[u8]) -> Result<Self> {
        sealed::open(LOG_MAGIC, VERSION, bytes)
    }
}

impl RaftSnapshot {
    /// Encodes the snapshot as the content of its file.
    pub fn to_file(&self) -> Vec<u8> {
        sealed::seal(SNAPSHOT_MAGIC, VERSION, self)
    }

    /// Decodes a snapshot from the content of its file.
    ///
    /// # Errors
    /// - `Corrupt` if the bytes are not a valid snapshot.
    /// - `Unsupported` if the snapshot has a different version.
    pub fn from_file(bytes: &[u8]) -> Result<Self> {
        sealed::open(SNAPSHOT_MAGIC, VERSION, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use skep_types::codec::Codec;

    #[test]
    fn raft_file_bytes_of_version_1_never_change() {
        let head =
            RaftLogHead { cluster: ClusterId::new([0x11; 16]), member: 2, first: Lsn::new(0x22) };
        let bytes = head.to_file();
        assert_eq!(bytes.len(), LOG_HEAD_BYTES);
        assert_eq!(&bytes[..16], b"SKEPRLOG\x01\0\0\0\x20\0\0\0");
        assert_eq!(bytes[32..48], [2, 0, 0, 0, 0, 0, 0, 0, 0x22, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(RaftLogHead::from_file(&bytes).unwrap(), head);
        let position = LogPosition { term: 1, leader: 2, index: 3 };
        let content = EntryContent::Command { command: Bytes(b"c".to_vec()) };
        let record = LogRecord::Append { entry: LogEntry { position, content } };
        let expected = b"\x02\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x02\x01\0\0\0c";
        assert_eq!(record.to_bytes(), expected);
        assert_eq!(LogRecord::from_bytes(expected).unwrap(), record);
        let members = MembersRecord {
            voters: vec![vec![1, 2]],
            members: vec![MemberRecord { id: 1, addresses: vec!["a:1".into()] }],
        };
        let snapshot = RaftSnapshot {
            cluster: ClusterId::new([0x11; 16]),
            last: Some(position),
            members_at: None,
            members,
            name: "1-3".into(),
            state: Bytes(b"state".to_vec()),
        };
        assert_eq!(RaftSnapshot::from_file(&snapshot.to_file()).unwrap(), snapshot);
        assert!(RaftLogHead::from_file(&snapshot.to_file()).is_err());
    }

    proptest! {
        #[test]
        fn decoding_never_panics_and_accepts_only_canonical_bytes(bytes: Vec<u8>) {
            if let Ok(record) = LogRecord::from_bytes(&bytes) {
                prop_assert_eq!(record.to_bytes(), bytes);
            }
        }
    }
}
