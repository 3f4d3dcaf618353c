//! Findings of a check, and the report.
//!
//! The module owns the kinds of damage and their texts. The rules themselves are in the other
//! modules.

use skep_types::{ChunkFileKey, FileKind, GroupId, InodeId, SessionId, ShardId, TargetId};
use skep_wire::metadata::TransactionId;
use std::fmt;

/// Maximum number of findings that a report lists. Further findings are only counted, because a
/// missing directory of a large cluster would otherwise fill the memory.
pub const MAX_FINDINGS: usize = 1_000;

/// A rule that the stores break.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// A record or a log cannot be read.
    Damaged {
        /// The target that has the damaged record or log.
        target: TargetId,
        /// The record and the problem.
        what: String,
    },
    /// A record is on a target that does not serve its shard.
    WrongTarget {
        /// The target that has the record.
        target: TargetId,
        /// The shard of the record.
        shard: ShardId,
    },
    /// The namespace has no root directory.
    NoRoot,
    /// An entry points to an inode that does not exist.
    NoInode {
        /// The directory that has the entry.
        directory: InodeId,
        /// The name of the entry.
        name: Vec<u8>,
        /// The missing inode.
        inode: InodeId,
    },
    /// An entry and its inode have different kinds.
    WrongKind {
        /// The directory that has the entry.
        directory: InodeId,
        /// The name of the entry.
        name: Vec<u8>,
        /// The kind in the entry.
        entry: FileKind,
        /// The kind of the inode.
        inode: FileKind,
    },
    /// A lookup cannot find an entry, since the entry is not stored under the hash of its name.
    WrongCursor {
        /// The directory that has the entry.
        directory: InodeId,
        /// The name of the entry.
        name: Vec<u8>,
    },
    /// A directory has two entries with the same name.
    SameName {
        /// The directory that has both entries.
        directory: InodeId,
        /// The name of both entries.
        name: Vec<u8>,
    },
    /// Records belong to an inode that does not exist.
    NoOwner {
        /// The missing inode.
        inode: InodeId,
        /// The kind of the records.
        what: &'static str,
    },
    /// The link count of an inode does not match the entries.
    WrongLinks {
        /// The inode.
        inode: InodeId,
        /// The stored count.
        stored: u32,
        /// The count according to the entries.
        counted: u32,
    },
    /// The size of a directory does not match its entries.
    WrongSize {
        /// The directory.
        directory: InodeId,
        /// The number of entries that the directory stores.
        stored: u64,
        /// The number of existing entries.
        counted: u64,
    },
    /// A directory does not have exactly one entry in the directory that it names as its parent.
    WrongParent {
        /// The directory.
        directory: InodeId,
        /// The parent that the directory names.
        parent: InodeId,
        /// The directories that have an entry for the directory.
        entries: Vec<InodeId>,
    },
    /// A directory is part of a loop that the root does not reach.
    Loop {
        /// The directory.
        directory: InodeId,
    },
    /// The number of an inode is not reserved, so the target may give it to another inode.
    NumberNotReserved {
        /// The inode.
        inode: InodeId,
        /// First number that is not reserved.
        reserved: u64,
    },
    /// An inode has neither a name nor an open.
    NeitherNamedNorOpen {
        /// The inode.
        inode: InodeId,
    },
    /// The open counts of an inode do not match the sessions' opens.
    WrongOpens {
        /// The inode.
        inode: InodeId,
        /// Stored numbers of opens for reading and for writing.
        stored: (u32, u32),
        /// Numbers of opens according to the sessions.
        counted: (u32, u32),
    },
    /// Opens, locks or slots belong to a session that does not exist.
    NoSession {
        /// The metadata group that has the records.
        group: GroupId,
        /// The missing session.
        session: SessionId,
        /// The kind of the records.
        what: &'static str,
    },
    /// A session has locks on a file that it does not have open.
    LockWithoutOpen {
        /// The session.
        session: SessionId,
        /// The inode of the locked file.
        inode: InodeId,
    },
    /// A transaction is prepared, and its coordinator is not a metadata group of the cluster.
    NoCoordinator {
        /// The metadata group that has prepared the transaction.
        group: GroupId,
        /// The transaction.
        transaction: TransactionId,
    },
    /// The stripe pattern of a file names a group that does not exist.
    NoGroup {
        /// The inode of the file.
        inode: InodeId,
        /// The missing group.
        group: GroupId,
    },
    /// A synced chunk file is missing, so bytes of the file are lost.
    NoChunkFile {
        /// The target that should have the chunk file.
        target: TargetId,
        /// The missing chunk file.
        key: ChunkFileKey,
    },
    /// A chunk file has no inode, or is not part of the inode's stripe pattern. The chunk file
    /// wastes space.
    Orphan {
        /// The target that has the chunk file.
        target: TargetId,
        /// The chunk file.
        key: ChunkFileKey,
    },
}

