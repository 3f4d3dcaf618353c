//! A metadata target as a pure state machine: events in, actions out; no clock, no socket, no file.
//! The real service and the simulator run the same code.
//!
//! All events that have arrived are handled as one batch: their transactions run one after the
//! other, what they changed is logged, and the replies go out after it. What one transaction
//! changed is always in one log record; a batch has as many records as it takes.
//!
//! # Invariants
//! - A reply to a modifying request leaves after its log record was appended.
//! - No log record is longer than its reader accepts: see [`Limits::operation_bytes`].
//! - What others build on (prepared transactions, commits, removals of chunk files, answers about which inodes
//!   exist) leaves after the record was synced.
//! - After an error of the engine the target is of no more use: [`MetadataTarget::handle`] fails.

mod events;
mod group_commit;

pub use events::{Action, Event};

use crate::background::{Background, BackgroundCall, transaction_in};
use crate::engine::Engine;
use crate::handlers;
use crate::limits::{FIRST_PAUSE, LONGEST_PAUSE, LONGEST_WAIT, Limits, SYNC_AFTER};
use crate::locks::file_locks::{FileLocks, Wanted};
use crate::namespace::inline;
use crate::namespace::truncations::TruncationTable;
use crate::sessions::table::Sessions;
use crate::sharing::table::Sharing;
use crate::tx::context::{Context, Numbers, Shared};
use crate::tx::epochs::Epochs;
use crate::tx::locks::{Locks, Owner};
use crate::tx::operation::{CallId, ConnectionId, Internal, Operation, OutgoingCall, Source, Stop};
use crate::tx::table::{Table, logged_bytes};
use skep_cluster::placement::{Candidates, Cursor};
use skep_format::metadata::{DecisionRecord, Key, SlotRecord};
use skep_types::codec::{Bytes, Codec};
use skep_types::{
    ClusterMap, Error, ErrorCode, GroupId, InodeId, Lsn, MapVersion, Result, ShardId, TargetKind,
    Timestamp,
};
use skep_wire::file_locks::{HeldLock, SetLock, SetLockReply};
use skep_wire::frame::Header;
use skep_wire::inline::SyncInline;
use skep_wire::metadata::{Decide, OpenSession, Prepare, SyncAll};
use skep_wire::storage::WhichExist;
use skep_wire::{Request, catalog};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// When the log is synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncPolicy {
    /// At most [`crate::limits::SYNC_INTERVAL`] after an append, and at once where a request asks
    /// for it.
    Interval,
    /// Before each reply.
    Always,
}

/// What an answer of another group is for.
#[derive(Debug)]
pub(crate) enum Purpose {
    Operation {
        id: u64,
        index: usize,
    },
    Background(BackgroundCall),
    /// Whoever asked has started again or failed.
    Nobody,
}

impl Purpose {
    /// Whether it is to tell how a transaction of this group ended.
    fn is_about(&self, transaction: u64) -> bool {
        matches!(self, Self::Background(BackgroundCall::Told { number, .. }) if *number == transaction)
    }
}

pub(crate) struct Waiting {
    pub(crate) connection: ConnectionId,
    pub(crate) request: Header,
    pub(crate) result: Result<Vec<u8>>,
}

/// A key and its new value; none: it is removed.
type Change = (Vec<u8>, Option<Vec<u8>>);

/// What remembers the answer of a request.
fn slot_change(header: &Header, lsn: Lsn, reply: &mut Vec<u8>) -> Result<Change> {
    inline::stamp(header, lsn, reply)?;
    let record = SlotRecord { sequence: header.sequence, lsn, reply: Bytes(reply.to_vec()) };
    Ok((Key::Slot(header.session, header.slot).to_bytes(), Some(record.to_bytes())))
}

