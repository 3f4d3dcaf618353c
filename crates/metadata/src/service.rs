//! The metadata service. For each target, one thread connects the pure state machine to sockets,
//! the log file, the key-value store and the clock.
//!
//! Each connection adds its requests to the inbox of the target (`inbox`). When no other future can
//! run, the thread passes a batch of events to the state machine, and performs the returned actions
//! in order. After the actions, the thread waits for the next event, such as a request, the end of
//! a sync, a reply of another group, or a timer.

mod calls;
mod copying;
mod former_primary;
mod hand_over;
mod inbox;
mod leaving;
mod log_reads;
mod members;
mod opening;
mod own_disk_wait;
mod primary_stop;
mod restored;
mod roles;

use crate::engine::fjall_engine::FjallEngine;
use crate::free_space::FreeSpaceGauge;
use crate::meter::Meter;
use crate::settings::MetadataSettings;
use crate::target::{Action, Event, MetadataTarget, SyncPolicy};
use crate::tx::operation::{CallId, ConnectionId, OutgoingCall};
use inbox::{Inbox, ReadGate};
use restored::RestoredMarks;
use skep_cluster::limits::MAX_TAKE_OVER_AFTER_MS;
use skep_env::local::Notify;
use skep_env::{Mailbox, TcpStream};
use skep_rpc::{IncomingStream, JoinToken, Management, Outbox, Peer, Router};
use skep_service::{Host, Initialised, TargetEvent, quarantine};
use skep_store::failed_sync;
use skep_store::log::Log;
use skep_store::page_cache::MemberMarkFile;
use skep_store::restored::RESTORED_MARK;
use skep_types::map::{Condition, TargetHealth};
use skep_types::{Error, ErrorCode, Lsn, MapVersion, NodeId, NodeKind, Result, TargetId};
use skep_wire::Request;
use skep_wire::frame::Header;
use skep_wire::log_shipping::AskGroup;
use skep_wire::management::Evict;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

/// Time for which the thread polls for more work before it sleeps. A program that creates, renames
/// or removes files one after the other exchanges up to three messages with its mount between two
/// requests to metadata, which takes up to 80 us (docs/design/0001-threads-and-store.md).
const SPIN: Duration = Duration::from_micros(100);
/// Maximum time for which the service waits for the reply to one `Evict` request to management. If
/// management takes longer, the target sends another request later.
const EVICTION_PATIENCE: Duration = Duration::from_secs(5);
/// Duration of a sync of the log, above which the target reports to management that the sync hangs.
const SYNC_HANGS_AFTER: Duration = Duration::from_secs(10);
/// The health text of a target whose disk does not end a sync of the log.
const SYNC_HANGS: &str = "a sync of its log has not ended for more than 10 s, so its disk may hang";

fn host(settings: &MetadataSettings) -> Host {
    Host {
        kind: NodeKind::Metadata,
        settings: settings.node.clone(),
        targets: settings.targets.clone(),
        reserve: crate::free_space::reserve,
    }
}

/// Creates the directories of a new metadata service and of its targets. For an initialised
/// service, initialises only the targets that were added to its settings, and replaces its token.
///
/// # Errors
/// - `Exists` if the service and all its targets are initialised already, with this token.
/// - `Configuration` if a directory is not blank. The error names the directory.
pub fn initialise(settings: &MetadataSettings, token: Option<JoinToken>) -> Result<Initialised> {
    host(settings).initialise(token)
}

/// Serves until a signal asks the process to end. Takes over the signals of the process, so the
/// caller must not have started other threads.
///
/// # Errors
/// - An error if the service cannot start. The text of the error contains a hint on how to fix the
///   cause.
/// - `DeviceFailed` if a device fails later.
pub fn run(settings: &MetadataSettings) -> Result<()> {
    let policy = SyncPolicy::from(settings.metadata.sync);
    let cache_bytes = settings.metadata.cache.0;
    host(settings).run(move |start| {
        let mut free_space = FreeSpaceGauge::new(start.target, start.directory.path());
        let directory = start.directory.path().to_owned();
        let serving = async move {
            let served = roles::serve(start, policy, cache_bytes, &mut free_space).await;
            if served.as_ref().is_err_and(|error| error.code() == ErrorCode::DeviceFailed) {
                mark_failed_sync(&directory);
            }
            served.map_err(|error| free_space.explain(error))
        };
        skep_env::block_on(serving).map_err(|error| {
            Error::new(ErrorCode::Io, format!("cannot run the event loop: {error}"))
        })?
    })
}

