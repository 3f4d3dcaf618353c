//! Reads old records of an open log from its segment files, while the owner of the log appends new
//! records.
//!
//! A primary reads back old records for a member of its group that lacks more records than the
//! primary has in memory. The reader has a view of the log's segments ([`LogView`]), and opens the
//! files itself. So neither the log nor its owner waits for the reader. If the log removes a
//! segment meanwhile, the reader reports where the log begins then.
//!
//! The caller chooses the records. A read detects damage only in the records that it reads.

use super::{at, preceding, segment_path};
use crate::log::Log;
use skep_env::{Buf, File};
use skep_format::log::{
    LogOwner, MAX_PAYLOAD_BYTES, RECORD_HEADER_BYTES, Record, Scan, complete_records,
};
use skep_types::{Error, ErrorCode, Lsn, Result};
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

/// Number of bytes that one read of a segment file requests.
const READ_BYTES: usize = 1 << 20;
/// Maximum number of bytes that one read requests. The longest record has this length.
const LONGEST_READ_BYTES: usize = RECORD_HEADER_BYTES + MAX_PAYLOAD_BYTES;

/// The segments of a log at one moment.
#[derive(Debug, Clone)]
pub struct LogView {
    directory: PathBuf,
    owner: LogOwner,
    segments: Vec<Lsn>,
    /// End of the last record in the last segment.
    end: u64,
}

/// A position in a log at which the next read can begin, so that it need not read the segment from
/// its start.
#[derive(Debug, Clone, Copy)]
pub struct LogPlace {
    segment: Lsn,
    next: Lsn,
    offset: u64,
}

impl LogPlace {
    /// Returns the LSN of the record at this position.
    pub fn lsn(&self) -> Lsn {
        self.next
    }
}

/// The records that a read has found.
#[derive(Debug)]
pub struct ReadBack {
    /// LSN of the log's first record at the time of the view, or a later LSN if the read
    /// found that the log has removed segments.
    pub begins: Lsn,
    /// The records from the requested one on. Empty if the log begins after the requested record.
    pub records: Vec<Record>,
    /// Number of bytes of the log after these records, at the time of the view.
    pub bytes_after: u64,
    /// The position of the last record, at which a later read can begin.
    pub place: Option<LogPlace>,
}

/// The state of a read.
struct Found {
    wanted: WantedRecords,
    records: Vec<Record>,
    bytes: usize,
    is_full: bool,
    /// The position of the next record.
    place: LogPlace,
    /// The position of the last record in `records`.
    last_place: Option<LogPlace>,
}

impl Found {
    fn new(wanted: WantedRecords, place: LogPlace) -> Self {
        Self { wanted, records: Vec::new(), bytes: 0, is_full: false, place, last_place: None }
    }

    fn is_complete(&self) -> bool {
        self.is_full || self.place.next > self.wanted.last
    }

    /// Adds the records up to `last`, as far as they fit.
    fn add(&mut self, records: Vec<Record>, last: Lsn) {
        for record in records.into_iter().take_while(|it| it.lsn <= last) {
            let size = RECORD_HEADER_BYTES + record.payload.len();
            self.is_full = self.records.len() >= 2 && self.bytes + size > self.wanted.bytes;
            if self.is_full {
                return;
            }
            let place = self.place;
            self.place.next = Lsn::new(record.lsn.raw() + 1);
            self.place.offset += size as u64;
            if record.lsn >= self.wanted.first {
                self.bytes += size;
                self.records.push(record);
                self.last_place = Some(place);
            }
        }
    }
}

/// The records that a caller requests.
#[derive(Debug, Clone, Copy)]
pub struct WantedRecords {
    /// LSN of the first record.
    pub first: Lsn,
    /// LSN of the last record. The log must have this record, and must not truncate it during
    /// the read.
    pub last: Lsn,
    /// Maximum number of bytes of records in the result. The read exceeds this number if it could
    /// otherwise return fewer than two records.
    pub bytes: usize,
}

impl Log {
    /// Returns the current segments of the log, for [`LogView::read`].
    pub fn view(&self) -> LogView {
        LogView {
            directory: self.directory.clone(),
            owner: self.owner,
            segments: self.segments.clone(),
            end: self.offset,
        }
    }
}

