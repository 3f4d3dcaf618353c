//! The requests that a target has sent to other groups and that have no reply yet.

use crate::background::BackgroundCall;
use crate::tx::operation::CallId;
use std::collections::HashMap;

/// The receiver of the reply to a call.
#[derive(Debug)]
pub(crate) enum CallPurpose {
    /// An operation, which stores the reply at this index of its replies.
    Operation { id: u64, index: usize },
    /// A background job.
    Background(BackgroundCall),
    /// The staged transaction with this number, whose participant the target has asked.
    Confirm { number: u64 },
    /// The reply has no receiver, for example because the operation has restarted or has failed.
    /// The target drops the reply.
    Abandoned,
}

impl CallPurpose {
    /// Whether the call sends the decision about `transaction`, which this target's group
    /// coordinates.
    pub(crate) fn sends_decision_of(&self, transaction: u64) -> bool {
        matches!(self, Self::Background(BackgroundCall::Decide(it)) if it.number == transaction)
    }
}

/// Calls to other groups that have no reply yet.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    pending: HashMap<CallId, CallPurpose>,
    last_id: CallId,
}

impl Calls {
    /// Adds a call to another group, and returns its id.
    pub(crate) fn add(&mut self, purpose: CallPurpose) -> CallId {
        self.last_id += 1;
        self.pending.insert(self.last_id, purpose);
        self.last_id
    }

    /// Removes and returns a call that got its reply.
    pub(crate) fn take(&mut self, call: CallId) -> Option<CallPurpose> {
        self.pending.remove(&call)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    pub(super) fn purposes(&self) -> impl Iterator<Item = &CallPurpose> {
        self.pending.values()
    }

    /// Marks the calls of an operation as abandoned, so that the target drops their replies.
    pub(crate) fn abandon(&mut self, operation: u64) {
        for purpose in self.pending.values_mut() {
            if matches!(purpose, CallPurpose::Operation { id, .. } if *id == operation) {
                *purpose = CallPurpose::Abandoned;
            }
        }
    }

    /// Panics if an invariant of the type is violated.
    pub(crate) fn check_invariants(&self) {
        assert!(
            self.pending.keys().all(|id| (1..=self.last_id).contains(id)),
            "each call without a reply has an id that was assigned"
        );
    }
}
