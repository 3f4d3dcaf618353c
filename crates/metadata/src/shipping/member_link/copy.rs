//! The copy of the store to one member, as a part of the primary's link to the member.
//!
//! [`crate::shipping::copy_sender`] owns the copy. This module starts no copy. When a copy has
//! ended, this module makes the link ship records again.

use super::MemberLink;
use crate::shipping::copy_sender::{StorePage, WantedPart};
use crate::shipping::old_records::OldRecords;
use crate::shipping::record_window::RecordWindow;
use crate::shipping::{Progress, following};
use skep_types::{Epoch, Lsn, Result};
use skep_wire::log_shipping::{CopyProgress, StoreCopied};
use std::time::Duration;

impl MemberLink {
    /// Handles the reply to a request about a copy of the store, or the failure of the request.
    pub(in crate::shipping) fn on_copy_reply(
        &mut self,
        reply: (u64, &Result<StoreCopied>),
        log: (Epoch, &RecordWindow),
        next_number: u64,
        now: Duration,
    ) {
        let Some(copy) = &mut self.copy else { return };
        if let Some(last) = copy.on_reply(reply, log, now) {
            self.copy = None;
            self.standing.needs_copy = false;
            self.progress = Progress::default();
            self.resume(next_number);
            self.next = following(last.min(log.1.last()));
            self.disk.old = (last < log.1.before()).then(OldRecords::default);
            self.paused_until = now;
        }
    }

    /// Whether a copy of the store for this member is in progress.
    pub(in crate::shipping) fn has_copy(&self) -> bool {
        self.copy.is_some()
    }

    /// Returns the part of this member's copy that the primary must read from its store now.
    pub(in crate::shipping) fn wanted_part(
        &self,
        window: &RecordWindow,
        stored: Lsn,
        now: Duration,
    ) -> Option<WantedPart> {
        self.copy.as_ref().filter(|_| self.is_copied())?.wanted(window, stored, now)
    }

    /// Builds the next part of this member's copy from `page`, which the primary has read from its
    /// store.
    pub(in crate::shipping) fn put_part(
        &mut self,
        log: (Epoch, &RecordWindow),
        page: (Lsn, StorePage),
        bytes_per_second: u64,
        now: Duration,
    ) {
        if let Some(copy) = &mut self.copy {
            copy.put(log, page, bytes_per_second, now);
        }
    }

    /// Returns the progress of the member's copy, for administrators.
    pub(in crate::shipping) fn copy_progress(&self, total_pairs: u64) -> Option<CopyProgress> {
        self.copy.as_ref().filter(|_| self.is_copied()).map(|it| it.progress(total_pairs))
    }
}