impl LogView {
    /// Reads records back. `place` is the position that an earlier read has returned, if there was
    /// one.
    ///
    /// # Errors
    /// - `Corrupt`, which names file and offset, if a record is missing or damaged.
    /// - Errors of the file system, which name the path.
    pub async fn read(&self, wanted: WantedRecords, place: Option<LogPlace>) -> Result<ReadBack> {
        let index = self.segments.partition_point(|first| *first <= wanted.first);
        let Some(mut index) = index.checked_sub(1) else { return Ok(self.nothing(0)) };
        let segment = self.segments[index];
        let is_usable = |it: &LogPlace| it.segment == segment && it.next <= wanted.first;
        let begin = LogPlace { segment, next: segment, offset: 0 };
        let mut found = Found::new(wanted, place.filter(is_usable).unwrap_or(begin));
        loop {
            let next_segment = self.segments.get(index + 1).copied();
            let last = next_segment.map_or(wanted.last, preceding).min(wanted.last);
            if !self.read_segment(&mut found, last).await? {
                return Ok(self.nothing(index + 1));
            }
            let Some(segment) = next_segment.filter(|_| !found.is_complete()) else { break };
            found.place = LogPlace { segment, next: segment, offset: 0 };
            index += 1;
        }
        let bytes_after = self.bytes_after(index, found.place.offset);
        let (begins, records, place) = (self.segments[0], found.records, found.last_place);
        Ok(ReadBack { begins, records, bytes_after, place })
    }

    /// Reads the records of one segment up to `last`. Returns `false` if the log has removed the
    /// segment.
    async fn read_segment(&self, found: &mut Found, last: Lsn) -> Result<bool> {
        let path = segment_path(&self.directory, found.place.segment);
        let file = match File::open(&path, OpenOptions::new().read(true)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            opened => opened.map_err(at(&path))?,
        };
        while found.place.next <= last && !found.is_complete() {
            let scan = self.read_some(&file, &path, found.place).await?;
            found.add(scan.records, last);
        }
        Ok(true)
    }

    /// Reads the complete records in the next bytes of a segment. Returns at least one record, or
    /// an error if the next record is missing or damaged.
    async fn read_some(&self, file: &File, path: &Path, place: LogPlace) -> Result<Scan> {
        let mut wanted = READ_BYTES;
        loop {
            let buf = Buf::new(wanted);
            let count = file.read_at(buf.clone(), place.offset).await.map_err(at(path))?;
            let found = complete_records(self.owner, place.next, &buf.bytes()[..count]);
            if !found.records.is_empty() {
                return Ok(found);
            }
            if count < wanted || wanted >= LONGEST_READ_BYTES {
                let (next, offset) = (place.next, place.offset);
                let what = format!(
                    "cannot read record {next} at byte {offset} of log {}: the record is missing \
                     or damaged",
                    path.display()
                );
                return Err(Error::new(ErrorCode::Corrupt, what));
            }
            wanted = LONGEST_READ_BYTES;
        }
    }

    /// Returns the result of a read whose records the log no longer has. `index` is the first
    /// segment that the log still has.
    fn nothing(&self, index: usize) -> ReadBack {
        let begins = self.segments[index.min(self.segments.len() - 1)];
        ReadBack { begins, records: Vec::new(), bytes_after: 0, place: None }
    }

