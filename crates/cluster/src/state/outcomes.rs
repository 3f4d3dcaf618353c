//! The outcomes of the last requests that have changed the state, so that management executes a
//! request only once, even if the sender repeats it.
//!
//! The outcome of a request that was refused or has changed nothing is not stored. Management
//! executes the retry of such a request as if the first attempt had not arrived. Does not own the
//! request ids, which the senders choose.
//!
//! # Invariants
//! - At most [`MAX_OUTCOMES`] outcomes are stored. The oldest one is removed first.
//! - Each request has at most one outcome, and no stored id is zero.
//!
//! [`RecentOutcomes::check_invariants`] asserts these invariants.

use crate::command::{Outcome, RequestId};
use crate::limits::MAX_OUTCOMES;
use skep_types::Result;
use skep_types::codec::{Codec, Reader, Writer};
use std::collections::{HashSet, VecDeque};

/// The outcomes in the order in which management executed the requests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct RecentOutcomes(VecDeque<(RequestId, Outcome)>);

impl RecentOutcomes {
    /// Returns the outcome of a request that has changed the state, if the outcome is stored.
    /// Outcomes of requests without an id are not stored.
    pub(super) fn of(&self, id: RequestId) -> Option<&Outcome> {
        // Search the newest outcomes first, because a retry arrives soon after the first attempt.
        let is_it = |(other, _): &&(RequestId, Outcome)| *other == id;
        self.0.iter().rev().find(is_it).map(|(_, outcome)| outcome)
    }

    /// Stores the outcome of a request, unless the request has no id.
    pub(super) fn keep(&mut self, id: RequestId, outcome: &Outcome) {
        if id.sender == 0 {
            return;
        }
        if self.0.len() >= MAX_OUTCOMES {
            self.0.pop_front();
        }
        self.0.push_back((id, outcome.clone()));
    }

    /// Asserts the invariants of the module.
    pub(super) fn check_invariants(&self) {
        assert!(self.0.len() <= MAX_OUTCOMES, "the number of outcomes is bounded");
        let ids: HashSet<_> = self.0.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids.len(), self.0.len(), "each request has one outcome");
        assert!(ids.iter().all(|id| id.sender != 0), "each outcome has a request");
    }
}

impl Codec for RecentOutcomes {
    const LAYOUT: &'static str = "u32 count, pairs";

    fn encode(&self, w: &mut Writer) {
        (self.0.len() as u32).encode(w);
        self.0.iter().for_each(|pair| pair.encode(w));
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self> {
        let all: Vec<(RequestId, Outcome)> = Codec::decode(r)?;
        if all.len() > MAX_OUTCOMES {
            return Err(r.corrupt(format_args!(
                "{} outcomes of requests are more than the limit of {MAX_OUTCOMES}",
                all.len()
            )));
        }
        Ok(Self(all.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{ClientRegistration, Proposal};
    use crate::state::tests::any_command;
    use crate::{ClusterState, Command};
    use proptest::prelude::*;
    use skep_types::ClusterId;
    use std::collections::HashMap;

    fn register(sender: u64, number: u64) -> Proposal {
        let command = Command::RegisterClient(ClientRegistration::default());
        Proposal { id: RequestId { sender, number }, command }
    }

    #[test]
    fn repeated_registration_returns_the_same_id() {
        let mut state = ClusterState::new(ClusterId::new([7; 16]));
        let first = state.execute(&register(5, 1)).unwrap();
        let other = state.execute(&register(5, 2)).unwrap();
        assert_ne!(first.node, other.node);
        // The outcomes are part of the snapshot, so a restart does not lose them.
        let mut state = ClusterState::from_snapshot(&state.snapshot()).unwrap();
        let again = state.execute(&register(5, 1)).unwrap();
        assert_eq!(again, Outcome { changed: false, ..first });
        assert_eq!(state.clients().len(), 2);
        let without_id = Proposal::from(register(0, 0).command);
        assert_ne!(
            state.execute(&without_id).unwrap().node,
            state.execute(&without_id).unwrap().node
        );
    }

    #[test]
    fn oldest_command_outcome_is_removed_if_too_many_are_stored() {
        let mut outcomes = RecentOutcomes::default();
        let id = |number| RequestId { sender: 1, number };
        for number in 0..=MAX_OUTCOMES as u64 {
            outcomes.keep(id(number), &Outcome::default());
        }
        outcomes.check_invariants();
        assert!(outcomes.of(id(0)).is_none() && outcomes.of(id(1)).is_some());
        assert_eq!(RecentOutcomes::from_bytes(&outcomes.to_bytes()).unwrap(), outcomes);
        outcomes.0.push_back((id(0), Outcome::default()));
        assert!(RecentOutcomes::from_bytes(&outcomes.to_bytes()).is_err());
    }

    proptest! {
        /// In the model, each request is executed until it has changed something, and then never
        /// again.
        #[test]
        fn each_request_changes_the_cluster_state_at_most_once(
            commands in prop::collection::vec(any_command(), 1..12),
            order in prop::collection::vec(0..12_usize, 1..60),
        ) {
            let mut state = ClusterState::new(ClusterId::new([7; 16]));
            let mut model = state.clone();
            let mut done = HashMap::new();
            for index in order {
                let index = index % commands.len();
                let command = commands[index].clone();
                let id = RequestId { sender: 1, number: index as u64 };
                let expected = match done.get(&index) {
                    Some(outcome) => Ok(Outcome { changed: false, ..Outcome::clone(outcome) }),
                    None => model.apply(&command),
                };
                if let Ok(outcome) = &expected && outcome.changed {
                    done.insert(index, outcome.clone());
                }
                let outcome = state.execute(&Proposal { id, command });
                prop_assert_eq!(
                    outcome.map_err(|error| error.code()),
                    expected.map_err(|error| error.code())
                );
                prop_assert_eq!(&state.durable, &model.durable);
                state.check_invariants();
            }
        }
    }
}
