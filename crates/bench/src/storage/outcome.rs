//! The results of a benchmark of storage targets.

use super::plan::Plan;
use crate::statistics::Summary;
use serde::{Deserialize, Serialize};

/// A target that was measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetRecord {
    /// Target id.
    pub id: u32,
    /// Node id of the service that serves the target.
    pub node: u32,
    /// Name of the service that serves the target.
    pub node_name: String,
    /// Directory of the target on its server.
    pub path: String,
}

/// One measurement of one target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Id of the target.
    pub target: u32,
    /// The phase: `write` or `read`.
    pub phase: String,
    /// The repetition, counted from 1.
    pub repetition: u32,
    /// Number of bytes that all threads of the target transferred.
    pub bytes: u64,
    /// Time from the start of the first thread to the end of the last thread.
    pub seconds: f64,
    /// `bytes` divided by `seconds`, in MiB/s.
    pub bandwidth_mib_per_s: f64,
    /// Whether the target used direct I/O, which bypasses the page cache.
    pub is_direct: bool,
    /// Start and end of each thread, in seconds since the start of the measurement.
    pub threads: Vec<(f64, f64)>,
}

/// The results of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Outcome {
    /// The plan that was run.
    pub plan: Plan,
    /// Start of the run, in seconds since 1970.
    pub started_unix_s: i64,
    /// All targets that were measured.
    pub targets: Vec<TargetRecord>,
    /// All measurements, in the order of their times.
    pub samples: Vec<Sample>,
    /// Why the run ended before the plan was complete. `None` if the run completed the plan.
    pub failure: Option<String>,
}

impl Outcome {
    /// Returns the bandwidths of a target in a phase, for all repetitions, in MiB/s.
    pub fn bandwidths(&self, target: u32, phase: &str) -> Vec<f64> {
        let of_both = self.samples.iter().filter(|it| it.target == target && it.phase == phase);
        of_both.map(|sample| sample.bandwidth_mib_per_s).collect()
    }

    /// Returns a summary of a phase over all targets and repetitions, or `None` if the phase has no
    /// result.
    pub fn summary(&self, phase: &str) -> Option<Summary> {
        let of_phase = self.samples.iter().filter(|it| it.phase == phase);
        let rates: Vec<f64> = of_phase.map(|sample| sample.bandwidth_mib_per_s).collect();
        Summary::of(&rates)
    }
}
