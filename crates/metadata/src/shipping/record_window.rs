//! Consecutive records of a log in memory. A primary keeps the records that are not *safe* yet. If
//! a member does not serve, the primary also keeps the newest *safe* records, up to a limit of
//! bytes. A backup member keeps the records that are not in its store yet.
//!
//! This module does not own the log on disk, or the decision when a record is removed.
//!
//! # Invariants
//! - The LSNs of the records are consecutive and begin after `before`.
//! - The epoch of a record is at least that of the record before it.

use super::{following, preceding};
use skep_format::log::{RECORD_HEADER_BYTES, Record};
use skep_types::{Epoch, Error, ErrorCode, Lsn, Result};
use std::collections::VecDeque;

/// Consecutive records of a log.
#[derive(Debug, Default)]
pub(crate) struct RecordWindow {
    /// LSN of the record before the first record of the window.
    before: Lsn,
    /// Epoch of the record `before`. Zero means that the epoch is not known.
    before_epoch: Epoch,
    records: VecDeque<Record>,
    bytes: usize,
}

/// Returns the number of bytes that a record takes in a log file.
pub(super) fn record_bytes(record: &Record) -> usize {
    RECORD_HEADER_BYTES + record.payload.len()
}

impl RecordWindow {
    /// Creates an empty window. The first record of the window will follow the record `before`.
    pub(crate) fn after(before: Lsn) -> Self {
        Self { before, ..Self::default() }
    }

    /// Creates a window with the records of a log that follow the record `before`.
    ///
    /// # Errors
    /// `Corrupt` if a record is missing.
    pub(super) fn read(before: Lsn, records: impl IntoIterator<Item = Record>) -> Result<Self> {
        let mut window = Self::after(before);
        for record in records {
            if record.lsn == before {
                window.set_epoch_of(record.lsn, record.epoch);
            }
            if record.lsn <= before {
                continue;
            }
            let expected = following(window.last());
            if record.lsn != expected {
                let found = record.lsn;
                let what = format!(
                    "cannot read the log: it has record {found} where record {expected} was \
                     expected"
                );
                return Err(Error::new(ErrorCode::Corrupt, what));
            }
            window.push(record);
        }
        Ok(window)
    }

    /// Returns the LSN of the record before the first record of the window.
    pub(crate) fn before(&self) -> Lsn {
        self.before
    }

    /// Sets the epoch of the record `lsn`, if this record directly precedes the window. Ignores any
    /// other record, because the window may have removed further records since the caller read
    /// `lsn`.
    pub(crate) fn set_epoch_of(&mut self, lsn: Lsn, epoch: Epoch) {
        if lsn == self.before {
            self.before_epoch = epoch;
        }
    }

    /// Returns the epoch of the record before the first record of the window, or zero if it is not
    /// known.
    pub(crate) fn epoch_before(&self) -> Epoch {
        self.before_epoch
    }

    /// Returns the LSN of the last record, or [`Self::before`] if the window is empty.
    pub(crate) fn last(&self) -> Lsn {
        Lsn::new(self.before.raw() + self.records.len() as u64)
    }

    /// Returns the number of bytes that all records of the window take in a log file.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the epoch of a record. `None` means that the window does not have the record.
    pub(crate) fn epoch_of(&self, lsn: Lsn) -> Option<Epoch> {
        self.get(lsn).map(|record| record.epoch)
    }

    /// Returns the epoch of the record before `lsn`, or zero if it is not known.
    pub(crate) fn epoch_of_previous(&self, lsn: Lsn) -> Epoch {
        let previous = preceding(lsn);
        if previous == self.before {
            return self.before_epoch;
        }
        self.epoch_of(previous).unwrap_or_default()
    }

    /// Returns the epoch of the last record. `None` means that the window is empty.
    pub(crate) fn last_epoch(&self) -> Option<Epoch> {
        self.records.back().map(|record| record.epoch)
    }

    /// Returns the LSN of the first record in the window that has the epoch of the record `lsn`.
    pub(crate) fn first_of_same_epoch(&self, lsn: Lsn) -> Lsn {
        let Some(epoch) = self.epoch_of(lsn) else { return lsn };
        let older = self.records.partition_point(|record| record.epoch < epoch);
        Lsn::new(self.before.raw() + older as u64 + 1)
    }

    /// Iterates over the records with LSNs from `first` on.
    pub(crate) fn from(&self, first: Lsn) -> impl Iterator<Item = &Record> {
        let skipped = preceding(first).raw().saturating_sub(self.before.raw());
        self.records.iter().skip(usize::try_from(skipped).unwrap_or(usize::MAX))
    }

    /// Adds the next record at the end of the window.
    ///
    /// # Panics
    /// Panics if the LSN of the record does not follow the last LSN.
    pub(crate) fn push(&mut self, record: Record) {
        assert_eq!(record.lsn, following(self.last()), "records are consecutive");
        assert!(
            self.last_epoch().is_none_or(|last| last <= record.epoch),
            "no record has a lower epoch than an earlier one"
        );
        self.bytes += record_bytes(&record);
        self.records.push_back(record);
    }

    /// Removes the records up to `last`, and returns them. If the window ends before `last`, it is
    /// empty afterwards, and its next record must follow `last`.
    pub(crate) fn take_up_to(&mut self, last: Lsn) -> Vec<Record> {
        let count = last.raw().saturating_sub(self.before.raw());
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(self.records.len());
        let taken: Vec<_> = self.records.drain(..count).collect();
        self.bytes -= taken.iter().map(record_bytes).sum::<usize>();
        if last > self.before {
            let is_last = |record: &&Record| record.lsn == last;
            let epoch = taken.last().filter(is_last).map(|record| record.epoch);
            (self.before, self.before_epoch) = (last, epoch.unwrap_or_default());
        }
        taken
    }

