//! A simulated client. It uses sessions, slots and sequences exactly like a real client
//! (`crates/client`). Each task of the client runs one operation at a time.

use crate::files::{ChunkWrite, FileChange, Files};
use crate::inline::UnsyncedWrites;
use crate::knobs::PlantedBug;
use crate::known_sizes::ModelSize;
use crate::network::{Node, Purpose};
use crate::notifications::Notifications;
use crate::operation::Op;
use crate::replay::SessionReplay;
use crate::witness::InstanceId;
use crate::world::{Phase, SimEvent, World, message};
use skep_client::InodeState;
use skep_types::codec::Codec;
use skep_types::{Error, ErrorCode, GroupId, InodeId, NodeId, Result, SessionId};
use skep_wire::frame::{FLAG_DURABLE, Header};
use skep_wire::inline::RemoveInline;
use skep_wire::metadata as md;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Pause of a task before its next operation, if its operation must wait for another task.
const CLAIM_PAUSE: Duration = Duration::from_millis(1);

/// The process of a client.
#[derive(Debug)]
pub(crate) struct ClientProcess {
    /// Node id in the cluster. Management assigns a new id to each new process of a client, and to
    /// a client that joins again after its eviction.
    pub(crate) node: NodeId,
    pub(crate) life: u64,
    pub(crate) is_running: bool,
    pub(crate) sessions: BTreeMap<GroupId, Session>,
    next_session: u32,
    pub(crate) next_handle: u64,
    /// Id of the client's newest wait for a lock.
    pub(crate) last_wait: u64,
    pub(crate) tasks: Vec<Task>,
    pub(crate) handles: Vec<Handle>,
    pub(crate) files: Files,
    pub(crate) inline_writes: UnsyncedWrites,
    /// Files whose inline bytes the client is moving to storage.
    pub(crate) moving: BTreeSet<InodeId>,
    pub(crate) notifications: Notifications,
}

/// A session of a client with a group.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) is_open: bool,
    /// For each task, the last sequence number that the client has sent in the task's slot.
    sequences: Vec<u64>,
    /// Indexes of the tasks that wait until the session is open.
    waiting: Vec<usize>,
    is_renewing: bool,
    /// Start number of the target when the client opened the session or last compared its changes.
    /// The client sends this number with each change in this session.
    pub(crate) start: u64,
    /// The target processes (node and process id) that have opened the session for the client or
    /// have replied to its comparison of changes.
    pub(crate) compared: Vec<(Node, u64)>,
    pub(crate) replay: SessionReplay,
}

/// An open file of a client.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    /// Handle number, unique within the client.
    pub(crate) id: u64,
    pub(crate) inode: InodeId,
    /// The state of the file. All handles of the client for this file share it.
    pub(crate) state: Arc<InodeState>,
    pub(crate) mode: md::OpenMode,
    pub(crate) session: SessionId,
    /// The request that opened the file.
    pub(crate) opened_by: InstanceId,
    pub(crate) generation: u64,
    pub(crate) pattern: Option<skep_types::StripePattern>,
    /// The pattern in the reply to the open: its generation, and whether its inline bytes were
    /// moved.
    pub(crate) shown: Option<(u32, bool)>,
    /// Whether a reply or a notification has marked the file as shared.
    pub(crate) is_shared: bool,
    /// Whether a task is currently closing the handle or writing through it.
    pub(crate) is_busy: bool,
}

/// A task of a client, which runs a sequence of operations.
#[derive(Debug, Default)]
pub(crate) struct Task {
    pub(crate) current: Option<Current>,
}

