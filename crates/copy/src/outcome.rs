//! Counts, problems and progress of a copy, for reports. This module does no I/O.

use crate::failure::shown_shortened;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Maximum number of problems whose texts are stored. The copy counts all problems.
const MOST_PROBLEMS: usize = 1000;

/// An entry of the source that could not be copied completely.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Path of the source. Control characters, backslashes and bytes that are not UTF-8 are
    /// escaped.
    pub path: String,
    /// The reason why the copy of the entry failed.
    pub problem: String,
}

/// The result of a copy.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Whether this was a dry run, which copies nothing.
    pub is_dry_run: bool,
    /// Number of regular files that were copied.
    pub files: u64,
    /// Number of directories of the source.
    pub directories: u64,
    /// Number of symbolic links, hard links, FIFOs, sockets and devices that were copied.
    pub others: u64,
    /// Number of entries whose copies were complete before this run.
    pub skipped: u64,
    /// Number of bytes that were copied. Holes are not counted.
    pub bytes: u64,
    /// Number of bytes that were compared with the source after the copy.
    pub verified_bytes: u64,
    /// Number of problems.
    pub problem_count: u64,
    /// The first problems, at most 1,000, sorted by path.
    pub problems: Vec<Problem>,
    /// Whether the copy ended early because the destination is full.
    pub is_full: bool,
    /// Whether the copy ended early because the destination is full, or because a file system or
    /// the object store cannot be used any more.
    pub has_ended_early: bool,
    /// Duration of the copy.
    pub seconds: f64,
}

/// The problems of a run, which all threads report.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    count: AtomicU64,
    /// The first problems. The lock protects only this list and is held for one insertion.
    first: Mutex<Vec<Problem>>,
}

impl Problems {
    pub(crate) fn add(&self, path: &Path, problem: String) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut first = self.first.lock().expect("no thread panics while it has the lock");
        if first.len() < MOST_PROBLEMS {
            first.push(Problem { path: shown_shortened(path), problem });
        }
    }

    /// Returns the number of all problems.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns the first problems, sorted by path.
    pub(crate) fn first(&self) -> Vec<Problem> {
        let mut first = self.first.lock().expect("no thread panics while it has the lock").clone();
        first.sort_by(|a, b| a.path.cmp(&b.path));
        first
    }
}

/// Counters that all threads update.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) files: AtomicU64,
    pub(crate) directories: AtomicU64,
    pub(crate) others: AtomicU64,
    pub(crate) skipped: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) verified: AtomicU64,
    /// Number of entries that the walk has found.
    pub(crate) found: AtomicU64,
    /// Number of files that were found and are copied in pieces. Counted only in the first part of
    /// a copy by several hosts.
    pub(crate) large: AtomicU64,
    /// Number of directories that the walk has found and has not read completely.
    pub(crate) unread: AtomicU64,
    /// Number of bytes that remain to be copied in the large files whose copies have begun.
    pub(crate) pending_bytes: AtomicU64,
    pub(crate) is_full: AtomicBool,
    pub(crate) has_ended_early: AtomicBool,
    problems: Problems,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, number: u64) {
        counter.fetch_add(number, Ordering::Relaxed);
    }

    pub(crate) fn problem(&self, path: &Path, problem: String) {
        self.problems.add(path, problem);
    }

    pub(crate) fn progress(&self, elapsed: Duration) -> Progress {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Progress {
            done: get(&self.files) + get(&self.others) + get(&self.skipped),
            found: get(&self.found),
            large: get(&self.large),
            is_walking: get(&self.unread) > 0,
            bytes: get(&self.bytes),
            pending_bytes: get(&self.pending_bytes),
            problems: self.problems.count(),
            elapsed,
        }
    }

    pub(crate) fn outcome(&self, is_dry_run: bool, elapsed: Duration) -> Outcome {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Outcome {
            is_dry_run,
            files: get(&self.files),
            directories: get(&self.directories),
            others: get(&self.others),
            skipped: get(&self.skipped),
            bytes: get(&self.bytes),
            verified_bytes: get(&self.verified),
            problem_count: self.problems.count(),
            problems: self.problems.first(),
            is_full: self.is_full.load(Ordering::Relaxed),
            has_ended_early: self.has_ended_early.load(Ordering::Relaxed),
            seconds: elapsed.as_secs_f64(),
        }
    }
}

/// The progress of a running copy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Number of complete entries, without directories.
    pub done: u64,
    /// Number of entries that the walk has found, without directories.
    pub found: u64,
    /// Number of files that were found and are copied in pieces. Counted only in the first part of
    /// a copy by several hosts.
    pub large: u64,
    /// Whether the walk is still running, so that it may find more entries.
    pub is_walking: bool,
    /// Number of bytes that were copied.
    pub bytes: u64,
    /// Number of bytes that remain to be copied in the large files whose copies have begun.
    pub pending_bytes: u64,
    /// Number of problems.
    pub problems: u64,
    /// Time since the copy began.
    pub elapsed: Duration,
}

impl Progress {
    /// Adds the progress of another process.
    pub(crate) fn add(&mut self, other: &Self) {
        self.done += other.done;
        self.bytes += other.bytes;
        self.pending_bytes += other.pending_bytes;
        self.problems += other.problems;
    }

    /// Returns the mean rate of the copy until now, in bytes per second.
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / self.elapsed.as_secs_f64().max(0.001)
    }

    /// Returns the estimated time left, if the mean rates stay the same. `None` means that there is
    /// no estimate yet, because the walk is still running or no entry is complete.
    pub fn time_left(&self) -> Option<Duration> {
        let remaining = self.found.saturating_sub(self.done + self.problems);
        if self.is_walking || (self.done == 0 && self.bytes == 0) {
            return None;
        }
        let entries = match self.done {
            0 => 0.0,
            done => remaining as f64 * self.elapsed.as_secs_f64() / done as f64,
        };
        let bytes = self.pending_bytes as f64 / self.rate().max(1.0);
        // While large files are being copied, the estimate is based on their bytes. During this
        // time, the number of entries does not show how much work is left.
        let seconds = if self.pending_bytes > 0 { bytes } else { entries };
        Duration::try_from_secs_f64(seconds).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_time_is_estimated_from_bytes_or_entries() {
        let elapsed = Duration::from_secs(10);
        let progress = Progress {
            done: 100,
            found: 300,
            large: 0,
            is_walking: false,
            bytes: 1000,
            pending_bytes: 0,
            problems: 0,
            elapsed,
        };
        assert_eq!(progress.time_left(), Some(Duration::from_secs(20)));
        let large = Progress { pending_bytes: 500, ..progress.clone() };
        assert_eq!(large.time_left(), Some(Duration::from_secs(5)));
        let walking = Progress { is_walking: true, ..progress.clone() };
        assert_eq!(walking.time_left(), None);
        let begun = Progress { done: 0, bytes: 0, ..progress };
        assert_eq!(begun.time_left(), None);
    }

    #[test]
    fn all_problems_are_counted_and_only_the_first_are_listed() {
        let counters = Counters::default();
        for number in 0..1500 {
            counters.problem(Path::new("a"), number.to_string());
        }
        let outcome = counters.outcome(false, Duration::ZERO);
        assert_eq!((outcome.problem_count, outcome.problems.len()), (1500, MOST_PROBLEMS));
    }
}
