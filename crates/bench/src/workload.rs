//! One run of a workload of phases, from its start to its end: the loop that [`crate::io`] and
//! [`crate::metadata`] share. A workload names its phases; this file starts the processes, runs the
//! phases in order and keeps the results. Doesn't know what a phase does.

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
    /// The program that did the work; `skep` unless another tool did.
    pub tool: String,
    /// Processes over all hosts.
    pub processes: u32,
    /// Start of the run, in seconds since 1970.
    pub started_unix_s: i64,
    /// All hosts with their environments.
    pub hosts: Vec<HostRecord>,
    /// Each phase of each repetition that came to its end, in order.
    pub phases: Vec<PhaseRecord>,
    /// Why the run ended before its plan was done; the results until then are in `phases`.
    pub failure: Option<String>,
}

/// Use of the record of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recording {
    /// It is a result.
    Keep,
    /// The phase compared what the phase before it wrote: its errors count there.
    AddErrorsToLast,
    /// The phase cleans up.
    Discard,
}

/// A phase of one repetition.
#[derive(Clone, Debug)]
pub(crate) struct Phase {
    pub(crate) name: String,
    /// Bytes or operations of all processes.
    pub(crate) total: u64,
    /// Whether the hosts run the plan's command and drop their caches before it.
    pub(crate) is_prepared: bool,
    pub(crate) recording: Recording,
}

/// Settings of a plan that every workload has.
pub(crate) struct Common<'a> {
    pub(crate) repetitions: u32,
    pub(crate) before_phase: Option<&'a str>,
    pub(crate) keep_caches: bool,
    /// Hosts without processes, on which caches are dropped too.
    pub(crate) server_hosts: &'a [Host],
    /// How long processes may stand still in a phase, in seconds.
    pub(crate) patience_s: u32,
}

/// A plan that can be run in phases on many processes.
pub(crate) trait Workload: Clone {
    /// Checks the plan for a number of processes over all hosts.
    ///
    /// # Errors
    /// `InvalidArgument` with everything that is wrong.
    fn check(&self, processes: u32) -> Result<()>;

    /// Draws the number by which the files of one run differ from those of others, if the plan
    /// needs one and names none. `is_own` is false where another program does the work.
    fn draw_signature(&mut self, is_own: bool);

    /// The plan, for the processes.
    fn work(&self) -> Work;

    /// The path on which the run works, for the description of its file system.
    fn path(&self) -> PathBuf;

    fn common(&self) -> Common<'_>;

    /// The phases of a repetition (from 1), in order.
    fn phases(&self, repetition: u32, processes: u32, is_own: bool) -> Vec<Phase>;
}

/// Runs a plan on hosts, `processes_per_host` on each; ranks go to the hosts in turn. `runner` is
/// another program that does the work, if one is named.
///
/// # Errors
/// `InvalidArgument` for a plan that cannot be run; a program that is missing or cannot follow the
/// plan; a host that cannot be reached, a file that exists, a full disk. Once there is a result,
/// the run returns it, and [`Outcome::failure`] has the reason why there are no more.
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
        return Err(Error::new(ErrorCode::Io, "the plan measures nothing"));
    }
    Ok(())
}
