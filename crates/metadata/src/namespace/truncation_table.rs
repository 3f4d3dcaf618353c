//! The table of truncations whose chunk files storage is truncating, by file. The table is in
//! memory only.

use skep_types::{Error, InodeId, Result};
use std::collections::BTreeMap;

/// A truncation whose chunk files storage is truncating.
#[derive(Debug)]
pub(crate) struct Truncation {
    /// New size of the file.
    pub(crate) size: u64,
    /// Operation that began the truncation. `None` means that the operation has failed since.
    pub(crate) operation: Option<u64>,
    /// Number of replies of storage that have not arrived yet.
    pub(crate) missing_replies: usize,
    /// First refusal of storage.
    pub(crate) failure: Option<Error>,
}

/// State of a truncation after a reply of storage.
#[derive(Debug)]
pub(crate) enum Progress {
    /// Other replies have not arrived yet.
    Pending,
    /// All replies have arrived. `operation` began the truncation; `None` means that the operation
    /// has failed since.
    Complete { operation: Option<u64> },
}

/// A truncation whose operation has failed.
#[derive(Debug)]
pub(crate) struct LeftTruncation {
    pub(crate) is_complete: bool,
    pub(crate) has_failed: bool,
}

/// Truncations in progress, by file.
///
/// # Invariants
/// - Each file has at most one truncation in progress (the map's key).
/// - Each operation has begun at most one truncation in progress.
#[derive(Debug, Default)]
pub(crate) struct TruncationTable(BTreeMap<InodeId, Truncation>);

impl TruncationTable {
    /// Whether the file has a truncation in progress.
    pub(crate) fn contains(&self, inode: InodeId) -> bool {
        self.0.contains_key(&inode)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn get(&self, inode: InodeId) -> Option<&Truncation> {
        self.0.get(&inode)
    }

    /// Adds a truncation. `operation` waits for `missing_replies` replies of storage.
    pub(crate) fn begin(
        &mut self,
        inode: InodeId,
        size: u64,
        operation: u64,
        missing_replies: usize,
    ) {
        let operation = Some(operation);
        let truncation = Truncation { size, operation, missing_replies, failure: None };
        let other = self.0.insert(inode, truncation);
        assert!(
            other.is_none(),
            "a truncation of {inode} begins only after the one before has ended"
        );
    }

    /// Records the reply about one chunk file.
    pub(crate) fn on_reply(&mut self, inode: InodeId, result: Result<Vec<u8>>) -> Progress {
        // An entry leaves the table only after its last reply.
        let truncation =
            self.0.get_mut(&inode).expect("a truncation stays in the table until its last reply");
        truncation.missing_replies -= 1;
        truncation.failure = truncation.failure.take().or(result.err());
        if truncation.missing_replies > 0 {
            return Progress::Pending;
        }
        Progress::Complete { operation: truncation.operation }
    }

    /// Detaches a truncation from its operation, which has failed. Returns `None` if the operation
    /// has begun no truncation of this file.
    pub(crate) fn leave(&mut self, inode: InodeId, operation: u64) -> Option<LeftTruncation> {
        let truncation = self.0.get_mut(&inode).filter(|it| it.operation == Some(operation))?;
        truncation.operation = None;
        let is_complete = truncation.missing_replies == 0;
        Some(LeftTruncation { is_complete, has_failed: truncation.failure.is_some() })
    }

    /// Removes a truncation from the table.
    pub(crate) fn remove(&mut self, inode: InodeId) {
        self.0.remove(&inode);
    }

    /// Iterates over the truncations that still wait for replies, each with the number of these
    /// replies.
    pub(crate) fn missing_replies(&self) -> impl Iterator<Item = (InodeId, usize)> + '_ {
        let all = self.0.iter().map(|(inode, it)| (*inode, it.missing_replies));
        all.filter(|(_, missing)| *missing > 0)
    }

    /// Panics if an invariant of the type is violated.
    pub(crate) fn check_invariants(&self) {
        let mut operations: Vec<_> = self.0.values().filter_map(|it| it.operation).collect();
        let count = operations.len();
        operations.sort_unstable();
        operations.dedup();
        assert_eq!(operations.len(), count, "each operation has begun at most one truncation");
    }
}
