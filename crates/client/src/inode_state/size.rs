//! How far a file reaches: the size as metadata last replied it, how far this mount wrote beyond
//! it, and how much of that metadata has been sent in reports. Pure: times come as arguments.

use skep_types::Attributes;
use skep_wire::metadata::WrittenExtent;
use std::cmp::Ordering;
use std::ops::Range;
use std::time::Duration;

/// A report of writes that metadata must get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SizeReport {
    pub(crate) extent: WrittenExtent,
    /// The end has to be measured in the chunk files first.
    pub(crate) must_measure: bool,
    /// Number of the last write that the report covers.
    upto: u64,
}

/// What metadata has been sent of a file at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReportedExtent {
    end: u64,
    truncate_generation: u64,
    upto: u64,
}

/// What metadata has lost of the reports that it acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReportLoss {
    Nothing,
    /// How far the file was written.
    End,
    /// That the file was truncated.
    Truncation,
}

/// The size of a file.
///
/// Each acknowledged write (and each truncation) of this mount has a number, counted by `writes`.
///
/// # Invariants
/// `durable <= reported <= writes`.
#[derive(Debug, Default)]
pub(super) struct FileSize {
    /// Size in the newest attributes seen; likewise the next two.
    size: u64,
    truncate_generation: u64,
    change_counter: u64,
    /// When those attributes arrived.
    seen_at: Duration,
    /// End of the furthest write of this mount under `truncate_generation`.
    written_end: u64,
    /// One of those writes began beyond the end, or a part of the file was made a hole.
    may_leave_holes: bool,
    /// Up to where this mount may have left something in chunk files, wherever the end is.
    reach: u64,
    /// Number of the last write.
    writes: u64,
    /// Number of the last write that metadata acknowledged a report of.
    reported: u64,
    /// Number of the last write whose report is on metadata's device.
    durable: u64,
    /// The furthest end that was reported under `truncate_generation`.
    reported_end: u64,
    /// Another client truncated the file between unreported writes of this mount. Only the chunk
    /// files show which of them came later.
    must_measure: bool,
}

impl FileSize {
    fn check_invariants(&self) {
        assert!(self.durable <= self.reported && self.reported <= self.writes, "{self:?}");
    }

    fn debug_check(&self) {
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
    }

    /// Takes attributes from metadata, unless newer ones were seen.
    pub(super) fn observe(&mut self, attributes: &Attributes, now: Duration) {
        if attributes.change_counter < self.change_counter {
            return;
        }
        if attributes.truncate_generation != self.truncate_generation {
            self.must_measure |= self.reported < self.writes;
            self.truncate_generation = attributes.truncate_generation;
            self.written_end = 0;
            self.reported_end = 0;
            self.may_leave_holes &= self.must_measure;
        }
        self.size = attributes.size;
        self.change_counter = attributes.change_counter;
        self.seen_at = now;
    }

    /// The size: as metadata replied it, or as far as this mount wrote.
    pub(super) fn size(&self) -> u64 {
        self.size.max(self.written_end)
    }

    /// How long ago metadata replied the size.
    pub(super) fn age(&self, now: Duration) -> Duration {
        // `now` may have been read before another thread's `observe`.
        now.saturating_sub(self.seen_at)
    }

    /// Raises the size in attributes to what this mount wrote.
    pub(super) fn merge_into(&self, attributes: &mut Attributes) {
        if attributes.truncate_generation <= self.truncate_generation {
            attributes.size = attributes.size.max(self.written_end);
        }
    }

    /// Whether this mount wrote beyond the size that metadata has.
    pub(super) fn is_beyond_metadata(&self) -> bool {
        self.written_end > self.size
    }

    /// The number of a new write.
    pub(super) fn count_write(&mut self) -> u64 {
        self.writes += 1;
        self.writes
    }

    /// A write of `range` was acknowledged as a whole.
    pub(super) fn note_write(&mut self, range: &Range<u64>) {
        self.writes += 1;
        self.may_leave_holes |= range.start > self.size.max(self.written_end);
        self.written_end = self.written_end.max(range.end);
    }

