//! Opens that the kernel repeats after `ESTALE`, and the files that the mount holds for them.
//!
//! The kernel opens a name in two requests: `LOOKUP` returns the inode, and `OPEN` opens the inode.
//! If the file has lost its name between the two requests, the mount replies `ESTALE`. The kernel
//! then sends both requests again, but only once. If the next file has lost the name as well, the
//! program gets `ESTALE`, although the name always referred to a file.
//!
//! Between `LOOKUP` and `OPEN`, the kernel may request the attributes of the file. If the file has
//! lost its name before this request, the kernel also repeats the open.
//!
//! So the mount holds the file that the repeated `LOOKUP` finds until the repeated `OPEN`, which
//! then succeeds without a name. The program uses a file that had the name during its call. No
//! other open may use the held file: a program that opens the name later must get a newer file.
//!
//! # Opens with `O_CREAT`
//! If the first `LOOKUP` finds no file, the kernel sends `CREATE` in place of `OPEN`. If another
//! host has created the name meanwhile, the mount replies `ESTALE`, so that the kernel checks the
//! permissions of the existing file. The other host may remove the name before the repeated
//! `LOOKUP`, and create it again before the repeated `CREATE`. So the mount already holds the
//! existing file before it replies `ESTALE`. If the repeated `LOOKUP` finds no name, the mount
//! returns this file.
//!
//! Owns the table of the threads whose opens the kernel repeats. `ops::holds` holds and releases
//! the files.

use crate::limits;
use skep_client::{HandleId, OpenMode};
use skep_types::InodeId;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A handle of the mount itself, which keeps a file open for one thread until the kernel repeats
/// the thread's open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) inode: InodeId,
    pub(crate) handle: HandleId,
}

/// The state that a repeated open had when it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// The hold, which the caller must release.
    pub(crate) hold: Option<Hold>,
    /// Whether the open may use the held file although the file has lost its name.
    pub(crate) may_use: bool,
}

/// A name in a directory.
pub(crate) type HeldName = (InodeId, Vec<u8>);

#[derive(Debug)]
struct RepeatedOpen {
    mode: OpenMode,
    /// The file that the last lookup of the thread found.
    hold: Option<Hold>,
    /// The name that the thread could not create. `None` if an open of an existing file has failed.
    name: Option<HeldName>,
    until: Duration,
}

/// The opens of a mount that the kernel repeats, by the id of the calling thread.
///
/// # Invariants
/// - Contains at most [`limits::MAX_REPEATED_OPENS`] threads.
/// - While no thread holds the mutex, `has_threads` shows whether the table has entries.
/// - The code that removes a hold from the table releases it.
/// - Only the next open of the thread can use a hold, and only with the mode of the failed open.
///
/// `check_invariants` checks the table.
///
/// Held by the tests `file_kept_open_for_a_retry_is_closed_exactly_once` and
/// `file_kept_open_for_a_retry_serves_no_other_open`: the last two invariants.
#[derive(Debug, Default)]
pub(crate) struct RepeatedOpens {
    /// The mutex protects only the table. A thread that holds this mutex takes no other lock and
    /// does not wait.
    threads: Mutex<HashMap<u32, RepeatedOpen>>,
    /// Whether the table has entries. While it has none, requests do not take the mutex. A thread
    /// sees its own entry, since the kernel sends its next request after the mount has replied.
    has_threads: AtomicBool,
}

impl RepeatedOpens {
    fn with<T>(&self, f: impl FnOnce(&mut HashMap<u32, RepeatedOpen>) -> T) -> T {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let result = f(&mut threads);
        self.has_threads.store(!threads.is_empty(), Ordering::Release);
        if cfg!(debug_assertions) {
            self.check_invariants(&threads);
        }
        result
    }

    /// Panics if an invariant of the table is violated. `threads` is the locked table.
    fn check_invariants(&self, threads: &HashMap<u32, RepeatedOpen>) {
        assert!(
            threads.len() <= limits::MAX_REPEATED_OPENS,
            "at most {} threads repeat an open",
            limits::MAX_REPEATED_OPENS
        );
        let has_threads = self.has_threads.load(Ordering::Relaxed);
        assert_eq!(
            has_threads,
            !threads.is_empty(),
            "`has_threads` shows whether there are entries"
        );
    }

