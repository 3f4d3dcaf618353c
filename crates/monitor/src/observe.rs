//! Computes a frame of the history from the replies of services.
//!
//! The module is pure: it uses no I/O and no clock. It stores the last reply of each service,
//! because a frame contains the differences of counters.

use crate::frame::{Dimension, Frame, Key, Level, Load, Measure};
use crate::host_loads::HostLoads;
use skep_stats::operation::Usual;
use skep_stats::why::Evidence;
use skep_stats::{By, Round, Row, ServiceFigures, label, series_with, tables};
use skep_types::ClusterMap;
use skep_wire::node::StatisticsSeries;

/// The kinds of objects whose loads [`Observer::observe`] stores in a frame. Each kind has a
/// variant of `By` in the statistics of services, and a variant of `Dimension` in frames.
const DIVISIONS: [(By, Dimension); 7] = [
    (By::Node, Dimension::Node),
    (By::Target, Dimension::Target),
    (By::Client, Dimension::Client),
    (By::User, Dimension::User),
    (By::Group, Dimension::Group),
    (By::Job, Dimension::Job),
    (By::Operation, Dimension::Operation),
];
const LOG_SYNC: &str = "skep_metadata_log_sync_seconds";

/// The last reply of each service.
#[derive(Debug, Default)]
pub(crate) struct Observer {
    last: Round,
    host_loads: HostLoads,
}

impl Observer {
    /// Returns the address of the metrics page of a service. `None` means that the service has no
    /// page, or has not replied yet.
    pub(crate) fn page_of(&self, node: u32) -> Option<&str> {
        let page = self.of(node)?.statistics.page.as_str();
        (!page.is_empty()).then_some(page)
    }

    /// Returns the last reply of each service.
    pub(crate) fn round(&self) -> &Round {
        &self.last
    }

    /// Returns the load of the disks and network interfaces of hosts.
    pub(crate) fn host_loads(&self) -> &HostLoads {
        &self.host_loads
    }

    /// Returns the usual times of requests, for comparison with one operation.
    pub(crate) fn usual(&self) -> Usual {
        Usual::of(&self.last)
    }

    /// Returns the evidence for causes of slowness since the last round.
    pub(crate) fn evidence(&self, now: &Round) -> Evidence {
        Evidence::since(|node| self.of(node), now)
    }

    fn of(&self, node: u32) -> Option<&ServiceFigures> {
        self.last.iter().find(|it| it.node == node)
    }

    /// Returns the frame for the time since the last round.
    pub(crate) fn observe(
        &mut self,
        map: &ClusterMap,
        now: Round,
        start_ms: u64,
        span_ms: u64,
    ) -> Frame {
        let mut frame = Frame { start_ms, span_ms, samples: 1, ..Frame::default() };
        let divisions = DIVISIONS.map(|(by, _)| by);
        let found = tables(&divisions, Some(&self.last), &now);
        for ((_, dimension), rows) in DIVISIONS.iter().zip(found) {
            for row in rows {
                let load = load_of(&row);
                if !load.is_idle() {
                    let key = Key { dimension: *dimension, id: row.id, service: row.service };
                    frame.loads.insert(key, load);
                }
            }
        }
        frame.bound();
        for figures in &now {
            let is_same =
                |it: &&ServiceFigures| it.statistics.incarnation == figures.statistics.incarnation;
            let earlier = self.of(figures.node).filter(is_same);
            add_log_syncs(&mut frame, earlier, figures);
            add_host(&mut frame, earlier, figures);
        }
        for target in map.targets.iter().filter(|target| target.capacity.total_bytes > 0) {
            let readings = [
                (Measure::FreeBytes, target.capacity.free_bytes),
                (Measure::SizeBytes, target.capacity.total_bytes),
            ];
            for (measure, bytes) in readings {
                let level = Level { sum: bytes, max: bytes };
                frame.readings.insert((measure, target.id.raw()), level);
            }
        }
        // If a service has not replied, its last reply stays stored.
        let is_member = |id: u32| map.nodes.iter().any(|node| node.id.raw() == id);
        self.host_loads.add(&now, is_member);
        let is_replaced = |id: u32| now.iter().any(|it| it.node == id);
        self.last.retain(|it| is_member(it.node) && !is_replaced(it.node));
        self.last.extend(now.into_iter().filter(|it| is_member(it.node)));
        frame
    }
}

fn load_of(row: &Row) -> Load {
    let buckets = row.durations.buckets.iter().enumerate().filter(|(_, count)| **count > 0);
    Load {
        operations: row.operations,
        errors: row.errors,
        read_bytes: row.read_bytes,
        written_bytes: row.written_bytes,
        busy_ns: row.busy_ns,
        queued: Level::of(row.queued),
        busy: Level::of(row.busy),
        buckets: buckets.map(|(bucket, count)| (bucket as u16, *count)).collect(),
    }
}

fn find<'a>(figures: &'a ServiceFigures, like: &StatisticsSeries) -> Option<&'a StatisticsSeries> {
    let mut all = series_with(figures, &like.metric).iter();
    all.find(|it| it.metric == like.metric && it.labels == like.labels)
}