/// The operation that a task is running at the moment.
#[derive(Debug)]
pub(crate) struct Current {
    pub(crate) op: Op,
    /// Id of the program's operation. The id stays the same when the client repeats the
    /// request in another session.
    pub(crate) number: u64,
    is_durable: bool,
    pub(crate) window: u64,
    pub(crate) instance: Option<InstanceId>,
    /// The session in which the client sent the request.
    session: SessionId,
    /// Number of notifications that the client had received when it sent the request.
    pub(crate) notifications_before: usize,
    /// Number of changes of files that the client had listed when it sent the request
    /// (`Files::changes`).
    pub(crate) changes_before: usize,
    /// The sizes that the file had at any moment between the request and its reply. `None` means
    /// that there is no reply, or that the reply may show another size.
    pub(crate) sizes: Option<BTreeSet<ModelSize>>,
    /// The change of a file's state by the operation.
    change: FileChange,
    /// The handle that is busy until the operation ends.
    handle: Option<u64>,
    /// The entries that a listing in progress has already read.
    seen: Vec<(Vec<u8>, InodeId)>,
    /// The state of the write, if the operation is a write of chunk files.
    write: Option<Write>,
}

impl Current {
    fn new(op: Op, number: u64, is_durable: bool, change: FileChange) -> Self {
        Self {
            op,
            number,
            is_durable,
            window: 0,
            instance: None,
            session: SessionId::default(),
            notifications_before: 0,
            changes_before: 0,
            sizes: None,
            change,
            handle: None,
            seen: Vec::new(),
            write: None,
        }
    }
}

/// A write of chunk files.
#[derive(Debug)]
pub(crate) struct Write {
    /// The write in the state of the file. `None` means that the write is a copy of inline bytes.
    pub(crate) chunks: Option<ChunkWrite>,
    /// Number of chunk files whose storage target has not replied yet.
    pub(crate) under_way: usize,
    /// Whether a storage target has refused its part of the write.
    pub(crate) has_failed: bool,
    /// The request that the client sends next, if the write is a copy of inline bytes.
    pub(crate) removal: Option<RemoveInline>,
}

/// Whether an error means that the group does not accept the session of the request any more.
pub(crate) fn is_lost(error: &Error) -> bool {
    matches!(error.code(), ErrorCode::StaleSession | ErrorCode::Evicted)
}

impl ClientProcess {
    pub(crate) fn new(tasks: usize) -> Self {
        Self {
            node: NodeId::default(),
            life: 0,
            is_running: false,
            sessions: BTreeMap::new(),
            next_session: 0,
            next_handle: 0,
            last_wait: 0,
            tasks: (0..tasks).map(|_| Task::default()).collect(),
            handles: Vec::new(),
            files: Files::default(),
            inline_writes: UnsyncedWrites::default(),
            moving: BTreeSet::new(),
            notifications: Notifications::default(),
        }
    }

    fn new_session(&mut self) -> Session {
        self.next_session += 1;
        let id = u64::from(self.node.raw()) << 32 | u64::from(self.next_session);
        Session {
            id: SessionId::new(id),
            is_open: false,
            sequences: vec![0; self.tasks.len()],
            waiting: Vec::new(),
            is_renewing: false,
            start: 0,
            compared: Vec::new(),
            replay: SessionReplay::default(),
        }
    }

    /// Whether the task has an operation in flight.
    pub(crate) fn is_busy(&self) -> bool {
        self.tasks.iter().any(|task| task.current.is_some())
    }
}

impl World {
    pub(crate) fn start_client(&mut self, client: usize) {
        if self.clients[client].is_running {
            return;
        }
        self.clients[client].node = self.register_client();
        let process = &mut self.clients[client];
        process.is_running = true;
        process.life += 1;
        let (life, tasks) = (process.life, process.tasks.len());
        for task in 0..tasks {
            let pause = self.random.micros(0, 2_000);
            self.after(pause, SimEvent::Step { client, life, task });
        }
        self.after(self.knobs.lease / 3, SimEvent::KeepAlive { client, life });
    }

