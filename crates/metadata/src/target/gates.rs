//! The gates of a target: queues of replies and calls that must wait for the log. A reply or call
//! waits until every serving member of the group has appended a log record (the record is *held*),
//! or has synced it (the record is *safe*).
//!
//! This module owns the LSNs of log records, the state of syncs, and the waiting replies and calls.
//! The module does not own the progress of the members (`watermarks`) or the contents of records
//! (`tx::table`).

use super::calls::CallPurpose;
use super::events::Action;
use super::start::SyncPolicy;
use super::sync_timer::SyncTimer;
use super::waits::{WaitReason, Waits};
use super::watermarks::Watermarks;
use crate::shipping::Progress;
use crate::shipping::member_link::GroupLog;
use crate::tx::operation::{ConnectionId, OutgoingCall};
use skep_types::{Epoch, Lsn, Result, TargetId};
use skep_wire::frame::Header;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

/// A reply that is not sent yet.
#[derive(Debug)]
pub(crate) struct PendingReply {
    pub(crate) connection: ConnectionId,
    pub(crate) request: Header,
    /// Number of the change, which the header of the reply contains in place of the sequence. Zero
    /// if the change is safe when the reply leaves. `None` means that the header of the reply
    /// repeats the sequence of the request.
    pub(crate) change: Option<u64>,
    pub(crate) result: Result<Vec<u8>>,
}

/// The condition for sending a reply. The target determines the gate once, when it queues the
/// reply.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ReplyGate {
    /// Last record whose changes the reply may show. Every serving member must have appended it.
    pub(crate) held: Lsn,
    /// Last log record that every serving member must have synced. Zero means that the reply waits
    /// for no sync.
    pub(crate) safe: Lsn,
    /// Whether the reply may wait for the next periodic sync. If not, the target requests a sync
    /// for the reply.
    pub(crate) awaits_periodic_sync: bool,
}

/// A call that is not sent yet.
type PendingCall = (OutgoingCall, CallPurpose);

/// The output of the batch in progress.
#[derive(Debug, Default)]
pub(crate) struct BatchOutput {
    pub(crate) replies: Vec<(ReplyGate, PendingReply)>,
    pub(crate) actions: Vec<Action>,
    /// Complete log records, each as an [`Action::Append`].
    pub(crate) records: Vec<Action>,
}

/// The state of the log, with the replies and calls that wait for it.
///
/// # Invariants
/// - Last synced record <= last record that a finished or running sync covers <= last appended
///   record.
/// - Each reply in `until_held` waits for a record that is not held. Each reply in `until_safe` and
///   each call in `calls` waits for a record that is not safe.
#[derive(Debug)]
pub(crate) struct SyncGates {
    policy: SyncPolicy,
    /// Epoch of the group. New records get this epoch.
    epoch: Epoch,
    watermarks: Watermarks,
    sync: SyncTimer,
    /// Last record that all serving members must sync immediately, since a reply, call or operation
    /// waits for this sync.
    sync_wanted: Lsn,
    until_held: BTreeMap<Lsn, Vec<(ReplyGate, PendingReply)>>,
    until_safe: BTreeMap<Lsn, Vec<PendingReply>>,
    calls: BTreeMap<Lsn, Vec<PendingCall>>,
    /// Replies whose records are held and safe, but which wait until the primary has its lease
    /// again.
    until_lease: Vec<PendingReply>,
    /// The waits that began in the batch in progress.
    pub(super) waits: Waits,
}

impl SyncGates {
    /// Creates the gates of a target whose log ends with a record of the epoch `epoch`.
    pub(crate) fn new(
        policy: SyncPolicy,
        epoch: Epoch,
        watermarks: Watermarks,
        now: Duration,
    ) -> Self {
        let synced = watermarks.synced();
        Self {
            policy,
            epoch,
            sync: SyncTimer::new(synced, synced < watermarks.appended(), now),
            watermarks,
            sync_wanted: Lsn::default(),
            until_held: BTreeMap::new(),
            until_safe: BTreeMap::new(),
            calls: BTreeMap::new(),
            until_lease: Vec::new(),
            waits: Waits::default(),
        }
    }

    /// Returns the epoch of the group, which new records get.
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Begins a higher epoch. All later records get this epoch. Forgets the progress of all other
    /// members, because a member that lost power may have fewer records than it reported in an
    /// earlier epoch.
    pub(crate) fn begin_epoch(&mut self, epoch: Epoch) {
        debug_assert!(epoch > self.epoch, "a new epoch is higher than the present one");
        self.epoch = epoch;
        self.watermarks.forget_others();
    }

    /// Returns the LSN of the next record, which will contain the next transaction.
    pub(crate) fn next_lsn(&self) -> Lsn {
        Lsn::new(self.watermarks.appended().raw() + 1)
    }

    pub(crate) fn last_logged(&self) -> Lsn {
        self.watermarks.appended()
    }

    /// Returns the last record that this target has synced.
    pub(crate) fn synced(&self) -> Lsn {
        self.watermarks.synced()
    }

