//! The checker of a running cluster. The witness verifies that no acknowledged operation is lost or
//! executed twice, and that every reply is correct.
//!
//! # Method
//! The witness reads the log of each target. When a modifying operation commits, its batch contains
//! the record of its slot, with its reply. An operation between targets commits in the
//! coordinator's batch. On the other targets, the changed objects are locked from the prepare phase
//! until these targets apply the changes. So the order in which all targets append batches is a
//! possible serial order of the operations. Within a batch, the witness accepts any order that the
//! reference model accepts. The witness then checks:
//! - each committed operation must succeed in the [`Model`] at its position in this order, with the
//!   reply in the record;
//! - a request (one sequence of a slot) commits at most once, and not after the client has received
//!   a refusal of this request;
//! - an operation of a program commits at most once, even if its client repeats the operation in
//!   several sessions, and a target reports the right outcome for a request of a lost session;
//! - no two files get the same inode id, and no two states of a file get the same version (change
//!   counter), even if a power loss has reverted one of the files or states;
//! - no operation commits in a session after a target has logged the end of the session;
//! - no target grants a lock that conflicts with a lock of another owner, and none refuses a lock
//!   unless another owner has a conflicting lock or has waited for such a lock;
//! - after each batch, the entries and files that the batch changed must equal the reference model;
//! - the reply that a client receives must be the reply in the record. For reads and refusals, the
//!   reply must be an outcome of the reference model at some moment between request and reply;
//! - after a power loss, the slots that a target sends to a client show exactly the acknowledged
//!   changes that are lost;
//! - if clients replay lost changes: as long as its client is alive, each lost change is replayed
//!   with the same inode, or reported. Until then, the target executes no new change (`replays`);
//! - a staged transaction is committed only if its participant has durably prepared it, and undone
//!   only if its participant has lost it (`staged`);
//! - a power loss reverts the operations whose records are lost. A power loss must not revert an
//!   operation that was acknowledged as durable. The power loss must also not revert an operation
//!   on which an operation of another target depends, because the dependent operation would then
//!   contradict the model.
//!
//! # Not checked
//! Sizes, link counts and times of directories are not checked during the run, because targets
//! update them with a delay in transactions with other targets. The checkers at the end verify
//! sizes and link counts. Owners, all times, and the order in which waiters get a lock are never
//! checked.

mod answers;
mod lost_changes;
mod order;
mod own_effects;
mod replays;
mod staged;

use crate::changes::{Changes, fits};
use crate::judged::Judged;
use crate::model::Model;
use crate::operation::Op;
use crate::versions::Versions;
use crate::windows::Window;
use own_effects::apply_own_effect;
pub(crate) use replays::ReplayedChange;
use replays::{Replays, logged_reply};
use skep_format::metadata::{Batch, InodeRecord, LockOwner};
use skep_metadata::target::Event;
use skep_types::codec::Codec;
use skep_types::{ClusterMap, InodeId, Lsn, SessionId};
use skep_wire::metadata::Step;
use staged::StagedOperations;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The identity of a modifying request of a client: session, slot and sequence.
pub(crate) type InstanceId = (SessionId, u32, u64);
/// A description of a broken guarantee.
pub(crate) type Violation = String;

struct Instance {
    op: Op,
    /// Id of the program's operation.
    operation: u64,
    /// The commit of the request: target, LSN of the log record, and reply. `None` until the
    /// request commits.
    committed: Option<(usize, Lsn, Vec<u8>)>,
    /// Whether the client has received the final reply.
    answered: bool,
    is_durable: bool,
    refused: bool,
    /// Whether a comparison of slots has shown that the request is not in the log.
    is_known_lost: bool,
    /// Replies of this request in records that a power loss has reverted.
    lost: Vec<Vec<u8>>,
    /// The change that the request replays.
    replays: Option<ReplayedChange>,
}

