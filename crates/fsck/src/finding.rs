//! The findings of a check, and the report with all results of a check.
//!
//! The module owns the kinds of damage and the texts that describe them. The rules that detect the
//! damage are in the other modules.

use skep_types::{ChunkFileKey, FileKind, GroupId, InodeId, Lsn, SessionId, ShardId, TargetId};
use skep_wire::metadata::TransactionId;
use std::collections::BTreeMap;
use std::fmt;

/// Maximum number of findings of one kind that a report lists. Further findings are only counted.
/// Without this limit, the findings could fill the memory, for example if a directory of a large
/// cluster is missing. Each kind has its own limit, so that many findings of a harmless kind do not
/// hide lost data.
pub const MAX_FINDINGS: usize = 1_000;

/// A violation of a rule, which a check has found in the stores of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// A metadata record or a log cannot be read.
    Damaged {
        /// The metadata target that has the damaged record or log.
        target: TargetId,
        /// Text that names the damaged record or log, and describes the problem.
        what: String,
    },
    /// A metadata target has a record of a shard that another group serves.
    WrongTarget {
        /// The metadata target that has the record.
        target: TargetId,
        /// The shard to which the record belongs.
        shard: ShardId,
    },
    /// Two members of a metadata group have different records after the same log record.
    MembersDiffer {
        /// The metadata group of the two members.
        group: GroupId,
        /// The two members whose records differ.
        targets: [TargetId; 2],
        /// The last log record whose changes both members have.
        record: Lsn,
        /// The first key with different values in the two stores.
        key: Vec<u8>,
    },
    /// The namespace has no root directory.
    NoRoot,
    /// A directory entry points to an inode that does not exist.
    NoInode {
        /// The directory that has the entry.
        directory: InodeId,
        /// The name of the entry.
        name: Vec<u8>,
        /// The missing inode.
        inode: InodeId,
    },
    /// A directory entry and its inode have different kinds of file.
    WrongKind {
        /// The directory that has the entry.
        directory: InodeId,
        /// The name of the entry.
        name: Vec<u8>,
        /// The kind of file in the entry.
        entry: FileKind,
        /// The kind of file of the inode.
        inode: FileKind,
    },
    /// A lookup cannot find a directory entry. The cursor of the entry does not follow from the
    /// hash of its name, or an earlier cursor with the same hash is unused, so that the lookup
    /// stops at this cursor.
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
    /// Some records belong to an inode that does not exist or that cannot have such records.
    NoOwner {
        /// The inode to which the records refer.
        inode: InodeId,
        /// The kind of the records, as a word for messages.
        what: &'static str,
    },
    /// The link count of an inode does not match the directory entries.
    WrongLinks {
        /// The inode with the wrong link count.
        inode: InodeId,
        /// The link count in the inode.
        stored: u32,
        /// The link count according to the directory entries.
        counted: u32,
    },
    /// The size of a directory is not the number of its entries.
    WrongSize {
        /// The directory with the wrong size.
        directory: InodeId,
        /// The size in the inode of the directory.
        stored: u64,
        /// The number of entries that were found.
        counted: u64,
    },
    /// No directory entry points to a directory, several entries point to it, or the only entry is
    /// not in the parent that the directory's inode names.
    WrongParent {
        /// The directory with the wrong parent or the wrong number of entries.
        directory: InodeId,
        /// The parent that the inode of the directory names.
        parent: InodeId,
        /// The directories that have an entry that points to this directory.
        entries: Vec<InodeId>,
    },
    /// A directory is part of a loop of directories that cannot be reached from the root.
    Loop {
        /// The directory in the loop.
        directory: InodeId,
    },
    /// The inode number of an inode is not reserved, so the metadata target may assign it again to
    /// another inode.
    NumberNotReserved {
        /// The inode whose number is not reserved.
        inode: InodeId,
        /// The first number that the metadata group of the inode has not reserved.
        reserved: u64,
    },
    /// An inode that is not a directory has no name and is not open. Such an inode only wastes
    /// space.
    NeitherNamedNorOpen {
        /// The inode without a name.
        inode: InodeId,
    },
    /// The open counts of an inode do not match the opens of all sessions.
    WrongOpens {
        /// The inode with the wrong open counts.
        inode: InodeId,
        /// The stored counts: opens for reading, and opens for writing.
        stored: (u32, u32),
        /// The counts according to the sessions: opens for reading, and opens for writing.
        counted: (u32, u32),
    },
    /// Opens, locks or slots belong to a session that does not exist.
    NoSession {
        /// The metadata group that has these records.
        group: GroupId,
        /// The missing session.
        session: SessionId,
        /// The kind of the records, as a word for messages.
        what: &'static str,
    },
    /// A session has locks on a file that it does not have open.
    LockWithoutOpen {
        /// The session that has the locks.
        session: SessionId,
        /// The inode of the locked file.
        inode: InodeId,
    },
    /// A metadata group has prepared a transaction whose coordinator is not a metadata group that
    /// was checked. So the group can never learn the decision.
    NoCoordinator {
        /// The metadata group that has prepared the transaction.
        group: GroupId,
        /// The id of the transaction.
        transaction: TransactionId,
    },
    /// The stripe pattern of a file names a group that is not a storage group of the cluster.
    NoGroup {
        /// The inode of the file.
        inode: InodeId,
        /// The group that the pattern names.
        group: GroupId,
    },
    /// A chunk file that was synced is missing, so bytes of the file are lost.
    NoChunkFile {
        /// The storage target that should have the chunk file.
        target: TargetId,
        /// The chunk file that is missing.
        key: ChunkFileKey,
    },
    /// A storage target has a chunk file that belongs to no inode, or that is not part of its
    /// inode's stripe pattern. Such a chunk file only wastes space.
    Orphan {
        /// The storage target that has the chunk file.
        target: TargetId,
        /// The chunk file without an owner.
        key: ChunkFileKey,
    },
}

