//! The table of the operations that one thread serves. The operations are requests to a service, or
//! requests of the kernel to a mount.
//!
//! For each kind of operation the table has counters, a histogram of the duration, and a histogram
//! for each stage in which the operation spends time. The table also has the accounts of load
//! (`accounts`).

use crate::accounts::{
    Accounts, DIMENSIONS, Dimension, LEFT_OUT, Load, Origin, PublishedAccounts, nanoseconds,
};
use crate::catalog;
use crate::completed::Completed;
use crate::counter::{Counter, Gauge};
use crate::family::OperationFamily;
use crate::histogram::Histogram;
use crate::registry::{Registry, Source};
use crate::snapshot::{Labels, Snapshot};
use crate::stage::{STAGES, Stage};
use crate::switch::is_off;
use crate::tail::Tail;
use crate::traces::{KeptOperation, Reason, TraceStore, TracedCalls, is_sampled};
use std::cell::RefCell;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Maximum number of kinds of operations. The ids of messages and the kernel's opcodes are lower
/// than this number. An operation with a higher id counts as the last kind, which has the name
/// "other".
const MAX_OPERATIONS: usize = 128;

/// The counters and histograms of one kind of operation.
#[derive(Debug, Default)]
struct Figures {
    operations: Counter,
    errors: Counter,
    received_bytes: Counter,
    sent_bytes: Counter,
    duration: Histogram,
    stages: [Histogram; STAGES],
}

/// The part of a table that other threads can read.
struct Published {
    family: &'static OperationFamily,
    labels: Labels,
    name_of: fn(u32) -> Option<String>,
    /// The counters and histograms of each kind. The table allocates the figures of a kind when it
    /// counts the first operation of this kind.
    kinds: [OnceLock<Box<Figures>>; MAX_OPERATIONS],
    queued: Gauge,
    busy: Gauge,
    connections: Gauge,
    accounts: Option<[Arc<PublishedAccounts>; DIMENSIONS]>,
}

/// The table of the operations that one thread serves. Only this thread can use the table. Other
/// threads read its values through the [`Registry`].
pub struct OperationTable {
    published: Arc<Published>,
    tails: [Tail; MAX_OPERATIONS],
    traces: Arc<TraceStore>,
    accounts: Option<RefCell<[Accounts; DIMENSIONS]>>,
}

impl std::fmt::Debug for OperationTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OperationTable({:?})", self.published.labels)
    }
}

impl OperationTable {
    /// Creates a table for the calling thread. `labels` are the labels of all series, such as the
    /// target. `name_of` returns the name of a kind of operation, for the label `operation`.
    pub fn new(
        registry: &Registry,
        family: &'static OperationFamily,
        labels: Labels,
        name_of: fn(u32) -> Option<String>,
    ) -> Self {
        let accounts: Option<[Accounts; DIMENSIONS]> =
            family.has_accounts.then(|| Dimension::ALL.map(Accounts::of));
        let published = Arc::new(Published {
            family,
            labels,
            name_of,
            kinds: std::array::from_fn(|_| OnceLock::new()),
            queued: Gauge::default(),
            busy: Gauge::default(),
            connections: Gauge::default(),
            accounts: accounts.as_ref().map(|all| all.each_ref().map(Accounts::published)),
        });
        registry.add(Arc::clone(&published) as Arc<dyn Source>);
        Self {
            published,
            tails: std::array::from_fn(|_| Tail::default()),
            traces: Arc::clone(registry.traces()),
            accounts: accounts.map(RefCell::new),
        }
    }

    /// Counts a completed operation and the load that it caused. Stores a record of the operation
    /// if it was slow or belongs to the sample.
    pub fn record(&self, completed: &Completed, origin: &Origin) {
        self.record_with(completed, origin, TracedCalls::default);
    }

    /// Does the same as [`Self::record`], but can also store the requests of the operation. A table
    /// that stores a record calls `calls` to get these requests.
    pub fn record_with(
        &self,
        completed: &Completed,
        origin: &Origin,
        calls: impl FnOnce() -> TracedCalls,
    ) {
        if is_off() {
            return;
        }
        if let Some(reason) = self.reason_to_keep(completed) {
            self.keep(completed, origin, reason, calls());
        }
        self.count(completed, origin);
    }