/// Opens the store of a target. If an earlier process has marked a failed sync, reads the store
/// from the device, because the page cache may contain data that the device does not have.
fn open_engine(
    directory: &Path,
    target: TargetId,
    cache_bytes: u64,
    mark: &mut MemberMarkFile,
) -> Result<FjallEngine> {
    let store = directory.join("store");
    // After a failed sync, or after a restore of the directory from an older backup, the log may
    // lack records that this member has confirmed.
    let is_restored = skep_store::restored::has(directory, RESTORED_MARK)?;
    if failed_sync::is_marked(directory) || is_restored {
        mark.distrust()?;
    }
    if is_restored && mark.exists() {
        // The member mark is as old as the backup. After the backup, this member may have made a
        // longer promise than the bound in the mark permits, and the state of the group may have
        // changed.
        mark.bound_promises(Duration::from_millis(MAX_TAKE_OVER_AFTER_MS.into()))?;
        mark.forget_record()?;
    }
    if failed_sync::read_from_device(directory, &store)? {
        tracing::warn!(
            "target {target}: the device failed before this start, so the target has read its \
             store from the device again"
        );
    }
    FjallEngine::open(&store, cache_bytes)
}

/// Marks the directory of a target whose store or log could not be written.
fn mark_failed_sync(directory: &Path) {
    if let Err(error) = failed_sync::mark(directory) {
        tracing::error!(
            "cannot record in {} that its device failed: {error}; if the device works again, \
             restart the host before the next start of this target, so that the target does not \
             read old data from the page cache",
            directory.display()
        );
    }
}

/// The state that the futures of a target's thread share.
struct Shell {
    inbox: RefCell<Inbox>,
    arrived: Notify,
    taken: Notify,
    connections: RefCell<HashMap<ConnectionId, Rc<Outbox>>>,
    next_connection: Cell<ConnectionId>,
    router: Rc<Router>,
    management: Rc<Management>,
    /// Clients for which an `Evict` request to management is in flight.
    evicting: RefCell<BTreeSet<NodeId>>,
    failure: RefCell<Option<Error>>,
    meter: RefCell<Meter>,
    marks: RestoredMarks,
    is_stopping: Cell<bool>,
    is_checkpointing: Cell<bool>,
    /// Time at which the running sync of the log began. `None` means that no sync is running.
    sync_began: Cell<Option<Duration>>,
    membership: members::MembershipState,
}

impl Shell {
    fn new(
        router: Rc<Router>,
        management: Rc<Management>,
        meter: Meter,
        marks: RestoredMarks,
    ) -> Rc<Self> {
        Rc::new(Self {
            inbox: RefCell::default(),
            arrived: Notify::default(),
            taken: Notify::default(),
            connections: RefCell::default(),
            next_connection: Cell::new(1),
            router,
            management,
            evicting: RefCell::default(),
            failure: RefCell::default(),
            meter: RefCell::new(meter),
            marks,
            is_stopping: Cell::new(false),
            is_checkpointing: Cell::new(false),
            sync_began: Cell::new(None),
            membership: members::MembershipState::default(),
        })
    }

    /// Counts a batch that began at the time `began`. Adds the measured times of each request to
    /// its reply.
    fn measure(
        &self,
        actions: &mut [Action],
        began: Duration,
        target: &MetadataTarget<FjallEngine>,
    ) {
        let (mut meter, now) = (self.meter.borrow_mut(), skep_env::now());
        meter.note_awaited(target.waits(), || self.router.map());
        meter.end_batch(actions, target.waits(), now);
        meter.count_work(now, skep_env::idle_time());
        meter.role().after_batch(target.wait_left(), now);
        meter.role().show_loads(now, || target.engine().block_loads());
        meter.show_removals(target.queued_removals());
        meter.show_holders(began, || target.silent_holders());
    }

    /// Counts a batch that the target handled in the role of a backup member.
    fn measure_backup(&self, actions: &mut [Action]) {
        let (mut meter, now) = (self.meter.borrow_mut(), skep_env::now());
        meter.end_batch(actions, &[], now);
        meter.count_work(now, skep_env::idle_time());
    }

    /// Waits until an event arrives, or until the time `until`.
    async fn wait_for_events(&self, until: Duration) {
        let arrived = self.arrived.wait();
        let waits = !self.is_stopping.get() || self.membership.is_leaving.get();
        if self.inbox.borrow().is_empty() && waits {
            let left = until.saturating_sub(skep_env::now());
            skep_env::timeout(left, arrived).await;
        }
        // First run the other futures that are ready, so that their events are in the same batch.
        skep_env::yield_now().await;
    }

