//! The syncs of a log. [`SyncTimer`] decides when the next sync begins, and stores which sync is
//! running. The primary and the backup member of a group use the same timer.
//!
//! This module does not own the replies that wait for a sync. `gates` and `shipping::backup` own
//! them.

use crate::limits::{SYNC_AFTER, SYNC_PATIENCE};
use skep_types::Lsn;
use std::time::Duration;

/// The timer for the syncs of one member's log.
#[derive(Debug)]
pub(crate) struct SyncTimer {
    synced: Lsn,
    running: Option<Lsn>,
    /// Time at which the running sync began, or at which this process continued after a pause
    /// during the sync.
    began: Duration,
    /// Whether the timer has restarted the duration of the running sync. The timer restarts the
    /// duration only once: if the disk hangs, a batch may take as long as a pause of the process.
    has_restarted: bool,
    /// Time of the append of the oldest record that no sync covers.
    first_unsynced_at: Option<Duration>,
    /// Whether a sync was requested. If so, it begins at the end of the batch, or when the running
    /// sync has ended.
    is_requested: bool,
}

impl SyncTimer {
    /// Creates the timer of a log that is synced up to `synced`.
    pub(crate) fn new(synced: Lsn, has_unsynced: bool, now: Duration) -> Self {
        let first_unsynced_at = has_unsynced.then_some(now);
        let (running, has_restarted, is_requested) = (None, false, false);
        Self { synced, running, began: now, has_restarted, first_unsynced_at, is_requested }
    }

    /// Returns the last synced record.
    pub(crate) fn synced(&self) -> Lsn {
        self.synced
    }

    /// Whether a sync is running.
    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// If a sync has been running for [`SYNC_PATIENCE`] at the time `now`, returns the last record
    /// that this sync covers, and the time at which the sync began.
    pub(crate) fn hanging(&self, now: Duration) -> Option<(Lsn, Duration)> {
        let lsn = self.running.filter(|_| now.saturating_sub(self.began) >= SYNC_PATIENCE)?;
        Some((lsn, self.began))
    }

    /// Counts the duration of a running sync from `now`, because this process was stopped and could
    /// not receive the end of the sync. Restarts the duration only once for each sync.
    pub(crate) fn restart_wait(&mut self, now: Duration) {
        if !std::mem::replace(&mut self.has_restarted, true) {
            self.began = now;
        }
    }

    /// Returns the last record that a finished or running sync covers.
    pub(crate) fn covered(&self) -> Lsn {
        self.running.unwrap_or(self.synced)
    }

    /// Whether the log has a record that no finished or running sync covers. For tests only.
    #[cfg(test)]
    pub(crate) fn has_unsynced(&self) -> bool {
        self.first_unsynced_at.is_some()
    }

    /// Handles the append of a record at the time `now`.
    pub(crate) fn appended(&mut self, now: Duration) {
        self.first_unsynced_at.get_or_insert(now);
    }

    /// Makes the next call of [`Self::begin`] start a sync, even if no sync is due yet.
    pub(crate) fn request(&mut self) {
        self.is_requested = true;
    }

    /// Begins a sync if it is time for a sync or a sync was requested. `last` is the last appended
    /// record. Returns the last record that the sync covers; `None` means that no sync begins.
    pub(crate) fn begin(&mut self, last: Lsn, now: Duration) -> Option<Lsn> {
        if self.running.is_some() || last <= self.synced {
            return None;
        }
        let is_due = self.first_unsynced_at.is_some_and(|at| now >= at + SYNC_AFTER);
        if !(self.is_requested || is_due) {
            return None;
        }
        self.is_requested = false;
        self.first_unsynced_at = None;
        (self.running, self.began, self.has_restarted) = (Some(last), now, false);
        self.running
    }

    /// Ends the sync up to `lsn`. Returns `false` if no sync up to `lsn` is running.
    pub(crate) fn end(&mut self, lsn: Lsn) -> bool {
        let is_running = self.running == Some(lsn);
        if is_running {
            self.running = None;
            self.synced = self.synced.max(lsn);
        }
        is_running
    }

    /// Handles the removal of the records after `last` from the log. No sync may be running.
    ///
    /// # Panics
    /// Panics if a sync is running.
    pub(crate) fn truncate(&mut self, last: Lsn) {
        assert!(self.running.is_none(), "no sync is running");
        self.synced = self.synced.min(last);
    }

    /// Returns the time at which the next sync is due without a request. `None` means that a sync
    /// is running, or that there is nothing to sync.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        let first = self.first_unsynced_at.filter(|_| self.running.is_none());
        first.map(|at| at + SYNC_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The appends of a primary may also wait for its disk, so that each batch takes a second.
    #[test]
    fn hanging_sync_is_found_although_each_batch_takes_long() {
        let lsn = Lsn::new(1);
        let mut timer = SyncTimer::new(Lsn::default(), true, Duration::ZERO);
        timer.request();
        assert_eq!(timer.begin(lsn, Duration::ZERO), Some(lsn));
        let mut now = Duration::ZERO;
        while timer.hanging(now).is_none() {
            assert!(now < 2 * SYNC_PATIENCE, "the sync hangs");
            now += Duration::from_millis(1_100);
            timer.restart_wait(now);
        }
        assert!(now > SYNC_PATIENCE, "the process may have been stopped once");
        timer.end(lsn);
        assert_eq!(timer.hanging(now), None);
    }
}
