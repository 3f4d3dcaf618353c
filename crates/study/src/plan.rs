//! The plan of a study, which names the factors to vary. This module reads a plan from a TOML file
//! and checks the plan.
//!
//! A plan has experiments. The conditions of an experiment are all combinations of the values of
//! its factors, and the study repeats each condition. A factor at the top level of a plan applies
//! to all experiments that do not set this factor. Before the first run, this module refuses a plan
//! that contradicts itself. [`Plan::check_system`] also refuses a plan that needs more hosts or
//! targets than the system has.
//!
//! docs/operations/studies.md describes the format of the file.

mod check;
mod operation;
mod read;
mod values;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use skep_types::Result;
use std::fmt;
use std::time::Duration;

pub use check::System;
pub use operation::Quantity;

/// A value of a factor that either the plan contains or the calibration finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level<T> {
    /// The plan contains the value.
    Fixed(T),
    /// The calibration finds the value: the smallest value beyond which bandwidth no longer grows.
    Calibrated,
}

/// How the processes of an application use files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// N-1: all processes write or read parts of one file.
    SharedFile,
    /// N-N: each process writes or reads its own file.
    FilePerProcess,
}

/// The operation of an application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// The application writes its files, and syncs them within the measured time.
    Write,
    /// The application reads data of an earlier write.
    Read,
    /// As `Write`, with the transfers of each process in random order.
    RandomWrite,
    /// As `Read`, with the transfers of each process in random order.
    RandomRead,
    /// The application creates empty files, in a directory for each process.
    Create,
    /// The application calls `stat` for files that another process has created.
    Stat,
    /// The application removes files that another process has created.
    Remove,
}

/// The part of an application to which the data size of a plan applies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataPer {
    /// The data size is that of all processes of an application together.
    #[default]
    Application,
    /// The data size is the size of the data of all processes on one client host.
    Host,
    /// The data size is the size of the data of one process.
    Process,
}

/// The state of the page caches when the measured operation begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cache {
    /// The study has dropped the caches, and each process uses data of another client host.
    #[default]
    Dropped,
    /// The caches are unchanged, and each process uses its own data.
    Kept,
    /// As `Dropped`, and transfers bypass the page cache of the client (`O_DIRECT`).
    Bypassed,
}

/// A number of client hosts, and the number of processes on each host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Clients {
    /// Number of client hosts of one application.
    pub hosts: u32,
    /// Number of processes on each client host.
    pub processes: u32,
}

/// The selection of the targets of the files in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Targets {
    /// The file system's placement policy (chooser) selects targets for each file separately.
    Chosen,
    /// The study selects targets, evenly distributed over the servers. All applications use the
    /// same targets.
    Shared,
    /// The study selects targets, evenly distributed over the servers. No target is used by two
    /// applications.
    Separate,
}

/// The condition of a run: one value of each factor.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Condition {
    /// Number of bytes that one application, host or process (`data_per`) writes or reads. 0 for
    /// operations on names.
    pub data_bytes: Level<u64>,
    /// Number of client hosts of one application.
    pub hosts: Level<u32>,
    /// Number of processes on each client host.
    pub processes: u32,
    /// Number of targets of each file. `None` means that the file system decides the number.
    pub count: Option<u32>,
    /// The placement policy that chooses the targets. `None` means that the file system decides
    /// which policy.
    pub chooser: Option<String>,
    /// Number of bytes that one call of write(2) or read(2) transfers.
    pub transfer_bytes: u64,
    /// Whether processes share one file (N-1) or each process uses its own file (N-N).
    pub access: Access,
    /// Whether applications write or read.
    pub operation: Operation,
    /// Number of applications that run at the same time.
    pub applications: u32,
    /// The selection of the targets of the files.
    pub targets: Targets,
    /// The part of an application to which `data_bytes` applies.
    pub data_per: DataPer,
    /// Number of servers whose targets store the files. `None` means all servers.
    pub servers: Option<u32>,
    /// Whether the caches are dropped before the measured operation.
    pub cache: Cache,
    /// Number of files of each process. Only operations on names use this number.
    pub files: u32,
}

/// The values that an experiment tries for each factor.
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
    /// Pairs that replace `hosts` and `processes`. Empty if the conditions are the product of these
    /// two factors.
    pub clients: Vec<Clients>,
    pub data_per: DataPer,
    pub servers: Vec<Option<u32>>,
    pub cache: Vec<Cache>,
    pub files: Vec<u32>,
}

/// A set of conditions whose results one figure compares.
#[derive(Debug, Clone, PartialEq)]
pub struct Experiment {
    /// Name of the experiment. The name is short and unique, and can be used in file names.
    pub name: String,
    /// The question that the experiment answers, in one line.
    pub title: String,
    /// Number of runs of each condition.
    pub repetitions: u32,
    /// The values of each factor. The conditions of the experiment are all combinations of the
    /// values of these factors.
    pub factors: Factors,
}

/// The parameters of the calibration. The calibration finds the smallest data size and the smallest
/// number of hosts beyond which bandwidth does not grow.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibration {
    /// Data sizes that the calibration tries, in ascending order.
    pub data_bytes: Vec<u64>,
    /// Numbers of client hosts that the calibration tries, in ascending order.
    pub hosts: Vec<u32>,
    /// Number of runs with each value that the calibration tries.
    pub repetitions: u32,
    /// A value counts as enough if every larger value increases the bandwidth by less than this
    /// fraction.
    pub tolerance: f64,
}

