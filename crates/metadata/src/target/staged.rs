//! Staged transactions: changes of two groups whose logs are synced at the same time
//! (`docs/design/0028-staged-transactions.md`). This target's group coordinates these transactions.
//!
//! When the participant has prepared its steps, even if not durably yet, this target logs its own
//! changes with a *staged* record (`Key::Staged`) and the reply in the slot. The transaction is
//! committed when both are true: the staged record is *safe*, and the participant has confirmed
//! that its prepared transaction is durable. After the commit, the target sends the reply. If the
//! participant has lost its prepared transaction, this target undoes its own changes.
//!
//! ```text
//!            staged record is safe, and the participant has the transaction
//!   staged ----------------------------------------------------------------> committed: `Decision`
//!      |
//!      |     the participant does not have the transaction
//!      +-------------------------------------------------------------------> undone
//! ```
//!
//! This module owns the replies that wait for staged transactions, and the requests to their
//! participants. `background::staged` owns the changes of the store.
//!
//! # Invariants
//! - The outcome depends only on durable facts. The target undoes a staged transaction only because
//!   of the reply of its participant. An earlier process may have found the transaction committed,
//!   and may have sent the reply to the client.
//! - After an undo, the request runs again only when the undo is *safe*.
//! - The target sends no reply to the request, and no `ApplyPrepared`, before the transaction is
//!   committed. The target sends `Decide` only when the record of the commit is *safe*.
//! - From the staged record until the commit is logged, or until the undo is *safe*, the name of
//!   the entry is locked. So no other operation builds on the change. Only listings and attributes
//!   of the directory show the change.
//!
//! Held by the tests `staged_change_is_acknowledged_when_both_logs_are_synced`,
//! `staged_change_is_undone_if_the_participant_has_lost_it` and
//! `restarted_coordinator_asks_its_participant_before_it_commits`, and by the checker
//! `lose_prepared` of the simulator.

use super::calls::CallPurpose;
use super::gates::{PendingReply, ReplyGate};
use super::waits::WaitReason;
use crate::engine::Engine;
use crate::limits::{MAX_REPETITIONS, RETRY_PAUSE};
use crate::target::MetadataTarget;
use crate::tx::locks::{Owner, Resource};
use crate::tx::operation::{Operation, OutgoingCall, Source};
use crate::tx::work::InternalWork;
use skep_format::metadata::{Key, StagedRecord, decode_value, expect_parsed, last_u64};
use skep_metrics::LineLimit;
use skep_types::codec::Codec;
use skep_types::{Error, ErrorCode, GroupId, Lsn, Result, SessionId, Timestamp};
use skep_wire::metadata::{ApplyPrepared, ConfirmPrepared, ConfirmPreparedReply, TransactionId};
use std::collections::BTreeMap;
use std::time::Duration;

/// A request of a client: its session, slot and sequence number.
pub(crate) type StagedRequest = (SessionId, u32, u64);

/// The progress of a staged transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// The participant has not replied yet.
    Asked,
    /// The participant has refused to reply. The target asks again at this time.
    AskAt(Duration),
    /// The participant has durably prepared its steps.
    Prepared,
    /// The participant does not have the transaction.
    Lost,
    /// The transaction that commits or undoes the staged transaction has started.
    Ending,
    /// This log record has undone the changes.
    Undone(Lsn),
}

/// A reply to the request of a staged transaction.
#[derive(Debug)]
struct StagedReply {
    reply: PendingReply,
    /// Record that must be *safe* before the reply leaves.
    after: Lsn,
}

#[derive(Debug)]
struct StagedTransaction {
    participant: GroupId,
    since: Timestamp,
    request: StagedRequest,
    /// The time at which this process has staged or loaded the transaction.
    staged_at: Duration,
    /// The log record of the staged transaction, or a later one.
    lsn: Lsn,
    progress: Progress,
    replies: Vec<StagedReply>,
}

/// The staged transactions that are neither committed nor undone, by number.
#[derive(Debug, Default)]
pub(super) struct StagedTransactions {
    all: BTreeMap<u64, StagedTransaction>,
    /// Limits the rate of log lines about participants that refuse to reply.
    lines: LineLimit,
}

impl StagedTransactions {
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns the time at which this process has staged or loaded a transaction.
    pub(super) fn since(&self, number: u64) -> Option<Duration> {
        self.all.get(&number).map(|staged| staged.staged_at)
    }

    /// Returns the number of transactions whose record is in the store.
    pub(super) fn stored_count(&self) -> usize {
        let is_stored = |it: &&StagedTransaction| !matches!(it.progress, Progress::Undone(_));
        self.all.values().filter(is_stored).count()
    }

    /// Returns the transactions whose outcome is certain now, each with the work that ends it.
    /// `safe` is the last *safe* record.
    fn begin_ends(&mut self, safe: Lsn) -> Vec<InternalWork> {
        let mut ends = Vec::new();
        for (number, staged) in &mut self.all {
            let end = match staged.progress {
                Progress::Prepared if staged.lsn <= safe => InternalWork::CommitStaged(*number),
                Progress::Lost => InternalWork::UndoStaged(*number),
                _ => continue,
            };
            staged.progress = Progress::Ending;
            ends.push(end);
        }
        ends
    }