/// One effect of a batch on the reference model.
#[derive(Clone)]
enum Effect {
    Client(InstanceId, Vec<u8>),
    /// A rename between two names of the same file. Such a rename has no effect.
    Nothing,
    /// The session has ended, so its opens of the file are removed.
    Closed(SessionId, InodeId),
    /// The target has recovered a file size from the chunk files.
    Size(InodeId, u64),
    /// The session of this lock owner has ended, so its locks are released.
    Unlocked(LockOwner),
    /// The session was the only writer of the file, so its end has also ended the unused inline
    /// component of the file.
    InlineEnded(InodeId),
    /// The target truncates chunk files again in this generation, as storage has lost a truncation.
    Repeated(InodeId, u64),
}

struct HistoryEntry {
    target: usize,
    lsn: Lsn,
    effects: Vec<Effect>,
}

/// The checker of a running cluster.
pub(crate) struct Witness {
    map: Arc<ClusterMap>,
    /// The namespace after all records that were logged so far.
    pub(crate) model: Model,
    history: Vec<HistoryEntry>,
    instances: BTreeMap<InstanceId, Instance>,
    /// Ended sessions. Each has the target that logged the end, and the LSN of the log record.
    ended: BTreeMap<SessionId, (usize, Lsn)>,
    windows: BTreeMap<u64, Window>,
    next_window: u64,
    /// New directories that targets have prepared in transactions, each with the transaction step
    /// that creates it.
    prepared: BTreeMap<InodeId, Step>,
    /// Number of committed operations.
    pub(crate) commits: u64,
    /// Whether the reference model is incomplete. The model becomes incomplete when an operation
    /// commits in the batch that ends its session: this batch contains no record of the slot, so
    /// the witness cannot detect the operation. From then on, only the checkers at the end verify
    /// the stores.
    pub(crate) is_blind: bool,
    /// Whether a disk was full at some moment. If true, a target may have refused operations that
    /// need disk space.
    pub(crate) has_seen_full_disks: bool,
    /// For each request: the arrival of the attempt that the target executes, as an index in the
    /// order of all arrivals.
    arrivals: BTreeMap<InstanceId, u64>,
    next_arrival: u64,
    /// Number of listings that the witness has received, and number of listings that the witness
    /// has skipped. The witness does not check the entries of a listing during which a target lost
    /// power.
    pub(crate) listings: Judged,
    next_operation: u64,
    /// For each operation that a client sent in more than one session, its requests. The key is the
    /// id of the operation.
    attempts: BTreeMap<u64, Vec<InstanceId>>,
    /// All inodes that logged records have created.
    created: BTreeSet<InodeId>,
    versions: Versions,
    /// Whether the records that the witness checks next were in the log before, and were reverted.
    pub(crate) is_restoring: bool,
    /// Number of times that a target has lost log records whose changes the model contained.
    pub(crate) losses: u64,
    replays: Replays,
    staging: StagedOperations,
}

impl std::fmt::Debug for Witness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Witness({} commits)", self.commits)
    }
}

impl Witness {
    /// Creates the witness for an empty file system.
    pub(crate) fn new(map: Arc<ClusterMap>) -> Self {
        Self {
            model: Model::new(Arc::clone(&map)),
            map,
            history: Vec::new(),
            instances: BTreeMap::new(),
            ended: BTreeMap::new(),
            windows: BTreeMap::new(),
            next_window: 0,
            prepared: BTreeMap::new(),
            commits: 0,
            is_blind: false,
            has_seen_full_disks: false,
            arrivals: BTreeMap::new(),
            next_arrival: 0,
            listings: Judged::default(),
            next_operation: 0,
            attempts: BTreeMap::new(),
            created: BTreeSet::new(),
            versions: Versions::default(),
            is_restoring: false,
            losses: 0,
            replays: Replays::default(),
            staging: StagedOperations::default(),
        }
    }

    /// Assigns a number to a new operation of a program.
    pub(crate) fn new_operation(&mut self) -> u64 {
        self.next_operation += 1;
        self.next_operation
    }

    /// Records that a client sends a modifying request for the first time in a session. `operation`
    /// is the id of the program's operation.
    pub(crate) fn request_sent(
        &mut self,
        id: InstanceId,
        operation: u64,
        op: &Op,
        is_durable: bool,
    ) {
        self.attempts.entry(operation).or_default().push(id);
        let op = op.clone();
        let instance = Instance {
            op,
            operation,
            committed: None,
            answered: false,
            is_durable,
            refused: false,
            is_known_lost: false,
            lost: Vec::new(),
            replays: None,
        };
        self.instances.insert(id, instance);
    }

