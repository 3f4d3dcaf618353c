//! An exhaustive model of a metadata group: shipping of the log, leases, change of the epoch,
//! return of members, power losses. The checker `stateright` visits *every* state that the model
//! can reach within given bounds, and checks properties in each of them. The simulation
//! (`skep-sim`) runs the real state machines, but only some random schedules.
//!
//! The protocol is that of `docs/design/0014-metadata-groups.md`, whose section "Model" states what
//! the model covers, and what it does not. The modules name the source files whose rules they
//! repeat. A change of such a rule belongs into the model too.
//!
//! # Time
//! The model has no clock. A backup member may ask to take over at any time. The promises of a
//! member end at any time. Before that, all leases end that the member has granted, also the leases
//! of messages that are still under way. The lease times are chosen so that this order is certain
//! (`cluster/src/lease_times.rs`).
//!
//! Does not own any code of the product, and is never shipped.

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
    /// An error in the protocol. `None` means the protocol as it is.
    pub bug: Option<PlantedBug>,
    /// Steps before the first state. The checker visits all states after them.
    pub begin: &'static [Action],
    /// Names of the properties that must be true in some state, so that the check is not vacuous.
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
