//! The time of the next attempt to send data to a program that did not accept the data.
//!
//! After each failure the time to the next attempt doubles, up to [`LONGEST_PAUSE`]. So a program
//! that is overloaded or starting gets fewer requests. The caller makes the attempts.

use crate::limits::LONGEST_PAUSE;
use std::time::Duration;

/// The failures since the last success, and the time of the next attempt.
#[derive(Debug, Default)]
pub(crate) struct BackOff {
    failures: u32,
    next: Duration,
}

impl BackOff {
    /// Whether it is time for an attempt.
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        now >= self.next
    }

    /// Returns the time until the next attempt.
    pub(crate) fn remaining(&self, now: Duration) -> Duration {
        self.next.saturating_sub(now)
    }

    /// Notes a failure of an attempt that ended at `now`. The attempts are usually `interval`
    /// apart.
    pub(crate) fn failed(&mut self, now: Duration, interval: Duration) {
        let factor = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        // If the interval itself is longer than the longest pause, the pause is the interval.
        let pause = interval.saturating_mul(factor).min(LONGEST_PAUSE.max(interval));
        self.failures = self.failures.saturating_add(1);
        self.next = now + pause;
    }

    /// Notes a success: the next attempt may begin immediately.
    pub(crate) fn succeeded(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(10);

    #[test]
    fn failures_double_the_pause_up_to_a_limit_until_a_success() {
        let mut back_off = BackOff::default();
        let mut now = Duration::from_secs(1_000);
        assert!(back_off.is_due(now));
        for pause in [10, 20, 40, 60, 60].map(Duration::from_secs) {
            back_off.failed(now, INTERVAL);
            assert_eq!(back_off.remaining(now), pause);
            assert!(!back_off.is_due(now + pause - Duration::from_millis(1)), "{pause:?}");
            now += pause;
            assert!(back_off.is_due(now) && back_off.remaining(now).is_zero(), "{pause:?}");
        }
        back_off.succeeded();
        back_off.failed(now, INTERVAL);
        assert!(back_off.is_due(now + INTERVAL));
    }

    #[test]
    fn pause_equals_an_interval_that_exceeds_the_longest_pause() {
        let interval = Duration::from_secs(600);
        let mut back_off = BackOff::default();
        for _ in 0..100 {
            back_off.failed(Duration::ZERO, interval);
            assert!(!back_off.is_due(interval - Duration::from_millis(1)));
            assert!(back_off.is_due(interval));
        }
    }
}
