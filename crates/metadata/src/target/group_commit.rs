//! When what leaves a target: the log records of a batch, its replies, and what waits for a sync.

use crate::engine::Engine;
use crate::limits::SYNC_AFTER;
use crate::target::{Action, MetadataTarget, SyncPolicy, Waiting};
use skep_types::{Lsn, Result};

impl<E: Engine> MetadataTarget<E> {
    /// The log is on the device up to a record: what waited for that goes on.
    pub(crate) fn on_synced(&mut self, lsn: Lsn) -> Result<()> {
        if self.syncing != Some(lsn) {
            return Ok(());
        }
        self.syncing = None;
        self.table.end_sync(lsn)?;
        self.synced = lsn;
        let numbers = &mut self.shared.numbers;
        if numbers.reserved.1 <= lsn {
            numbers.usable = numbers.reserved.0;
        }
        self.shared.epochs.synced(lsn);
        let still_gated = self.gated.split_off(&Lsn::new(lsn.raw() + 1));
        for waiting in std::mem::replace(&mut self.gated, still_gated).into_values().flatten() {
            self.replies.push(waiting);
        }
        let still_gated = self.gated_calls.split_off(&Lsn::new(lsn.raw() + 1));
        let released = std::mem::replace(&mut self.gated_calls, still_gated);
        for (request, purpose) in released.into_values().flatten() {
            self.call(request, purpose);
        }
        self.ready.extend(std::mem::take(&mut self.unsynced));
        self.background.after_sync();
        if self.logged_bytes >= self.shared.limits.checkpoint_log_bytes && !self.is_checkpointing {
            self.is_checkpointing = true;
            self.logged_bytes = 0;
            self.actions.push(Action::Checkpoint { lsn });
        }
        Ok(())
    }

    /// Ends the log record of the operations that have run since the last one.
    pub(crate) fn end_record(&mut self) {
        if self.table.has_batch() {
            let payload = self.table.log_batch();
            self.logged_bytes += payload.len() as u64;
            let (lsn, synced) = (self.next_lsn, self.synced);
            self.records.push(Action::Append { lsn, synced, payload });
            self.next_lsn = Lsn::new(lsn.raw() + 1);
            self.first_unsynced_at.get_or_insert(self.shared.now);
        }
    }

    /// Ends a batch: its log records, then what was to be done, then the replies.
    pub(crate) fn end_batch(&mut self) {
        self.end_record();
        let calls = std::mem::replace(&mut self.actions, std::mem::take(&mut self.records));
        self.actions.extend(calls);
        if self.policy == SyncPolicy::Always && self.last_logged() > self.synced {
            // Also replies that only read: what they show must not be lost either.
            let replies = std::mem::take(&mut self.replies);
            self.gated.entry(self.last_logged()).or_default().extend(replies);
            self.sync_now = true;
        }
        for Waiting { connection, request, result } in std::mem::take(&mut self.replies) {
            self.actions.push(Action::Reply { connection, request, result });
        }
        self.begin_sync_if_due();
    }

    fn begin_sync_if_due(&mut self) {
        let last = self.last_logged();
        if self.syncing.is_some() || last == self.synced {
            return;
        }
        let is_due = self.first_unsynced_at.is_some_and(|at| self.shared.now >= at + SYNC_AFTER);
        if self.sync_now || is_due {
            self.sync_now = false;
            self.first_unsynced_at = None;
            self.syncing = Some(last);
            self.table.begin_sync();
            self.background.before_sync();
            self.actions.push(Action::Sync { lsn: last });
        }
    }
}
