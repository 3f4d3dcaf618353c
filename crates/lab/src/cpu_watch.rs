//! Detects whether the processors of this machine limited a measurement. Such a measurement does
//! not describe the emulated cluster.
//!
//! [`CpuWatch`] reads `/proc/stat` at intervals. Each sample is the idle share of the processors
//! since the previous sample. A sample below [`IDLE_ENOUGH`] is *saturated*. If the share of
//! saturated samples exceeds [`SATURATED_BEARABLE`], the processors were the limit. Time in which a
//! processor waits for disks counts as idle. Time of programs that were started with `nice` also
//! counts as idle, since such programs yield to the lab's programs.

use serde::{Deserialize, Serialize};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between samples. It is short enough for runs of a few seconds. The counters advance by
/// ticks of up to 10 ms, so the error of a sample is about two percent.
const PERIOD: Duration = Duration::from_millis(250);
/// Minimum idle share of a sample that is not saturated. Below this share, a process may have
/// waited for a processor.
pub const IDLE_ENOUGH: f64 = 0.05;
/// Maximum share of saturated samples in a valid run.
pub const SATURATED_BEARABLE: f64 = 0.10;

/// Ticks of all processors since boot. `idle` are the ticks that were available to the lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ticks {
    idle: u64,
    all: u64,
}

impl Ticks {
    /// Parses the text of `/proc/stat`. `None` means that the format is unknown.
    fn parse(text: &str) -> Option<Self> {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<u64> =
            line.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        // The fields are: user nice system idle iowait irq softirq steal. `user` includes the time
        // of guests.
        let idle = ticks.get(1)? + ticks.get(3)? + ticks.get(4)?;
        Some(Self { idle, all: ticks.iter().take(8).sum() })
    }

    fn now() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    /// Returns the idle share since an earlier reading. `None` means that no tick has passed.
    fn idle_since(self, earlier: Self) -> Option<f64> {
        let all = self.all.checked_sub(earlier.all).filter(|all| *all > 0)?;
        // The kernel sometimes decreases the counter `iowait`.
        Some(self.idle.saturating_sub(earlier.idle) as f64 / all as f64)
    }
}

/// The use of the processors during a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CpuUse {
    /// Number of samples.
    pub samples: usize,
    /// Number of samples in which hardly any processor was idle.
    pub saturated_samples: usize,
    /// Mean share of idle time, from 0 to 1.
    pub mean_idle: f64,
    /// Minimum idle share of all samples, from 0 to 1.
    pub least_idle: f64,
    /// Whether the processors were the limit, so that the measurement is invalid.
    pub is_limit: bool,
}

impl CpuUse {
    fn of(idle: &[f64]) -> Self {
        let saturated_samples = idle.iter().filter(|idle| **idle < IDLE_ENOUGH).count();
        let samples = idle.len();
        let mean_idle = if samples == 0 { 1.0 } else { idle.iter().sum::<f64>() / samples as f64 };
        let is_limit = saturated_samples as f64 > SATURATED_BEARABLE * samples as f64;
        let least_idle = idle.iter().copied().fold(1.0, f64::min);
        Self { samples, saturated_samples, mean_idle, least_idle, is_limit }
    }

    /// Returns a sentence for users, to print below a result.
    pub fn in_words(&self) -> String {
        let Self { samples, saturated_samples, mean_idle, .. } = self;
        match self.is_limit {
            false => format!("The processors were {:.0} % idle on average.", mean_idle * 100.0),
            true => format!(
                "INVALID: the processors of this host were the limit, in {saturated_samples} of \
                 {samples} samples, so the result does not describe the emulated cluster. Use \
                 lower rates."
            ),
        }
    }
}

/// Watches the processors of this machine during a run.
#[derive(Debug)]
pub struct CpuWatch {
    end: Sender<()>,
    thread: JoinHandle<Vec<f64>>,
}

impl CpuWatch {
    /// Starts a thread that takes samples.
    pub fn start() -> Self {
        let (end, ended) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut idle = Vec::new();
            let mut last = Ticks::now();
            loop {
                let is_last = ended.recv_timeout(PERIOD) != Err(RecvTimeoutError::Timeout);
                let now = Ticks::now();
                idle.extend(now.zip(last).and_then(|(now, last)| now.idle_since(last)));
                last = now;
                if is_last {
                    return idle;
                }
            }
        });
        Self { end, thread }
    }

    /// Stops taking samples, and returns the use of the processors since the start.
    pub fn finish(self) -> CpuUse {
        // The thread ends as soon as this sender is dropped.
        drop(self.end);
        CpuUse::of(&self.thread.join().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_stat_is_parsed() {
        let text = "cpu  100 5 50 800 20 3 2 10 7 0\ncpu0 1 1 1 1 1 1 1 1 1 1\nintr 5\n";
        let first = Ticks::parse(text).unwrap();
        assert_eq!(first, Ticks { idle: 825, all: 990 });
        let next = Ticks { idle: 850, all: 1090 };
        assert_eq!(next.idle_since(first), Some(0.25));
        assert_eq!(first.idle_since(first), None);
        assert_eq!(Ticks { idle: 800, all: 1000 }.idle_since(first), Some(0.0));
        assert_eq!(Ticks::parse("cpu 1 x"), None);
        assert!(Ticks::now().is_some());
    }

    #[test]
    fn run_is_limited_by_cpu_above_a_tenth_of_saturated_samples() {
        let mut idle = vec![0.5; 9];
        idle.push(0.0);
        assert!(!CpuUse::of(&idle).is_limit);
        idle.push(0.04);
        let used = CpuUse::of(&idle);
        assert!(used.is_limit);
        assert_eq!((used.samples, used.saturated_samples, used.least_idle), (11, 2, 0.0));
        assert!(!CpuUse::of(&[]).is_limit);
        assert!(CpuUse::of(&[0.01]).is_limit);
    }

    #[test]
    fn short_watch_has_at_least_one_sample() {
        let watch = CpuWatch::start();
        std::thread::sleep(PERIOD * 2);
        assert!(watch.finish().samples >= 1);
    }
}
