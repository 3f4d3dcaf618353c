//! The checker of a running cluster: no acknowledged operation is lost or executed twice, and every
//! answer is correct.
//!
//! # Method
//! The log of each target is the witness. A modifying operation writes the record of its slot, with
//! its reply, in the batch in which it commits. An operation between targets commits in the
//! coordinator's batch. Its changes on other targets are locked from the prepare phase until these
//! targets apply them. So the order in which all targets append batches is a possible serial order
//! of the operations. Within a batch, the witness accepts any order that the reference model
//! accepts. The witness then checks:
//! - each committed operation must succeed in the [`Model`] at its position, with the reply in the
//!   record;
//! - a sequence of a slot commits at most once, and not after the client has received its refusal;
//! - an operation of a program commits at most once, also if its client repeats it in several
//!   sessions, and the outcome that a target reports for a lost session is true;
//! - no inode id is given to two files, and no version (change counter) of a file to two states of
//!   the file, even if a power loss has reverted one of them;
//! - no operation commits in a session after the end of the session was logged;
//! - no lock is granted against a lock of another owner, and no lock is refused unless another
//!   owner has such a lock or has waited for one;
//! - after each batch, its entries and files must equal the reference model;
//! - the answer that a client receives must be the reply in the record or, for reads and refusals,
//!   an outcome of the reference model at some moment between request and answer;
//! - a power loss reverts the operations whose records are lost. The loss must not revert an
//!   operation that was acknowledged as durable, nor an operation on which another target has
//!   built: then later operations would no longer fit the model.
//!
//! # Not checked
//! Sizes, link counts and times of directories are not checked during the run: targets update them
//! late in transactions with other targets, and the checkers at the end verify them. Owners, all
//! times, and the order in which waiters get a lock are never checked.

use crate::changes::{Changes, fits, fits_prepared};
use crate::client::is_lost;
use crate::model::Model;
use crate::operation::{Op, Summary};
use crate::versions::Versions;
use crate::windows::Window;
use skep_format::metadata::{Batch, DentryRecord, InodeRecord, LockOwner, SlotRecord};
use skep_types::codec::Codec;
use skep_types::{ClusterMap, Error, ErrorCode, InodeId, Lsn, SessionId};
use skep_wire::metadata::{self as md, EntryReply, Outcome, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Identifies a modifying request of a client: session, slot, sequence.
pub(crate) type InstanceId = (SessionId, u32, u64);
/// A description of a broken guarantee.
pub(crate) type Violation = String;

struct Instance {
    op: Op,
    /// Number of the program's operation.
    operation: u64,
    /// The commit of the request: target, record, reply. `None` until the request commits.
    committed: Option<(usize, Lsn, Vec<u8>)>,
    /// Whether the client has received the final answer.
    answered: bool,
    is_durable: bool,
    refused: bool,
    /// Replies in records that a power loss has reverted.
    lost: Vec<Vec<u8>>,
}

/// One effect of a batch.
#[derive(Clone)]
enum Effect {
    Client(InstanceId, Vec<u8>),
    /// A rename of one name of a file to another name of the same file, which has no effect.
    Nothing,
    /// A session has ended, so its opens of a file are removed.
    Closed(SessionId, InodeId),
    /// The target has recovered a file size from the chunk files.
    Size(InodeId, u64),
    /// A session has ended, so the locks of this owner are released.
    Unlocked(LockOwner),
    /// The target truncates chunk files again, because storage has lost a truncation.
    Repeated(InodeId),
}

struct HistoryEntry {
    target: usize,
    lsn: Lsn,
    effects: Vec<Effect>,
}

/// The checker of a running cluster.
pub(crate) struct Witness {
    map: Arc<ClusterMap>,
    /// The namespace after all records logged so far.
    pub(crate) model: Model,
    history: Vec<HistoryEntry>,
    instances: BTreeMap<InstanceId, Instance>,
    /// Ended sessions, with the target and the record that logged the end.
    ended: BTreeMap<SessionId, (usize, Lsn)>,
    windows: BTreeMap<u64, Window>,
    next_window: u64,
    /// New directories that targets have prepared in transactions.
    prepared: BTreeMap<InodeId, Step>,
    /// Number of committed operations.
    pub(crate) commits: u64,
    /// Whether the reference model is incomplete, because an operation committed in the same batch
    /// that ended its session. Such a batch has no record of the slot, so the model misses the
    /// operation. From then on, only the stores are checked.
    pub(crate) is_blind: bool,
    /// Whether a disk was full at some moment. Then a target may have refused operations that need
    /// space.
    pub(crate) has_seen_full_disks: bool,
    /// Number of the latest arrival of each request, which gives the order of arrival.
    arrivals: BTreeMap<InstanceId, u64>,
    next_arrival: u64,
    next_operation: u64,
    /// The requests of operations that were sent in more than one session, by operation.
    attempts: BTreeMap<u64, Vec<InstanceId>>,
    /// Every inode that a logged record created.
    created: BTreeSet<InodeId>,
    versions: Versions,
}

impl std::fmt::Debug for Witness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Witness({} commits)", self.commits)
    }
}

