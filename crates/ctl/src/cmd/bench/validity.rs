//! Decides whether a measurement in a lab is valid. A measurement is invalid if the CPUs of the
//! machine that runs the lab were the bottleneck.
//!
//! Outside of labs this check does not apply, because the CPUs are part of the measured system.

use super::args::HostArgs;
use serde::Serialize;
use skep_bench::Progress;
use skep_lab::{CpuUse, CpuWatch};

/// The JSON output: a result, and whether it is valid.
#[derive(Debug, Serialize)]
pub(super) struct Report<T> {
    /// The measurement.
    #[serde(flatten)]
    pub(super) outcome: T,
    /// CPU use of this machine from the first phase to the end of the benchmark. `None` outside of
    /// labs.
    pub(super) cpu: Option<CpuUse>,
    /// Whether the measurement is valid. `None` outside of labs.
    pub(super) is_valid: Option<bool>,
}

impl<T> Report<T> {
    fn new(outcome: T, cpu: Option<CpuUse>) -> Self {
        Self { outcome, is_valid: cpu.as_ref().map(|cpu| !cpu.is_limit), cpu }
    }

    /// Returns the result as text, followed by the CPU use.
    pub(super) fn as_text_with_cpu(&self, outcome: impl FnOnce(&T) -> String) -> String {
        let text = outcome(&self.outcome);
        match &self.cpu {
            None => text,
            Some(cpu) => format!("{}\n\n{}\n", text.trim_end(), cpu.in_words()),
        }
    }
}

/// Measures the CPU use during a benchmark in a lab.
#[derive(Debug, Default)]
pub(super) struct Watch {
    is_in_lab: bool,
    running: Option<CpuWatch>,
}

impl Watch {
    pub(super) fn new(place: &HostArgs) -> Self {
        Self { is_in_lab: place.lab.is_some(), running: None }
    }

    /// Starts to measure the CPU use when the first phase begins. Before the first phase, the run
    /// only connects to hosts and starts processes.
    pub(super) fn look(&mut self, progress: &Progress) {
        if self.is_in_lab && self.running.is_none() && matches!(progress, Progress::Phase { .. }) {
            self.running = Some(CpuWatch::start());
        }
    }

    pub(super) fn finish<T>(self, outcome: T) -> Report<T> {
        Report::new(outcome, self.running.map(CpuWatch::finish))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(is_limit: bool) -> CpuUse {
        let saturated_samples = if is_limit { 3 } else { 0 };
        CpuUse { samples: 4, saturated_samples, mean_idle: 0.25, least_idle: 0.0, is_limit }
    }

    #[test]
    fn benchmark_results_limited_by_the_processors_are_invalid() {
        let shown = |cpu| {
            let report = Report::new(serde_json::json!({"phases": []}), cpu);
            let text = report.as_text_with_cpu(|_| "PHASE\n".to_owned());
            (serde_json::to_value(&report).expect("JSON"), text)
        };
        let (value, text) = shown(Some(used(true)));
        assert_eq!((&value["is_valid"], &value["cpu"]["is_limit"]), (&false.into(), &true.into()));
        assert!(
            text.starts_with("PHASE\n\nINVALID: ") && text.contains("3 of 4 samples"),
            "{text}"
        );
        let (value, text) = shown(Some(used(false)));
        assert_eq!((&value["is_valid"], &value["phases"]), (&true.into(), &serde_json::json!([])));
        assert!(!text.contains("INVALID") && text.contains("25 % idle"), "{text}");
        let (value, text) = shown(None);
        assert!(value["is_valid"].is_null() && value["cpu"].is_null(), "{value}");
        assert_eq!(text, "PHASE\n");
    }

    #[test]
    fn cpu_use_is_measured_only_in_labs() {
        let phase = Progress::Phase { phase: "write".into(), repetition: 1 };
        for (lab, is_watched) in [(None, false), (Some("lab".to_owned()), true)] {
            let mut watch = Watch::new(&HostArgs { lab, ..HostArgs::default() });
            watch.look(&Progress::Note("a host is entered".into()));
            assert!(watch.running.is_none());
            watch.look(&phase);
            watch.look(&phase);
            assert_eq!(watch.finish(()).is_valid.is_some(), is_watched);
        }
    }
}