    /// Kills a client without a message to any server. Its sessions end when their leases expire.
    pub(crate) fn kill_client(&mut self, client: usize) {
        let process = &mut self.clients[client];
        if !process.is_running {
            return;
        }
        self.faults += 1;
        process.is_running = false;
        process.life += 1;
        process.sessions.values().for_each(|it| self.witness.session_lost(it.id));
        process.sessions.clear();
        process.handles.clear();
        process.files.clear();
        process.inline_writes.clear();
        process.moving.clear();
        process.notifications = Notifications::default();
        for task in &mut process.tasks {
            if let Some(current) = task.current.take() {
                self.witness.close_window(current.window);
                self.unsure.extend(current.op.truncations().map(|(inode, _)| inode));
            }
        }
        let node = Node::Client(client);
        self.network.forget_calls(node);
        self.break_all(node, 0);
        if self.phase == Phase::Busy {
            let pause = self.random.micros(1_000, 3_000_000);
            self.after(pause, SimEvent::Restart { node });
        }
    }

    /// Closes all sessions of a client, as an unmount does.
    pub(crate) fn unmount_client(&mut self, client: usize) {
        let open: Vec<_> = self.clients[client]
            .sessions
            .iter()
            .map(|(group, session)| (*group, session.id))
            .collect();
        for (group, session) in open {
            let (header, body) = message(&md::CloseSession {});
            let header = Header { session, ..header };
            self.call(Node::Client(client), group, header, body, Purpose::CloseSession);
            self.witness.session_lost(session);
        }
        self.clients[client].sessions.clear();
        self.clients[client].handles.clear();
        self.clients[client].files.clear();
        // Mark the client as stopped, so that management receives no heartbeats from it any more.
        self.clients[client].is_running = false;
    }

    pub(crate) fn keep_alive(&mut self, client: usize, life: u64) {
        let process = &mut self.clients[client];
        if process.life != life || !process.is_running {
            return;
        }
        let third = self.knobs.lease / 3;
        self.after(third, SimEvent::KeepAlive { client, life });
        let mut due = Vec::new();
        for (group, session) in &mut self.clients[client].sessions {
            if session.is_open && !std::mem::replace(&mut session.is_renewing, true) {
                due.push((*group, session.id));
            }
        }
        for (group, session) in due {
            let (header, body) =
                message(&md::KeepAlive { lease_ms: self.knobs.lease.as_millis() as u32 });
            let header = Header { session, ..header };
            let tag =
                self.call(Node::Client(client), group, header, body, Purpose::KeepAlive(group));
            self.after(third, SimEvent::GiveUp { tag });
        }
    }

    // ---- operations

    /// Begins an operation of a task. If the operation must wait for another operation of the
    /// client on the same file, the task begins none now.
    pub(crate) fn begin(&mut self, client: usize, task: usize, op: Op, is_durable: bool) {
        match self.claim(client, &op) {
            Some(change) => self.begin_change(client, task, op, is_durable, change),
            None => {
                let life = self.clients[client].life;
                self.after(CLAIM_PAUSE, SimEvent::Step { client, life, task });
            }
        }
    }

    /// Begins an operation that changes the state of a file.
    pub(crate) fn begin_change(
        &mut self,
        client: usize,
        task: usize,
        op: Op,
        is_durable: bool,
        change: FileChange,
    ) {
        self.trace.note(self.now, || format!("client {client}.{task} begins {op:?}"));
        let number = self.witness.new_operation();
        let current = Current::new(op, number, is_durable, change);
        self.clients[client].tasks[task].current = Some(current);
        self.attempt(client, task);
    }

    /// Begins a write of chunk files. The caller sends the requests to storage.
    pub(crate) fn begin_write(
        &mut self,
        client: usize,
        task: usize,
        handle: &Handle,
        write: Write,
    ) {
        let op = Op::GetAttributes(md::GetAttributes { inode: handle.inode });
        let number = self.witness.new_operation();
        let mut current = Current::new(op, number, false, FileChange::Nothing);
        current.write = Some(write);
        self.clients[client].tasks[task].current = Some(current);
        self.keep_busy(client, task, handle.id);
    }

