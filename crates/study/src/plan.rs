//! The plan of a study: its factors, read from TOML and checked.
//!
//! A plan has experiments; each is the product of the values of its factors, repeated. Factors at
//! the top level of a plan apply to all experiments that don't set them. Contradictions are refused
//! here, before anything runs. [`Plan::check_system`] checks the plan against the number of hosts
//! and targets of a system.
//!
//! docs/operations/studies.md describes the file.

mod check;
mod read;
mod values;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use skep_types::Result;
use std::fmt;
use std::time::Duration;

pub use check::System;

/// A value that the plan gives, or that calibration finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level<T> {
    /// The value in the plan.
    Fixed(T),
    /// The smallest value at which bandwidth levels off; calibration finds it.
    Calibrated,
}

/// Whether the processes of an application share a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// All processes write or read parts of one file: N-1.
    SharedFile,
    /// Each process has its own file: N-N.
    FilePerProcess,
}

/// The operation of an application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Writes, and syncs within the measured time.
    Write,
    /// Reads data that was written before and is in no cache.
    Read,
}

/// How the applications of a run get their targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Targets {
    /// The chooser chooses for each file by itself.
    Chosen,
    /// The study assigns the same targets to all applications, spread evenly over the servers.
    Shared,
    /// The study assigns different targets to each application, spread evenly over the servers.
    Separate,
}

/// The condition of a run: one value of each factor.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Condition {
    /// Bytes of one application.
    pub data_bytes: Level<u64>,
    /// Client hosts of one application.
    pub hosts: Level<u32>,
    /// Processes on each of them.
    pub processes: u32,
    /// Targets of each file; `None`: the file system decides.
    pub count: Option<u32>,
    /// How they are chosen; `None`: the file system decides.
    pub chooser: Option<String>,
    /// Bytes of one call of write(2) or read(2).
    pub transfer_bytes: u64,
    /// N-1 or N-N.
    pub access: Access,
    /// Write or read.
    pub operation: Operation,
    /// Number of applications that run at the same time.
    pub applications: u32,
    /// Whether they share targets.
    pub targets: Targets,
}

/// The values of each factor.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "as Condition")]
pub struct Factors {
    pub data_bytes: Vec<Level<u64>>,
    pub hosts: Vec<Level<u32>>,
    pub processes: Vec<u32>,
    pub count: Vec<Option<u32>>,
    pub chooser: Vec<Option<String>>,
    pub transfer_bytes: Vec<u64>,
    pub access: Vec<Access>,
    pub operation: Vec<Operation>,
    pub applications: Vec<u32>,
    pub targets: Vec<Targets>,
}

/// A set of conditions whose results appear in one figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Experiment {
    /// Its name: short, unique, usable in file names.
    pub name: String,
    /// Its question, in one line.
    pub title: String,
    /// Runs of each condition.
    pub repetitions: u32,
    /// The conditions are the product of these.
    pub factors: Factors,
}

/// Calibration: the search for the data size and the number of hosts at which bandwidth levels off.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibration {
    /// Data sizes to try, ascending.
    pub data_bytes: Vec<u64>,
    /// Numbers of hosts to try, ascending.
    pub hosts: Vec<u32>,
    /// Runs of each value.
    pub repetitions: u32,
    /// Bandwidth has levelled off where every larger value gains less than this share.
    pub tolerance: f64,
}

/// The emulated cluster for which a plan is made.
#[derive(Debug, Clone, PartialEq)]
pub struct Lab {
    /// Name of the ready shape in `skep lab`.
    pub shape: String,
    /// Servers, targets of each and client hosts, instead of those of the shape.
    pub servers: Option<u16>,
    #[allow(missing_docs, reason = "said above")]
    pub targets: Option<u16>,
    #[allow(missing_docs, reason = "said above")]
    pub clients: Option<u16>,
    /// Rate of each server's link, instead of that of the shape, as in `400Mbit`.
    pub link: Option<String>,
    /// Rate of each target, instead of that of the shape, as in `30MB/s`.
    pub target_rate: Option<String>,
}

/// A study.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Its name: short, usable in file names.
    pub name: String,
    /// Its subject, in one line.
    pub title: String,
    /// Its subject, in sentences.
    pub about: String,
    /// Seed of the order of blocks and of the waits.
    pub seed: u64,
    /// Runs in a block.
    pub block: u32,
    /// Shortest and longest wait between blocks; `None`: the default of the place.
    pub wait: Option<(Duration, Duration)>,
    /// The lab for which it is made; `None`: any system.
    pub lab: Option<Lab>,
    /// The values that calibration tries.
    pub calibration: Calibration,
    /// At least one.
    pub experiments: Vec<Experiment>,
}

impl Plan {
    /// Reads a plan and checks it.
    ///
    /// # Errors
    /// `Configuration` with the wrong key and the way out.
    pub fn parse(text: &str) -> Result<Self> {
        let plan = read::plan(text)?;
        check::plan(&plan)?;
        Ok(plan)
    }

    /// Checks that a system can run the plan.
    ///
    /// # Errors
    /// `Configuration` with the key that needs more than the system has.
    pub fn check_system(&self, system: &System) -> Result<()> {
        check::on_system(self, system)
    }

    /// Whether the plan needs calibration: one of its values comes from there.
    pub fn needs_calibration(&self) -> bool {
        self.conditions().any(|(_, condition)| {
            condition.data_bytes == Level::Calibrated || condition.hosts == Level::Calibrated
        })
    }

    /// All conditions with their experiments, in the order of the plan.
    pub fn conditions(&self) -> impl Iterator<Item = (&Experiment, Condition)> {
        self.experiments.iter().flat_map(|experiment| {
            experiment
                .factors
                .conditions()
                .into_iter()
                .map(move |condition| (experiment, condition))
        })
    }
}

impl Factors {
    /// The product of all factors. The last factor in [`Factors`] changes fastest.
    pub fn conditions(&self) -> Vec<Condition> {
        let mut all = vec![self.first()];
        macro_rules! vary {
            ($($factor:ident),*) => {$(
                all = all
                    .iter()
                    .flat_map(|condition| {
                        self.$factor.iter().map(|value| {
                            let $factor = value.clone();
                            Condition { $factor, ..condition.clone() }
                        })
                    })
                    .collect();
            )*};
        }
        vary!(data_bytes, hosts, processes, count, chooser, transfer_bytes);
        vary!(access, operation, applications, targets);
        all
    }

    fn first(&self) -> Condition {
        Condition {
            data_bytes: self.data_bytes[0],
            hosts: self.hosts[0],
            processes: self.processes[0],
            count: self.count[0],
            chooser: self.chooser[0].clone(),
            transfer_bytes: self.transfer_bytes[0],
            access: self.access[0],
            operation: self.operation[0],
            applications: self.applications[0],
            targets: self.targets[0],
        }
    }
}

impl<T: fmt::Display> fmt::Display for Level<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(value) => value.fmt(f),
            Self::Calibrated => f.write_str("calibrated"),
        }
    }
}

/// The words of the plan, for messages and reports.
macro_rules! words {
    ($type:ident: $($variant:ident = $word:literal),*) => {
        impl $type {
            /// All values with their words.
            pub const ALL: &'static [(&'static str, Self)] = &[$(($word, Self::$variant)),*];

            /// The word of the plan.
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),* }
            }
        }
    };
}

words!(Access: SharedFile = "shared-file", FilePerProcess = "file-per-process");
words!(Operation: Write = "write", Read = "read");
words!(Targets: Chosen = "chosen", Shared = "shared", Separate = "separate");