    /// Waits until events arrive, or until the time `until`. Returns the events.
    async fn next_events(&self, until: Duration) -> Result<Vec<Event>> {
        self.wait_for_events(until).await;
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        let events = self.inbox.borrow_mut().take_batch();
        self.taken.notify();
        Ok(events)
    }

    fn put(&self, event: Event) {
        self.inbox.borrow_mut().put(event);
        self.arrived.notify();
    }

    fn fail(&self, error: Error) {
        self.failure.borrow_mut().get_or_insert(error);
        self.arrived.notify();
    }

    async fn receive(self: Rc<Self>, events: Mailbox<TargetEvent>) {
        loop {
            match events.receive().await {
                Ok(TargetEvent::Connection { socket, peer }) => {
                    let stream = TcpStream::from_fd(socket);
                    skep_env::spawn(Rc::clone(&self).read_requests(stream, peer)).detach();
                }
                // The reply itself proves that the device works, because an engine or a log that
                // blocks would also block this task. So no read of the device is necessary. A sync
                // does not block this task, so `health` checks its duration.
                Ok(TargetEvent::Probe(probe)) => probe.answer(self.health()),
                Ok(TargetEvent::MapChanged) => self.put(Event::Map(self.router.map())),
                // Continue to receive maps: a stopping backup member waits for the map in which it
                // does not serve.
                Ok(TargetEvent::Stop) => {
                    self.is_stopping.set(true);
                    self.arrived.notify();
                }
                Err(error) => return self.fail(error.into()),
            }
        }
    }

    fn health(&self) -> TargetHealth {
        let now = skep_env::now();
        if let Some(reason) = &*self.membership.halted.borrow() {
            return TargetHealth::new(Condition::Down, reason);
        }
        if self.syncs_for(SYNC_HANGS_AFTER) {
            return TargetHealth::new(Condition::Hung, SYNC_HANGS);
        }
        match self.marks.health() {
            health if health.problem.is_empty() => self.membership.own_disk.health(now),
            health => health,
        }
    }

    /// Whether the running sync of the log has taken at least the time `least`.
    fn syncs_for(&self, least: Duration) -> bool {
        let is_long = |began| skep_env::now().saturating_sub(began) >= least;
        self.sync_began.get().is_some_and(is_long)
    }

    async fn read_requests(self: Rc<Self>, stream: TcpStream, peer: Peer) {
        let client = peer.node;
        let connection = self.next_connection.get();
        self.next_connection.set(connection + 1);
        let (mut requests, outbox) = IncomingStream::new(stream, peer.kind);
        self.connections.borrow_mut().insert(connection, Rc::clone(&outbox));
        self.meter.borrow_mut().connected();
        let mut gate = ReadGate::default();
        let is_closed =
            |gate: &ReadGate| self.membership.is_backlogged.get() && !gate.opens_in_backlog();
        loop {
            while !self.inbox.borrow().has_space(&peer) || is_closed(&gate) {
                self.taken.wait().await;
            }
            match requests.next().await {
                Ok(Some(incoming)) => {
                    if let Err(error) = quarantine::check(incoming.header.message, &incoming.body) {
                        outbox.refuse(&incoming.header, &error);
                        continue;
                    }
                    gate.note(incoming.header.message);
                    while is_closed(&gate) {
                        self.taken.wait().await;
                    }
                    self.meter.borrow_mut().arrived(connection, client, &incoming);
                    let (header, body) = (incoming.header, incoming.body);
                    let request = Event::Request { connection, header, body };
                    self.inbox.borrow_mut().put_request(&peer, request);
                    self.arrived.notify();
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!("ended connection {connection} of this target: {error:#}");
                    break;
                }
            }
        }
        self.meter.borrow_mut().disconnected(connection);
        if let Some(outbox) = self.connections.borrow_mut().remove(&connection) {
            outbox.close();
        }
    }

