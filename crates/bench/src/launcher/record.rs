//! The record of a phase, with each process of it.

use super::Measure;
use crate::environment::Environment;
use serde::{Deserialize, Serialize};

/// A host of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostRecord {
    /// Its name in the plan.
    pub name: String,
    /// Whether processes ran there; if not, only its caches were dropped.
    pub has_processes: bool,
    /// Its environment.
    pub environment: Environment,
    /// Seconds by which its clock was ahead of the controller's at the start of the run.
    pub clock_offset_s: f64,
    /// Possible error of that offset, in seconds.
    pub clock_error_s: f64,
}

/// A phase of a run. Times are seconds since the controller's host booted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PhaseRecord {
    /// Its name.
    pub phase: String,
    /// The repetition, from 1.
    pub repetition: u32,
    /// Begin of the first process.
    pub begin_s: f64,
    /// End of the last process.
    pub end_s: f64,
    /// The time between these two.
    pub seconds: f64,
    /// Bytes of all processes.
    pub bytes: u64,
    /// Operations of all processes.
    pub operations: u64,
    /// Bytes over the time.
    pub bandwidth_mib_per_s: f64,
    /// Operations over the time.
    pub operations_per_s: f64,
    /// From the begin of the first process to the begin of the last.
    pub start_skew_s: f64,
    /// Operations that returned wrong data.
    pub errors: u64,
    /// The first of these, in words.
    pub first_error: Option<String>,
    /// Whether caches were dropped on all hosts before it.
    pub caches_dropped: bool,
    /// Each process, by rank.
    pub processes: Vec<ProcessRecord>,
    /// Each host with processes.
    pub hosts: Vec<HostUse>,
}

/// A process in a phase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProcessRecord {
    /// Its rank, from 0.
    pub rank: u32,
    /// Its host.
    pub host: String,
    /// Its results, on the controller's time line.
    #[serde(flatten)]
    pub measure: Measure,
}

/// A host in a phase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostUse {
    /// Its name.
    pub name: String,
    /// The share of the time in which its CPUs were busy with any work; `None` if the phase was too
    /// short.
    pub cpu_busy: Option<f64>,
}

impl PhaseRecord {
    /// Combines the results of all processes.
    pub(crate) fn new(
        phase: String,
        repetition: u32,
        processes: Vec<ProcessRecord>,
        hosts: Vec<HostUse>,
    ) -> Self {
        let times = |of: fn(&Measure) -> f64| processes.iter().map(move |it| of(&it.measure));
        let begin_s = times(|it| it.begin_s).fold(f64::INFINITY, f64::min);
        let last_begin_s = times(|it| it.begin_s).fold(f64::NEG_INFINITY, f64::max);
        let end_s = times(|it| it.end_s).fold(f64::NEG_INFINITY, f64::max);
        let sum = |of: fn(&Measure) -> u64| processes.iter().map(|it| of(&it.measure)).sum();
        let (bytes, operations): (u64, u64) = (sum(|it| it.bytes), sum(|it| it.operations));
        // Clocks count nanoseconds.
        let seconds = (end_s - begin_s).max(1e-9);
        Self {
            phase,
            repetition,
            begin_s,
            end_s,
            seconds,
            bytes,
            operations,
            bandwidth_mib_per_s: bytes as f64 / f64::from(1 << 20) / seconds,
            operations_per_s: operations as f64 / seconds,
            start_skew_s: last_begin_s - begin_s,
            errors: sum(|it| it.errors),
            first_error: processes.iter().find_map(|it| it.measure.first_error.clone()),
            caches_dropped: false,
            processes,
            hosts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_counts_from_the_first_begin_to_the_last_end() {
        let process = |rank, begin_s, end_s| {
            let measure =
                Measure { begin_s, end_s, bytes: 3 << 20, operations: 3, ..Measure::default() };
            ProcessRecord { rank, host: "a".into(), measure }
        };
        let processes = vec![process(0, 10.5, 12.0), process(1, 10.0, 11.0)];
        let record = PhaseRecord::new("write".into(), 1, processes, Vec::new());
        assert_eq!((record.begin_s, record.end_s, record.seconds), (10.0, 12.0, 2.0));
        assert_eq!((record.bandwidth_mib_per_s, record.operations_per_s), (3.0, 3.0));
        assert_eq!(record.start_skew_s, 0.5);
    }
}