    fn reason_to_keep(&self, completed: &Completed) -> Option<Reason> {
        // A wait is expected to take a long time, so the table never judges it as slow.
        if completed.is_wait {
            return None;
        }
        let kind = (completed.operation as usize).min(MAX_OPERATIONS - 1);
        if self.tails[kind].is_slow(completed.duration) {
            Some(Reason::Slow)
        } else if is_sampled(completed.trace) {
            Some(Reason::Sampled)
        } else {
            None
        }
    }

    #[cold]
    fn keep(&self, completed: &Completed, origin: &Origin, reason: Reason, calls: TracedCalls) {
        let published = &self.published;
        let target = published.labels.iter().find(|(name, _)| *name == "target");
        self.traces.keep(KeptOperation {
            number: 0,
            reason,
            completed: *completed,
            origin: *origin,
            service: published.family.service,
            name: (published.name_of)(completed.operation).unwrap_or_else(|| "other".into()),
            target: target.and_then(|(_, id)| id.parse().ok()).unwrap_or(0),
            calls,
        });
    }

    fn count(&self, completed: &Completed, origin: &Origin) {
        let kind = (completed.operation as usize).min(MAX_OPERATIONS - 1);
        let figures = self.published.kinds[kind].get_or_init(Box::default);
        figures.operations.add(1);
        if completed.is_failed {
            figures.errors.add(1);
        }
        figures.received_bytes.add(completed.received_bytes);
        figures.sent_bytes.add(completed.sent_bytes);
        figures.duration.record(completed.duration);
        for (histogram, duration) in figures.stages.iter().zip(completed.stages) {
            if !duration.is_zero() {
                histogram.record(duration);
            }
        }
        self.charge(completed, origin);
    }

    /// Adds the time that the thread spent sending reply data to the statistics of the kind
    /// `operation`. The table has already counted the operation itself. `moving` is the part of
    /// this time in which no other data of the client was transferred.
    pub fn record_sent(&self, operation: u32, time: Duration, moving: Duration, origin: &Origin) {
        if is_off() {
            return;
        }
        let kind = (operation as usize).min(MAX_OPERATIONS - 1);
        let figures = self.published.kinds[kind].get_or_init(Box::default);
        figures.stages[Stage::Network as usize].record(time);
        let (Some(accounts), Some(client)) = (&self.accounts, origin.id(Dimension::Client)) else {
            return;
        };
        let mut load = Load { moving_ns: nanoseconds(moving), ..Load::default() };
        load.stages_ns[Stage::Network as usize] = nanoseconds(time);
        let mut accounts = accounts.borrow_mut();
        for (accounts, dimension) in accounts.iter_mut().zip(Dimension::ALL) {
            if dimension == Dimension::Client {
                accounts.record(client, &load);
            }
        }
    }

    fn charge(&self, completed: &Completed, origin: &Origin) {
        let Some(accounts) = &self.accounts else { return };
        let Completed { received_bytes, sent_bytes, duration, .. } = *completed;
        // If waits counted, an idle client would seem to cause load, because such a client waits
        // for notifications all the time.
        let duration = if completed.is_wait { Duration::ZERO } else { duration };
        let load = Load::of_operation(sent_bytes, received_bytes, duration);
        for (accounts, dimension) in accounts.borrow_mut().iter_mut().zip(Dimension::ALL) {
            let Some(id) = origin.id(dimension) else { continue };
            match dimension {
                Dimension::Client if !completed.is_wait => {
                    let moving_ns = nanoseconds(completed.moving);
                    let stages_ns = completed.stages.map(nanoseconds);
                    accounts.record(id, &Load { moving_ns, stages_ns, ..load });
                }
                Dimension::User | Dimension::Job if !completed.is_wait => {
                    let stages_ns = completed.stages.map(nanoseconds);
                    accounts.record(id, &Load { stages_ns, ..load });
                }
                _ => accounts.record(id, &load),
            }
        }
    }

    /// Returns the number of requests that have arrived and wait for their execution.
    pub fn queued(&self) -> &Gauge {
        &self.published.queued
    }

