//! Transactions over several groups (two-phase commit), in which this target's group is the
//! coordinator or a participant.

use super::calls::CallPurpose;
use super::events::Action;
use crate::background::{BackgroundCall, DecideCall};
use crate::engine::Engine;
use crate::limits::MAX_PREPARED;
use crate::target::MetadataTarget;
use crate::tx::locks::Owner;
use crate::tx::operation::{CallId, OutgoingCall};
use skep_format::metadata::{
    DecisionRecord, Key, PreparedRecord, StagedEntry, StagedRecord, decode_value, expect_parsed,
    last_u64, transaction_of,
};
use skep_types::codec::{Bytes, Codec};
use skep_types::{Error, ErrorCode, GroupId, Lsn, Result};
use skep_wire::Request;
use skep_wire::frame::Header;
use skep_wire::limits::MAX_LISTED_TRANSACTIONS;
use skep_wire::metadata::{
    ApplyPrepared, BeginPrepare, ConfirmPrepared, ConfirmPreparedReply, CoordinatedEntry,
    CoordinatedList, Decide, Decision, DecisionReply, ListCoordinated, ListTransactions, Prepare,
    ResolveTransaction, TransactionEntry, TransactionId, TransactionList,
};
use std::time::Duration;

impl<E: Engine> MetadataTarget<E> {
    /// Sends a request to another group.
    pub(super) fn call(&mut self, request: OutgoingCall, purpose: CallPurpose) {
        let call = self.calls.add(purpose);
        self.batch.actions.push(Action::Call { call, request });
    }

    /// Passes another group's reply to the operation or background job that sent the call.
    pub(super) fn on_answer(&mut self, call: CallId, result: Result<Vec<u8>>) -> Result<()> {
        match self.calls.take(call) {
            Some(CallPurpose::Operation { id, index }) => {
                if let Some(op) = self.operations.get_mut(id) {
                    if let Some(remote_call) = op.remote_calls.get_mut(index) {
                        remote_call.reply = Some(result);
                    }
                    self.operations.wake([id]);
                }
            }
            Some(CallPurpose::Background(call)) => return self.on_background_reply(call, result),
            Some(CallPurpose::Confirm { number }) => self.on_confirmed(number, result),
            Some(CallPurpose::Abandoned) | None => {}
        }
        Ok(())
    }

    /// Sends the decision about the transaction `number` to the participant `group`. If `after` is
    /// a record, waits until this record is *safe*.
    pub(super) fn send_decision(
        &mut self,
        group: GroupId,
        number: u64,
        commit: bool,
        after: Option<Lsn>,
    ) {
        if commit {
            self.background.note_commit(number, group, self.shared.now);
        }
        let transaction = TransactionId { coordinator: self.shared.group, number };
        let request = OutgoingCall::new(group, &Decide { transaction, commit });
        let call = BackgroundCall::Decide(DecideCall { number, group, commit });
        let purpose = CallPurpose::Background(call);
        match after {
            Some(lsn) if lsn > self.gates.safe() => self.gates.gate_call(lsn, (request, purpose)),
            _ => self.call(request, purpose),
        }
    }

    /// Sends a commit to the participant `group` when the record `after` is *safe*. The record must
    /// not be *safe* yet. Requests no sync of this record, because no operation waits for this
    /// commit.
    pub(super) fn send_commit_later(&mut self, group: GroupId, number: u64, after: Lsn) {
        self.background.note_commit(number, group, self.shared.now);
        let transaction = TransactionId { coordinator: self.shared.group, number };
        let request = OutgoingCall::new(group, &Decide { transaction, commit: true });
        let call = BackgroundCall::Decide(DecideCall { number, group, commit: true });
        self.gates.gate_call_until_sync(after, (request, CallPurpose::Background(call)));
    }

    /// Whether this group coordinates the transaction `number`, and its decision is not made or not
    /// *safe* yet.
    fn is_coordinating(&self, number: u64) -> bool {
        self.operations.is_coordinating(number) || self.gates.holds_decision_of(number)
    }