    /// Removes the oldest records until the window has at most `most` bytes, but no record after
    /// `last`. If `most` is zero, removes all records up to `last`.
    pub(crate) fn trim(&mut self, last: Lsn, most: usize) {
        if most == 0 {
            self.take_up_to(last);
            return;
        }
        let (mut bytes, mut removed) = (self.bytes, self.before);
        for record in self.records.iter().take_while(|record| record.lsn <= last) {
            if bytes <= most {
                break;
            }
            bytes -= record_bytes(record);
            removed = record.lsn;
        }
        self.take_up_to(removed);
    }

    /// Removes the records after `last`.
    pub(crate) fn truncate(&mut self, last: Lsn) {
        let kept = last.raw().saturating_sub(self.before.raw());
        let kept = usize::try_from(kept).unwrap_or(usize::MAX).min(self.records.len());
        let removed = self.records.split_off(kept);
        self.bytes -= removed.iter().map(record_bytes).sum::<usize>();
    }

    /// Panics if an invariant of the type is violated. Checks only both ends of the window, because
    /// [`Self::push`] checks each record.
    pub(super) fn check_invariants(&self) {
        assert_eq!(self.records.is_empty(), self.bytes == 0, "the window counts its bytes");
        let (Some(first), Some(last)) = (self.records.front(), self.records.back()) else { return };
        assert_eq!(first.lsn, following(self.before), "the records begin after `before`");
        assert_eq!(last.lsn, self.last(), "the LSNs of the records are consecutive");
        assert!(first.epoch <= last.epoch, "no record has a lower epoch than an earlier one");
    }

    fn get(&self, lsn: Lsn) -> Option<&Record> {
        let index = preceding(lsn).raw().checked_sub(self.before.raw())?;
        self.records.get(usize::try_from(index).ok()?).filter(|record| record.lsn == lsn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(lsn: u64, epoch: u64) -> Record {
        let (epoch, lsn) = (Epoch::new(epoch), Lsn::new(lsn));
        Record { epoch, lsn, synced: Lsn::default(), payload: vec![7; 10] }
    }

    fn window() -> RecordWindow {
        let mut window = RecordWindow::after(Lsn::new(4));
        for (lsn, epoch) in [(5, 1), (6, 1), (7, 3), (8, 3)] {
            window.push(record(lsn, epoch));
        }
        window
    }

    fn numbers(window: &RecordWindow) -> Vec<u64> {
        window.check_invariants();
        window.from(Lsn::default()).map(|record| record.lsn.raw()).collect()
    }

    #[test]
    fn record_window_finds_records_by_lsn() {
        let window = window();
        let epochs = [0, 4, 5, 7, 8, 9].map(|lsn| window.epoch_of(Lsn::new(lsn)).map(Epoch::raw));
        assert_eq!(epochs, [None, None, Some(1), Some(3), Some(3), None]);
        let firsts = [5, 6, 7, 8].map(|lsn| window.first_of_same_epoch(Lsn::new(lsn)).raw());
        assert_eq!(firsts, [5, 5, 7, 7]);
        let from: Vec<_> = window.from(Lsn::new(7)).map(|record| record.lsn.raw()).collect();
        assert_eq!(from, [7, 8]);
    }

    #[test]
    fn record_window_removes_records_at_both_ends() {
        let mut window = window();
        window.truncate(Lsn::new(7));
        assert_eq!((numbers(&window), window.last()), (vec![5, 6, 7], Lsn::new(7)));
        assert_eq!(window.take_up_to(Lsn::new(5)).len(), 1);
        assert_eq!(window.bytes(), 2 * (RECORD_HEADER_BYTES + 10));
        window.take_up_to(Lsn::new(9));
        assert_eq!((window.before(), window.last(), window.bytes()), (Lsn::new(9), Lsn::new(9), 0));
        window.push(record(10, 3));
        assert_eq!(numbers(&window), [10]);
    }

    #[test]
    fn trim_keeps_the_newest_records_and_all_unsafe_records() {
        let bytes = RECORD_HEADER_BYTES + 10;
        let kept = |last, most| {
            let mut window = window();
            window.trim(Lsn::new(last), most);
            numbers(&window)
        };
        assert_eq!(kept(8, 2 * bytes), [7, 8]);
        assert_eq!(kept(5, 2 * bytes), [6, 7, 8], "later records are not safe");
        assert_eq!(kept(8, 10 * bytes), [5, 6, 7, 8]);
        assert_eq!(kept(6, 0), [7, 8]);
    }

    #[test]
    fn record_window_keeps_the_epoch_of_the_last_removed_record() {
        let mut window = window();
        assert_eq!(window.epoch_before(), Epoch::default());
        window.take_up_to(Lsn::new(7));
        assert_eq!(window.epoch_before(), Epoch::new(3));
        window.take_up_to(Lsn::new(6));
        assert_eq!(window.epoch_before(), Epoch::new(3), "the call removed no record");
        window.take_up_to(Lsn::new(9));
        assert_eq!(window.epoch_before(), Epoch::default(), "the window never contained record 9");
        window.set_epoch_of(Lsn::new(7), Epoch::new(3));
        assert_eq!(window.epoch_before(), Epoch::default(), "record 7 is not the last removed one");
        window.set_epoch_of(Lsn::new(9), Epoch::new(4));
        assert_eq!(window.epoch_before(), Epoch::new(4));
    }
}
