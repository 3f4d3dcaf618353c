//! The record of a phase, which contains a record of each process.

use super::Measure;
use crate::environment::Environment;
use crate::latency::{Durations, Latency};
use serde::{Deserialize, Serialize};

/// A host of a run, with its environment and its clock offset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostRecord {
    /// Name of the host in the plan.
    pub name: String,
    /// Whether processes of the run ran on the host. If the field is not set, the run only dropped
    /// the caches of the host.
    pub has_processes: bool,
    /// The environment of the host, such as its kernel and CPU.
    pub environment: Environment,
    /// How far the host's clock was ahead of the controller's clock at the start of the run, in
    /// seconds.
    pub clock_offset_s: f64,
    /// Maximum error of `clock_offset_s`, in seconds.
    pub clock_error_s: f64,
}

/// The results of one phase. Times are in seconds since the host of the controller was booted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PhaseRecord {
    /// Name of the phase.
    pub phase: String,
    /// The repetition, counted from 1.
    pub repetition: u32,
    /// Time at which the first process began its work in the phase.
    pub begin_s: f64,
    /// Time at which the last process finished its work in the phase.
    pub end_s: f64,
    /// Time from `begin_s` to `end_s`.
    pub seconds: f64,
    /// Number of bytes that all processes transferred.
    pub bytes: u64,
    /// Number of operations that all processes did.
    pub operations: u64,
    /// `bytes` divided by `seconds`, in MiB/s.
    pub bandwidth_mib_per_s: f64,
    /// `operations` divided by `seconds`.
    pub operations_per_s: f64,
    /// Time from the start of the first process to the start of the last process, in seconds.
    pub start_skew_s: f64,
    /// Number of operations that returned wrong data.
    pub errors: u64,
    /// A description of the first operation that returned wrong data.
    pub first_error: Option<String>,
    /// The latencies of the operations of all processes. `None` if an external program did the
    /// work, because each external program reports latencies in a different form.
    #[serde(default)]
    pub latency: Option<Box<Latency>>,
    /// The durations from which `latency` was computed.
    #[serde(skip)]
    pub durations: Durations,
    /// Whether caches were dropped on all hosts before the phase.
    pub caches_dropped: bool,
    /// The results of each process, in the order of their ranks.
    pub processes: Vec<ProcessRecord>,
    /// The CPU use of each host with processes.
    pub hosts: Vec<HostUse>,
}

/// The results of one process in a phase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProcessRecord {
    /// Rank of the process, counted from 0.
    pub rank: u32,
    /// Name of the host on which the process ran.
    pub host: String,
    /// Results of the process. The controller has converted the times to its own clock.
    #[serde(flatten)]
    pub measure: Measure,
}

/// The CPU use of a host in a phase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostUse {
    /// Name of the host.
    pub name: String,
    /// Share of the phase in which the host's CPUs were busy with any work, from 0 to 1. `None` if
    /// the phase was too short to measure.
    pub cpu_busy: Option<f64>,
}

impl PhaseRecord {
    /// Creates the record of a phase from the results of all processes.
    pub(crate) fn new(
        phase: String,
        repetition: u32,
        mut processes: Vec<ProcessRecord>,
        hosts: Vec<HostUse>,
    ) -> Self {
        let mut durations = Durations::default();
        for process in &mut processes {
            durations.merge(&std::mem::take(&mut process.measure.durations));
        }
        let times = |of: fn(&Measure) -> f64| processes.iter().map(move |it| of(&it.measure));
        let begin_s = times(|it| it.begin_s).fold(f64::INFINITY, f64::min);
        let last_begin_s = times(|it| it.begin_s).fold(f64::NEG_INFINITY, f64::max);
        let end_s = times(|it| it.end_s).fold(f64::NEG_INFINITY, f64::max);
        let sum = |of: fn(&Measure) -> u64| processes.iter().map(|it| of(&it.measure)).sum();
        let (bytes, operations): (u64, u64) = (sum(|it| it.bytes), sum(|it| it.operations));
        // Clocks have a resolution of one nanosecond. This minimum also prevents a division by
        // zero.
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
            latency: durations.latency().map(Box::new),
            durations,
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
    fn phase_lasts_from_first_process_start_to_last_process_end() {
        let process = |rank, begin_s, end_s| {
            let mut measure =
                Measure { begin_s, end_s, bytes: 3 << 20, operations: 3, ..Measure::default() };
            measure.durations.add(std::time::Duration::from_micros(8));
            ProcessRecord { rank, host: "a".into(), measure }
        };
        let processes = vec![process(0, 10.5, 12.0), process(1, 10.0, 11.0)];
        let record = PhaseRecord::new("write".into(), 1, processes, Vec::new());
        assert_eq!((record.begin_s, record.end_s, record.seconds), (10.0, 12.0, 2.0));
        assert_eq!((record.bandwidth_mib_per_s, record.operations_per_s), (3.0, 3.0));
        assert_eq!(record.start_skew_s, 0.5);
        let latency = record.latency.expect("latencies of both processes");
        assert_eq!(latency.histogram.iter().map(|it| it.operations).sum::<u64>(), 2);
        assert!(record.processes.iter().all(|it| it.measure.durations.is_empty()));
    }
}
