//! A model of a metadata group for exhaustive checks: shipping of the log, leases, changes of the
//! epoch, return of members, power losses. The model checker `stateright` visits *every* state that
//! the model can reach within given bounds, and checks properties in each state. In contrast, the
//! simulation (`skep-sim`) runs the real state machines, but only in some random schedules.
//!
//! The protocol is the protocol of `docs/design/0014-metadata-groups.md`, whose section "Model"
//! states the parts that the model covers, and the parts that the model omits. The comment of each
//! module lists the source files whose rules it repeats. A commit that changes such a rule must
//! also change the model.
//!
//! # Time
//! The model has no clock. A backup member may ask to take over at any time. The promises of a
//! member may end at any time. All leases that the member has granted end before its promises end,
//! including leases in messages that are in flight. The lease times guarantee this order
//! (`cluster/src/lease_times.rs`).
//!
//! The product does not use this crate.

pub mod actions;
pub mod bounds;
pub mod bugs;
pub mod checks;
pub mod group;
pub mod history;
pub mod log;
pub mod member;
pub mod messages;
pub mod primary;
pub mod properties;
pub mod state;

use crate::actions::Action;
use crate::bounds::Bounds;
use crate::bugs::PlantedBug;
use crate::state::State;
use stateright::{Model, Property};

/// The model of one group within bounds.
#[derive(Debug, Clone)]
pub struct GroupModel {
    /// The bounds of the state space.
    pub bounds: Bounds,
    /// A planted error in the protocol. `None` means that the protocol is unchanged.
    pub bug: Option<PlantedBug>,
    /// Steps from the initial state to the first state of the check.
    pub begin: &'static [Action],
    /// Names of the properties that must be true in at least one state, so that the check is not
    /// vacuous.
    pub expects: &'static [&'static str],
}

impl Model for GroupModel {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut state = State::new(self);
        for action in self.begin {
            let next = self.next_state(&state, action.clone());
            state = next.unwrap_or_else(|| panic!("{action:?} is possible in {state:?}"));
        }
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions::possible(self, state, actions);
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        if !actions::perform(self, &mut state, action) {
            return None;
        }
        state.settle(self);
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all(self)
    }
}
