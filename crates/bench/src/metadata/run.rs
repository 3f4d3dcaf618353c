//! A run from its start to its end.

use super::outcome::Outcome;
use super::plan::Plan;
use crate::launcher::{Fleet, Host, Job, Progress, Setup, Step};
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
    let processes = crate::launcher::processes(hosts, processes_per_host)?;
    plan.check(processes)?;
    let mut plan = plan.clone();
    if plan.create && plan.remove {
        plan.run.get_or_insert_with(|| skep_env::random_u64() as u32);
    }
    let mut fleet = Fleet::start(&Setup {
        job: Job::Metadata(plan.clone()),
        hosts,
        server_hosts: &plan.server_hosts,
        processes_per_host,
        path: Some(PathBuf::from(&plan.directory).join("test-dir.0")),
        patience: Duration::from_secs(u64::from(plan.patience_s)),
    })?;
    let mut outcome = Outcome {
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
    for repetition in 1..=outcome.plan.repetitions {
        for (phase, total) in outcome.plan.phases(outcome.processes) {
            if !outcome.plan.keep_caches {
                fleet.drop_caches(progress)?;
            }
            let step = Step { phase: phase.to_owned(), repetition, total };
            outcome.phases.push(fleet.phase(&step, progress)?);
        }
    }
    Ok(())
}
