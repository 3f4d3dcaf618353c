//! Metrics of a metadata target: its requests, and the work of its log and its key-value store.
//!
//! The state machine of the target has no clock and counts nothing. The service around the state
//! machine reports the events of each request to the meter: its arrival, the batch that takes it,
//! each reason why it waits after that batch, and its reply. From the times of these events the
//! meter computes the time that the request spends in each stage. Before a batch takes the request,
//! its stage is `waiting`. During that batch, its stage is `processing`. If the request waits after
//! that batch, the reason of the wait determines the stage: `log_sync`, `copies` or `others`. If
//! the request has waited for a storage target, its trace record and its log line contain this
//! target.
//!
//! This module does not own the counters (`skep-metrics`), the requests, or the search for silent
//! clients that block requests of other clients ([`crate::sessions::silent_holders`]).

mod awaited;
mod objects;
mod role;

use self::awaited::Awaited;
use self::objects::{directory_of, inode_of};
use self::role::RoleFigures;
use crate::sessions::silent_holders::{FoundHolders, SilentHolders};
use crate::target::{Action, Event, RequestWait, WaitReason};
use crate::tx::operation::ConnectionId;
use skep_metrics::{
    Completed, Counter, Gauge, Histogram, OpenRequests, OperationTable, Origin, Registry, STAGES,
    SlowOperations, Source, Stage, catalog, is_off,
};
use skep_rpc::Incoming;
use skep_rpc::origin::cause_of;
use skep_types::{NodeId, Result, TargetId};
use skep_wire::Request;
use skep_wire::catalog::{is_ordinary_absence, waits_for_event};
use skep_wire::frame::Header;
use skep_wire::inline::{ReadInline, WriteInline};
use skep_wire::metadata as md;
use skep_wire::sharing::WaitNotifications;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::time::Duration;

/// Length of a `WriteInline` without the bytes to write.
const WRITE_INLINE_BYTES: usize = 38;
/// Length of a `ReadInlineReply` without the bytes that were read.
const READ_INLINE_REPLY_BYTES: usize = 16;

/// Minimum time between two updates of the list of silent clients that block requests of other
/// clients.
const HOLDERS_EVERY: Duration = Duration::from_millis(250);

/// Whether no program waits for the reply to a request with this message id, so that a slow reply
/// needs no log line.
fn is_of_no_program(message: u16) -> bool {
    message == md::KeepAlive::ID
}

/// Identifies a request: the id of its connection, and its tag.
type RequestKey = (ConnectionId, u64);

/// Hashes request keys. Connection ids and tags count up, so a multiplication spreads the keys well
/// enough. The standard hash function would take most of the meter's time.
#[derive(Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23);
    }
}

/// A request that has arrived and has not got its reply yet.
#[derive(Debug)]
struct Arrival {
    origin: Origin,
    trace: u128,
    /// Id of the inode that the request reads or changes, or zero.
    inode: u64,
    written_bytes: u64,
    /// Whether this is a `WaitNotifications` request. Even an idle client always has one in flight.
    is_standing: bool,
    at: Duration,
    /// The present stage. The stage `Waiting` means that no batch has taken the request.
    stage: Stage,
    /// Beginning of the present stage.
    stage_began: Duration,
    /// Time spent in each stage before `stage_began`.
    spent: [Duration; STAGES],
    /// Id of the request in the list of open requests. `None` for a request that is sent in order
    /// to wait ([`waits_for_event`]), because the list does not contain it.
    open: Option<u64>,
    /// The storage target for which the request has waited.
    awaited: Option<Awaited>,
}

impl Arrival {
    fn is_taken(&self) -> bool {
        self.stage != Stage::Waiting
    }

    /// Ends the present stage and begins another one.
    fn enter(&mut self, stage: Stage, now: Duration) {
        self.spent[self.stage as usize] += now.saturating_sub(self.stage_began);
        (self.stage, self.stage_began) = (stage, now);
    }
}

/// Returns the stage of a request that waits for this reason.
fn stage_of(reason: WaitReason) -> Stage {
    match reason {
        WaitReason::OwnSync => Stage::LogSync,
        WaitReason::Copies => Stage::Copies,
        WaitReason::Others | WaitReason::Storage(_) => Stage::Others,
    }
}

/// Numbers of the requests without a reply that do not count as running.
#[derive(Debug, Default)]
struct IdleRequests {
    /// Number of requests that no batch has taken yet.
    waiting: usize,
    /// Number of `WaitNotifications` requests that a batch has taken.
    standing: usize,
}

