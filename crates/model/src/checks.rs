//! The checks of the model: small bounds of the state space for `cargo test`, and larger bounds for
//! `cargo xtask external --only epochs`.

use crate::GroupModel;
use crate::actions::Action;
use crate::bounds::{Bounds, Faults};
use crate::bugs::PlantedBug;
use crate::properties::{self, LATE_CHANGE, RECOVERY, RELEASE, RETURN, TAKE_OVER};
use stateright::{Checker, HasDiscoveries, Model, Path, UniformChooser};
use std::time::Duration;

/// A model with its bounds, and a name for its output.
#[derive(Debug, Clone)]
pub struct Check {
    /// Name of the check, which lists the faults and operations that the bounds permit.
    pub name: &'static str,
    /// The model with its bounds.
    pub model: GroupModel,
}

/// Permits no writes and no faults.
pub const NO_FAULTS: Faults =
    Faults { writes: 0, power_losses: 0, kills: 0, old_maps: 0, late_messages: 0, late_changes: 0 };

/// Returns the bounds of a model without leases. No administrator makes another member the primary.
pub const fn records(members: usize, epochs: u8, faults: Faults) -> Bounds {
    Bounds { members, epochs, moves: false, leases: false, faults }
}

/// Returns the bounds of a model without leases. An administrator may make another member the
/// primary.
pub const fn moved(members: usize, epochs: u8, faults: Faults) -> Bounds {
    Bounds { members, epochs, moves: true, leases: false, faults }
}

/// Returns the bounds of a model with leases. An administrator may make another member the primary.
pub const fn leases(members: usize, epochs: u8, faults: Faults) -> Bounds {
    Bounds { members, epochs, moves: true, leases: true, faults }
}

