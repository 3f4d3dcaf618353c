//! The traffic of the network interfaces of hosts in a time span.

use crate::Round;
use crate::host_changes::of_hosts;
use serde::Serialize;
use std::collections::BTreeMap;

/// Prefix of the names of all metrics of network interfaces.
const PREFIX: &str = "skep_host_network_";

/// The traffic of one network interface in a time span. The kernel counts the data of all programs.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct InterfaceLoad {
    /// Name of the host.
    pub host: String,
    /// Name of the interface.
    pub interface: String,
    /// Bytes received per second.
    pub received_bytes_per_second: f64,
    /// Bytes sent per second.
    pub sent_bytes_per_second: f64,
    /// Errors and dropped packets per second.
    pub errors_per_second: f64,
}

/// Returns the traffic of the interfaces between two rounds of replies, the busiest interfaces
/// first. `host_of` returns the name of the host of a service, by the node id of the service. Omits
/// hosts on which no service has replied in both rounds without a restart between them.
pub fn interfaces(
    before: &Round,
    now: &Round,
    host_of: impl Fn(u32) -> String,
) -> Vec<InterfaceLoad> {
    let mut loads = Vec::new();
    for found in of_hosts(before, now, host_of) {
        let mut interfaces = BTreeMap::<String, InterfaceLoad>::new();
        for change in &found.changes {
            let Some(name) = change.series.metric.strip_prefix(PREFIX) else { continue };
            let load = interfaces.entry(change.label("device").to_owned()).or_default();
            let rate = match name {
                "received_bytes" => &mut load.received_bytes_per_second,
                "sent_bytes" => &mut load.sent_bytes_per_second,
                "errors" => &mut load.errors_per_second,
                _ => continue,
            };
            // The counters begin at zero again if another interface gets the name.
            *rate += change.growth.max(0) as f64 / found.seconds;
        }
        let host = &found.host;
        loads.extend(interfaces.into_iter().map(|(interface, load)| InterfaceLoad {
            host: host.clone(),
            interface,
            ..load
        }));
    }
    let traffic = |it: &InterfaceLoad| it.received_bytes_per_second + it.sent_bytes_per_second;
    loads.sort_by(|a, b| {
        let names = |it: &InterfaceLoad| (it.host.clone(), it.interface.clone());
        traffic(b).total_cmp(&traffic(a)).then_with(|| names(a).cmp(&names(b)))
    });
    loads
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ServiceFigures;
    use crate::row::tests::{self, series};

    fn service(node: u32, second: u64, figures: &[(&str, &str, i64)]) -> ServiceFigures {
        let all = figures.iter().map(|(device, name, value)| {
            series(&format!("{PREFIX}{name}"), &[("device", *device)], *value)
        });
        tests::service(node, second, all.collect())
    }

    #[test]
    fn interface_traffic_is_the_growth_of_counters_per_second() {
        let of = |second: u64, count: i64| {
            let figures = [
                ("eth0", "received_bytes", 4000 * count),
                ("eth0", "sent_bytes", 2000 * count),
                ("eth0", "errors", count),
                ("eth1", "received_bytes", 9000 * count),
            ];
            // Both services are on the same host.
            vec![service(1, second, &figures), service(2, second, &figures)]
        };
        let found = interfaces(&of(10, 1), &of(12, 3), |_| "s1".into());
        let names: Vec<_> = found.iter().map(|it| it.interface.as_str()).collect();
        assert_eq!(names, ["eth1", "eth0"]);
        let expected = InterfaceLoad {
            host: "s1".into(),
            interface: "eth0".into(),
            received_bytes_per_second: 4000.0,
            sent_bytes_per_second: 2000.0,
            errors_per_second: 1.0,
        };
        assert_eq!(found[1], expected);
        let replaced = interfaces(&of(12, 3), &of(13, 1), |_| "s1".into());
        assert!(replaced.iter().all(|it| it.received_bytes_per_second == 0.0), "{replaced:?}");
        assert!(interfaces(&Vec::new(), &of(13, 1), |_| "s1".into()).is_empty());
    }
}
