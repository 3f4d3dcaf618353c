//! The reports of a file's times that the mount sends during an `fsync` or a moment after it, or
//! because a program requests the attributes (`stat`). Pure.
//!
//! A report in progress must not reach metadata after the close of the file, or after a change of
//! the times by a program. Such a late report would replace the new times. So a change of the times
//! or a close waits for the report, and no report begins while the change or the close is in
//! progress. The release of a lock waits for the report too, so that it does not send the same
//! report again.
//!
//! `files::later_report` and `attributes::stat` send the requests.

/// The reports of a file's times that are planned or in progress, and the changes that delay them.
#[derive(Debug, Default)]
pub(super) struct TimesReport {
    /// Whether a task will send a report soon.
    is_due: bool,
    /// Number of tasks that send a report now. If metadata replies late, a report may begin before
    /// the previous report has ended.
    sending: u32,
    /// Number of changes of the times, closes and releases of locks that are in progress.
    changes: u32,
    /// Whether a program has released a lock of the file since the last `fsync`.
    is_released: bool,
}

impl TimesReport {
    /// Plans a report. Returns `false` if a report is planned already.
    pub(super) fn plan(&mut self) -> bool {
        !std::mem::replace(&mut self.is_due, true)
    }

    /// Begins the planned report. Returns `false` if a change of the times or a close is in
    /// progress. A change or a close itself reports all earlier writes, so the planned report is
    /// not needed.
    pub(super) fn begin(&mut self) -> bool {
        self.is_due = false;
        self.try_begin()
    }

    /// Begins a report that no task has planned. Returns `false` if a change of the times or a
    /// close is in progress. The caller must then wait for the end of the change or the close.
    pub(super) fn try_begin(&mut self) -> bool {
        let may_begin = self.changes == 0;
        self.sending += u32::from(may_begin);
        may_begin
    }

    /// Ends a report. Returns whether a change or a close may wait for this end.
    pub(super) fn end(&mut self) -> bool {
        debug_assert!(self.sending > 0, "only a report that has begun can end");
        self.sending -= 1;
        self.sending == 0 && self.changes > 0
    }

    pub(super) fn begin_change(&mut self) {
        self.changes += 1;
    }

    pub(super) fn end_change(&mut self) {
        debug_assert!(self.changes > 0, "only a change that has begun can end");
        self.changes -= 1;
    }

    pub(super) fn is_sending(&self) -> bool {
        self.sending > 0
    }

    /// Records that a program releases a lock of the file.
    pub(super) fn note_release(&mut self) {
        self.is_released = true;
    }

    /// Returns whether a program has released a lock of the file since the last call. The caller
    /// begins an `fsync`.
    pub(super) fn take_release(&mut self) -> bool {
        std::mem::take(&mut self.is_released)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_not_reported_while_a_program_changes_them() {
        let mut report = TimesReport::default();
        assert!(report.plan() && !report.plan());
        assert!(report.begin());
        report.begin_change();
        assert!(report.is_sending(), "the change waits for the report");
        assert!(report.end());
        assert!(!report.is_sending());
        assert!(report.plan());
        assert!(!report.begin(), "the change reports the writes itself");
        report.end_change();
        assert!(report.plan() && report.begin());
    }

    #[test]
    fn release_of_a_lock_affects_only_the_next_fsync() {
        let mut report = TimesReport::default();
        assert!(!report.take_release());
        report.note_release();
        report.note_release();
        assert!(report.take_release());
        assert!(!report.take_release(), "the program keeps its lock between two syncs");
    }

    /// Metadata replies to the first report after the second report was due.
    #[test]
    fn change_of_times_waits_for_each_report_in_progress() {
        let mut report = TimesReport::default();
        assert!(report.plan() && report.begin());
        assert!(report.plan() && report.begin(), "a second report begins");
        report.begin_change();
        assert!(!report.end() && report.is_sending(), "the other report is still in progress");
        // A third report is due, but does not begin. The count still includes the report in
        // progress.
        assert!(report.plan() && !report.begin() && report.is_sending());
        assert!(report.end() && !report.is_sending());
    }
}
