//! Completes transactions over several groups. As a participant, the job asks coordinators for the
//! decision on prepared transactions that have waited long. As a coordinator, the job sends each
//! commit to a participant until the participant confirms the commit.

use super::task::{BackgroundCall, DecideCall, JobContext};
use crate::engine::Engine;
use crate::limits::{ASK_AFTER, RESOLVABLE_AFTER, RETRY_PAUSE, STUCK_PAUSE};
use crate::tx::context::Context;
use crate::tx::locks::Owner;
use crate::tx::operation::{OutgoingCall, Stop};
use crate::tx::steps;
use crate::tx::work::InternalWork;
use skep_format::metadata::{
    DecisionRecord, Key, PreparedRecord, decode_value, expect_parsed, last_u64, transaction_of,
};
use skep_metrics::LineLimit;
use skep_types::codec::Codec;
use skep_types::{Error, ErrorCode, GroupId, Lsn, Result};
use skep_wire::metadata::{AskDecision, Decision, DecisionReply, TransactionId};
use std::collections::BTreeMap;
use std::time::Duration;

/// The state of the job's requests for the decision on a prepared transaction.
#[derive(Debug)]
enum Wait {
    /// The job asks the coordinator for the decision at this time.
    Until(Duration),
    /// The job asked the coordinator at this time and has no reply yet. The job sends the next
    /// request only after the reply.
    Asked(Duration),
}

#[derive(Debug)]
struct PreparedTransaction {
    wait: Wait,
    /// The log record that prepared the transaction, or a later one. `None` means that an earlier
    /// process prepared it.
    lsn: Option<Lsn>,
    /// The error if the target could not carry out the decision on this transaction.
    problem: Option<Error>,
}

/// Transactions over several groups that wait for the decision of a coordinator or the confirmation
/// of a participant.
#[derive(Debug, Default)]
pub(crate) struct PreparedTransactions {
    /// Transactions that this target has prepared and other groups coordinate.
    prepared: BTreeMap<TransactionId, PreparedTransaction>,
    /// Commits that a participant has refused to confirm, each with the time at which the target
    /// sends the commit again.
    unconfirmed: Vec<(Duration, GroupId, u64)>,
    /// Commits that a participant has not confirmed, by the number of the transaction. Each has the
    /// time at which the target has first sent the commit or queued it.
    committed: BTreeMap<(u64, GroupId), Duration>,
    /// Limits the rate of log lines about unconfirmed commits.
    lines: LineLimit,
}

impl PreparedTransactions {
    /// Restores the locks of prepared transactions, and sends the commits that participants have
    /// not confirmed yet.
    pub(crate) fn load<E: Engine>(&mut self, context: &mut JobContext<'_, E>) -> Result<()> {
        let now = context.shared.now;
        for (key, value) in context.table.scan(&Key::prepared(), &[], usize::MAX)? {
            let transaction = expect_parsed(&key, transaction_of(&key))?;
            let record: PreparedRecord = decode_value(&key, &value)?;
            for resource in steps::resources(&record.steps, &record.attributes) {
                context.shared.locks.try_take(&resource, Owner::Prepared(transaction), now);
            }
            self.add(transaction, now, None);
        }
        for (key, value) in context.table.scan(&Key::decisions(), &[], usize::MAX)? {
            let number = expect_parsed(&key, last_u64(&key))?;
            let decision: DecisionRecord = decode_value(&key, &value)?;
            for participant in decision.participants {
                context.send_commit(participant, number);
            }
        }
        Ok(())
    }

    /// Asks the coordinators of prepared transactions for the decision, where a request is due.
    pub(crate) fn ask<E: Engine>(&mut self, context: &mut JobContext<'_, E>) {
        let now = context.shared.now;
        for (transaction, state) in &mut self.prepared {
            if !matches!(state.wait, Wait::Until(at) if at <= now) {
                continue;
            }
            state.wait = Wait::Asked(now);
            let transaction = *transaction;
            let request = OutgoingCall::new(transaction.coordinator, &AskDecision { transaction });
            context.call(request, BackgroundCall::AskDecision(transaction));
        }
    }

    /// Repeats each commit that a participant has refused, when the pause after the refusal has
    /// ended.
    pub(crate) fn send_again<E: Engine>(&mut self, context: &mut JobContext<'_, E>) {
        let now = context.shared.now;
        for (_, group, number) in self.unconfirmed.extract_if(.., |(at, ..)| *at <= now) {
            context.send_commit(group, number);
        }
    }

    /// Notes that the target sends a commit to a participant now, or when a record is *safe*.
    pub(crate) fn note_commit(&mut self, number: u64, group: GroupId, now: Duration) {
        self.committed.entry((number, group)).or_insert(now);
    }

    /// Returns the time at which the target has first sent the commit of a transaction that some
    /// participant has not confirmed. `None` if all participants have confirmed the commit.
    pub(crate) fn committed_at(&self, number: u64) -> Option<Duration> {
        let groups = (number, GroupId::new(0))..=(number, GroupId::new(u32::MAX));
        self.committed.range(groups).map(|(_, at)| *at).min()
    }

    /// Handles a participant's reply to a `Decide` request, or the participant's refusal.
    pub(crate) fn on_decide_reply<E: Engine>(
        &mut self,
        call: &DecideCall,
        result: Result<Vec<u8>>,
        context: &mut JobContext<'_, E>,
    ) {
        let DecideCall { number, group, commit } = *call;
        match result {
            // A participant need not confirm an abort. If the abort did not reach the participant,
            // the participant asks for the decision.
            _ if !commit => {}
            Ok(_) => {
                self.committed.remove(&(number, group));
                context.start(InternalWork::RecordConfirmation { number, participant: group });
            }
            Err(error) => {
                if self.lines.is_due(context.shared.now) {
                    let own = context.shared.group;
                    tracing::warn!(
                        "metadata group {group} has not confirmed the end of transaction \
                         {}:{number} yet, and metadata group {own} retries: {error}",
                        own.raw()
                    );
                }
                self.unconfirmed.push((context.shared.now + RETRY_PAUSE, group, number));
            }
        }
    }

