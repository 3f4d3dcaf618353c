//! The parts of a copy that all threads share: options, counters and the limit of the rate.

use crate::data::Failure;
use crate::outcome::Counters;
use crate::pace::Pace;
use std::path::Path;
use std::sync::atomic::Ordering;

/// Options of a copy.
#[derive(Debug, Clone)]
pub struct Options {
    /// Number of threads.
    pub threads: usize,
    /// Most bytes per second. `None` means no limit.
    pub bytes_per_second: Option<u64>,
    /// Leave out files whose copy has the length and the time of the source.
    pub resume: bool,
    /// Compare the bytes of each copy with its source.
    pub verify: bool,
    /// Sync each file and directory.
    pub sync: bool,
    /// Only count.
    pub is_dry_run: bool,
}

/// Options, counters and the limit of the rate of a running copy.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) options: &'a Options,
    pub(crate) counters: Counters,
    pub(crate) pace: Pace,
}

impl<'a> Context<'a> {
    pub(crate) fn new(options: &'a Options) -> Self {
        let pace = Pace::new(options.bytes_per_second);
        Self { options, counters: Counters::default(), pace }
    }

    /// Records a problem of a source. A full destination ends the copy.
    pub(crate) fn problem(&self, shown: &Path, failure: &Failure) {
        if failure.is_full() {
            // Entries that other threads have begun fail for the same reason.
            if self.counters.is_full.swap(true, Ordering::Relaxed) {
                return;
            }
        }
        self.counters.problem(shown, format!("cannot {}: {}", failure.what, failure.error));
    }

    /// Whether the copy ends early.
    pub(crate) fn is_stopped(&self) -> bool {
        self.counters.is_full.load(Ordering::Relaxed)
    }
}
