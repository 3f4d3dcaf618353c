//! The load of the disks and network interfaces of hosts between the last two replies of each
//! service.
//!
//! The module is pure: it uses no I/O and no clock. It stores only the series of these statistics,
//! because the whole reply of a service has thousands of series.

use serde_json::{Value, json};
use skep_stats::disks::disks;
use skep_stats::interfaces::interfaces;
use skep_stats::{Round, ServiceFigures, series_with};
use skep_wire::node::Statistics;

/// Prefixes of the names of the stored series.
const PREFIXES: [&str; 2] = ["skep_host_disk_", "skep_host_network_"];

/// The statistics of hosts in the last two replies of each service.
#[derive(Debug, Default)]
pub(crate) struct HostLoads {
    before: Round,
    last: Round,
}

impl HostLoads {
    /// Adds the replies of a round. A service that did not reply keeps its last two replies.
    /// Removes the services for which `is_member` returns false.
    pub(crate) fn add(&mut self, round: &Round, is_member: impl Fn(u32) -> bool) {
        for figures in round {
            let is_other = |it: &ServiceFigures| it.node != figures.node;
            if let Some(at) = self.last.iter().position(|it| !is_other(it)) {
                let former = std::mem::replace(&mut self.last[at], of_host(figures));
                self.before.retain(is_other);
                self.before.push(former);
            } else {
                self.last.push(of_host(figures));
            }
        }
        self.before.retain(|it| is_member(it.node));
        self.last.retain(|it| is_member(it.node));
    }

    /// Returns the load of the host of one service, or of all hosts. `host_of` returns the name of
    /// the host of a service.
    pub(crate) fn loads(&self, node: Option<u32>, host_of: impl Fn(u32) -> String) -> Value {
        let is_meant = |it: &&ServiceFigures| node.is_none_or(|node| it.node == node);
        let last: Round = self.last.iter().filter(is_meant).cloned().collect();
        json!({
            "disks": disks(&self.before, &last, &host_of),
            "interfaces": interfaces(&self.before, &last, &host_of),
        })
    }
}

/// Returns the statistics of the host in the reply of a service.
fn of_host(figures: &ServiceFigures) -> ServiceFigures {
    let series = PREFIXES.iter().flat_map(|prefix| series_with(figures, prefix)).cloned().collect();
    let Statistics { moment_ns, incarnation, .. } = figures.statistics;
    let statistics = Statistics { moment_ns, incarnation, page: String::new(), series };
    ServiceFigures { node: figures.node, name: figures.name.clone(), statistics }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_wire::node::StatisticsSeries;

    fn reply(node: u32, second: u64, writes: i64) -> ServiceFigures {
        let series = |metric: &str, device: &str, value: i64| StatisticsSeries {
            metric: metric.into(),
            labels: vec![("device".into(), device.into())],
            value,
            buckets: Vec::new(),
        };
        let series = vec![
            series("skep_host_disk_writes", "sda", writes),
            series("skep_host_network_sent_bytes", "eth0", writes * 1000),
            series("skep_storage_operations", "", writes),
        ];
        let moment_ns = second * 1_000_000_000;
        let statistics = Statistics { moment_ns, incarnation: 5, page: String::new(), series };
        ServiceFigures { node, name: format!("storage-{node}"), statistics }
    }

    #[test]
    fn load_of_a_host_covers_the_last_two_replies_of_its_service() {
        let mut loads = HostLoads::default();
        let host_of = |node: u32| format!("s{node}");
        loads.add(&vec![reply(2, 10, 0), reply(3, 10, 0)], |_| true);
        assert_eq!(loads.loads(None, host_of)["disks"], json!([]));
        loads.add(&vec![reply(2, 11, 10), reply(3, 11, 70)], |_| true);
        // Service 2 does not reply in this round.
        loads.add(&vec![reply(3, 13, 90)], |_| true);
        let of = |node: u32| loads.loads(Some(node), host_of);
        let (second, third) = (of(2), of(3));
        let (written, sent) = ("writes_per_second", "sent_bytes_per_second");
        assert_eq!(second["disks"][0][written], 10.0);
        assert_eq!((&third["disks"][0][written], &third["disks"][1]), (&10.0.into(), &Value::Null));
        assert_eq!(third["interfaces"][0][sent], 10_000.0);
        assert_eq!(loads.loads(None, host_of)["disks"].as_array().unwrap().len(), 2);
        assert!(loads.last.iter().all(|it| it.statistics.series.len() == 2));
        loads.add(&Vec::new(), |node| node == 2);
        assert_eq!(loads.loads(Some(3), host_of)["interfaces"], json!([]));
    }
}
