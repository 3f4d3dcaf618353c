//! Computes the rates of phases from the results of a run.

use super::plan::Plan;
use crate::statistics::Summary;
use crate::workload::Outcome;

impl Outcome<Plan> {
    /// Returns the bandwidths of a phase in all repetitions, in MiB/s.
    pub fn bandwidths(&self, phase: &str) -> Vec<f64> {
        let of_phase = self.phases.iter().filter(|record| record.phase == phase);
        of_phase.map(|record| record.bandwidth_mib_per_s).collect()
    }

    /// Returns a summary of the bandwidths of a phase, or `None` if the phase has no result.
    pub fn summary(&self, phase: &str) -> Option<Summary> {
        Summary::of(&self.bandwidths(phase))
    }

    /// Returns the number of operations that read wrong data, summed over all phases.
    pub fn errors(&self) -> u64 {
        self.phases.iter().map(|record| record.errors).sum()
    }
}