    /// Records the arrival of a request at its target. `inbox` has the requests that the target has
    /// not handled yet. If an earlier attempt of the same request has already arrived, keeps the
    /// arrival time of that attempt, because the target executes that attempt.
    pub(crate) fn request_arrived(&mut self, id: InstanceId, inbox: &[Event]) {
        let is_earlier = |event: &Event| {
            let Event::Request { header, .. } = event else { return false };
            (header.session, header.slot, header.sequence) == id
        };
        if !inbox.iter().any(is_earlier) {
            self.next_arrival += 1;
            self.arrivals.insert(id, self.next_arrival);
        }
    }

    /// Returns the sessions whose end is in the log of `target`.
    pub(crate) fn ended_at(&self, target: usize) -> impl Iterator<Item = SessionId> {
        let ended = self.ended.iter().filter(move |(_, (at, _))| *at == target);
        ended.map(|(session, _)| *session)
    }

    /// Whether a target has logged the end of a session.
    pub(crate) fn has_ended(&self, session: SessionId) -> bool {
        self.ended.contains_key(&session)
    }

    /// Opens the window of an operation, and returns its number.
    pub(crate) fn open_window(&mut self, op: &Op, session: SessionId) -> u64 {
        self.next_window += 1;
        if let Op::WaitLock(it) = op {
            let by = (session, it.lock.kind, it.lock.owner);
            let wait = (it.lock.inode, by, it.lock.start, it.lock.end);
            Arc::make_mut(&mut self.model.waits).insert(wait);
            // This wait may complete a deadlock cycle with the wait of another client, so all
            // windows must be updated.
            self.update_windows();
        }
        let mut window = Window::new(op.clone(), session, &self.model);
        window.oldest_version = self.versions.newest(op.home());
        self.windows.insert(self.next_window, window);
        self.next_window
    }

    /// Closes a window whose operation will get no reply.
    pub(crate) fn close_window(&mut self, window: u64) {
        self.windows.remove(&window);
    }

    /// Notes that the reply to the operation of a window comes from a previous primary.
    pub(crate) fn note_former_primary(&mut self, window: u64) {
        if let Some(window) = self.windows.get_mut(&window) {
            window.is_of_former_primary = true;
        }
    }

    /// Whether a request has committed and no power loss has reverted the commit.
    pub(crate) fn is_done(&self, id: InstanceId) -> bool {
        self.instances.get(&id).is_some_and(|it| it.committed.is_some())
    }

    /// Checks a record that a target has appended, and applies the record to the reference model.
    ///
    /// # Errors
    /// Describes how a record contradicts the reference model.
    pub(crate) fn check_record(
        &mut self,
        target: usize,
        lsn: Lsn,
        payload: &[u8],
        chunk_size: &dyn Fn(&InodeRecord) -> u64,
    ) -> Result<(), Violation> {
        let place = |what: String| format!("target {target}, record {lsn}: {what}");
        let batch = Batch::from_bytes(payload).map_err(|error| place(error.to_string()))?;
        let mut changes = Changes::of(&batch).map_err(place)?;
        let freed = changes.locks.iter().filter(|(_, record)| record.is_none());
        let has_ended = |session: &SessionId| {
            self.ended.contains_key(session) || changes.sessions_ended.contains(session)
        };
        let of_ended = freed.filter(|(owner, _)| has_ended(&owner.session));
        changes.freed_by_end = of_ended.map(|(owner, _)| *owner).collect();
        if self.is_blind {
            return Ok(());
        }
        self.check_staged(target, lsn, &mut changes).map_err(place)?;
        match self.apply_record(target, lsn, &changes, chunk_size) {
            Err(_) if self.may_hide_operation(&changes) => {
                self.is_blind = true;
                Ok(())
            }
            result => result.map_err(place),
        }
    }