/// A metadata target. See the file's description.
pub struct MetadataTarget<E> {
    pub(crate) table: Table<E>,
    pub(crate) shared: Shared,
    pub(crate) sessions: Sessions,
    pub(crate) background: Background,
    pub(crate) policy: SyncPolicy,
    pub(crate) operations: HashMap<u64, Operation>,
    pub(crate) next_operation: u64,
    pub(crate) ready: VecDeque<u64>,
    /// Operations that run again after a pause, by time.
    paused: BTreeMap<(Duration, u64), ()>,
    /// Operations that wait for the next sync.
    pub(crate) unsynced: Vec<u64>,
    pub(crate) calls: HashMap<CallId, Purpose>,
    next_call: CallId,
    /// Record in which the next transaction will be.
    pub(crate) next_lsn: Lsn,
    pub(crate) synced: Lsn,
    pub(crate) syncing: Option<Lsn>,
    pub(crate) first_unsynced_at: Option<Duration>,
    pub(crate) sync_now: bool,
    /// Replies that wait for a sync.
    pub(crate) gated: BTreeMap<Lsn, Vec<Waiting>>,
    /// Requests to others that wait for a sync.
    pub(crate) gated_calls: BTreeMap<Lsn, Vec<(OutgoingCall, Purpose)>>,
    /// Replies of the batch being run.
    pub(crate) replies: Vec<Waiting>,
    pub(crate) actions: Vec<Action>,
    /// Log records of the batch that have ended.
    pub(crate) records: Vec<Action>,
    pub(crate) logged_bytes: u64,
    pub(crate) fence: MapVersion,
    pub(crate) is_checkpointing: bool,
}

impl<E> std::fmt::Debug for MetadataTarget<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MetadataTarget(group {}, next {})", self.shared.group, self.next_lsn)
    }
}

/// How a target starts.
#[derive(Debug)]
pub struct Start {
    /// The group that it serves.
    pub group: GroupId,
    /// When the log is synced.
    pub policy: SyncPolicy,
    /// Limits.
    pub limits: Limits,
    /// The newest map.
    pub map: Arc<ClusterMap>,
    /// Time since some start.
    pub now: Duration,
    /// Time of day.
    pub wall: Timestamp,
}

impl<E: Engine> MetadataTarget<E> {
    /// Starts from an engine as it was left, and the log records since (those that it has already
    /// do no harm). All of `records` must be on the device.
    ///
    /// # Errors
    /// `Corrupt` if a record is missing or malformed; the engine's errors.
    pub fn open(
        engine: E,
        records: impl IntoIterator<Item = (Lsn, Vec<u8>)>,
        start: Start,
    ) -> Result<Self> {
        let mut table = Table::new(engine, start.limits.scan_page);
        let applied = table.get_synced::<Lsn>(&Key::Applied.to_bytes())?.unwrap_or_default();
        let mut last = applied;
        let mut previous: Option<Lsn> = None;
        for (lsn, payload) in records {
            let expected = previous.map_or(applied.raw() + 1, |it| it.raw() + 1);
            let follows =
                if previous.is_none() { lsn.raw() <= expected } else { lsn.raw() == expected };
            if !follows {
                return Err(Error::new(
                    ErrorCode::Corrupt,
                    format!("log record {lsn} found where record {expected} was expected"),
                ));
            }
            // A restart on a full disk must not write again what is there.
            if lsn > applied {
                table.replay(lsn, &payload)?;
            }
            previous = Some(lsn);
            last = last.max(lsn);
        }
        let reserved = table.get_synced::<u64>(&Key::NumbersReserved.to_bytes())?;
        // Numbers below the reservation may have been handed out; zero and one are never (one is
        // the root's).
        let next = reserved.unwrap_or(2).max(2);
        let mut target = Self {
            sessions: Sessions::default(),
            background: Background::default(),
            table,
            shared: Shared {
                group: start.group,
                map: Arc::new(ClusterMap::empty(start.map.cluster)),
                own_shards: Vec::new(),
                metadata_groups: Vec::new(),
                candidates: Candidates::new(&start.map),
                cursor: Cursor::default(),
                locks: Locks::default(),
                truncations: TruncationTable::default(),
                file_locks: FileLocks::default(),
                sharing: Sharing::default(),
                numbers: Numbers { next, usable: next, reserved: (next, last) },
                epochs: Epochs::default(),
                limits: start.limits,
                shortage: None,
                now: start.now,
                wall: start.wall,
            },
            policy: start.policy,
            operations: HashMap::new(),
            next_operation: 1,
            ready: VecDeque::new(),
            paused: BTreeMap::new(),
            unsynced: Vec::new(),
            calls: HashMap::new(),
            next_call: 1,
            next_lsn: Lsn::new(last.raw() + 1),
            synced: last,
            syncing: None,
            first_unsynced_at: None,
            sync_now: false,
            gated: BTreeMap::new(),
            gated_calls: BTreeMap::new(),
            replies: Vec::new(),
            actions: Vec::new(),
            records: Vec::new(),
            logged_bytes: 0,
            fence: MapVersion::default(),
            is_checkpointing: false,
        };
        let fence = target.table.get_synced::<MapVersion>(&Key::Fence.to_bytes())?;
        target.fence = fence.unwrap_or_default();
        target.load_sessions()?;
        target.load_background()?;
        target.load_file_locks()?;
        target.load_sharing()?;
        target.load_epochs()?;
        target.set_map(start.map)?;
        Ok(target)
    }

