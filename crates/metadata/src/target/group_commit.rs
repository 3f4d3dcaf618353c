//! Group commit: one sync of the log covers the changes of many operations. This module owns the
//! order in which log records, calls and replies leave the target, and decides when a sync begins.
//! The module also releases the replies and calls that have waited for the log, and applies *safe*
//! changes to the store, if possible after the target has sent the replies.

use super::events::Action;
use super::gates::{PendingReply, ReplyGate};
use crate::engine::Engine;
use crate::target::MetadataTarget;
use crate::tx::operation::ConnectionId;
use skep_types::{Error, Lsn, Result, TargetId};
use skep_wire::Request;
use skep_wire::frame::Header;
use skep_wire::log_shipping::LogHeld;
use skep_wire::metadata::{BeginPrepare, ConfirmPrepared, Decide};

impl<E: Engine> MetadataTarget<E> {
    /// Handles the end of this target's sync of its log up to `lsn`.
    pub(super) fn on_synced(&mut self, lsn: Lsn) -> Result<()> {
        if !self.gates.end_sync(lsn) {
            return Ok(());
        }
        self.release_gated()
    }

    /// Handles another member's reply to a request of the shipper.
    pub(super) fn on_member_reply(
        &mut self,
        member: TargetId,
        number: u64,
        result: &Result<LogHeld>,
    ) -> Result<()> {
        let now = self.shared.now;
        let Some(progress) = self.shipper.on_reply(member, number, result, now) else {
            return Ok(());
        };
        self.gates.acknowledge(member, progress);
        self.release_gated()
    }

    /// Releases the replies, calls and operations whose records are *held* or *safe* now.
    pub(super) fn release_gated(&mut self) -> Result<()> {
        let (replies, calls) = self.gates.take_released();
        self.batch.replies.extend(replies.into_iter().map(|it| (ReplyGate::default(), it)));
        for (request, purpose) in calls {
            self.call(request, purpose);
        }
        let safe = self.gates.safe();
        if safe <= self.released {
            return Ok(());
        }
        self.released = safe;
        self.shipper.release(safe, self.shared.limits.members.kept_for_absent_bytes);
        self.shared.numbers.safe(safe);
        self.shared.starts.safe(safe);
        self.operations.wake_unsafe();
        // Replies do not depend on the store, because the log has the changes and the table serves
        // them from memory. So the replies and the next sync do not wait for the store: the next
        // batch begins with the write to the store.
        if self.batch.replies.is_empty() { self.store_safe() } else { Ok(()) }
    }

    /// Whether the store lacks changes that the target has released as *safe* and can apply now.
    pub(crate) fn has_to_store(&self) -> bool {
        self.table.has_to_store(self.released)
    }

    /// Applies the layers of changes that the target has released as *safe* to the store, and
    /// passes their work items to the background jobs.
    pub(super) fn store_safe(&mut self) -> Result<()> {
        if let Some(stored) = self.table.store(self.released)? {
            self.background.after_store(stored, &self.shared);
            if self.checkpoints.begin(self.shared.limits.checkpoint_log_bytes) {
                self.batch.actions.push(Action::Checkpoint { lsn: stored });
            }
        }
        Ok(())
    }

    /// Ends the log record in progress, which has the changes of all operations that have run since
    /// the previous record.
    pub(super) fn end_record(&mut self) {
        if self.table.has_batch() {
            let payload = self.table.log_batch();
            self.checkpoints.logged(payload.len());
            let (epoch, lsn) = (self.gates.epoch(), self.gates.next_lsn());
            let synced = self.gates.synced();
            self.shipper.append(epoch, lsn, synced, &payload);
            self.batch.records.push(Action::Append { epoch, lsn, synced, payload });
            self.gates.end_record(self.shared.now);
        }
    }

