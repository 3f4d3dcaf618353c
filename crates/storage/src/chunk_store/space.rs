//! Estimates the free space of a target without a system call per write.

use crate::limits::{
    FULL_LOG_INTERVAL, MAX_RESERVE_BYTES, RESERVE_DIVISOR, SCARCE_BYTES, SPACE_VALID,
};
use skep_env::{Space, space};
use skep_types::{Error, Result};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Whether there is enough free space for a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FreeSpace {
    /// There is enough space, even for concurrent writes.
    Plenty,
    /// There is enough space now, but the write must reserve it before it writes data.
    Scarce,
    /// The target is full. A write may only overwrite space that is already allocated.
    None,
}

/// The free space at the last `statvfs`, and the number of bytes written since then.
#[derive(Debug)]
pub(crate) struct SpaceGauge {
    path: PathBuf,
    looked_at: Cell<Duration>,
    found: Cell<Space>,
    written_since: Cell<u64>,
    refused_writes: RefusedWrites,
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
            refused_writes: RefusedWrites::default(),
        })
    }

    /// Returns the writes that the target has refused because it is full.
    pub(crate) fn refused_writes(&self) -> &RefusedWrites {
        &self.refused_writes
    }

    fn look(&self) {
        // After an error, the old value stays, and later writes are still subtracted from this
        // value.
        if let Ok(found) = space(&self.path) {
            self.found.set(found);
            self.written_since.set(0);
        }
        self.looked_at.set(skep_env::now());
    }

    /// Returns the free space for clients in bytes.
    pub(crate) fn free_bytes(&self) -> u64 {
        if skep_env::now() - self.looked_at.get() > SPACE_VALID {
            self.look();
        }
        self.estimate()
    }

    fn estimate(&self) -> u64 {
        let found = self.found.get();
        // A negative estimate counts as a full target. It is possible, since other programs also
        // use the file system.
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

/// The writes that a target has refused because it is full, and the log lines about these writes.
#[derive(Debug, Default)]
pub(crate) struct RefusedWrites {
    /// Number of refused writes since the last log line.
    count: Cell<u64>,
    last_line: Cell<Option<Duration>>,
}

impl RefusedWrites {
    /// Counts a refused write. If a log line is due, returns the number of refused writes since the
    /// last line. A line is due for the first refusal, and then at most once in an interval.
    pub(crate) fn count(&self, now: Duration) -> Option<u64> {
        self.count.set(self.count.get() + 1);
        let last = self.last_line.get();
        if last.is_some_and(|last| now.saturating_sub(last) < FULL_LOG_INTERVAL) {
            return None;
        }
        self.last_line.set(Some(now));
        Some(self.count.take())
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
    fn refused_writes_are_logged_once_in_an_interval() {
        let refused = RefusedWrites::default();
        let at = |seconds: u64| refused.count(Duration::from_secs(100 + seconds));
        assert_eq!(at(0), Some(1));
        assert_eq!(at(1), None);
        assert_eq!(at(59), None);
        assert_eq!(at(60), Some(3));
    }
}