    fn is_empty(&self) -> bool {
        !self.has_threads.load(Ordering::Acquire)
    }

    /// Records that an open of the thread failed with `ESTALE`, so that the kernel repeats it. If
    /// the table is full, the mount holds no file for this thread. The thread must have no hold.
    pub(crate) fn failed(&self, thread: u32, mode: OpenMode, now: Duration) {
        let until = now + limits::REPEATED_OPEN_TIME;
        self.insert(thread, RepeatedOpen { mode, hold: None, name: None, until }, now);
    }

    /// Records that a creation of `name` failed with `ESTALE` because the name exists, so that the
    /// kernel repeats the open. `hold` is the hold of the existing file. Returns a hold that the
    /// caller must release: a former hold of the thread, or `hold` if the table is full.
    pub(crate) fn failed_creation(
        &self,
        thread: u32,
        mode: OpenMode,
        (hold, name): (Hold, HeldName),
        now: Duration,
    ) -> Option<Hold> {
        let until = now + limits::REPEATED_OPEN_TIME;
        self.insert(thread, RepeatedOpen { mode, hold: Some(hold), name: Some(name), until }, now)
    }

    /// Adds the repeated open of a thread. Returns a hold that the caller must release: a former
    /// hold of the thread, or the hold of `open` if the table is full.
    fn insert(&self, thread: u32, open: RepeatedOpen, now: Duration) -> Option<Hold> {
        self.with(|threads| {
            threads.retain(|_, open| open.hold.is_some() || now < open.until);
            if threads.len() >= limits::MAX_REPEATED_OPENS {
                return open.hold;
            }
            threads.insert(thread, open)?.hold
        })
    }

    /// Returns the file that the mount holds for the thread because the thread could not create
    /// this name.
    pub(crate) fn held_under(
        &self,
        thread: u32,
        (directory, name): (InodeId, &[u8]),
        now: Duration,
    ) -> Option<InodeId> {
        if self.is_empty() {
            return None;
        }
        self.with(|threads| {
            let open = threads.get(&thread).filter(|open| now < open.until)?;
            let (within, held) = open.name.as_ref()?;
            let is_it = *within == directory && held == name;
            open.hold.filter(|_| is_it).map(|hold| hold.inode)
        })
    }

    /// Returns whether the kernel repeats an open of the thread.
    pub(crate) fn is_expected(&self, thread: u32, now: Duration) -> bool {
        !self.is_empty()
            && self.with(|threads| threads.get(&thread).is_some_and(|open| now < open.until))
    }

    /// Adds the hold of the file that a lookup of the thread has found. Returns a hold that the
    /// caller must release: the thread's previous hold, or the new hold if the kernel does not
    /// repeat an open of this thread.
    pub(crate) fn add(&self, thread: u32, hold: Hold) -> Option<Hold> {
        self.with(|threads| match threads.get_mut(&thread) {
            Some(open) => open.hold.replace(hold),
            None => Some(hold),
        })
    }

    /// Ends the repeated open of the thread, if there is one, because the thread opens an inode.
    pub(crate) fn opens(&self, thread: u32, inode: InodeId, mode: OpenMode) -> Option<Ended> {
        if self.is_empty() {
            return None;
        }
        let open = self.with(|threads| threads.remove(&thread))?;
        let may_use = open.mode == mode && open.hold.is_some_and(|hold| hold.inode == inode);
        Some(Ended { hold: open.hold, may_use })
    }

    /// Ends the repeated open of the thread, because the thread sends a request of another system
    /// call. Returns its hold, which the caller must release.
    pub(crate) fn end(&self, thread: u32) -> Option<Hold> {
        match self.is_empty() {
            true => None,
            false => self.with(|threads| threads.remove(&thread)?.hold),
        }
    }

