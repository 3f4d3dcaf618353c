//! Damping of members that flap: members that fail again and again, and answer well in between.
//!
//! Replies wait for each counted member. So each failure of a counted member delays all replies of
//! the group, until management has dropped the member. Therefore the primary counts a member that
//! has failed only after the member has confirmed records steadily for some time. This time doubles
//! with each failure.
//!
//! This module does not own the detection of failures ([`super::standing`]).

use crate::limits::{
    FAILURES_FORGOTTEN_AFTER, HANG_DAMPING, LONGEST_DAMPING, SILENCE_DAMPING, STEADY_GAP,
};
use std::time::Duration;

/// The failures of one member. The primary keeps them over the epochs of its term.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FlapDamping {
    /// Number of recent failures of the member.
    failures: u32,
    /// Time of the member's newest failure.
    failed_at: Duration,
    /// Whether the disk of the member hung at the newest failure.
    disk_hung: bool,
    /// Whether the primary has not counted the member since the newest failure.
    is_damped: bool,
    /// Time since which the member has confirmed records steadily. `None` means that the member has
    /// confirmed no records since its newest failure.
    steady_since: Option<Duration>,
    /// Time at which the member last confirmed records.
    confirmed_at: Duration,
}

impl FlapDamping {
    /// Notes at the time `now` that the primary stops counting the member because it fails.
    /// `disk_hangs` states whether the disk of the member is the reason. The primary may call this
    /// function several times for one failure.
    pub(super) fn fail(&mut self, disk_hangs: bool, now: Duration) {
        self.steady_since = None;
        if self.is_damped {
            return;
        }
        if now.saturating_sub(self.failed_at) >= FAILURES_FORGOTTEN_AFTER {
            self.failures = 0;
        }
        self.failures = self.failures.saturating_add(1);
        (self.failed_at, self.disk_hung, self.is_damped) = (now, disk_hangs, true);
    }

    /// Notes that the disk of the member still hangs.
    pub(super) fn interrupt(&mut self) {
        self.steady_since = None;
    }

    /// Notes at the time `now` that the member has confirmed records.
    pub(super) fn confirm(&mut self, now: Duration) {
        if self.steady_since.is_none() || now.saturating_sub(self.confirmed_at) > STEADY_GAP {
            self.steady_since = Some(now);
        }
        self.confirmed_at = now;
    }

    /// Notes that the primary counts the member from now on.
    pub(super) fn end(&mut self) {
        self.is_damped = false;
    }

    /// Whether the primary may count the member at the time `now`.
    pub(super) fn permits(&self, now: Duration) -> bool {
        let pause = self.pause();
        let is_steady = self.steady_since.is_some_and(|since| now >= since + pause);
        !self.is_damped || pause.is_zero() || is_steady
    }

    /// Returns the time for which the member must confirm records steadily.
    fn pause(&self) -> Duration {
        let doubled = |pause: Duration, times: u32| pause * 2_u32.pow(times.min(10));
        let pause = match (self.disk_hung, self.failures) {
            (true, failures) => doubled(HANG_DAMPING, failures.saturating_sub(1)),
            (false, 0 | 1) => Duration::ZERO,
            (false, failures) => doubled(SILENCE_DAMPING, failures - 2),
        };
        pause.min(LONGEST_DAMPING)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Returns the number of seconds after which the primary counts a member that confirms records
    /// each second from `now` on.
    fn wait(damping: &mut FlapDamping, now: Duration) -> u32 {
        let is_permitted = |seconds: &u32| {
            damping.confirm(now + *seconds * SECOND);
            damping.permits(now + *seconds * SECOND)
        };
        let seconds = (0..1000).find(is_permitted).expect("the primary counts the member");
        damping.end();
        seconds
    }

    #[test]
    fn each_failure_doubles_the_time_of_steady_confirmations() {
        let (mut hanging, mut silent) = (FlapDamping::default(), FlapDamping::default());
        assert!(hanging.permits(SECOND), "the member has not failed");
        let (mut hangs, mut silences) = (Vec::new(), Vec::new());
        for failure in 1_u32..=8 {
            let now = failure * 100 * SECOND;
            hanging.fail(true, now);
            hanging.fail(true, now + SECOND);
            silent.fail(false, now);
            hangs.push(wait(&mut hanging, now + SECOND));
            silences.push(wait(&mut silent, now + SECOND));
        }
        assert_eq!(hangs, [10, 20, 40, 60, 60, 60, 60, 60]);
        assert_eq!(silences, [0, 2, 4, 8, 16, 32, 60, 60]);
        let later = 800 * SECOND + FAILURES_FORGOTTEN_AFTER;
        hanging.fail(true, later);
        assert_eq!(wait(&mut hanging, later), 10, "the earlier failures are forgotten");
    }

    #[test]
    fn steady_time_of_a_member_begins_again_after_its_silence() {
        let mut damping = FlapDamping::default();
        damping.fail(true, SECOND);
        damping.confirm(2 * SECOND);
        damping.confirm(2 * SECOND + STEADY_GAP);
        assert!(damping.permits(2 * SECOND + HANG_DAMPING));
        let late = 3 * SECOND + 2 * STEADY_GAP;
        damping.confirm(late);
        assert!(!damping.permits(2 * SECOND + HANG_DAMPING), "the member was silent");
        assert!(damping.permits(late + HANG_DAMPING));
        damping.interrupt();
        assert!(!damping.permits(late + HANG_DAMPING), "its disk hung again");
    }
}
