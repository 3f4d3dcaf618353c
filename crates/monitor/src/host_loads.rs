//! The load of the disks and network interfaces of hosts between the last two replies of each
//! service.
//!
//! The module is pure: it uses no I/O and no clock. The module stores only the series of these
//! statistics, because the whole reply of a service has thousands of series.

use serde_json::{Value, json};
use skep_stats::disks::disks;
use skep_stats::interfaces::interfaces;
use skep_stats::{Round, ServiceFigures, series_with};
use skep_wire::node::Statistics;
use std::collections::BTreeMap;

/// Number of rounds without a reply of a service for which the load of its host is still shown. A
/// single reply may be late. After more rounds, readers would mistake the old load for the current
/// load.
const MAX_SILENT_ROUNDS: u32 = 5;
/// Prefixes of the names of the stored series.
const PREFIXES: [&str; 2] = ["skep_host_disk_", "skep_host_network_"];

/// The statistics of hosts in the last two replies of each service.
#[derive(Debug, Default)]
pub(crate) struct HostLoads {
    before: Round,
    last: Round,
    /// Number of rounds since the last reply of each service in `last`, by node id.
    silent: BTreeMap<u32, u32>,
}

impl HostLoads {
    /// Adds the replies of a round. A service that did not reply keeps its last two replies for
    /// [`MAX_SILENT_ROUNDS`]. Removes the services for which `is_member` returns false.
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
        for node in self.last.iter().map(|it| it.node) {
            let silent = self.silent.entry(node).or_default();
            let has_replied = round.iter().any(|it| it.node == node);
            *silent = if has_replied { 0 } else { *silent + 1 };
        }
        self.silent.retain(|node, silent| is_member(*node) && *silent <= MAX_SILENT_ROUNDS);
        self.before.retain(|it| self.silent.contains_key(&it.node));
        self.last.retain(|it| self.silent.contains_key(&it.node));
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

    #[test]
    fn host_of_a_service_without_replies_shows_no_old_load() {
        let mut loads = HostLoads::default();
        let disks = |loads: &HostLoads| {
            let found = loads.loads(None, |node| format!("s{node}"));
            found["disks"].as_array().map_or(0, Vec::len)
        };
        for second in 10..20 {
            loads.add(&vec![reply(2, second, 0), reply(3, second, 0)], |_| true);
        }
        for second in 20..20 + u64::from(MAX_SILENT_ROUNDS) {
            loads.add(&vec![reply(3, second, 0)], |_| true);
            assert_eq!(disks(&loads), 2, "a few late replies: {second}");
        }
        loads.add(&vec![reply(3, 30, 0)], |_| true);
        assert_eq!((disks(&loads), loads.last.len(), loads.silent.len()), (1, 1, 1));
        // The service is back. Its load needs two replies.
        loads.add(&vec![reply(2, 40, 0), reply(3, 40, 0)], |_| true);
        assert_eq!(disks(&loads), 1);
        loads.add(&vec![reply(2, 41, 0), reply(3, 41, 0)], |_| true);
        assert_eq!(disks(&loads), 2);
    }
}
