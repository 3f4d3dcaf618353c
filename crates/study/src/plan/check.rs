//! Checks whether the keys of a plan contradict each other, and whether a system has enough hosts
//! and targets for the plan.

use super::values::wrong;
use super::{Cache, Condition, DataPer, Experiment, Factors, Level, Plan, Targets};
use crate::limits::MAX_RUNS;
use skep_types::{Error, Result, size};

/// Information about a system, which the check of a plan needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct System {
    /// Number of client hosts.
    pub hosts: u32,
    /// Number of storage targets of each server. `None` for a file system other than Skep, which
    /// does not report its targets.
    pub targets_per_server: Option<Vec<u32>>,
}

fn human(bytes: u64) -> String {
    let (number, unit) = size::whole(bytes);
    format!("{number}{unit}")
}

fn of(experiment: &Experiment) -> impl FnOnce(Error) -> Error {
    let name = experiment.name.clone();
    move |error| error.within(format!("experiment \"{name}\""))
}

/// Returns an error if keys of the plan contradict each other.
pub(super) fn plan(plan: &Plan) -> Result<()> {
    if plan.experiments.is_empty() {
        return Err(wrong("the plan has no experiment: write at least one [[experiment]]"));
    }
    let mut runs = 0;
    for (index, experiment) in plan.experiments.iter().enumerate() {
        if plan.experiments[..index].iter().any(|other| other.name == experiment.name) {
            return Err(wrong(format!(
                "two experiments have the name \"{}\": rename one",
                experiment.name
            )));
        }
        let factors = &experiment.factors;
        let product = runs_of(factors, experiment.repetitions);
        runs = product.and_then(|product| product.checked_add(runs)).unwrap_or(usize::MAX);
        if runs > MAX_RUNS {
            return Err(wrong(format!(
                "the plan has more than {MAX_RUNS} runs (up to experiment \"{}\"): vary fewer \
                 factors together, or lower `repetitions`",
                experiment.name
            )));
        }
        one_quantity(factors).map_err(of(experiment))?;
        for condition in factors.conditions() {
            let checked = names(&condition)
                .and_then(|()| shares(plan, &condition))
                .and_then(|()| targets(&condition));
            checked.map_err(of(experiment))?;
        }
    }
    Ok(())
}

/// Returns the number of runs of an experiment, or `None` on overflow.
fn runs_of(factors: &Factors, repetitions: u32) -> Option<usize> {
    let clients = match factors.clients.len() {
        0 => factors.hosts.len().checked_mul(factors.processes.len())?,
        pairs => pairs,
    };
    let sizes = [
        factors.data_bytes.len(),
        clients,
        factors.count.len(),
        factors.chooser.len(),
        factors.transfer_bytes.len(),
        factors.access.len(),
        factors.operation.len(),
        factors.applications.len(),
        factors.targets.len(),
        factors.servers.len(),
        factors.cache.len(),
        factors.files.len(),
        repetitions as usize,
    ];
    sizes.into_iter().try_fold(1_usize, usize::checked_mul)
}

/// Checks that all operations of an experiment measure the same quantity. One figure cannot show
/// bytes per second and operations per second.
fn one_quantity(factors: &Factors) -> Result<()> {
    let first = factors.operation[0];
    let other = factors.operation.iter().find(|it| it.quantity() != first.quantity());
    match other {
        None => Ok(()),
        Some(other) => Err(wrong(format!(
            "`operation` has \"{}\", measured in {}, and \"{}\", measured in {}: write an \
             experiment for each unit",
            first.word(),
            first.quantity().unit(),
            other.word(),
            other.quantity().unit()
        ))),
    }
}

/// Checks a condition with an operation on names. The condition must set no factor that has no
/// effect on names, such as the number of targets. The number of hosts must not depend on the
/// calibration.
fn names(condition: &Condition) -> Result<()> {
    if !condition.operation.is_on_names() {
        return Ok(());
    }
    let word = condition.operation.word();
    if condition.hosts == Level::Calibrated {
        return Err(wrong(format!(
            "`operation` \"{word}\" needs `hosts` or `clients`, because the calibration finds \
             numbers of hosts only for reading and writing"
        )));
    }
    let keys = [
        ("count", condition.count.is_some()),
        ("chooser", condition.chooser.is_some()),
        ("servers", condition.servers.is_some()),
        ("targets", condition.targets != Targets::Chosen),
        ("cache = \"bypassed\"", condition.cache == Cache::Bypassed),
    ];
    match keys.iter().find(|(_, is_set)| *is_set) {
        Some((key, _)) => Err(wrong(format!(
            "`{key}` has no effect on `operation` \"{word}\", because empty files use no storage \
             targets: remove this key"
        ))),
        None => Ok(()),
    }
}

