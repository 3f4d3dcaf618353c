//! The simulated disk of a metadata target's log: bytes in segments. A power loss loses some of the
//! bytes that were not synced.
//!
//! # State after a power loss
//! A power loss keeps all bytes that a finished sync covered. Of the other bytes, the disk keeps a
//! random set of 512-byte sectors. In place of a lost sector, the segment contains zeros, or the
//! segment ends before this sector. A kill of the process loses no bytes.

use crate::random::Random;
use skep_format::log::{
    LogOwner, RECORD_HEADER_BYTES, Record, complete_records, encode_record, scan,
};
use skep_types::{Epoch, Error, ErrorCode, Lsn, Result};

const SECTOR: usize = 512;

#[derive(Debug)]
struct Segment {
    first: Lsn,
    bytes: Vec<u8>,
    /// Number of durable bytes at the start of the segment.
    synced: usize,
}

/// The bytes that a sync covers: for each segment, the LSN of its first record, and its length when
/// the sync began.
#[derive(Debug, Clone)]
pub(crate) struct SyncPoint(Vec<(Lsn, usize)>);

/// The simulated disk of a metadata target's log.
#[derive(Debug)]
pub(crate) struct LogDisk {
    owner: LogOwner,
    segments: Vec<Segment>,
    segment_bytes: usize,
    /// LSN of the last record that the caller of [`Self::trim`] no longer needs. The caller also
    /// needs no earlier record.
    not_needed: Lsn,
    /// Maximum number of bytes that the log keeps in segments without a needed record.
    kept_bytes: usize,
}

impl LogDisk {
    /// Creates an empty log. A segment ends when it has about `segment_bytes` bytes.
    pub(crate) fn new(owner: LogOwner, segment_bytes: usize) -> Self {
        let (segments, not_needed, kept_bytes) = (Vec::new(), Lsn::default(), 0);
        Self { owner, segments, segment_bytes, not_needed, kept_bytes }
    }

    /// Appends a record.
    ///
    /// # Errors
    /// `TooLarge` if the record exceeds the maximum length that readers accept.
    pub(crate) fn append(
        &mut self,
        epoch: Epoch,
        lsn: Lsn,
        synced: Lsn,
        payload: &[u8],
    ) -> Result<()> {
        let record = encode_record(self.owner, epoch, lsn, synced, payload)?;
        let is_full = |segment: &Segment| segment.bytes.len() >= self.segment_bytes;
        if self.segments.last().is_none_or(is_full) {
            self.segments.push(Segment { first: lsn, bytes: Vec::new(), synced: 0 });
        }
        if let Some(segment) = self.segments.last_mut() {
            segment.bytes.extend(record);
        }
        Ok(())
    }

    /// Begins a sync, which covers all bytes that were written before.
    pub(crate) fn begin_sync(&self) -> SyncPoint {
        SyncPoint(self.segments.iter().map(|it| (it.first, it.bytes.len())).collect())
    }

    /// Finishes a sync. From now on, no power loss affects the bytes that the sync covers.
    pub(crate) fn end_sync(&mut self, point: &SyncPoint) {
        for (first, len) in &point.0 {
            if let Some(segment) = self.segments.iter_mut().find(|it| it.first == *first) {
                // The segment may be shorter than at the start of the sync, because a planted bug
                // removes records during a sync.
                segment.synced = segment.synced.max(*len).min(segment.bytes.len());
            }
        }
    }

    /// Removes segments that contain no record after `lsn`, the oldest first, until at most
    /// `kept_bytes` bytes of these segments are left. Never removes the last segment of the log.
    pub(crate) fn trim(&mut self, lsn: Lsn) {
        self.not_needed = self.not_needed.max(lsn);
        self.remove_old();
    }

    /// Sets how many bytes of segments without a needed record the log keeps.
    pub(crate) fn keep(&mut self, bytes: usize) {
        self.kept_bytes = bytes;
        self.remove_old();
    }

