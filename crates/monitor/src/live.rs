//! The state of the monitor, and the description of the current state of the cluster, which the web
//! page shows.

use crate::alert_log::AlertLog;
use crate::alerts::{Alert, AlertBook};
use crate::background::{self, Groups};
use crate::collect::Collected;
use crate::consequences::{self, HOST};
use crate::evictions::EvictionWatch;
use crate::evidence::EvidenceBook;
use crate::fill_watch::FillWatch;
use crate::findings::{Finding, Situation, findings, thresholds};
use crate::frame::{Dimension, Frame, Key, Load, Measure};
use crate::history::History;
use crate::host_loads::HostLoads;
use crate::late_replies;
use crate::live_cache::LiveCache;
use crate::metrics_pages::{HiddenPage, reachable_page};
use crate::names::{Names, clients, printable};
use crate::observe::Observer;
use crate::placement::{placement, storage_space};
use crate::series::{SeriesQuery, reading, row, rows};
use crate::settings::AlertSettings;
use crate::slow_operations::SlowOperationBook;
use crate::target_figures::{TargetFigures, with_own_space};
use serde_json::{Value, json};
use skep_cluster::problems::{reachability_word, severity_word, target_kind_word};
use skep_cluster::state::kind_word;
use skep_stats::Round;
use skep_stats::balance::{Balance, of_metadata_work};
use skep_stats::operation::{OperationReport, SlowOperation};
use skep_stats::why::{Evidence, Finding as Cause, Report, Scope, explain};
use skep_types::map::{Capacity, CapacityPool, Condition};
use skep_types::{ClusterMap, Node, NodeKind, Target, TargetId, TargetKind};
use std::cell::Cell;
use std::net::IpAddr;

/// Maximum number of objects of each kind in the description of the current state. The kinds are
/// clients, users, groups, jobs and operations.
const TOP: usize = 20;

/// Length of the time span whose phases the description shows.
const PHASES_SPAN_MS: u64 = 10_000;

/// Length of the time span for the balance of work. In a shorter span, a single program could
/// determine the balance.
const WORK_SPAN_MS: u64 = 60_000;

/// If Prometheus has not asked for the list of metrics pages for this time, the monitor assumes
/// that Prometheus is not used. By default, Prometheus asks each minute.
const DISCOVERY_MS: u64 = 3_600_000;

/// Rules whose findings mean that requests wait or fail.
const STOPPING: [&str; 6] =
    ["target-offline", "target-down", "target-hung", "target-failed", "service-unreachable", HOST];

/// Whether requests of a scope waited or failed during the time of an alert. An alert about a
/// service or a host counts for every scope.
fn stops_requests(alert: &Alert, scope: &Scope) -> bool {
    let target = alert.object.strip_prefix('t').and_then(|id| id.parse::<u32>().ok());
    let is_in_scope = match (&scope.targets, target) {
        (Some(targets), Some(id)) => targets.contains(&id),
        _ => true,
    };
    is_in_scope && STOPPING.contains(&alert.rule)
}

/// Converts a past alert to a cause of slowness that ended when the alert ended.
fn past_cause(alert: &Alert, now_ms: u64) -> Cause {
    let ended_ms = alert.ended_ms.unwrap_or(now_ms);
    let seconds = |ms: u64| ms as f64 / 1000.0;
    Cause {
        rule: alert.rule.into(),
        severity: alert.severity.into(),
        object: alert.object.clone(),
        what: format!(
            "{}; the problem lasted {:.0} s and ended {:.0} s ago",
            alert.what,
            seconds(ended_ms.saturating_sub(alert.since_ms)),
            seconds(now_ms.saturating_sub(ended_ms))
        ),
        remedy: format!("if the problem occurs again: {}", alert.remedy),
    }
}

/// Length of the time span whose slowest operations the description of the current state shows.
const SLOWEST_SPAN_MS: u64 = 600_000;
/// Maximum number of slowest operations in the description of the current state.
const SLOWEST_SHOWN: usize = 5;