    /// Handles events as one batch and gives what is to be done, in order.
    ///
    /// # Errors
    /// The engine's. The target must not be used any more.
    pub fn handle(
        &mut self,
        events: impl IntoIterator<Item = Event>,
        now: Duration,
        wall: Timestamp,
    ) -> Result<Vec<Action>> {
        self.notice_standstill(now);
        self.shared.now = now;
        self.shared.wall = self.shared.wall.max(wall);
        for event in events {
            match event {
                Event::Request { connection, header, body } => {
                    self.on_request(connection, header, body)?;
                }
                Event::Answer { call, result } => self.on_answer(call, result),
                Event::Synced { lsn } => self.on_synced(lsn)?,
                Event::Map(map) => self.set_map(map)?,
                Event::Checkpointed { .. } => self.is_checkpointing = false,
                Event::FreeSpace { shortage } => self.shared.shortage = shortage,
                Event::Tick => {}
            }
            self.run_ready()?;
        }
        self.expire_sessions();
        self.work_in_background()?;
        self.wake_paused();
        self.run_ready()?;
        self.call_lock_waits();
        self.send_notifications();
        self.end_batch();
        Ok(std::mem::take(&mut self.actions))
    }

    /// When [`Event::Tick`] is due at the latest.
    pub fn next_tick(&self) -> Duration {
        let mut due = self.shared.now + LONGEST_WAIT;
        if let Some(((at, _), ())) = self.paused.first_key_value() {
            due = due.min(*at);
        }
        if let (Some(first), None) = (self.first_unsynced_at, self.syncing) {
            due = due.min(first + SYNC_AFTER);
        }
        if !self.background.ending.is_empty() {
            due = self.shared.now;
        }
        due
    }

    /// Whether nothing is under way: no operation, no call, nothing unsynced.
    pub fn is_idle(&self) -> bool {
        self.operations.is_empty()
            && self.calls.is_empty()
            && self.first_unsynced_at.is_none()
            && self.background.ending.is_empty()
    }

    /// Whether a transaction of this group is still undecided.
    pub(crate) fn is_coordinating(&self, number: u64) -> bool {
        let mut all = self.operations.values();
        let is_at_work = all.any(|op| {
            op.transaction == Some(number) || op.rename_lock.is_some_and(|(it, _)| it == number)
        });
        let mut gated = self.gated_calls.values().flatten();
        is_at_work || gated.any(|(_, purpose)| purpose.is_about(number))
    }

    /// The engine, for checkpoints and checkers.
    pub fn engine(&self) -> &E {
        self.table.engine()
    }

    /// The engine, for checkpoints.
    pub fn engine_mut(&mut self) -> &mut E {
        self.table.engine_mut()
    }

    fn set_map(&mut self, map: Arc<ClusterMap>) -> Result<()> {
        let shared = &mut self.shared;
        shared.candidates = Candidates::new(&map);
        shared.metadata_groups = map
            .groups
            .iter()
            .filter(|group| {
                group.kind == TargetKind::Metadata
                    && map.shards.iter().any(|range| range.group == group.id)
            })
            .map(|group| group.id)
            .collect();
        shared.own_shards = map
            .shards
            .iter()
            .filter(|range| range.group == shared.group)
            .flat_map(|range| (range.first.raw()..=range.last.raw()).map(ShardId::new))
            .collect();
        shared.map = map;
        self.end_sessions_of_removed();
        let shared = &self.shared;
        let root = skep_types::InodeId::ROOT;
        if shared.map.shard_group(root.shard()) == Some(shared.group)
            && self.table.get(&Key::Inode(root).to_bytes())?.is_none()
        {
            self.start_internal(Internal::MakeRoot);
        }
        Ok(())
    }

