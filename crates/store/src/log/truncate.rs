//! Removes the last records of a log. A member of a group must remove records that an earlier
//! primary has created if a later primary has created other records with the same LSNs.
//!
//! Does not decide which records to remove.
//!
//! # Crash rule
//! The removal is durable before the caller appends again. Otherwise a power loss could bring back
//! old records behind new records. A reader would report such a log as damaged, because an old
//! record may contain the LSN of a synced record that the new log does not have. The last segment
//! is removed first, so that the remaining segments are consecutive after a power loss.

use super::segments::offset_after;
use super::{Log, at, open_segment, segment_path};
use crate::atomic::sync_directory;
use skep_format::log::scan;
use skep_types::{Error, ErrorCode, Lsn, Result};

impl Log {
    /// Removes the records after `last`, durably. Blocks. No sync of the log may be running.
    ///
    /// # Errors
    /// - `Corrupt` if the log begins after the record that follows `last`.
    /// - `DeviceFailed` or another error of the file system, which names the path. After this
    ///   error, the caller must not use the log again.
    pub fn truncate(&mut self, last: Lsn) -> Result<()> {
        if self.segments[0].raw() > last.raw() + 1 {
            let what = format!(
                "cannot remove the records after {last} from log {}: the log begins with record {}",
                self.directory.display(),
                self.segments[0]
            );
            return Err(Error::new(ErrorCode::Corrupt, what));
        }
        while self.segments.len() > 1 && self.segments[self.segments.len() - 1] > last {
            let path = segment_path(&self.directory, self.segments[self.segments.len() - 1]);
            std::fs::remove_file(&path).map_err(at(&path))?;
            sync_directory(&self.directory)?;
            self.segments.pop();
        }
        let first = self.segments[self.segments.len() - 1];
        let path = segment_path(&self.directory, first);
        let bytes = std::fs::read(&path).map_err(at(&path))?;
        let found = scan(self.owner, first, &bytes)
            .map_err(|error| error.within(format_args!("cannot read log {}", path.display())))?;
        let end = offset_after(&found.records, last) as u64;
        self.file = open_segment(&path)?;
        let file = self.file.borrow_std();
        file.set_len(end).and_then(|()| file.sync_all()).map_err(|error| self.unsynced(error))?;
        (self.offset, self.allocated, self.allocate_at, self.zeros_end) = (end, end, end, end);
        self.segment_ends_at = super::SEGMENT_BYTES;
        self.allocate_ahead(0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Recovered;
    use skep_format::log::LogOwner;
    use skep_types::{ClusterId, Epoch, TargetId};
    use std::path::Path;

    const OWNER: LogOwner = LogOwner { cluster: ClusterId::new([7; 16]), target: TargetId::new(1) };

    fn open(path: &Path) -> Recovered {
        Log::open(path, OWNER, Lsn::new(1)).unwrap()
    }

    /// Appends records of an epoch, each with the length of an eighth of a segment. Each record
    /// names the previous record as synced.
    fn append(log: &mut Log, epoch: u64, numbers: std::ops::RangeInclusive<u64>) {
        for lsn in numbers {
            let payload = vec![epoch as u8; super::super::SEGMENT_BYTES as usize / 8];
            log.append(Epoch::new(epoch), Lsn::new(lsn), Lsn::new(lsn - 1), &payload).unwrap();
        }
    }

    fn epochs(path: &Path) -> Vec<u64> {
        open(path).records.iter().map(|record| record.epoch.raw()).collect()
    }

    #[test]
    fn log_truncated_in_any_segment_continues_with_new_records() {
        for last in [0, 1, 7, 8, 9, 16, 19, 20] {
            let directory = tempfile::tempdir().unwrap();
            let mut log = open(directory.path()).log;
            append(&mut log, 1, 1..=20);
            log.truncate(Lsn::new(last)).unwrap();
            log.check_invariants();
            append(&mut log, 2, last + 1..=last + 2);
            let kept = std::iter::repeat_n(1, last as usize);
            let expected: Vec<u64> = kept.chain([2, 2]).collect();
            assert_eq!(epochs(directory.path()), expected, "after record {last}");
        }
    }

    /// A removed record must not appear again behind a new record, because the removed record may
    /// name as synced a record that no longer exists.
    #[test]
    fn truncated_log_has_no_bytes_of_the_removed_records() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = open(directory.path()).log;
        append(&mut log, 1, 1..=5);
        log.truncate(Lsn::new(3)).unwrap();
        drop(log);
        let length = std::fs::metadata(segment_path(directory.path(), Lsn::new(1))).unwrap().len();
        let Recovered { records, truncated_bytes, .. } = open(directory.path());
        let whole: usize = offset_after(&records, Lsn::new(3));
        assert_eq!((records.len(), length - truncated_bytes), (3, whole as u64));
        assert_eq!(epochs(directory.path()), [1, 1, 1]);
    }

    #[test]
    fn truncation_to_a_record_before_the_log_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = Log::open(directory.path(), OWNER, Lsn::new(10)).unwrap().log;
        append(&mut log, 1, 10..=11);
        assert_eq!(log.truncate(Lsn::new(8)).unwrap_err().code(), ErrorCode::Corrupt);
        log.truncate(Lsn::new(9)).unwrap();
        assert_eq!(open(directory.path()).records, []);
    }
}
