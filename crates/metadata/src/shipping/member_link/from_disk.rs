//! Records from the primary's log on disk, for a member that lacks records which the primary no
//! longer has in memory.
//!
//! Chooses between the records in memory and the records on disk, and switches to a copy of the
//! store if the log on disk lacks the next record. [`crate::shipping::old_records`] owns the
//! records that were read from disk.

use super::MemberLink;
use crate::shipping::old_records::{OldRecords, ReadOutcome};
use crate::shipping::record_window::{RecordWindow, record_bytes};
use crate::shipping::{FoundRecords, LogRead, following};
use skep_types::{Lsn, Result, TargetId};

impl MemberLink {
    /// Returns the read of old log records that the caller must begin now.
    pub(in crate::shipping) fn wanted_read(
        &mut self,
        member: TargetId,
        window: &RecordWindow,
        logged: u64,
    ) -> Option<LogRead> {
        self.disk.old.as_mut()?.wanted(member, (self.next, window.before()), logged)
    }

    /// Handles the result of a read of old log records that began with the record `first`.
    /// `next_number` is the number that the next request will get.
    pub(in crate::shipping) fn on_log_read(
        &mut self,
        (first, result): (Lsn, Result<FoundRecords>),
        window: &RecordWindow,
        next_number: u64,
    ) {
        let outcome = self.disk.old.as_mut().map(|old| old.read(first, result));
        if let Some(ReadOutcome::Removed(begins)) = outcome {
            self.disk.log_begins = Some(begins.unwrap_or(window.before()));
            self.begin_copy();
            // Ignore late replies to the requests in flight: `Standing::confirm` would clear
            // `needs_copy`.
            self.resume(next_number);
        }
    }

    /// Stops shipping records to the member. If the member is absent, it gets a copy of the store
    /// instead.
    pub(super) fn begin_copy(&mut self) {
        self.disk.old = None;
        self.standing.needs_copy = true;
    }

    /// Whether the next record to ship must first be read from the log on disk.
    pub(super) fn awaits_read(&self, window: &RecordWindow) -> bool {
        let is_old = self.next <= window.before();
        is_old && self.disk.old.as_ref().is_some_and(|old| !old.has(self.next))
    }

    /// Returns the window that contains the next record to ship: the records in memory, or the
    /// records read from disk.
    pub(super) fn source<'a>(&'a self, window: &'a RecordWindow) -> &'a RecordWindow {
        let old = self.disk.old.as_ref().filter(|_| self.next <= window.before());
        old.map_or(window, OldRecords::piece)
    }

    /// Returns the number of bytes of the records that the member lacks. `None` means that this
    /// number is unknown, or that the member gets a copy. `logged` is the number of bytes of
    /// records that the primary has appended since its start.
    pub(in crate::shipping) fn missing_bytes(
        &self,
        window: &RecordWindow,
        logged: u64,
    ) -> Option<u64> {
        let appended = self.progress.appended;
        if self.standing.needs_copy || self.standing.acknowledged().is_none() {
            return None;
        }
        if let Some(old) = &self.disk.old {
            let first = following(old.piece().before());
            let earlier = self.under_way.iter().filter(|it| it.first < first);
            let sent: usize = earlier.map(|it| it.bytes).sum();
            return Some(old.missing_bytes(appended, logged)? + sent as u64);
        }
        let is_in_memory = appended >= window.before();
        is_in_memory.then(|| {
            window.from(following(appended)).map(|record| record_bytes(record) as u64).sum()
        })
    }
}
