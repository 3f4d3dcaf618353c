//! Computes the rates of phases from the results of a run.

use super::plan::Plan;
use crate::latency::{Durations, Latency};
use crate::statistics::Summary;
use crate::workload::Outcome;

impl Outcome<Plan> {
    /// Returns the operations per second of a phase in all repetitions.
    pub fn rates(&self, phase: &str) -> Vec<f64> {
        let of_phase = self.phases.iter().filter(|record| record.phase == phase);
        of_phase.map(|record| record.operations_per_s).collect()
    }

    /// Returns a summary of a phase's operations per second over all repetitions, or `None` if the
    /// phase has no result.
    pub fn summary(&self, phase: &str) -> Option<Summary> {
        Summary::of(&self.rates(phase))
    }

    /// Returns the latencies of a phase over all repetitions, or `None` if no repetition has
    /// latencies of this phase.
    pub fn latency(&self, phase: &str) -> Option<Latency> {
        let mut durations = Durations::default();
        for record in self.phases.iter().filter(|record| record.phase == phase) {
            durations.merge(&record.durations);
        }
        durations.latency()
    }
}