/// The state of the monitor for one cluster.
#[derive(Debug)]
pub(crate) struct MonitorState {
    pub(crate) history: History,
    pub(crate) names: Names,
    pub(crate) collected: Collected,
    pub(crate) alerts: AlertBook,
    pub(crate) alert_log: AlertLog,
    live_cache: LiveCache,
    observer: Observer,
    evictions: EvictionWatch,
    evidence: EvidenceBook,
    pub(crate) slow_operations: SlowOperationBook,
    /// Capacity and background work of targets in the newest round.
    figures: TargetFigures,
    /// Growth of the used space.
    filling: FillWatch,
    /// Progress of the members of metadata groups.
    pub(crate) groups: Groups,
    findings: Vec<Finding>,
    settings: AlertSettings,
    /// Addresses of this host.
    own_addresses: Vec<IpAddr>,
    /// Time of the last request of Prometheus for the list of metrics pages of the services.
    pub(crate) discovery_at_ms: Cell<Option<u64>>,
    /// Port of the metrics pages of mounts. Zero means that Prometheus gets no list of these pages.
    pub(crate) mount_metrics_port: u16,
    /// Time between the last two rounds, in milliseconds.
    pub(crate) interval_ms: u64,
}

impl MonitorState {
    pub(crate) fn new(history: History, settings: AlertSettings) -> Self {
        Self {
            history,
            names: Names::read(),
            collected: Collected::default(),
            alerts: AlertBook::default(),
            alert_log: AlertLog::default(),
            live_cache: LiveCache::default(),
            observer: Observer::default(),
            evictions: EvictionWatch::default(),
            evidence: EvidenceBook::default(),
            slow_operations: SlowOperationBook::default(),
            figures: TargetFigures::default(),
            filling: FillWatch::default(),
            groups: Groups::new(),
            findings: Vec::new(),
            settings,
            own_addresses: skep_env::host_addresses()
                .unwrap_or_default()
                .into_iter()
                .map(|it| it.address)
                .collect(),
            discovery_at_ms: Cell::new(None),
            mount_metrics_port: 0,
            interval_ms: 0,
        }
    }

    /// Processes the replies of a round that ended at `now_ms` and covers `span_ms` milliseconds.
    /// Returns the alerts that begin or end, or whose severity changes.
    pub(crate) fn take(
        &mut self,
        mut collected: Collected,
        now_ms: u64,
        span_ms: u64,
    ) -> Vec<Alert> {
        self.live_cache.clear();
        let round = std::mem::take(&mut collected.round);
        self.figures = TargetFigures::of(&round);
        let mut evicted = Vec::new();
        if let Some(map) = &collected.map {
            self.names.learn(map);
            let listed = collected.evictions.as_deref();
            evicted = self.evictions.update(now_ms, clients(map), &round, listed);
            let start_ms = now_ms.saturating_sub(span_ms);
            self.evidence.add(now_ms, self.observer.evidence(&round));
            self.history.add(self.observer.observe(map, round, start_ms, span_ms));
            self.filling.update(&self.history, map, now_ms);
        }
        self.collected = collected;
        self.interval_ms = span_ms;
        let hidden_pages = self.hidden_pages(now_ms);
        let state = self.history.state();
        let found = findings(&Situation {
            collected: &self.collected,
            frames: self.history.recent(),
            evidence: &self.evidence.newest(),
            work: &self.evidence.work(now_ms, WORK_SPAN_MS),
            filling: &self.filling,
            round: self.observer.round(),
            history_problem: state.problem.as_deref(),
            evicted: &evicted,
            hidden_pages: &hidden_pages,
            settings: &self.settings,
        });
        let grouped = consequences::group(found, &self.collected);
        self.findings = grouped.into_iter().map(Finding::with_safe_texts).collect();
        if self.collected.map.is_none() {
            self.alerts.hold(now_ms);
        }
        let revision = self.alerts.revision();
        let changes = self.alerts.update(now_ms, self.findings.clone());
        let ended = changes.iter().filter(|alert| alert.ended_ms.is_some());
        ended.for_each(|alert| self.alert_log.add(alert));
        if self.alerts.revision() != revision {
            self.alert_log.keep_current(&self.alerts.announced());
        }
        changes
    }

    /// Returns the id of the cluster as text. The text is empty until the first round has ended.
    pub(crate) fn cluster(&self) -> String {
        let of_map = self.collected.map.as_ref().map(|map| map.cluster);
        of_map.or(self.collected.id).map_or_else(String::new, |id| id.to_string())
    }

    /// Returns the address of the metrics page of a service, for a program on this host. `None`
    /// means that the service has no page, or has not replied yet. [`HiddenPage`] means that only
    /// programs on the host of the service can read the page.
    pub(crate) fn page_of(&self, node: &Node) -> Option<Result<String, HiddenPage>> {
        let page = self.observer.page_of(node.id.raw())?;
        Some(reachable_page(page, &node.addresses, &self.own_addresses))
    }