    /// Returns the decision on a transaction of this group. The decision is `Pending` while a power
    /// loss or a change of the primary could still revert it.
    pub(crate) fn decision(&self, transaction: TransactionId) -> Result<DecisionReply> {
        let key = Key::Decision(transaction.number).to_bytes();
        let staged = Key::Staged(transaction.number).to_bytes();
        let is_open = self.table.get(&key)?.is_some() || self.table.get(&staged)?.is_some();
        let decision = if self.table.get_safe::<DecisionRecord>(&key)?.is_some() {
            Decision::Committed
        } else if is_open || self.is_coordinating(transaction.number) {
            Decision::Pending
        } else {
            Decision::Aborted
        };
        Ok(DecisionReply { decision })
    }
}

impl<E: Engine> MetadataTarget<E> {
    /// Checks a `Prepare` request against the limit of prepared transactions, and checks whether an
    /// administrator may decide the transaction of a `ResolveTransaction` request. Accepts all
    /// other requests.
    pub(crate) fn check_transaction(&self, header: &Header, body: &[u8]) -> Result<()> {
        let prepared = self.background.prepared();
        match transaction_in(header, body) {
            Some(_)
                if [Prepare::ID, BeginPrepare::ID].contains(&header.message)
                    && prepared.len() >= MAX_PREPARED =>
            {
                let what = format!(
                    "cannot prepare a transaction: {MAX_PREPARED} transactions already wait for \
                     their coordinators; see `skep transaction list`"
                );
                Err(Error::new(ErrorCode::LimitReached, what))
            }
            Some(transaction) if header.message == ResolveTransaction::ID => {
                prepared.check_resolvable(transaction, self.shared.now)
            }
            _ => Ok(()),
        }
    }

    /// Updates the prepared transactions and their locks after a request about a transaction of
    /// another group was committed. Does nothing after other requests.
    pub(super) fn after_transaction_request(
        &mut self,
        header: &Header,
        body: &[u8],
        reply: &[u8],
    ) -> Result<()> {
        let Some(transaction) = transaction_in(header, body) else { return Ok(()) };
        match header.message {
            ResolveTransaction::ID if self.has_prepared(transaction)? => {
                self.release(Owner::Prepared(transaction));
            }
            Decide::ID | ResolveTransaction::ID => self.after_decide(transaction)?,
            Prepare::ID => self.after_prepare(transaction)?,
            BeginPrepare::ID => {
                self.after_prepare(transaction)?;
                // The coordinator will ask whether the prepared transaction is durable, so begin
                // the sync now.
                if self.table.has_batch() {
                    self.gates.request_sync();
                }
            }
            ConfirmPrepared::ID if !ConfirmPreparedReply::from_bytes(reply)?.is_prepared => {
                self.after_decide(transaction)?;
            }
            ApplyPrepared::ID => self.release(Owner::Prepared(transaction)),
            _ => {}
        }
        Ok(())
    }

    /// Returns the record that must be *safe* before the reply to a `ConfirmPrepared` request
    /// leaves. A confirmation depends only on the record of the prepared transaction, which the
    /// sync that `BeginPrepare` has requested covers. If the confirmation waited for later records
    /// too, a busy target would need a second sync. A denial depends on the record that the handler
    /// writes.
    pub(super) fn record_to_confirm(&self, header: &Header, body: &[u8], reply: &[u8]) -> Lsn {
        let confirmed = ConfirmPreparedReply::from_bytes(reply).is_ok_and(|it| it.is_prepared);
        let transaction = transaction_in(header, body).filter(|_| confirmed);
        let prepared = transaction.and_then(|it| self.background.prepared().lsn_of(it));
        prepared.unwrap_or_else(|| self.newest_record())
    }

    fn has_prepared(&self, transaction: TransactionId) -> Result<bool> {
        Ok(self.table.get(&Key::Prepared(transaction).to_bytes())?.is_some())
    }