    /// Whether a batch may contain an operation without containing the record of its slot.
    fn may_hide_operation(&self, changes: &Changes) -> bool {
        changes.slots_gone.iter().any(|(session, slot)| {
            let of_slot = (*session, *slot, 0)..=(*session, *slot, u64::MAX);
            let newest = self.instances.range(of_slot).next_back();
            newest.is_some_and(|(_, it)| it.committed.is_none() && !it.refused)
        })
    }

    fn apply_record(
        &mut self,
        target: usize,
        lsn: Lsn,
        changes: &Changes,
        chunk_size: &dyn Fn(&InodeRecord) -> u64,
    ) -> Result<(), Violation> {
        self.prepared.extend(changes.prepared.iter().cloned());
        let mut pending = Vec::new();
        for (session, slot, record) in &changes.slots {
            let id = (*session, *slot, record.sequence);
            if self.ended.contains_key(session) {
                return Err(format!("request {id:?} was executed after the end of its session"));
            }
            let Some(instance) = self.instances.get_mut(&id) else {
                return Err(format!("request {id:?} was executed, but no client had sent it"));
            };
            if instance.committed.is_some() {
                return Err(format!("{id:?} {:?} was done twice", instance.op));
            }
            if instance.refused {
                return Err(format!("{id:?} {:?} was done after its refusal", instance.op));
            }
            let (op, operation) = (instance.op.clone(), instance.operation);
            let expected = instance.replays.as_ref().and_then(|it| it.created);
            self.check_only_commit(id, operation, &op)?;
            let reply = logged_reply(*slot, &record.reply.0)?;
            if let Some(inode) = op.created(&reply) {
                let is_new = self.created.insert(inode);
                if expected.is_some_and(|it| it != inode) {
                    return Err(format!("{id:?} {op:?} was replayed as {inode}: {expected:?}"));
                }
                if expected.is_none() && !is_new && !self.is_restoring {
                    return Err(format!("{id:?} {op:?} created {inode}, which existed before"));
                }
            }
            let Some(instance) = self.instances.get_mut(&id) else { continue };
            instance.committed = Some((target, lsn, reply.clone()));
            self.commits += 1;
            pending.push(Effect::Client(id, reply));
        }
        self.ended.extend(changes.sessions_ended.iter().map(|it| (*it, (target, lsn))));
        // Try the order of arrival first, because a target handles requests in this order, unless a
        // request must wait. So if the model accepts several orders, the order of arrival is the
        // most probable.
        pending.sort_by_key(|effect| match effect {
            Effect::Client(id, _) => self.arrivals.get(id).copied(),
            _ => None,
        });
        pending.extend(self.repeated_truncations(changes));
        let effects = self.order(&pending, changes).or_else(|problem| {
            // Also try the recovered sizes as effects. After the death of a writer, a target may
            // recover a size and then execute a request in the same batch, so that the reply
            // contains the recovered size.
            pending.extend(self.recovered_sizes(changes, chunk_size)?);
            // Also try the ends of sessions. A target may end a session and then execute a request
            // in the same batch, so that the request gets a lock that the session had.
            pending.extend(
                changes.closed.iter().map(|(session, inode)| Effect::Closed(*session, *inode)),
            );
            pending.extend(changes.freed_by_end.iter().map(|owner| Effect::Unlocked(*owner)));
            pending.extend(self.inline_ends(&self.model, changes));
            self.order(&pending, changes).map_err(|_| problem)
        })?;
        let mut entry = HistoryEntry { target, lsn, effects: Vec::new() };
        for effect in effects {
            self.apply(&effect)?;
            entry.effects.push(effect);
            self.update_windows();
        }
        for effect in self.own_effects(changes, chunk_size)? {
            self.apply(&effect)?;
            entry.effects.push(effect);
            self.update_windows();
        }
        fits(&self.model, changes, &self.map, false)?;
        if !entry.effects.is_empty() {
            self.history.push(entry);
        }
        Ok(())
    }

