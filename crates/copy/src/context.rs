//! The state that all threads of a copy share: options, counters, the rate limit, and the temporary
//! names of this run.

use crate::failure::Failure;
use crate::outcome::Counters;
use crate::pace::Pace;
use crate::plan::temporary_name;
use crate::shares::Part;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Options of a copy.
#[derive(Debug, Clone)]
pub struct Options {
    /// Number of threads that copy.
    pub threads: usize,
    /// Maximum number of bytes per second of all threads together. `None` means no limit.
    pub bytes_per_second: Option<u64>,
    /// Skip files that already have a copy with the length and the modification time of the source.
    pub resume: bool,
    /// Compare the bytes of each copy with its source after the copy.
    pub verify: bool,
    /// Sync each file and directory, before the copy gets its name.
    pub sync: bool,
    /// Dry run: count the entries, and copy nothing.
    pub is_dry_run: bool,
    /// Skip the contents of directories where another file system is mounted.
    pub one_file_system: bool,
    /// Set the owners and groups of copies. Without root rights, only groups of the user can be
    /// set.
    pub owners: bool,
    /// In copies from an object store, also set owners, groups and the setgid bits of directories
    /// from the metadata of the objects. All users who may write to the bucket choose these values.
    /// If this field is not set, a copy by root gets the owner and the group of the directory above
    /// the destination.
    pub store_owners: bool,
    /// Copy extended attributes and access control lists.
    pub xattrs: bool,
    /// The part of the copy that this process does, if several processes copy.
    pub part: Part,
}

impl Options {
    /// Returns whether this process skips an entry that already has a complete copy.
    /// `by_earlier_part` is true if an earlier part of a copy by several hosts creates the entry.
    /// Without `resume`, the last part skips only entries that an earlier part creates. No earlier
    /// part renames a large file to its final name, so an existing large file is older than this
    /// copy.
    pub(crate) fn skips_complete(&self, by_earlier_part: bool) -> bool {
        self.resume || (self.part == Part::Finish && by_earlier_part)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            threads: 16,
            bytes_per_second: None,
            resume: false,
            verify: false,
            sync: true,
            is_dry_run: false,
            one_file_system: false,
            owners: true,
            store_owners: false,
            xattrs: true,
            part: Part::Whole,
        }
    }
}

/// The options that most tests use.
#[cfg(test)]
pub(crate) const TEST_OPTIONS: Options = Options {
    threads: 4,
    bytes_per_second: None,
    resume: false,
    verify: true,
    sync: false,
    is_dry_run: false,
    one_file_system: false,
    owners: true,
    store_owners: false,
    xattrs: true,
    part: Part::Whole,
};

/// The state that all threads of a running copy share.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) options: Options,
    pub(crate) counters: Counters,
    pub(crate) pace: Pace,
    /// A random number in all temporary names of this run.
    run: u128,
    next_temporary: AtomicU64,
}

impl Context {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            options: options.clone(),
            counters: Counters::default(),
            pace: Pace::new(options.bytes_per_second),
            run: skep_env::random_u128(),
            next_temporary: AtomicU64::new(0),
        }
    }

    /// Returns a temporary name for the copy of `name`. This run has not used the name before, and
    /// no other run uses it.
    pub(crate) fn temporary(&self, name: &OsStr) -> OsString {
        let number = self.next_temporary.fetch_add(1, Ordering::Relaxed);
        temporary_name(name, self.run, number)
    }

    /// Records that an entry of the source could not be copied. If the file system is full or lost,
    /// ends the copy.
    pub(crate) fn problem(&self, path: &Path, failure: &Failure) {
        let counters = &self.counters;
        if failure.is_full() || failure.is_lost() {
            counters.is_full.fetch_or(failure.is_full(), Ordering::Relaxed);
            // Other threads fail for the same reason with the entries that they copy now, so only
            // the first failure is reported.
            if counters.has_ended_early.swap(true, Ordering::Relaxed) {
                return;
            }
        }
        counters.problem(path, format!("cannot {}: {}", failure.what, failure.error));
    }

    /// Makes all threads end the copy early.
    pub(crate) fn stop(&self) {
        self.counters.has_ended_early.store(true, Ordering::Relaxed);
    }

    /// Whether the threads must end the copy early.
    pub(crate) fn is_stopped(&self) -> bool {
        self.counters.has_ended_early.load(Ordering::Relaxed)
    }
}