    /// Returns the number of requests that are being executed.
    pub fn busy(&self) -> &Gauge {
        &self.published.busy
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> &Gauge {
        &self.published.connections
    }
}

impl Drop for OperationTable {
    /// Removes the requests and connections of the thread from the gauges, because the thread has
    /// ended.
    fn drop(&mut self) {
        let Published { queued, busy, connections, .. } = &*self.published;
        [queued, busy, connections].into_iter().for_each(|gauge| gauge.set(0));
    }
}

impl Source for Published {
    fn collect(&self, snapshot: &mut Snapshot) {
        let family = self.family;
        let gauges = [
            (family.queued, &self.queued),
            (Some(family.busy), &self.busy),
            (family.connections, &self.connections),
        ];
        for (definition, gauge) in gauges {
            let Some(definition) = definition else { continue };
            snapshot.number(definition, self.labels.clone(), gauge.get());
        }
        for (number, kind) in self.kinds.iter().enumerate() {
            if let Some(figures) = kind.get() {
                self.collect_kind(snapshot, number, figures);
            }
        }
        let accounts = self.accounts.iter().flatten().zip(Dimension::ALL);
        for (accounts, dimension) in accounts {
            for (id, load) in accounts.read() {
                self.collect_account(snapshot, dimension, id, &load);
            }
        }
    }
}

impl Published {
    fn collect_kind(&self, snapshot: &mut Snapshot, number: usize, figures: &Figures) {
        let family = self.family;
        let name = (self.name_of)(number as u32).unwrap_or_else(|| "other".into());
        let mut labels = self.labels.clone();
        labels.push(("operation", name));
        let counters = [
            (family.operations, &figures.operations),
            (family.errors, &figures.errors),
            (family.received_bytes, &figures.received_bytes),
            (family.sent_bytes, &figures.sent_bytes),
        ];
        for (definition, counter) in counters {
            snapshot.count(definition, labels.clone(), counter.get());
        }
        snapshot.histogram(family.duration, labels.clone(), figures.duration.value());
        for (histogram, stage) in figures.stages.iter().zip(Stage::ALL) {
            if !histogram.is_empty() {
                let mut labels = labels.clone();
                labels.push(("stage", stage.name().into()));
                snapshot.histogram(family.stage_duration, labels, histogram.value());
            }
        }
    }

