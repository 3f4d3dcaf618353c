//! Estimates the free space of a target without a system call per write.

use crate::limits::{MAX_RESERVE_BYTES, RESERVE_DIVISOR, SCARCE_BYTES, SPACE_VALID};
use skep_env::{Space, space};
use skep_metrics::LineLimit;
use skep_types::map::Capacity;
use skep_types::{Error, Result};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Whether there is enough free space for a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FreeSpace {
    /// There is enough space, even for concurrent writes.
    Plenty,
    /// There is enough space now, but the write must reserve the space before it writes data.
    Scarce,
    /// The target is full. A write may only overwrite space that is already allocated.
    None,
}

/// A period in which the target is full.
#[derive(Debug, Clone, Copy)]
struct FullTime {
    /// Time of the first refused write.
    since: Duration,
    /// Whether the target has logged a refused write of this period.
    is_logged: bool,
}

/// The free space at the last `statvfs`, and the number of bytes written since then.
#[derive(Debug)]
pub(crate) struct SpaceGauge {
    path: PathBuf,
    looked_at: Cell<Duration>,
    found: Cell<Space>,
    written_since: Cell<u64>,
    refused_writes: LineLimit,
    /// Whether the target has refused a write since the last [`Self::take_refusal`].
    has_refused: Cell<bool>,
    /// The current period without free space. `None` means that the target has refused no write
    /// since it last had free space.
    full: Cell<Option<FullTime>>,
}

impl SpaceGauge {
    /// Creates a gauge for the file system that contains a target.
    ///
    /// # Errors
    /// Errors of `statvfs`, with the path.
    pub(crate) fn new(path: &Path) -> Result<Self> {
        let found = space(path).map_err(|error| Error::from(error).within(path.display()))?;
        Ok(Self {
            path: path.to_owned(),
            looked_at: Cell::new(skep_env::now()),
            found: Cell::new(found),
            written_since: Cell::new(0),
            refused_writes: LineLimit::default(),
            has_refused: Cell::new(false),
            full: Cell::new(None),
        })
    }

    /// Notes that the target refuses a write because it is full. If a log line is due, returns the
    /// number of refused writes since the previous log line.
    pub(crate) fn note_refusal(&self, now: Duration) -> Option<u64> {
        self.has_refused.set(true);
        let count = self.refused_writes.count(now);
        let full = self.full.get().unwrap_or(FullTime { since: now, is_logged: false });
        self.full.set(Some(FullTime { is_logged: full.is_logged || count.is_some(), ..full }));
        count
    }

    /// If the target was full and now has space, returns the duration of the full state and the
    /// free bytes. Returns `None` if the target was not full or is still full, or if no refused
    /// write of the period was logged.
    pub(crate) fn end_of_full(&self, now: Duration) -> Option<(Duration, u64)> {
        let full = self.full.get()?;
        let free_bytes = self.free_bytes();
        let total_bytes = self.found.get().total_bytes;
        if (Capacity { total_bytes, free_bytes, ..Capacity::default() }).is_full() {
            return None;
        }
        self.full.set(None);
        full.is_logged.then(|| (now.saturating_sub(full.since), free_bytes))
    }

    /// Returns whether the target has refused a write since the last call.
    pub(crate) fn take_refusal(&self) -> bool {
        self.has_refused.replace(false)
    }

    fn look(&self) {
        // If the query of the free space fails, the old value stays, and the gauge still subtracts
        // later writes from this value.
        if let Ok(found) = space(&self.path) {
            self.found.set(found);
            self.written_since.set(0);
        }
        self.looked_at.set(skep_env::now());
    }

    /// Returns the free space that clients may use, in bytes.
    pub(crate) fn free_bytes(&self) -> u64 {
        if skep_env::now() - self.looked_at.get() > SPACE_VALID {
            self.look();
        }
        self.estimate()
    }

    fn estimate(&self) -> u64 {
        let found = self.found.get();
        // A negative estimate becomes zero, so the target counts as full. The estimate can be
        // negative, since other programs also use the file system.
        found
            .free_bytes
            .saturating_sub(reserve(found.total_bytes))
            .saturating_sub(self.written_since.get())
    }

    /// Checks whether there is space for `bytes` more bytes. If there is enough space, counts these
    /// bytes as written.
    pub(crate) fn admit(&self, bytes: u64) -> FreeSpace {
        let mut free = self.free_bytes();
        if free < bytes.saturating_add(SCARCE_BYTES) {
            self.look();
            free = self.estimate();
        }
        if free < bytes {
            return FreeSpace::None;
        }
        self.written_since.set(self.written_since.get() + bytes);
        if free - bytes < SCARCE_BYTES { FreeSpace::Scarce } else { FreeSpace::Plenty }
    }
}

/// Returns the number of bytes that stay free for the target's own records in a file system of
/// `total_bytes` bytes.
pub(crate) fn reserve(total_bytes: u64) -> u64 {
    (total_bytes / RESERVE_DIVISOR).min(MAX_RESERVE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_write_refused_for_lack_of_space_is_reported_once() {
        let scratch = tempfile::tempdir().unwrap();
        let gauge = SpaceGauge::new(scratch.path()).unwrap();
        assert!(!gauge.take_refusal(), "no write was refused");
        let second = Duration::from_secs(1);
        assert_eq!(gauge.note_refusal(second), Some(1));
        assert!(gauge.take_refusal());
        assert!(!gauge.take_refusal());
        assert_eq!(gauge.note_refusal(second), None, "no line is due");
        assert!(gauge.take_refusal(), "a refusal without a log line is reported too");
    }

    #[test]
    fn end_of_full_state_is_logged_if_its_begin_was_logged() {
        let scratch = tempfile::tempdir().unwrap();
        let gauge = SpaceGauge::new(scratch.path()).unwrap();
        let at = Duration::from_secs;
        assert_eq!(gauge.end_of_full(at(1)), None, "no write was refused");
        assert_eq!(gauge.note_refusal(at(1)), Some(1));
        assert_eq!(gauge.note_refusal(at(9)), None);
        // Simulates that other programs have filled the disk. The gauge uses the simulated value
        // for one second.
        gauge.written_since.set(u64::MAX);
        gauge.looked_at.set(skep_env::now());
        assert_eq!(gauge.end_of_full(at(10)), None, "the target is still full");
        gauge.written_since.set(0);
        let (full_for, free) = gauge.end_of_full(at(18)).expect("the target has space again");
        assert_eq!((full_for, free > 0), (at(17), true));
        assert_eq!(gauge.end_of_full(at(19)), None);
        assert_eq!(gauge.note_refusal(at(20)), None, "no line is due");
        assert_eq!(gauge.end_of_full(at(21)), None, "the log has no line about the full disk");
    }
}
