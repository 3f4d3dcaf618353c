//! Measures the free space of a target's disk at intervals, and reports the result to the target as
//! an event.

use crate::limits::{
    FREE_SPACE_LOG_BYTES, FREE_SPACE_VALID, FULL_BYTES, RESERVE_BYTES, RESERVE_DIVISOR,
    RESERVE_INODES,
};
use crate::target::Event;
use skep_env::{Space, space};
use skep_types::{Error, ErrorCode, TargetId};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Measures the free space of the file system on which a target stores its data.
#[derive(Debug)]
pub(crate) struct FreeSpaceGauge {
    target: TargetId,
    directory: PathBuf,
    looked_at: Option<Duration>,
    logged_since: u64,
    is_short: bool,
    is_low: bool,
}

impl FreeSpaceGauge {
    /// Creates a gauge that has not measured the free space yet.
    pub(crate) fn new(target: TargetId, directory: &Path) -> Self {
        let directory = directory.to_owned();
        Self { target, directory, looked_at: None, logged_since: 0, is_short: false, is_low: false }
    }

    /// Adds `bytes` to the number of bytes that the target has logged since the last measurement.
    /// After [`FREE_SPACE_LOG_BYTES`], the next call of [`Self::look`] measures, even if the last
    /// measurement is recent.
    pub(crate) fn logged(&mut self, bytes: u64) {
        self.logged_since += bytes;
    }

    /// Whether less than twice the reserve was free at the last measurement. If so, the log keeps
    /// no records that only absent members need.
    pub(crate) fn is_low(&self) -> bool {
        self.is_low
    }

    /// Measures the free space if a measurement is due, and returns the result as an event for the
    /// target. `None` means that the previous measurement is still valid, or that the new
    /// measurement has failed.
    pub(crate) fn look(&mut self, now: Duration) -> Option<Event> {
        let is_fresh = self.looked_at.is_some_and(|at| now < at + FREE_SPACE_VALID);
        if is_fresh && self.logged_since < FREE_SPACE_LOG_BYTES {
            return None;
        }
        self.looked_at = Some(now);
        self.logged_since = 0;
        // If the measurement fails, the target continues with the result of the previous
        // measurement.
        let found = space(&self.directory).ok()?;
        self.is_low = found.free_bytes < 2 * reserve(found.total_bytes);
        let shortage = is_short(&found).then(|| self.shortage(&found));
        match &shortage {
            Some(what) if !self.is_short => tracing::error!("{what}"),
            None if self.is_short => {
                tracing::info!("target {} has free space again, and accepts new data", self.target)
            }
            _ => {}
        }
        self.is_short = shortage.is_some();
        Some(Event::FreeSpace { shortage })
    }

    fn shortage(&self, found: &Space) -> String {
        format!(
            "target {} cannot take new data: only {} MiB and {} inodes are free on the disk under \
             {}; delete files, or free up space on that disk",
            self.target,
            found.free_bytes >> 20,
            found.free_inodes,
            self.directory.display()
        )
    }

    /// If the disk is full, adds advice on how to free space to an error of the log or the store.
    /// The error itself may not mention the full disk, because fjall reports the cause only once,
    /// in one of its own threads.
    pub(crate) fn explain(&self, error: Error) -> Error {
        let is_of_disk = matches!(
            error.code(),
            ErrorCode::NoSpace | ErrorCode::QuotaExceeded | ErrorCode::DeviceFailed | ErrorCode::Io
        );
        let is_full = space(&self.directory).is_ok_and(|found| found.free_bytes < FULL_BYTES);
        if !is_of_disk || !(is_full || error.code() == ErrorCode::NoSpace) {
            return error;
        }
        let what = format!(
            "cannot write the log or the store: the disk under {} is full; free up space on this \
             disk. The service then continues by itself within a minute; if it has ended, start it \
             again. No acknowledged change is lost ({})",
            self.directory.display(),
            error.context()
        );
        Error::new(ErrorCode::NoSpace, what)
    }
}

fn is_short(found: &Space) -> bool {
    let few_inodes = found.total_inodes > 0 && found.free_inodes < RESERVE_INODES;
    found.free_bytes < reserve(found.total_bytes) || few_inodes
}

/// Returns how many bytes of a file system with `total_bytes` are reserved for requests that free
/// space or end something, such as unlink and close.
pub(crate) fn reserve(total_bytes: u64) -> u64 {
    (total_bytes / RESERVE_DIVISOR).min(RESERVE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gauge() -> FreeSpaceGauge {
        FreeSpaceGauge::new(TargetId::new(7), Path::new("/"))
    }

    #[test]
    fn disk_is_almost_full_below_the_reserve_or_with_few_inodes() {
        let total_bytes = 100 << 30;
        let enough =
            Space { total_bytes, free_bytes: RESERVE_BYTES, total_inodes: 0, free_inodes: 0 };
        assert!(!is_short(&enough));
        assert!(is_short(&Space { free_bytes: RESERVE_BYTES - 1, ..enough }));
        assert!(!is_short(&Space { total_bytes: 1 << 30, free_bytes: 128 << 20, ..enough }));
        assert!(is_short(&Space { total_inodes: 1000, free_inodes: 255, ..enough }));
    }

    #[test]
    fn measurement_of_free_space_expires_by_age_or_log_growth() {
        let (mut gauge, at) = (gauge(), Duration::from_secs(1));
        assert!(gauge.look(at).is_some());
        assert!(gauge.look(at + FREE_SPACE_VALID / 2).is_none());
        gauge.logged(FREE_SPACE_LOG_BYTES);
        assert!(gauge.look(at + FREE_SPACE_VALID / 2).is_some());
        assert!(gauge.look(at + FREE_SPACE_VALID).is_none());
        assert!(gauge.look(at + 2 * FREE_SPACE_VALID).is_some());
    }

    #[test]
    fn error_on_a_full_disk_names_the_disk_and_the_fix() {
        let full = gauge().explain(Error::new(ErrorCode::NoSpace, "log /x: full"));
        assert!(full.context().contains("free up space") && full.context().contains("log /x"));
        let other = gauge().explain(Error::new(ErrorCode::Corrupt, "log /x: damaged"));
        assert_eq!(other.code(), ErrorCode::Corrupt);
        assert_eq!(other.context(), "log /x: damaged");
    }
}