impl Finding {
    /// Returns one word for the kind of the finding, which programs can compare.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Damaged { .. } => "damaged",
            Self::WrongTarget { .. } => "wrong-target",
            Self::MembersDiffer { .. } => "members-differ",
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
    #[expect(clippy::too_many_lines, reason = "one table")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged { target, what } => write!(f, "target {target}: {what}"),
            Self::WrongTarget { target, shard } => write!(
                f,
                "target {target} has records of shard {shard}, which another group serves"
            ),
            Self::MembersDiffer { group, targets: [one, other], record, key } => write!(
                f,
                "group {group}: the stores of targets {one} and {other} differ after log record \
                 {record}, in the key {}",
                key.escape_ascii()
            ),
            Self::NoRoot => f.write_str("the root directory does not exist"),
            Self::NoInode { directory, name, inode } => write!(
                f,
                "{} points to inode {inode}, which does not exist",
                Entry(*directory, name)
            ),
            Self::WrongKind { directory, name, entry, inode } => write!(
                f,
                "{} has the kind {entry:?}, but its inode has the kind {inode:?}",
                Entry(*directory, name)
            ),
            Self::WrongCursor { directory, name } => write!(
                f,
                "lookups cannot find {}: its position does not belong to its name, or an earlier \
                 position with the same hash is unused",
                Entry(*directory, name)
            ),
            Self::SameName { directory, name } => {
                write!(f, "{} is stored twice", Entry(*directory, name))
            }
            Self::NoOwner { inode, what } => write!(
                f,
                "the store has {what} of inode {inode}, but this inode does not exist or is of a \
                 kind without {what}"
            ),
            Self::WrongLinks { inode, stored, counted } => write!(
                f,
                "inode {inode} has a link count of {stored}, but the number of entries that refer \
                 to it is {counted}"
            ),
            Self::WrongSize { directory, stored, counted } => write!(
                f,
                "directory {directory} has a stored count of {stored} entries, but contains \
                 {counted}"
            ),
            Self::WrongParent { directory, parent, entries } => write!(
                f,
                "directory {directory} names {parent} as its parent, but has entries in {}",
                list(entries)
            ),
            Self::Loop { directory } => write!(
                f,
                "directory {directory} is in a loop of directories, which the root does not reach"
            ),
            Self::NumberNotReserved { inode, reserved } => write!(
                f,
                "inode {inode} exists, but its target has reserved only the inode numbers below \
                 {reserved:X}"
            ),
            Self::NeitherNamedNorOpen { inode } => {
                write!(f, "inode {inode} has no name, and no session has it open")
            }
            Self::WrongOpens { inode, stored, counted } => write!(
                f,
                "inode {inode} has a stored count of {} opens for reading and {} for writing, but \
                 the sessions have {} and {}",
                stored.0, stored.1, counted.0, counted.1
            ),
            Self::NoSession { group, session, what } => {
                write!(f, "group {group}: session {session} does not exist, but its {what} exist")
            }
            Self::LockWithoutOpen { session, inode } => write!(
                f,
                "session {session} has locks on inode {inode}, but does not have this inode open"
            ),
            Self::NoCoordinator { group, transaction } => write!(
                f,
                "group {group}: transaction {}:{} is prepared, but its coordinator is not a \
                 metadata group, or was not checked",
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

/// A directory entry in the text of a finding: the directory's inode and the entry's name.
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

/// The findings of a check. At most [`MAX_FINDINGS`] findings of each kind are listed, and further
/// findings are only counted.
#[derive(Debug, Default)]
pub struct Findings {
    list: Vec<Finding>,
    /// Number of findings of each kind, by the word for the kind.
    counts: BTreeMap<&'static str, usize>,
    omitted: u64,
}

impl Findings {
    /// Adds a finding to the list. If the list already has [`MAX_FINDINGS`] findings of this kind,
    /// only counts the finding.
    pub(crate) fn add(&mut self, finding: Finding) {
        let count = self.counts.entry(finding.word()).or_default();
        *count += 1;
        if *count <= MAX_FINDINGS {
            self.list.push(finding);
        } else {
            self.omitted += 1;
        }
    }

    /// Returns the findings in the list.
    pub fn list(&self) -> &[Finding] {
        &self.list
    }

    /// Returns the number of findings that were counted but are not in the list.
    pub fn omitted(&self) -> u64 {
        self.omitted
    }
}

/// The numbers of records that a check has read.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Number of inodes in all metadata stores.
    pub inodes: u64,
    /// Number of directory entries.
    pub entries: u64,
    /// Number of open inodes, summed over all sessions.
    pub opens: u64,
    /// Number of chunk files on the storage targets that were checked.
    pub chunk_files: u64,
    /// Number of chunk files that metadata targets have recorded for removal.
    pub removals: u64,
    /// Number of transactions that metadata groups have prepared but not decided.
    pub prepared: u64,
    /// Number of log records that are not yet in a store. The next start of the metadata service
    /// will apply them.
    pub log_records: u64,
}

/// The results of a check of a cluster's stores.
#[derive(Debug)]
pub struct Report {
    /// The numbers of records that were read.
    pub counts: Counts,
    /// The violations of rules that the check has found.
    pub findings: Findings,
    /// A line of text for each target that was not checked, or not compared with the other members
    /// of its group, with the reason.
    pub skipped: Vec<String>,
}
