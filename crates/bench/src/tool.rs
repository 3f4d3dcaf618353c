//! Programs of others in place of the built-in engines: IOR, mdtest, fio and IOzone, with the same
//! options, by the same protocol, into the same results.
//!
//! The launcher's hosts, repetitions, dropped caches and records are those of the built-in engines;
//! each phase is one execution of the program, and what it reports is kept beside the numbers read
//! from it. IOR and mdtest are one job of MPI, which knows its processes only together; fio and
//! IOzone are executed by each process of the launcher. An option that a program can't follow is
//! refused, never left out.

mod child;
mod engine;
mod fio;
mod ior;
mod iozone;
mod mdtest;
mod mpi;

pub(crate) use engine::{CLEAN_UP, ToolEngine};

use crate::launcher::{Host, Job};
use crate::{io, metadata};
use serde::{Deserialize, Serialize};
use skep_types::{Error, ErrorCode, Result};

/// A program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tool {
    /// <https://github.com/hpc/ior>
    Ior,
    /// Of the same source.
    Mdtest,
    /// <https://github.com/axboe/fio>
    Fio,
    /// <https://www.iozone.org>
    Iozone,
}

impl Tool {
    /// The program's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ior => "ior",
            Self::Mdtest => "mdtest",
            Self::Fio => "fio",
            Self::Iozone => "iozone",
        }
    }

    /// By its name.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Ior, Self::Mdtest, Self::Fio, Self::Iozone].into_iter().find(|it| it.name() == name)
    }

    /// Whether it is started by MPI.
    pub(crate) fn is_mpi(self) -> bool {
        matches!(self, Self::Ior | Self::Mdtest)
    }

    /// Where to get it.
    pub(crate) fn source(self) -> &'static str {
        match self {
            Self::Ior | Self::Mdtest => {
                "no package of Debian has it: build it from https://github.com/hpc/ior with MPI, \
                 and put it into the search path"
            }
            Self::Fio => "install the package fio",
            Self::Iozone => {
                "install the package iozone3 (Debian: non-free), or build it from \
                 https://www.iozone.org"
            }
        }
    }
}

/// A program and how to start it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Runner {
    /// The program.
    pub tool: Tool,
    /// The command that starts jobs of MPI, with options of its own.
    pub mpirun: Vec<String>,
}

/// What is done by a program.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Work {
    Io(io::Plan),
    Metadata(metadata::Plan),
}

/// What a process has to know to do it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Assignment {
    pub(crate) runner: Runner,
    pub(crate) work: Work,
    /// All hosts with processes; ranks are dealt out to them one by one.
    pub(crate) hosts: Vec<Host>,
    /// Processes over all hosts.
    pub(crate) processes: u32,
}

/// Who is started where.
pub(crate) struct Placed {
    pub(crate) job: Job,
    pub(crate) hosts: Vec<Host>,
    pub(crate) server_hosts: Vec<Host>,
    pub(crate) processes_per_host: u32,
}

impl Runner {
    /// Refuses a plan that the program can't follow.
    fn check(&self, work: &Work) -> Result<()> {
        let problems = match (self.tool, work) {
            (Tool::Ior, Work::Io(plan)) => ior::problems(plan),
            (Tool::Fio, Work::Io(plan)) => fio::problems(plan),
            (Tool::Iozone, Work::Io(plan)) => iozone::problems(plan),
            // It can all that is asked of the engine that does the same.
            (Tool::Mdtest, Work::Metadata(_)) => Vec::new(),
            (_, Work::Io(_)) => vec!["it moves no data".into()],
            (_, Work::Metadata(_)) => vec!["it makes no names as mdtest does".into()],
        };
        if problems.is_empty() {
            return Ok(());
        }
        let what = format!("{} can't do that: {}", self.tool.name(), problems.join("; "));
        Err(Error::new(ErrorCode::InvalidArgument, what))
    }

    /// Who is started for it: with MPI one process, on the first host, for all.
    ///
    /// # Errors
    /// `InvalidArgument` with everything that the program can't do.
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

/// Who is started for a plan, whether a program does the work or the engine that is built in.
///
/// # Errors
/// `InvalidArgument` with everything that the program can't do.
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
        Work::Io(plan) => Job::Io(plan),
        Work::Metadata(plan) => Job::Metadata(plan),
    };
    let (hosts, server_hosts) = (hosts.to_vec(), server_hosts.to_vec());
    Ok(Placed { job, hosts, server_hosts, processes_per_host })
}

/// Phases of names in the order in which mdtest does them, those of one execution together.
pub(crate) fn parts(phases: &[(&'static str, u64)]) -> Vec<Vec<(&'static str, u64)>> {
    use mdtest::Part;
    let of = |part| {
        let is_one = |(phase, _): &&(&'static str, u64)| Part::of(phase) == Some(part);
        phases.iter().filter(is_one).copied().collect::<Vec<_>>()
    };
    let all = [Part::Create, Part::Stat, Part::Read, Part::Remove].map(of);
    all.into_iter().filter(|part| !part.is_empty()).collect()
}

/// What is said of options for which a program has none, where they are asked for.
fn refused(table: &[(bool, &str)]) -> Vec<String> {
    let asked = table.iter().filter(|(is_asked, _)| *is_asked);
    asked.map(|(_, what)| (*what).to_owned()).collect()
}

/// A command line.
fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

/// What is read from a program's output about a phase.
#[derive(Debug, Clone, PartialEq)]
struct Report {
    /// Bytes moved.
    bytes: u64,
    /// Operations done.
    operations: u64,
    /// How long it took, as the program says.
    seconds: f64,
    /// Of that, as far as it is told: opening, closing.
    open_s: f64,
    close_s: f64,
    /// What it said, for whoever wants to know more.
    said: serde_json::Value,
}

/// A number that must be there.
fn number(value: &serde_json::Value, name: &str) -> std::result::Result<f64, String> {
    value[name].as_f64().ok_or_else(|| format!("its output has no number '{name}'"))
}