    /// Keeps a handle busy until the operation of a task ends. Does nothing if the task has no
    /// operation.
    pub(crate) fn keep_busy(&mut self, client: usize, task: usize, handle: u64) {
        let process = &mut self.clients[client];
        let Some(current) = &mut process.tasks[task].current else { return };
        current.handle = Some(handle);
        let handles = process.handles.iter_mut().filter(|it| it.id == handle);
        handles.for_each(|it| it.is_busy = true);
    }

    /// Sends the request of a task's operation in the client's current session with the group that
    /// serves the request.
    fn attempt(&mut self, client: usize, task: usize) {
        let process = &mut self.clients[client];
        let Some(current) = &process.tasks[task].current else { return };
        let (op, number, is_durable) = (current.op.clone(), current.number, current.is_durable);
        let Some(group) = self.map.shard_group(op.home().shard()) else { return };
        if !process.sessions.contains_key(&group) {
            let session = process.new_session();
            process.sessions.insert(group, session);
            self.open_session(client, group);
        }
        let process = &mut self.clients[client];
        let Some(session) = process.sessions.get_mut(&group) else { return };
        if !session.is_open {
            session.waiting.push(task);
            return;
        }
        let id = session.id;
        let mut header = Header { message: op.message(), session: id, ..Header::default() };
        if is_durable {
            header.flags |= FLAG_DURABLE;
        }
        let mut instance = None;
        let notifications_before = process.notifications.arrived.len();
        let changes_before = process.files.changes();
        if op.modifies() {
            session.sequences[task] += 1;
            header.slot = task as u32;
            header.sequence = session.sequences[task];
            instance = Some((id, header.slot, header.sequence));
        }
        let is_first_page = matches!(&op, Op::ReadDirectory(it) if it.cursor == 0);
        let is_next_page = matches!(&op, Op::ReadDirectory(_)) && !is_first_page;
        if let Some(id) = instance {
            let is_always = self.knobs.policy == skep_metadata::target::SyncPolicy::Always;
            self.witness.request_sent(id, number, &op, is_durable || is_always);
        }
        let window = (!is_next_page).then(|| self.witness.open_window(&op, id));
        if let Some(current) = &mut self.clients[client].tasks[task].current {
            current.instance = instance;
            current.session = id;
            current.notifications_before = notifications_before;
            current.changes_before = changes_before;
            if let Some(window) = window {
                self.witness.close_window(std::mem::replace(&mut current.window, window));
            }
        }
        let body = op.body();
        self.call(Node::Client(client), group, header, body, Purpose::Task(task));
    }

    fn open_session(&mut self, client: usize, group: GroupId) {
        let process = &self.clients[client];
        let Some(session) = process.sessions.get(&group).map(|it| it.id) else { return };
        let slots = process.tasks.len() as u32;
        let (header, body) = message(&md::OpenSession { client: process.node, slots });
        let header = Header { session, ..header };
        self.call(Node::Client(client), group, header, body, Purpose::Session(group, session));
    }

    /// Replaces a lost session of a group by a new one.
    pub(crate) fn replace_session(
        &mut self,
        client: usize,
        group: GroupId,
        lost: SessionId,
        why: &Error,
    ) {
        let is_current = lost.raw() >> 32 == u64::from(self.clients[client].node.raw());
        if why.code() == ErrorCode::Evicted && is_current {
            self.clients[client].node = self.register_client();
        }
        let process = &mut self.clients[client];
        if process.sessions.get(&group).is_none_or(|it| it.id != lost) {
            return;
        }
        self.trace.note(self.now, || format!("client {client} has lost session {lost}"));
        self.witness.session_lost(lost);
        let process = &mut self.clients[client];
        let mut new = process.new_session();
        if let Some(old) = process.sessions.get_mut(&group) {
            new.waiting = std::mem::take(&mut old.waiting);
        }
        // A real client opens the files of the lost session again. The simulated client drops the
        // handles of these files, and their unreported writes.
        let lost_files = process.handles.iter().filter(|handle| handle.session == lost);
        for inode in lost_files.map(|handle| handle.inode) {
            self.unsure.insert(inode);
            process.files.forget(inode);
        }
        process.handles.retain(|handle| handle.session != lost);
        process.sessions.insert(group, new);
        self.open_session(client, group);
    }