impl Finding {
    /// Returns the kind of the finding as one word, for programs.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Damaged { .. } => "damaged",
            Self::WrongTarget { .. } => "wrong-target",
            Self::NoRoot => "no-root",
            Self::NoInode { .. } => "no-inode",
            Self::WrongKind { .. } => "wrong-kind",
            Self::WrongCursor { .. } => "wrong-cursor",
            Self::SameName { .. } => "same-name",
            Self::NoOwner { .. } => "no-owner",
            Self::WrongLinks { .. } => "wrong-links",
            Self::WrongSize { .. } => "wrong-size",
            Self::WrongParent { .. } => "wrong-parent",
            Self::Loop { .. } => "loop",
            Self::NumberNotReserved { .. } => "number-not-reserved",
            Self::NeitherNamedNorOpen { .. } => "neither-named-nor-open",
            Self::WrongOpens { .. } => "wrong-opens",
            Self::NoSession { .. } => "no-session",
            Self::LockWithoutOpen { .. } => "lock-without-open",
            Self::NoCoordinator { .. } => "no-coordinator",
            Self::NoGroup { .. } => "no-group",
            Self::NoChunkFile { .. } => "no-chunk-file",
            Self::Orphan { .. } => "orphan",
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged { target, what } => write!(f, "target {target}: {what}"),
            Self::WrongTarget { target, shard } => write!(
                f,
                "target {target} has records of shard {shard}, which another group serves"
            ),
            Self::NoRoot => f.write_str("the root directory does not exist"),
            Self::NoInode { directory, name, inode } => write!(
                f,
                "{} points to inode {inode}, which does not exist",
                Entry(*directory, name)
            ),
            Self::WrongKind { directory, name, entry, inode } => write!(
                f,
                "{} has the kind {entry:?}, and its inode has the kind {inode:?}",
                Entry(*directory, name)
            ),
            Self::WrongCursor { directory, name } => write!(
                f,
                "{} is stored under a different hash than that of its name",
                Entry(*directory, name)
            ),
            Self::SameName { directory, name } => {
                write!(f, "{} exists twice", Entry(*directory, name))
            }
            Self::NoOwner { inode, what } => {
                write!(f, "inode {inode} does not exist, but its {what} do")
            }
            Self::WrongLinks { inode, stored, counted } => write!(
                f,
                "inode {inode} has a link count of {stored}, and the entries give {counted}"
            ),
            Self::WrongSize { directory, stored, counted } => {
                write!(f, "directory {directory} counts {stored} entries, and has {counted}")
            }
            Self::WrongParent { directory, parent, entries } => write!(
                f,
                "directory {directory} names {parent} as its parent, and has entries in {}",
                list(entries)
            ),
            Self::Loop { directory } => write!(
                f,
                "directory {directory} is in a loop of directories, which the root does not reach"
            ),
            Self::NumberNotReserved { inode, reserved } => write!(
                f,
                "inode {inode} exists, but its target has reserved only the numbers below \
                 {reserved:X}"
            ),
            Self::NeitherNamedNorOpen { inode } => {
                write!(f, "inode {inode} has no name, and no session has it open")
            }
            Self::WrongOpens { inode, stored, counted } => write!(
                f,
                "inode {inode} counts {} opens for reading and {} for writing, and the sessions \
                 have {} and {}",
                stored.0, stored.1, counted.0, counted.1
            ),
            Self::NoSession { group, session, what } => {
                write!(f, "group {group}: session {session} does not exist, but its {what} do")
            }
            Self::LockWithoutOpen { session, inode } => write!(
                f,
                "session {session} has locks on inode {inode}, which it does not have open"
            ),
            Self::NoCoordinator { group, transaction } => write!(
                f,
                "group {group}: transaction {}:{} is prepared, and its coordinator is not a \
                 metadata group",
                transaction.coordinator.raw(),
                transaction.number
            ),
            Self::NoGroup { inode, group } => {
                write!(f, "the pattern of inode {inode} names group {group}, which does not exist")
            }
            Self::NoChunkFile { target, key } => {
                write!(f, "target {target}: the synced chunk file {key} is missing")
            }
            Self::Orphan { target, key } => {
                write!(f, "target {target}: chunk file {key} belongs to no inode")
            }
        }
    }
}

/// An entry in a text: its directory and its name.
struct Entry<'a>(InodeId, &'a [u8]);

impl fmt::Display for Entry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "directory {}: entry \"{}\"", self.0, self.1.escape_ascii())
    }
}

fn list(inodes: &[InodeId]) -> String {
    match inodes {
        [] => "no directory".to_owned(),
        some => some.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}

/// The findings of a check, up to [`MAX_FINDINGS`].
#[derive(Debug, Default)]
pub struct Findings {
    list: Vec<Finding>,
    omitted: u64,
}

impl Findings {
    /// Adds a finding. If the list is full, only counts the finding.
    pub(crate) fn add(&mut self, finding: Finding) {
        if self.list.len() < MAX_FINDINGS {
            self.list.push(finding);
        } else {
            self.omitted += 1;
        }
    }

    /// Returns the listed findings.
    pub fn list(&self) -> &[Finding] {
        &self.list
    }

    /// Returns the number of findings that are not listed.
    pub fn omitted(&self) -> u64 {
        self.omitted
    }
}

/// Counts of the records that a check has read.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Number of inodes.
    pub inodes: u64,
    /// Number of entries.
    pub entries: u64,
    /// Number of opens of sessions.
    pub opens: u64,
    /// Number of chunk files on the storage targets that were checked.
    pub chunk_files: u64,
    /// Number of chunk files that metadata targets will still remove.
    pub removals: u64,
    /// Number of transactions that are prepared and not decided.
    pub prepared: u64,
    /// Number of log records that the next start will apply to a store.
    pub log_records: u64,
}

/// The result of a check.
#[derive(Debug)]
pub struct Report {
    /// Counts of the records.
    pub counts: Counts,
    /// Rules that the stores break.
    pub findings: Findings,
    /// Targets that were not checked, with the reason.
    pub skipped: Vec<String>,
}