    /// Checks that no other request of the same operation has committed. If the effects of a
    /// request end with its session, the request may commit again in the next session.
    fn check_only_commit(&self, id: InstanceId, operation: u64, op: &Op) -> Result<(), String> {
        if op.ends_with_session() {
            return Ok(());
        }
        // After a power loss, a client may send another replay with the sequence of a lost replay.
        let is_other = |it: &InstanceId| {
            *it != id && self.instances.get(it).is_some_and(|other| other.operation == operation)
        };
        let mut others = self.attempts.get(&operation).into_iter().flatten();
        match others.find(|it| is_other(it) && self.is_done(**it)) {
            Some(other) => {
                Err(format!("operation {op:?} was executed twice: as {other:?} and as {id:?}"))
            }
            None => Ok(()),
        }
    }

    fn apply(&mut self, effect: &Effect) -> Result<(), String> {
        match effect {
            Effect::Client(id, reply) => {
                let instance = self.instances.get(id).ok_or("an operation that no client sent")?;
                let op = &instance.op;
                let done = self.model.apply(op, id.0, reply, instance.first_pattern());
                done.map_err(|what| format!("{id:?} {op:?} {what}"))
            }
            _ => {
                apply_own_effect(&mut self.model, effect);
                Ok(())
            }
        }
    }

    fn update_windows(&mut self) {
        self.windows.values_mut().for_each(|window| window.update(&self.model));
    }

    /// Reverts the records of a target after `last`. At the take-over, the new primary of the
    /// target's group did not have these records.
    ///
    /// # Errors
    /// Describes a lost change whose reply a client has received, or on which a change of another
    /// target depends.
    pub(crate) fn lose_unheld(&mut self, target: usize, last: Lsn) -> Result<(), Violation> {
        for instance in self.instances.values_mut().filter(|_| !self.is_blind) {
            let lost = instance.committed.as_ref();
            if lost.is_some_and(|(at, lsn, _)| *at == target && *lsn > last) {
                let op = &instance.op;
                match (instance.answered && !instance.refused, instance.is_durable) {
                    (false, _) => {}
                    (true, true) => {
                        return Err(format!(
                            "{op:?} was acknowledged as durable and lost by a take-over"
                        ));
                    }
                    (true, false) => {
                        return Err(format!("{op:?} was answered and lost by a take-over"));
                    }
                }
                // Do not add the reply to `lost`, because the target must not have sent the reply
                // of a lost record.
                instance.committed = None;
            }
        }
        self.power_loss(target, last)
    }

    /// Reverts the records of a target after `last`, which the target has lost in a power loss.
    ///
    /// # Errors
    /// Describes a loss that violates a guarantee.
    pub(crate) fn power_loss(&mut self, target: usize, last: Lsn) -> Result<(), Violation> {
        self.ended.retain(|_, (at, lsn)| *at != target || *lsn <= last);
        let is_lost = |entry: &HistoryEntry| entry.target == target && entry.lsn > last;
        if self.is_blind {
            return Ok(());
        }
        let has_reverted = self.lose_prepared(target, last)?;
        if !has_reverted && !self.history.iter().any(is_lost) {
            return Ok(());
        }
        self.losses += 1;
        self.note_losses(target, last);
        for instance in self.instances.values_mut() {
            let lost = instance.committed.as_ref();
            if lost.is_some_and(|(at, lsn, _)| *at == target && *lsn > last) {
                if instance.answered && instance.is_durable && !instance.refused {
                    let op = &instance.op;
                    return Err(format!(
                        "{op:?} was acknowledged as durable and lost by a power loss"
                    ));
                }
                instance.lost.extend(instance.committed.take().map(|it| it.2));
            }
        }
        self.history.retain(|entry| !is_lost(entry));
        let waits = std::mem::take(&mut self.model.waits);
        self.model = Model::new(Arc::clone(&self.map));
        self.model.waits = waits;
        let history = std::mem::take(&mut self.history);
        for entry in &history {
            for effect in &entry.effects {
                self.apply(effect).map_err(|what| {
                    let (target, lsn) = (entry.target, entry.lsn);
                    format!(
                        "depends on records lost by a power loss: target {target}, {lsn}: {what}"
                    )
                })?;
            }
        }
        self.history = history;
        self.windows.values_mut().for_each(|window| window.is_void = true);
        self.update_windows();
        Ok(())
    }
}
