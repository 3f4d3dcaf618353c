//! Counts the requests to management, and shows the metrics of its process.
//!
//! The duration of a request that changes the state includes the wait until the change is stored.
//! `GetMap`, `SetClientLogLevel` and `AddMember` may wait for an event before their reply. This
//! wait is not part of the duration of these requests.

use skep_consensus::LogStatus;
use skep_exporter::message::Figures;
use skep_metrics::{Completed, Gauge, Histogram, OperationTable, Origin, Registry, Stage, catalog};
use skep_rpc::{Incoming, Outbox};
use skep_service::PROGRAM_VERSION;
use std::rc::Rc;
use std::sync::Arc;

/// Counts the requests of the process. Only the process's single thread uses it.
pub(crate) struct Meter {
    table: OperationTable,
    pub(crate) figures: Rc<Figures>,
    pub(crate) leadership: LeadershipMetrics,
}

/// The metrics of the replicated log and of its leader, which [`crate::leadership`] updates.
#[derive(Clone)]
pub(crate) struct LeadershipMetrics {
    /// Durations from the election of this node until it leads, which is when a majority has stored
    /// its `Start` command.
    pub(crate) take_overs: Arc<Histogram>,
    leading: Arc<Gauge>,
    term: Arc<Gauge>,
    last: Arc<Gauge>,
    applied: Arc<Gauge>,
}

impl LeadershipMetrics {
    fn new(registry: &Registry) -> Self {
        let labels = vec![("recovery", "take_over".to_owned())];
        let gauge = |definition| registry.gauge(definition, &Vec::new());
        Self {
            take_overs: registry.histogram(&catalog::MANAGEMENT_RECOVERY, &labels),
            leading: gauge(&catalog::MANAGEMENT_LEADING),
            term: gauge(&catalog::MANAGEMENT_LOG_TERM),
            last: gauge(&catalog::MANAGEMENT_LOG_LAST),
            applied: gauge(&catalog::MANAGEMENT_LOG_APPLIED),
        }
    }

    /// Sets the gauges. `is_leader` states whether this node leads and serves the other nodes.
    pub(crate) fn set(&self, is_leader: bool, log: &LogStatus) {
        let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        self.leading.set(i64::from(is_leader));
        self.term.set(number(log.term));
        self.last.set(number(log.last));
        self.applied.set(number(log.applied));
    }
}

impl Meter {
    /// Creates the meter of a management service with the name `name`.
    pub(crate) fn new(name: &str) -> Rc<Self> {
        let registry = Registry::new();
        let labels = vec![
            ("kind", "management".to_owned()),
            ("name", name.to_owned()),
            ("version", PROGRAM_VERSION.to_owned()),
        ];
        registry.gauge(&catalog::NODE_INFO, &labels).set(1);
        let name = |number: u32| skep_wire::catalog::metric_name(u16::try_from(number).ok()?);
        let table = OperationTable::new(&registry, &catalog::MANAGEMENT, Vec::new(), name);
        let leadership = LeadershipMetrics::new(&registry);
        Rc::new(Self { table, figures: Figures::new(registry), leadership })
    }

    /// Adds `change` to the number of open connections.
    pub(crate) fn connections(&self, change: i64) {
        self.table.connections().add(change);
    }

    /// Runs `handle`, and counts the request that it handles. If `handle` sends an error as the
    /// reply, the request counts as failed.
    pub(crate) async fn count(
        &self,
        incoming: Incoming,
        outbox: &Rc<Outbox>,
        handle: impl AsyncFnOnce(Incoming),
    ) {
        let (message, arrived_at) = (incoming.header.message, incoming.arrived_at);
        let refusals = outbox.refusals();
        let begun = skep_env::now();
        handle(incoming).await;
        let ended = skep_env::now();
        let completed = Completed {
            operation: u32::from(message),
            ended_at: ended,
            is_failed: outbox.refusals() > refusals,
            duration: ended.saturating_sub(arrived_at),
            ..Completed::default()
        };
        let completed = completed
            .with(Stage::Waiting, begun.saturating_sub(arrived_at))
            .with(Stage::Processing, ended.saturating_sub(begun));
        self.table.record(&completed, &Origin::default());
    }
}
