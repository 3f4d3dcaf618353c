//! The silence of a primary, as a backup measures it, and the time at which the backup asks to take
//! over.
//!
//! If a serving member receives no request of the primary for [`LeaseTimes::take_over_after`], it
//! asks management again and again to make it the primary. Meanwhile, it may still acknowledge
//! requests of the old primary, and each acknowledgement renews the old primary's lease. So a
//! member that has become the primary waits before it replies to clients ([`super::succession`]).
//!
//! [`LeaseTimes::take_over_after`]: crate::limits::LeaseTimes::take_over_after

use super::succession::{ReceivedTerm, Succession};
use crate::limits::{ABSENT_PAUSE, OWN_PAUSE};
use skep_types::{Epoch, Group};
use std::time::Duration;

/// Since when the primary is silent, and when the backup asks management to make it the primary.
#[derive(Debug)]
pub(super) struct Silence {
    /// Time at which the member last received a request of a primary. Its reply renews the
    /// primary's lease.
    received_at: Duration,
    /// The term of that request. `None` means that this process has received no request.
    term: Option<ReceivedTerm>,
    /// Time at which the primary's silence began. Never earlier than [`Self::received_at`].
    began: Duration,
    /// Earliest time at which the member asks management again to make it the primary.
    ask_at: Duration,
}

impl Silence {
    /// Creates the state for a process that starts at `now`. The previous process of the member may
    /// have acknowledged a request of the primary just before that time.
    pub(super) fn new(now: Duration) -> Self {
        Self { received_at: now, term: None, began: now, ask_at: now }
    }

    /// Begins a batch at the time `now`. `before` is the time of the previous batch.
    pub(super) fn begin_batch(&mut self, before: Duration, now: Duration) {
        if now > before + OWN_PAUSE {
            // This process was stopped, and requests of the primary may wait in the sockets. So the
            // silence of the primary begins again now.
            self.began = now;
        }
    }

    /// Handles the arrival of a request of the primary. `group` is the group in the member's map.
    pub(super) fn received(&mut self, group: Option<&Group>, now: Duration) {
        (self.received_at, self.began) = (now, now);
        self.term = group.map(|group| ReceivedTerm::after_request(self.term, group, now));
    }

    /// Returns when the member may reply to clients, if it becomes the primary in the group epoch
    /// `epoch`.
    pub(super) fn succession(&self, epoch: Epoch, after: Duration) -> Succession {
        Succession::of_backup(self.received_at, self.term, epoch, after)
    }

    /// Begins an epoch. The primary of this epoch may not have received the map yet, so its silence
    /// begins again now.
    pub(super) fn begin_epoch(&mut self, now: Duration) {
        self.began = now;
    }

    /// Returns whether the member asks management now to make it the primary. If it does, a pause
    /// follows before it asks again.
    pub(super) fn asks(&mut self, after: Duration, now: Duration) -> bool {
        let asks = now >= self.next_due(after);
        if asks {
            self.ask_at = now + ABSENT_PAUSE / 2;
        }
        asks
    }

    /// Returns the time at which the member asks management to make it the primary, if the current
    /// primary stays silent until then.
    pub(super) fn next_due(&self, after: Duration) -> Duration {
        self.ask_at.max(self.began + after)
    }
}