    // ---- running operations

    pub(crate) fn start_internal(&mut self, work: Internal) {
        self.start(Source::Internal(work), Vec::new());
    }

    pub(crate) fn start(&mut self, source: Source, body: Vec<u8>) {
        let id = self.next_operation;
        self.next_operation += 1;
        self.operations.insert(id, Operation::new(id, source, body));
        self.ready.push_back(id);
    }

    fn run_ready(&mut self) -> Result<()> {
        loop {
            self.end_notifications();
            let Some(id) = self.ready.pop_front() else { return Ok(()) };
            if let Some(op) = self.operations.remove(&id) {
                self.run(op)?;
            }
        }
    }

    fn run(&mut self, mut op: Operation) -> Result<()> {
        if let Some(session) = op.session_needed()
            && let Some(refusal) = self.sessions.refusal(session)
        {
            // It ended while the operation waited. What it opened now would stay open for ever.
            return self.fail(op, refusal);
        }
        let mut context = Context::new(&self.table, &mut self.shared, &mut op);
        let source = context.op.source.clone();
        let result = match &source {
            Source::Peer { header, .. } if header.message == OpenSession::ID => {
                crate::sessions::table::open_session(&mut context)
            }
            Source::Peer { header, .. } => handlers::dispatch(&mut context, header.message),
            Source::Internal(work) => {
                crate::background::run_internal(&mut context, work).map(|()| Vec::new())
            }
        };
        // What it was promised on an earlier run would be committed with this one.
        let result = if context.has_unused_answers() && result.is_ok() {
            Err(Stop::Changed)
        } else {
            result
        };
        let outgoing = std::mem::take(&mut context.outgoing);
        let writes = context.into_writes();
        match result {
            Ok(reply) => self.commit(op, writes, reply)?,
            Err(Stop::Asked) => {
                for (index, call) in outgoing {
                    self.call(call, Purpose::Operation { id: op.id, index });
                }
                self.operations.insert(op.id, op);
            }
            Err(Stop::Truncating(calls)) => {
                for call in calls {
                    let purpose = BackgroundCall::Truncation(op.truncation.unwrap_or_default());
                    self.call(call, Purpose::Background(purpose));
                }
                self.operations.insert(op.id, op);
            }
            Err(Stop::Unsynced) => {
                self.sync_now = true;
                self.unsynced.push(op.id);
                self.operations.insert(op.id, op);
            }
            Err(Stop::Held(resource)) => {
                self.start_over(&mut op);
                // Giving back the rename lock may have freed just that.
                if self.shared.locks.is_free(&resource, None) {
                    self.ready.push_back(op.id);
                } else {
                    self.shared.locks.wait(resource, op.id);
                }
                self.operations.insert(op.id, op);
            }
            Err(Stop::Busy | Stop::Changed) => {
                self.start_over(&mut op);
                let pause = (FIRST_PAUSE * (1 << op.restarts.min(10))).min(LONGEST_PAUSE);
                // Two that got in each other's way must not come back at the same time.
                let spread =
                    (op.id.wrapping_mul(0x9E37_79B9) ^ u64::from(self.shared.group.raw())) % 8;
                let due = self.shared.now + pause + pause.mul_f64(spread as f64 / 8.0);
                self.paused.insert((due, op.id), ());
                self.operations.insert(op.id, op);
            }
            Err(Stop::Fail(error)) => return self.fail(op, error),
        }
        Ok(())
    }

    /// Takes back all that an operation holds anywhere, and forgets what it has learned.
    fn start_over(&mut self, op: &mut Operation) {
        op.restarts += 1;
        self.abandon(op);
    }

    fn abandon(&mut self, op: &mut Operation) {
        if let Some(number) = op.transaction.take() {
            for participant in std::mem::take(&mut op.participants) {
                self.tell(participant, number, false, None);
            }
        }
        self.give_back_rename_lock(op, None);
        if !op.asked.is_empty() {
            for purpose in self.calls.values_mut() {
                if matches!(purpose, Purpose::Operation { id, .. } if *id == op.id) {
                    *purpose = Purpose::Nobody;
                }
            }
            op.asked.clear();
        }
        self.release(Owner::Operation(op.id));
    }