    fn remove_old(&mut self) {
        let next = self.not_needed.raw() + 1;
        let old = self.segments.iter().skip(1).take_while(|it| it.first.raw() <= next).count();
        let mut bytes: usize = self.segments[..old].iter().map(|it| it.bytes.len()).sum();
        while bytes > self.kept_bytes {
            bytes -= self.segments.remove(0).bytes.len();
        }
    }

    /// Reads the records from `first` to `last`, but at most `most` records. Returns the LSN of the
    /// log's first record, the records, and the number of log bytes after these records. Returns no
    /// records if the log begins after `first`.
    pub(crate) fn read_back(&self, first: Lsn, last: Lsn, most: usize) -> (Lsn, Vec<Record>, u64) {
        let begins = self.segments.first().map(|it| it.first).unwrap_or_default();
        let read = |it: &Segment| complete_records(self.owner, it.first, &it.bytes).records;
        let all = self.segments.iter().flat_map(read);
        let (mut records, mut bytes_after) = (Vec::new(), 0);
        for record in all.filter(|it| begins <= first && first <= it.lsn) {
            if record.lsn <= last && records.len() < most {
                records.push(record);
            } else {
                bytes_after += (RECORD_HEADER_BYTES + record.payload.len()) as u64;
            }
        }
        (begins, records, bytes_after)
    }

    /// Returns the records from `first` to `last` that the log has. Reads only the segment with
    /// `first` and later segments.
    pub(crate) fn records_within(&self, first: Lsn, last: Lsn) -> Vec<Record> {
        let skipped = self.segments.iter().rposition(|it| it.first <= first).unwrap_or_default();
        let read = |it: &Segment| complete_records(self.owner, it.first, &it.bytes).records;
        let all = self.segments[skipped..].iter().flat_map(read);
        all.filter(|it| first <= it.lsn && it.lsn <= last).collect()
    }

    /// Removes the whole log.
    pub(crate) fn clear(&mut self) {
        self.not_needed = Lsn::default();
        self.segments.clear();
    }

    /// Removes the records after `last`.
    pub(crate) fn cut(&mut self, last: Lsn) {
        self.segments.retain(|segment| segment.first <= last);
        let Some(segment) = self.segments.last_mut() else { return };
        let records = scan(self.owner, segment.first, &segment.bytes).map(|it| it.records);
        let kept = records.unwrap_or_default().into_iter().filter(|record| record.lsn <= last);
        let end = kept.map(|record| RECORD_HEADER_BYTES + record.payload.len()).sum();
        segment.bytes.truncate(end);
        segment.synced = segment.synced.min(end);
    }

    /// Simulates a power loss: drops a random part of the unsynced bytes.
    pub(crate) fn power_loss(&mut self, random: &mut Random) {
        let mode = random.below(4);
        for segment in &mut self.segments {
            let mut kept = segment.bytes.clone();
            let mut end = segment.synced;
            for sector in segment.synced / SECTOR..segment.bytes.len().div_ceil(SECTOR) {
                let from = (sector * SECTOR).max(segment.synced);
                let to = ((sector + 1) * SECTOR).min(segment.bytes.len());
                let survives = match mode {
                    0 => false,
                    1 => true,
                    2 => random.percent(50),
                    _ => random.percent(90),
                };
                if survives {
                    end = to;
                } else {
                    kept[from..to].fill(0);
                }
            }
            // If the segment is not truncated here, the device has stored its new length, but not
            // all of its bytes. Zeros are then in place of the lost bytes.
            if random.percent(70) {
                kept.truncate(end);
            }
            segment.bytes = kept;
        }
    }

