//! What the journal of a study holds: one record a line, each complete in itself.
//!
//! Names of fields are part of what readers rely on: fields may be added, none is renamed.

use crate::plan::{Access, Condition, Level, Operation, Targets};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// A line of the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Record {
    /// The first line: what is studied, and where.
    Study(StudyRecord),
    /// What the hosts are, after the first run since a study was begun or resumed.
    Environment(EnvironmentRecord),
    /// What one run of the first step measured.
    Trial(RunRecord),
    /// What the first step has found.
    Calibrated(CalibratedRecord),
    /// What one run measured.
    Run(RunRecord),
}

/// What is studied, and where.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StudyRecord {
    /// Version of these records.
    pub format: u32,
    /// The plan as it was written.
    pub plan: String,
    /// UTC.
    pub started_at: String,
    /// The version of Skep that runs it.
    pub skep_version: String,
    /// The lab's name, or the mount.
    pub place: String,
    /// Client hosts by name.
    pub hosts: Vec<String>,
    /// Storage targets of each server by the server's name; none where the file system doesn't
    /// tell.
    pub targets_per_server: Option<BTreeMap<String, u32>>,
}

/// What the benchmark says of the hosts: kernel, CPU, mounts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EnvironmentRecord {
    /// Each host of the first application, as the benchmark describes it.
    pub hosts: serde_json::Value,
}

/// What the first step has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CalibratedRecord {
    /// The data size from which on bandwidth doesn't grow.
    pub data_bytes: u64,
    /// Whether that was so; otherwise the largest that was tried.
    pub is_data_enough: bool,
    /// The number of client hosts from which on bandwidth doesn't grow.
    pub hosts: u32,
    /// Whether that was so; otherwise the largest that was tried.
    pub are_hosts_enough: bool,
}

/// The condition of a run with everything found out.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[allow(missing_docs, reason = "as plan::Condition")]
pub struct Settings {
    pub data_bytes: u64,
    pub hosts: u32,
    pub processes: u32,
    pub count: Option<u32>,
    pub chooser: Option<String>,
    pub transfer_bytes: u64,
    pub access: Access,
    pub operation: Operation,
    pub applications: u32,
    pub targets: Targets,
}

/// What one run measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// Its place in the list of runs; of a trial, in the order of trials.
    pub run: u32,
    /// The block that it was part of.
    pub block: u32,
    /// The experiment's name.
    pub experiment: String,
    /// Which of the runs of this condition, from 1.
    pub repetition: u32,
    /// UTC.
    pub started_at: String,
    /// What was run.
    pub settings: Settings,
    /// Eq. 1: the bytes of all applications over the time from the first begin to the last end.
    pub bytes_per_second: f64,
    /// Each application; one, unless several ran at the same time.
    pub applications: Vec<ApplicationRecord>,
    /// Whether nothing was cached before what was measured.
    pub caches_dropped: bool,
    /// Whether what is studied was the limit; not so if it was the CPU of an emulated cluster.
    pub is_valid: bool,
    /// Why not.
    pub invalid_because: Option<String>,
}

/// What one application measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApplicationRecord {
    /// Its own bytes over its own time.
    pub bytes_per_second: f64,
    /// Written or read.
    pub bytes: u64,
    /// Each of its processes. All times of a run are on one clock.
    pub processes: Vec<ProcessRecord>,
    /// Where its files lie; none where the file system doesn't tell.
    pub allocation: Option<Allocation>,
}

/// One process of an application.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProcessRecord {
    /// Where it ran.
    pub host: String,
    /// In seconds on the clock of the run.
    pub begin_seconds: f64,
    /// In seconds on the clock of the run.
    pub end_seconds: f64,
    /// Written or read.
    pub bytes: u64,
}

/// Where the files of an application lie.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    /// Targets by id, in the order of the stripe; of several files, all of theirs, ascending.
    pub targets: Vec<u32>,
    /// Smallest and largest number of targets on one server.
    pub min_max: MinMax,
}

/// Smallest and largest number of targets on one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MinMax(
    /// On the server that has the fewest.
    pub u32,
    /// On the server that has the most.
    pub u32,
);

impl fmt::Display for MinMax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({},{})", self.0, self.1)
    }
}

impl Settings {
    /// A condition with what the first step has found.
    ///
    /// None where it asks for that and nothing was found yet.
    pub fn new(condition: &Condition, found: Option<&CalibratedRecord>) -> Option<Self> {
        let data_bytes = match condition.data_bytes {
            Level::Fixed(bytes) => bytes,
            Level::Calibrated => found?.data_bytes,
        };
        let hosts = match condition.hosts {
            Level::Fixed(hosts) => hosts,
            Level::Calibrated => found?.hosts,
        };
        Some(Self {
            data_bytes,
            hosts,
            processes: condition.processes,
            count: condition.count,
            chooser: condition.chooser.clone(),
            transfer_bytes: condition.transfer_bytes,
            access: condition.access,
            operation: condition.operation,
            applications: condition.applications,
            targets: condition.targets,
        })
    }
}

impl RunRecord {
    /// The allocation of a run with one application.
    pub fn allocation(&self) -> Option<MinMax> {
        match &self.applications[..] {
            [only] => only.allocation.as_ref().map(|allocation| allocation.min_max),
            _ => None,
        }
    }
}