    fn give_back_rename_lock(&mut self, op: &mut Operation, after: Option<Lsn>) {
        if let Some((number, group)) = op.rename_lock.take() {
            self.tell(group, number, false, after);
        }
    }

    pub(crate) fn release(&mut self, owner: Owner) {
        if !self.shared.locks.is_empty() {
            let woken = self.shared.locks.release(owner);
            self.ready.extend(woken);
        }
    }

    pub(crate) fn fail(&mut self, mut op: Operation, error: Error) -> Result<()> {
        let is_own = matches!(op.source, Source::Internal(_));
        let is_fatal = error.code() == ErrorCode::DeviceFailed
            || is_own
            || error.code() != ErrorCode::Protocol
                && op.header().is_some_and(|header| header.message == Decide::ID);
        if is_fatal {
            // A prepared transaction that can't be kept, or state that can't be read: going on would make it
            // worse.
            return Err(error.within("metadata target"));
        }
        self.abandon(&mut op);
        self.leave_truncation(&op);
        if let Source::Peer { connection, header } = op.source {
            let slot = (header.session, header.slot);
            self.sessions.clear_running(slot, op.id);
            if header.sequence != 0 {
                self.sessions.refuse(slot, header.sequence, &error);
            }
            for (connection, header) in op.repetitions {
                self.refuse(connection, header, error.clone());
            }
            self.refuse(connection, header, error);
        }
        Ok(())
    }

    fn commit(&mut self, mut op: Operation, writes: Vec<Change>, mut reply: Vec<u8>) -> Result<()> {
        let lsn = match self.take_changes(&op, writes, &mut reply) {
            Ok(lsn) => lsn,
            Err(error) => return self.fail(op, error),
        };
        if let Some(number) = op.transaction.take() {
            for participant in std::mem::take(&mut op.participants) {
                self.tell(participant, number, true, Some(lsn));
            }
            self.sync_now = true;
        }
        // The next one to hold it walks the tree as it will be, and builds on it elsewhere.
        self.give_back_rename_lock(&mut op, Some(lsn));
        self.release(Owner::Operation(op.id));
        if let Some(inode) = op.truncation {
            self.end_truncation(inode);
        }
        match op.source {
            Source::Internal(work) => self.after_internal(work, lsn),
            Source::Peer { connection, header } => {
                match (header.message, transaction_in(&header, &op.body)) {
                    (Decide::ID, Some(transaction)) => self.after_decide(transaction),
                    (Prepare::ID, Some(transaction)) => self.after_prepare(transaction)?,
                    _ => {}
                }
                if header.message == SetLock::ID {
                    self.after_set_lock(&header, &op.body, &reply)?;
                }
                let after = self.after_request(&header, &op.body, &reply);
                for (connection, request) in op.repetitions {
                    let result = Ok(reply.clone());
                    self.queue_reply(Waiting { connection, request, result }, after);
                }
                let (request, result) = (header, Ok(reply));
                self.queue_reply(Waiting { connection, request, result }, after);
            }
        }
        Ok(())
    }

    /// Takes all that an operation changes into the batch, with its decision and its answer, so
    /// that it is in one log record. Gives the number of that.
    ///
    /// # Errors
    /// `TooLarge` if no log record could hold it: nothing was done.
    fn take_changes(
        &mut self,
        op: &Operation,
        mut changes: Vec<Change>,
        reply: &mut Vec<u8>,
    ) -> Result<Lsn> {
        if let Some(number) = op.transaction {
            let decision = DecisionRecord { participants: op.participants.clone() };
            changes.push((Key::Decision(number).to_bytes(), Some(decision.to_bytes())));
        }
        let answered = op.header().filter(|_| op.session_needed().is_some());
        if let Some(header) = answered {
            changes.push(slot_change(header, self.next_lsn, reply)?);
        }
        let bytes =
            changes.iter().map(|(key, value)| logged_bytes(key, value.as_deref())).sum::<usize>();
        let limits = &self.shared.limits;
        if bytes > limits.operation_bytes {
            let most = limits.operation_bytes;
            let what = format!("it would change {bytes} bytes at once, at most {most} can be");
            return Err(Error::new(ErrorCode::TooLarge, what));
        }
        if !self.table.fits(bytes, limits.record_bytes) {
            self.end_record();
            if let (Some(header), Some(last)) = (answered, changes.last_mut()) {
                *last = slot_change(header, self.next_lsn, reply)?;
            }
        }
        for (key, value) in changes {
            self.background.wrote(&key);
            self.shared.file_locks.wrote(&key, value.as_deref())?;
            self.shared.sharing.wrote(&key, value.is_some());
            self.table.write(key, value);
        }
        Ok(self.next_lsn)
    }

