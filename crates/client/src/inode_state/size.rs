//! The size of a file: the last size from metadata, the end of this mount's writes beyond that
//! size, and the reports of these writes to metadata. Pure: callers pass the current time as an
//! argument.

use skep_types::Attributes;
use skep_wire::metadata::WrittenExtent;
use std::cmp::Ordering;
use std::ops::Range;
use std::time::Duration;

/// A report about writes to a file, which the client sends to metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeReport {
    /// The written range of the file, as metadata receives it.
    pub extent: WrittenExtent,
    /// Whether the client must compute the size of the file from the sizes of the chunk files
    /// before it sends the report.
    pub must_measure: bool,
    /// Sequence number of the last write that the report includes.
    upto: u64,
}

impl SizeReport {
    /// Returns this report with the end of the inline component (`InlineMove::ending`).
    pub(super) fn with_end_of_inline(self, ends_inline: Option<u32>) -> Self {
        Self { extent: WrittenExtent { ends_inline, ..self.extent }, ..self }
    }
}

/// The size of a file, and the truncate generation in which the file had this size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileEnd {
    /// The size in bytes.
    pub size: u64,
    /// The truncate generation (`Attributes::truncate_generation`).
    pub truncate_generation: u64,
}

/// The size and the truncate generation of a file that metadata had acknowledged at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReportedExtent {
    end: u64,
    truncate_generation: u64,
    upto: u64,
}

impl ReportedExtent {
    /// Returns whether these durable attributes show that the acknowledged reports are durable: the
    /// durable size is at least the reported size.
    pub(super) fn is_shown_by(&self, durable: &Attributes) -> bool {
        self.end > 0
            && durable.truncate_generation == self.truncate_generation
            && durable.size >= self.end
    }
}

/// The change that metadata acknowledged, but lost in a power loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReportLoss {
    Nothing,
    /// The size of the file.
    End,
    /// A truncation of the file.
    Truncation,
}

/// The size of a file, and the reports about it.
///
/// Writes and truncations of this mount are numbered from one. `writes`, `reported` and `durable`
/// are such numbers.
///
/// # Invariants
/// - `durable <= reported <= writes`, `unconfirmed <= writes` and `moved <= writes`.
/// - `must_measure` is set only if `reported < unconfirmed`.
#[derive(Debug, Default)]
pub(super) struct FileSize {
    /// Size in the newest attributes from metadata. The two fields below come from the same
    /// attributes.
    size: u64,
    truncate_generation: u64,
    change_counter: u64,
    /// Time at which the newest attributes arrived.
    seen_at: Duration,
    /// End of this mount's furthest write in the generation `truncate_generation`.
    written_end: u64,
    /// Whether a write in the generation `truncate_generation` began beyond the end of the file, or
    /// an operation punched a hole.
    may_leave_holes: bool,
    /// Offset up to which chunk files may reach although the size of the file is smaller than this
    /// offset. Failed writes, allocations, and writes within the size of a shared file extend chunk
    /// files without a change of the size.
    reach: u64,
    /// Sequence number of this mount's last write to the file.
    writes: u64,
    /// Sequence number of the last write or truncation that changed more than the times: the size
    /// of the file, its possible holes, or the possible ends of its chunk files. Other writes
    /// changed only the times.
    moved: u64,
    /// Sequence number of the last write that this mount acknowledged without a confirmation by
    /// metadata, because no other client had the file open.
    unconfirmed: u64,
    /// Sequence number of the last write in an acknowledged report.
    reported: u64,
    /// Sequence number of the last write in a durable report.
    durable: u64,
    /// The furthest reported end in the generation `truncate_generation`.
    reported_end: u64,
    /// Whether another client truncated the file while this mount had writes whose report metadata
    /// had not confirmed. Only the chunk files show which of these writes came after the
    /// truncation.
    must_measure: bool,
    /// Number of truncations that this mount has seen, and that a power loss of metadata has
    /// reverted. A truncation that had removed no bytes does not count.
    reverted_truncations: u64,
}

impl FileSize {
    fn check_invariants(&self) {
        assert!(self.durable <= self.reported && self.reported <= self.writes, "{self:?}");
        assert!(self.unconfirmed <= self.writes && self.moved <= self.writes, "{self:?}");
        assert!(!self.must_measure || self.has_unconfirmed_writes(), "{self:?}");
    }

    fn debug_check(&self) {
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
    }

    /// Records attributes from metadata, unless newer attributes are already recorded. The age of
    /// the size counts from the time `at`.
    pub(super) fn observe(&mut self, attributes: &Attributes, at: Duration) {
        if attributes.change_counter < self.change_counter {
            return;
        }
        if attributes.truncate_generation != self.truncate_generation {
            // A lower generation in newer attributes means that a power loss has reverted a
            // truncation. If the file is still empty, this truncation had removed no bytes.
            let is_reverted = attributes.truncate_generation < self.truncate_generation
                && attributes.size.max(self.size()) > 0;
            self.reverted_truncations += u64::from(is_reverted);
            self.must_measure |= self.has_unconfirmed_writes();
            self.truncate_generation = attributes.truncate_generation;
            self.written_end = 0;
            self.reported_end = 0;
            self.may_leave_holes &= self.must_measure;
        }
        self.size = attributes.size;
        self.change_counter = attributes.change_counter;
        self.seen_at = at;
    }

