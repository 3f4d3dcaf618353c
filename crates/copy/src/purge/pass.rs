//! The state that all threads of a pass over the tree share: which entries the purge removes, and
//! the counts.

use super::entry::EntryAttributes;
use super::names::RemovedNames;
use super::records::Records;
use super::totals::Totals;
use super::{Options, PurgeProgress};
use crate::failure::Failure;
use crate::outcome::Problems;
use crate::pace::Pace;
use rustix::fs::FileType;
use skep_types::{Error, Timestamp};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// The action of a pass on the entries that are old enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Count the entries, before another pass removes them.
    Count,
    /// Count and list the entries.
    List,
    /// Remove the entries.
    Remove,
}

/// One pass over the tree.
pub(crate) struct Pass {
    pub(crate) options: Options,
    pub(crate) action: Action,
    /// The device of the file system that is purged.
    pub(crate) device: u64,
    /// Path of the top directory.
    top: PathBuf,
    /// The time of the file system when the purge began.
    now: Timestamp,
    /// An entry is old if [`Self::age_begin`] returns this time or an earlier time.
    cutoff: Timestamp,
    /// Number of files that an earlier pass has counted.
    expected: Option<u64>,
    records: Arc<Records>,
    pub(crate) names: RemovedNames,
    pub(crate) pace: Pace,
    pub(crate) problems: Problems,
    begin: Instant,
    progress: LiveCounts,
    /// The counts. The lock is held for the addition of one batch of entries.
    totals: Mutex<Totals>,
    has_ended_early: AtomicBool,
    is_interrupted: AtomicBool,
    /// The error of the log or of the list that has ended the pass early.
    fatal: Mutex<Option<Error>>,
}

/// Counts for the reports of the progress.
#[derive(Debug, Default)]
struct LiveCounts {
    scanned: AtomicU64,
    files: AtomicU64,
    bytes: AtomicU64,
}

/// The top directory of a purge and its times.
#[derive(Debug, Clone)]
pub(crate) struct Begin {
    pub(crate) top: PathBuf,
    pub(crate) device: u64,
    pub(crate) now: Timestamp,
    pub(crate) cutoff: Timestamp,
}

impl Pass {
    pub(crate) fn new(
        begin: &Begin,
        options: &Options,
        action: Action,
        expected: Option<u64>,
        records: &Arc<Records>,
    ) -> Self {
        let Begin { top, device, now, cutoff } = begin.clone();
        Self {
            options: options.clone(),
            action,
            device,
            top,
            now,
            cutoff,
            expected,
            records: records.clone(),
            names: RemovedNames::new(),
            pace: Pace::new(options.files_per_second),
            problems: Problems::default(),
            begin: Instant::now(),
            progress: LiveCounts::default(),
            totals: Mutex::default(),
            has_ended_early: AtomicBool::new(false),
            is_interrupted: AtomicBool::new(false),
            fatal: Mutex::default(),
        }
    }

    /// Whether an entry is old, and no option keeps it. `Selection::excludes` checks the names of
    /// entries.
    pub(crate) fn is_selected(&self, entry: &EntryAttributes) -> bool {
        self.options.selection.includes(entry) && self.is_old(entry)
    }

    /// Whether the age of an entry has reached the limit.
    pub(crate) fn is_old(&self, entry: &EntryAttributes) -> bool {
        self.age_begin(entry) <= self.cutoff
    }

    /// Returns the time from which the age of an entry counts.
    pub(crate) fn age_begin(&self, entry: &EntryAttributes) -> Timestamp {
        entry.age_begin(self.options.age, self.now)
    }

    /// Whether the entry has changed since the purge began.
    pub(crate) fn has_changed(&self, entry: &EntryAttributes) -> bool {
        entry.changed > self.now
    }

    /// Counts a file in the progress.
    pub(crate) fn note_scanned(&self) {
        self.progress.scanned.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a removed entry in the progress, and writes its line to the list and the log. `path`
    /// is its path below the top.
    pub(crate) fn note_removed(&self, path: &Path, entry: &EntryAttributes) {
        let is_file = entry.kind != FileType::Directory;
        self.progress.files.fetch_add(u64::from(is_file), Ordering::Relaxed);
        self.progress.bytes.fetch_add(entry.bytes, Ordering::Relaxed);
        let written = match self.action {
            Action::Count => Ok(()),
            Action::List => self.records.list(&self.top.join(path), entry),
            Action::Remove => {
                let (whole, now) = (self.top.join(path), skep_env::wall_time());
                let logged = self.records.log(&whole, entry, now);
                logged.and_then(|()| self.records.list(&whole, entry))
            }
        };
        if let Err(error) = written {
            self.has_ended_early.store(true, Ordering::Relaxed);
            let mut fatal = self.fatal.lock().expect("no thread panics while it has the lock");
            fatal.get_or_insert(error);
        }
    }

    /// Adds the counts of a batch of entries.
    pub(crate) fn add(&self, counts: Totals) {
        self.totals.lock().expect("no thread panics while it has the lock").merge(counts);
    }

    /// Records that an entry could not be read or removed. If the file system is lost, ends the
    /// pass. `path` is the path of the entry below the top.
    pub(crate) fn fail(&self, path: &Path, failure: &Failure) {
        // After the loss of the file system, all threads fail for the same reason. So only the
        // first failure is reported.
        if failure.is_lost() && self.has_ended_early.swap(true, Ordering::Relaxed) {
            return;
        }
        let text = format!("cannot {}: {}", failure.what, failure.error);
        self.problems.add(&self.top.join(path), text);
    }

    /// Whether the threads must end the pass early.
    pub(crate) fn is_stopped(&self) -> bool {
        self.has_ended_early.load(Ordering::Relaxed)
    }

    /// Ends the pass early, because the user has interrupted it.
    pub(crate) fn interrupt(&self) {
        self.is_interrupted.store(true, Ordering::Relaxed);
        self.has_ended_early.store(true, Ordering::Relaxed);
    }

    /// Whether the user has interrupted the pass.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.is_interrupted.load(Ordering::Relaxed)
    }

    pub(crate) fn progress(&self) -> PurgeProgress {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PurgeProgress {
            is_removing: self.action == Action::Remove,
            scanned: get(&self.progress.scanned),
            files: get(&self.progress.files),
            bytes: get(&self.progress.bytes),
            expected: self.expected,
            problems: self.problems.count(),
            elapsed: self.begin.elapsed(),
        }
    }

    /// Returns the counts of the pass.
    ///
    /// # Errors
    /// The error of the log or of the list, if it has ended the pass.
    pub(crate) fn finish(&self) -> skep_types::Result<Totals> {
        let fatal = self.fatal.lock().expect("no thread panics while it has the lock").take();
        let mut totals = self.totals.lock().expect("no thread panics while it has the lock");
        fatal.map_or_else(|| Ok(std::mem::take(&mut *totals)), Err)
    }
}