    /// Ends the repeated open of the thread if it has this hold. Returns whether the caller must
    /// release the hold.
    pub(crate) fn end_with(&self, thread: u32, hold: Hold) -> bool {
        self.with(|threads| {
            let is_held = threads.get(&thread).is_some_and(|open| open.hold == Some(hold));
            is_held && threads.remove(&thread).is_some()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);
    const READ: OpenMode = OpenMode::Read;

    fn hold(number: u64) -> Hold {
        Hold { inode: InodeId::new(number), handle: HandleId::new(number) }
    }

    #[test]
    fn kernel_retry_of_a_failed_open_is_expected_for_a_short_time() {
        let opens = RepeatedOpens::default();
        assert!(!opens.is_expected(7, NOW));
        opens.failed(7, READ, NOW);
        assert!(opens.is_expected(7, NOW));
        assert!(!opens.is_expected(8, NOW));
        assert!(!opens.is_expected(7, NOW + limits::REPEATED_OPEN_TIME));
        assert_eq!(opens.end(7), None);
        assert!(!opens.is_expected(7, NOW));
    }

    #[test]
    fn file_kept_open_for_a_retry_serves_no_other_open() {
        let opens = RepeatedOpens::default();
        let inode = InodeId::new(1);
        let ended = |thread, inode, mode| {
            opens.failed(7, READ, NOW);
            assert_eq!(opens.add(7, hold(1)), None);
            let ended = opens.opens(thread, inode, mode);
            opens.end(7);
            ended
        };
        let used = |may_use| Some(Ended { hold: Some(hold(1)), may_use });
        assert_eq!(ended(7, inode, READ), used(true));
        assert_eq!(ended(7, inode, OpenMode::Write), used(false), "another open");
        assert_eq!(ended(7, InodeId::new(2), READ), used(false), "another file");
        assert_eq!(ended(8, inode, READ), None, "another thread");
        assert_eq!(opens.opens(7, inode, READ), None, "the open has ended");
    }

    #[test]
    fn file_kept_open_for_a_retry_is_closed_exactly_once() {
        let opens = RepeatedOpens::default();
        opens.failed(7, READ, NOW);
        assert_eq!(opens.add(7, hold(1)), None);
        assert_eq!(opens.add(7, hold(2)), Some(hold(1)), "the kernel looked up the name twice");
        assert!(!opens.end_with(7, hold(1)));
        assert_eq!(opens.end(7), Some(hold(2)));
        assert!(!opens.end_with(7, hold(2)));
        assert_eq!(opens.add(7, hold(3)), Some(hold(3)), "no repeated open is left");
    }

    #[test]
    fn file_held_for_a_creation_is_found_only_under_its_name() {
        let opens = RepeatedOpens::default();
        let name = || (InodeId::ROOT, b"a".to_vec());
        let found = |thread, name: &[u8], now| opens.held_under(thread, (InodeId::ROOT, name), now);
        assert_eq!(found(7, b"a", NOW), None);
        assert_eq!(opens.failed_creation(7, READ, (hold(1), name()), NOW), None);
        assert_eq!(found(7, b"a", NOW), Some(InodeId::new(1)));
        assert_eq!(found(7, b"b", NOW), None, "another name");
        assert_eq!(opens.held_under(7, (InodeId::new(9), b"a"), NOW), None, "another directory");
        assert_eq!(found(8, b"a", NOW), None, "another thread");
        assert_eq!(found(7, b"a", NOW + limits::REPEATED_OPEN_TIME), None);
        let former = opens.failed_creation(7, READ, (hold(2), name()), NOW);
        assert_eq!(former, Some(hold(1)), "the caller releases the former hold");
        let used = Ended { hold: Some(hold(2)), may_use: true };
        assert_eq!(opens.opens(7, InodeId::new(2), READ), Some(used));
        assert_eq!(found(7, b"a", NOW), None, "the open has ended");
    }

    #[test]
    #[should_panic(expected = "`has_threads` shows whether there are entries")]
    fn entry_without_the_has_threads_flag_violates_an_invariant() {
        let opens = RepeatedOpens::default();
        let open = RepeatedOpen { mode: READ, hold: None, name: None, until: NOW };
        opens.check_invariants(&HashMap::from([(7, open)]));
    }

    #[test]
    fn number_of_failed_opens_awaiting_a_retry_is_bounded() {
        let opens = RepeatedOpens::default();
        let last = limits::MAX_REPEATED_OPENS as u32;
        (0..=last).for_each(|thread| opens.failed(thread, READ, NOW));
        assert!(opens.is_expected(0, NOW) && !opens.is_expected(last, NOW));
        assert_eq!(opens.add(0, hold(1)), None);
        let later = NOW + limits::REPEATED_OPEN_TIME;
        opens.failed(last, READ, later);
        assert!(opens.is_expected(last, later), "expired entries leave the table");
        assert_eq!(opens.end(0), Some(hold(1)), "an entry with a hold stays");
    }
}
