//! The target's own work that changes its state, each piece as one transaction.

use skep_types::{GroupId, InodeId, SessionId};
use skep_wire::metadata::TransactionId;

/// The state of a file when the recovery of its size began. If the state has changed, the result is
/// outdated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecoveryQuestion {
    /// The number of the last death of a writer.
    pub(crate) death: u64,
    pub(crate) truncate_generation: u64,
}

/// A piece of the target's own work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum InternalWork {
    /// Makes the root directory.
    MakeRoot,
    /// Logs the epoch that has begun.
    RecordEpoch,
    /// Reserves more numbers.
    ReserveNumbers,
    /// Logs that a session has ended.
    RecordSessionEnd(SessionId),
    /// Closes some of the files that an ended session had open; the last piece deletes the session.
    CleanUpSession(SessionId),
    /// Logs that a participant has confirmed a commit.
    RecordConfirmation { number: u64, participant: GroupId },
    /// Deletes keys: work items that are done, and ends that need not be remembered any longer.
    DeleteKeys(Vec<Vec<u8>>),
    /// Ends a prepared transaction as its coordinator has decided.
    EndPrepared { transaction: TransactionId, commit: bool },
    /// Logs the size of a file whose chunk files were truncated for an operation that has failed.
    FinishTruncation(InodeId),
    /// Logs the size of a file whose writer died, as recovered from its chunk files.
    RecordSize { inode: InodeId, size: u64, question: RecoveryQuestion },
}
