//! The silence of a primary, as a backup measures it: when the backup asks to take over.
//!
//! A serving member that has received nothing for [`LeaseTimes::take_over_after`] asks management
//! to take over, again and again. It may still acknowledge requests of the primary meanwhile. Each
//! of these renews the primary's lease, so a member that has become the primary answers only when
//! [`LeaseTimes::take_over_after`] has passed since it last received something
//! ([`super::backup::Stopped::received_at`]).
//!
//! [`LeaseTimes::take_over_after`]: crate::limits::LeaseTimes::take_over_after

use crate::limits::{ABSENT_PAUSE, OWN_PAUSE};
use std::time::Duration;

/// The times of a backup's contact with its primary.
#[derive(Debug)]
pub(super) struct Silence {
    /// Time at which the member last received something from a primary. The reply renews a lease.
    pub(super) received_at: Duration,
    /// Begin of the primary's silence. Never before [`Self::received_at`].
    began: Duration,
    /// Time at which the member asks again to take over.
    ask_at: Duration,
}

impl Silence {
    /// Begins at the start of a process: the process before it may have acknowledged a request just
    /// now.
    pub(super) fn new(now: Duration) -> Self {
        Self { received_at: now, began: now, ask_at: now }
    }

    /// Notes a batch at `now`, when the one before was at `before`.
    pub(super) fn begin_batch(&mut self, before: Duration, now: Duration) {
        if now > before + OWN_PAUSE {
            // This process was stopped, so the primary's requests may wait in the sockets.
            self.began = now;
        }
    }

    /// Notes a request of the primary.
    pub(super) fn received(&mut self, now: Duration) {
        (self.received_at, self.began) = (now, now);
    }

    /// Notes a new epoch: its primary may have to get the map first.
    pub(super) fn begin_epoch(&mut self, now: Duration) {
        self.began = now;
    }

    /// Returns whether the member asks to take over now. It then pauses.
    pub(super) fn asks(&mut self, after: Duration, now: Duration) -> bool {
        let asks = now >= self.next_due(after);
        if asks {
            self.ask_at = now + ABSENT_PAUSE / 2;
        }
        asks
    }

    /// Returns the time at which the member asks to take over if the primary stays silent.
    pub(super) fn next_due(&self, after: Duration) -> Duration {
        self.ask_at.max(self.began + after)
    }
}
