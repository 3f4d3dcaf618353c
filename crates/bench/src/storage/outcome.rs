//! The results of a benchmark of storage targets.

use super::plan::Plan;
use crate::statistics::Summary;
use serde::{Deserialize, Serialize};

/// A measured target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetRecord {
    /// Its id.
    pub id: u32,
    /// Id of its service.
    pub node: u32,
    /// Name of its service.
    pub node_name: String,
    /// Its directory.
    pub path: String,
}

/// One measurement of one target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The target.
    pub target: u32,
    /// `write` or `read`.
    pub phase: String,
    /// The repetition, from 1.
    pub repetition: u32,
    /// Bytes of all its threads.
    pub bytes: u64,
    /// From the begin of the first thread to the end of the last.
    pub seconds: f64,
    /// Bytes over the time.
    pub bandwidth_mib_per_s: f64,
    /// Whether the target used direct I/O, past the page cache.
    pub is_direct: bool,
    /// Begin and end of each thread, in seconds from the start.
    pub threads: Vec<(f64, f64)>,
}

/// The results of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Outcome {
    /// The plan that was run.
    pub plan: Plan,
    /// Seconds since 1970 when it began.
    pub started_unix_s: i64,
    /// All targets.
    pub targets: Vec<TargetRecord>,
    /// All measurements, in order.
    pub samples: Vec<Sample>,
    /// Why the run ended before its plan was done.
    pub failure: Option<String>,
}

impl Outcome {
    /// Bandwidths of a target in a phase.
    pub fn bandwidths(&self, target: u32, phase: &str) -> Vec<f64> {
        let of_both = self.samples.iter().filter(|it| it.target == target && it.phase == phase);
        of_both.map(|sample| sample.bandwidth_mib_per_s).collect()
    }

    /// A phase over all targets and repetitions; `None` if it has no result.
    pub fn summary(&self, phase: &str) -> Option<Summary> {
        let of_phase = self.samples.iter().filter(|it| it.phase == phase);
        let rates: Vec<f64> = of_phase.map(|sample| sample.bandwidth_mib_per_s).collect();
        Summary::of(&rates)
    }
}