    /// Returns the last record that every serving member has synced.
    pub(crate) fn safe(&self) -> Lsn {
        self.watermarks.safe()
    }

    /// Returns the progress that a member must have made before it may serve.
    pub(crate) fn needed_to_serve(&self) -> Progress {
        self.watermarks.needed_to_serve()
    }

    /// Replaces the list of the other serving members of the group.
    pub(crate) fn set_others(&mut self, others: Vec<TargetId>) {
        self.watermarks.set_others(others);
    }

    /// Until the next epoch, counts a record as *held* only if this target has synced it too.
    pub(crate) fn hold_only_synced(&mut self) {
        self.watermarks.hold_only_synced();
    }

    /// Whether a record counts as *held* only if this target has synced it too.
    pub(crate) fn holds_only_synced(&self) -> bool {
        self.watermarks.holds_only_synced()
    }

    /// Updates the progress that another member has confirmed in this epoch.
    pub(crate) fn acknowledge(&mut self, member: TargetId, progress: Progress) {
        self.watermarks.acknowledge(member, progress);
    }

    /// Whether every reply waits until the log is synced.
    pub(crate) fn syncs_each_reply(&self) -> bool {
        self.policy == SyncPolicy::Always
    }

    /// Whether the log has a record that no sync covers. Tests use it.
    #[cfg(test)]
    pub(crate) fn has_unsynced(&self) -> bool {
        self.sync.has_unsynced()
    }

    /// Whether the log has a record that some serving member has not synced.
    pub(crate) fn has_unsafe(&self) -> bool {
        self.safe() < self.last_logged()
    }