    /// Handles the final reply to a client's call.
    pub(crate) fn client_answer(
        &mut self,
        client: usize,
        purpose: &Purpose,
        result: Result<Vec<u8>>,
    ) {
        match purpose {
            Purpose::Session(group, session) => {
                self.session_opened(client, (*group, *session), &result);
            }
            Purpose::KeepAlive(group) => {
                let Some(session) = self.clients[client].sessions.get_mut(group) else { return };
                session.is_renewing = false;
                let id = session.id;
                let renewed = result.as_ref().ok().map(|body| md::KeepAliveReply::from_bytes(body));
                if let (Some(PlantedBug::SkipComparison), Some(Ok(renewed))) =
                    (self.knobs.plant, &renewed)
                {
                    session.start = renewed.start;
                }
                if let Some(Ok(renewed)) = renewed {
                    self.plant_at_renewal(client, id);
                    self.compare_after_renewal(client, id, renewed.start);
                }
                if let Err(error) = &result
                    && is_lost(error)
                {
                    self.replace_session(client, *group, id, error);
                }
            }
            Purpose::Slots(session) => self.slots_received(client, *session, result),
            Purpose::EndReplay(session) => self.replay_ended(client, *session, &result),
            Purpose::Outcome(task) => self.outcome_answer(client, *task, &result),
            Purpose::Write(task) => self.chunk_written(client, *task, &result),
            Purpose::Notifications(group, session) => {
                self.receive_notifications(client, (*group, *session), &result)
            }
            Purpose::Acknowledge(number) => {
                self.clients[client].notifications.unacknowledged.remove(number);
            }
            Purpose::Task(_)
            | Purpose::Replay(_)
            | Purpose::CloseSession
            | Purpose::Target(_)
            | Purpose::Cleaner(_) => {}
        }
    }

    fn session_opened(
        &mut self,
        client: usize,
        (group, id): (GroupId, SessionId),
        result: &Result<Vec<u8>>,
    ) {
        let process = &mut self.clients[client];
        // Ignore the reply if a new session has replaced this session in the meantime.
        let session = process.sessions.get_mut(&group).filter(|it| it.id == id);
        let Some(session) = session else { return };
        match result {
            Ok(reply) => {
                session.is_open = true;
                session.start = md::OpenSessionReply::from_bytes(reply).map_or(0, |it| it.start);
                self.wait_for_notifications(client, group, id);
                let Some(session) = self.clients[client].sessions.get_mut(&group) else { return };
                for task in std::mem::take(&mut session.waiting) {
                    self.attempt(client, task);
                }
            }
            Err(error) if is_lost(error) => {
                self.replace_session(client, group, id, error);
            }
            Err(error) => self.fail(format!("no session for client {client}: {error}")),
        }
    }