    /// Returns the size of the file: the last size from metadata, or the end offset of this mount's
    /// furthest write, whichever is larger.
    pub(super) fn size(&self) -> u64 {
        self.size.max(self.written_end)
    }

    /// Returns the size of the file, and the truncate generation in which the file has this size.
    pub(super) fn end(&self) -> FileEnd {
        FileEnd { size: self.size(), truncate_generation: self.truncate_generation }
    }

    /// Returns the version of the newest attributes from metadata.
    pub(super) fn version(&self) -> u64 {
        self.change_counter
    }

    /// Returns how long ago the last size from metadata arrived.
    pub(super) fn age(&self, now: Duration) -> Duration {
        // The age would be negative if another thread has called `observe` after this thread read
        // its clock.
        now.saturating_sub(self.seen_at)
    }

    /// Raises the size in `attributes` to the end offset of this mount's furthest write, if this
    /// offset is larger than the size. Does nothing if the attributes are from a newer truncate
    /// generation.
    pub(super) fn merge_into(&self, attributes: &mut Attributes) {
        if attributes.truncate_generation <= self.truncate_generation {
            attributes.size = attributes.size.max(self.written_end);
        }
    }

    /// Returns the number of truncations that this mount has seen, and that a power loss of
    /// metadata has reverted.
    pub(super) fn reverted_truncations(&self) -> u64 {
        self.reverted_truncations
    }

    /// Returns the sequence number of this mount's last write to the file.
    pub(super) fn last_write(&self) -> u64 {
        self.writes
    }

    /// Returns whether only the chunk files show the size of the file.
    pub(super) fn must_measure(&self) -> bool {
        self.must_measure
    }

    /// Returns whether this mount has acknowledged writes whose end metadata may not have recorded.
    pub(super) fn has_unconfirmed_writes(&self) -> bool {
        self.reported < self.unconfirmed
    }

    /// Returns whether metadata has synced all effects of this mount's writes except the times.
    pub(super) fn is_end_durable(&self) -> bool {
        self.moved <= self.durable && !self.must_measure
    }

    /// Counts a write that changes more than the times of the file.
    fn count_move(&mut self) {
        self.writes += 1;
        self.moved = self.writes;
    }

    /// Counts a new write and returns its sequence number.
    pub(super) fn count_write(&mut self) -> u64 {
        self.writes += 1;
        self.writes
    }

    /// Counts a write or truncation that metadata has already recorded, so that it needs no report.
    /// Returns its sequence number.
    pub(super) fn count_reported(&mut self) -> u64 {
        let is_all_reported = self.reported == self.writes;
        self.count_move();
        if is_all_reported {
            self.reported = self.writes;
        }
        self.debug_check();
        self.writes
    }

    /// Records that servers have acknowledged all pieces of a write of `range`, while no other
    /// client has the file open. `truncate_generation` is the generation when the write began.
    pub(super) fn note_write(&mut self, range: &Range<u64>, truncate_generation: u64) {
        self.writes += 1;
        self.unconfirmed = self.writes;
        if truncate_generation == self.truncate_generation {
            let size = self.size();
            self.may_leave_holes |= range.start > size;
            if range.end > size {
                self.moved = self.writes;
            }
            self.written_end = self.written_end.max(range.end);
        } else {
            // During the write, another client truncated the file by a system call that does not
            // open the file. So only the chunk files show which written bytes are left.
            self.must_measure = true;
        }
    }

    /// Returns a report of a write of `range` to a shared file and of all earlier unreported
    /// writes.
    pub(super) fn report_with(&mut self, range: &Range<u64>) -> SizeReport {
        self.count_move();
        let end = self.written_end.max(range.end);
        SizeReport {
            extent: WrittenExtent {
                end,
                truncate_generation: self.truncate_generation,
                may_leave_holes: self.may_leave_holes || range.start > self.size(),
                reach: if self.reach > end { self.reach } else { 0 },
                ends_inline: None,
            },
            must_measure: self.must_measure,
            upto: self.writes,
        }
    }

    /// Records that metadata confirmed a write that ends at `end`, within the size of a shared
    /// file. The client still has to report the new times. The client also has to report that chunk
    /// files now reach up to `end`. An earlier truncation may have extended the file to its present
    /// size without any bytes in chunk files.
    pub(super) fn note_confirmed_write(&mut self, end: u64) {
        self.writes += 1;
        if end > self.reach {
            self.reach = end;
            self.moved = self.writes;
        }
    }

    /// Records that metadata acknowledged a write of inline bytes only, which ends at `end`.
    /// Metadata already has the new size and times.
    pub(super) fn note_inline_write(&mut self, end: u64, attributes: &Attributes, now: Duration) {
        let is_all_reported = self.reported == self.writes;
        self.observe(attributes, now);
        if attributes.truncate_generation == self.truncate_generation {
            self.written_end = self.written_end.max(end);
            self.reported_end = self.reported_end.max(end);
        }
        if is_all_reported {
            // Count the write as already reported, because metadata has its size and its times.
            self.count_move();
            self.reported = self.writes;
        }
        self.debug_check();
    }