impl IdleRequests {
    fn count(&self) -> usize {
        self.waiting + self.standing
    }

    /// Removes a request that ends.
    fn remove(&mut self, arrival: &Arrival) {
        if !arrival.is_taken() {
            self.waiting -= 1;
        } else if arrival.is_standing {
            self.standing -= 1;
        }
    }
}

/// The metrics of the log, the store, and the queued removals of chunk files.
#[derive(Debug)]
struct LogFigures {
    bytes: Arc<Counter>,
    records: Arc<Counter>,
    batches: Arc<Counter>,
    working: Arc<Counter>,
    sync: Arc<Histogram>,
    unsynced: Arc<Gauge>,
    checkpoint: Arc<Histogram>,
    since_checkpoint: Arc<Gauge>,
    removals_queued: Arc<Gauge>,
}

/// A sync or a checkpoint in progress: the time of its beginning, and the records or bytes that it
/// covers.
#[derive(Debug, Default)]
struct Running {
    began: Duration,
    covered: i64,
}

/// Counts the requests of one target, on the target's thread.
#[derive(Debug)]
pub(crate) struct Meter {
    table: OperationTable,
    log: LogFigures,
    arrivals: HashMap<RequestKey, Arrival, BuildHasherDefault<KeyHasher>>,
    open: OpenRequests,
    idle: IdleRequests,
    /// Keys of the requests that the batch in progress has taken.
    taken: Vec<RequestKey>,
    /// The sync of the log in progress, with the number of records that it covers.
    running_sync: Running,
    /// The checkpoint in progress, with the number of log bytes that it covers.
    running_checkpoint: Running,
    target: TargetId,
    /// Chooses the slow syncs for which the service logs a warning.
    slow_syncs: SlowOperations,
    /// Chooses the slow requests for which the service logs a warning.
    slow: SlowOperations,
    holders: Arc<SilentHolders>,
    holders_shown: Duration,
    role: RoleFigures,
    /// Time of the last call of [`Self::count_work`], and the thread's total idle time at that
    /// call.
    worked: Option<(Duration, Duration)>,
}

impl Drop for Meter {
    /// When a role of the target ends, sets the metrics of this role to zero: silent clients,
    /// unsynced records, log bytes since the last checkpoint, and queued removals.
    fn drop(&mut self) {
        self.holders.set(FoundHolders::default());
        self.log.unsynced.set(0);
        self.log.since_checkpoint.set(0);
        self.log.removals_queued.set(0);
    }
}

impl Meter {
    /// Creates a meter for the calling thread.
    pub(crate) fn new(registry: &Registry, target: TargetId) -> Self {
        let labels = vec![("target", target.raw().to_string())];
        let name = |number: u32| skep_wire::catalog::metric_name(u16::try_from(number).ok()?);
        let log = LogFigures {
            bytes: registry.counter(&catalog::LOG_BYTES, &labels),
            records: registry.counter(&catalog::LOG_RECORDS, &labels),
            batches: registry.counter(&catalog::BATCHES, &labels),
            working: registry.counter(&catalog::WORKING_SECONDS, &labels),
            sync: registry.histogram(&catalog::LOG_SYNC, &labels),
            unsynced: registry.gauge(&catalog::LOG_UNSYNCED, &labels),
            checkpoint: registry.histogram(&catalog::CHECKPOINT, &labels),
            since_checkpoint: registry.gauge(&catalog::SINCE_CHECKPOINT, &labels),
            removals_queued: registry.gauge(&catalog::REMOVALS_QUEUED, &labels),
        };
        let gauge = |definition| registry.gauge(definition, &labels);
        let open =
            OpenRequests::new(gauge(&catalog::METADATA_OPEN), gauge(&catalog::METADATA_OLDEST));
        let holders = SilentHolders::new(target);
        registry.add(Arc::clone(&holders) as Arc<dyn Source>);
        Self {
            table: OperationTable::new(registry, &catalog::METADATA, labels, name),
            log,
            arrivals: HashMap::default(),
            open,
            idle: IdleRequests::default(),
            taken: Vec::new(),
            running_sync: Running::default(),
            running_checkpoint: Running::default(),
            target,
            slow_syncs: SlowOperations::default(),
            slow: SlowOperations::default(),
            holders,
            holders_shown: Duration::ZERO,
            role: RoleFigures::new(registry, target),
            worked: None,
        }
    }