    /// Returns the names of the services whose metrics pages cannot be read from this host. The
    /// list is empty if no program has recently asked for the list of pages.
    pub(crate) fn hidden_pages(&self, now_ms: u64) -> Vec<String> {
        let asked = self.discovery_at_ms.get();
        let is_asked = asked.is_some_and(|at| now_ms.saturating_sub(at) < DISCOVERY_MS);
        let nodes = self.collected.map.iter().flat_map(|map| &map.nodes);
        let is_hidden = |node: &&Node| matches!(self.page_of(node), Some(Err(HiddenPage)));
        let hidden = nodes.filter(|_| is_asked).filter(is_hidden);
        hidden.map(|node| printable(&node.name)).collect()
    }

    /// Explains where the requests in a scope spent their time in the last `span_ms` milliseconds.
    /// `None` means that no map has arrived yet.
    pub(crate) fn why(&self, scope: &Scope, now_ms: u64, span_ms: u64) -> Option<Report> {
        let map = self.collected.map.as_ref()?;
        let evidence = self.evidence.of_span(now_ms, span_ms);
        let mut report = explain(&evidence, map, scope, &thresholds(&self.settings));
        // The map shows only current states, so add the alerts that have ended.
        let ended = self.alerts.ended_since(now_ms.saturating_sub(span_ms));
        let of_scope = ended.filter(|alert| stops_requests(alert, scope));
        report.findings.extend(of_scope.map(|alert| past_cause(alert, now_ms)));
        let problems = self.collected.unreachable.iter();
        report.unreachable.extend(problems.map(|(id, problem)| {
            let node = map.nodes.iter().find(|node| node.id.raw() == *id);
            let name = node.map_or_else(String::new, |node| printable(&node.name));
            format!("{name} [ID: {id}]: {problem}")
        }));
        Some(report)
    }

    /// Returns the evidence of the last `span_ms` milliseconds.
    pub(crate) fn evidence_of(&self, now_ms: u64, span_ms: u64) -> Evidence {
        self.evidence.of_span(now_ms, span_ms)
    }

    /// Returns the newest reply of each service.
    pub(crate) fn replies(&self) -> &Round {
        self.observer.round()
    }

    pub(crate) fn host_loads(&self) -> &HostLoads {
        self.observer.host_loads()
    }

    /// Returns [`Self::live`] as JSON. All readers of a round get the same description, so further
    /// readers cost little processor time.
    pub(crate) fn live_json(&self, now_ms: u64) -> String {
        self.live_cache.json(now_ms, || self.live(now_ms))
    }

    /// Returns the description of the current state of the cluster.
    pub(crate) fn live(&self, now_ms: u64) -> Value {
        let frames = self.history.recent();
        let newest = late_replies::newest(frames).unwrap_or_default();
        let frame: &Frame = &newest;
        let state = self.history.state();
        let map = self.collected.map.as_ref();
        let top = |dimension| rows(frame, dimension, TOP, (&self.names, map));
        json!({
            "now_ms": now_ms,
            "frame_ms": frames.back().map_or(0, |frame| frame.start_ms + frame.span_ms),
            "cluster": self.cluster(),
            "map_version": map.map(|map| map.version.raw()),
            "version": skep_service::PROGRAM_VERSION,
            "interval_ms": self.interval_ms,
            "history": {
                "bytes": state.bytes,
                "max_bytes": state.max_bytes,
                "problem": state.problem,
            },
            "totals": self.totals(frame),
            "capacity": map.map(|map| self.capacity(map)),
            "placement": map.map(|map| placement(map, &self.figures)),
            "background": map.map(|map| background::work(map, &self.groups, &self.figures)),
            "services": map.map(|map| self.services(map, frame)),
            "targets": map.map(|map| self.targets(map, frame)),
            "clients": map.map(|map| {
                map.nodes.iter().filter(|node| node.kind == NodeKind::Client).count()
            }),
            "top": {
                "client": top(Dimension::Client),
                "user": top(Dimension::User),
                "group": top(Dimension::Group),
                "job": top(Dimension::Job),
                "operation": top(Dimension::Operation),
            },
            "phases": self.why(&Scope::default(), now_ms, PHASES_SPAN_MS).map(|it| it.phases),
            "slowest": self.slowest(now_ms, SLOWEST_SPAN_MS, SLOWEST_SHOWN),
            "balance": map.map(|map| self.balances_json(map, now_ms)),
            "findings": self.findings_json(),
            "alerts": self.alerts.holding(),
        })
    }

