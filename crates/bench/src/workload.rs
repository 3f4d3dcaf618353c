//! Runs the phases of a workload from start to end. [`crate::io`] and [`crate::metadata`] share
//! this loop. A workload names its phases. This module starts the processes, runs the phases in
//! their order, and stores the results. The loop does not depend on the work of a phase.

use crate::launcher::{Fleet, Host, HostRecord, PhaseRecord, Setup, Step, processes};
use crate::progress::{Measurement, Progress};
use crate::tool::{self, Runner, Work};
use serde::{Deserialize, Serialize};
use skep_types::{Error, ErrorCode, Result};
use std::path::PathBuf;
use std::time::Duration;

/// The results of a run, and the hosts on which it ran.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Outcome<P> {
    /// The plan that was run.
    pub plan: P,
    /// Name of the program that was run: `skep`, or an external program.
    pub tool: String,
    /// Number of processes over all hosts.
    pub processes: u32,
    /// Start of the run, in seconds since 1970.
    pub started_unix_s: i64,
    /// All hosts with their environments.
    pub hosts: Vec<HostRecord>,
    /// The record of each phase that was completed, in the order of time.
    pub phases: Vec<PhaseRecord>,
    /// Why the run ended before the plan was complete. `None` if the run completed the plan. The
    /// results before the failure are in `phases`.
    pub failure: Option<String>,
}

/// How a run uses the record of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recording {
    /// The record is a result.
    Keep,
    /// The phase has verified the data that the previous phase wrote. The run adds the errors of
    /// this phase to the record of the previous phase.
    AddErrorsToLast,
    /// The phase has only removed files. The run drops the record.
    Discard,
}

/// A phase of one repetition.
#[derive(Clone, Debug)]
pub(crate) struct Phase {
    pub(crate) name: String,
    /// Number of bytes or operations of all processes in the phase.
    pub(crate) total: u64,
    /// Whether the hosts run the plan's command and drop their caches before the phase.
    pub(crate) is_prepared: bool,
    pub(crate) recording: Recording,
}

/// Settings that the plans of all workloads have.
pub(crate) struct Common<'a> {
    pub(crate) repetitions: u32,
    pub(crate) before_phase: Option<&'a str>,
    pub(crate) keep_caches: bool,
    /// Hosts that run no processes, but whose caches the benchmark also drops.
    pub(crate) server_hosts: &'a [Host],
    /// Seconds without progress of any process after which a phase fails.
    pub(crate) patience_s: u32,
}

/// A plan whose phases can be run on many processes.
pub(crate) trait Workload: Clone {
    /// Checks whether `processes` processes over all hosts can run the plan.
    ///
    /// # Errors
    /// `InvalidArgument`, with a text that lists every mistake in the plan.
    fn check(&self, processes: u32) -> Result<()>;

    /// Draws the random number that distinguishes the files of this run from the files of other
    /// runs. Draws no number if the run needs none, or if the plan already contains the number.
    /// `is_own` is false if an external program is run.
    fn draw_signature(&mut self, is_own: bool);

    /// Returns the plan in the form that is sent to the processes.
    fn work(&self) -> Work;

    /// Returns the path on which the run works. The results describe the file system at this path.
    fn path(&self) -> PathBuf;

    fn common(&self) -> Common<'_>;

    /// Returns the phases of a repetition in their order. The first repetition has the number 1.
    /// `is_own` is false if an external program is run.
    fn phases(&self, repetition: u32, processes: u32, is_own: bool) -> Vec<Phase>;
}

/// Runs a plan. See [`crate::io::run`].
pub(crate) fn run<P: Workload>(
    runner: Option<&Runner>,
    plan: &P,
    hosts: &[Host],
    processes_per_host: u32,
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome<P>> {
    let processes = processes(hosts, processes_per_host)?;
    plan.check(processes)?;
    let mut plan = plan.clone();
    plan.draw_signature(runner.is_none());
    let Common { server_hosts, patience_s, .. } = plan.common();
    let placed = tool::place(runner, plan.work(), hosts, processes_per_host, server_hosts)?;
    let mut fleet = Fleet::start(&Setup {
        job: placed.job,
        hosts: &placed.hosts,
        server_hosts: &placed.server_hosts,
        processes_per_host: placed.processes_per_host,
        path: Some(plan.path()),
        patience: Duration::from_secs(u64::from(patience_s)),
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
    let result = measure(&mut fleet, &mut outcome, runner.is_none(), progress);
    outcome.failure = fleet.conclude(result, !outcome.phases.is_empty())?;
    Ok(outcome)
}

fn measure<P: Workload>(
    fleet: &mut Fleet,
    outcome: &mut Outcome<P>,
    is_own: bool,
    progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    let plan = outcome.plan.clone();
    let Common { repetitions, before_phase, keep_caches, .. } = plan.common();
    for repetition in 1..=repetitions {
        for phase in plan.phases(repetition, outcome.processes, is_own) {
            if phase.is_prepared {
                fleet.make_ready(before_phase, keep_caches, progress)?;
            }
            let step = Step { phase: phase.name, repetition, total: phase.total };
            let record = fleet.phase(&step, progress)?;
            if phase.recording == Recording::Discard {
                continue;
            }
            progress(Progress::measured(Measurement::Phase(record.clone())));
            if phase.recording == Recording::Keep {
                outcome.phases.push(record);
            } else if let Some(last) = outcome.phases.last_mut() {
                last.errors += record.errors;
                last.first_error = last.first_error.take().or(record.first_error);
            }
        }
    }
    if outcome.phases.is_empty() {
        return Err(Error::new(ErrorCode::Io, "the benchmark has measured nothing"));
    }
    Ok(())
}
