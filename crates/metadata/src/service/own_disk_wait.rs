//! Measures how long replies of a primary wait for syncs of its own disk, and not only for other
//! members. The health of the target reports a long wait.
//!
//! After a request to drop a member, replies wait for the syncs of the primary until the epoch of
//! the group changes. Management normally carries out a request to drop a member within some
//! milliseconds, so the health reports the wait only after [`UNDECIDED_DROP`].

use crate::limits::UNDECIDED_DROP;
use skep_types::map::{Condition, KnownReason, TargetHealth};
use std::cell::Cell;
use std::time::Duration;

/// The time at which replies began to wait for the disk of the primary. `None` means that no reply
/// waits for this disk.
#[derive(Debug, Default)]
pub(super) struct OwnDiskWait(Cell<Option<Duration>>);

impl OwnDiskWait {
    /// Notes whether replies wait for the disk of the primary at the time `now`.
    pub(super) fn note(&self, waits: bool, now: Duration) {
        self.0.set(waits.then(|| self.0.get().unwrap_or(now)));
    }

    /// Returns the health of the target, if the target has no other problem.
    pub(super) fn health(&self, now: Duration) -> TargetHealth {
        let is_long = |since| now.saturating_sub(since) >= UNDECIDED_DROP;
        match self.0.get().is_some_and(is_long) {
            true => TargetHealth::new(Condition::Serving, KnownReason::AwaitsOwnDisk.text()),
            false => TargetHealth::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_reports_a_long_wait_for_the_own_disk_until_it_ends() {
        let wait = OwnDiskWait::default();
        let asked = Duration::from_secs(100);
        let none = TargetHealth::default();
        wait.note(true, asked);
        wait.note(true, asked + UNDECIDED_DROP / 2);
        assert_eq!(wait.health(asked + UNDECIDED_DROP / 2), none);
        let health = wait.health(asked + UNDECIDED_DROP);
        let reason = Some(KnownReason::AwaitsOwnDisk);
        assert_eq!((health.condition, health.known_reason()), (Condition::Serving, reason));
        wait.note(false, asked + UNDECIDED_DROP);
        assert_eq!(wait.health(asked + 2 * UNDECIDED_DROP), none);
    }
}