    /// Returns the findings and the balances, which `skep health check` shows.
    pub(crate) fn health(&self, now_ms: u64) -> Value {
        json!({
            "now_ms": now_ms,
            "cluster": self.cluster(),
            "findings": self.findings_json(),
            "balance": self.collected.map.as_ref().map(|map| self.balances_json(map, now_ms)),
        })
    }

    /// Returns the balance of the work of the last minute, and of the used space, with their names.
    pub(crate) fn balances(&self, map: &ClusterMap, now_ms: u64) -> [(&'static str, Balance); 2] {
        let work = of_metadata_work(&self.evidence.work(now_ms, WORK_SPAN_MS), map);
        [("metadata_work", work), ("storage_space", storage_space(map, &self.figures))]
    }

    fn balances_json(&self, map: &ClusterMap, now_ms: u64) -> Value {
        let mut value = json!({ "span_seconds": WORK_SPAN_MS / 1000 });
        for (name, balance) in self.balances(map, now_ms) {
            value[name] = json!(balance);
        }
        value
    }

    fn findings_json(&self) -> Vec<Value> {
        let with_begin = |finding: &Finding| finding_json(finding, &self.alerts);
        self.findings.iter().map(with_begin).collect()
    }

    /// Returns the slowest operations that ended in the last `span_ms` milliseconds, but at most
    /// `most` operations.
    pub(crate) fn slowest(&self, now_ms: u64, span_ms: u64, most: usize) -> Vec<Value> {
        let Some(map) = &self.collected.map else { return Vec::new() };
        let found = self.slow_operations.list(map, (now_ms, span_ms), most);
        let named = |operation: &SlowOperation| {
            let id = operation.user.map(|user| user.to_string()).unwrap_or_default();
            let mut value = json!(operation);
            value["user_name"] = self.names.name(Dimension::User, &id, None).into();
            value
        };
        found.iter().map(named).collect()
    }

    /// Explains one slow operation. `None` means that the monitor does not have the records of this
    /// operation.
    pub(crate) fn operation(&self, trace: u128) -> Option<OperationReport> {
        let map = self.collected.map.as_ref()?;
        self.slow_operations.explain(trace, map, &self.observer.usual())
    }

    /// Returns the sum of the load for each kind of service.
    fn totals(&self, frame: &Frame) -> Value {
        let total = |service: &str| {
            let mut sum = Load::default();
            let is_meant = |key: &Key| key.dimension == Dimension::Node && key.service == service;
            frame.loads.iter().filter(|(key, _)| is_meant(key)).for_each(|(_, load)| sum.add(load));
            row(&sum, frame)
        };
        json!({ "metadata": total("metadata"), "storage": total("storage") })
    }

    fn services(&self, map: &ClusterMap, frame: &Frame) -> Vec<Value> {
        let mut services: Vec<&Node> =
            map.nodes.iter().filter(|node| node.kind != NodeKind::Client).collect();
        services.sort_by_key(|node| (node.kind, node.id));
        services.into_iter().map(|node| self.service(node, frame)).collect()
    }

    fn service(&self, node: &Node, frame: &Frame) -> Value {
        let id = node.id.raw();
        let mut value = row(&sum_of(frame, Dimension::Node, id), frame);
        value["id"] = id.into();
        value["name"] = printable(&node.name).into();
        value["kind"] = kind_word(node.kind).into();
        value["version"] = node.version.clone().into();
        value["addresses"] = json!(node.addresses);
        value["domain"] = node.domain.clone().into();
        value["reachability"] = reachability_word(node.reachability).into();
        value["problem"] = json!(self.collected.unreachable.get(&id));
        for (measure, name) in Measure::ALL {
            if let Some(figure) = reading(frame, measure, id).filter(|_| measure.is_of_host()) {
                value[name] = figure.into();
            }
        }
        value
    }

    fn targets(&self, map: &ClusterMap, frame: &Frame) -> Vec<Value> {
        let mut targets: Vec<&Target> = map.targets.iter().collect();
        targets.sort_by_key(|target| (target.kind, target.id));
        targets.into_iter().map(|target| self.target(target, frame)).collect()
    }

    fn target(&self, target: &Target, frame: &Frame) -> Value {
        let mut value = row(&sum_of(frame, Dimension::Target, target.id.raw()), frame);
        value["id"] = target.id.raw().into();
        value["node"] = target.node.raw().into();
        value["kind"] = target_kind_word(target.kind).into();
        value["path"] = printable(&target.path).into();
        let (size, free) = self.figures.space(target);
        value["size_bytes"] = size.into();
        value["free_bytes"] = free.into();
        value["files"] = self.figures.used_inodes(target).into();
        value["file_system"] = format!("{:x}", target.capacity.file_system).into();
        value["state"] = state_word(target).into();
        value
    }

    /// Returns the total size and free space of the storage targets.
    fn capacity(&self, map: &ClusterMap) -> Value {
        let storage = map.targets.iter().filter(|target| target.kind == TargetKind::Storage);
        let sum = Capacity::sum(storage.map(|target| self.figures.capacity(target)));
        json!({
            "size_bytes": sum.total_bytes,
            "free_bytes": sum.free_bytes,
            "full_in_days": self.filling.days_left(),
        })
    }

    /// Returns the node id of the service of the target in a query of the history. `None` means
    /// that the query is not about a single target, or that the map does not contain this target.
    pub(crate) fn node_of(&self, query: &SeriesQuery) -> Option<u32> {
        let is_of_target = matches!(query.dimension, Dimension::Target | Dimension::LogSync);
        let id = query.id.as_ref().filter(|_| is_of_target)?.parse().ok()?;
        let target = self.collected.map.as_ref()?.target(TargetId::new(id))?;
        Some(target.node.raw())
    }

    /// Returns the ids of the objects whose measured values the reply to a query of the history
    /// contains: the target or node in the query. For a query about all targets, returns the
    /// targets of one kind, by default of storage, but only one target of each file system.
    pub(crate) fn measured(&self, query: &SeriesQuery) -> Vec<u32> {
        if let Some(id) = &query.id {
            return id.parse().into_iter().collect();
        }
        if query.dimension != Dimension::Target {
            return Vec::new();
        }
        let kind = match query.service.as_deref() {
            Some("metadata") => TargetKind::Metadata,
            _ => TargetKind::Storage,
        };
        let map = self.collected.map.iter();
        map.flat_map(|map| with_own_space(map, kind)).map(|target| target.id.raw()).collect()
    }
}

/// Returns the load of an object, summed over the services that had this load.
pub(crate) fn sum_of(frame: &Frame, dimension: Dimension, id: u32) -> Load {
    let mut sum = Load::default();
    frame.loads_of(dimension, &id.to_string()).for_each(|load| sum.add(load));
    sum
}

/// Returns one word that describes the state of a target.
fn state_word(target: &Target) -> &'static str {
    match (target.health.condition, target.capacity_pool) {
        _ if target.reachability != skep_types::map::Reachability::Online => "offline",
        (Condition::Down, _) => "down",
        (Condition::Hung, _) => "hung",
        (Condition::ReadOnly, _) => "read-only",
        (_, CapacityPool::Emergency) => "full",
        (_, CapacityPool::Low) => "low",
        (Condition::Closed, _) => "closed",
        _ => "serving",
    }
}

