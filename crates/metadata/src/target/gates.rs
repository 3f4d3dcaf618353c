//! The output of a batch, and the replies and calls that wait until the log is synced.
//!
//! Owns the numbers of log records, the syncs, and the replies and calls that a sync releases. Does
//! not own the contents of records (`tx::table`).

use super::calls::CallPurpose;
use super::events::Action;
use super::start::SyncPolicy;
use crate::limits::SYNC_AFTER;
use crate::tx::operation::{ConnectionId, OutgoingCall};
use skep_types::{Lsn, Result};
use skep_wire::frame::Header;
use std::collections::BTreeMap;
use std::time::Duration;

/// A reply that has not left yet.
#[derive(Debug)]
pub(crate) struct PendingReply {
    pub(crate) connection: ConnectionId,
    pub(crate) request: Header,
    pub(crate) result: Result<Vec<u8>>,
}

/// A call that has not left yet.
type PendingCall = (OutgoingCall, CallPurpose);

/// The output of the batch that runs.
#[derive(Debug, Default)]
pub(crate) struct BatchOutput {
    pub(crate) replies: Vec<PendingReply>,
    pub(crate) actions: Vec<Action>,
    /// Complete log records, as [`Action::Append`].
    pub(crate) records: Vec<Action>,
}

/// The state of the log (appended, syncing, synced), with the replies and calls that wait for a
/// sync.
///
/// # Invariants
/// - `synced <= syncing < next_lsn`.
/// - Each reply and call here waits for a record that is not synced.
#[derive(Debug)]
pub(crate) struct SyncGates {
    policy: SyncPolicy,
    /// The record in which the next transaction will be.
    next_lsn: Lsn,
    synced: Lsn,
    syncing: Option<Lsn>,
    /// When the oldest record was appended that no sync covers yet.
    first_unsynced_at: Option<Duration>,
    /// Whether something waits for a sync, so that the next one begins at once.
    is_requested: bool,
    replies: BTreeMap<Lsn, Vec<PendingReply>>,
    calls: BTreeMap<Lsn, Vec<PendingCall>>,
}

impl SyncGates {
    /// The gates of a target whose log is synced up to `last` and ends there.
    pub(crate) fn new(policy: SyncPolicy, last: Lsn) -> Self {
        Self {
            policy,
            next_lsn: Lsn::new(last.raw() + 1),
            synced: last,
            syncing: None,
            first_unsynced_at: None,
            is_requested: false,
            replies: BTreeMap::new(),
            calls: BTreeMap::new(),
        }
    }

    /// The record in which the next transaction will be.
    pub(crate) fn next_lsn(&self) -> Lsn {
        self.next_lsn
    }

    pub(crate) fn last_logged(&self) -> Lsn {
        Lsn::new(self.next_lsn.raw() - 1)
    }

    pub(crate) fn synced(&self) -> Lsn {
        self.synced
    }

    /// Whether every reply waits for a sync.
    pub(crate) fn syncs_each_reply(&self) -> bool {
        self.policy == SyncPolicy::Always
    }

    /// Whether a record was appended that no sync covers yet.
    pub(crate) fn has_unsynced(&self) -> bool {
        self.first_unsynced_at.is_some()
    }

    /// When a sync is due that has not begun.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        let first = self.first_unsynced_at.filter(|_| self.syncing.is_none());
        first.map(|at| at + SYNC_AFTER)
    }

    /// Lets the next sync begin at once.
    pub(crate) fn request_sync(&mut self) {
        self.is_requested = true;
    }

    /// Ends the log record that was being filled.
    pub(crate) fn end_record(&mut self, now: Duration) {
        self.next_lsn = Lsn::new(self.next_lsn.raw() + 1);
        self.first_unsynced_at.get_or_insert(now);
    }

    /// Keeps replies until record `after` is synced.
    pub(crate) fn gate_replies(&mut self, after: Lsn, replies: Vec<PendingReply>) {
        self.replies.entry(after).or_default().extend(replies);
        self.is_requested = true;
    }

    /// Keeps a call until record `after` is synced.
    pub(crate) fn gate_call(&mut self, after: Lsn, call: PendingCall) {
        self.calls.entry(after).or_default().push(call);
        self.is_requested = true;
    }

    /// Whether a call waits that sends the decision of this transaction.
    pub(crate) fn holds_decision_of(&self, transaction: u64) -> bool {
        self.calls.values().flatten().any(|(_, purpose)| purpose.sends_decision_of(transaction))
    }

    /// Begins a sync if one is due or requested, and returns the last record that it covers.
    pub(crate) fn begin_sync(&mut self, now: Duration) -> Option<Lsn> {
        let last = self.last_logged();
        if self.syncing.is_some() || last == self.synced {
            return None;
        }
        let is_due = self.first_unsynced_at.is_some_and(|at| now >= at + SYNC_AFTER);
        if !(self.is_requested || is_due) {
            return None;
        }
        self.is_requested = false;
        self.first_unsynced_at = None;
        self.syncing = Some(last);
        self.syncing
    }

    /// Ends the sync up to `lsn`. Returns `false` if that sync is not the one under way.
    pub(crate) fn end_sync(&mut self, lsn: Lsn) -> bool {
        if self.syncing != Some(lsn) {
            return false;
        }
        self.syncing = None;
        self.synced = lsn;
        true
    }

    /// Takes out the replies and calls whose records are synced.
    pub(crate) fn take_released(&mut self) -> (Vec<PendingReply>, Vec<PendingCall>) {
        let next = Lsn::new(self.synced.raw() + 1);
        let still_gated = self.replies.split_off(&next);
        let replies = std::mem::replace(&mut self.replies, still_gated);
        let still_gated = self.calls.split_off(&next);
        let calls = std::mem::replace(&mut self.calls, still_gated);
        (replies.into_values().flatten().collect(), calls.into_values().flatten().collect())
    }

    /// Panics if an invariant of the type is broken.
    pub(crate) fn check_invariants(&self) {
        let last_covered = self.syncing.unwrap_or(self.synced);
        assert!(
            self.synced <= last_covered && last_covered < self.next_lsn,
            "synced ({}) <= covered by a sync ({last_covered}) < next record ({})",
            self.synced,
            self.next_lsn
        );
        let first = self.replies.keys().next().into_iter().chain(self.calls.keys().next());
        for lsn in first {
            assert!(*lsn > self.synced, "what waits for record {lsn} waits for a future sync");
        }
    }
}

/// Counts logged bytes until a checkpoint is due.
#[derive(Debug, Default)]
pub(crate) struct CheckpointTrigger {
    logged_bytes: u64,
    is_running: bool,
}

impl CheckpointTrigger {
    pub(crate) fn logged(&mut self, bytes: usize) {
        self.logged_bytes += bytes as u64;
    }

    /// Whether a checkpoint has to begin, which the caller then does.
    pub(crate) fn begin(&mut self, after_bytes: u64) -> bool {
        let is_due = self.logged_bytes >= after_bytes && !self.is_running;
        if is_due {
            self.is_running = true;
            self.logged_bytes = 0;
        }
        is_due
    }

    pub(crate) fn end(&mut self) {
        self.is_running = false;
    }
}