    fn collect_account(&self, snapshot: &mut Snapshot, by: Dimension, id: u64, load: &Load) {
        let id = if id == LEFT_OUT { "other".to_owned() } else { id.to_string() };
        let mut labels = vec![("service", self.family.service.to_owned())];
        labels.extend(self.labels.clone());
        labels.extend([("by", by.name().to_owned()), ("id", id)]);
        let figures = [
            (&catalog::LOAD_OPERATIONS, load.operations),
            (&catalog::LOAD_READ_BYTES, load.read_bytes),
            (&catalog::LOAD_WRITTEN_BYTES, load.written_bytes),
            (&catalog::LOAD_BUSY_SECONDS, load.busy_ns),
        ];
        for (definition, figure) in figures {
            snapshot.count(definition, labels.clone(), figure);
        }
        if load.moving_ns > 0 {
            snapshot.count(&catalog::LOAD_MOVING_SECONDS, labels.clone(), load.moving_ns);
        }
        for (stage, ns) in Stage::ALL.iter().zip(load.stages_ns).filter(|(_, ns)| *ns > 0) {
            let mut labels = labels.clone();
            labels.push(("stage", stage.name().to_owned()));
            snapshot.count(&catalog::LOAD_STAGE_SECONDS, labels, ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Value;

    fn value(snapshot: &Snapshot, name: &str, wanted: &[(&str, &str)]) -> Value {
        let has = |labels: &Labels| {
            wanted
                .iter()
                .all(|(name, value)| labels.iter().any(|it| it.0 == *name && it.1 == *value))
        };
        let found: Vec<_> =
            snapshot.iter().filter(|it| it.definition.name == name && has(&it.labels)).collect();
        assert_eq!(found.len(), 1, "{name} {wanted:?}: {found:?}");
        found[0].value.clone()
    }

    #[test]
    fn time_of_long_polls_does_not_count_as_client_load() {
        let registry = Registry::new();
        let labels = vec![("target", "7".to_owned())];
        let table = OperationTable::new(&registry, &catalog::METADATA, labels, |_| None);
        let origin = Origin { client: Some(12), ..Origin::default() };
        for is_wait in [true, false] {
            let duration = Duration::from_micros(9);
            let completed = Completed { is_wait, duration, ..Completed::default() };
            table.record(&completed.with(Stage::Others, Duration::from_micros(7)), &origin);
        }
        let of_client = [("by", "client"), ("stage", "others")];
        let others = value(&registry.snapshot(), "skep_load_stage_seconds", &of_client);
        assert_eq!(others, Value::Number(7_000));
        let of_client = [("by", "client")];
        let busy = value(&registry.snapshot(), "skep_load_busy_seconds", &of_client);
        assert_eq!(busy, Value::Number(9_000));
    }

    #[test]
    fn ended_thread_has_no_requests_and_no_connections() {
        let registry = Registry::new();
        let labels = vec![("target", "7".to_owned())];
        let table = OperationTable::new(&registry, &catalog::METADATA, labels, |_| None);
        table.busy().add(3);
        table.connections().add(2);
        drop(table);
        let snapshot = registry.snapshot();
        for name in ["skep_metadata_requests_busy", "skep_metadata_connections"] {
            assert_eq!(value(&snapshot, name, &[("target", "7")]), Value::Number(0), "{name}");
        }
    }

    #[test]
    fn operations_are_counted_by_kind_stage_and_cause() {
        let registry = Registry::new();
        let names = |number| (number == 96).then(|| "write_chunk".to_owned());
        let labels = vec![("target", "7".to_owned())];
        let table = OperationTable::new(&registry, &catalog::STORAGE, labels, names);
        let origin = Origin {
            client: Some(12),
            user: Some(1000),
            job: Some(77),
            directory: Some(5),
            ..Origin::default()
        };
        for failed in [false, false, true] {
            let completed = Completed {
                operation: 96,
                is_failed: failed,
                received_bytes: 4096,
                duration: Duration::from_micros(100),
                ..Completed::default()
            };
            table.record(&completed.with(Stage::Disk, Duration::from_micros(60)), &origin);
        }
        table.record(&Completed { operation: 5_000, ..Completed::default() }, &Origin::default());
        table.queued().add(3);
        let (time, moving) = (Duration::from_micros(9), Duration::from_micros(4));
        table.record_sent(96, time, moving, &origin);
        let snapshot = registry.snapshot();
        let write = [("target", "7"), ("operation", "write_chunk")];
        assert_eq!(value(&snapshot, "skep_storage_operations", &write), Value::Number(3));
        assert_eq!(value(&snapshot, "skep_storage_operation_errors", &write), Value::Number(1));
        assert_eq!(value(&snapshot, "skep_storage_received_bytes", &write), Value::Number(12_288));
        assert_eq!(
            value(&snapshot, "skep_storage_operations", &[("operation", "other")]),
            Value::Number(1)
        );
        assert_eq!(value(&snapshot, "skep_storage_requests_queued", &[]), Value::Number(3));
        let Value::Histogram(disk) =
            value(&snapshot, "skep_storage_stage_seconds", &[("stage", "disk")])
        else {
            panic!("the metric is a histogram")
        };
        assert_eq!((disk.count(), disk.sum_ns), (3, 180_000));
        for (by, id) in [("client", "12"), ("user", "1000"), ("job", "77")] {
            let by = [("service", "storage"), ("by", by), ("id", id)];
            assert_eq!(value(&snapshot, "skep_load_operations", &by), Value::Number(3));
            assert_eq!(value(&snapshot, "skep_load_written_bytes", &by), Value::Number(12_288));
            assert_eq!(value(&snapshot, "skep_load_busy_seconds", &by), Value::Number(300_000));
        }
        let of_client = [("by", "client"), ("id", "12"), ("stage", "disk")];
        let disk = value(&snapshot, "skep_load_stage_seconds", &of_client);
        assert_eq!(disk, Value::Number(180_000));
        let of_client = [("by", "client"), ("id", "12"), ("stage", "network")];
        let network = value(&snapshot, "skep_load_stage_seconds", &of_client);
        assert_eq!(network, Value::Number(9_000));
        let of_client = [("by", "client"), ("id", "12")];
        let moving = value(&snapshot, "skep_load_moving_seconds", &of_client);
        assert_eq!(moving, Value::Number(4_000));
        for (by, id) in [("user", "1000"), ("job", "77")] {
            let of_cause = [("by", by), ("id", id), ("stage", "disk")];
            let disk = value(&snapshot, "skep_load_stage_seconds", &of_cause);
            assert_eq!(disk, Value::Number(180_000));
        }
        // Three requests are not enough for a separate account of their directory, so their load is
        // in the account `other`.
        let of_directory = [("by", "directory"), ("id", "other")];
        assert_eq!(value(&snapshot, "skep_load_operations", &of_directory), Value::Number(3));
    }
}
