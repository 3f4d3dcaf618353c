//! What a study varies: the plan, as people write it in TOML, read and checked.
//!
//! A plan has experiments; each is the product of the values of its factors, repeated. What a plan
//! says of factors at its top level counts for all experiments that don't say otherwise. Everything
//! that contradicts itself is refused here, before anything is run; what needs the system to be
//! known (how many hosts and targets there are) is checked by [`Plan::check_system`].
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

/// A value that stands in the plan, or is found out before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level<T> {
    /// This one.
    Fixed(T),
    /// The smallest one at which bandwidth levels off: the study's first step finds it.
    Calibrated,
}

/// Whether the processes of an application share a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// All write or read parts of one file: N-1.
    SharedFile,
    /// Each has a file of its own: N-N.
    FilePerProcess,
}

/// What an application does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Writes, and syncs before the time is taken.
    Write,
    /// Reads what was written before and is cached nowhere.
    Read,
}

/// Who decides which targets the applications of a run get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Targets {
    /// The chooser, for each file alone.
    Chosen,
    /// The study: all applications use the same ones, as many on each server as possible.
    Shared,
    /// The study: each application has targets that no other uses, as many on each server as
    /// possible.
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
    /// Targets of each file; none: as the file system decides.
    pub count: Option<u32>,
    /// How they are chosen; none: as the file system decides.
    pub chooser: Option<String>,
    /// Bytes of one call of write(2) or read(2).
    pub transfer_bytes: u64,
    /// N-1 or N-N.
    pub access: Access,
    /// Write or read.
    pub operation: Operation,
    /// How many applications run at the same time.
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

/// What is varied together, and drawn together.
#[derive(Debug, Clone, PartialEq)]
pub struct Experiment {
    /// Short, unique, usable in names of files.
    pub name: String,
    /// What is asked, in a line.
    pub title: String,
    /// Runs of each condition.
    pub repetitions: u32,
    /// The conditions are the product of these.
    pub factors: Factors,
}

/// The search for the data size and the number of hosts at which bandwidth levels off.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibration {
    /// Data sizes to try, ascending.
    pub data_bytes: Vec<u64>,
    /// Numbers of hosts to try, ascending.
    pub hosts: Vec<u32>,
    /// Runs of each.
    pub repetitions: u32,
    /// Bandwidth has levelled off where all larger values bring less than this share more.
    pub tolerance: f64,
}

/// The emulated cluster that a plan is made for.
#[derive(Debug, Clone, PartialEq)]
pub struct Lab {
    /// The ready shape by its name in `skep lab`.
    pub shape: String,
    /// Instead of the shape's: servers, targets of each, client hosts.
    pub servers: Option<u16>,
    #[allow(missing_docs, reason = "said above")]
    pub targets: Option<u16>,
    #[allow(missing_docs, reason = "said above")]
    pub clients: Option<u16>,
    /// Instead of the shape's: rate of each server's link, as in `400Mbit`.
    pub link: Option<String>,
    /// Instead of the shape's: rate of each target, as in `30MB/s`.
    pub target_rate: Option<String>,
}

/// A study.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Short, usable in names of files.
    pub name: String,
    /// What it is about, in a line.
    pub title: String,
    /// What it is about, in sentences.
    pub about: String,
    /// From which the order of blocks and the waits are drawn.
    pub seed: u64,
    /// Runs in a block.
    pub block: u32,
    /// Shortest and longest wait between blocks; none: as is right for the place.
    pub wait: Option<(Duration, Duration)>,
    /// The lab that it is made for; none: any system.
    pub lab: Option<Lab>,
    /// What the first step tries.
    pub calibration: Calibration,
    /// At least one.
    pub experiments: Vec<Experiment>,
}

impl Plan {
    /// Reads a plan and checks it.
    ///
    /// # Errors
    /// `Configuration`, naming the key that is wrong and the way out.
    pub fn parse(text: &str) -> Result<Self> {
        let plan = read::plan(text)?;
        check::plan(&plan)?;
        Ok(plan)
    }

    /// Checks that the plan can be run on a system.
    ///
    /// # Errors
    /// `Configuration`, naming the key that asks for more than there is.
    pub fn check_system(&self, system: &System) -> Result<()> {
        check::on_system(self, system)
    }

    /// Whether the first step is needed: something in the plan asks for what it finds.
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
    /// Their product. The factor that stands last in [`Factors`] changes fastest.
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
            /// All of them with their words.
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
