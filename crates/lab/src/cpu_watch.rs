//! Detects whether the processors of this machine were the bottleneck of a measurement. A
//! measurement with this bottleneck does not describe the emulated cluster.
//!
//! [`CpuWatch`] reads `/proc/stat` at regular intervals. A sample is the idle share of the
//! processors since the previous reading. A sample below [`IDLE_ENOUGH`] is *saturated*. If more
//! than the share [`SATURATED_BEARABLE`] of all samples is saturated, the processors were the
//! bottleneck. Two kinds of time also count as idle: time in which a processor waits for disks, and
//! time of programs that were started with `nice`. Programs that were started with `nice` yield to
//! the programs of the lab.

use serde::{Deserialize, Serialize};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

/// Interval between two samples. The interval is short, so that runs of a few seconds have enough
/// samples. The counters of the kernel advance in ticks of up to 10 ms, so the error of a sample is
/// about two percent.
const PERIOD: Duration = Duration::from_millis(250);
/// Minimum idle share of the processors in a sample that is not saturated. If the idle share is
/// lower than this limit, a process may have had to wait for a processor.
pub const IDLE_ENOUGH: f64 = 0.05;
/// Maximum share of saturated samples in a run with a valid measurement.
pub const SATURATED_BEARABLE: f64 = 0.10;

/// Ticks since boot, summed over all processors. `idle` counts the ticks in which a processor was
/// available to the lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ticks {
    idle: u64,
    all: u64,
}

impl Ticks {
    /// Parses the text of `/proc/stat`. `None` means that the text has an unknown format.
    fn parse(text: &str) -> Option<Self> {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<u64> =
            line.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        // The numbers are the ticks of: user, nice, system, idle, iowait, irq, softirq, steal. The
        // ticks of `user` include the time of virtual machines.
        let idle = ticks.get(1)? + ticks.get(3)? + ticks.get(4)?;
        Some(Self { idle, all: ticks.iter().take(8).sum() })
    }

    fn now() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    /// Returns the idle share since the earlier reading. `None` means that the counters have not
    /// advanced since the earlier reading.
    fn idle_since(self, earlier: Self) -> Option<f64> {
        let all = self.all.checked_sub(earlier.all).filter(|all| *all > 0)?;
        // The kernel sometimes decreases the counter `iowait`, so the difference could be negative.
        Some(self.idle.saturating_sub(earlier.idle) as f64 / all as f64)
    }
}

/// How busy the processors of this machine were during a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CpuUse {
    /// Number of samples of the processors' idle time in the run.
    pub samples: usize,
    /// Number of saturated samples, in which the processors had almost no idle time.
    pub saturated_samples: usize,
    /// Mean idle share of all samples, from 0 to 1.
    pub mean_idle: f64,
    /// Idle share of the sample with the least idle time, from 0 to 1.
    pub least_idle: f64,
    /// Whether the processors were the bottleneck. If so, the measurement is invalid.
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

    /// Returns a sentence about the processors, to print below the result of a run.
    pub fn in_words(&self) -> String {
        let Self { samples, saturated_samples, mean_idle, .. } = self;
        match self.is_limit {
            false => format!("The processors were {:.0} % idle on average.", mean_idle * 100.0),
            true => format!(
                "INVALID: in {saturated_samples} of {samples} samples, the processors of this host \
                 were busy. So this host was the limit, and the result does not describe the \
                 emulated cluster. Use lower rates."
            ),
        }
    }
}

/// Takes samples of the processors of this machine during a run.
#[derive(Debug)]
pub struct CpuWatch {
    end: Sender<()>,
    thread: JoinHandle<Vec<f64>>,
}

impl CpuWatch {
    /// Starts a thread that takes the samples.
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

    /// Ends the thread, and returns the use of the processors since the start.
    pub fn finish(self) -> CpuUse {
        // The thread ends as soon as the sender `end` is dropped.
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
    fn run_is_cpu_limited_if_over_a_tenth_of_samples_are_saturated() {
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
    fn short_cpu_watch_has_at_least_one_sample() {
        let watch = CpuWatch::start();
        std::thread::sleep(PERIOD * 2);
        assert!(watch.finish().samples >= 1);
    }
}
