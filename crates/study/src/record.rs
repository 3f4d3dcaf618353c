//! The records in the journal of a study. Each line is one record, and a reader can parse each line
//! without the other lines.
//!
//! Programs rely on the names of the fields. A later version of the program may add fields, but
//! must not rename a field.

use crate::plan::{Access, Cache, Condition, DataPer, Level, Operation, Targets};
use serde::{Deserialize, Serialize};
use skep_bench::latency::Latency;
use std::collections::BTreeMap;
use std::fmt;

/// A record, which is one line of the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Record {
    /// The first record. This record contains the plan, the lab or mount on which the study runs,
    /// and the version of Skep.
    Study(StudyRecord),
    /// The description of the hosts. The study writes this record after the first run that follows
    /// a start or a resumption of the study.
    Environment(EnvironmentRecord),
    /// The result of one run of the calibration.
    Trial(RunRecord),
    /// The result of the calibration.
    Calibrated(CalibratedRecord),
    /// The result of one run.
    Run(RunRecord),
}

/// The study: its plan, the lab or mount on which it runs, and the version of Skep that runs it.
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
    /// Where the study runs: the name of the lab, or the path of the mount.
    pub place: String,
    /// Names of the client hosts.
    pub hosts: Vec<String>,
    /// Number of storage targets of each server, by the name of the server. `None` if the file
    /// system does not report its targets.
    pub targets_per_server: Option<BTreeMap<String, u32>>,
    /// The rates of the hardware, as far as the system reports these rates. `None` in journals of
    /// versions that did not record the rates. The reports of such journals have no table of
    /// results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<LimitRecord>,
}

/// The rates that the hardware of a system can reach. A lab reports the rates in its description.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitRecord {
    /// Bytes per second of one server: the smaller rate of its link and of all its targets. `None`
    /// if the system does not report this rate.
    pub server_bytes_per_second: Option<u64>,
    /// Bytes per second of one client host. `None` if the system does not report this rate.
    pub client_bytes_per_second: Option<u64>,
}

/// The hosts, as the benchmark describes them: kernel, CPU, mounts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EnvironmentRecord {
    /// A list of descriptions: of the client hosts of the first run, and of the servers whose
    /// caches this run dropped.
    pub hosts: serde_json::Value,
}

/// The result of the calibration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CalibratedRecord {
    /// The smallest amount of data beyond which bandwidth does not grow, in bytes.
    pub data_bytes: u64,
    /// Whether bandwidth does not grow beyond `data_bytes`. If this field is not set, `data_bytes`
    /// is the largest amount that the calibration tried.
    pub is_data_enough: bool,
    /// The smallest number of client hosts beyond which bandwidth does not grow.
    pub hosts: u32,
    /// Whether bandwidth does not grow beyond `hosts` hosts. If this field is not set, `hosts` is
    /// the largest number that the calibration tried.
    pub are_hosts_enough: bool,
}

/// The condition of a run with numbers only. The value of a calibrated factor is the number that
/// the calibration has found.
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
    #[serde(default, skip_serializing_if = "is_default")]
    pub data_per: DataPer,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub servers: Option<u32>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub cache: Cache,
    /// Number of files of each process. `None` if the operation transfers data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<u32>,
}

/// Whether a field has its default value. The record omits such a field, because records of earlier
/// versions do not have the field.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The result of one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// Index of the run in the list of all runs. For a run of the calibration: its index among
    /// these runs.
    pub run: u32,
    /// Index of the block to which the run belongs.
    pub block: u32,
    /// Name of the experiment to which the run belongs.
    pub experiment: String,
    /// The repetition of the condition, counted from 1.
    pub repetition: u32,
    /// Start of the run, in UTC.
    pub started_at: String,
    /// The condition of the run.
    pub settings: Settings,
    /// Aggregate bandwidth, by equation (1) of the published study: the bytes of all applications,
    /// divided by the time from the first start to the last end.
    pub bytes_per_second: f64,
    /// Operations of all applications, divided by the time from the first start to the last end.
    /// `None` if the run measures bandwidth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operations_per_second: Option<f64>,
    /// The result of each application. The list has several entries only if the run had several
    /// applications at the same time.
    pub applications: Vec<ApplicationRecord>,
    /// Whether all caches had been dropped before the measurement.
    pub caches_dropped: bool,
    /// Whether the run describes the storage system. `false` means that the CPU of the host that
    /// emulates the cluster was the bottleneck.
    pub is_valid: bool,
    /// Why the run is invalid. `None` if the run is valid.
    pub invalid_because: Option<String>,
}