    /// Records that chunk files may reach up to the offset `end`, even if the size of the file is
    /// smaller than `end`.
    pub(super) fn note_reach(&mut self, end: u64) {
        self.count_move();
        self.reach = self.reach.max(end);
    }

    /// Records that a part of the file may now be a hole. The size does not change.
    pub(super) fn note_holes(&mut self) {
        self.count_move();
        self.may_leave_holes = true;
    }

    /// Records that a truncation by this mount is complete, so that earlier writes no longer affect
    /// the size.
    pub(super) fn truncated(&mut self, attributes: &Attributes, now: Duration) {
        self.count_move();
        self.reported = self.writes;
        self.must_measure = false;
        self.written_end = 0;
        self.reported_end = 0;
        self.may_leave_holes = false;
        self.observe(attributes, now);
        self.debug_check();
    }

    /// Returns the report about the file's size and times that this mount must send to metadata.
    /// `None` means that metadata has received all of them.
    pub(super) fn unreported(&self) -> Option<SizeReport> {
        (self.reported < self.writes).then_some(SizeReport {
            extent: WrittenExtent {
                end: self.written_end,
                truncate_generation: self.truncate_generation,
                may_leave_holes: self.may_leave_holes,
                reach: if self.reach > self.written_end { self.reach } else { 0 },
                ends_inline: None,
            },
            must_measure: self.must_measure,
            upto: self.writes,
        })
    }

    /// Returns whether metadata has acknowledged a report of all writes up to the sequence number
    /// `upto`.
    pub(super) fn has_reported(&self, upto: u64) -> bool {
        self.reported >= upto
    }

    /// Records metadata's reply to a report of sizes and times. `is_durable` means that metadata
    /// made the report durable before it replied.
    pub(super) fn reported(
        &mut self,
        report: &SizeReport,
        attributes: &Attributes,
        is_durable: bool,
        now: Duration,
    ) {
        let is_current = attributes.truncate_generation == report.extent.truncate_generation;
        if is_current {
            // The reply to this report may arrive after the reply to a later truncation.
            // `reported_end` is then the end in the newer generation.
            if report.extent.truncate_generation == self.truncate_generation {
                self.reported_end = self.reported_end.max(report.extent.end);
            }
            self.reported = self.reported.max(report.upto);
            // Earlier reports are before this report in metadata's log, so they are durable too.
            if is_durable {
                self.durable = self.durable.max(report.upto);
            }
            if report.must_measure && self.truncate_generation == attributes.truncate_generation {
                self.must_measure = false;
            }
            // If metadata has the reports of all unconfirmed writes, it received them before any
            // newer truncation. So the client need not compute the size of the file from the chunk
            // files.
            self.must_measure &= self.has_unconfirmed_writes();
        }
        self.observe(attributes, now);
        self.debug_check();
    }

    /// Returns whether metadata has acknowledged a size of the file that may not be durable yet.
    pub(super) fn is_reported_undurably(&self) -> bool {
        self.durable < self.reported
    }

    /// Returns the size of the file that metadata has acknowledged so far.
    pub(super) fn reported_extent(&self) -> ReportedExtent {
        ReportedExtent {
            end: self.reported_end,
            truncate_generation: self.truncate_generation,
            upto: self.reported,
        }
    }

    /// Compares the acknowledged size of the file (`sent`) with the attributes that are durable at
    /// metadata. Returns the change that metadata lost in a power loss. A lost change counts as
    /// unreported again.
    pub(super) fn compare(&mut self, sent: &ReportedExtent, durable: &Attributes) -> ReportLoss {
        self.durable = self.durable.max(sent.upto);
        let is_unchanged = self.truncate_generation == sent.truncate_generation;
        let loss = match durable.truncate_generation.cmp(&sent.truncate_generation) {
            Ordering::Equal if durable.size < sent.end => {
                if is_unchanged {
                    self.count_move();
                }
                ReportLoss::End
            }
            // If the file is still empty, the lost truncation had removed no bytes.
            Ordering::Less if durable.size.max(sent.end).max(self.size()) > 0 => {
                if is_unchanged {
                    // After the lost truncation, only the chunk files show the size of the file.
                    self.reverted_truncations += 1;
                    self.truncate_generation = durable.truncate_generation;
                    self.size = durable.size;
                    self.must_measure = true;
                    self.count_move();
                    self.unconfirmed = self.writes;
                }
                ReportLoss::Truncation
            }
            _ => ReportLoss::Nothing,
        };
        self.debug_check();
        loss
    }

    /// Discards unreported sizes after an eviction, since another client may have changed the file.
    pub(super) fn forget_unreported(&mut self) {
        self.reported = self.writes;
        self.must_measure = false;
        self.written_end = 0;
        self.may_leave_holes = false;
    }
}
