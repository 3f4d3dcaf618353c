//! Log lines about slow operations. A line contains the operation, its duration, and its stages.
//!
//! The module does not write the log, because this crate has no clock and no output.

use crate::completed::Completed;
use crate::stage::Stage;
use std::cell::Cell;
use std::time::Duration;

/// Minimum duration of an operation that is logged. Disks that retry after a read error take some
/// seconds, and programs notice a pause of a second.
pub const SLOW: Duration = Duration::from_secs(2);
/// Minimum time between two lines, so that a slow disk does not fill the log.
const BETWEEN_LINES: Duration = Duration::from_secs(10);
/// A line contains a stage if the stage took at least the share 1 / `NOTABLE_PART` of the duration.
const NOTABLE_PART: u32 = 10;

/// Chooses the slow operations of one target that are logged.
#[derive(Debug, Default)]
pub struct SlowOperations {
    last_line: Cell<Option<Duration>>,
    /// Number of slow operations that were not logged since the last log line.
    left_out: Cell<u64>,
}

impl SlowOperations {
    /// Returns the log line for an operation that has ended at `now`. `None` means that the
    /// operation was not slow, or that the last line is too recent.
    pub fn line(
        &self,
        completed: &Completed,
        now: Duration,
        name: impl FnOnce() -> String,
    ) -> Option<String> {
        self.line_about(completed, None, now, name)
    }

    /// Does the same as [`Self::line`]. `awaited` is the name of the target for which the operation
    /// has waited in the stage `others`.
    pub fn line_about(
        &self,
        completed: &Completed,
        awaited: Option<&str>,
        now: Duration,
        name: impl FnOnce() -> String,
    ) -> Option<String> {
        if completed.duration < SLOW {
            return None;
        }
        if self.last_line.get().is_some_and(|last| now.saturating_sub(last) < BETWEEN_LINES) {
            self.left_out.set(self.left_out.get() + 1);
            return None;
        }
        self.last_line.set(Some(now));
        let seconds = |time: Duration| format!("{:.1} s", time.as_secs_f64());
        let stages = Stage::ALL.into_iter().zip(completed.stages);
        let notable = stages.filter(|(_, time)| *time * NOTABLE_PART >= completed.duration);
        let place = |stage| match (stage, awaited) {
            (Stage::Others, Some(awaited)) => format!("waiting for {awaited}"),
            _ => place(stage).to_owned(),
        };
        let stages: Vec<String> =
            notable.map(|(stage, time)| format!("{} {}", seconds(time), place(stage))).collect();
        let mut line = format!("{} took {}", name(), seconds(completed.duration));
        if !stages.is_empty() {
            line += &format!(": {}", stages.join(", "));
        }
        if completed.trace != 0 {
            line += &format!(
                "; `skep why --op {:032x}` shows the parts of this operation",
                completed.trace
            );
        }
        match self.left_out.replace(0) {
            0 => {}
            1 => line += "; 1 more operation was slow since the last such line",
            count => {
                line += &format!("; {count} more operations were slow since the last such line")
            }
        }
        Some(line)
    }
}

/// Describes a stage of an operation, as text for users.
fn place(stage: Stage) -> &'static str {
    match stage {
        Stage::Waiting => "in the queue of the target",
        Stage::Processing => "in the thread of the target",
        Stage::Disk => "at the disk",
        Stage::LogSync => "at the disk of the log",
        Stage::Others => "waiting for other targets or clients",
        Stage::Network => "until its data had arrived over the network",
        Stage::Copies => "waiting for the other copies of the metadata",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(milliseconds: u64) -> Completed {
        let duration = Duration::from_millis(milliseconds);
        let completed = Completed { duration, ..Completed::default() };
        completed.with(Stage::Disk, duration * 9 / 10).with(Stage::Network, duration / 100)
    }

    #[test]
    fn log_of_a_slow_operation_names_the_slow_stage() {
        let slow = SlowOperations::default();
        let line = |milliseconds, second| {
            let now = Duration::from_secs(second);
            slow.line(&completed(milliseconds), now, || "read_chunk".to_owned())
        };
        assert_eq!(line(1_999, 100), None);
        let first = "read_chunk took 7.0 s: 6.3 s at the disk";
        assert_eq!(line(7_000, 100).as_deref(), Some(first));
        // A slow operation that ends too soon after the previous line gets no line. The next line
        // contains the number of these operations.
        assert_eq!((line(7_000, 101), line(7_000, 109)), (None, None));
        let later = line(7_000, 110).unwrap();
        assert!(later.starts_with(first) && later.contains("; 2 more operations"), "{later}");
        assert_eq!(line(7_000, 120).as_deref(), Some(first));
    }

    #[test]
    fn log_of_a_slow_operation_names_the_awaited_target() {
        let duration = Duration::from_millis(35_800);
        let completed = Completed { duration, ..Completed::default() };
        let completed = completed.with(Stage::Others, duration);
        let line = |awaited| {
            let slow = SlowOperations::default();
            slow.line_about(&completed, awaited, Duration::from_secs(100), || "open".to_owned())
        };
        let named = "open took 35.8 s: 35.8 s waiting for storage target t5 (storage-2)";
        assert_eq!(line(Some("storage target t5 (storage-2)")).as_deref(), Some(named));
        let plain = "open took 35.8 s: 35.8 s waiting for other targets or clients";
        assert_eq!(line(None).as_deref(), Some(plain));
    }

    #[test]
    fn log_of_a_slow_operation_has_its_trace_id() {
        let slow = SlowOperations::default();
        let traced = Completed { trace: 0x17 << 64 | 0x2a, ..completed(7_000) };
        let line = slow.line(&traced, Duration::from_secs(100), || "read_chunk".to_owned());
        let expected = "read_chunk took 7.0 s: 6.3 s at the disk; `skep why --op \
                        0000000000000017000000000000002a` shows the parts of this operation";
        assert_eq!(line.as_deref(), Some(expected));
    }
}