    /// Handles a coordinator's reply about a prepared transaction.
    pub(crate) fn on_decision<E: Engine>(
        &mut self,
        transaction: TransactionId,
        result: Result<Vec<u8>>,
        context: &mut JobContext<'_, E>,
    ) {
        let decision = result.and_then(|body| DecisionReply::from_bytes(&body));
        let Some(state) = self.prepared.get_mut(&transaction) else { return };
        let pause = if state.problem.is_some() { STUCK_PAUSE } else { ASK_AFTER };
        state.wait = Wait::Until(context.shared.now + pause);
        if let Ok(DecisionReply { decision }) = decision
            && decision != Decision::Pending
        {
            let commit = decision == Decision::Committed;
            context.start(InternalWork::EndPrepared { transaction, commit });
        }
    }

    /// Removes a prepared transaction and releases its locks, after its commit or abort was logged.
    pub(crate) fn after_end<E: Engine>(
        &mut self,
        transaction: TransactionId,
        context: &mut JobContext<'_, E>,
    ) {
        self.prepared.remove(&transaction);
        context.release(Owner::Prepared(transaction));
    }

    /// Adds the transaction of a `Prepare` request, if the request was successful. `lsn` is the log
    /// record of the prepared transaction, or a later one.
    pub(crate) fn after_prepare<E: Engine>(
        &mut self,
        transaction: TransactionId,
        lsn: Lsn,
        context: &JobContext<'_, E>,
    ) -> Result<()> {
        if context.table.get(&Key::Prepared(transaction).to_bytes())?.is_some() {
            // A repeated request prepares nothing, so the record of the first request counts.
            let lsn = self.prepared.get(&transaction).map_or(Some(lsn), |state| state.lsn);
            self.add(transaction, context.shared.now + ASK_AFTER, lsn);
        }
        Ok(())
    }

    fn add(&mut self, transaction: TransactionId, ask_at: Duration, lsn: Option<Lsn>) {
        let state = PreparedTransaction { wait: Wait::Until(ask_at), lsn, problem: None };
        self.prepared.insert(transaction, state);
    }

    /// Returns the log record that prepared a transaction, or a later one. `None` if the
    /// transaction is not prepared, or if an earlier process prepared it.
    pub(crate) fn lsn_of(&self, transaction: TransactionId) -> Option<Lsn> {
        self.prepared.get(&transaction)?.lsn
    }

    /// Returns the number of prepared transactions.
    pub(crate) fn len(&self) -> usize {
        self.prepared.len()
    }

    /// Returns the number of prepared transactions whose decision this target could not carry out.
    pub(crate) fn stuck(&self) -> usize {
        self.prepared.values().filter(|state| state.problem.is_some()).count()
    }

    /// Notes that the target could not carry out the decision on a transaction, and logs an error.
    /// The transaction stays prepared, and keeps its locks.
    pub(crate) fn set_problem(&mut self, transaction: TransactionId, problem: &Error) {
        let Some(state) = self.prepared.get_mut(&transaction) else { return };
        if state.problem.replace(problem.clone()).is_none() {
            let TransactionId { coordinator, number } = transaction;
            tracing::error!(
                "cannot carry out the decision on transaction {}:{number}: {problem}; the names \
                 and inodes of this transaction stay locked; see `skep transaction list`",
                coordinator.raw()
            );
        }
    }

    /// Returns the time for which this target has waited for the coordinator's decision. Zero means
    /// that this target waits for no reply. Also returns the reason why the target could not carry
    /// out the decision.
    pub(crate) fn state_of(
        &self,
        transaction: TransactionId,
        now: Duration,
    ) -> (Duration, Option<&Error>) {
        let state = self.prepared.get(&transaction);
        let silent = match state.map(|state| &state.wait) {
            Some(Wait::Asked(at)) => now.saturating_sub(*at),
            _ => Duration::ZERO,
        };
        (silent, state.and_then(|state| state.problem.as_ref()))
    }

    /// Checks that an administrator may decide a transaction in place of its coordinator. This is
    /// the case if the coordinator has not replied for [`RESOLVABLE_AFTER`], or if this target
    /// cannot carry out the coordinator's decision.
    ///
    /// # Errors
    /// `InUse` otherwise, because the coordinator may decide the transaction itself.
    pub(crate) fn check_resolvable(&self, transaction: TransactionId, now: Duration) -> Result<()> {
        let (silent, problem) = self.state_of(transaction, now);
        if problem.is_some()
            || silent >= RESOLVABLE_AFTER
            || !self.prepared.contains_key(&transaction)
        {
            return Ok(());
        }
        let what = format!(
            "cannot resolve the transaction: its coordinator, group {}, may still decide on it; \
             try again when the coordinator has not replied for {} s",
            transaction.coordinator,
            RESOLVABLE_AFTER.as_secs()
        );
        Err(Error::new(ErrorCode::InUse, what))
    }
}

/// Writes to the store that a participant has confirmed a commit.
pub(super) fn record_confirmation<E: Engine>(
    context: &mut Context<'_, E>,
    number: u64,
    participant: GroupId,
) -> Result<(), Stop> {
    let key = Key::Decision(number);
    if let Some(mut decision) = context.get::<DecisionRecord>(&key)? {
        decision.participants.retain(|it| *it != participant);
        if decision.participants.is_empty() {
            context.delete(&key);
        } else {
            context.put(&key, &decision);
        }
    }
    Ok(())
}