    /// Performs the actions of a batch in order. `may_reply` returns whether the target may send
    /// replies at a given time. This function calls `may_reply` after the actions before the
    /// replies, because these actions may take long on a slow disk. Returns the replies that the
    /// target must not send now. Always sends replies about the status of the group.
    fn carry_out(
        self: &Rc<Self>,
        actions: Vec<Action>,
        log: &mut Log,
        (engine, fence): (&FjallEngine, MapVersion),
        may_reply: impl Fn(Duration) -> bool,
    ) -> Result<Vec<Action>> {
        let (mut may_send, mut unsent) = (None, Vec::new());
        for action in actions {
            if let Action::Reply { request, .. } = &action
                && request.message != AskGroup::ID
                && !*may_send.get_or_insert_with(|| may_reply(skep_env::now()))
            {
                unsent.push(action);
                continue;
            }
            match action {
                Action::Append { epoch, lsn, synced, payload } => {
                    log.append(epoch, lsn, synced, &payload)?;
                }
                Action::Truncate { after } => log.truncate(after)?,
                Action::SendToMember(request) => members::send(self, request),
                Action::ReadLog(read) => log_reads::read(self, log, read),
                Action::Sync { lsn } => self.start_sync(log, lsn),
                Action::Reply { connection, request, result } => {
                    self.reply(connection, request, result, fence);
                }
                Action::Call { call, request } => self.start_call(call, request),
                Action::Evict { client, unless_heard } => {
                    self.start_eviction(client, unless_heard);
                }
                Action::ChangeGroup(change) => members::change_group(self, change),
                Action::AskTakeOver(request) => members::ask_to_take_over(self, request),
                Action::Checkpoint { lsn } => self.start_checkpoint(engine, lsn)?,
            }
        }
        Ok(unsent)
    }

    fn reply(
        &self,
        connection: ConnectionId,
        mut request: Header,
        result: Result<Vec<u8>>,
        fence: MapVersion,
    ) {
        let needed = fence.max(self.router.needed());
        request.lowest_map = request.lowest_map.max(needed);
        let connections = self.connections.borrow();
        // If the connection is closed, the client sends the request again on another connection.
        let Some(outbox) = connections.get(&connection) else { return };
        match result {
            Ok(body) => outbox.reply_raw(&request, &body),
            Err(error) => outbox.refuse(&request, &error),
        }
    }

    fn start_sync(self: &Rc<Self>, log: &Log, lsn: Lsn) {
        let (shell, file) = (Rc::clone(self), log.file());
        self.sync_began.set(Some(skep_env::now()));
        skep_env::spawn(async move {
            let ended = file.sync_data().await;
            shell.sync_began.set(None);
            match ended {
                Ok(()) => shell.put(Event::Synced { lsn }),
                Err(error) => {
                    let what = format!(
                        "cannot sync the log of the target: {error}; check the disk of the log"
                    );
                    shell.fail(Error::new(ErrorCode::DeviceFailed, what));
                }
            }
        })
        .detach();
    }

    fn start_call(self: &Rc<Self>, call: CallId, request: OutgoingCall) {
        let shell = Rc::clone(self);
        skep_env::spawn(async move {
            match calls::send(&shell.router, &request).await {
                // This target was deposed, so it must neither continue the operation nor reply to
                // the client.
                Err(error) if error.code() == ErrorCode::Deposed => shell.fail(error),
                result => shell.put(Event::Answer { call, result }),
            }
        })
        .detach();
    }

    /// Sends management one request to remove a client. If the request fails, the target sends
    /// another request later.
    fn start_eviction(self: &Rc<Self>, client: NodeId, unless_heard: bool) {
        if !self.evicting.borrow_mut().insert(client) {
            return;
        }
        let shell = Rc::clone(self);
        skep_env::spawn(async move {
            let request = Evict { client, unless_heard };
            let asked = async {
                let sender = shell.router.sender()?;
                shell.management.call_once_as(sender, &request, EVICTION_PATIENCE).await
            };
            if let Err(error) = asked.await {
                if error.code() == ErrorCode::Deposed {
                    tracing::debug!("cannot evict client {client}: {error:#}");
                    shell.fail(error);
                } else if shell.membership.refused_evictions.is_due(skep_env::now()) {
                    tracing::warn!(
                        "management cannot evict client {client} yet, so the client keeps its \
                         locks and open files, and the metadata target asks management again: \
                         {error}"
                    );
                }
            }
            shell.evicting.borrow_mut().remove(&client);
        })
        .detach();
    }

    fn start_checkpoint(self: &Rc<Self>, engine: &FjallEngine, lsn: Lsn) -> Result<()> {
        let engine = engine.clone();
        let (sender, done) = Mailbox::new(1)?;
        let body = move || {
            let made = engine.checkpoint();
            // Drop the engine first: when the target's thread receives the result of the
            // checkpoint, it may open the store again.
            drop(engine);
            let _ = sender.send(made);
        };
        skep_env::spawn_thread("checkpoint".into(), None, body)?;
        self.is_checkpointing.set(true);
        let shell = Rc::clone(self);
        skep_env::spawn(async move {
            let ended = done.receive().await;
            shell.is_checkpointing.set(false);
            match ended {
                Ok(Ok(())) => shell.put(Event::Checkpointed { lsn }),
                Ok(Err(error)) => shell.fail(error),
                Err(error) => shell.fail(error.into()),
            }
        })
        .detach();
        Ok(())
    }
}
