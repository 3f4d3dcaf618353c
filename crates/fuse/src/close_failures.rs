//! The open files whose failed sync or close the mount has already logged. With this list, the
//! mount logs each failure only once.
//!
//! The kernel sends a FLUSH for each copy of a descriptor that a program closes, and a RELEASE
//! after the last one. A shell that redirects the output of a command closes two copies, and each
//! child process closes the copies that it has inherited. If the mount cannot report the writes of
//! a file, all these requests fail for the same reason, as an `fsync` before them did.

use crate::limits::{MAX_CLOSE_FAILURES, REPEATED_FAILURE_TIME};
use crate::reply::Failure;
use skep_client::HandleId;
use skep_types::{ErrorCode, Result};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A failure that the mount has logged.
#[derive(Clone, Copy, Debug)]
struct Logged {
    code: ErrorCode,
    at: Duration,
}

/// The last failed syncs and closes of the open files of a mount.
///
/// # Invariants
/// - Contains at most [`MAX_CLOSE_FAILURES`] handles.
#[derive(Debug, Default)]
pub(crate) struct CloseFailures {
    /// The mutex protects only the table. A thread that holds this mutex takes no other lock and
    /// does not wait.
    handles: Mutex<HashMap<HandleId, Logged>>,
    /// Whether the table has entries. While it has none, requests do not take the mutex.
    has_handles: AtomicBool,
}

impl CloseFailures {
    fn with<T>(&self, f: impl FnOnce(&mut HashMap<HandleId, Logged>) -> T) -> T {
        let mut handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        let result = f(&mut handles);
        debug_assert!(handles.len() <= MAX_CLOSE_FAILURES, "the table is bounded");
        self.has_handles.store(!handles.is_empty(), Ordering::Release);
        result
    }

    /// Converts the result of a flush, sync or close of an open file to the result of the request.
    /// Returns [`Failure::Logged`], which the worker does not log again, if the failure repeats the
    /// last logged failure of the same handle within [`REPEATED_FAILURE_TIME`].
    pub(crate) fn check(
        &self,
        handle: HandleId,
        result: Result<()>,
        now: Duration,
    ) -> Result<(), Failure> {
        let Err(error) = result else {
            self.forget(handle);
            return Ok(());
        };
        let code = error.code();
        let is_logged = self.with(|handles| {
            let is_recent = |it: &Logged| now.saturating_sub(it.at) < REPEATED_FAILURE_TIME;
            if handles.get(&handle).is_some_and(|it| it.code == code && is_recent(it)) {
                return true;
            }
            if handles.len() >= MAX_CLOSE_FAILURES {
                handles.retain(|_, it| is_recent(it));
            }
            if handles.len() < MAX_CLOSE_FAILURES {
                handles.insert(handle, Logged { code, at: now });
            }
            false
        });
        Err(if is_logged { Failure::Logged(error) } else { Failure::Error(error) })
    }

    /// Forgets the failures of an open file, since it was closed or synced.
    pub(crate) fn forget(&self, handle: HandleId) {
        if self.has_handles.load(Ordering::Acquire) {
            self.with(|handles| handles.remove(&handle));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::Error;

    const START: Duration = Duration::from_secs(1000);

    fn failed(code: ErrorCode) -> Result<()> {
        Err(Error::new(code, "cannot report the writes"))
    }

    #[test]
    fn each_open_file_logs_a_repeated_failure_only_once() {
        let failures = CloseFailures::default();
        let (first, second) = (HandleId::new(1), HandleId::new(2));
        let logs = |handle, code, now: Duration| {
            let checked = failures.check(handle, failed(code), now);
            match checked {
                Err(Failure::Error(error)) => {
                    assert_eq!(error.code(), code);
                    true
                }
                Err(Failure::Logged(error)) => {
                    assert_eq!(error.code(), code);
                    false
                }
                other => panic!("{other:?}"),
            }
        };
        // An `fsync`, and the flushes of two copies of the descriptor.
        assert!(logs(first, ErrorCode::Stale, START));
        assert!(!logs(first, ErrorCode::Stale, START));
        assert!(!logs(first, ErrorCode::Stale, START + Duration::from_secs(1)));
        assert!(logs(first, ErrorCode::Io, START), "another reason");
        assert!(logs(second, ErrorCode::Stale, START), "another file");
        assert!(logs(second, ErrorCode::Stale, START + REPEATED_FAILURE_TIME), "a later failure");
        failures.check(second, Ok(()), START).unwrap();
        assert!(logs(second, ErrorCode::Stale, START), "a failure after a success");
        failures.forget(second);
        failures.forget(first);
        assert!(!failures.has_handles.load(Ordering::Acquire));
    }

    #[test]
    fn number_of_open_files_with_failures_is_bounded() {
        let failures = CloseFailures::default();
        for handle in 0..2 * MAX_CLOSE_FAILURES as u64 {
            let checked = failures.check(HandleId::new(handle), failed(ErrorCode::Io), START);
            assert!(matches!(checked, Err(Failure::Error(_))));
        }
        assert_eq!(failures.with(|handles| handles.len()), MAX_CLOSE_FAILURES);
    }
}
