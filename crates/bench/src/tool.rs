//! Runs external programs instead of the built-in engines: IOR, mdtest, fio and IOzone. The
//! external programs get the same options as the built-in benchmarks, and their results have the
//! same form.
//!
//! As for the built-in engines, the launcher handles hosts, repetitions, dropped caches and
//! records. A phase is one execution of the program, or a part of an execution of mdtest. The run
//! stores the program's own report in addition to the numbers that it reads from this report. IOR
//! and mdtest run as one MPI job, which reports only the sum over its processes. For fio and
//! IOzone, each process of the launcher executes the program. If the program lacks an option of the
//! plan, the run refuses the plan, so that no option is silently ignored.

mod child;
mod engine;
mod fio;
mod ior;
mod iozone;
mod mdtest;
mod mpi;

pub(crate) use engine::{CLEAN_UP, ToolEngine};

use crate::io::plan::Plan as IoPlan;
use crate::launcher::{Host, Job};
use crate::metadata::plan::Plan as MetadataPlan;
use serde::{Deserialize, Serialize};
use skep_types::{Error, ErrorCode, Result};

/// An external benchmark program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tool {
    /// <https://github.com/hpc/ior>
    Ior,
    /// mdtest, which is part of the source of IOR.
    Mdtest,
    /// <https://github.com/axboe/fio>
    Fio,
    /// <https://www.iozone.org>
    Iozone,
}

impl Tool {
    /// Returns the name of the program.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ior => "ior",
            Self::Mdtest => "mdtest",
            Self::Fio => "fio",
            Self::Iozone => "iozone",
        }
    }

    /// Returns the program with the name `name`.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Ior, Self::Mdtest, Self::Fio, Self::Iozone].into_iter().find(|it| it.name() == name)
    }

    /// Whether the program runs as an MPI job.
    pub(crate) fn is_mpi(self) -> bool {
        matches!(self, Self::Ior | Self::Mdtest)
    }

    /// Returns a text that names the package or the web page of the program.
    pub(crate) fn source(self) -> &'static str {
        match self {
            Self::Ior | Self::Mdtest => {
                "Debian has no package of this program: build the program from \
                 https://github.com/hpc/ior with MPI, and put the program into the search path"
            }
            Self::Fio => "install the package fio",
            Self::Iozone => {
                "install the package iozone3 (Debian: non-free), or build IOzone from \
                 https://www.iozone.org"
            }
        }
    }
}

/// An external program, and the command that starts it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Runner {
    /// The program to run.
    pub tool: Tool,
    /// The command that starts MPI jobs, with its options.
    pub mpirun: Vec<String>,
}

/// The plan that an external program runs.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Work {
    Io(IoPlan),
    Metadata(MetadataPlan),
}

/// The data that a process needs to run an external program.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Assignment {
    pub(crate) runner: Runner,
    pub(crate) work: Work,
    /// All hosts that have processes. The launcher assigns ranks to these hosts in turn.
    pub(crate) hosts: Vec<Host>,
    /// Number of processes over all hosts.
    pub(crate) processes: u32,
}

/// A job, and the hosts on which the launcher starts workers for the job.
pub(crate) struct Placed {
    pub(crate) job: Job,
    pub(crate) hosts: Vec<Host>,
    pub(crate) server_hosts: Vec<Host>,
    pub(crate) processes_per_host: u32,
}

impl Runner {
    /// Returns an error if the program does not support an option of the plan.
    fn check(&self, work: &Work) -> Result<()> {
        let mut problems = match (self.tool, work) {
            (Tool::Ior, Work::Io(plan)) => ior::problems(plan),
            (Tool::Fio, Work::Io(plan)) => fio::problems(plan),
            (Tool::Iozone, Work::Io(plan)) => iozone::problems(plan),
            (Tool::Mdtest, Work::Metadata(plan)) => mdtest::problems(plan),
            (_, Work::Io(_)) => vec![
                "reads and writes, because the program measures only metadata operations".into(),
            ],
            (_, Work::Metadata(_)) => {
                vec![
                    "metadata operations, because the program measures only reads and writes"
                        .into(),
                ]
            }
        };
        if matches!(work, Work::Io(plan) if plan.sample_interval_ms.is_some()) {
            problems.push("--sample-interval, because the program does not report samples".into());
        }
        if problems.is_empty() {
            return Ok(());
        }
        let what = format!(
            "{} cannot run this plan: the program does not support {}",
            self.tool.name(),
            problems.join("; ")
        );
        Err(Error::new(ErrorCode::InvalidArgument, what))
    }