    /// Ends a batch. Returns its actions in this order: log records, the requests that ship these
    /// records, all other actions, replies, and a sync if one begins.
    pub(super) fn end_batch(&mut self) -> Vec<Action> {
        self.end_record();
        let batch = std::mem::take(&mut self.batch);
        // The records of this batch are complete now. So in a group of one member, they are *held*.
        let gates = &mut self.gates;
        let replies = batch.replies.into_iter().filter_map(|(gate, it)| gates.pass(gate, it));
        let replies: Vec<_> = replies.collect();
        let may_answer = self.may_answer();
        let replies = self.gates.pass_lease(may_answer, replies);
        let mut actions = batch.records;
        let requests = self.shipper.requests(&self.gates.group_log(), self.shared.now);
        actions.extend(requests.into_iter().map(Action::SendToMember));
        actions.extend(self.shipper.log_reads().into_iter().map(Action::ReadLog));
        actions.extend(self.group_changes().into_iter().map(Action::ChangeGroup));
        actions.extend(batch.actions);
        actions.extend(replies.into_iter().map(|reply| {
            let PendingReply { connection, request, change, result } = reply;
            let request = Header { sequence: change.unwrap_or(request.sequence), ..request };
            Action::Reply { connection, request, result }
        }));
        if self.shipper.counts_nonserving_member() || self.gates.holds_only_synced() {
            // Replies wait for a sync of this target, either directly or because a counted member
            // gets only synced records. So sync now.
            self.gates.request_own_sync();
        }
        if let Some(lsn) = self.gates.begin_sync(self.shared.now) {
            self.table.begin_sync(lsn);
            self.background.before_sync(lsn);
            actions.push(Action::Sync { lsn });
        }
        actions
    }

    /// Returns the LSN of the last record of the log.
    pub fn last_logged(&self) -> Lsn {
        self.gates.last_logged()
    }

    /// Refuses a request at the end of the batch.
    pub(crate) fn refuse(&mut self, connection: ConnectionId, request: Header, error: Error) {
        let reply = PendingReply { connection, request, change: None, result: Err(error) };
        self.queue_reply(reply, None);
    }

    /// Replies to a request at the end of the batch.
    pub(crate) fn reply_now(&mut self, connection: ConnectionId, request: Header, body: Vec<u8>) {
        let reply = PendingReply { connection, request, change: None, result: Ok(body) };
        self.queue_reply(reply, None);
    }

    /// Returns the LSN of the newest record on which a reply may depend, if the target queues the
    /// reply now.
    pub(crate) fn newest_record(&self) -> Lsn {
        // If the batch has no changes, the reply depends only on earlier records.
        if self.table.has_batch() { self.gates.next_lsn() } else { self.last_logged() }
    }

    /// Sends a reply at the end of the batch or later. The reply waits until all records that it
    /// may show are *held*. If `after` is a record, the reply also waits until that record is
    /// *safe*. Under [`SyncPolicy::Always`](super::SyncPolicy::Always), the reply waits until all
    /// of these records are *safe*. The gate of a reply is determined only here, so later records
    /// do not make it wait longer.
    pub(crate) fn queue_reply(&mut self, reply: PendingReply, after: Option<Lsn>) {
        // Refusals and replies to reads wait too, because they may show changes that are not
        // *held*. After a change of the primary or a power loss, these changes may not exist.
        let held = self.newest_record();
        // The coordinator of a staged transaction relies only on the reply to `ConfirmPrepared`.
        // This reply waits for the record of the prepared transaction (`after`).
        let message = reply.request.message;
        let of_staged = [BeginPrepare::ID, ConfirmPrepared::ID].contains(&message);
        let is_early = reply.result.is_ok() && of_staged;
        let syncs_each = self.gates.syncs_each_reply() && !is_early;
        let safe = if syncs_each { held } else { after.unwrap_or_default() };
        // No operation waits for the reply to a decision: the reply only lets the coordinator
        // forget the transaction. A sync for the reply would delay the next `Prepare`, whose reply
        // needs a sync too.
        let awaits_periodic_sync = !syncs_each && reply.request.message == Decide::ID;
        self.batch.replies.push((ReplyGate { held, safe, awaits_periodic_sync }, reply));
    }
}