    /// Returns the number of bytes of the log after an offset in the segment `index`. Ignores
    /// segments whose length is not known, because they were removed meanwhile.
    fn bytes_after(&self, index: usize, offset: u64) -> u64 {
        let last = self.segments.len() - 1;
        let length = |at: usize| {
            let path = segment_path(&self.directory, self.segments[at]);
            std::fs::metadata(path).map_or(0, |it| it.len())
        };
        let lengths = (index..last).map(length);
        (lengths.sum::<u64>() + self.end).saturating_sub(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{ClusterId, Epoch, TargetId};

    const OWNER: LogOwner = LogOwner { cluster: ClusterId::new([7; 16]), target: TargetId::new(1) };

    /// Appends records whose payloads have `bytes` bytes.
    fn filled(path: &Path, count: u64, bytes: usize) -> Log {
        let mut log = Log::open(path, OWNER, Lsn::new(1)).unwrap().log;
        for lsn in 1..=count {
            let payload = vec![lsn as u8; bytes];
            log.append(Epoch::new(1), Lsn::new(lsn), Lsn::new(lsn - 1), &payload).unwrap();
        }
        log
    }

    fn wanted(first: u64, last: u64, bytes: usize) -> WantedRecords {
        WantedRecords { first: Lsn::new(first), last: Lsn::new(last), bytes }
    }

    /// Reads all records from `first` to `last` with as many reads as are necessary. Returns the
    /// number of reads.
    async fn read_all(log: &Log, (first, last): (u64, u64), bytes: usize) -> Result<usize> {
        let (mut next, mut place, mut reads) = (first, None, 0);
        while next <= last {
            let found = log.view().read(wanted(next, last, bytes), place).await?;
            assert!(!found.records.is_empty(), "record {next}");
            for record in found.records {
                assert_eq!(record.lsn.raw(), next);
                assert!(record.payload.iter().all(|it| *it == next as u8));
                next += 1;
            }
            place = found.place;
            reads += 1;
        }
        Ok(reads)
    }

    #[test]
    fn records_of_several_segments_are_read_back_in_small_parts() {
        let directory = tempfile::tempdir().unwrap();
        let log = filled(directory.path(), 15, 3 << 20);
        assert_eq!(log.segments.len(), 2);
        let reads = skep_env::block_on(async move {
            let from_the_middle = read_all(&log, (7, 15), 10 << 20).await.unwrap();
            let two_by_two = read_all(&log, (1, 13), 1).await.unwrap();
            (from_the_middle, two_by_two)
        });
        assert_eq!(reads.unwrap(), (3, 7), "each read returns three or two records");
    }

    #[test]
    fn next_read_does_not_read_earlier_records_again() {
        let directory = tempfile::tempdir().unwrap();
        let log = filled(directory.path(), 9, 100);
        let read = async move {
            let first = log.view().read(wanted(1, 9, 1), None).await.unwrap();
            assert_eq!(first.records.len(), 2);
            let path = segment_path(&log.directory, Lsn::new(1));
            let mut bytes = std::fs::read(&path).unwrap();
            bytes[60] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            log.view().read(wanted(2, 9, 1), first.place).await.unwrap().records
        };
        let numbers: Vec<_> =
            skep_env::block_on(read).unwrap().iter().map(|it| it.lsn.raw()).collect();
        assert_eq!(numbers, [2, 3], "the damaged first record is not read again");
    }

    #[test]
    fn log_reader_counts_the_bytes_after_its_position() {
        let directory = tempfile::tempdir().unwrap();
        let log = filled(directory.path(), 15, 3 << 20);
        let record = (RECORD_HEADER_BYTES + (3 << 20)) as u64;
        let read =
            async move { log.view().read(wanted(5, 15, 1), None).await.unwrap().bytes_after };
        assert_eq!(skep_env::block_on(read).unwrap(), 9 * record);
    }

    #[test]
    fn read_of_removed_records_names_the_first_record_of_the_log() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = filled(directory.path(), 15, 3 << 20);
        let view = log.view();
        log.trim(Lsn::new(14)).unwrap();
        let begins = log.view().segments[0];
        assert!(begins.raw() > 1);
        let read = async move {
            let now = log.view().read(wanted(1, 15, 1), None).await.unwrap();
            let before = view.read(wanted(1, 15, 1), None).await.unwrap();
            (now, before)
        };
        let (now, before) = skep_env::block_on(read).unwrap();
        assert_eq!((now.begins, now.records.len()), (begins, 0));
        let what = "the file was removed after the view was made";
        assert_eq!((before.begins, before.records.len()), (begins, 0), "{what}");
    }

    #[test]
    fn damaged_record_is_reported_with_its_lsn() {
        let directory = tempfile::tempdir().unwrap();
        let log = filled(directory.path(), 5, 100);
        let path = segment_path(directory.path(), Lsn::new(1));
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[3 * (RECORD_HEADER_BYTES + 100) + 60] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let read = async move { read_all(&log, (1, 5), 1 << 20).await.unwrap_err() };
        let error = skep_env::block_on(read).unwrap();
        assert_eq!(error.code(), ErrorCode::Corrupt);
        assert!(error.context().contains("record lsn4"), "{error}");
    }
}
