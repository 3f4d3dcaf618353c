//! The result of the last search for deadlock cycles, shared by all waits of a mount, and the turn
//! to search. No I/O.

use crate::limits::DEADLOCK_SEARCH_MAX_AGE;
use skep_cluster::deadlock::LockWaits;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The last search of this mount.
#[derive(Debug, Default)]
pub(crate) struct DeadlockSearch {
    /// The time at which the search began, and the waits that both replies of each target
    /// contained. The mutex protects the value alone.
    result: Mutex<Option<(Duration, Arc<LockWaits>)>>,
    is_running: AtomicBool,
}

impl DeadlockSearch {
    /// The result of the last search, if it is not too old.
    pub(crate) fn recent(&self, now: Duration) -> Option<Arc<LockWaits>> {
        let result = self.result.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Another thread's clock reading may be later than `now`.
        let is_recent = |began: Duration| now.saturating_sub(began) < DEADLOCK_SEARCH_MAX_AGE;
        result.filter(|(began, _)| is_recent(*began)).map(|(_, waits)| waits)
    }

    /// Begins a search; `None` while another one runs.
    pub(crate) fn begin(&self) -> Option<SearchTurn<'_>> {
        let is_free = !self.is_running.swap(true, Ordering::Acquire);
        is_free.then(|| SearchTurn(self))
    }
}

/// The turn to search; ends when dropped.
pub(crate) struct SearchTurn<'a>(&'a DeadlockSearch);

impl SearchTurn<'_> {
    /// Publishes the result of a search that was begun at `began`.
    pub(crate) fn finish(self, began: Duration, waits: LockWaits) {
        let result = Some((began, Arc::new(waits)));
        *self.0.result.lock().unwrap_or_else(PoisonError::into_inner) = result;
    }
}

impl Drop for SearchTurn<'_> {
    fn drop(&mut self) {
        self.0.is_running.store(false, Ordering::Release);
    }
}