    /// Returns a page of the transactions of other groups that are prepared on this target.
    pub(crate) fn list_transactions(&self, request: &ListTransactions) -> Result<TransactionList> {
        let after = Key::Prepared(request.after).to_bytes();
        let page = self.table.scan(&Key::prepared(), &after, MAX_LISTED_TRANSACTIONS)?;
        let is_full = page.len() == MAX_LISTED_TRANSACTIONS;
        let mut transactions = Vec::with_capacity(page.len());
        for (key, value) in page {
            let transaction = expect_parsed(&key, transaction_of(&key))?;
            let record: PreparedRecord = decode_value(&key, &value)?;
            let (silent, problem) =
                self.background.prepared().state_of(transaction, self.shared.now);
            transactions.push(TransactionEntry {
                transaction,
                since: record.since,
                steps: u32::try_from(record.steps.len()).unwrap_or(u32::MAX),
                silent_ms: u64::try_from(silent.as_millis()).unwrap_or(u64::MAX),
                problem: problem.map(ToString::to_string).unwrap_or_default(),
            });
        }
        let next = transactions.last().filter(|_| is_full).map(|entry| entry.transaction);
        Ok(TransactionList { transactions, next })
    }

    /// Returns a page of the transactions of this group that wait for the confirmation of another
    /// group.
    pub(crate) fn list_coordinated(&self, request: &ListCoordinated) -> Result<CoordinatedList> {
        let (group, now) = (self.shared.group, self.shared.now);
        let entry = |number, participants, since: Option<Duration>| {
            let waits = since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
            CoordinatedEntry {
                transaction: TransactionId { coordinator: group, number },
                participants,
                waits_ms: u64::try_from(waits.as_millis()).unwrap_or(u64::MAX),
                directory: None,
                name: Bytes::default(),
            }
        };
        let most = MAX_LISTED_TRANSACTIONS;
        let mut transactions = Vec::new();
        let after = Key::Staged(request.after).to_bytes();
        for (key, value) in self.table.scan(&Key::staged(), &after, most)? {
            let number = expect_parsed(&key, last_u64(&key))?;
            let record: StagedRecord = decode_value(&key, &value)?;
            let since = self.operations.staged.since(number);
            let of_staged = entry(number, vec![record.participant], since);
            let StagedEntry { directory, name, .. } = record.entry;
            transactions.push(CoordinatedEntry { directory: Some(directory), name, ..of_staged });
        }
        let after = Key::Decision(request.after).to_bytes();
        for (key, value) in self.table.scan(&Key::decisions(), &after, most)? {
            let number = expect_parsed(&key, last_u64(&key))?;
            let decision: DecisionRecord = decode_value(&key, &value)?;
            let since = self.background.prepared().committed_at(number);
            transactions.push(entry(number, decision.participants, since));
        }
        // Each scan has returned its lowest numbers. So the `most` lowest numbers of both scans are
        // the page.
        transactions.sort_by_key(|it| it.transaction.number);
        let is_full = transactions.len() >= most;
        transactions.truncate(most);
        let next = transactions.last().filter(|_| is_full).map(|it| it.transaction.number);
        Ok(CoordinatedList { transactions, next })
    }
}

/// Returns the transaction that a request prepares or ends. `None` means that the request has
/// another type or is malformed.
pub(super) fn transaction_in(header: &Header, body: &[u8]) -> Option<TransactionId> {
    match header.message {
        Decide::ID => Decide::from_bytes(body).ok().map(|it| it.transaction),
        Prepare::ID => Prepare::from_bytes(body).ok().map(|it| it.transaction),
        BeginPrepare::ID => BeginPrepare::from_bytes(body).ok().map(|it| it.transaction),
        ConfirmPrepared::ID => ConfirmPrepared::from_bytes(body).ok().map(|it| it.transaction),
        ApplyPrepared::ID => ApplyPrepared::from_bytes(body).ok().map(|it| it.transaction),
        ResolveTransaction::ID => {
            ResolveTransaction::from_bytes(body).ok().map(|it| it.transaction)
        }
        _ => None,
    }
}
