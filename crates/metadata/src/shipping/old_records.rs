//! Records that an absent member lacks and that the primary has only in its log on disk.
//!
//! The primary reads these records back in pieces. The primary ships the records of a piece like
//! records in memory, and then reads the next piece. If the log on disk no longer has the next
//! record, the member needs a copy of the store.
//!
//! This module does no I/O: the caller reads the log ([`super::LogRead`]). This module does not own
//! the requests to the member ([`super::member_link`]).
//!
//! # Invariants
//! - All records of a piece are *safe*. So no later primary has other records with these LSNs, and
//!   a piece stays valid in every later epoch.
//! - At most one read is in progress.
//!
//! The types enforce the second invariant. For the first invariant, each read ends before the
//! records that the primary has in memory, and `Shipper::check_invariants` checks that all earlier
//! records are safe.
//!
//! Held by the test `absent_member_gets_only_records_that_the_primary_has_synced`: the first
//! invariant.

use super::record_window::{RecordWindow, record_bytes};
use super::{FoundRecords, LogRead, following, preceding};
use skep_types::{Lsn, Result, TargetId};

/// LSN of the first record that the primary can ship from its log on disk. Record 1 is excluded,
/// because the member compares the epoch of the record before the first shipped record. So a member
/// without any record gets a copy of the store, which is shorter than the log of all changes.
pub(super) const FIRST_WITH_PREVIOUS: Lsn = Lsn::new(2);

/// The log on disk as the source of records for one member.
#[derive(Debug, Default)]
pub(super) struct DiskSource {
    /// The records that were read. `None` means that the member does not need records from disk.
    pub(super) old: Option<OldRecords>,
    /// LSN of the first record that the log has. The value comes from the last read whose first
    /// record was missing in the log. `None` means that every read has found its first record.
    pub(super) log_begins: Option<Lsn>,
}

/// The records that the primary has read back for one member.
#[derive(Debug, Default)]
pub(super) struct OldRecords {
    piece: RecordWindow,
    reading: Option<Reading>,
    /// The number of bytes of the log after the piece when the piece was read, and the value of
    /// `logged` when the read began.
    after_piece: Option<(u64, u64)>,
}

/// A read in progress.
#[derive(Debug, Clone, Copy)]
struct Reading {
    /// LSN of the first record that the member lacks.
    next: Lsn,
    /// Number of bytes that the primary had logged since its start when this read began.
    logged: u64,
}

/// The end of a read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReadOutcome {
    /// The result does not belong to the read in progress.
    Ignored,
    /// The piece has the next record.
    Available,
    /// The log on disk does not have the next record. The value is the LSN of the first record that
    /// the log has. `None` means that this LSN is unknown.
    Removed(Option<Lsn>),
}

impl OldRecords {
    /// Whether the piece has the record `next`.
    pub(super) fn has(&self, next: Lsn) -> bool {
        self.piece.before() < next && next <= self.piece.last()
    }

    /// Returns the piece.
    pub(super) fn piece(&self) -> &RecordWindow {
        &self.piece
    }

    /// Returns the read that the caller must begin now, so that the records from `next` to `last`
    /// can be shipped. `logged` is the number of bytes that the primary has logged since its start.
    pub(super) fn wanted(
        &mut self,
        member: TargetId,
        (next, last): (Lsn, Lsn),
        logged: u64,
    ) -> Option<LogRead> {
        if self.reading.is_some() || self.has(next) || next > last {
            return None;
        }
        self.reading = Some(Reading { next, logged });
        Some(LogRead { member, first: preceding(next), last })
    }

    /// Handles the result of a read that began with the record `first`.
    pub(super) fn read(&mut self, first: Lsn, result: Result<FoundRecords>) -> ReadOutcome {
        let is_awaited = |it: &mut Reading| preceding(it.next) == first;
        let Some(Reading { next, logged }) = self.reading.take_if(is_awaited) else {
            return ReadOutcome::Ignored;
        };
        let Ok(found) = result else { return ReadOutcome::Removed(None) };
        let has_first = found.records.first().is_some_and(|it| it.lsn == first);
        match RecordWindow::read(preceding(next), found.records) {
            Ok(piece) if has_first && piece.last() >= next => {
                self.piece = piece;
                self.after_piece = Some((found.bytes_after, logged));
                ReadOutcome::Available
            }
            _ => ReadOutcome::Removed(Some(found.begins).filter(|begins| *begins > first)),
        }
    }

