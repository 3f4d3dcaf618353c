//! The output of a batch, and the replies and calls that wait for a sync of the log.
//!
//! Owns the numbers of log records, the state of syncs, and the replies and calls that a sync
//! releases. Does not own the contents of records (`tx::table`).

use super::calls::CallPurpose;
use super::events::Action;
use super::start::SyncPolicy;
use crate::limits::SYNC_AFTER;
use crate::tx::operation::{ConnectionId, OutgoingCall};
use skep_types::{Epoch, Lsn, Result};
use skep_wire::frame::Header;
use std::collections::BTreeMap;
use std::time::Duration;

/// A reply that is not sent yet.
#[derive(Debug)]
pub(crate) struct PendingReply {
    pub(crate) connection: ConnectionId,
    pub(crate) request: Header,
    pub(crate) result: Result<Vec<u8>>,
}

/// A call that is not sent yet.
type PendingCall = (OutgoingCall, CallPurpose);

/// The output of the batch that is running.
#[derive(Debug, Default)]
pub(crate) struct BatchOutput {
    pub(crate) replies: Vec<PendingReply>,
    pub(crate) actions: Vec<Action>,
    /// Complete log records, each as an [`Action::Append`].
    pub(crate) records: Vec<Action>,
}

/// The state of the log (appended, syncing, synced), with the replies and calls that wait for a
/// sync.
///
/// # Invariants
/// - `synced <= syncing < next_lsn`.
/// - Each reply in `replies` and each call in `calls` waits for a record that is not synced.
#[derive(Debug)]
pub(crate) struct SyncGates {
    policy: SyncPolicy,
    /// Epoch of the group, for new records.
    epoch: Epoch,
    /// Number of the record that will hold the next transaction.
    next_lsn: Lsn,
    synced: Lsn,
    syncing: Option<Lsn>,
    /// Append time of the oldest record that no sync covers.
    first_unsynced_at: Option<Duration>,
    /// Whether a reply, call or operation waits for a sync, so that the next sync begins at once.
    is_requested: bool,
    replies: BTreeMap<Lsn, Vec<PendingReply>>,
    calls: BTreeMap<Lsn, Vec<PendingCall>>,
}

impl SyncGates {
    /// Creates the gates of a target whose log ends with the synced record `last`, which has this
    /// epoch.
    pub(crate) fn new(policy: SyncPolicy, epoch: Epoch, last: Lsn) -> Self {
        Self {
            policy,
            epoch,
            next_lsn: Lsn::new(last.raw() + 1),
            synced: last,
            syncing: None,
            first_unsynced_at: None,
            is_requested: false,
            replies: BTreeMap::new(),
            calls: BTreeMap::new(),
        }
    }

    /// Returns the epoch of the group, which new records carry.
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Begins a higher epoch. All later records carry it.
    pub(crate) fn begin_epoch(&mut self, epoch: Epoch) {
        debug_assert!(epoch > self.epoch, "epochs rise");
        self.epoch = epoch;
    }

    /// Returns the number of the record that will hold the next transaction.
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

    /// Whether the log has a record that no sync covers.
    pub(crate) fn has_unsynced(&self) -> bool {
        self.first_unsynced_at.is_some()
    }

    /// Returns the time at which the next sync is due. `None` means that a sync is running, or that
    /// there is nothing to sync.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        let first = self.first_unsynced_at.filter(|_| self.syncing.is_none());
        first.map(|at| at + SYNC_AFTER)
    }

    /// Makes the next sync begin at once.
    pub(crate) fn request_sync(&mut self) {
        self.is_requested = true;
    }

    /// Ends the current log record.
    pub(crate) fn end_record(&mut self, now: Duration) {
        self.next_lsn = Lsn::new(self.next_lsn.raw() + 1);
        self.first_unsynced_at.get_or_insert(now);
    }

    /// Holds a reply back until record `after` is synced.
    pub(crate) fn gate_reply(&mut self, after: Lsn, reply: PendingReply) {
        self.replies.entry(after).or_default().push(reply);
        self.is_requested = true;
    }

    /// Holds a call back until record `after` is synced.
    pub(crate) fn gate_call(&mut self, after: Lsn, call: PendingCall) {
        self.calls.entry(after).or_default().push(call);
        self.is_requested = true;
    }

    /// Whether a call that sends the decision on this transaction is held back.
    pub(crate) fn holds_decision_of(&self, transaction: u64) -> bool {
        self.calls.values().flatten().any(|(_, purpose)| purpose.sends_decision_of(transaction))
    }

    /// Begins a sync if one is due or requested. Returns the last record that the sync covers;
    /// `None` means that no sync begins.
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

    /// Ends the sync up to `lsn`. Returns `false` if a different sync, or none, is running.
    pub(crate) fn end_sync(&mut self, lsn: Lsn) -> bool {
        if self.syncing != Some(lsn) {
            return false;
        }
        self.syncing = None;
        self.synced = lsn;
        true
    }

    /// Removes and returns the replies and calls whose records are synced.
    pub(crate) fn take_released(&mut self) -> (Vec<PendingReply>, Vec<PendingCall>) {
        let next = Lsn::new(self.synced.raw() + 1);
        let still_gated = self.replies.split_off(&next);
        let replies = std::mem::replace(&mut self.replies, still_gated);
        let still_gated = self.calls.split_off(&next);
        let calls = std::mem::replace(&mut self.calls, still_gated);
        (replies.into_values().flatten().collect(), calls.into_values().flatten().collect())
    }

    /// Panics if an invariant of the type is violated.
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

    /// Returns whether a checkpoint is due, and counts it as running. The caller must begin the
    /// checkpoint.
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
