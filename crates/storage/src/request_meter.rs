//! Counts the requests of a storage target by kind, with their bytes, errors and times in each
//! stage. Logs slow requests.
//!
//! The counters are in `skep-metrics`. [`crate::transfers`] computes the times of transfers.

use crate::transfers::Transfers;
use skep_env::TimeSpent;
use skep_metrics::{
    Completed, OpenRequests, OperationTable, Origin, Registry, STAGES, SlowOperations, Stage,
    catalog, is_off,
};
use skep_rpc::Incoming;
use skep_rpc::origin::cause_of;
use skep_types::codec::Codec;
use skep_types::{InodeId, NodeId, TargetId};
use skep_wire::Request;
use skep_wire::storage as st;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// Length of an inode id. The key of a chunk file begins with an inode id.
const INODE_ID_BYTES: usize = 8;

/// Returns the inode whose chunk file a request reads or changes, or zero for other requests.
fn inode_of(message: u16, body: &[u8]) -> u64 {
    let is_about_chunk_file = matches!(
        message,
        st::WriteChunk::ID
            | st::ReadChunk::ID
            | st::SyncChunk::ID
            | st::TruncateChunk::ID
            | st::StatChunk::ID
            | st::ReserveChunk::ID
            | st::ClearChunk::ID
            | st::SeekChunk::ID
    );
    let id = body.get(..INODE_ID_BYTES).filter(|_| is_about_chunk_file);
    id.and_then(|id| InodeId::from_bytes(id).ok()).map_or(0, InodeId::raw)
}

/// Counts the requests of one target, on the target's thread.
#[derive(Debug)]
pub(crate) struct RequestMeter {
    table: OperationTable,
    target: TargetId,
    slow: SlowOperations,
    transfers: RefCell<Transfers>,
    open: Rc<RefCell<OpenRequests>>,
}

/// A request that has arrived.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    message: u16,
    trace: u128,
    /// Id of the inode whose chunk file the request reads or changes. Zero for other requests.
    inode: u64,
    data_bytes: u32,
    origin: Origin,
    /// Time at which the header was received.
    header_at: Duration,
    /// Time at which the bulk data was received.
    data_at: Duration,
    /// Time in which the bulk data was transferred. Excludes the time that was already counted for
    /// other transfers of the same client.
    moving: Duration,
}

/// A request that waits for its reply. This value is dropped when the reply is sent, or when the
/// sender has disconnected.
#[derive(Debug)]
pub(crate) struct OpenRequest {
    open: Rc<RefCell<OpenRequests>>,
    number: u64,
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.open.borrow_mut().end(self.number);
    }
}

/// A request that waits for a permit.
#[derive(Debug)]
pub(crate) struct QueuedRequest<'a>(&'a OperationTable);

impl Drop for QueuedRequest<'_> {
    fn drop(&mut self) {
        self.0.queued().add(-1);
    }
}

/// The result and the cost of a handled request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Handled {
    pub(crate) is_failed: bool,
    /// Number of bytes of bulk data in the reply.
    pub(crate) sent_bytes: u64,
    /// The time for which the handler ran, blocked its thread, or waited.
    pub(crate) spent: TimeSpent,
}

impl RequestMeter {
    /// Creates a meter for the calling thread.
    pub(crate) fn new(registry: &Registry, target: TargetId) -> Self {
        let labels = vec![("target", target.raw().to_string())];
        let name = |number: u32| skep_wire::catalog::metric_name(u16::try_from(number).ok()?);
        let gauge = |definition| registry.gauge(definition, &labels);
        let open =
            OpenRequests::new(gauge(&catalog::STORAGE_OPEN), gauge(&catalog::STORAGE_OLDEST));
        let table = OperationTable::new(registry, &catalog::STORAGE, labels, name);
        Self {
            table,
            target,
            slow: SlowOperations::default(),
            transfers: RefCell::default(),
            open: Rc::new(RefCell::new(open)),
        }
    }