/// Checks that the data of an application can be divided evenly among its processes. If the
/// calibration finds the amount of data, checks each amount that the calibration may find.
fn shares(plan: &Plan, condition: &Condition) -> Result<()> {
    if condition.operation.is_on_names() {
        return Ok(());
    }
    let calibration = &plan.calibration;
    let sizes = match condition.data_bytes {
        Level::Fixed(bytes) => vec![bytes],
        Level::Calibrated => calibration.data_bytes.clone(),
    };
    let hosts = match condition.hosts {
        Level::Fixed(hosts) => vec![hosts],
        Level::Calibrated => calibration.hosts.clone(),
    };
    for (bytes, hosts) in sizes.iter().flat_map(|bytes| hosts.iter().map(move |it| (*bytes, *it))) {
        let processes = match condition.data_per {
            DataPer::Application => u64::from(hosts) * u64::from(condition.processes),
            DataPer::Host => u64::from(condition.processes),
            DataPer::Process => 1,
        };
        let unit = processes.saturating_mul(condition.transfer_bytes);
        if bytes < unit || !bytes.is_multiple_of(unit) {
            return Err(wrong(format!(
                "invalid `data-size` {}: `hosts` {hosts} with `processes` {} each and `transfer` \
                {} need a multiple of {}",
                human(bytes),
                condition.processes,
                human(condition.transfer_bytes),
                human(unit)
            )));
        }
    }
    Ok(())
}

/// Alignment of direct I/O, in bytes.
const DIRECT_UNIT: u64 = 512;

fn targets(condition: &Condition) -> Result<()> {
    if condition.cache == Cache::Bypassed && !condition.transfer_bytes.is_multiple_of(DIRECT_UNIT) {
        return Err(wrong(format!(
            "`cache` \"bypassed\" needs a `transfer` that is a multiple of {DIRECT_UNIT} bytes"
        )));
    }
    if let (Some(servers), Some(chooser)) = (condition.servers, &condition.chooser) {
        return Err(wrong(format!(
            "`servers` {servers} makes the study assign targets, so `chooser` \"{chooser}\" would \
             have no effect: remove one of the two keys"
        )));
    }
    if condition.targets == Targets::Chosen {
        return Ok(());
    }
    let word = condition.targets.word();
    if let Some(chooser) = &condition.chooser {
        return Err(wrong(format!(
            "`targets` \"{word}\" makes the study assign targets, so `chooser` \
             \"{chooser}\" would have no effect: remove one of the two keys"
        )));
    }
    if condition.count.is_none() {
        return Err(wrong(format!(
            "`targets` \"{word}\" needs `count`, the number of targets for each application"
        )));
    }
    if condition.applications == 1 {
        return Err(wrong(format!(
            "`targets` \"{word}\" with `applications` 1: one application has no other application \
             to share targets with; use 2 or more, or a separate experiment for one application"
        )));
    }
    Ok(())
}

/// Returns an error if a system has fewer hosts or targets than a plan needs.
pub(super) fn on_system(plan: &Plan, system: &System) -> Result<()> {
    for (experiment, condition) in plan.conditions() {
        condition_on(&condition, system).map_err(of(experiment))?;
    }
    if plan.needs_calibration() && plan.calibration.hosts.iter().all(|it| *it > system.hosts) {
        return Err(wrong(format!(
            "the first value of `calibration.hosts` is more than the {} available client hosts; \
             use a lower value or more hosts",
            system.hosts
        )));
    }
    Ok(())
}

fn condition_on(condition: &Condition, system: &System) -> Result<()> {
    let hosts = match condition.hosts {
        Level::Fixed(hosts) => hosts,
        Level::Calibrated => 1,
    };
    let needed = hosts.saturating_mul(condition.applications);
    if needed > system.hosts {
        return Err(wrong(format!(
            "`hosts` {hosts} times `applications` {} needs {needed} client hosts, but the system \
             has {}: lower one of these values, or use more hosts",
            condition.applications, system.hosts
        )));
    }
    let Some(servers) = &system.targets_per_server else {
        let keys = [
            ("count", condition.count.is_some()),
            ("chooser", condition.chooser.is_some()),
            ("servers", condition.servers.is_some()),
        ];
        return match keys.iter().find(|(_, is_set)| *is_set) {
            Some((key, _)) => Err(wrong(format!(
                "`{key}` needs a mount of Skep: on other file systems a study cannot choose \
                 targets; leave `count`, `chooser`, `servers` and `targets` out"
            ))),
            None => Ok(()),
        };
    };
    let used = condition.servers.unwrap_or(servers.len() as u32);
    if used as usize > servers.len() {
        return Err(wrong(format!(
            "`servers` {used} is too large: the system has {} servers with storage targets",
            servers.len()
        )));
    }
    let Some(count) = condition.count else { return Ok(()) };
    let servers = &servers[..used as usize];
    let all: u32 = servers.iter().sum();
    let (most, of_what) = match (condition.chooser.as_deref(), condition.targets) {
        (Some("randominternode"), _) => {
            (servers.len() as u32, "servers, and this chooser uses one target of each server")
        }
        (Some("randomintranode"), _) => {
            (servers.iter().copied().min().unwrap_or(0), "targets on the smallest server")
        }
        (_, Targets::Separate) => (all / condition.applications, "targets for each application"),
        _ => (all, "targets"),
    };
    match count > most {
        true => Err(wrong(format!("`count` {count} is too large: there are {most} {of_what}"))),
        false => Ok(()),
    }
}
