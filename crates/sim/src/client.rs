//! A simulated client: its process, sessions and open files. The simulated client uses sessions,
//! slots and sequences exactly like a real client (`crates/client`). Each task of the client runs
//! one operation at a time (`tasks`).

mod tasks;

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
use skep_wire::frame::Header;
use skep_wire::inline::RemoveInline;
use skep_wire::metadata as md;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

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
    /// Start number that the target had when the client opened the session, or when the client last
    /// compared its changes with the target's slots. The client sends this number with each change
    /// in this session.
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
    /// The state of the file. All handles of the client for this file share this state.
    pub(crate) state: Arc<InodeState>,
    pub(crate) mode: md::OpenMode,
    pub(crate) session: SessionId,
    /// The request that opened the file.
    pub(crate) opened_by: InstanceId,
    pub(crate) generation: u64,
    pub(crate) pattern: Option<skep_types::StripePattern>,
    /// From the reply to the open: the pattern generation, and whether the inline bytes had been
    /// moved to storage.
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
    /// The change that the operation makes to the client's state of a file.
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
    /// The write as recorded in the state of the file. `None` means that the write copies inline
    /// bytes to storage.
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

    /// Kills a client without a message to any server. The sessions of the client end when their
    /// leases expire.
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
        // Mark the client as stopped, so that management receives no further heartbeats from the
        // client.
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

    fn open_session(&mut self, client: usize, group: GroupId) {
        let process = &self.clients[client];
        let Some(session) = process.sessions.get(&group).map(|it| it.id) else { return };
        let slots = process.tasks.len() as u32;
        let (header, body) = message(&md::OpenSession { client: process.node, slots });
        let header = Header { session, ..header };
        self.call(Node::Client(client), group, header, body, Purpose::Session(group, session));
    }

    /// Replaces a lost session of a group by a new session.
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
        // A real client reopens the files of the lost session. The simulated client drops the
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
            Err(error) => self.fail(format!("cannot open a session for client {client}: {error}")),
        }
    }
}