    /// Returns the hosts on which workers are started. With MPI, there is only one worker, on the
    /// first host. This worker starts the MPI job for all processes.
    ///
    /// # Errors
    /// `InvalidArgument`. The error lists every option that the program does not support.
    fn place(
        &self,
        work: Work,
        hosts: &[Host],
        processes_per_host: u32,
        server_hosts: &[Host],
    ) -> Result<Placed> {
        self.check(&work)?;
        let processes = crate::launcher::processes(hosts, processes_per_host)?;
        let runner = self.clone();
        let assignment = Assignment { runner, work, hosts: hosts.to_vec(), processes };
        let with_processes = if self.tool.is_mpi() { 1 } else { hosts.len() };
        let (first, rest) = hosts.split_at(with_processes);
        Ok(Placed {
            job: Job::Tool(Box::new(assignment)),
            hosts: first.to_vec(),
            server_hosts: rest.iter().chain(server_hosts).cloned().collect(),
            processes_per_host: if self.tool.is_mpi() { 1 } else { processes_per_host },
        })
    }
}

/// Returns the hosts on which workers are started for a plan. `runner` names an external program,
/// and `None` means the built-in engine.
///
/// # Errors
/// `InvalidArgument`. The error lists every option that the program does not support.
pub(crate) fn place(
    runner: Option<&Runner>,
    work: Work,
    hosts: &[Host],
    processes_per_host: u32,
    server_hosts: &[Host],
) -> Result<Placed> {
    if let Some(runner) = runner {
        return runner.place(work, hosts, processes_per_host, server_hosts);
    }
    let job = match work {
        Work::Io(plan) if plan.mpi_io => {
            let what = "MPI-IO (--mpi-io) needs the program IOR: add --tool ior";
            return Err(Error::new(ErrorCode::InvalidArgument, what));
        }
        Work::Io(plan) => Job::Io(plan),
        Work::Metadata(plan) => Job::Metadata(plan),
    };
    let (hosts, server_hosts) = (hosts.to_vec(), server_hosts.to_vec());
    Ok(Placed { job, hosts, server_hosts, processes_per_host })
}

/// Groups the phases so that one execution of mdtest does all phases of a group. The groups are in
/// mdtest's order.
pub(crate) fn parts(phases: &[(&'static str, u64)]) -> Vec<Vec<(&'static str, u64)>> {
    use mdtest::Part;
    let of = |part| {
        let is_one = |(phase, _): &&(&'static str, u64)| Part::of(phase) == Some(part);
        phases.iter().filter(is_one).copied().collect::<Vec<_>>()
    };
    let all = [Part::Create, Part::Stat, Part::Read, Part::Remove].map(of);
    all.into_iter().filter(|part| !part.is_empty()).collect()
}

/// Returns the texts of all rows whose condition is true. Each text names an option that the plan
/// has and the program lacks.
fn refused(table: &[(bool, &str)]) -> Vec<String> {
    let asked = table.iter().filter(|(is_asked, _)| *is_asked);
    asked.map(|(_, what)| (*what).to_owned()).collect()
}

/// Converts string literals to a list of arguments.
fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

/// The numbers that a program reports about a phase.
#[derive(Debug, Clone, PartialEq)]
struct Report {
    /// Number of bytes that the program transferred.
    bytes: u64,
    /// Number of operations that the program did.
    operations: u64,
    /// Duration in seconds, as the program reports it.
    seconds: f64,
    /// Parts of `seconds`: the time in open (`open_s`) and the time in close (`close_s`). Zero if
    /// the program does not report this time.
    open_s: f64,
    close_s: f64,
    /// The program's own report, as JSON.
    said: serde_json::Value,
}

/// Returns the number with the name `name` in the JSON output of a program.
fn number(value: &serde_json::Value, name: &str) -> std::result::Result<f64, String> {
    value[name].as_f64().ok_or_else(|| format!("the output of the program has no number '{name}'"))
}
