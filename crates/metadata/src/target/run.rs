//! Runs operations. A run either commits the operation, or refuses it, or parks it until it can run
//! again.

use super::calls::CallPurpose;
use super::gates::PendingReply;
use super::transactions::transaction_in;
use super::waits::WaitReason;
use crate::background;
use crate::engine::Engine;
use crate::handlers;
use crate::limits::{FIRST_PAUSE, LONGEST_PAUSE, TRANSACTION_WAIT};
use crate::locks::request::LockClaim;
use crate::namespace::inline;
use crate::target::MetadataTarget;
use crate::tx::context::{Context, UnloggedFields};
use crate::tx::locks::{Owner, Resource};
use crate::tx::operation::{Operation, Source, Stop};
use crate::tx::table::logged_bytes;
use crate::tx::work::InternalWork;
use skep_format::metadata::{DecisionRecord, Key, SlotRecord, StagedRecord};
use skep_service::quarantine;
use skep_types::codec::{Bytes, Codec};
use skep_types::{Error, ErrorCode, Lsn, Result};
use skep_wire::file_locks::{SetLock, SetLockReply};
use skep_wire::frame::Header;
use skep_wire::inline::SyncInline;
use skep_wire::metadata::{
    ConfirmPrepared, Decide, OpenSession, Prepare, ResolveTransaction, SyncAll,
};
use skep_wire::storage::WhichExist;
use skep_wire::{Request, catalog};

/// A key with its new value. `None` removes the key.
type Change = (Vec<u8>, Option<Vec<u8>>);

/// Returns the change that stores the reply to a request in the request's slot. `body` is the body
/// of the request.
fn slot_change(header: &Header, body: &[u8], lsn: Lsn, reply: &mut Vec<u8>) -> Result<Change> {
    inline::stamp(header.message, body, lsn, reply)?;
    let record = SlotRecord { sequence: header.sequence, lsn, reply: Bytes(reply.to_vec()) };
    Ok((Key::Slot(header.session, header.slot).to_bytes(), Some(record.to_bytes())))
}

impl<E: Engine> MetadataTarget<E> {
    /// Starts internal work of the target as an operation.
    pub(crate) fn start_internal(&mut self, work: InternalWork) {
        self.operations.start(Source::Internal(work), Vec::new());
    }

    pub(super) fn run_ready(&mut self) -> Result<()> {
        loop {
            self.end_notifications();
            let Some(op) = self.operations.take_ready() else { return Ok(()) };
            self.run(op)?;
        }
    }

    fn run(&mut self, mut op: Operation) -> Result<()> {
        if let Some(session) = op.session_needed()
            && let Some(refusal) = self.sessions.refusal(session)
        {
            // The session has ended while the operation waited. If the operation now opened a file,
            // nothing would ever close the file.
            return self.fail(op, refusal);
        }
        if let Some(inode) = op.awaited_truncation.take()
            && let Source::Peer { connection, header } = &op.source
        {
            self.note_awaited(inode, *connection, header.tag);
        }
        match self.may_run(&op) {
            Ok(true) => self.run_now(op),
            Ok(false) => {
                if let Source::Peer { connection, header } = &op.source {
                    self.gates.waits.add(*connection, header.tag, WaitReason::Others);
                }
                self.operations.park(op);
                self.wake_replay();
                Ok(())
            }
            Err(refusal) => self.fail(op, refusal),
        }
    }