    /// Notes that a lock was set, or was not to be had.
    fn after_set_lock(&mut self, header: &Header, body: &[u8], reply: &[u8]) -> Result<()> {
        let SetLock { lock, wait } = SetLock::from_bytes(body)?;
        let is_set = SetLockReply::from_bytes(reply)?.conflict.is_none();
        if let Some(wanted) = Wanted::of(header.session, &lock).filter(|_| is_set) {
            let now = self.shared.now;
            self.shared.file_locks.granted(lock.inode, &wanted, wait, now);
        }
        Ok(())
    }

    /// All that applications have locked, for checkers.
    pub fn file_locks(&self) -> impl Iterator<Item = (InodeId, HeldLock)> + '_ {
        self.shared.file_locks.all()
    }

    /// How many wait for locks, for checkers.
    pub fn lock_waits(&self) -> usize {
        self.shared.file_locks.wait_count()
    }

    /// Notes that a request is committed. Gives the record that must be synced before the answer
    /// leaves, if one must.
    fn after_request(&mut self, header: &Header, body: &[u8], reply: &[u8]) -> Option<Lsn> {
        let lsn = self.next_lsn;
        let slot = (header.session, header.slot);
        if catalog::line(header.message).is_some_and(|line| line.modifies) {
            self.sessions.clear_running_slot(slot);
        }
        let mut is_durable = header.is_durable() || self.policy == SyncPolicy::Always;
        match header.message {
            OpenSession::ID => {
                self.sessions.opened(header.session, body, reply, self.shared.now);
            }
            Decide::ID | Prepare::ID => is_durable = true,
            SyncAll::ID | WhichExist::ID | SyncInline::ID => is_durable = true,
            _ => {}
        }
        // With nothing new to log, what the reply says was logged before.
        let newest = if self.table.has_batch() { lsn } else { self.last_logged() };
        is_durable.then_some(newest)
    }

    pub(crate) fn last_logged(&self) -> Lsn {
        Lsn::new(self.next_lsn.raw() - 1)
    }

    // ---- other groups

    pub(crate) fn call(&mut self, request: OutgoingCall, purpose: Purpose) {
        let call = self.next_call;
        self.next_call += 1;
        self.calls.insert(call, purpose);
        self.actions.push(Action::Call { call, request });
    }

    /// Tells a participant how a transaction ended; a commit when its record `after` is synced.
    pub(crate) fn tell(&mut self, group: GroupId, number: u64, commit: bool, after: Option<Lsn>) {
        let transaction =
            skep_wire::metadata::TransactionId { coordinator: self.shared.group, number };
        let request = OutgoingCall::new(group, &Decide { transaction, commit });
        let purpose = Purpose::Background(BackgroundCall::Told { number, group, commit });
        match after {
            Some(lsn) if lsn > self.synced => {
                self.sync_now = true;
                self.gated_calls.entry(lsn).or_default().push((request, purpose));
            }
            _ => self.call(request, purpose),
        }
    }

    fn on_answer(&mut self, call: CallId, result: Result<Vec<u8>>) {
        match self.calls.remove(&call) {
            Some(Purpose::Operation { id, index }) => {
                if let Some(op) = self.operations.get_mut(&id) {
                    if let Some(asked) = op.asked.get_mut(index) {
                        asked.answer = Some(result);
                    }
                    self.ready.push_back(id);
                }
            }
            Some(Purpose::Background(call)) => self.on_background_reply(call, result),
            Some(Purpose::Nobody) | None => {}
        }
    }

    fn wake_paused(&mut self) {
        while let Some(((due, id), ())) = self.paused.first_key_value() {
            if *due > self.shared.now {
                break;
            }
            self.ready.push_back(*id);
            let key = (*due, *id);
            self.paused.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests;
