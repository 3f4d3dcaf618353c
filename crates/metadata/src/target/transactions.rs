//! Transactions with other groups, in which the target's group is the coordinator or a participant.

use super::calls::CallPurpose;
use super::events::Action;
use crate::background::{BackgroundCall, DecideCall};
use crate::engine::Engine;
use crate::target::MetadataTarget;
use crate::tx::operation::{CallId, OutgoingCall};
use skep_format::metadata::{DecisionRecord, Key};
use skep_types::codec::Codec;
use skep_types::{GroupId, Lsn, Result};
use skep_wire::Request;
use skep_wire::frame::Header;
use skep_wire::metadata::{Decide, Decision, DecisionReply, Prepare, TransactionId};

impl<E: Engine> MetadataTarget<E> {
    /// Sends a request to another group.
    pub(super) fn call(&mut self, request: OutgoingCall, purpose: CallPurpose) {
        let call = self.calls.add(purpose);
        self.batch.actions.push(Action::Call { call, request });
    }

    /// Handles the reply of another group.
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
            Some(CallPurpose::Abandoned) | None => {}
        }
        Ok(())
    }

    /// Sends a participant the decision on a transaction. With `after`, sends it only after that
    /// record is synced.
    pub(super) fn send_decision(
        &mut self,
        group: GroupId,
        number: u64,
        commit: bool,
        after: Option<Lsn>,
    ) {
        let transaction = TransactionId { coordinator: self.shared.group, number };
        let request = OutgoingCall::new(group, &Decide { transaction, commit });
        let call = BackgroundCall::Decide(DecideCall { number, group, commit });
        let purpose = CallPurpose::Background(call);
        match after {
            Some(lsn) if lsn > self.gates.synced() => self.gates.gate_call(lsn, (request, purpose)),
            _ => self.call(request, purpose),
        }
    }

    /// Whether a transaction of this group is still undecided.
    fn is_coordinating(&self, number: u64) -> bool {
        self.operations.is_coordinating(number) || self.gates.holds_decision_of(number)
    }

    /// Returns the decision on a transaction of this group. The decision is pending as long as a
    /// power loss could still change it.
    pub(crate) fn decision(&self, transaction: TransactionId) -> Result<DecisionReply> {
        let key = Key::Decision(transaction.number).to_bytes();
        let decision = if self.table.get_synced::<DecisionRecord>(&key)?.is_some() {
            Decision::Committed
        } else if self.table.get(&key)?.is_some() || self.is_coordinating(transaction.number) {
            Decision::Pending
        } else {
            Decision::Aborted
        };
        Ok(DecisionReply { decision })
    }
}

/// Returns the transaction of a `Decide` or `Prepare` request.
pub(super) fn transaction_in(header: &Header, body: &[u8]) -> Option<TransactionId> {
    match header.message {
        Decide::ID => Decide::from_bytes(body).ok().map(|it| it.transaction),
        Prepare::ID => Prepare::from_bytes(body).ok().map(|it| it.transaction),
        _ => None,
    }
}