    fn run_now(&mut self, mut op: Operation) -> Result<()> {
        let mut context = Context::new(&self.table, &mut self.shared, &mut op);
        let source = context.op.source.clone();
        let result = match &source {
            Source::Peer { header, .. } => {
                let _handling = quarantine::handling(header.message, &context.op.body);
                handlers::dispatch(&mut context, header.message)
            }
            Source::Internal(work) => background::run(&mut context, work).map(|()| Vec::new()),
        };
        // Restart the operation if this run has not repeated a call of an earlier run. That call
        // may have prepared steps that this run does not need, and a commit would apply them.
        let result = if context.has_unused_replies() && result.is_ok() {
            Err(Stop::Changed)
        } else {
            result
        };
        let outgoing = std::mem::take(&mut context.outgoing);
        let unlogged = std::mem::take(&mut context.unlogged);
        let writes = context.into_writes();
        if let (Source::Peer { connection, header }, Err(stop)) = (&source, &result)
            && let Some(reason) = self.reason_of(stop)
        {
            self.gates.waits.add(*connection, header.tag, reason);
        }
        match result {
            Ok(reply) => self.commit(op, writes, (reply, unlogged))?,
            Err(Stop::AwaitsReplies) => {
                for (index, call) in outgoing {
                    self.call(call, CallPurpose::Operation { id: op.id, index });
                }
                self.operations.park(op);
            }
            Err(Stop::Unsafe) => {
                self.gates.request_sync();
                self.operations.park_until_safe(op);
            }
            Err(Stop::Held(resource)) if self.keeps_transaction(&op, &resource) => {
                let latest = self.shared.now + TRANSACTION_WAIT;
                let until = *op.keeps_until.get_or_insert(latest);
                self.shared.locks.wait(resource, op.id);
                self.operations.park_until(until, op);
            }
            Err(Stop::Held(resource)) => {
                self.start_over(&mut op);
                if let Resource::Truncation(inode) = resource {
                    op.awaited_truncation = Some(inode);
                }
                // The resource may be free now, because `start_over` has released the locks of this
                // operation.
                if self.shared.locks.is_free(&resource, None) {
                    self.operations.wake([op.id]);
                } else {
                    self.shared.locks.wait(resource, op.id);
                }
                self.operations.park(op);
            }
            Err(Stop::HeldUntil { resource, until }) => {
                self.start_over(&mut op);
                self.shared.locks.wait(resource, op.id);
                self.operations.park_until(until, op);
            }
            Err(Stop::Busy | Stop::RecoversSize(_) | Stop::Changed) => {
                self.start_over(&mut op);
                let pause = (FIRST_PAUSE * (1 << op.restarts.min(10))).min(LONGEST_PAUSE);
                // Add a jitter to the pause, so that two operations that have blocked each other do
                // not run again at the same time.
                let spread =
                    (op.id.wrapping_mul(0x9E37_79B9) ^ u64::from(self.shared.group.raw())) % 8;
                let due = self.shared.now + pause + pause.mul_f64(spread as f64 / 8.0);
                self.operations.park_until(due, op);
            }
            Err(Stop::Fail(error)) => return self.fail(op, error),
        }
        Ok(())
    }

    /// Whether an operation that waits for `resource` keeps its prepared transaction meanwhile.
    ///
    /// Operations of two groups may each have prepared a transaction at the other group, and then
    /// find their own resource locked by the transaction of the other group. If both aborted their
    /// transactions, both would start over at the same time and could meet again. So only the
    /// operation of the group with the higher id aborts its transaction, and the other operation
    /// waits for the end of this transaction. All waits with a prepared transaction lead from a
    /// group to a group with a higher id, so no deadlock cycle can form.
    ///
    /// The operation waits at most for [`TRANSACTION_WAIT`], because its transaction locks
    /// resources of other groups, and the other coordinator may have failed.
    fn keeps_transaction(&self, op: &Operation, resource: &Resource) -> bool {
        let holder = self.shared.locks.owner_of(resource);
        let holder_gives_way =
            matches!(holder, Some(Owner::Prepared(it)) if it.coordinator > self.shared.group);
        let has_time = op.keeps_until.is_none_or(|until| self.shared.now < until);
        op.transaction.is_some() && holder_gives_way && has_time
    }

    /// Returns the reason why an operation that stopped waits. `None` means that the operation has
    /// failed.
    fn reason_of(&self, stop: &Stop) -> Option<WaitReason> {
        match stop {
            Stop::Unsafe => Some(self.gates.reason_until_safe(self.gates.next_lsn())),
            Stop::RecoversSize(inode) => {
                let storage = self.background.awaited_for_size(*inode);
                Some(storage.map_or(WaitReason::Others, WaitReason::Storage))
            }
            Stop::AwaitsReplies
            | Stop::Held(_)
            | Stop::HeldUntil { .. }
            | Stop::Busy
            | Stop::Changed => Some(WaitReason::Others),
            Stop::Fail(_) => None,
        }
    }

    /// Aborts an operation's prepared transactions, releases its locks and drops the replies that
    /// it has received, so that it can run again from the start.
    fn start_over(&mut self, op: &mut Operation) {
        op.restarts += 1;
        self.abandon(op);
    }

    fn abandon(&mut self, op: &mut Operation) {
        if let Some(number) = op.transaction.take() {
            for participant in std::mem::take(&mut op.participants) {
                self.send_decision(participant, number, false, None);
            }
        }
        op.keeps_until = None;
        self.give_back_rename_lock(op, None);
        if !op.remote_calls.is_empty() {
            self.calls.abandon(op.id);
            op.remote_calls.clear();
        }
        self.release(Owner::Operation(op.id));
    }

    fn give_back_rename_lock(&mut self, op: &mut Operation, after: Option<Lsn>) {
        if let Some((number, group)) = op.rename_lock.take() {
            self.send_decision(group, number, false, after);
        }
    }