fn add_log_syncs(frame: &mut Frame, earlier: Option<&ServiceFigures>, now: &ServiceFigures) {
    let Some(earlier) = earlier else { return };
    for series in series_with(now, LOG_SYNC) {
        let before = find(earlier, series);
        let count_before = |bucket: u16| {
            let buckets = before.iter().flat_map(|series| &series.buckets);
            buckets.filter(|(it, _)| *it == bucket).map(|(_, count)| count).sum::<u64>()
        };
        let mut buckets: Vec<(u16, u64)> = series
            .buckets
            .iter()
            .map(|(bucket, count)| (*bucket, count.saturating_sub(count_before(*bucket))))
            .filter(|(_, count)| *count > 0)
            .collect();
        buckets.sort_unstable();
        let spent = series.value - before.map_or(0, |series| series.value);
        let load = Load {
            operations: buckets.iter().map(|(_, count)| count).sum(),
            busy_ns: u64::try_from(spent).unwrap_or(0),
            buckets,
            ..Load::default()
        };
        if load.operations > 0 {
            let id = label(series, "target").to_owned();
            let key = Key { dimension: Dimension::LogSync, id, service: "metadata".into() };
            frame.loads.insert(key, load);
        }
    }
}

/// Adds the values of a service's host: the memory, and the used share of the CPU time.
fn add_host(frame: &mut Frame, earlier: Option<&ServiceFigures>, now: &ServiceFigures) {
    let value = |metric: &str| series_with(now, metric).first().map(|series| series.value);
    let memory = [
        (Measure::Memory, "skep_host_memory_bytes"),
        (Measure::MemoryFree, "skep_host_memory_available_bytes"),
    ];
    for (measure, metric) in memory {
        if let Some(bytes) = value(metric) {
            frame.readings.insert((measure, now.node), Level::of(bytes));
        }
    }
    let Some(earlier) = earlier else { return };
    let times = |figures: &ServiceFigures| {
        // The kernels of some virtual machines show a stolen time that is as large as possible.
        let (mut all, mut unused) = (0_i128, 0_i128);
        for series in series_with(figures, "skep_host_cpu_seconds") {
            let value = i128::from(series.value);
            all += value;
            if matches!(label(series, "mode"), "idle" | "iowait") {
                unused += value;
            }
        }
        (all, unused)
    };
    let ((all, unused), (all_before, unused_before)) = (times(now), times(earlier));
    let (all, unused) = (all - all_before, unused - unused_before);
    if all > 0 {
        let used = (all - unused).clamp(0, all);
        let permille = (used as f64 / all as f64 * 1000.0).round() as i64;
        frame.readings.insert((Measure::CpuPermille, now.node), Level::of(permille));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::ClusterId;
    use skep_wire::node::Statistics;

    fn series(metric: &str, labels: &[(&str, &str)], value: i64) -> StatisticsSeries {
        let labels = labels.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        StatisticsSeries { metric: metric.into(), labels, value, buckets: Vec::new() }
    }

    fn reply(second: u64, operations: i64, used: i64) -> ServiceFigures {
        let target = [("target", "7"), ("operation", "write_chunk")];
        let user = [("service", "storage"), ("target", "7"), ("by", "user"), ("id", "1000")];
        let mut sync = series(LOG_SYNC, &[("target", "7")], operations * 10);
        sync.buckets = vec![(40, operations as u64)];
        let series = vec![
            series("skep_host_cpu_seconds", &[("mode", "idle")], second as i64 * 1000 - used),
            series("skep_host_cpu_seconds", &[("mode", "steal")], i64::MAX),
            series("skep_host_cpu_seconds", &[("mode", "user")], used),
            series("skep_host_memory_bytes", &[], 5000),
            series("skep_load_operations", &user, operations),
            sync,
            series("skep_storage_operations", &target, operations),
        ];
        let moment_ns = second * 1_000_000_000;
        let statistics = Statistics { moment_ns, incarnation: 1, page: String::new(), series };
        ServiceFigures { node: 2, name: "storage-1".into(), statistics }
    }

    fn map() -> ClusterMap {
        let mut map = ClusterMap::empty(ClusterId::default());
        map.nodes.push(skep_types::Node {
            id: skep_types::NodeId::new(2),
            kind: skep_types::NodeKind::Storage,
            name: "storage-1".into(),
            addresses: Vec::new(),
            domain: String::new(),
            reachability: skep_types::map::Reachability::Online,
            version: String::new(),
        });
        map
    }

    fn operations(frame: &Frame, dimension: Dimension) -> u64 {
        let loads = frame.loads.iter().filter(|(key, _)| key.dimension == dimension);
        loads.map(|(_, load)| load.operations).sum()
    }

    #[test]
    fn frame_has_the_change_of_counters_between_two_replies() {
        let (mut observer, map) = (Observer::default(), map());
        let first = observer.observe(&map, vec![reply(10, 100, 0)], 10_000, 1000);
        assert_eq!(operations(&first, Dimension::Target), 0, "earlier load does not count");
        let second = observer.observe(&map, vec![reply(11, 130, 250)], 11_000, 1000);
        for dimension in [
            Dimension::Node,
            Dimension::Target,
            Dimension::User,
            Dimension::Operation,
            Dimension::LogSync,
        ] {
            assert_eq!(operations(&second, dimension), 30, "{dimension:?}");
        }
        assert_eq!(second.readings[&(Measure::CpuPermille, 2)].max, 250);
        assert_eq!(second.readings[&(Measure::Memory, 2)].max, 5000);
    }

    #[test]
    fn missed_collection_round_loses_no_operation() {
        let (mut observer, map) = (Observer::default(), map());
        observer.observe(&map, vec![reply(10, 100, 0)], 10_000, 1000);
        let missed = observer.observe(&map, Vec::new(), 11_000, 1000);
        assert_eq!(missed.loads.len(), 0);
        let later = observer.observe(&map, vec![reply(12, 160, 0)], 12_000, 1000);
        assert_eq!(operations(&later, Dimension::Target), 60);
    }
}