/// Returns a finding as JSON, with the time at which it began.
fn finding_json(finding: &Finding, alerts: &AlertBook) -> Value {
    json!({
        "since_ms": alerts.since_ms(&finding.key()),
        "rule": finding.rule,
        "severity": severity_word(finding.severity),
        "object": finding.object,
        "what": finding.what,
        "remedy": finding.remedy,
        "cause": finding.cause.as_ref().map(|(rule, object)| json!({
            "rule": rule,
            "object": object,
        })),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_of_a_time_span_names_an_ended_problem_as_a_cause() {
        let mut alerts = AlertBook::default();
        let offline = || Finding {
            rule: "target-offline",
            severity: skep_cluster::problems::Severity::Critical,
            object: "t7".into(),
            what: "storage target t7 is Offline".into(),
            remedy: "check the service".into(),
            cause: None,
        };
        for second in 100..140 {
            alerts.update(second * 1000, vec![offline()]);
        }
        alerts.update(200_000, Vec::new());
        let found = |targets: Option<Vec<u32>>, span_ms: u64| {
            let scope = Scope { targets, ..Scope::default() };
            let ended = alerts.ended_since(200_000 - span_ms);
            let of_scope = ended.filter(|alert| stops_requests(alert, &scope));
            of_scope.map(|alert| past_cause(alert, 200_000).what).collect::<Vec<_>>()
        };
        let what = "storage target t7 is Offline; the problem lasted 39 s and ended 61 s ago";
        assert_eq!(found(None, 120_000), [what]);
        assert_eq!(found(Some(vec![7]), 120_000), [what]);
        assert!(found(Some(vec![8]), 120_000).is_empty(), "another target");
        assert!(found(None, 30_000).is_empty(), "the problem ended before the time span");
    }
}