    /// Releases all locks of `owner`, and wakes the operations that wait for these locks.
    pub(crate) fn release(&mut self, owner: Owner) {
        if !self.shared.locks.is_empty() {
            let woken = self.shared.locks.release(owner);
            self.operations.wake(woken);
        }
    }

    pub(crate) fn fail(&mut self, mut op: Operation, error: Error) -> Result<()> {
        let ends = match &op.source {
            Source::Internal(InternalWork::EndPrepared { transaction, .. }) => Some(*transaction),
            Source::Peer { header, .. } if header.message == Decide::ID => {
                transaction_in(header, &op.body)
            }
            _ => None,
        };
        if let Source::Internal(InternalWork::UndoStaged(number)) = &op.source
            && error.code() != ErrorCode::DeviceFailed
        {
            self.note_failed_undo(*number, &error);
            return Ok(());
        }
        let is_own = matches!(op.source, Source::Internal(_));
        if error.code() == ErrorCode::DeviceFailed || is_own && ends.is_none() {
            // The target cannot read its state or do its internal work. The target stops, because
            // further changes would add to the damage.
            return Err(error.within("the metadata target stops"));
        }
        if let Some(transaction) = ends {
            // The store contradicts the prepared steps. None of the steps was carried out, and
            // their names and inodes stay locked. The target serves all other requests.
            self.background.set_problem(transaction, &error);
        }
        self.abandon(&mut op);
        if let Source::Peer { connection, header } = op.source {
            let slot = (header.session, header.slot);
            self.sessions.clear_running(slot, op.id);
            // Only changes use a slot. The target has not checked the slot and the sequence of any
            // other request.
            if catalog::message(header.message).is_some_and(|message| message.modifies) {
                self.sessions.refuse(slot, header.sequence, &error);
            }
            self.after_replay(&header, op.id, true);
            for (connection, header) in op.repetitions {
                self.refuse(connection, header, error.clone());
            }
            self.refuse(connection, header, error);
        }
        Ok(())
    }

    /// Commits the changes of an operation and sends its reply, with its unlogged fields. If the
    /// operation has changed stripe patterns, opens of these files wait until the change is *safe*.
    fn commit(
        &mut self,
        mut op: Operation,
        writes: Vec<Change>,
        (mut reply, unlogged): (Vec<u8>, UnloggedFields),
    ) -> Result<()> {
        let lsn = match self.take_changes(&op, writes, &mut reply, unlogged.staged.as_ref()) {
            Ok(lsn) => lsn,
            Err(error) => return self.fail(op, error),
        };
        unlogged.add_to(&mut reply);
        for inode in &unlogged.changed_patterns {
            self.shared.starts.patterns.note(*inode, lsn);
        }
        if let Some(record) = unlogged.staged {
            self.stage(op, lsn, reply, record);
            return Ok(());
        }
        // A client cannot replay a change of several groups: after a power loss, the other groups
        // undo their steps, and then execute changes of other clients. So the reply to a change of
        // several groups waits until the decision is safe. The wait of the reply delays few
        // operations, since a later change of one of these inodes must wait for the decision
        // anyway.
        let spans_groups = op.transaction.is_some() || op.rename_lock.is_some();
        if let Some(number) = op.transaction.take() {
            for participant in std::mem::take(&mut op.participants) {
                self.send_decision(participant, number, true, Some(lsn));
            }
            self.gates.request_sync();
        }
        // The target releases the rename lock only after this record is safe. With an earlier
        // release, the next holder of the lock would check its rename against a directory tree with
        // a change that a power loss can revert.
        self.give_back_rename_lock(&mut op, Some(lsn));
        self.release(Owner::Operation(op.id));
        self.end_truncations()?;
        match op.source {
            Source::Internal(work) => self.after_internal(work, lsn)?,
            Source::Peer { connection, header } => {
                self.after_transaction_request(&header, &op.body, &reply)?;
                if header.message == SetLock::ID {
                    self.after_set_lock(&header, &op.body, &reply)?;
                }
                let after = self.after_request(&header, &op.body, &reply);
                let after = after.or(spans_groups.then_some(lsn));
                self.after_replay(&header, op.id, false);
                let change = Some(self.number_of_change(&header, after));
                for (connection, request) in op.repetitions {
                    let result = Ok(reply.clone());
                    let reply = PendingReply { connection, request, change, result };
                    self.reply_committed(&op.body, reply, after)?;
                }
                let (request, result) = (header, Ok(reply));
                let reply = PendingReply { connection, request, change, result };
                self.reply_committed(&op.body, reply, after)?;
            }
        }
        Ok(())
    }

