//! System calls that the kernel repeats after `ESTALE`, and the files that the mount keeps open for
//! them.
//!
//! The kernel performs a system call on a name in two or more requests: `LOOKUP` returns the inode,
//! and `OPEN` or `SETATTR` uses the inode. If the file has lost its name between the two, the mount
//! replies `ESTALE`. The kernel then looks up the name again and sends the second request again. It
//! repeats a call only once: if the next file has lost the name as well, the program gets `ESTALE`,
//! although the name always referred to a file (docs/semantics.md 1.4).
//!
//! So the mount opens the file itself at the repeated `LOOKUP` (a hold), and closes it after the
//! second request. A file that this mount has open can be used without a name. The program then
//! uses the file that had the name at the `LOOKUP`, which was after the beginning of its call.
//!
//! Owns the table of the threads whose calls the kernel repeats, with their holds. `ops::holds`
//! opens and closes the files.

use crate::limits;
use skep_client::HandleId;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
struct RepeatedCall {
    /// The hold of the file that the last lookup of the thread found.
    hold: Option<HandleId>,
    until: Duration,
}

/// The calls of a mount that the kernel repeats, by the number of the calling thread.
///
/// # Invariants
/// Contains at most [`limits::MAX_REPEATED_CALLS`] threads. The code that removes a hold from the
/// table closes it.
#[derive(Debug, Default)]
pub(crate) struct RepeatedCalls {
    /// The mutex protects only the table. A thread that holds this mutex takes no other lock and
    /// does not wait.
    threads: Mutex<HashMap<u32, RepeatedCall>>,
    /// Whether the table has entries, so that usual requests do not take the mutex. A thread sees
    /// its own entry, since the kernel sends its next request after the mount has replied.
    has_threads: AtomicBool,
}

impl RepeatedCalls {
    fn with<T>(&self, f: impl FnOnce(&mut HashMap<u32, RepeatedCall>) -> T) -> T {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let result = f(&mut threads);
        debug_assert!(threads.len() <= limits::MAX_REPEATED_CALLS, "the table is bounded");
        self.has_threads.store(!threads.is_empty(), Ordering::Release);
        result
    }

    fn is_empty(&self) -> bool {
        !self.has_threads.load(Ordering::Acquire)
    }

    /// Notes that a call of the thread failed with `ESTALE`. If the table is full, the mount takes
    /// no hold for this thread.
    pub(crate) fn failed(&self, thread: u32, now: Duration) {
        self.with(|threads| {
            threads.retain(|_, call| call.hold.is_some() || now < call.until);
            if threads.len() < limits::MAX_REPEATED_CALLS {
                let until = now + limits::REPEATED_CALL_TIME;
                threads.insert(thread, RepeatedCall { hold: None, until });
            }
        });
    }

    /// Whether the kernel repeats a call of the thread.
    pub(crate) fn is_expected(&self, thread: u32, now: Duration) -> bool {
        !self.is_empty()
            && self.with(|threads| threads.get(&thread).is_some_and(|call| now < call.until))
    }

    /// Adds the hold that the mount has taken for a lookup of the thread. Returns a hold that the
    /// caller must close: the thread's former hold, or the new hold if the kernel does not repeat
    /// a call of this thread.
    pub(crate) fn add(&self, thread: u32, hold: HandleId) -> Option<HandleId> {
        self.with(|threads| match threads.get_mut(&thread) {
            Some(call) => call.hold.replace(hold),
            None => Some(hold),
        })
    }

    /// Ends the repeated call of the thread. Returns its hold, which the caller must close.
    pub(crate) fn end(&self, thread: u32) -> Option<HandleId> {
        match self.is_empty() {
            true => None,
            false => self.with(|threads| threads.remove(&thread)?.hold),
        }
    }

    /// Ends the repeated call of the thread if this is its hold. Returns whether the caller must
    /// close the hold.
    pub(crate) fn end_with(&self, thread: u32, hold: HandleId) -> bool {
        self.with(|threads| {
            let is_held = threads.get(&thread).is_some_and(|call| call.hold == Some(hold));
            is_held && threads.remove(&thread).is_some()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    #[test]
    fn only_a_failed_call_is_expected_again() {
        let calls = RepeatedCalls::default();
        assert!(!calls.is_expected(7, NOW));
        calls.failed(7, NOW);
        assert!(calls.is_expected(7, NOW));
        assert!(!calls.is_expected(8, NOW));
        assert!(!calls.is_expected(7, NOW + limits::REPEATED_CALL_TIME));
        assert_eq!(calls.end(7), None);
        assert!(!calls.is_expected(7, NOW));
    }

    #[test]
    fn each_hold_is_returned_once() {
        let calls = RepeatedCalls::default();
        let (first, second, third) = (HandleId::new(1), HandleId::new(2), HandleId::new(3));
        calls.failed(7, NOW);
        assert_eq!(calls.add(7, first), None);
        assert_eq!(calls.add(7, second), Some(first), "the kernel looked up the name twice");
        assert!(!calls.end_with(7, first));
        assert_eq!(calls.end(7), Some(second));
        assert!(!calls.end_with(7, second));
        assert_eq!(calls.add(7, third), Some(third), "the call has ended meanwhile");
    }

    #[test]
    fn the_table_of_repeated_calls_is_bounded() {
        let calls = RepeatedCalls::default();
        let last = limits::MAX_REPEATED_CALLS as u32;
        (0..=last).for_each(|thread| calls.failed(thread, NOW));
        assert!(calls.is_expected(0, NOW) && !calls.is_expected(last, NOW));
        assert_eq!(calls.add(0, HandleId::new(1)), None);
        let later = NOW + limits::REPEATED_CALL_TIME;
        calls.failed(last, later);
        assert!(calls.is_expected(last, later), "expired entries leave the table");
        assert_eq!(calls.end(0), Some(HandleId::new(1)), "an entry with a hold stays");
    }
}