    /// Returns the number of bytes of the records after `appended`. `None` means that the primary
    /// has read no piece yet. `logged` is the number of bytes that the primary has logged since its
    /// start.
    pub(super) fn missing_bytes(&self, appended: Lsn, logged: u64) -> Option<u64> {
        let (after, logged_before) = self.after_piece?;
        let in_piece: usize = self.piece.from(following(appended)).map(record_bytes).sum();
        Some(in_piece as u64 + after + logged.saturating_sub(logged_before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_format::log::Record;
    use skep_types::{Epoch, Error, ErrorCode};

    const MEMBER: TargetId = TargetId::new(2);

    fn found(begins: u64, numbers: std::ops::RangeInclusive<u64>) -> Result<FoundRecords> {
        let (epoch, synced) = (Epoch::new(3), Lsn::default());
        let record =
            |lsn| Record { epoch, lsn: Lsn::new(lsn), synced, payload: vec![lsn as u8; 10] };
        let records = numbers.map(record).collect();
        Ok(FoundRecords { begins: Lsn::new(begins), records, bytes_after: 1000 })
    }

    fn wanted(old: &mut OldRecords, next: u64, last: u64) -> Option<(u64, u64)> {
        let read = old.wanted(MEMBER, (Lsn::new(next), Lsn::new(last)), 0)?;
        Some((read.first.raw(), read.last.raw()))
    }

    #[test]
    fn log_on_disk_is_read_in_adjacent_pieces_one_at_a_time() {
        let mut old = OldRecords::default();
        assert_eq!(wanted(&mut old, 5, 20), Some((4, 20)));
        assert_eq!(wanted(&mut old, 5, 20), None, "the first read has not ended");
        assert_eq!(old.read(Lsn::new(9), found(1, 9..=12)), ReadOutcome::Ignored);
        assert_eq!(old.read(Lsn::new(4), found(1, 4..=8)), ReadOutcome::Available);
        assert!(old.has(Lsn::new(5)) && old.has(Lsn::new(8)) && !old.has(Lsn::new(9)));
        assert_eq!(old.piece().epoch_of_previous(Lsn::new(5)), Epoch::new(3));
        assert_eq!(wanted(&mut old, 7, 20), None);
        assert_eq!(wanted(&mut old, 9, 20), Some((8, 20)));
        assert_eq!(old.read(Lsn::new(8), found(1, 8..=20)), ReadOutcome::Available);
        assert_eq!(wanted(&mut old, 21, 20), None, "the later records are in memory");
    }

    #[test]
    fn record_that_the_log_has_removed_cannot_be_shipped() {
        let read = |next, result: Result<FoundRecords>| {
            let mut old = OldRecords::default();
            let first = wanted(&mut old, next, 20).expect("a read").0;
            old.read(Lsn::new(first), result)
        };
        assert_eq!(read(5, found(5, 5..=8)), ReadOutcome::Removed(Some(Lsn::new(5))));
        assert_eq!(
            read(5, found(6, std::ops::RangeInclusive::new(1, 0))),
            ReadOutcome::Removed(Some(Lsn::new(6)))
        );
        assert_eq!(read(2, found(1, 1..=3)), ReadOutcome::Available);
        let damaged = Err(Error::from(ErrorCode::Corrupt));
        assert_eq!(read(5, damaged), ReadOutcome::Removed(None));
    }

    #[test]
    fn bytes_that_a_member_lacks_include_newly_logged_records() {
        let mut old = OldRecords::default();
        assert_eq!(old.missing_bytes(Lsn::new(4), 0), None);
        old.wanted(MEMBER, (Lsn::new(5), Lsn::new(20)), 70);
        old.read(Lsn::new(4), found(1, 4..=8));
        let record = (skep_format::log::RECORD_HEADER_BYTES + 10) as u64;
        assert_eq!(old.missing_bytes(Lsn::new(4), 70), Some(4 * record + 1000));
        assert_eq!(old.missing_bytes(Lsn::new(6), 90), Some(2 * record + 1000 + 20));
    }
}
