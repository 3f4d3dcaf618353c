//! The result of the last deadlock search, for all lock waiters of a mount. Ensures that only one
//! task searches at a time. No I/O.

use crate::limits::DEADLOCK_SEARCH_MAX_AGE;
use skep_cluster::deadlock::LockWaits;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The result of the last deadlock search of this mount, and whether a search is in progress.
#[derive(Debug, Default)]
pub(crate) struct DeadlockSearch {
    /// The time at which the search began, and the waits that each target had in both of its
    /// replies. The mutex protects only this value.
    result: Mutex<Option<(Duration, Arc<LockWaits>)>>,
    is_running: AtomicBool,
}

impl DeadlockSearch {
    /// Returns the result of the last search if it is younger than `DEADLOCK_SEARCH_MAX_AGE`.
    pub(crate) fn recent(&self, now: Duration) -> Option<Arc<LockWaits>> {
        let result = self.result.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Another thread may have read its clock after this thread, so `began` may be later than
        // `now`.
        let is_recent = |began: Duration| now.saturating_sub(began) < DEADLOCK_SEARCH_MAX_AGE;
        result.filter(|(began, _)| is_recent(*began)).map(|(_, waits)| waits)
    }

    /// Begins a search. Returns `None` while another search is running.
    pub(crate) fn begin(&self) -> Option<SearchTurn<'_>> {
        let is_free = !self.is_running.swap(true, Ordering::Acquire);
        is_free.then(|| SearchTurn(self))
    }
}

/// The right to search. Other tasks cannot begin a search until this value is dropped.
pub(crate) struct SearchTurn<'a>(&'a DeadlockSearch);

impl SearchTurn<'_> {
    /// Publishes the result of a search that began at `began`.
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