    /// Moves the changes of an operation into the batch, with its decision record or the record of
    /// its staged transaction, and with its reply. All of them get into the same log record.
    /// Returns the LSN of that record.
    ///
    /// # Errors
    /// `TooLarge` if the changes exceed the limit of one operation. The error leaves the batch
    /// unchanged.
    fn take_changes(
        &mut self,
        op: &Operation,
        mut changes: Vec<Change>,
        reply: &mut Vec<u8>,
        staged: Option<&StagedRecord>,
    ) -> Result<Lsn> {
        if let Some(number) = op.transaction {
            let (key, value) = match staged {
                Some(record) => (Key::Staged(number), record.to_bytes()),
                None => {
                    let participants = op.participants.clone();
                    (Key::Decision(number), DecisionRecord { participants }.to_bytes())
                }
            };
            changes.push((key.to_bytes(), Some(value)));
        }
        let answered = op.header().filter(|_| op.session_needed().is_some());
        if let Some(header) = answered {
            changes.push(slot_change(header, &op.body, self.gates.next_lsn(), reply)?);
        }
        let bytes =
            changes.iter().map(|(key, value)| logged_bytes(key, value.as_deref())).sum::<usize>();
        let limits = &self.shared.limits;
        if bytes > limits.operation_bytes {
            let most = limits.operation_bytes;
            let what = format!("cannot change {bytes} bytes in one operation: the limit is {most}");
            return Err(Error::new(ErrorCode::TooLarge, what));
        }
        if !self.table.fits(bytes, limits.record_bytes) {
            self.end_record();
            if let (Some(header), Some(last)) = (answered, changes.last_mut()) {
                *last = slot_change(header, &op.body, self.gates.next_lsn(), reply)?;
            }
        }
        for (key, value) in changes {
            self.background.on_write(&key, value.is_some());
            self.shared.file_locks.on_write(&key, value.as_deref())?;
            self.shared.sharing.on_write(&key, value.is_some());
            self.on_truncation_written(&key, value.as_deref())?;
            self.table.write(key, value);
        }
        Ok(self.gates.next_lsn())
    }

    /// If a `SetLock` request has set its lock, ends the wait for this lock.
    fn after_set_lock(&mut self, header: &Header, body: &[u8], reply: &[u8]) -> Result<()> {
        let SetLock { lock, wait } = SetLock::from_bytes(body)?;
        let is_set = SetLockReply::from_bytes(reply)?.conflict.is_none();
        if let Some(claim) = LockClaim::of(header.session, &lock).filter(|_| is_set) {
            let now = self.shared.now;
            self.shared.file_locks.granted(lock.inode, &claim, wait, now);
        }
        Ok(())
    }

    /// Returns the number of a change, for the header of its reply. With this number, the client
    /// can replay the change after a power loss. The result is zero if the target sends the reply
    /// only when the change is safe, or if the request is not a change of a client. `after` is the
    /// record that must be safe before the reply.
    fn number_of_change(&mut self, header: &Header, after: Option<Lsn>) -> u64 {
        let is_change = catalog::message(header.message).is_some_and(|message| message.modifies);
        if !is_change || after.is_some() || self.gates.syncs_each_reply() {
            return 0;
        }
        self.shared.starts.next_change()
    }

    /// Updates the sessions after a request was committed. Returns the record that must be *safe*
    /// before the reply is sent. `None` means that the reply need not wait for a record.
    fn after_request(&mut self, header: &Header, body: &[u8], reply: &[u8]) -> Option<Lsn> {
        let slot = (header.session, header.slot);
        if catalog::message(header.message).is_some_and(|message| message.modifies) {
            self.sessions.clear_running_slot(slot);
        }
        let mut is_durable = header.is_durable();
        match header.message {
            OpenSession::ID => {
                self.sessions.opened(header.session, body, reply, self.shared.now);
                // The client is opening this session, so it has no lost changes to replay. If the
                // session already exists, the reply to an earlier `OpenSession` was lost.
                self.end_replay(header.session);
                // A power loss must not remove a session. Without the session, its client could not
                // find out which of its requests were executed.
                is_durable = true;
            }
            Decide::ID | Prepare::ID | ResolveTransaction::ID => is_durable = true,
            ConfirmPrepared::ID => return Some(self.record_to_confirm(header, body, reply)),
            SyncAll::ID | WhichExist::ID | SyncInline::ID => is_durable = true,
            _ => {}
        }
        is_durable.then(|| self.newest_record())
    }
}