impl Witness {
    /// Creates a witness of an empty file system.
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
            next_operation: 0,
            attempts: BTreeMap::new(),
            created: BTreeSet::new(),
            versions: Versions::default(),
        }
    }

    /// Returns the number of a new operation of a program.
    pub(crate) fn new_operation(&mut self) -> u64 {
        self.next_operation += 1;
        self.next_operation
    }

    /// Records a modifying request that a client sends for the first time in a session. `operation`
    /// is the number of the program's operation.
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
            lost: Vec::new(),
        };
        self.instances.insert(id, instance);
    }

    /// Records the arrival of a request at its target.
    pub(crate) fn request_arrived(&mut self, id: InstanceId) {
        self.next_arrival += 1;
        self.arrivals.insert(id, self.next_arrival);
    }

    /// Returns the sessions whose end `target` has logged.
    pub(crate) fn ended_at(&self, target: usize) -> impl Iterator<Item = SessionId> {
        let ended = self.ended.iter().filter(move |(_, (at, _))| *at == target);
        ended.map(|(session, _)| *session)
    }

    /// Opens the window of an operation, and returns its number.
    pub(crate) fn open_window(&mut self, op: &Op, session: SessionId) -> u64 {
        self.next_window += 1;
        if let Op::WaitLock(it) = op {
            let by = (session, it.lock.kind, it.lock.owner);
            self.model.waits.insert((it.lock.inode, by, it.lock.start, it.lock.end));
            // This wait may have completed a deadlock cycle with another client's wait.
            self.update_windows();
        }
        let mut window = Window::new(op.clone(), session, &self.model);
        window.oldest_version = self.versions.newest(op.home());
        self.windows.insert(self.next_window, window);
        self.next_window
    }

    /// Closes a window whose operation gets no answer.
    pub(crate) fn close_window(&mut self, window: u64) {
        self.windows.remove(&window);
    }

    /// Checks the final answer to a request.
    ///
    /// # Errors
    /// Describes a wrong answer.
    pub(crate) fn check_answer(
        &mut self,
        window: u64,
        instance: Option<InstanceId>,
        result: &Result<Vec<u8>, Error>,
    ) -> Result<(), Violation> {
        let Some(window) = self.windows.remove(&window) else { return Ok(()) };
        if self.is_blind {
            return Ok(());
        }
        let op = &window.op;
        if let Ok(reply) = result
            && let Some(attributes) = op.attributes(reply)
        {
            self.versions.check(&attributes, window.oldest_version)?;
        }
        if let Some(id) = instance {
            let Some(instance) = self.instances.get_mut(&id) else { return Ok(()) };
            instance.answered = true;
            let result = result.as_ref().map(|reply| as_logged(op, reply));
            match (&result, &instance.committed) {
                (Ok(reply), Some((_, _, committed))) if reply == committed => return Ok(()),
                // The reply was in flight when a power loss reverted the record.
                (Ok(reply), _) if !instance.is_durable && instance.lost.contains(reply) => {
                    return Ok(());
                }
                (Ok(_), Some(_)) => {
                    return Err(format!("{id:?} {op:?} got a reply that differs from its record"));
                }
                (Ok(_), None) => {
                    return Err(format!("{id:?} {op:?} was acknowledged and is not in a log"));
                }
                (Err(error), committed) => {
                    instance.refused = true;
                    // The stored reply of an earlier attempt may have been removed with the
                    // session.
                    if is_lost(error) {
                        return Ok(());
                    }
                    if committed.is_some() {
                        return Err(format!("{id:?} {op:?} was done and refused: {error}"));
                    }
                }
            }
        }
        let answer = match result {
            Ok(body) => {
                let summary = Summary::of_reply(op, body);
                Ok(summary.ok_or_else(|| format!("{op:?} has a malformed reply"))?)
            }
            Err(error) => Err(error.code()),
        };
        if self.has_seen_full_disks && op.adds() && answer == Err(ErrorCode::NoSpace) {
            return Ok(());
        }
        if window.is_right(&answer) {
            return Ok(());
        }
        Err(format!(
            "{op:?} was answered {answer:?} ({result:?}); expected at some moment: {:?}",
            window.outcomes
        ))
    }

    /// Checks the reply of a sync of inline bytes, which reports all writes as safe or some as
    /// lost.
    ///
    /// # Errors
    /// Describes a wrong report.
    pub(crate) fn check_inline_sync(
        &mut self,
        writes: &[InstanceId],
        is_lost: bool,
    ) -> Result<(), Violation> {
        if self.is_blind {
            return Ok(());
        }
        let missing = writes.iter().find(|id| !self.is_done(**id));
        match (missing, is_lost) {
            (Some(id), false) => {
                return Err(format!("the write {id:?} is lost and was reported as safe"));
            }
            (None, true) => {
                return Err(format!("{writes:?} are safe and were reported as partly lost"));
            }
            _ => {}
        }
        for id in writes.iter().filter(|_| !is_lost) {
            if let Some(instance) = self.instances.get_mut(id) {
                // From now on, no power loss may revert the write.
                instance.is_durable = true;
            }
        }
        Ok(())
    }

    /// Whether a request has committed and no power loss has reverted it.
    pub(crate) fn is_done(&self, id: InstanceId) -> bool {
        self.instances.get(&id).is_some_and(|it| it.committed.is_some())
    }

    /// Checks a complete listing of a directory. `seen` contains the entries that the client
    /// received, in order.
    ///
    /// # Errors
    /// Describes a missing, repeated or wrong entry.
    pub(crate) fn check_listing(
        &mut self,
        window: u64,
        seen: &[(Vec<u8>, InodeId)],
    ) -> Result<(), Violation> {
        let is_blind = self.is_blind;
        let Some(window) = self.windows.remove(&window).filter(|it| !it.is_void && !is_blind)
        else {
            return Ok(());
        };
        for (name, inode) in &window.always {
            let times = seen.iter().filter(|it| *it == &(name.clone(), *inode)).count();
            if times != 1 {
                let name = name.escape_ascii();
                return Err(format!("{:?} returned \"{name}\" ({inode}) {times} times", window.op));
            }
        }
        match seen.iter().find(|entry| !window.ever.contains(entry)) {
            Some(entry) => Err(format!("{:?} returned {entry:?}, which never existed", window.op)),
            None => Ok(()),
        }
    }

    /// Checks a record that a target has appended, and applies it to the reference model.
    ///
    /// # Errors
    /// Describes a record that the reference model does not accept.
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
        match self.apply_record(target, lsn, &changes, chunk_size) {
            Err(_) if self.may_hide_operation(&changes) => {
                self.is_blind = true;
                Ok(())
            }
            result => result.map_err(place),
        }
    }

    /// Whether a batch may contain an operation without a record of its slot.
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
                return Err(format!("{id:?} was done after the end of its session"));
            }
            let Some(instance) = self.instances.get_mut(&id) else {
                return Err(format!("{id:?} was done, and no client sent it"));
            };
            if instance.committed.is_some() {
                return Err(format!("{id:?} {:?} was done twice", instance.op));
            }
            if instance.refused {
                return Err(format!("{id:?} {:?} done after its refusal", instance.op));
            }
            let (op, operation) = (instance.op.clone(), instance.operation);
            self.check_only_commit(id, operation, &op)?;
            if let Some(inode) = op.created(&record.reply.0)
                && !self.created.insert(inode)
            {
                return Err(format!("{id:?} {op:?} created {inode}, which existed before"));
            }
            let Some(instance) = self.instances.get_mut(&id) else { continue };
            instance.committed = Some((target, lsn, record.reply.0.clone()));
            self.commits += 1;
            pending.push(Effect::Client(id, record.reply.0.clone()));
        }
        self.ended.extend(changes.sessions_ended.iter().map(|it| (*it, (target, lsn))));
        // A target handles requests in the order of arrival, unless one must wait. If several
        // orders fit, the order of arrival is the most probable.
        pending.sort_by_key(|effect| match effect {
            Effect::Client(id, _) => self.arrivals.get(id).copied(),
            _ => None,
        });
        pending.extend(self.repeated_truncations(changes));
        let effects = self.order(&pending, changes).or_else(|problem| {
            // The size that a target recovers after the death of a writer may precede a request in
            // the same batch, whose reply then contains the recovered size.
            pending.extend(self.recovered_sizes(changes, chunk_size)?);
            // The clean-up of an ended session may precede a request in the same batch, which then
            // gets a lock of that session.
            pending.extend(
                changes.closed.iter().map(|(session, inode)| Effect::Closed(*session, *inode)),
            );
            pending.extend(changes.freed_by_end.iter().map(|owner| Effect::Unlocked(*owner)));
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

    /// Checks that no other request of the same operation has committed. Requests whose effects end
    /// with their session may commit again in the next one.
    fn check_only_commit(&self, id: InstanceId, operation: u64, op: &Op) -> Result<(), String> {
        if op.ends_with_session() {
            return Ok(());
        }
        let others = self.attempts.get(&operation).into_iter().flatten().filter(|it| **it != id);
        match others.into_iter().find(|it| self.is_done(**it)) {
            Some(other) => {
                Err(format!("operation {op:?} was executed twice: as {other:?} and as {id:?}"))
            }
            None => Ok(()),
        }
    }

    /// Checks the outcome that a target has reported for a request whose session has ended.
    ///
    /// # Errors
    /// Describes a wrong outcome.
    pub(crate) fn check_outcome(
        &mut self,
        id: InstanceId,
        outcome: &Outcome,
    ) -> Result<(), Violation> {
        let Some(instance) = self.instances.get_mut(&id).filter(|_| !self.is_blind) else {
            return Ok(());
        };
        let committed = instance.committed.as_ref().map(|it| &it.2);
        match outcome {
            Outcome::Executed { reply } => {
                // The answer was in flight when a power loss reverted the record.
                let was_lost = !instance.is_durable && instance.lost.contains(&reply.0);
                if committed != Some(&reply.0) && !was_lost {
                    return Err(format!("{id:?} {:?} was reported as done, wrongly", instance.op));
                }
                (instance.answered, instance.refused) = (true, false);
            }
            Outcome::NotExecuted if committed.is_some() => {
                return Err(format!("{id:?} {:?} was reported as not done, wrongly", instance.op));
            }
            Outcome::NotExecuted | Outcome::Unknown => instance.refused = true,
        }
        Ok(())
    }

    /// Returns an order of a batch's operations that the reference model accepts.
    fn order(&self, pending: &[Effect], changes: &Changes) -> Result<Vec<Effect>, String> {
        let mut problem = String::new();
        let found =
            self.search(self.model.clone(), pending.to_vec(), changes, &mut 5_000, &mut problem);
        found
            .map(|mut it| {
                it.reverse();
                it
            })
            .ok_or(problem)
    }

    /// Searches for an order depth first. Returns the operations in reverse order.
    fn search(
        &self,
        model: Model,
        left: Vec<Effect>,
        changes: &Changes,
        budget: &mut u32,
        problem: &mut String,
    ) -> Option<Vec<Effect>> {
        if left.is_empty() {
            let mut model = model;
            for (session, inode) in &changes.closed {
                close_all(&mut model, *session, *inode);
            }
            return match fits(&model, changes, &self.map, true) {
                Ok(()) => Some(Vec::new()),
                Err(what) => {
                    *problem = what;
                    None
                }
            };
        }
        for index in 0..left.len() {
            *budget = budget.saturating_sub(1);
            if *budget == 0 {
                return None;
            }
            let mut rest = left.clone();
            let mut step = rest.remove(index);
            {
                let mut next = model.clone();
                if let Effect::Client(id, reply) = &step {
                    let Some(instance) = self.instances.get(id) else { continue };
                    let done = next.apply(&instance.op, id.0, reply);
                    let done = done.and_then(|()| self.check_prepared(&next, &instance.op, reply));
                    let is_nothing = match done {
                        Ok(()) => self.had_no_effect(id.0, &instance.op, changes),
                        Err(_) => self.may_have_no_effect(&instance.op),
                    };
                    if is_nothing {
                        next = model.clone();
                        step = Effect::Nothing;
                    } else if let Err(what) = done {
                        if problem.is_empty() || left.len() == 1 {
                            *problem = format!("{id:?} {:?} {what}", instance.op);
                        }
                        continue;
                    }
                } else {
                    apply_own_effect(&mut next, &step);
                }
                let found = self.search(next, rest.clone(), changes, budget, problem);
                if let Some(mut order) = found {
                    order.push(step);
                    return Some(order);
                }
            }
        }
        None
    }

    /// Checks that a new directory on another target equals the step which that target has
    /// prepared.
    fn check_prepared(&self, model: &Model, op: &Op, reply: &[u8]) -> Result<(), String> {
        let Op::MakeDirectory(_) = op else { return Ok(()) };
        let made = EntryReply::from_bytes(reply).map_err(|error| error.to_string())?.inode;
        match (self.prepared.get(&made), model.inodes.get(&made)) {
            (Some(prepared), Some(new)) => fits_prepared(new, prepared),
            _ => Ok(()),
        }
    }

    /// Whether an operation may correctly have had no effect although the reference model refuses
    /// it now. This is a rename to another name of the same file: the coordinator looked up the old
    /// name on another target, and the old name was removed since then.
    fn may_have_no_effect(&self, op: &Op) -> bool {
        let (from, to, name) = match op {
            Op::Rename(it) => (it.from_directory, it.to_directory, &it.to_name),
            Op::Exchange(it) => (it.from_directory, it.to_directory, &it.to_name),
            _ => return false,
        };
        let there = self.model.inodes.get(&to);
        let found = there.and_then(|directory| directory.entries.get(&name.0));
        found.is_some() && self.model.group(from) != self.model.group(to)
    }

    /// Whether a rename to another name of the same file had no effect although the reference model
    /// would apply it. The batch of such a rename leaves the new name unchanged. After the lookup
    /// found that both names refer to the same file, another client reused the old name for a
    /// different file.
    fn had_no_effect(&self, session: SessionId, op: &Op, changes: &Changes) -> bool {
        let (to, name) = match op {
            Op::Rename(it) => (it.to_directory, &it.to_name),
            Op::Exchange(it) => (it.to_directory, &it.to_name),
            _ => return false,
        };
        let is_it = |(directory, _, dentry): &(InodeId, u64, Option<DentryRecord>)| {
            *directory == to && dentry.as_ref().is_none_or(|it| it.name == *name)
        };
        let may_be = || self.windows.values().any(|it| it.may_have_no_effect(session, op));
        self.may_have_no_effect(op) && !changes.dentries.iter().any(is_it) && may_be()
    }

    /// Returns the truncations that a batch repeats without a request of a client. For these files,
    /// the truncation count is one higher than the requests in the batch explain.
    fn repeated_truncations(&self, changes: &Changes) -> Vec<Effect> {
        let mut repeated = Vec::new();
        for (inode, record) in &changes.inodes {
            let (Some(record), Some(known)) = (record, self.model.inodes.get(inode)) else {
                continue;
            };
            let truncates_it = |(session, slot, it): &&(SessionId, u32, SlotRecord)| {
                let instance = self.instances.get(&(*session, *slot, it.sequence));
                instance
                    .and_then(|it| it.op.truncations())
                    .is_some_and(|(truncated, _)| truncated == *inode)
            };
            let by_requests = changes.slots.iter().filter(truncates_it).count() as u64;
            let generation = record.attributes.truncate_generation;
            if generation == known.truncate_generation + by_requests + 1 {
                repeated.push(Effect::Repeated(*inode));
            }
        }
        repeated
    }

    /// Returns the effects of a batch that no client has requested.
    fn own_effects(
        &self,
        changes: &Changes,
        chunk_size: &dyn Fn(&InodeRecord) -> u64,
    ) -> Result<Vec<Effect>, String> {
        let mut effects = Vec::new();
        for (session, inode) in &changes.closed {
            let found = self.model.inodes.get(inode);
            if found.is_some_and(|it| it.opens.contains_key(session)) {
                effects.push(Effect::Closed(*session, *inode));
            }
        }
        effects.extend(changes.freed_by_end.iter().map(|owner| Effect::Unlocked(*owner)));
        effects.extend(self.recovered_sizes(changes, chunk_size)?);
        Ok(effects)
    }

    /// Returns the sizes that a target has recovered in a batch, for files whose writers have died.
    fn recovered_sizes(
        &self,
        changes: &Changes,
        chunk_size: &dyn Fn(&InodeRecord) -> u64,
    ) -> Result<Vec<Effect>, String> {
        let mut effects = Vec::new();
        for inode in &changes.recovered_sizes {
            let Some(Some(record)) = changes.inodes.get(inode) else { continue };
            let size = record.attributes.size;
            match self.model.inodes.get(inode) {
                Some(known) if size > known.size => {
                    let most = chunk_size(record).max(known.inline.len() as u64);
                    if size > most {
                        return Err(format!(
                            "{inode} got the size {size}, but its chunk files end at {most}"
                        ));
                    }
                    effects.push(Effect::Size(*inode, size));
                }
                _ => {}
            }
        }
        Ok(effects)
    }

    fn apply(&mut self, effect: &Effect) -> Result<(), String> {
        match effect {
            Effect::Client(id, reply) => {
                let op = self.instances.get(id).map(|it| it.op.clone());
                let op = op.ok_or("an operation that no client sent")?;
                let done = self.model.apply(&op, id.0, reply);
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

    /// Reverts the records of a target after `last`, which another member of its group did not have
    /// when it took over.
    ///
    /// # Errors
    /// Describes a change that a client has seen, or that another target has built on.
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
                // Not `lost`: no reply of this record may be in flight.
                instance.committed = None;
            }
        }
        self.power_loss(target, last)
    }

    /// Reverts the records of a target after `last`, which are lost in a power loss.
    ///
    /// # Errors
    /// Describes a loss that must not happen.
    pub(crate) fn power_loss(&mut self, target: usize, last: Lsn) -> Result<(), Violation> {
        self.ended.retain(|_, (at, lsn)| *at != target || *lsn <= last);
        let is_lost = |entry: &HistoryEntry| entry.target == target && entry.lsn > last;
        if self.is_blind || !self.history.iter().any(is_lost) {
            return Ok(());
        }
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

/// Returns a reply as the record of its slot has it: without the truncated chunk files, which the
/// target adds when storage has truncated them.
fn as_logged(op: &Op, reply: &[u8]) -> Vec<u8> {
    let truncated = Vec::new();
    let logged = match op {
        Op::Open(_) => md::OpenReply::from_bytes(reply)
            .map(|reply| md::OpenReply { truncated, ..reply }.to_bytes()),
        Op::SetAttributes(_) => md::SetAttributesReply::from_bytes(reply)
            .map(|reply| md::SetAttributesReply { truncated, ..reply }.to_bytes()),
        _ => return reply.to_vec(),
    };
    logged.unwrap_or_default()
}

/// Applies an effect that no client has requested.
fn apply_own_effect(model: &mut Model, effect: &Effect) {
    match effect {
        Effect::Client(..) | Effect::Nothing => {}
        Effect::Closed(session, inode) => close_all(model, *session, *inode),
        Effect::Unlocked(owner) => {
            if let Some(inode) = model.inodes.get_mut(&owner.inode) {
                inode.locks.remove(&(owner.session, owner.kind, owner.owner));
            }
        }
        Effect::Repeated(inode) => {
            if let Some(inode) = model.inodes.get_mut(inode) {
                inode.truncate_generation += 1;
            }
        }
        Effect::Size(inode, size) => {
            if let Some(inode) = model.inodes.get_mut(inode) {
                inode.size = inode.size.max(*size);
            }
        }
    }
}

fn close_all(model: &mut Model, session: SessionId, inode: InodeId) {
    let opens = model.inodes.get(&inode).and_then(|it| it.opens.get(&session).copied());
    if let Some((readers, writers)) = opens {
        if let Some(inode) = model.inodes.get_mut(&inode) {
            inode.was_left_open |= writers > 0;
        }
        // This cannot fail, since the model has these opens.
        let _ = model.close(inode, session, readers, writers);
    }
}
