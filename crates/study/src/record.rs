//! The records in the journal of a study: one a line, each complete in itself.
//!
//! Readers rely on the names of fields: fields may be added, but not renamed.

use crate::plan::{Access, Condition, Level, Operation, Targets};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// A line of the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Record {
    /// The first line: plan, place and version.
    Study(StudyRecord),
    /// The hosts, after the first run since the study began or resumed.
    Environment(EnvironmentRecord),
    /// The result of one run of calibration.
    Trial(RunRecord),
    /// The result of calibration.
    Calibrated(CalibratedRecord),
    /// The result of one run.
    Run(RunRecord),
}

/// The study: plan, place and version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StudyRecord {
    /// Version of these records.
    pub format: u32,
    /// The text of the plan.
    pub plan: String,
    /// Start, in UTC.
    pub started_at: String,
    /// The version of Skep that runs it.
    pub skep_version: String,
    /// The lab's name, or the mount.
    pub place: String,
    /// Client hosts by name.
    pub hosts: Vec<String>,
    /// Storage targets of each server, by the server's name; `None` where the file system doesn't
    /// report them.
    pub targets_per_server: Option<BTreeMap<String, u32>>,
}

/// The hosts as the benchmark describes them: kernel, CPU, mounts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EnvironmentRecord {
    /// Each host of the first application, as the benchmark describes it.
    pub hosts: serde_json::Value,
}

/// The result of calibration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CalibratedRecord {
    /// The smallest data size from which on bandwidth doesn't grow.
    pub data_bytes: u64,
    /// Whether bandwidth levelled off; if not, the size is the largest that was tried.
    pub is_data_enough: bool,
    /// The smallest number of client hosts from which on bandwidth doesn't grow.
    pub hosts: u32,
    /// Whether bandwidth levelled off; if not, the number is the largest that was tried.
    pub are_hosts_enough: bool,
}

/// The condition of a run, with all calibrated values.
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

/// The result of one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// Its index in the list of runs; for calibration, in the list of trials.
    pub run: u32,
    /// The block that contains it.
    pub block: u32,
    /// The experiment's name.
    pub experiment: String,
    /// The repetition of this condition, from 1.
    pub repetition: u32,
    /// Start, in UTC.
    pub started_at: String,
    /// The condition that was run.
    pub settings: Settings,
    /// Eq. 1: the bytes of all applications over the time from the first begin to the last end.
    pub bytes_per_second: f64,
    /// Each application; one, unless several ran at the same time.
    pub applications: Vec<ApplicationRecord>,
    /// Whether all caches were empty before the measurement.
    pub caches_dropped: bool,
    /// Whether the storage system was the limit, and not the CPU of an emulated cluster.
    pub is_valid: bool,
    /// The reason, if it was not.
    pub invalid_because: Option<String>,
}

/// The result of one application.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApplicationRecord {
    /// Its own bytes over its own time.
    pub bytes_per_second: f64,
    /// Bytes written or read.
    pub bytes: u64,
    /// Each of its processes. All times of a run are on one clock.
    pub processes: Vec<ProcessRecord>,
    /// Where its files lie; `None` where the file system doesn't report it.
    pub allocation: Option<Allocation>,
}

/// One process of an application.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProcessRecord {
    /// Its host.
    pub host: String,
    /// Begin, in seconds on the clock of the run.
    pub begin_seconds: f64,
    /// End, in seconds on the clock of the run.
    pub end_seconds: f64,
    /// Bytes written or read.
    pub bytes: u64,
}

/// Where the files of an application lie.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    /// Targets by id, in the order of the stripe; for several files all their targets, ascending.
    pub targets: Vec<u32>,
    /// Smallest and largest number of targets on one server.
    pub min_max: MinMax,
}

/// Smallest and largest number of targets on one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MinMax(
    /// Targets on the server with the fewest.
    pub u32,
    /// Targets on the server with the most.
    pub u32,
);

impl fmt::Display for MinMax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({},{})", self.0, self.1)
    }
}

impl Settings {
    /// A condition with the results of calibration.
    ///
    /// Returns `None` if the condition needs a value that calibration has not found yet.
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
