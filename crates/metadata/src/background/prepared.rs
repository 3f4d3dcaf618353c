//! Ends transactions with other groups: asks coordinators for the decision on old prepared
//! transactions, and asks participants to confirm commits.

use super::task::{BackgroundCall, DecideCall, JobContext};
use crate::engine::Engine;
use crate::limits::{ASK_AFTER, RETRY_PAUSE};
use crate::tx::context::Context;
use crate::tx::locks::Owner;
use crate::tx::operation::{OutgoingCall, Stop};
use crate::tx::steps;
use crate::tx::work::InternalWork;
use skep_format::metadata::{
    DecisionRecord, Key, PreparedRecord, decode_value, last_u64, transaction_of,
};
use skep_types::codec::Codec;
use skep_types::{GroupId, Result};
use skep_wire::metadata::{AskDecision, Decision, DecisionReply, TransactionId};
use std::collections::BTreeMap;
use std::time::Duration;

/// Transactions that wait for another group.
#[derive(Debug, Default)]
pub(crate) struct PreparedTransactions {
    /// Prepared transactions, each with the time at which the job asks the coordinator (again).
    prepared: BTreeMap<TransactionId, Duration>,
    /// Commits that a participant has refused to confirm, each with the time at which the target
    /// sends it again.
    unconfirmed: Vec<(Duration, GroupId, u64)>,
}

impl PreparedTransactions {
    /// Restores the locks of prepared transactions, and sends the commits that participants have
    /// not confirmed yet.
    pub(crate) fn load<E: Engine>(&mut self, context: &mut JobContext<'_, E>) -> Result<()> {
        let now = context.shared.now;
        for (key, value) in context.table.scan(&Key::prepared(), &[], usize::MAX)? {
            let Some(transaction) = transaction_of(&key) else { continue };
            let record: PreparedRecord = decode_value(&key, &value)?;
            for resource in steps::resources(&record.steps, &record.attributes) {
                context.shared.locks.try_take(&resource, Owner::Prepared(transaction));
            }
            self.prepared.insert(transaction, now);
        }
        for (key, value) in context.table.scan(&Key::decisions(), &[], usize::MAX)? {
            let Some(number) = last_u64(&key) else { continue };
            let decision: DecisionRecord = decode_value(&key, &value)?;
            for participant in decision.participants {
                context.send_commit(participant, number);
            }
        }
        Ok(())
    }

    /// Asks the coordinators for the decision on transactions that were prepared long ago.
    pub(crate) fn ask<E: Engine>(&mut self, context: &mut JobContext<'_, E>) {
        let now = context.shared.now;
        for (transaction, at) in self.prepared.iter_mut().filter(|(_, at)| **at <= now) {
            *at = now + ASK_AFTER;
            let transaction = *transaction;
            let request = OutgoingCall::new(transaction.coordinator, &AskDecision { transaction });
            context.call(request, BackgroundCall::AskDecision(transaction));
        }
    }

    /// Sends refused commits again after their pause.
    pub(crate) fn send_again<E: Engine>(&mut self, context: &mut JobContext<'_, E>) {
        let now = context.shared.now;
        for (_, group, number) in self.unconfirmed.extract_if(.., |(at, ..)| *at <= now) {
            context.send_commit(group, number);
        }
    }

    /// Handles a participant's reply to a decision.
    pub(crate) fn on_decide_reply<E: Engine>(
        &mut self,
        call: &DecideCall,
        result: Result<Vec<u8>>,
        context: &mut JobContext<'_, E>,
    ) {
        let DecideCall { number, group, commit } = *call;
        match result {
            // A participant need not confirm an abort: if it missed the abort, it asks for the
            // decision.
            _ if !commit => {}
            Ok(_) => context.start(InternalWork::RecordConfirmation { number, participant: group }),
            Err(error) => {
                tracing::warn!(
                    "group {group} rejected the commit of transaction {number}: {error}; trying \
                     again in {RETRY_PAUSE:?}"
                );
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
        let is_open = self.prepared.contains_key(&transaction);
        if let (Ok(DecisionReply { decision }), true) = (decision, is_open)
            && decision != Decision::Pending
        {
            let commit = decision == Decision::Committed;
            context.start(InternalWork::EndPrepared { transaction, commit });
        }
    }

    /// Releases the locks of a prepared transaction whose end was committed.
    pub(crate) fn after_end<E: Engine>(
        &mut self,
        transaction: TransactionId,
        context: &mut JobContext<'_, E>,
    ) {
        self.prepared.remove(&transaction);
        context.release(Owner::Prepared(transaction));
    }

    /// Adds a prepared transaction, if the request has created one.
    pub(crate) fn after_prepare<E: Engine>(
        &mut self,
        transaction: TransactionId,
        context: &JobContext<'_, E>,
    ) -> Result<()> {
        if context.table.get(&Key::Prepared(transaction).to_bytes())?.is_some() {
            self.prepared.insert(transaction, context.shared.now + ASK_AFTER);
        }
        Ok(())
    }
}

/// Logs that a participant has confirmed a commit.
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