    /// Handles the final reply to the request of a task's operation. `is_reply_lost` means that the
    /// target may have executed an earlier attempt whose reply was lost.
    pub(crate) fn task_answer(
        &mut self,
        client: usize,
        task: usize,
        result: &Result<Vec<u8>>,
        is_reply_lost: bool,
    ) {
        let Some(current) = &mut self.clients[client].tasks[task].current else { return };
        if let (Op::ReadDirectory(list), Ok(body)) = (&mut current.op, result) {
            let Ok(page) = md::DirectoryEntries::from_bytes(body) else {
                return self.fail("a listing is malformed".to_owned());
            };
            let entries = page.entries.iter();
            current.seen.extend(entries.map(|it| (it.name.0.clone(), it.entry.inode)));
            if !page.end {
                list.cursor = page.entries.last().map_or(list.cursor, |it| it.cursor);
                return self.attempt(client, task);
            }
            let (window, seen) = (current.window, std::mem::take(&mut current.seen));
            let result = self.witness.check_listing(window, &seen);
            self.check(result);
            return self.end_operation(client, task, None);
        }
        let (window, instance) = (current.window, current.instance);
        if let Err(error) = result
            && current.op.is_of_wait()
            && is_lost(error)
        {
            // The end of the session has released the client's locks, and removed its waiting
            // request from the queue for the lock.
            let (session, home) = (current.session, current.op.home());
            if let Some(group) = self.map.shard_group(home.shard()) {
                self.replace_session(client, group, session, error);
            }
            return self.end_operation(client, task, None);
        }
        current.sizes = self.witness.sizes_in(window).filter(|_| result.is_ok());
        let checked = self.witness.check_answer(window, instance, result, is_reply_lost);
        self.check(checked);
        if let (Err(error), Some((session, ..))) = (result, instance)
            && is_lost(error)
        {
            return self.restart_operation(client, task, (session, error), is_reply_lost);
        }
        self.trace.note(self.now, || match result {
            Ok(_) => format!("client {client}.{task} is done"),
            Err(error) => format!("client {client}.{task} is refused: {error}"),
        });
        self.check_acknowledged(client, task, result);
        self.end_operation(client, task, result.as_ref().ok().map(Vec::as_slice));
    }

    /// Continues an operation after its session was lost, like a real client
    /// (`crates/client/src/session/request.rs`). A real client opens the files of the session
    /// again. The simulated client drops its handles of these files, and abandons a request that
    /// needs one of them.
    fn restart_operation(
        &mut self,
        client: usize,
        task: usize,
        (lost, why): (SessionId, &Error),
        is_reply_lost: bool,
    ) {
        let Some(current) = &self.clients[client].tasks[task].current else { return };
        let needs_handle = current.op.needs_handle();
        let is_truncation = current.op.truncations().is_some();
        let ends_with_session = current.op.ends_with_session();
        let (instance, is_durable) = (current.instance, current.is_durable);
        let group = self.map.shard_group(current.op.home().shard());
        self.unsure.extend(current.op.truncations().map(|(inode, _)| inode));
        if let Some(group) = group {
            self.replace_session(client, group, lost, why);
        }
        if needs_handle {
            return self.end_operation(client, task, None);
        }
        let may_have_run = is_reply_lost && !ends_with_session;
        let repeats_blindly = self.knobs.plant == Some(PlantedBug::RepeatBlindly);
        if let (Some((session, slot, sequence)), Some(group)) = (instance, group)
            && may_have_run
            && !is_truncation
            && !repeats_blindly
        {
            let (mut header, body) = message(&md::AskOutcome { session, slot, sequence });
            if is_durable {
                header.flags |= FLAG_DURABLE;
            }
            self.call(Node::Client(client), group, header, body, Purpose::Outcome(task));
        } else if is_truncation && (may_have_run || why.code() == ErrorCode::Evicted) {
            self.end_operation(client, task, None);
        } else {
            self.attempt(client, task);
        }
    }

    /// Handles the reply with the outcome of an operation whose session was lost.
    fn outcome_answer(&mut self, client: usize, task: usize, result: &Result<Vec<u8>>) {
        let Some(current) = &self.clients[client].tasks[task].current else { return };
        let Some(instance) = current.instance else { return };
        let (op, is_durable) = (current.op.clone(), current.is_durable);
        let reply = result.as_ref().ok().and_then(|body| md::OutcomeReply::from_bytes(body).ok());
        let Some(md::OutcomeReply { outcome }) = reply else {
            return self.fail(format!("no outcome of {instance:?}: {result:?}"));
        };
        let checked = self.witness.check_outcome(instance, &outcome);
        self.check(checked);
        self.trace.note(self.now, || format!("client {client}.{task} gets {outcome:?}"));
        match outcome {
            md::Outcome::Executed { reply } => {
                self.end_operation(client, task, Some(&reply.0));
                // When the session ended, the metadata target closed the file that the request had
                // opened. So open the file again.
                if let Some(open) = op.open_again(&reply.0)
                    && self.clients[client].tasks[task].current.is_none()
                {
                    self.begin(client, task, open, is_durable);
                }
            }
            md::Outcome::NotExecuted => self.attempt(client, task),
            md::Outcome::Unknown => self.fail(format!("the outcome of {instance:?} is unknown")),
        }
    }

