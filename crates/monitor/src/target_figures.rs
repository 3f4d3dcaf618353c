//! Statistics of single targets from the newest replies of the services, except for their load:
//! free space, inodes, and background work that is left.
//!
//! The cluster map has the capacity of targets too, but management does not publish small changes
//! of the capacity.

use skep_metrics::{Definition, catalog};
use skep_stats::{Round, label, series_with};
use skep_types::map::Capacity;
use skep_types::{ClusterMap, Target, TargetKind};
use std::collections::{BTreeMap, BTreeSet};

/// The metrics whose newest values are stored.
static METRICS: [&Definition; 7] = [
    &catalog::TARGET_SIZE,
    &catalog::TARGET_FREE,
    &catalog::TARGET_INODES,
    &catalog::TARGET_FREE_INODES,
    &catalog::REMOVALS_QUEUED,
    &catalog::CLEANUP_DIRECTORIES,
    &catalog::CLEANUP_LEFT,
];

/// The newest values by metric and target id.
#[derive(Debug, Default)]
pub(crate) struct TargetFigures(BTreeMap<(&'static str, u32), u64>);

impl TargetFigures {
    /// Returns the metrics in the replies of a round.
    pub(crate) fn of(round: &Round) -> Self {
        let mut found = Self::default();
        for (figures, name) in round.iter().flat_map(|it| METRICS.map(|metric| (it, metric.name))) {
            let series = series_with(figures, name).iter().filter(|series| series.metric == name);
            found.0.extend(series.filter_map(|series| {
                let value = u64::try_from(series.value).unwrap_or(0);
                Some(((name, label(series, "target").parse().ok()?), value))
            }));
        }
        found
    }

    /// Returns the value of a metric of a target. `None` means that the service of the target has
    /// not replied, or has no such metric.
    pub(crate) fn get(&self, metric: &Definition, target: u32) -> Option<u64> {
        self.0.get(&(metric.name, target)).copied()
    }

    /// Returns the size and the free space of a target in bytes, from its newest reply, or
    /// otherwise from the cluster map.
    pub(crate) fn space(&self, target: &Target) -> (u64, u64) {
        let id = target.id.raw();
        let newest = self.get(&catalog::TARGET_SIZE, id).zip(self.get(&catalog::TARGET_FREE, id));
        newest
            .filter(|(size, _)| *size > 0)
            .unwrap_or((target.capacity.total_bytes, target.capacity.free_bytes))
    }

    /// Returns how many inodes the file system of a target has, and how many of them are free. Uses
    /// the newest reply of the target, or the cluster map if there is no reply.
    fn inodes(&self, target: &Target) -> (u64, u64) {
        let id = target.id.raw();
        let inodes = self.get(&catalog::TARGET_INODES, id);
        let newest = inodes.zip(self.get(&catalog::TARGET_FREE_INODES, id));
        newest.unwrap_or((target.capacity.total_inodes, target.capacity.free_inodes))
    }

    /// Returns the capacity of a target, from its newest reply, or otherwise from the cluster map.
    pub(crate) fn capacity(&self, target: &Target) -> Capacity {
        let (total_bytes, free_bytes) = self.space(target);
        let (total_inodes, free_inodes) = self.inodes(target);
        let file_system = target.capacity.file_system;
        Capacity { total_bytes, free_bytes, total_inodes, free_inodes, file_system }
    }

    /// Returns how many inodes of a target's file system are used. `None` means that the file
    /// system has no limit of inodes, and does not count them.
    pub(crate) fn used_inodes(&self, target: &Target) -> Option<u64> {
        let (all, free) = self.inodes(target);
        (all > 0).then(|| all.saturating_sub(free))
    }
}

/// Returns the targets of a kind, but only one target of each file system, because targets on the
/// same file system share its space. An unknown file system counts as not shared.
pub(crate) fn with_own_space(map: &ClusterMap, kind: TargetKind) -> Vec<&Target> {
    let mut seen = BTreeSet::new();
    let mut is_new = |id: u128| id == 0 || seen.insert(id);
    let of_kind = map.targets.iter().filter(|target| target.kind == kind);
    of_kind.filter(|target| is_new(target.capacity.file_system)).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use skep_stats::ServiceFigures;
    use skep_types::{NodeId, TargetId, TargetKind};
    use skep_wire::node::{Statistics, StatisticsSeries};

    /// Returns the metrics with these values, as metric, target id and value.
    pub(crate) fn figures(values: &[(&Definition, u32, i64)]) -> TargetFigures {
        let series = values.iter().map(|(metric, target, value)| StatisticsSeries {
            metric: metric.name.into(),
            labels: vec![("target".into(), target.to_string())],
            value: *value,
            buckets: Vec::new(),
        });
        let mut series: Vec<_> = series.collect();
        series.sort_by(|one, other| one.metric.cmp(&other.metric));
        let statistics = Statistics { moment_ns: 1, incarnation: 1, page: String::new(), series };
        TargetFigures::of(&vec![ServiceFigures { node: 1, name: String::new(), statistics }])
    }

    #[test]
    fn newest_reply_replaces_the_capacity_in_the_map() {
        let mut target =
            Target::new(TargetId::new(7), TargetKind::Storage, NodeId::new(1), "/data");
        target.capacity.total_bytes = 100;
        target.capacity.free_bytes = 90;
        target.capacity.total_inodes = 1000;
        target.capacity.free_inodes = 998;
        let none = TargetFigures::default();
        assert_eq!((none.space(&target), none.used_inodes(&target)), ((100, 90), Some(2)));
        let newer = figures(&[
            (&catalog::TARGET_SIZE, 7, 100),
            (&catalog::TARGET_FREE, 7, 60),
            (&catalog::TARGET_INODES, 7, 0),
            (&catalog::TARGET_FREE_INODES, 7, 0),
            (&catalog::LOG_UNSYNCED, 7, 5),
        ]);
        assert_eq!((newer.space(&target), newer.used_inodes(&target)), ((100, 60), None));
        let capacity = newer.capacity(&target);
        assert_eq!((capacity.free_bytes, capacity.total_inodes), (60, 0));
        assert_eq!(newer.get(&catalog::LOG_UNSYNCED, 7), None, "this metric is not stored");
        assert_eq!(newer.get(&catalog::TARGET_FREE, 8), None);
    }
}