    /// Returns the time at which the next sync is due. `None` means that a sync is running, or that
    /// there is nothing to sync.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        self.sync.next_due()
    }

    /// If the disk of this target hangs at the time `now`, returns the last record that the running
    /// sync covers, and the time at which this sync began.
    pub(crate) fn hanging_sync(&self, now: Duration) -> Option<(Lsn, Duration)> {
        self.sync.hanging(now)
    }

    /// Counts the duration of a running sync from `now`, because this process was stopped.
    pub(crate) fn restart_sync_wait(&mut self, now: Duration) {
        self.sync.restart_wait(now);
    }

    /// Makes this target and the other members sync all records immediately, including the record
    /// in progress.
    pub(crate) fn request_sync(&mut self) {
        self.request_sync_of(self.next_lsn());
    }

    /// Makes this target's next sync begin immediately if the log has records that are not synced.
    pub(crate) fn request_own_sync(&mut self) {
        if self.synced() < self.last_logged() {
            self.sync.request();
        }
    }

    fn request_sync_of(&mut self, lsn: Lsn) {
        // A running sync that covers the record is sufficient. A further request would make the
        // next record begin a sync, which no operation needs.
        if lsn > self.sync.covered() {
            self.sync.request();
        }
        self.sync_wanted = self.sync_wanted.max(lsn);
    }

    /// Returns the state of the log that the shipper's requests report to the other members.
    pub(crate) fn group_log(&self) -> GroupLog {
        GroupLog {
            wait_ms: 0,
            epoch: self.epoch,
            held: self.watermarks.held(),
            safe: self.safe(),
            synced: self.synced(),
            sync_wanted: self.sync_wanted,
        }
    }

    /// Ends the record in progress, and records that this target has appended it.
    pub(crate) fn end_record(&mut self, now: Duration) {
        self.watermarks.append(self.next_lsn());
        self.sync.appended(now);
    }

    /// Returns the reply if the records of its gate are held and safe. If a record is not held or
    /// not safe yet, queues the reply and returns `None`.
    pub(crate) fn pass(&mut self, gate: ReplyGate, reply: PendingReply) -> Option<PendingReply> {
        if gate.safe > self.safe() && !gate.awaits_periodic_sync {
            self.request_sync_of(gate.safe);
        }
        if gate.held > self.watermarks.held() {
            self.waits.add(reply.connection, reply.request.tag, self.reason_until_held(gate.held));
            self.until_held.entry(gate.held).or_default().push((gate, reply));
        } else if gate.safe > self.safe() {
            self.waits.add(reply.connection, reply.request.tag, self.reason_until_safe(gate.safe));
            self.until_safe.entry(gate.safe).or_default().push(reply);
        } else {
            return Some(reply);
        }
        None
    }

    /// Returns the replies that the target may send now. If `may_answer` is false, queues the
    /// replies and returns none.
    pub(crate) fn pass_lease(
        &mut self,
        may_answer: bool,
        replies: Vec<PendingReply>,
    ) -> Vec<PendingReply> {
        if may_answer && self.until_lease.is_empty() {
            return replies;
        }
        replies
            .iter()
            .for_each(|it| self.waits.add(it.connection, it.request.tag, WaitReason::Copies));
        self.until_lease.extend(replies);
        if may_answer { std::mem::take(&mut self.until_lease) } else { Vec::new() }
    }

    /// Makes a complete reply wait until the primary has its lease.
    pub(crate) fn hold_until_lease(
        &mut self,
        connection: ConnectionId,
        request: Header,
        result: Result<Vec<u8>>,
    ) {
        // The header of a complete reply already has the number of the change.
        self.until_lease.push(PendingReply { connection, request, change: None, result });
    }

    /// Makes a call wait until record `after` is safe, and requests a sync for it.
    pub(crate) fn gate_call(&mut self, after: Lsn, call: PendingCall) {
        self.calls.entry(after).or_default().push(call);
        self.request_sync_of(after);
    }

    /// Makes a call wait until record `after` is safe, without a request for a sync. The record
    /// must not be safe yet.
    pub(crate) fn gate_call_until_sync(&mut self, after: Lsn, call: PendingCall) {
        self.calls.entry(after).or_default().push(call);
    }

    /// Whether a call that sends the decision about `transaction` waits for the log.
    pub(crate) fn holds_decision_of(&self, transaction: u64) -> bool {
        self.calls.values().flatten().any(|(_, purpose)| purpose.sends_decision_of(transaction))
    }

    /// Begins a sync if it is time for a sync or a sync was requested. Returns the last record that
    /// the sync covers; `None` means that no sync begins.
    pub(crate) fn begin_sync(&mut self, now: Duration) -> Option<Lsn> {
        self.sync.begin(self.last_logged(), now)
    }

    /// Ends the sync up to `lsn`. Returns `false` if no sync up to `lsn` is running.
    pub(crate) fn end_sync(&mut self, lsn: Lsn) -> bool {
        let before = self.synced();
        let was_running = self.sync.end(lsn);
        if was_running {
            self.watermarks.sync(lsn);
            let synced = (Bound::Excluded(before), Bound::Included(lsn));
            let until_held = self.until_held.range(synced).flat_map(|(_, gated)| gated);
            let until_held = until_held.map(|(_, reply)| reply);
            let replies = self.until_safe.range(synced).flat_map(|(_, replies)| replies);
            let replies = replies.chain(until_held.filter(|_| self.watermarks.holds_only_synced()));
            // This target has synced these records, so the replies to them wait only for other
            // members.
            replies
                .for_each(|it| self.waits.add(it.connection, it.request.tag, WaitReason::Copies));
        }
        was_running
    }

    /// Returns the reason why a reply waits until this record is held.
    fn reason_until_held(&self, lsn: Lsn) -> WaitReason {
        if self.holds_only_synced() && lsn > self.synced() {
            WaitReason::OwnSync
        } else {
            WaitReason::Copies
        }
    }

    /// Returns the reason why a reply waits until this record is safe.
    pub(super) fn reason_until_safe(&self, lsn: Lsn) -> WaitReason {
        if lsn <= self.synced() { WaitReason::Copies } else { WaitReason::OwnSync }
    }

    /// Removes and returns the replies whose records are held and safe, and the calls whose records
    /// are safe.
    pub(crate) fn take_released(&mut self) -> (Vec<PendingReply>, Vec<PendingCall>) {
        let (held, safe) = (self.watermarks.held(), self.safe());
        let mut replies: Vec<_> = take_up_to(&mut self.until_safe, safe).collect();
        for (gate, reply) in take_up_to(&mut self.until_held, held) {
            replies.extend(self.pass(gate, reply));
        }
        (replies, take_up_to(&mut self.calls, safe).collect())
    }

    /// Panics if an invariant of the type is violated.
    pub(crate) fn check_invariants(&self) {
        self.watermarks.check_invariants();
        let (synced, last) = (self.synced(), self.last_logged());
        let last_covered = self.sync.covered();
        assert!(
            synced <= last_covered && last_covered <= last,
            "synced ({synced}) <= covered by a sync ({last_covered}) <= last record ({last})",
        );
        let held = self.watermarks.held();
        let first_held = self.until_held.keys().next();
        assert!(
            first_held.is_none_or(|lsn| *lsn > held),
            "only replies to records above {held} wait"
        );
        let safe = self.safe();
        for lsn in self.until_safe.keys().next().into_iter().chain(self.calls.keys().next()) {
            assert!(
                *lsn > safe,
                "a reply or call waits for record {lsn}, but records up to {safe} are safe"
            );
        }
    }
}

/// Removes and returns the values that wait for a record up to `last`, in the order of the records.
fn take_up_to<T>(
    waiting: &mut BTreeMap<Lsn, Vec<T>>,
    last: Lsn,
) -> impl Iterator<Item = T> + use<T> {
    let still_waiting = waiting.split_off(&Lsn::new(last.raw() + 1));
    std::mem::replace(waiting, still_waiting).into_values().flatten()
}

/// Counts logged bytes, and decides when a checkpoint begins.
#[derive(Debug, Default)]
pub(crate) struct CheckpointTrigger {
    logged_bytes: u64,
    is_running: bool,
}

impl CheckpointTrigger {
    pub(crate) fn logged(&mut self, bytes: usize) {
        self.logged_bytes += bytes as u64;
    }

    /// Returns whether a checkpoint must begin now. If so, marks it as running, and the caller must
    /// begin it.
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
