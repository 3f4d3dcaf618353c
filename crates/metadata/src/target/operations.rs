//! The operations of a target that have not ended. Some can run now. The other operations wait for
//! the end of a pause, for the log, for a lock, or for a reply. The operations of staged
//! transactions have run, and only their replies wait (`staged`).
//!
//! This module owns the order in which operations run. The module does not run the operations
//! (`run`), and does not own the locks for which they wait (`tx::locks`).

use super::staged::StagedTransactions;
use crate::tx::operation::{Operation, Source};
use skep_env::NumberMap;
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// All operations that have not ended, by id, except the operation that is running.
///
/// # Invariants
/// - An id is never used twice.
/// - The queues contain ids. A queue may contain the id of an operation that has ended; such ids
///   are skipped.
#[derive(Debug)]
pub(crate) struct Operations {
    waiting: NumberMap<Operation>,
    next_id: u64,
    /// Ids of the operations that can run now, in the order in which they will run.
    ready: VecDeque<u64>,
    /// Ids of the operations that run again after a pause, with the time at which the pause ends.
    paused: BTreeSet<(Duration, u64)>,
    /// Ids of the operations that wait until more log records are safe.
    until_safe: Vec<u64>,
    /// The staged transactions, with the replies to their requests.
    pub(super) staged: StagedTransactions,
}

impl Operations {
    pub(crate) fn new() -> Self {
        Self {
            waiting: NumberMap::default(),
            next_id: 1,
            ready: VecDeque::new(),
            paused: BTreeSet::new(),
            until_safe: Vec::new(),
            staged: StagedTransactions::default(),
        }
    }

    /// Adds an operation that can run now.
    pub(crate) fn start(&mut self, source: Source, body: Vec<u8>) {
        let id = self.next_id;
        self.next_id += 1;
        self.waiting.insert(id, Operation::new(id, source, body));
        self.ready.push_back(id);
    }

    /// Returns the id that the next operation will get.
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn contains(&self, id: u64) -> bool {
        self.waiting.contains_key(&id)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.staged.is_empty()
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut Operation> {
        self.waiting.get_mut(&id)
    }

    /// Removes and returns an operation. The caller runs or ends it.
    pub(crate) fn take(&mut self, id: u64) -> Option<Operation> {
        self.waiting.remove(&id)
    }

    /// Removes and returns the next operation that can run.
    pub(crate) fn take_ready(&mut self) -> Option<Operation> {
        while let Some(id) = self.ready.pop_front() {
            if let Some(op) = self.waiting.remove(&id) {
                return Some(op);
            }
        }
        None
    }

    /// Puts back an operation that has run and must now wait.
    pub(crate) fn park(&mut self, op: Operation) {
        self.waiting.insert(op.id, op);
    }

    /// Parks an operation until the time `due`, at which it runs again.
    pub(crate) fn park_until(&mut self, due: Duration, op: Operation) {
        self.paused.insert((due, op.id));
        self.park(op);
    }

    /// Parks an operation until more records are *safe*. The operation then runs again.
    pub(crate) fn park_until_safe(&mut self, op: Operation) {
        self.until_safe.push(op.id);
        self.park(op);
    }

    /// Wakes parked operations: makes them ready to run.
    pub(crate) fn wake(&mut self, ids: impl IntoIterator<Item = u64>) {
        self.ready.extend(ids);
    }

    /// Wakes the operations that wait until more records are *safe*.
    pub(crate) fn wake_unsafe(&mut self) {
        self.ready.extend(std::mem::take(&mut self.until_safe));
    }

    /// Wakes each paused operation whose pause has ended.
    pub(crate) fn wake_paused(&mut self, now: Duration) {
        while let Some((_, id)) = self.paused.first().copied().filter(|(due, _)| *due <= now) {
            self.paused.pop_first();
            self.ready.push_back(id);
        }
    }

    /// Returns the time at which the next pause of an operation ends.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        self.paused.first().map(|(due, _)| *due)
    }

    /// Whether an operation coordinates the transaction `number` of this target's group, or holds
    /// the rename lock under this number.
    pub(crate) fn is_coordinating(&self, number: u64) -> bool {
        self.waiting.values().any(|op| {
            op.transaction == Some(number) || op.rename_lock.is_some_and(|(it, _)| it == number)
        })
    }

    /// Panics if an invariant of the type is violated.
    pub(crate) fn check_invariants(&self) {
        for (id, op) in &self.waiting {
            assert!(
                *id == op.id && *id < self.next_id,
                "operation {id} is stored under its own id"
            );
            assert!(
                op.participants.is_empty() || op.transaction.is_some(),
                "operation {id} has participants only in a transaction"
            );
        }
    }
}