    /// Returns the metrics of the roles of the target.
    pub(crate) fn role(&mut self) -> &mut RoleFigures {
        &mut self.role
    }

    pub(crate) fn connected(&mut self) {
        self.table.connections().add(1);
    }

    /// Drops the requests of a connection that has ended, since their replies can no longer be
    /// sent.
    pub(crate) fn disconnected(&mut self, connection: ConnectionId) {
        self.table.connections().add(-1);
        let (open, idle) = (&mut self.open, &mut self.idle);
        self.arrivals.retain(|(of, _), arrival| {
            let stays = *of != connection;
            if !stays {
                arrival.open.into_iter().for_each(|number| open.end(number));
                idle.remove(arrival);
            }
            stays
        });
        self.show_queues();
    }

    /// Handles the arrival of a request of `client`.
    pub(crate) fn arrived(
        &mut self,
        connection: ConnectionId,
        client: NodeId,
        incoming: &Incoming,
    ) {
        if is_off() {
            return;
        }
        let header = &incoming.header;
        let written = match header.message {
            WriteInline::ID => incoming.body.len().saturating_sub(WRITE_INLINE_BYTES),
            _ => 0,
        };
        let arrival = Arrival {
            origin: Origin {
                directory: directory_of(header.message, &incoming.body),
                ..cause_of(header, client)
            },
            trace: header.trace,
            inode: inode_of(header.message, &incoming.body),
            written_bytes: written as u64,
            is_standing: header.message == WaitNotifications::ID,
            at: incoming.arrived_at,
            stage: Stage::Waiting,
            stage_began: incoming.arrived_at,
            spent: [Duration::ZERO; STAGES],
            open: (!waits_for_event(header.message)).then(|| self.open.begin(incoming.arrived_at)),
            awaited: None,
        };
        let before = self.arrivals.insert((connection, header.tag), arrival);
        // A faulty peer may use the tag of a request that has no reply yet. In this case, count
        // only the newer request.
        if let Some(before) = before {
            before.open.into_iter().for_each(|number| self.open.end(number));
            self.idle.remove(&before);
        }
        self.idle.waiting += 1;
        self.show_queues();
    }

    /// Handles the beginning of a batch, which takes `events`.
    pub(crate) fn begin_batch(&mut self, events: &[Event], now: Duration) {
        if is_off() {
            return;
        }
        for event in events {
            match event {
                Event::Request { connection, header, .. } => {
                    let key = (*connection, header.tag);
                    let arrival = self.arrivals.get_mut(&key);
                    if let Some(arrival) = arrival.filter(|it| !it.is_taken()) {
                        arrival.enter(Stage::Processing, now);
                        self.idle.waiting -= 1;
                        self.idle.standing += usize::from(arrival.is_standing);
                        self.taken.push(key);
                    }
                }
                Event::Synced { .. } => {
                    let duration = now.saturating_sub(self.running_sync.began);
                    self.log.sync.record(duration);
                    let synced = Completed { duration, ..Completed::default() };
                    let synced = synced.with(Stage::LogSync, duration);
                    if let Some(line) =
                        self.slow_syncs.line(&synced, now, || "a sync of the log".into())
                    {
                        tracing::warn!(
                            "target {}: {line}; all changes waited for this sync; check the disk \
                             of the log",
                            self.target
                        );
                    }
                    self.log.unsynced.add(-self.running_sync.covered);
                    self.running_sync.covered = 0;
                }
                Event::Checkpointed { .. } => {
                    self.log.checkpoint.record(now.saturating_sub(self.running_checkpoint.began));
                    self.log.since_checkpoint.add(-self.running_checkpoint.covered);
                }
                _ => {}
            }
        }
        self.log.batches.add(1);
    }

