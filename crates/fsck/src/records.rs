//! The records of all metadata targets, as the next start of the cluster would read them. These are
//! the records in the store of each target, and the changes in log records that are not yet in the
//! store.
//!
//! The module owns the reading of stores and logs. The rules that these records must obey are in
//! the other modules.

mod read;

use crate::directories::Directories;
use crate::finding::{Counts, Findings};
use skep_format::metadata::{LockOwner, OpenCounts};
use skep_types::{ChunkFileKey, ChunkFileSet, FileKind, GroupId, InodeId, Result};
use skep_types::{SessionId, StripePattern};
use skep_wire::metadata::TransactionId;
use std::collections::{BTreeMap, BTreeSet};

/// The fields of an inode's record that the rules need.
#[derive(Debug, Clone)]
pub(crate) struct Inode {
    pub(crate) kind: FileKind,
    pub(crate) links: u32,
    pub(crate) size: u64,
    pub(crate) parent: InodeId,
    pub(crate) has_xattrs: bool,
    /// Stripe pattern of a regular file. `None` for inodes of other kinds.
    pub(crate) pattern: Option<StripePattern>,
    pub(crate) synced: ChunkFileSet,
}

/// A directory entry.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) directory: InodeId,
    pub(crate) cursor: u64,
    pub(crate) name: Vec<u8>,
    pub(crate) inode: InodeId,
    pub(crate) kind: FileKind,
}

/// The opens of one inode by one session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionOpen {
    pub(crate) group: GroupId,
    pub(crate) session: SessionId,
    pub(crate) inode: InodeId,
    pub(crate) counts: OpenCounts,
}

/// The sessions of clients on all metadata groups.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    pub(crate) open: BTreeSet<(GroupId, SessionId)>,
    /// Sessions that have ended, and whose end is still recorded.
    pub(crate) ended: BTreeSet<(GroupId, SessionId)>,
    /// Sessions that have slots, in which replies are stored.
    pub(crate) with_slots: BTreeSet<(GroupId, SessionId)>,
}

/// The records of all metadata targets that were read.
#[derive(Debug, Default)]
pub(crate) struct Records {
    pub(crate) inodes: BTreeMap<InodeId, Inode>,
    pub(crate) entries: Vec<Entry>,
    pub(crate) opens: BTreeMap<InodeId, OpenCounts>,
    pub(crate) session_opens: Vec<SessionOpen>,
    pub(crate) sessions: Sessions,
    pub(crate) locks: BTreeSet<(GroupId, LockOwner)>,
    /// Records of other kinds that belong to an inode: the inode of each record, and a word for its
    /// kind.
    pub(crate) attached: BTreeSet<(InodeId, &'static str)>,
    /// Chunk files that metadata targets have recorded for removal.
    pub(crate) removals: BTreeSet<(GroupId, ChunkFileKey)>,
    pub(crate) prepared: BTreeSet<(GroupId, TransactionId)>,
    /// Inodes that prepared and staged transactions name. The counts in these inodes may be the
    /// counts before the transaction or after it.
    pub(crate) in_doubt: BTreeSet<InodeId>,
    /// For each metadata group, the first inode number that is not reserved.
    pub(crate) reserved: BTreeMap<GroupId, u64>,
    pub(crate) log_records: u64,
}

impl Records {
    /// Reads the records of each metadata target that is the primary of its group.
    pub(crate) fn read(directories: &Directories, findings: &mut Findings) -> Result<Self> {
        let mut records = Self::default();
        for (target, directory) in directories.metadata_primaries() {
            read::read_target(&mut records, target, directory, &directories.map, findings)?;
        }
        Ok(records)
    }

    /// Returns the numbers of the records that were read. The number of chunk files is zero.
    pub(crate) fn counts(&self) -> Counts {
        Counts {
            inodes: self.inodes.len() as u64,
            entries: self.entries.len() as u64,
            opens: self.session_opens.len() as u64,
            chunk_files: 0,
            removals: self.removals.len() as u64,
            prepared: self.prepared.len() as u64,
            log_records: self.log_records,
        }
    }
}
