//! A limit for the log lines about an event that may occur often, such as a retry.
//!
//! The caller writes the line to the log, because this crate has no clock and no output.

use std::cell::Cell;
use std::time::Duration;

/// Minimum time between two log lines about the same kind of event.
const INTERVAL: Duration = Duration::from_secs(60);

/// Counts events of one kind, and chooses the events that get a line in the log.
#[derive(Debug, Default)]
pub struct LineLimit {
    /// Number of events since the last log line.
    count: Cell<u64>,
    last_line: Cell<Option<Duration>>,
}

impl LineLimit {
    /// Counts an event at `now`. If a log line is due, returns the number of events since the last
    /// line. A line is due for the first event, and then at most once a minute.
    pub fn count(&self, now: Duration) -> Option<u64> {
        self.count.set(self.count.get() + 1);
        if self.last_line.get().is_some_and(|last| now.saturating_sub(last) < INTERVAL) {
            return None;
        }
        self.last_line.set(Some(now));
        Some(self.count.take())
    }

    /// Does the same as [`Self::count`] for events whose number does not matter. Returns whether a
    /// log line is due.
    pub fn is_due(&self, now: Duration) -> bool {
        self.count(now).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_events_are_logged_at_most_once_a_minute() {
        let limit = LineLimit::default();
        let at = |seconds: u64| limit.count(Duration::from_secs(100 + seconds));
        assert_eq!(at(0), Some(1));
        assert_eq!(at(1), None);
        assert_eq!(at(59), None);
        assert_eq!(at(60), Some(3));
    }
}