    /// Counts the actions of a batch: log records, syncs, checkpoints and replies. Adds the
    /// measured times of each request to its reply, so the caller must call this function before it
    /// performs the actions. `waits` are the waits that began in the batch.
    pub(crate) fn end_batch(
        &mut self,
        actions: &mut [Action],
        waits: &[RequestWait],
        now: Duration,
    ) {
        if is_off() {
            return;
        }
        for action in actions {
            match action {
                Action::Append { payload, .. } => {
                    self.log.records.add(1);
                    self.log.bytes.add(payload.len() as u64);
                    self.log.since_checkpoint.add(payload.len() as i64);
                    self.log.unsynced.add(1);
                }
                Action::Sync { .. } => {
                    self.running_sync.began = now;
                    self.running_sync.covered = self.log.unsynced.get();
                }
                Action::Checkpoint { .. } => {
                    self.running_checkpoint.began = now;
                    self.running_checkpoint.covered = self.log.since_checkpoint.get();
                }
                Action::Reply { connection, request, result } => {
                    self.replied(*connection, request, result, now);
                }
                Action::Call { .. }
                | Action::Evict { .. }
                | Action::SendToMember(_)
                | Action::ChangeGroup(_)
                | Action::AskTakeOver(_)
                | Action::Truncate { .. }
                | Action::ReadLog(_) => {}
            }
        }
        for key in self.taken.drain(..) {
            if let Some(arrival) = self.arrivals.get_mut(&key) {
                arrival.enter(Stage::Others, now);
            }
        }
        for RequestWait { connection, tag, reason } in waits {
            let arrival = self.arrivals.get_mut(&(*connection, *tag));
            if let Some(arrival) = arrival.filter(|it| it.is_taken()) {
                arrival.enter(stage_of(*reason), now);
            }
        }
        self.show_queues();
    }

    /// Adds the working time of the thread since the last call: the time until `now`, minus the
    /// idle time since that call. `idle` is the total idle time of the thread.
    pub(crate) fn count_work(&mut self, now: Duration, idle: Duration) {
        let (counted_to, idle_before) = self.worked.replace((now, idle)).unwrap_or((now, idle));
        let spent = now.saturating_sub(counted_to);
        let worked = spent.saturating_sub(idle.saturating_sub(idle_before));
        self.log.working.add(u64::try_from(worked.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Publishes the number of chunk files that the target still has to remove from storage.
    pub(crate) fn show_removals(&self, queued: usize) {
        self.log.removals_queued.set(queued as i64);
    }

    /// Publishes the silent clients that block requests of other clients, which `found` returns.
    /// Does nothing if the last update was less than [`HOLDERS_EVERY`] ago.
    pub(crate) fn show_holders(&mut self, now: Duration, found: impl FnOnce() -> FoundHolders) {
        if now.saturating_sub(self.holders_shown) >= HOLDERS_EVERY {
            self.holders_shown = now;
            self.holders.set(found());
        }
    }

    fn replied(
        &mut self,
        connection: ConnectionId,
        request: &mut Header,
        result: &Result<Vec<u8>>,
        now: Duration,
    ) {
        let Some(mut arrival) = self.arrivals.remove(&(connection, request.tag)) else { return };
        arrival.open.into_iter().for_each(|number| self.open.end(number));
        self.idle.remove(&arrival);
        let last = arrival.stage;
        arrival.enter(last, now);
        let sent = match (request.message, result) {
            (ReadInline::ID, Ok(body)) => body.len().saturating_sub(READ_INLINE_REPLY_BYTES),
            _ => 0,
        };
        let completed = Completed {
            operation: u32::from(request.message),
            trace: arrival.trace,
            ended_at: now,
            object: arrival.origin.directory.unwrap_or(arrival.inode),
            is_failed: result
                .as_ref()
                .is_err_and(|error| !is_ordinary_absence(request.message, error.code())),
            received_bytes: arrival.written_bytes,
            sent_bytes: sent as u64,
            is_wait: waits_for_event(request.message),
            duration: now.saturating_sub(arrival.at),
            stages: arrival.spent,
            ..Completed::default()
        };
        let awaited = arrival.awaited.as_ref();
        let calls = || awaited.map(|it| it.calls(&completed)).unwrap_or_default();
        self.table.record_with(&completed, &arrival.origin, calls);
        request.set_times(completed.times_us());
        let name = || skep_wire::catalog::metric_name(request.message).unwrap_or_default();
        if !completed.is_wait
            && !is_of_no_program(request.message)
            && let Some(line) =
                self.slow.line_about(&completed, awaited.map(Awaited::name), now, name)
        {
            tracing::warn!("target {}: {line}", self.target);
        }
    }

    /// Updates the gauges of queued and running requests.
    fn show_queues(&self) {
        self.table.queued().set(self.idle.waiting as i64);
        self.table.busy().set((self.arrivals.len() - self.idle.count()) as i64);
    }
}

#[cfg(test)]
mod tests;