    fn chunk_written(&mut self, client: usize, task: usize, result: &Result<Vec<u8>>) {
        let Some(current) = &mut self.clients[client].tasks[task].current else { return };
        // If a storage target refuses a part of a write, the other parts stay in their chunk files,
        // and no report to metadata covers them. This happens if the storage target learns of the
        // client's eviction earlier than the client does.
        if let (Err(_), Op::GetAttributes(it)) = (result, &current.op) {
            self.unsure.insert(it.inode);
        }
        let Some(write) = &mut current.write else { return };
        write.has_failed |= result.is_err();
        write.under_way -= 1;
        if write.under_way > 0 {
            return;
        }
        let Some(Write { chunks, has_failed, removal, .. }) = current.write.take() else { return };
        let handle = current.handle;
        match chunks {
            Some(chunks) if has_failed => chunks.fail(),
            Some(chunks) => {
                if let Some((op, change)) = self.complete_write(client, chunks) {
                    return self.continue_write(client, task, (op, change), handle);
                }
            }
            None => {}
        }
        self.end_operation(client, task, None);
        let Some(removal) = removal else { return };
        if !has_failed && self.clients[client].tasks[task].current.is_none() {
            self.begin(client, task, Op::RemoveInline(removal), true);
        } else {
            self.clients[client].moving.remove(&removal.inode);
        }
    }

    /// Begins the next request of a write. The handle stays busy.
    fn continue_write(
        &mut self,
        client: usize,
        task: usize,
        (op, change): (Op, FileChange),
        handle: Option<u64>,
    ) {
        self.begin_change(client, task, op, false, change);
        if let Some(handle) = handle {
            self.keep_busy(client, task, handle);
        }
    }

    fn end_operation(&mut self, client: usize, task: usize, reply: Option<&[u8]>) {
        let Some(mut current) = self.clients[client].tasks[task].current.take() else { return };
        self.witness.close_window(current.window);
        if let Op::RemoveInline(it) = &current.op {
            self.clients[client].moving.remove(&it.inode);
        }
        let change = std::mem::take(&mut current.change);
        // A mount does not list a truncation by an open if it has the state of the file.
        let is_listed =
            !matches!((&current.op, &change), (Op::Open(_), FileChange::Truncation { .. }));
        let next = self.apply_to_file(client, &current.op, change, reply);
        if let Some(next) = next {
            return self.continue_write(client, task, next, current.handle);
        }
        let mut handles = self.clients[client].handles.iter_mut();
        if let Some(handle) = handles.find(|it| Some(it.id) == current.handle) {
            handle.is_busy = false;
        }
        if let Some(reply) = reply {
            self.apply_reply(client, &current, reply);
            self.apply_inline_reply(client, &current.op, current.instance, reply);
            self.check_size_shared(client, &current.op, current.sizes.as_ref());
            if let Some(next) = self.next_of_wait(&current.op, current.session, reply) {
                return self.continue_wait(client, task, next);
            }
        }
        if let Some((inode, _)) = current.op.truncations().filter(|_| is_listed) {
            self.clients[client].files.note_truncation(inode);
        }
        let life = self.clients[client].life;
        let pause = if self.random.percent(80) {
            self.random.micros(0, 2_000)
        } else {
            self.random.micros(0, 100_000)
        };
        self.after(pause, SimEvent::Step { client, life, task });
    }
}
