//! The rule about backups of management: there must be a recent backup.
//!
//! Each management node reports the time of the last `skep cluster backup` of its directory. A
//! backup of any node counts, because all nodes have the same state.
//!
//! The module is pure: it does no I/O and reads no clock. The rule takes the current time from the
//! replies of the management nodes, which contain the times of the backups too.

use crate::why::Cause;
use crate::{Round, ServiceFigures};
use skep_cluster::problems::Severity;
use skep_types::{ClusterMap, NodeKind};

const DAY_NS: u64 = 86_400_000_000_000;
/// Maximum age of the last backup, unless a setting of the monitor sets another age. The
/// documentation advises a backup each day, and a week also covers holidays.
pub const MAX_AGE_NS: u64 = 7 * DAY_NS;

/// The times that a management node reports, in nanoseconds since 1970.
#[derive(Debug, Clone, Copy)]
struct Times {
    now: u64,
    created: u64,
    /// `None` means that the directory of the node was never copied.
    last: Option<u64>,
}

impl Times {
    /// `None` means that the node does not report its times.
    fn of(figures: &ServiceFigures) -> Option<Self> {
        let value = |metric: &str| {
            let found = figures.statistics.series.iter().find(|series| series.metric == metric);
            u64::try_from(found?.value).ok()
        };
        Some(Self {
            now: value("skep_host_clock_seconds")?,
            created: value("skep_management_created_seconds")?,
            last: value("skep_management_last_backup_seconds"),
        })
    }
}

/// Returns a finding if management has no backup, or the last backup is older than `max_age_ns`.
/// Returns no finding if the cluster is younger than `max_age_ns`. Also returns no finding if a
/// management node has not replied, because the newest backup may be a copy of its directory.
/// `round` contains the newest replies.
pub fn missing_backup(map: &ClusterMap, round: &Round, max_age_ns: u64) -> Option<Cause> {
    let nodes = map.nodes.iter().filter(|node| node.kind == NodeKind::Management);
    let times = nodes.map(|node| {
        let figures = round.iter().find(|figures| figures.node == node.id.raw())?;
        Times::of(figures)
    });
    let times: Vec<Times> = times.collect::<Option<_>>()?;
    let now = times.iter().map(|it| it.now).max()?;
    let last = times.iter().filter_map(|it| it.last).max();
    // The oldest directory of management was made when the cluster was created, or restored.
    let created = times.iter().map(|it| it.created).min()?;
    let age = now.saturating_sub(last.unwrap_or(created));
    let days = age / DAY_NS;
    let what = match last {
        Some(_) => format!("the last backup of management was made {days} days ago"),
        None => format!("management was never backed up since it was created {days} days ago"),
    };
    (age > max_age_ns).then(|| Cause {
        rule: "no-backup",
        severity: Severity::Warning,
        object: "management".into(),
        targets: Vec::new(),
        client: None,
        is_over: false,
        what,
        remedy: "if all management nodes lose their disks, the other services cannot be used \
                 without a backup, and an old backup does not contain newer targets, so their \
                 files are lost. Run `skep cluster backup --directory DIRECTORY NEW-DIRECTORY` on \
                 a host of management each day, and keep the copies on another disk. If another \
                 program copies the directory, let it run `touch DIRECTORY/last-backup` afterwards"
            .into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{ClusterId, Node, NodeId};
    use skep_wire::node::{Statistics, StatisticsSeries};

    fn map(nodes: u32) -> ClusterMap {
        let mut map = ClusterMap::empty(ClusterId::default());
        let node =
            |id| Node::online(NodeId::new(id), NodeKind::Management, format!("management-{id}"));
        map.nodes = (1..=nodes).map(node).collect();
        map
    }

    /// Returns the reply of a management node on day 100. The node was created on the day
    /// `created`, and its directory was copied on the day `last`.
    fn reply(node: u32, created: u64, last: Option<u64>) -> ServiceFigures {
        let days = [
            ("skep_host_clock_seconds", Some(100)),
            ("skep_management_created_seconds", Some(created)),
            ("skep_management_last_backup_seconds", last),
        ];
        let series = days.into_iter().filter_map(|(metric, day)| {
            let value = i64::try_from(day? * DAY_NS).unwrap();
            Some(StatisticsSeries {
                metric: metric.into(),
                labels: Vec::new(),
                value,
                buckets: Vec::new(),
            })
        });
        let statistics = Statistics {
            moment_ns: 1,
            incarnation: 1,
            page: String::new(),
            series: series.collect(),
        };
        ServiceFigures { node, name: format!("management-{node}"), statistics }
    }

    fn found(nodes: u32, round: Round) -> Option<String> {
        missing_backup(&map(nodes), &round, MAX_AGE_NS).map(|it| it.what)
    }

    #[test]
    fn management_without_a_recent_backup_is_reported() {
        let old = found(1, vec![reply(1, 10, Some(90))]);
        assert_eq!(old.as_deref(), Some("the last backup of management was made 10 days ago"));
        let never = found(1, vec![reply(1, 10, None)]).unwrap();
        assert_eq!(never, "management was never backed up since it was created 90 days ago");
        assert_eq!(found(1, vec![reply(1, 10, Some(95))]), None);
        assert_eq!(found(1, vec![reply(1, 95, None)]), None, "a new cluster");
    }

    #[test]
    fn recent_backup_of_any_management_node_is_sufficient() {
        assert_eq!(found(2, vec![reply(1, 10, Some(20)), reply(2, 10, Some(99))]), None);
        assert_eq!(found(2, vec![reply(1, 10, None), reply(2, 10, Some(99))]), None);
        assert!(found(2, vec![reply(1, 10, None), reply(2, 99, None)]).is_some());
        assert_eq!(found(2, vec![reply(1, 10, None)]), None, "a node has not replied");
    }
}
