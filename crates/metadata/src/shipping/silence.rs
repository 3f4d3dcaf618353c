//! The silence of a primary, as a backup member measures it, and the time at which the backup
//! member asks to take over.
//!
//! If a serving member receives no request of the primary for [`LeaseTimes::take_over_after`], it
//! asks management repeatedly to make it the primary. Until management does, the member still
//! acknowledges requests of the old primary, and each acknowledgement renews the lease of the old
//! primary. So a member that has become the primary waits before it replies to clients
//! ([`super::succession`]).
//!
//! # Promises
//! With each acknowledgement, the member promises that it replies to no client as the primary
//! before a certain time. This time is later than the end of the lease that the acknowledgement
//! grants. The member keeps the promise that ends last.
//!
//! [`LeaseTimes::take_over_after`]: skep_cluster::lease_times::LeaseTimes::take_over_after

use super::succession::{ReceivedTerm, Succession};
use crate::limits::{ABSENT_PAUSE, OWN_PAUSE};
use skep_types::{Epoch, Group};
use std::time::Duration;

/// The time at which the primary became silent, and the time at which the backup member asks
/// management to make it the primary.
#[derive(Debug)]
pub(super) struct Silence {
    /// The end of the promise that ends last. Never decreases.
    promised_until: Duration,
    /// The term of the last request of a primary. `None` means that this process has received no
    /// request.
    term: Option<ReceivedTerm>,
    /// The term of the last request that this process has acknowledged. `None` means that this
    /// process has acknowledged no request.
    acknowledged: Option<ReceivedTerm>,
    /// Time at which the primary's silence began.
    began: Duration,
    /// Earliest time at which the member asks management again to make it the primary.
    ask_at: Duration,
}

impl Silence {
    /// Creates the state for a process that starts at `now`. The previous process of the member may
    /// have acknowledged a request of the primary just before that time, with a promise that lasts
    /// at most the time `promise`.
    pub(super) fn new(now: Duration, promise: Duration) -> Self {
        let promised_until = now + promise;
        Self { promised_until, term: None, acknowledged: None, began: now, ask_at: now }
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
        self.began = now;
        self.term = group.map(|group| ReceivedTerm::after_request(self.term, group));
    }

    /// Stores how long the sender of the last request still waits for the leases of earlier
    /// primaries. The sender reports this in the request, in milliseconds.
    pub(super) fn note_wait(&mut self, wait_ms: u32, now: Duration) {
        if let Some(term) = &mut self.term {
            term.note_wait(wait_ms, now);
        }
    }

    /// Returns the time from `now` until the member's latest promise ends.
    pub(super) fn promise_left(&self, now: Duration) -> Duration {
        self.promised_until.saturating_sub(now)
    }

    /// Promises that the member replies to no client as the primary before the time `until`. The
    /// member sends an acknowledgement with this promise.
    pub(super) fn promise(&mut self, until: Duration) {
        self.promised_until = self.promised_until.max(until);
        self.acknowledged = self.term;
    }

    /// Whether this process has acknowledged a request of the present primary of `group`, in the
    /// term that the map names.
    pub(super) fn has_acknowledged(&self, group: &Group) -> bool {
        self.acknowledged.is_some_and(|term| term.is_of(group))
    }

    /// Returns when the member may reply to clients, if it becomes the primary in the group epoch
    /// `epoch`.
    pub(super) fn succession(&self, epoch: Epoch) -> Succession {
        Succession::of_backup(self.promised_until, self.term, epoch)
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