const fn check(name: &'static str, bounds: Bounds, expects: &'static [&'static str]) -> Check {
    Check { name, model: GroupModel { bounds, bug: None, begin: &[], expects } }
}

/// Member 0 has only the lease that member 1 has granted. Member 1 becomes the primary, and waits
/// for the end of this lease. Member 2 gets all records of member 1, and becomes a counted member.
pub const COUNTED_DURING_WAIT: &[Action] = &[
    Action::Drop(0, 2),
    Action::ReceiveMap(0),
    Action::ReceiveMap(1),
    Action::Exchange(0, 1),
    Action::TakeOver(1),
    Action::ReceiveMap(1),
    Action::ReceiveMap(2),
    Action::Sync(1),
    Action::Exchange(1, 2),
    Action::Sync(2),
    Action::Exchange(1, 2),
    Action::Count(1, 2),
];

/// The checks of `cargo test`. Each visits all states within some seconds.
pub const SMALL: &[Check] = &[
    check(
        "power losses",
        records(2, 4, Faults { writes: 1, power_losses: 2, ..NO_FAULTS }),
        &[TAKE_OVER, RETURN, RECOVERY],
    ),
    check(
        "a late message and a power loss",
        records(2, 3, Faults { writes: 1, power_losses: 1, late_messages: 1, ..NO_FAULTS }),
        &[TAKE_OVER, RETURN],
    ),
    check(
        "a late message, a kill and a power loss",
        records(2, 3, Faults { power_losses: 1, kills: 1, late_messages: 1, ..NO_FAULTS }),
        &[TAKE_OVER, RETURN],
    ),
    check(
        "a late request to management and a power loss",
        records(2, 3, Faults { writes: 1, power_losses: 1, late_changes: 1, ..NO_FAULTS }),
        &[TAKE_OVER, RETURN, LATE_CHANGE],
    ),
    check(
        "a late request to management, a kill and a power loss",
        records(
            2,
            2,
            Faults { writes: 1, power_losses: 1, kills: 1, late_changes: 1, ..NO_FAULTS },
        ),
        &[TAKE_OVER, LATE_CHANGE],
    ),
    check(
        "three members, a late request to management and a power loss",
        records(3, 2, Faults { power_losses: 1, late_changes: 1, ..NO_FAULTS }),
        &[TAKE_OVER],
    ),
    check(
        "old maps and a power loss",
        records(2, 3, Faults { writes: 1, power_losses: 1, old_maps: 1, ..NO_FAULTS }),
        &[TAKE_OVER, RETURN],
    ),
    check(
        "an old map, a power loss, moves",
        moved(2, 4, Faults { power_losses: 1, old_maps: 1, ..NO_FAULTS }),
        &[TAKE_OVER, RETURN],
    ),
    check(
        "three members and a power loss",
        records(3, 3, Faults { power_losses: 1, ..NO_FAULTS }),
        &[TAKE_OVER, RETURN],
    ),
    check(
        "three members, an old map and a power loss",
        records(3, 2, Faults { power_losses: 1, old_maps: 1, ..NO_FAULTS }),
        &[TAKE_OVER],
    ),
    check(
        "leases with a late message",
        leases(2, 3, Faults { late_messages: 1, ..NO_FAULTS }),
        &[TAKE_OVER, RETURN, RELEASE],
    ),
    Check {
        name: "leases of three members after a take-over",
        model: GroupModel {
            bounds: leases(3, 3, NO_FAULTS),
            bug: None,
            begin: &[Action::TakeOver(1), Action::ReceiveMap(1), Action::ReceiveMap(2)],
            expects: &[TAKE_OVER, RETURN, RELEASE],
        },
    },
];

/// The checks of `cargo xtask external --only epochs`.
pub const LARGE: &[Check] = &[
    check(
        "power losses, moves",
        moved(2, 4, Faults { writes: 1, power_losses: 2, ..NO_FAULTS }),
        &[TAKE_OVER, RETURN, RECOVERY],
    ),
    check(
        "power losses, five epochs",
        records(2, 5, Faults { writes: 1, power_losses: 2, ..NO_FAULTS }),
        &[TAKE_OVER, RETURN, RECOVERY],
    ),
    check(
        "a late message, a kill, a power loss and a record",
        records(
            2,
            3,
            Faults { writes: 1, power_losses: 1, kills: 1, late_messages: 1, ..NO_FAULTS },
        ),
        &[TAKE_OVER, RETURN],
    ),
    check(
        "a late request to management, an old map, a power loss, moves",
        moved(2, 4, Faults { power_losses: 1, old_maps: 1, late_changes: 1, ..NO_FAULTS }),
        &[TAKE_OVER, RETURN, LATE_CHANGE],
    ),
    check(
        "a late request to management and two power losses",
        records(2, 4, Faults { writes: 1, power_losses: 2, late_changes: 1, ..NO_FAULTS }),
        &[TAKE_OVER, RETURN, RECOVERY, LATE_CHANGE],
    ),
    check(
        "leases, a late request to management and a power loss",
        leases(2, 3, Faults { power_losses: 1, late_changes: 1, ..NO_FAULTS }),
        &[TAKE_OVER, RETURN, RELEASE, LATE_CHANGE],
    ),
    check(
        "three members, a late request to management, a power loss, three epochs",
        records(3, 3, Faults { power_losses: 1, late_changes: 1, ..NO_FAULTS }),
        &[TAKE_OVER, RETURN],
    ),
    check(
        "old maps, a power loss, moves",
        moved(2, 4, Faults { power_losses: 1, old_maps: 2, ..NO_FAULTS }),
        &[TAKE_OVER, RETURN],
    ),
    check(
        "leases with a late message, a power loss and a record",
        leases(2, 3, Faults { writes: 1, power_losses: 1, late_messages: 1, ..NO_FAULTS }),
        &[TAKE_OVER, RETURN, RELEASE],
    ),
    check(
        "three members, a power loss, four epochs",
        records(3, 4, Faults { power_losses: 1, ..NO_FAULTS }),
        &[TAKE_OVER, RETURN],
    ),
    check(
        "three members, a kill and a record",
        records(3, 3, Faults { writes: 1, kills: 1, ..NO_FAULTS }),
        &[TAKE_OVER, RETURN],
    ),
    check("leases of three members", leases(3, 3, NO_FAULTS), &[TAKE_OVER, RETURN, RELEASE]),
    Check {
        name: "leases of three members, return during a lease wait",
        model: GroupModel {
            bounds: leases(3, 5, NO_FAULTS),
            bug: None,
            begin: COUNTED_DURING_WAIT,
            expects: &[TAKE_OVER, RETURN, RELEASE],
        },
    },
];

const MANY: Faults =
    Faults { writes: 3, power_losses: 2, kills: 1, old_maps: 2, late_messages: 1, late_changes: 2 };

/// Models for random runs. These models have too many states for a complete search.
pub const RANDOM: &[Check] = &[
    check("random runs of two members", moved(2, 6, MANY), &[]),
    check("random runs of three members", moved(3, 6, MANY), &[]),
    check("random runs of three members with leases", leases(3, 6, MANY), &[]),
];

/// Performs random runs of a model for the time `time`. Returns the number of visited states.
///
/// # Errors
/// Names each violated property, with the steps to a state that violates it. Some of these steps
/// are not possible in the model, and change nothing.
pub fn run_random(model: &GroupModel, seed: u64, time: Duration) -> Result<usize, String> {
    let builder = model.clone().checker().finish_when(HasDiscoveries::AnyFailures).timeout(time);
    let checker = builder.spawn_simulation(seed, UniformChooser).join();
    let of = |(name, path): (&str, Path<_, Action>)| {
        format!("invariant violated: {name}; steps: {:?}", path.into_actions())
    };
    let problems: Vec<String> = checker.discoveries().into_iter().map(of).collect();
    if problems.is_empty() { Ok(checker.state_count()) } else { Err(problems.join("\n")) }
}

/// Visits all states of a model with `threads` threads. Returns the number of different states.
///
/// # Errors
/// Names each violated property, with the steps to a state that violates it, and each expected
/// property that no state has.
pub fn run(model: &GroupModel, threads: usize) -> Result<usize, String> {
    let checker = model.clone().checker().threads(threads).spawn_bfs().join();
    let found = checker.discoveries();
    let always = properties::always();
    let mut problems: Vec<String> = model
        .expects
        .iter()
        .filter(|name| !found.contains_key(*name))
        .map(|name| format!("no state has the expected property: {name}"))
        .collect();
    for (name, path) in found {
        if always.contains(&name) {
            problems.push(format!("invariant violated: {name}; steps: {:?}", path.into_actions()));
        }
    }
    match problems.is_empty() {
        true => Ok(checker.unique_state_count()),
        false => Err(problems.join("\n")),
    }
}

/// Returns the steps to a state that violates `property` in the protocol with the error `bug`.
/// `None` means that the property holds in all states.
pub fn violation(bug: PlantedBug, bounds: Bounds, property: &'static str) -> Option<Vec<Action>> {
    violation_after(&[], bug, bounds, property)
}

/// Like [`violation`], but the search begins in the state after the steps `begin`. Returns only the
/// steps after `begin`.
pub fn violation_after(
    begin: &'static [Action],
    bug: PlantedBug,
    bounds: Bounds,
    property: &'static str,
) -> Option<Vec<Action>> {
    let model = GroupModel { bounds, bug: Some(bug), begin, expects: &[] };
    let until = HasDiscoveries::AnyOf([property].into());
    let checker = model.checker().finish_when(until).spawn_bfs().join();
    checker.discovery(property).map(|path| path.into_actions())
}