    /// Removes and returns the transactions whose undo is *safe*. `safe` is the last *safe* record.
    fn take_undone(&mut self, safe: Lsn) -> Vec<(u64, StagedTransaction)> {
        let is_over = |progress: Progress| matches!(progress, Progress::Undone(lsn) if lsn <= safe);
        let over = self.all.iter().filter(|(_, staged)| is_over(staged.progress));
        let over: Vec<_> = over.map(|(number, _)| *number).collect();
        over.into_iter().filter_map(|number| Some((number, self.all.remove(&number)?))).collect()
    }

    /// Returns the transactions about which the target must ask again now.
    fn begin_questions(&mut self, now: Duration) -> Vec<u64> {
        let mut due = Vec::new();
        for (number, staged) in &mut self.all {
            if matches!(staged.progress, Progress::AskAt(at) if at <= now) {
                staged.progress = Progress::Asked;
                due.push(*number);
            }
        }
        due
    }
}

impl<E: Engine> MetadataTarget<E> {
    /// Ends an operation whose changes the log record `lsn` contains as staged. The reply waits for
    /// the participant and for this record.
    pub(super) fn stage(
        &mut self,
        mut op: Operation,
        lsn: Lsn,
        reply: Vec<u8>,
        record: StagedRecord,
    ) {
        let (Some(number), Source::Peer { connection, header }) =
            (op.transaction.take(), op.source)
        else {
            return;
        };
        let trace = header.trace;
        self.sessions.clear_running_slot((header.session, header.slot));
        let repetitions = std::mem::take(&mut op.repetitions);
        let requests = repetitions.into_iter().chain([(connection, header)]);
        let replies = requests.map(|(connection, request)| {
            let (change, result) = (Some(0), Ok(reply.clone()));
            let reply = PendingReply { connection, request, change, result };
            StagedReply { reply, after: lsn }
        });
        let replies: Vec<_> = replies.collect();
        for StagedReply { reply, .. } in &replies {
            self.gates.waits.add(reply.connection, reply.request.tag, WaitReason::Others);
        }
        let is_added = self.add_staged(number, record, lsn, replies);
        assert!(is_added, "the name that the operation has just changed is not locked");
        self.ask_participant(number, trace);
        self.gates.request_sync();
    }

    /// Adds a staged transaction, and locks the name of its entry. Returns `false` if the name is
    /// already locked.
    fn add_staged(
        &mut self,
        number: u64,
        record: StagedRecord,
        lsn: Lsn,
        replies: Vec<StagedReply>,
    ) -> bool {
        let StagedRecord { participant, since, entry, session, slot, sequence } = record;
        let (request, progress) = ((session, slot, sequence), Progress::Asked);
        let now = self.shared.now;
        let staged = StagedTransaction {
            participant,
            since,
            request,
            staged_at: now,
            lsn,
            progress,
            replies,
        };
        self.operations.staged.all.insert(number, staged);
        let resource = Resource::Dentry(entry.directory, entry.name.0);
        self.shared.locks.try_take(&resource, Owner::Staged(number), now)
    }

    /// Loads the staged transactions when the target starts, and asks their participants. `last` is
    /// the last record of the log.
    pub(super) fn load_staged(&mut self, last: Lsn) -> Result<()> {
        for (key, value) in self.table.scan(&Key::staged(), &[], usize::MAX)? {
            let number = expect_parsed(&key, last_u64(&key))?;
            let record: StagedRecord = decode_value(&key, &value)?;
            let is_safe = self.table.get_safe::<StagedRecord>(&key)?.is_some();
            let directory = record.entry.directory;
            let lsn = if is_safe { Lsn::default() } else { last };
            if !self.add_staged(number, record, lsn, Vec::new()) {
                let what = format!(
                    "cannot load staged transaction {number}: another transaction has changed the \
                     same name of directory {directory}"
                );
                return Err(Error::new(ErrorCode::Corrupt, what));
            }
            self.ask_participant(number, 0);
        }
        Ok(())
    }

    /// Asks the participant of a staged transaction whether it has the prepared transaction.
    fn ask_participant(&mut self, number: u64, trace: u128) {
        let Some(staged) = self.operations.staged.all.get(&number) else { return };
        let transaction = TransactionId { coordinator: self.shared.group, number };
        let confirm = ConfirmPrepared { transaction, since: staged.since };
        let request = OutgoingCall { trace, ..OutgoingCall::new(staged.participant, &confirm) };
        self.call(request, CallPurpose::Confirm { number });
    }

