//! The internal work of a target. Each variant changes the target's state in one transaction.

use skep_types::{GroupId, HostIncarnation, InodeId, SessionId};
use skep_wire::metadata::{OpenMode, TransactionId};

/// The state of a file when the recovery of its size began. If one of the fields has changed since,
/// the recovered size is outdated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecoveryQuestion {
    /// Sequence number of the last death of a client that had the file open for writing.
    pub(crate) death: u64,
    pub(crate) truncate_generation: u64,
}

/// An open that a request has counted, with the slot and the sequence number of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CountedOpen {
    pub(crate) session: SessionId,
    pub(crate) slot: u32,
    pub(crate) sequence: u64,
    pub(crate) inode: InodeId,
    pub(crate) mode: OpenMode,
}

/// A piece of internal work of the target, which runs as one transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum InternalWork {
    /// Creates the root directory.
    MakeRoot,
    /// Stores a record of the current start of the target.
    RecordStart,
    /// Reserves more numbers for inodes and transactions.
    ReserveNumbers,
    /// Stores that a session has ended.
    RecordSessionEnd(SessionId),
    /// Closes some of the files that an ended session had open. The last such transaction also
    /// deletes the session's record.
    CleanUpSession(SessionId),
    /// Stores that a participant has confirmed a commit.
    RecordConfirmation { number: u64, participant: GroupId },
    /// Deletes keys: completed work items, and old records of ended sessions and transactions.
    DeleteKeys(Vec<Vec<u8>>),
    /// Ends a prepared transaction according to its coordinator's decision.
    EndPrepared { transaction: TransactionId, commit: bool },
    /// Stores that a staged transaction of this group is committed.
    CommitStaged(u64),
    /// Undoes the changes of a staged transaction, because the participant has lost its prepared
    /// transaction.
    UndoStaged(u64),
    /// Stores that storage has truncated all chunk files of a truncation, and the incarnation of
    /// the storage host of each chunk file.
    ApplyTruncation { inode: InodeId, generation: u64, incarnations: Vec<HostIncarnation> },
    /// Ends a truncation whose chunk files storage has synced. `lost` contains the component and
    /// the index of each chunk file whose storage host may have lost power between the truncation
    /// and the sync.
    SettleTruncation { inode: InodeId, generation: u64, lost: Vec<(u16, u16)> },
    /// Removes an open whose truncation storage has refused, because its client gets an error and
    /// will not close the file.
    RemoveOpen(CountedOpen),
    /// Stores the size of a file whose writer has died. The target has recovered this size from the
    /// chunk files.
    RecordSize { inode: InodeId, size: u64, question: RecoveryQuestion },
}
