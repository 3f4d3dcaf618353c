//! The truncations whose chunk files are being truncated, by file. In memory only.

use skep_types::{Error, InodeId, Result};
use std::collections::BTreeMap;

/// A truncation whose chunk files are being truncated.
#[derive(Debug)]
pub(crate) struct Truncation {
    /// The size that the file gets.
    pub(crate) size: u64,
    /// The operation that has begun it; `None` means that it has failed since.
    pub(crate) operation: Option<u64>,
    /// Replies of storage that are missing.
    pub(crate) missing_replies: usize,
    /// The first refusal.
    pub(crate) failure: Option<Error>,
}

/// How far a truncation is after a reply of storage.
#[derive(Debug)]
pub(crate) enum Progress {
    /// Other replies are missing.
    Pending,
    /// All replies are there, for the operation if it still exists.
    Complete { operation: Option<u64> },
}

/// A truncation whose operation has failed.
#[derive(Debug)]
pub(crate) struct LeftTruncation {
    pub(crate) is_complete: bool,
    pub(crate) has_failed: bool,
}

/// Truncations under way, by file.
///
/// # Invariants
/// - Each file has at most one truncation under way (the map's key).
/// - Each operation has begun at most one of them.
#[derive(Debug, Default)]
pub(crate) struct TruncationTable(BTreeMap<InodeId, Truncation>);

impl TruncationTable {
    /// Whether chunk files of this file are being truncated.
    pub(crate) fn contains(&self, inode: InodeId) -> bool {
        self.0.contains_key(&inode)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn get(&self, inode: InodeId) -> Option<&Truncation> {
        self.0.get(&inode)
    }

    /// Begins a truncation for an operation that waits for `missing_replies`.
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

    /// Takes in the reply about one chunk file.
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

    /// The operation that has begun a truncation fails. `None` means that it has begun none.
    pub(crate) fn leave(&mut self, inode: InodeId, operation: u64) -> Option<LeftTruncation> {
        let truncation = self.0.get_mut(&inode).filter(|it| it.operation == Some(operation))?;
        truncation.operation = None;
        let is_complete = truncation.missing_replies == 0;
        Some(LeftTruncation { is_complete, has_failed: truncation.failure.is_some() })
    }

    /// Ends a truncation.
    pub(crate) fn remove(&mut self, inode: InodeId) {
        self.0.remove(&inode);
    }

    /// The number of replies that each truncation waits for, where it waits.
    pub(crate) fn missing_replies(&self) -> impl Iterator<Item = (InodeId, usize)> + '_ {
        let all = self.0.iter().map(|(inode, it)| (*inode, it.missing_replies));
        all.filter(|(_, missing)| *missing > 0)
    }

    /// Panics if an invariant of the type is broken.
    pub(crate) fn check_invariants(&self) {
        let mut operations: Vec<_> = self.0.values().filter_map(|it| it.operation).collect();
        let count = operations.len();
        operations.sort_unstable();
        operations.dedup();
        assert_eq!(operations.len(), count, "each operation has begun at most one truncation");
    }
}