    /// Handles the reply of a participant to [`ConfirmPrepared`], or its refusal.
    pub(super) fn on_confirmed(&mut self, number: u64, result: Result<Vec<u8>>) {
        let now = self.shared.now;
        let StagedTransactions { all, lines } = &mut self.operations.staged;
        let Some(staged) = all.get_mut(&number) else { return };
        let reply = result.and_then(|body| ConfirmPreparedReply::from_bytes(&body));
        staged.progress = match reply {
            Ok(ConfirmPreparedReply { is_prepared: true }) => Progress::Prepared,
            Ok(ConfirmPreparedReply { is_prepared: false }) => Progress::Lost,
            Err(error) => {
                if lines.is_due(now) {
                    let (own, group) = (self.shared.group.raw(), staged.participant.raw());
                    tracing::warn!(
                        "metadata group {group} has not confirmed its part of transaction \
                         {own}:{number} yet, and metadata group {own} asks again: {error}"
                    );
                }
                // Retry: the outcome depends on the reply, so the target asks until it has one.
                Progress::AskAt(now + RETRY_PAUSE)
            }
        };
    }

    /// Starts the end of each staged transaction whose outcome is certain, and asks participants
    /// again that have refused to reply.
    pub(super) fn settle_staged(&mut self) {
        if self.operations.staged.is_empty() {
            return;
        }
        let safe = self.gates.safe();
        for work in self.operations.staged.begin_ends(safe) {
            self.start_internal(work);
        }
        let now = self.shared.now;
        for number in self.operations.staged.begin_questions(now) {
            self.ask_participant(number, 0);
        }
        for (number, undone) in self.operations.staged.take_undone(safe) {
            self.refuse_undone(undone);
            self.release(Owner::Staged(number));
        }
    }

    /// Releases the lock of a staged transaction and the replies to its request, after its commit
    /// was logged in the record `lsn`. The replies do not wait for that record, because the
    /// transaction was committed before the record was logged.
    pub(super) fn staged_committed(&mut self, number: u64, lsn: Lsn) {
        let Some(staged) = self.operations.staged.all.remove(&number) else { return };
        for StagedReply { reply, after } in staged.replies {
            let gate = ReplyGate { held: after, safe: after, awaits_periodic_sync: false };
            self.batch.replies.push((gate, reply));
        }
        let transaction = TransactionId { coordinator: self.shared.group, number };
        let apply = OutgoingCall::new(staged.participant, &ApplyPrepared { transaction });
        // `Decide` follows, so the target needs no reply.
        self.call(apply, CallPurpose::Abandoned);
        self.send_commit_later(staged.participant, number, lsn);
        self.release(Owner::Staged(number));
    }

    /// Handles the undo of a staged transaction in the record `lsn`. The request must not run again
    /// before this record is *safe*. A power loss could otherwise remove the second execution and
    /// the undo. The slot would then show the request as executed, and its client would not replay
    /// it.
    pub(super) fn staged_undone(&mut self, number: u64, lsn: Lsn) {
        if let Some(staged) = self.operations.staged.all.get_mut(&number) {
            staged.progress = Progress::Undone(lsn);
            self.gates.request_sync();
        }
    }

    /// Refuses the request of a staged transaction that was undone, so that the clients send it
    /// again.
    fn refuse_undone(&mut self, undone: StagedTransaction) {
        let group = undone.participant;
        for StagedReply { reply, .. } in undone.replies {
            let what = format!(
                "cannot execute the request yet: metadata group {group} has lost its part of the \
                 change, so the target has undone the change and executes the request again"
            );
            let PendingReply { connection, request, .. } = reply;
            self.refuse(connection, request, Error::new(ErrorCode::Busy, what));
        }
    }

    /// Logs that the changes of a staged transaction cannot be undone. The name stays locked, and
    /// the target serves all other requests.
    pub(super) fn note_failed_undo(&mut self, number: u64, error: &Error) {
        let own = self.shared.group.raw();
        tracing::error!(
            "cannot undo the staged transaction {own}:{number}: {error}; the name of this \
             transaction stays locked; check the stores with `skep fsck`"
        );
    }

    /// If a request belongs to a staged transaction, makes its reply wait for the end of this
    /// transaction, and returns `None`. Returns the reply of any other request. `after` is the
    /// record that must be *safe* before the reply leaves.
    pub(crate) fn hold_if_staged(
        &mut self,
        reply: PendingReply,
        after: Lsn,
    ) -> Option<PendingReply> {
        let header = &reply.request;
        let request = (header.session, header.slot, header.sequence);
        let mut all = self.operations.staged.all.values_mut();
        let Some(staged) = all.find(|staged| staged.request == request) else {
            return Some(reply);
        };
        let after = after.max(staged.lsn);
        self.gates.waits.add(reply.connection, reply.request.tag, WaitReason::Others);
        staged.replies.push(StagedReply { reply, after });
        if staged.replies.len() > MAX_REPETITIONS {
            staged.replies.remove(0);
        }
        None
    }

    /// Whether the outcome of a request is not certain yet, because its transaction is staged.
    pub(crate) fn is_staged(&self, request: StagedRequest) -> bool {
        self.operations.staged.all.values().any(|staged| staged.request == request)
    }
}
