//! Group commit: the order in which log records, calls and replies leave the target, and the time
//! at which a sync begins.

use super::events::Action;
use super::gates::PendingReply;
use crate::engine::Engine;
use crate::target::MetadataTarget;
use crate::tx::operation::ConnectionId;
use skep_types::{Error, Lsn, Result};
use skep_wire::frame::Header;

impl<E: Engine> MetadataTarget<E> {
    /// Handles the end of the sync up to `lsn`: releases the replies and calls that waited for it.
    pub(super) fn on_synced(&mut self, lsn: Lsn) -> Result<()> {
        if !self.gates.end_sync(lsn) {
            return Ok(());
        }
        self.table.end_sync(lsn)?;
        self.shared.numbers.synced(lsn);
        self.shared.starts.synced(lsn);
        let (replies, calls) = self.gates.take_released();
        self.batch.replies.extend(replies);
        for (request, purpose) in calls {
            self.call(request, purpose);
        }
        self.operations.wake_unsynced();
        self.background.after_sync(&self.shared.limits);
        if self.checkpoints.begin(self.shared.limits.checkpoint_log_bytes) {
            self.batch.actions.push(Action::Checkpoint { lsn });
        }
        Ok(())
    }

    /// Ends the log record of the operations that have run since the previous record.
    pub(super) fn end_record(&mut self) {
        if self.table.has_batch() {
            let payload = self.table.log_batch();
            self.checkpoints.logged(payload.len());
            let (epoch, lsn) = (self.gates.epoch(), self.gates.next_lsn());
            let synced = self.gates.synced();
            self.batch.records.push(Action::Append { epoch, lsn, synced, payload });
            self.gates.end_record(self.shared.now);
        }
    }

    /// Ends a batch. Returns its log records, then its other actions, then the replies, then a sync
    /// if one begins.
    pub(super) fn end_batch(&mut self) -> Vec<Action> {
        self.end_record();
        let batch = std::mem::take(&mut self.batch);
        let mut actions = batch.records;
        actions.extend(batch.actions);
        actions.extend(batch.replies.into_iter().map(|reply| {
            let PendingReply { connection, request, result } = reply;
            Action::Reply { connection, request, result }
        }));
        if let Some(lsn) = self.gates.begin_sync(self.shared.now) {
            self.table.begin_sync();
            self.background.before_sync();
            actions.push(Action::Sync { lsn });
        }
        actions
    }

    pub(super) fn last_logged(&self) -> Lsn {
        self.gates.last_logged()
    }

    /// Refuses a request at the end of the batch.
    pub(crate) fn refuse(&mut self, connection: ConnectionId, request: Header, error: Error) {
        self.queue_reply(PendingReply { connection, request, result: Err(error) }, None);
    }

    /// Replies to a request at the end of the batch.
    pub(crate) fn reply_now(&mut self, connection: ConnectionId, request: Header, body: Vec<u8>) {
        self.queue_reply(PendingReply { connection, request, result: Ok(body) }, None);
    }

    /// Returns the last record on which a reply that is made now may depend.
    pub(super) fn newest_record(&self) -> Lsn {
        // If the batch has no changes, the reply depends only on earlier records.
        if self.table.has_batch() { self.gates.next_lsn() } else { self.last_logged() }
    }

    /// Sends a reply at the end of the batch. With `after`, sends it only after that record is
    /// synced. A target that syncs before each reply gates every reply here, once: a sync that ends
    /// later must not make a released reply wait again.
    pub(crate) fn queue_reply(&mut self, reply: PendingReply, after: Option<Lsn>) {
        // Refusals and replies to reads wait too, because they may show changes that a power loss
        // must not remove.
        let newest = self.gates.syncs_each_reply().then(|| self.newest_record());
        match after.max(newest) {
            Some(lsn) if lsn > self.gates.synced() => self.gates.gate_reply(lsn, reply),
            _ => self.batch.replies.push(reply),
        }
    }
}
