//! The load of the disks of hosts in a time span, with the statistics of `iostat -x`.

use crate::Round;
use crate::change::Change;
use crate::host_changes::of_hosts;
use serde::Serialize;
use std::collections::BTreeMap;

/// Prefix of the names of all disk metrics.
const PREFIX: &str = "skep_host_disk_";

/// The load of one disk in a time span. The kernel counts the requests of all programs.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct DiskLoad {
    /// Name of the host.
    pub host: String,
    /// Name of the disk in `/sys/block`.
    pub disk: String,
    /// Completed reads per second.
    pub reads_per_second: f64,
    /// Completed writes per second.
    pub writes_per_second: f64,
    /// Bytes read per second.
    pub read_bytes_per_second: f64,
    /// Bytes written per second.
    pub written_bytes_per_second: f64,
    /// Mean duration of a read in microseconds, with its time in the queue. `None` if there was no
    /// read.
    pub read_await_us: Option<f64>,
    /// Mean duration of a write in microseconds, with its time in the queue. `None` if there was no
    /// write.
    pub write_await_us: Option<f64>,
    /// Mean number of requests that waited for the disk or were processed by it.
    pub queue: f64,
    /// Share of the time in which the disk had requests: 0 to 1. A disk that processes several
    /// requests in parallel may be able to do more work even at 1.
    pub utilisation: f64,
}

/// The growth of the counters of one disk.
#[derive(Debug, Default)]
struct Counts {
    reads: u64,
    writes: u64,
    read_bytes: u64,
    written_bytes: u64,
    read_ns: u64,
    write_ns: u64,
    queue_ns: u64,
    busy_ns: u64,
}

impl Counts {
    /// Adds the change of one series. Ignores the series of other statistics.
    fn add(&mut self, change: &Change<'_>) {
        let count = match change.series.metric.strip_prefix(PREFIX) {
            Some("reads") => &mut self.reads,
            Some("writes") => &mut self.writes,
            Some("read_bytes") => &mut self.read_bytes,
            Some("written_bytes") => &mut self.written_bytes,
            Some("read_seconds") => &mut self.read_ns,
            Some("write_seconds") => &mut self.write_ns,
            Some("queue_seconds") => &mut self.queue_ns,
            Some("busy_seconds") => &mut self.busy_ns,
            _ => return,
        };
        // The counters of a disk begin at zero again if another disk gets its name.
        *count += u64::try_from(change.growth).unwrap_or(0);
    }

    fn load(&self, host: &str, disk: String, seconds: f64) -> DiskLoad {
        let mean_us = |ns: u64, count: u64| (count > 0).then(|| ns as f64 / count as f64 / 1e3);
        DiskLoad {
            host: host.to_owned(),
            disk,
            reads_per_second: self.reads as f64 / seconds,
            writes_per_second: self.writes as f64 / seconds,
            read_bytes_per_second: self.read_bytes as f64 / seconds,
            written_bytes_per_second: self.written_bytes as f64 / seconds,
            read_await_us: mean_us(self.read_ns, self.reads),
            write_await_us: mean_us(self.write_ns, self.writes),
            queue: self.queue_ns as f64 / 1e9 / seconds,
            utilisation: (self.busy_ns as f64 / 1e9 / seconds).min(1.0),
        }
    }
}

