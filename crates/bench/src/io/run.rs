//! A run from its start to its end.

use super::outcome::Outcome;
use super::plan::{Phase, Plan};
use crate::launcher::{Fleet, Host, Measurement, Progress, Step};
use crate::tool::{self, Runner, Work};
use skep_types::{Error, ErrorCode, Result};
use std::path::PathBuf;
use std::time::Duration;

/// Runs a plan on hosts, `processes_per_host` on each; processes are dealt out to hosts one by one.
///
/// # Errors
/// `InvalidArgument` for a plan that can't be; else what kept anything from being measured: a host
/// that can't be reached, a file that exists, a full disk. Once something was measured, it is given
/// back, and [`Outcome::failure`] says why there isn't more.
pub fn run(
    plan: &Plan,
    hosts: &[Host],
    processes_per_host: u32,
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome> {
    run_by(None, plan, hosts, processes_per_host, progress)
}

/// As [`run`], with another program that does the work, if one is named.
///
/// # Errors
/// Also if the program isn't there, or can't follow the plan.
pub fn run_by(
    runner: Option<&Runner>,
    plan: &Plan,
    hosts: &[Host],
    processes_per_host: u32,
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome> {
    let processes = crate::launcher::processes(hosts, processes_per_host)?;
    plan.check(processes)?;
    let mut plan = plan.clone();
    if runner.is_none() && plan.is_stamped() {
        plan.signature.get_or_insert_with(|| skep_env::random_u64() as u32);
    }
    let work = Work::Io(plan.clone());
    let placed = tool::place(runner, work, hosts, processes_per_host, &plan.server_hosts)?;
    let mut fleet = Fleet::start(&crate::launcher::Setup {
        job: placed.job,
        hosts: &placed.hosts,
        server_hosts: &placed.server_hosts,
        processes_per_host: placed.processes_per_host,
        path: Some(PathBuf::from(&plan.path)),
        patience: Duration::from_secs(u64::from(plan.patience_s)),
    })?;
    fleet.mark_hosts(hosts.len());
    let mut outcome = Outcome {
        tool: runner.map_or("skep", |runner| runner.tool.name()).into(),
        processes,
        started_unix_s: skep_env::wall_time().seconds,
        hosts: fleet.records(),
        phases: Vec::new(),
        failure: None,
        plan,
    };
    let result = measure(&mut fleet, &mut outcome, progress);
    outcome.failure = fleet.conclude(result, !outcome.phases.is_empty())?;
    Ok(outcome)
}

fn measure(
    fleet: &mut Fleet,
    outcome: &mut Outcome,
    progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    let plan = outcome.plan.clone();
    let total = plan.total_bytes(outcome.processes).unwrap_or(0);
    for repetition in 1..=plan.repetitions {
        for phase in plan.phases() {
            let step = Step { phase: phase.name().into(), repetition, total };
            if phase != Phase::Check {
                fleet.make_ready(plan.before_phase.as_deref(), plan.keep_caches, progress)?;
            }
            let record = fleet.phase(&step, progress)?;
            progress(Progress::measured(Measurement::Phase(record.clone())));
            // What is only compared is not measured; but what was found counts.
            if phase != Phase::Check {
                outcome.phases.push(record);
            } else if let Some(write) = outcome.phases.last_mut() {
                write.errors += record.errors;
                write.first_error = write.first_error.take().or(record.first_error);
            }
        }
        let is_last = repetition == plan.repetitions;
        if plan.write && !plan.use_existing && !(plan.keep && is_last) {
            let step = Step { phase: Phase::Remove.name().into(), repetition, total: 0 };
            fleet.phase(&step, progress)?;
        }
    }
    match outcome.phases.is_empty() {
        true => Err(Error::new(ErrorCode::Io, "nothing was measured")),
        false => Ok(()),
    }
}
