//! The records in the journal of a study. Each line has one record, which can be read without the
//! other lines.
//!
//! Readers rely on the names of fields. A later version may add fields, but must not rename fields.

use crate::plan::{Access, Condition, Level, Operation, Targets};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// A line of the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Record {
    /// The first record, which contains the plan, the place and the version of Skep.
    Study(StudyRecord),
    /// The description of the hosts. Written after the first run since the study was started or
    /// resumed.
    Environment(EnvironmentRecord),
    /// The result of one run of calibration.
    Trial(RunRecord),
    /// The result of calibration.
    Calibrated(CalibratedRecord),
    /// The result of one run.
    Run(RunRecord),
}

/// A study: its plan, its place and the version of Skep that runs it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StudyRecord {
    /// Version of the record format.
    pub format: u32,
    /// The text of the plan.
    pub plan: String,
    /// Start of the study, in UTC.
    pub started_at: String,
    /// Version of the `skep` program that runs the study.
    pub skep_version: String,
    /// Name of the lab, or path of the mount.
    pub place: String,
    /// Names of the client hosts.
    pub hosts: Vec<String>,
    /// Number of storage targets of each server, by the server's name. `None` if the file system
    /// does not report them.
    pub targets_per_server: Option<BTreeMap<String, u32>>,
}

/// The hosts, as the benchmark describes them: kernel, CPU, mounts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EnvironmentRecord {
    /// A list with each host of the first application.
    pub hosts: serde_json::Value,
}

/// The result of calibration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CalibratedRecord {
    /// The smallest data size beyond which bandwidth does not grow.
    pub data_bytes: u64,
    /// Whether bandwidth levelled off at `data_bytes`. If not, `data_bytes` is the largest size
    /// that calibration tried.
    pub is_data_enough: bool,
    /// The smallest number of client hosts beyond which bandwidth does not grow.
    pub hosts: u32,
    /// Whether bandwidth levelled off with `hosts` hosts. If not, `hosts` is the largest number
    /// that calibration tried.
    pub are_hosts_enough: bool,
}

/// The condition of a run. Calibrated values are filled in.
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
    /// Index of the run in the list of runs, or, for calibration, in the list of trials.
    pub run: u32,
    /// Index of the block that contains the run.
    pub block: u32,
    /// Name of the experiment.
    pub experiment: String,
    /// The repetition of this condition, counted from 1.
    pub repetition: u32,
    /// Start of the run, in UTC.
    pub started_at: String,
    /// The condition under test.
    pub settings: Settings,
    /// Aggregate bandwidth (Eq. 1): the bytes of all applications divided by the time from the
    /// first begin to the last end.
    pub bytes_per_second: f64,
    /// The result of each application. A run has several only if several applications ran at the
    /// same time.
    pub applications: Vec<ApplicationRecord>,
    /// Whether all caches were empty before the measurement.
    pub caches_dropped: bool,
    /// Whether the storage system limited the run, and not the CPU of the host that emulates the
    /// cluster.
    pub is_valid: bool,
    /// Why the run is invalid, or `None` if it is valid.
    pub invalid_because: Option<String>,
}

/// The result of one application.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApplicationRecord {
    /// The bytes of the application divided by its own time.
    pub bytes_per_second: f64,
    /// Number of bytes written or read.
    pub bytes: u64,
    /// Each process of the application. All times of a run are on one clock.
    pub processes: Vec<ProcessRecord>,
    /// The targets of the application's files. `None` if the file system does not report them.
    pub allocation: Option<Allocation>,
}

/// One process of an application.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProcessRecord {
    /// Name of the host on which the process ran.
    pub host: String,
    /// When the process began, in seconds on the clock of the run.
    pub begin_seconds: f64,
    /// When the process ended, in seconds on the clock of the run.
    pub end_seconds: f64,
    /// Number of bytes written or read.
    pub bytes: u64,
}

/// The targets on which the files of an application are stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    /// Ids of the targets. The targets of one file are in stripe order. The targets of several
    /// files are in ascending order.
    pub targets: Vec<u32>,
    /// Smallest and largest number of targets on one server.
    pub min_max: MinMax,
}

/// Smallest and largest number of targets on one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MinMax(
    /// Number of targets on the server that has the fewest targets.
    pub u32,
    /// Number of targets on the server that has the most targets.
    pub u32,
);

impl fmt::Display for MinMax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({},{})", self.0, self.1)
    }
}

impl Settings {
    /// Combines a condition with the results of calibration.
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
    /// Returns the allocation of a run with one application, or `None` for a run with several
    /// applications.
    pub fn allocation(&self) -> Option<MinMax> {
        match &self.applications[..] {
            [only] => only.allocation.as_ref().map(|allocation| allocation.min_max),
            _ => None,
        }
    }
}