/// The emulated cluster in which the plan runs. The fields of this struct are the keys of `lab` in
/// the document.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Lab {
    /// Name of a predefined shape of `skep lab`.
    pub shape: String,
    /// Numbers of servers, of targets per server, and of client hosts. Each replaces the number of
    /// the shape.
    pub servers: Option<u16>,
    #[allow(missing_docs, reason = "documented above")]
    pub targets: Option<u16>,
    #[allow(missing_docs, reason = "documented above")]
    pub clients: Option<u16>,
    /// Number of metadata hosts. This number replaces the number of the shape.
    pub metadata_servers: Option<u16>,
    /// Rate of each metadata host's link. This rate replaces the rate of the shape.
    pub metadata_link: Option<String>,
    /// Rate of each server's link, such as `400Mbit`. This rate replaces the rate of the shape.
    pub link: Option<String>,
    /// Rate of each client's link. This rate replaces the rate of the shape.
    pub client_link: Option<String>,
    /// Rate of each target, such as `30MB/s`. This rate replaces the rate of the shape.
    pub target_rate: Option<String>,
}

/// The rates that the hardware can reach. Reports show results as a share of these rates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limit {
    /// Bytes per second that one server can transfer: the smaller rate of its link and of its
    /// devices.
    pub server_bytes_per_second: Option<u64>,
    /// Bytes per second that one client host can move.
    pub client_bytes_per_second: Option<u64>,
    /// Operations per second of one server.
    pub server_operations_per_second: Option<u64>,
}

/// The plan of a study.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Name of the study. The name is short, and can be used in file names.
    pub name: String,
    /// The subject of the study, in one line.
    pub title: String,
    /// The subject of the study, in sentences.
    pub about: String,
    /// Seed of the random order of blocks, and of the waits between them.
    pub seed: u64,
    /// Number of runs in a block.
    pub block: u32,
    /// Shortest and longest wait between two blocks. `None` means the default for the system.
    pub wait: Option<(Duration, Duration)>,
    /// The lab in which the plan runs. `None` means that the plan can run on any system.
    pub lab: Option<Lab>,
    /// The rates of the hardware. In a study that runs in a lab, a missing rate is the rate of the
    /// lab.
    pub limit: Limit,
    /// The parameters of the calibration.
    pub calibration: Calibration,
    /// The experiments of the study. The list has at least one experiment.
    pub experiments: Vec<Experiment>,
}

impl Plan {
    /// Parses a plan and checks it.
    ///
    /// # Errors
    /// `Configuration`. The error names the wrong key, and contains a hint on how to fix the plan.
    pub fn parse(text: &str) -> Result<Self> {
        let plan = read::plan(text)?;
        check::plan(&plan)?;
        Ok(plan)
    }

    /// Checks whether a system has all that the plan needs.
    ///
    /// # Errors
    /// `Configuration`. The error names the key that needs more hosts or targets than the system
    /// has.
    pub fn check_system(&self, system: &System) -> Result<()> {
        check::on_system(self, system)
    }

    /// Whether the calibration must find a value of the plan.
    pub fn needs_calibration(&self) -> bool {
        self.conditions().any(|(_, condition)| {
            condition.data_bytes == Level::Calibrated || condition.hosts == Level::Calibrated
        })
    }

    /// Returns all conditions, each with its experiment, in the order of the plan.
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
    /// Returns all combinations of the values of all factors. Of two factors in [`Factors`], the
    /// later factor varies faster.
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
        vary!(data_bytes);
        if self.clients.is_empty() {
            vary!(hosts, processes);
        } else {
            let with = |condition: &Condition, clients: &Clients| Condition {
                hosts: Level::Fixed(clients.hosts),
                processes: clients.processes,
                ..condition.clone()
            };
            all = all
                .iter()
                .flat_map(|condition| self.clients.iter().map(move |it| with(condition, it)))
                .collect();
        }
        vary!(count, chooser, transfer_bytes, access, operation, applications, targets);
        vary!(servers, cache, files);
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
            data_per: self.data_per,
            servers: self.servers[0],
            cache: self.cache[0],
            files: self.files[0],
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

/// Declares the words that plans, messages and reports use for the variants of an enum.
macro_rules! words {
    ($type:ident: $($variant:ident = $word:literal),*) => {
        impl $type {
            /// All variants with their words.
            pub const ALL: &'static [(&'static str, Self)] = &[$(($word, Self::$variant)),*];

            /// Returns the word for this variant.
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),* }
            }
        }
    };
}

words!(Access: SharedFile = "shared-file", FilePerProcess = "file-per-process");
words!(
    Operation: Write = "write", Read = "read", RandomWrite = "random-write",
    RandomRead = "random-read", Create = "create", Stat = "stat", Remove = "remove"
);
words!(DataPer: Application = "application", Host = "host", Process = "process");
words!(Cache: Dropped = "dropped", Kept = "kept", Bypassed = "bypassed");
words!(Targets: Chosen = "chosen", Shared = "shared", Separate = "separate");