    /// Reads the log as a starting target does. Truncates the damaged end of the log, syncs the
    /// rest of the log, and returns the records.
    ///
    /// # Errors
    /// `Corrupt` if a synced record is damaged.
    pub(crate) fn recover(&mut self) -> Result<Vec<Record>> {
        let mut records: Vec<Record> = Vec::new();
        let mut kept = 0;
        let mut is_over = false;
        // Expected LSN of the first record in the next segment.
        let Some(mut next) = self.segments.first().map(|it| it.first) else { return Ok(records) };
        for segment in &mut self.segments {
            let found = scan(self.owner, segment.first, &segment.bytes)?;
            if is_over || segment.first != next {
                is_over = true;
                if found.records.iter().any(|record| record.synced >= next) {
                    let what = format!("synced record {next} is missing");
                    return Err(Error::new(ErrorCode::Corrupt, what));
                }
                continue;
            }
            // Remove zeros at the end of a segment, because zeros are not a record. The next
            // segment must begin with the record that follows the last record of this segment.
            segment.bytes.truncate(found.end);
            segment.synced = found.end;
            next = Lsn::new(next.raw() + found.records.len() as u64);
            records.extend(found.records);
            kept += 1;
        }
        self.segments.truncate(kept);
        Ok(records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{ClusterId, TargetId};

    const EPOCH: Epoch = Epoch::new(1);

    fn filled(synced_up_to: u64) -> LogDisk {
        let (cluster, target) = (ClusterId::default(), TargetId::new(1));
        let mut disk = LogDisk::new(LogOwner { cluster, target }, 900);
        for lsn in 1..=20 {
            let synced = Lsn::new(lsn.min(synced_up_to) - 1);
            disk.append(EPOCH, Lsn::new(lsn), synced, &[lsn as u8; 200]).expect("a small record");
            if lsn == synced_up_to {
                let point = disk.begin_sync();
                disk.end_sync(&point);
            }
        }
        disk
    }

    #[test]
    fn recovery_after_a_power_loss_reads_all_synced_records() {
        for seed in 0..300 {
            let mut disk = filled(9);
            disk.power_loss(&mut Random::new(seed));
            let records = disk.recover().expect("a log that lost only unsynced records");
            assert!(records.len() >= 9, "seed {seed}: {}", records.len());
            assert!(records.iter().zip(1..).all(|(record, lsn)| record.lsn.raw() == lsn));
        }
    }

    #[test]
    fn kill_of_the_process_loses_no_record() {
        assert_eq!(filled(9).recover().expect("an undamaged log").len(), 20);
    }

    #[test]
    fn recovery_drops_segments_after_an_empty_segment() {
        let mut disk = filled(1);
        disk.trim(Lsn::new(11));
        let first = disk.segments[0].first;
        disk.segments[0].bytes.clear();
        assert_eq!(disk.recover().expect("a log without synced records"), []);
        disk.append(EPOCH, first, Lsn::new(1), b"anew").expect("a small record");
        let records = disk.recover().expect("an undamaged log");
        assert_eq!(
            (records.len(), records[0].lsn, &records[0].payload[..]),
            (1, first, &b"anew"[..])
        );
    }

    #[test]
    fn truncation_removes_all_records_after_the_given_record() {
        for last in 0..=21 {
            let mut disk = filled(9);
            disk.cut(Lsn::new(last));
            let records = disk.recover().expect("an undamaged log");
            assert_eq!(records.len() as u64, last.min(20));
        }
    }

    #[test]
    fn simulated_disk_reads_records_across_all_segments() {
        let disk = filled(20);
        for (first, last) in [(1, 20), (3, 17), (9, 9), (18, 30), (21, 30)] {
            let found = disk.records_within(Lsn::new(first), Lsn::new(last));
            let expected: Vec<_> = (first..=last.min(20)).collect();
            assert_eq!(found.iter().map(|it| it.lsn.raw()).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn trim_does_not_remove_records_after_the_checkpoint() {
        let mut disk = filled(20);
        disk.trim(Lsn::new(11));
        let records = disk.recover().expect("an undamaged log");
        assert!(records[0].lsn.raw() > 1 && records[0].lsn.raw() <= 12);
        assert_eq!(records.last().map(|it| it.lsn.raw()), Some(20));
    }
}