/// Returns the load of the disks between two rounds of replies, the busiest disks first. `host_of`
/// returns the name of the host of a service, by the node id of the service. Omits hosts on which
/// no service has replied in both rounds without a restart between them.
pub fn disks(before: &Round, now: &Round, host_of: impl Fn(u32) -> String) -> Vec<DiskLoad> {
    let mut loads = Vec::new();
    for found in of_hosts(before, now, host_of) {
        let mut disks = BTreeMap::<String, Counts>::new();
        for change in found.changes.iter().filter(|it| it.series.metric.starts_with(PREFIX)) {
            disks.entry(change.label("device").to_owned()).or_default().add(change);
        }
        let load = |(disk, counts): (String, Counts)| counts.load(&found.host, disk, found.seconds);
        loads.extend(disks.into_iter().map(load));
    }
    loads.sort_by(|a, b| {
        let names = |it: &DiskLoad| (it.host.clone(), it.disk.clone());
        b.utilisation.total_cmp(&a.utilisation).then_with(|| names(a).cmp(&names(b)))
    });
    loads
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ServiceFigures;
    use crate::row::tests::{self, series};

    fn service(node: u32, second: u64, disk: &str, figures: &[(&str, i64)]) -> ServiceFigures {
        let all = figures
            .iter()
            .map(|(name, value)| series(&format!("{PREFIX}{name}"), &[("device", disk)], *value));
        tests::service(node, second, all.collect())
    }

    /// Returns the statistics of a disk that has completed `count` reads of 4 KiB, each in 2 ms,
    /// and half as many writes.
    fn figures(count: i64) -> [(&'static str, i64); 8] {
        [
            ("busy_seconds", count * 1_000_000),
            ("queue_seconds", count * 3_000_000),
            ("read_bytes", count * 4096),
            ("read_seconds", count * 2_000_000),
            ("reads", count),
            ("write_seconds", count / 2 * 500_000),
            ("writes", count / 2),
            ("written_bytes", count / 2 * 8192),
        ]
    }

    #[test]
    fn disk_statistics_equal_the_output_of_iostat() {
        let before = vec![service(1, 10, "sda", &figures(1_000))];
        let now = vec![service(1, 12, "sda", &figures(2_000))];
        let loads = disks(&before, &now, |_| "s1".into());
        let expected = DiskLoad {
            host: "s1".into(),
            disk: "sda".into(),
            reads_per_second: 500.0,
            writes_per_second: 250.0,
            read_bytes_per_second: 500.0 * 4096.0,
            written_bytes_per_second: 250.0 * 8192.0,
            read_await_us: Some(2_000.0),
            write_await_us: Some(500.0),
            queue: 1.5,
            utilisation: 0.5,
        };
        assert_eq!(loads, [expected]);
        let idle = disks(&now, &[service(1, 13, "sda", &figures(2_000))].to_vec(), |_| "s1".into());
        assert_eq!((idle[0].read_await_us, idle[0].utilisation), (None, 0.0));
    }

    #[test]
    fn disks_of_a_host_are_shown_once_and_the_busiest_first() {
        let round = |second, busy| {
            vec![
                service(1, second, "sda", &figures(busy)),
                service(2, second, "sda", &figures(busy)),
                service(3, second, "sdb", &figures(busy * 2)),
            ]
        };
        let host_of = |node: u32| if node == 3 { "s2".to_owned() } else { "s1".to_owned() };
        let loads = disks(&round(10, 100), &round(11, 200), host_of);
        let names: Vec<_> = loads.iter().map(|it| (it.host.as_str(), it.disk.as_str())).collect();
        assert_eq!(names, [("s2", "sdb"), ("s1", "sda")]);
    }

    #[test]
    fn disk_without_an_earlier_value_has_no_load() {
        let before = vec![service(1, 10, "sda", &figures(100))];
        let mut now = service(1, 11, "sda", &figures(200));
        // The disk `sdb` has been used for a long time, but the service has not reported it before.
        let disk = service(1, 11, "sdb", &figures(1_000_000));
        now.statistics.series.extend(disk.statistics.series);
        now.statistics.series.sort_by(|a, b| a.metric.cmp(&b.metric));
        let loads = disks(&before, &vec![now], |_| "s1".into());
        let names: Vec<_> =
            loads.iter().map(|it| (it.disk.as_str(), it.reads_per_second)).collect();
        assert_eq!(names, [("sda", 100.0)]);
    }

    #[test]
    fn restarted_and_new_services_have_no_disk_statistics() {
        let before = vec![service(1, 10, "sda", &figures(100))];
        let mut restarted = service(1, 12, "sda", &figures(200));
        restarted.statistics.incarnation = 6;
        let new = service(2, 12, "sdb", &figures(200));
        assert_eq!(disks(&before, &vec![restarted, new], |node| node.to_string()), []);
    }
}