    /// Records that a request of `client` has arrived.
    pub(crate) fn arrived(&self, incoming: &Incoming, client: NodeId) -> Arrival {
        let header_at = incoming.arrived_at;
        let (data_at, moving) = match incoming.data {
            Some(_) if !is_off() => {
                let now = skep_env::now();
                (now, self.transfers.borrow_mut().count(client, header_at, now))
            }
            _ => (header_at, Duration::ZERO),
        };
        Arrival {
            message: incoming.header.message,
            trace: incoming.header.trace,
            inode: inode_of(incoming.header.message, &incoming.body),
            data_bytes: incoming.header.data_bytes,
            origin: cause_of(&incoming.header, client),
            header_at,
            data_at,
            moving,
        }
    }

    /// Counts a request as open until the returned value is dropped.
    pub(crate) fn open(&self, arrival: &Arrival) -> OpenRequest {
        let number = self.open.borrow_mut().begin(arrival.header_at);
        OpenRequest { open: Rc::clone(&self.open), number }
    }

    /// Counts a request as queued until the returned value is dropped.
    pub(crate) fn queued(&self) -> QueuedRequest<'_> {
        self.table.queued().add(1);
        QueuedRequest(&self.table)
    }

    /// Records that a request has left the queue and begins to run.
    pub(crate) fn begun(&self) {
        self.table.busy().add(1);
    }

    /// Counts a request just before its reply is sent. Returns the time of the request in each
    /// stage in microseconds, for the header of the reply.
    pub(crate) fn handled(&self, arrival: &Arrival, handled: &Handled) -> [u32; STAGES] {
        let TimeSpent { begun_at, total, running, blocked, obstructed } = handled.spent;
        let completed = Completed {
            operation: u32::from(arrival.message),
            trace: arrival.trace,
            ended_at: begun_at + total,
            object: arrival.inode,
            is_failed: handled.is_failed,
            received_bytes: u64::from(arrival.data_bytes),
            sent_bytes: handled.sent_bytes,
            duration: (begun_at + total).saturating_sub(arrival.header_at),
            moving: arrival.moving,
            ..Completed::default()
        };
        let network = match arrival.data_bytes {
            0 => Duration::ZERO,
            _ => arrival.data_at.saturating_sub(arrival.header_at),
        };
        let completed = completed
            .with(Stage::Network, network)
            .with(Stage::Waiting, begun_at.saturating_sub(arrival.data_at))
            .with(Stage::Processing, running)
            .with(Stage::Others, obstructed)
            .with(Stage::Disk, total.saturating_sub(running + obstructed));
        debug_assert!(blocked <= total, "a future is not blocked for longer than it runs");
        let name = || skep_wire::catalog::metric_name(arrival.message).unwrap_or_default();
        if let Some(line) = self.slow.line(&completed, begun_at + total, name) {
            tracing::warn!("target {}: {line}", self.target);
        }
        self.table.record(&completed, &arrival.origin);
        completed.times_us()
    }

    /// Counts the time in which data of replies was sent to `client`.
    pub(crate) fn sent(&self, client: NodeId, time: Duration) {
        if is_off() {
            return;
        }
        let origin = Origin { client: Some(client.raw()), ..Origin::default() };
        let origin = if client == NodeId::default() { Origin::default() } else { origin };
        let read = u32::from(skep_wire::storage::ReadChunk::ID);
        let now = skep_env::now();
        let moving = self.transfers.borrow_mut().count(client, now.saturating_sub(time), now);
        self.table.record_sent(read, time, moving, &origin);
    }

    /// Records that a request has ended.
    pub(crate) fn ended(&self) {
        self.table.busy().add(-1);
    }

    /// Counts a request that was refused before its handler began.
    pub(crate) fn refused(&self, arrival: &Arrival) {
        let now = skep_env::now();
        let completed = Completed {
            operation: u32::from(arrival.message),
            trace: arrival.trace,
            ended_at: now,
            object: arrival.inode,
            is_failed: true,
            duration: now.saturating_sub(arrival.header_at),
            ..Completed::default()
        };
        self.table.record(&completed, &arrival.origin);
    }

    /// Changes the number of open connections.
    pub(crate) fn connections(&self, change: i64) {
        self.table.connections().add(change);
    }
}