    /// Metadata acknowledged a write up to `end` of bytes that it stores itself: it has the new end
    /// and times already.
    pub(super) fn note_inline_write(&mut self, end: u64, attributes: &Attributes, now: Duration) {
        let is_all_reported = self.reported == self.writes;
        self.observe(attributes, now);
        if attributes.truncate_generation == self.truncate_generation {
            self.written_end = self.written_end.max(end);
            self.reported_end = self.reported_end.max(end);
        }
        if is_all_reported {
            // As if it was written and then reported.
            self.writes += 1;
            self.reported = self.writes;
        }
        self.debug_check();
    }

    /// Chunk files may reach up to `end` now, even if the file does not.
    pub(super) fn note_reach(&mut self, end: u64) {
        self.writes += 1;
        self.reach = self.reach.max(end);
    }

    /// A part of the file may be a hole now; its size stays.
    pub(super) fn note_holes(&mut self) {
        self.writes += 1;
        self.may_leave_holes = true;
    }

    /// A truncation by this mount is done: writes before it no longer count.
    pub(super) fn truncated(&mut self, attributes: &Attributes, now: Duration) {
        self.writes += 1;
        self.reported = self.writes;
        self.must_measure = false;
        self.written_end = 0;
        self.reported_end = 0;
        self.may_leave_holes = false;
        self.observe(attributes, now);
        self.debug_check();
    }

    /// The report that metadata must get now, if any.
    pub(super) fn unreported(&self) -> Option<SizeReport> {
        (self.reported < self.writes).then_some(SizeReport {
            extent: WrittenExtent {
                end: self.written_end,
                truncate_generation: self.truncate_generation,
                may_leave_holes: self.may_leave_holes,
                reach: if self.reach > self.written_end { self.reach } else { 0 },
            },
            must_measure: self.must_measure,
            upto: self.writes,
        })
    }

    /// Metadata replied to a report. `is_durable`: the reply came when the report was on its
    /// device.
    pub(super) fn reported(
        &mut self,
        report: &SizeReport,
        attributes: &Attributes,
        is_durable: bool,
        now: Duration,
    ) {
        let is_current = attributes.truncate_generation == report.extent.truncate_generation;
        if is_current {
            self.reported_end = self.reported_end.max(report.extent.end);
            self.reported = self.reported.max(report.upto);
            // Earlier reports precede this one in metadata's log.
            if is_durable {
                self.durable = self.durable.max(report.upto);
            }
            if report.must_measure && self.truncate_generation == attributes.truncate_generation {
                self.must_measure = false;
            }
        }
        self.observe(attributes, now);
        self.debug_check();
    }

    /// Whether metadata acknowledged a report that may not be on its device yet.
    pub(super) fn is_reported_undurably(&self) -> bool {
        self.durable < self.reported
    }

    /// What metadata has been sent so far.
    pub(super) fn reported_extent(&self) -> ReportedExtent {
        ReportedExtent {
            end: self.reported_end,
            truncate_generation: self.truncate_generation,
            upto: self.reported,
        }
    }

    /// Compares what was reported with what metadata has on its device. What metadata lost, because
    /// its host lost power, is unreported again.
    pub(super) fn compare(&mut self, sent: &ReportedExtent, durable: &Attributes) -> ReportLoss {
        self.durable = self.durable.max(sent.upto);
        let is_unchanged = self.truncate_generation == sent.truncate_generation;
        let loss = match durable.truncate_generation.cmp(&sent.truncate_generation) {
            Ordering::Equal if durable.size < sent.end => {
                self.writes += u64::from(is_unchanged);
                ReportLoss::End
            }
            Ordering::Less => {
                if is_unchanged {
                    // Only the chunk files show how far the file reaches now.
                    self.truncate_generation = durable.truncate_generation;
                    self.size = durable.size;
                    self.must_measure = true;
                    self.writes += 1;
                }
                ReportLoss::Truncation
            }
            _ => ReportLoss::Nothing,
        };
        self.debug_check();
        loss
    }

    /// Discards unreported sizes after an eviction: another client may have changed the file.
    pub(super) fn forget_unreported(&mut self) {
        self.reported = self.writes;
        self.must_measure = false;
        self.written_end = 0;
        self.may_leave_holes = false;
    }
}
