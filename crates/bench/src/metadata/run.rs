//! A run from its start to its end.

use super::outcome::Outcome;
use super::plan::Plan;
use crate::launcher::{Fleet, Host, Measurement, Progress, Setup, Step};
use crate::tool::{self, Runner, Work};
use skep_types::Result;
use std::path::PathBuf;
use std::time::Duration;

/// Runs a plan on hosts, `processes_per_host` on each; processes are dealt out to hosts one by one.
///
/// # Errors
/// As [`crate::io::run`].
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
    if plan.create && plan.remove {
        plan.run.get_or_insert_with(|| skep_env::random_u64() as u32);
    }
    let work = Work::Metadata(plan.clone());
    let placed = tool::place(runner, work, hosts, processes_per_host, &plan.server_hosts)?;
    let mut fleet = Fleet::start(&Setup {
        job: placed.job,
        hosts: &placed.hosts,
        server_hosts: &placed.server_hosts,
        processes_per_host: placed.processes_per_host,
        path: Some(PathBuf::from(&plan.directory).join("test-dir.0")),
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
    let result = match runner {
        Some(_) => measure_parts(&mut fleet, &mut outcome, progress),
        None => measure(&mut fleet, &mut outcome, progress),
    };
    outcome.failure = fleet.conclude(result, !outcome.phases.is_empty())?;
    Ok(outcome)
}

fn measure(
    fleet: &mut Fleet,
    outcome: &mut Outcome,
    progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    for repetition in 1..=outcome.plan.repetitions {
        for (phase, total) in outcome.plan.phases(outcome.processes) {
            let (command, keep) = (&outcome.plan.before_phase, outcome.plan.keep_caches);
            fleet.make_ready(command.as_deref(), keep, progress)?;
            let step = Step { phase: phase.to_owned(), repetition, total };
            let record = fleet.phase(&step, progress)?;
            progress(Progress::measured(Measurement::Phase(record.clone())));
            outcome.phases.push(record);
        }
    }
    Ok(())
}

/// Another program does several phases in one execution; caches are dropped before each of these.
fn measure_parts(
    fleet: &mut Fleet,
    outcome: &mut Outcome,
    progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    let plan = outcome.plan.clone();
    for repetition in 1..=plan.repetitions {
        for part in crate::tool::parts(&plan.phases(outcome.processes)) {
            fleet.make_ready(plan.before_phase.as_deref(), plan.keep_caches, progress)?;
            for (phase, total) in part {
                let step = Step { phase: phase.to_owned(), repetition, total };
                let record = fleet.phase(&step, progress)?;
                progress(Progress::measured(Measurement::Phase(record.clone())));
                outcome.phases.push(record);
            }
        }
        if plan.remove {
            let step = Step { phase: crate::tool::CLEAN_UP.into(), repetition, total: 0 };
            fleet.phase(&step, progress)?;
        }
    }
    Ok(())
}
