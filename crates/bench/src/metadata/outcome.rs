//! What was measured: every single result, and what it was measured on.

use super::plan::Plan;
use crate::launcher::{HostRecord, PhaseRecord};
use crate::statistics::Summary;
use serde::{Deserialize, Serialize};

/// What a run has measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Outcome {
    /// What was asked for.
    pub plan: Plan,
    /// What did the work; `skep` unless another tool did.
    pub tool: String,
    /// Processes over all hosts.
    pub processes: u32,
    /// Seconds since 1970 when it began.
    pub started_unix_s: i64,
    /// All hosts with what they are.
    pub hosts: Vec<HostRecord>,
    /// Each phase of each repetition that came to its end, in order.
    pub phases: Vec<PhaseRecord>,
    /// Why it ended before all was done; what was measured until then is in `phases`.
    pub failure: Option<String>,
}

impl Outcome {
    /// Operations per second of a phase over all repetitions; none if it was not measured.
    pub fn summary(&self, phase: &str) -> Option<Summary> {
        let of_phase = self.phases.iter().filter(|record| record.phase == phase);
        let rates: Vec<f64> = of_phase.map(|record| record.operations_per_s).collect();
        Summary::of(&rates)
    }
}
