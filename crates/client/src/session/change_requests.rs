//! Counts the requests for changes that this mount sends to metadata. Attributes that the mount
//! remembers are valid only as long as no such request begins or ends
//! (`inode_state::known_attributes`). No I/O.
//!
//! The count does not distinguish inodes. Some changes concern inodes whose ids the mount does not
//! have: for example, the reply to an `Unlink` does not contain the inode that has lost a link.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A moment on a mount: the time, and the count of changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) time: Duration,
    /// Number of begins and ends of requests for changes up to this moment.
    pub(crate) changes: u64,
}

impl Moment {
    /// Returns the moment after the caller's request for a change, which has begun and ended since
    /// `self`. If another request for a change has also begun or ended since, the present moment is
    /// a later one.
    pub(crate) fn after_own_change(self) -> Self {
        Self { changes: self.changes + 2, ..self }
    }
}

/// The count of requests for changes.
#[derive(Debug, Default)]
pub(crate) struct ChangeRequests(AtomicU64);

impl ChangeRequests {
    /// Begins a request. The request ends when the returned value is dropped.
    pub(crate) fn begin(&self) -> RunningChange<'_> {
        self.0.fetch_add(1, Ordering::SeqCst);
        RunningChange(&self.0)
    }

    /// Returns the moment at the time `now`.
    pub(crate) fn moment(&self, now: Duration) -> Moment {
        Moment { time: now, changes: self.0.load(Ordering::SeqCst) }
    }
}

/// A request for a change in progress.
#[derive(Debug)]
#[must_use = "the request ends when this value is dropped"]
pub(crate) struct RunningChange<'a>(&'a AtomicU64);

impl Drop for RunningChange<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}
