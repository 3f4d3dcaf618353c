//! Segments whose changes are in the store: which of them the log keeps for absent members of its
//! group, and the removal of the other segments.
//!
//! A call removes only a few segments, because the thread that serves requests must wait while the
//! file system frees their space. So the caller calls [`Log::keep`] repeatedly.
//!
//! # Crash rule
//! The oldest segment is removed first, so that the remaining segments are consecutive. The caller
//! names only records whose changes are in the store on the device, so no removed segment is needed
//! after a power loss.
//!
//! The segment with the last of these records stays, although its changes are in the store. By the
//! epoch of this record, a member detects that its group has other changes under the same LSN.

use super::{Log, at, segment_path};
use skep_types::{Lsn, Result};

/// Maximum number of segments that one call removes.
const REMOVED_AT_ONCE: usize = 2;

impl Log {
    /// Removes segments that end before the record `lsn`, except segments that the log keeps for
    /// absent members. The caller's store has the changes of all records up to `lsn`. The last
    /// segment always stays.
    ///
    /// # Errors
    /// Errors of the file system, which name the path.
    pub fn trim(&mut self, lsn: Lsn) -> Result<()> {
        self.not_needed = self.not_needed.max(lsn);
        self.remove_old()
    }

    /// Sets how many bytes of segments without a needed record the log keeps. Removes segments if
    /// the log has more.
    ///
    /// # Errors
    /// Errors of the file system, which name the path.
    pub fn keep(&mut self, bytes: u64) -> Result<()> {
        if bytes == self.kept_bytes && !self.has_excess {
            return Ok(());
        }
        self.kept_bytes = bytes;
        self.remove_old()
    }

    /// Whether the log has segments at its beginning that end before the record `lsn`.
    pub fn has_old_segments(&self, lsn: Lsn) -> bool {
        self.old_count(lsn) > 0
    }

    fn old_count(&self, lsn: Lsn) -> usize {
        self.segments.iter().skip(1).take_while(|first| **first <= lsn).count()
    }

    /// Removes the oldest segments without a needed record, while these segments have more than
    /// `kept_bytes` bytes.
    fn remove_old(&mut self) -> Result<()> {
        let (mut bytes, mut excess) = (0, self.old_count(self.not_needed));
        while excess > 0 {
            let path = segment_path(&self.directory, self.segments[excess - 1]);
            bytes += std::fs::metadata(&path).map_err(at(&path))?.len();
            if bytes > self.kept_bytes {
                break;
            }
            excess -= 1;
        }
        self.has_excess = excess > REMOVED_AT_ONCE;
        for _ in 0..excess.min(REMOVED_AT_ONCE) {
            let path = segment_path(&self.directory, self.segments[0]);
            std::fs::remove_file(&path).map_err(at(&path))?;
            self.segments.remove(0);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::SEGMENT_BYTES;
    use skep_format::log::LogOwner;
    use skep_types::{ClusterId, Epoch, TargetId};
    use std::path::Path;

    const OWNER: LogOwner = LogOwner { cluster: ClusterId::new([7; 16]), target: TargetId::new(1) };

    /// Makes a log with five segments of four records.
    fn log_of_five_segments(path: &Path) -> Log {
        let mut log = Log::open(path, OWNER, Lsn::new(1)).unwrap().log;
        let payload = vec![7; SEGMENT_BYTES as usize / 4];
        for lsn in 1..=20 {
            log.append(Epoch::new(1), Lsn::new(lsn), Lsn::new(lsn - 1), &payload).unwrap();
        }
        log
    }

    fn firsts(log: &Log) -> Vec<u64> {
        log.segments.iter().map(|it| it.raw()).collect()
    }

    #[test]
    fn log_keeps_the_newest_unneeded_segments_up_to_a_size() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = log_of_five_segments(directory.path());
        log.keep(2 * SEGMENT_BYTES + 4096).unwrap();
        log.trim(Lsn::new(18)).unwrap();
        assert_eq!(firsts(&log), [9, 13, 17]);
        log.keep(SEGMENT_BYTES + 4096).unwrap();
        assert_eq!(firsts(&log), [13, 17]);
        log.keep(0).unwrap();
        assert_eq!(firsts(&log), [17]);
    }

    /// Hole H195 in `docs/tests/holes.md`. The store of a member ends with the last record of a
    /// segment. Without the epoch of this record, the member could not detect that its group has
    /// another record with the same LSN.
    #[test]
    fn log_keeps_the_last_record_that_the_store_has() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = log_of_five_segments(directory.path());
        log.trim(Lsn::new(8)).unwrap();
        assert_eq!(firsts(&log), [5, 9, 13, 17]);
        drop(log);
        let recovered = Log::open(directory.path(), OWNER, Lsn::new(9)).unwrap();
        assert!(recovered.records.iter().any(|record| record.lsn == Lsn::new(8)));
    }

    #[test]
    fn each_clean_up_removes_a_limited_number_of_log_segments() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = log_of_five_segments(directory.path());
        assert!(log.has_old_segments(Lsn::new(5)) && !log.has_old_segments(Lsn::new(4)));
        log.trim(Lsn::new(20)).unwrap();
        assert_eq!(firsts(&log), [9, 13, 17]);
        log.keep(0).unwrap();
        assert_eq!(firsts(&log), [17], "the next call removes the other segments");
    }
}