/// The result of one application.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApplicationRecord {
    /// The bytes of the application, divided by the time from its start to its end.
    pub bytes_per_second: f64,
    /// Operations of the application, divided by the time from its start to its end. `None` if the
    /// run measures bandwidth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operations_per_second: Option<f64>,
    /// Number of bytes that the application wrote or read.
    pub bytes: u64,
    /// The processes of the application. All times in a run are on the same clock.
    pub processes: Vec<ProcessRecord>,
    /// The latencies of the application's operations. `None` in journals of versions that did not
    /// measure latencies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// The targets of the application's files. `None` if the file system does not report targets.
    pub allocation: Option<Allocation>,
}

/// One process of an application.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProcessRecord {
    /// Name of the host on which the process ran.
    pub host: String,
    /// Time at which the process began, in seconds on the clock of the run.
    pub begin_seconds: f64,
    /// Time at which the process ended, in seconds on the clock of the run.
    pub end_seconds: f64,
    /// Number of bytes that the process wrote or read.
    pub bytes: u64,
    /// Number of operations of the process. 0 if the run measures bandwidth.
    #[serde(default, skip_serializing_if = "is_default")]
    pub operations: u64,
}

/// The targets on which the files of an application are stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    /// Ids of the targets. The targets of an application with one file are in stripe order. The
    /// targets of several files are in ascending order.
    pub targets: Vec<u32>,
    /// The smallest and the largest number of the application's targets on one server.
    pub min_max: MinMax,
}

/// The smallest and the largest number of the application's targets on one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MinMax(
    /// Number of the application's targets on the server with the fewest of these targets.
    pub u32,
    /// Number of the application's targets on the server with the most of these targets.
    pub u32,
);

impl fmt::Display for MinMax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({},{})", self.0, self.1)
    }
}

impl Settings {
    /// Returns the settings of a run: the condition, with the results of the calibration filled in.
    ///
    /// Returns `None` if the condition needs a value that the calibration has not found yet.
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
            data_per: condition.data_per,
            servers: condition.servers,
            cache: condition.cache,
            files: condition.operation.is_on_names().then_some(condition.files),
        })
    }

    /// Returns the number of processes of one application.
    pub fn processes_of_application(&self) -> u64 {
        u64::from(self.hosts) * u64::from(self.processes)
    }

    /// Returns the number of bytes that one process writes or reads.
    pub fn bytes_of_process(&self) -> u64 {
        match self.data_per {
            DataPer::Application => self.data_bytes / self.processes_of_application(),
            DataPer::Host => self.data_bytes / u64::from(self.processes),
            DataPer::Process => self.data_bytes,
        }
    }
}

impl ApplicationRecord {
    /// Returns the result of the application, in bytes or operations per second.
    pub fn value(&self) -> f64 {
        self.operations_per_second.unwrap_or(self.bytes_per_second)
    }
}

impl RunRecord {
    /// Returns the result of the run, in bytes or operations per second.
    pub fn value(&self) -> f64 {
        self.operations_per_second.unwrap_or(self.bytes_per_second)
    }

    /// Returns a percentile of the latencies of the run, in microseconds. Of several applications,
    /// the application with the longest latency counts. `None` if the run has no latencies.
    pub fn latency_us(&self, of: fn(&Latency) -> f64) -> Option<f64> {
        let all = self.applications.iter().filter_map(|it| it.latency.as_ref()).map(of);
        all.reduce(f64::max)
    }

    /// Returns the allocation of the run. `None` if the run has several applications, or if the
    /// file system does not report targets.
    pub fn allocation(&self) -> Option<MinMax> {
        match &self.applications[..] {
            [only] => only.allocation.as_ref().map(|allocation| allocation.min_max),
            _ => None,
        }
    }
}
