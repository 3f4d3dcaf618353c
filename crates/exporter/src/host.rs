//! Statistics of the host from `/proc`: load, CPUs, memory, page cache, pressure, network
//! interfaces, and disks as `iostat -x` shows them. The module also reads the clock of the host.
//!
//! The parsers are functions of a file's text. The parsers skip a line that they cannot parse,
//! because newer kernels add fields and lines. Some kernels show absurdly large values, because the
//! stolen CPU time of a virtual machine can fall below zero. So the computations saturate.

use skep_metrics::{Definition, Labels, Snapshot, Source, catalog};
use std::cmp::Reverse;

/// Clock ticks per second of the times in `/proc` (`USER_HZ`). This number is 100 on all
/// architectures that Skep supports.
const TICKS_PER_SECOND: u64 = 100;
/// Length of a sector in `/proc/diskstats` in bytes. This size does not depend on the sector size
/// of the disk.
const SECTOR_BYTES: u64 = 512;
/// Maximum number of disks, and of interfaces, in a snapshot. Hosts with many containers have
/// thousands of interfaces. A snapshot has the devices with the most work since the boot.
const MAX_DEVICES: usize = 64;

/// Reads the statistics of the host for each snapshot.
#[derive(Debug)]
pub struct HostFigures;

impl Source for HostFigures {
    fn collect(&self, snapshot: &mut Snapshot) {
        let read =
            |file: &str| std::fs::read_to_string(format!("/proc/{file}")).unwrap_or_default();
        collect_load(snapshot, &read("loadavg"));
        collect_cpu(snapshot, &read("stat"));
        collect_memory(snapshot, &read("meminfo"));
        collect_page_cache(snapshot, &read("vmstat"));
        for resource in ["cpu", "io", "memory"] {
            collect_pressure(snapshot, resource, &read(&format!("pressure/{resource}")));
        }
        collect_clock(snapshot);
        collect_disks(snapshot, &read("diskstats"));
        collect_interfaces(snapshot, &read("net/dev"));
    }
}

/// Converts clock ticks to nanoseconds.
pub(crate) fn ns_of_ticks(ticks: u64) -> u64 {
    ticks.saturating_mul(1_000_000_000 / TICKS_PER_SECOND)
}

fn ns_of_ms(ms: u64) -> u64 {
    ms.saturating_mul(1_000_000)
}

fn bytes_of_sectors(sectors: u64) -> u64 {
    sectors.saturating_mul(SECTOR_BYTES)
}

/// Returns the number that follows `key` in a file such as `/proc/meminfo` or `/proc/vmstat`.
pub(crate) fn number_after(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse().ok()
}

fn collect_load(snapshot: &mut Snapshot, loadavg: &str) {
    let load = loadavg.split_whitespace().next().and_then(|load| load.parse::<f64>().ok());
    if let Some(load) = load {
        snapshot.number(&catalog::HOST_LOAD1, Vec::new(), (load * 1e6).round() as i64);
    }
}

fn collect_cpu(snapshot: &mut Snapshot, stat: &str) {
    const MODES: [&str; 8] =
        ["user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"];
    let is_cpu = |line: &&str| line.starts_with("cpu");
    let cpus = stat.lines().filter(is_cpu).count().saturating_sub(1);
    snapshot.count(&catalog::HOST_CPUS, Vec::new(), cpus as u64);
    let Some(all) = stat.lines().find_map(|line| line.strip_prefix("cpu ")) else { return };
    for (mode, ticks) in MODES.iter().zip(all.split_whitespace()) {
        if let Ok(ticks) = ticks.parse() {
            let labels = vec![("mode", (*mode).to_owned())];
            snapshot.count(&catalog::HOST_CPU, labels, ns_of_ticks(ticks));
        }
    }
}

fn collect_memory(snapshot: &mut Snapshot, meminfo: &str) {
    let figures = [
        (&catalog::HOST_MEMORY, "MemTotal:"),
        (&catalog::HOST_MEMORY_AVAILABLE, "MemAvailable:"),
        (&catalog::HOST_DIRTY, "Dirty:"),
    ];
    for (definition, key) in figures {
        if let Some(kib) = number_after(meminfo, key) {
            snapshot.count(definition, Vec::new(), kib.saturating_mul(1024));
        }
    }
}

/// Adds the dirty page cache as a share of the kernel's limit. `vmstat` is the text of
/// `/proc/vmstat`.
fn collect_page_cache(snapshot: &mut Snapshot, vmstat: &str) {
    let pages = |key| number_after(vmstat, key);
    let (dirty, limit) = (pages("nr_dirty "), pages("nr_dirty_threshold "));
    if let (Some(dirty), Some(limit @ 1..)) = (dirty, limit) {
        // The kernel compares the sum of the dirty pages and of the pages under writeback with its
        // limit.
        let dirty = dirty.saturating_add(pages("nr_writeback ").unwrap_or(0));
        let millionths = dirty.saturating_mul(1_000_000) / limit;
        snapshot.count(&catalog::HOST_DIRTY_RATIO, Vec::new(), millionths);
    }
}

/// Adds the times in which programs waited for a resource. `pressure` is the text of the file of
/// this resource in `/proc/pressure`. Kernels without the option `CONFIG_PSI` have no such file.
fn collect_pressure(snapshot: &mut Snapshot, resource: &str, pressure: &str) {
    for (prefix, stalled) in [("some ", "some"), ("full ", "all")] {
        let line = pressure.lines().find_map(|line| line.strip_prefix(prefix));
        let total = line.and_then(|line| line.rsplit_once("total=")).map(|(_, total)| total);
        if let Some(us) = total.and_then(|total| total.trim().parse::<u64>().ok()) {
            let labels = vec![("resource", resource.to_owned()), ("stalled", stalled.to_owned())];
            snapshot.count(&catalog::HOST_PRESSURE, labels, us.saturating_mul(1_000));
        }
    }
}

fn collect_clock(snapshot: &mut Snapshot) {
    let time = skep_env::wall_time();
    let seconds = time.seconds.saturating_mul(1_000_000_000);
    let ns = seconds.saturating_add(i64::from(time.nanoseconds));
    snapshot.number(&catalog::HOST_CLOCK, Vec::new(), ns);
    if let Some(is_synchronised) = skep_env::is_clock_synchronised() {
        let number = i64::from(is_synchronised);
        snapshot.number(&catalog::HOST_CLOCK_SYNCHRONISED, Vec::new(), number);
    }
}

/// Whether the statistics include a block device: a whole disk, but no disk in memory and no drive
/// for removable media. Partitions do not count, because the kernel also counts the I/O of a
/// partition for its disk.
fn is_disk(name: &str) -> bool {
    let is_virtual = ["ram", "zram", "fd", "sr"].iter().any(|prefix| name.starts_with(prefix));
    let ends_with_digit = name.ends_with(|last: char| last.is_ascii_digit());
    let is_named_by_letters =
        ["sd", "vd", "xvd", "hd"].iter().any(|prefix| name.starts_with(prefix));
    let is_partition = (is_named_by_letters && ends_with_digit)
        || ["nvme", "mmcblk", "loop"].iter().any(|prefix| name.starts_with(prefix))
            && name.rsplit_once('p').is_some_and(|(disk, part)| {
                disk.ends_with(|last: char| last.is_ascii_digit()) && part.parse::<u32>().is_ok()
            });
    !is_virtual && !is_partition
}

/// Returns the devices with the most work, but at most [`MAX_DEVICES`], in the order of `devices`.
/// Each device comes with its work since the boot. The work only grows, so two snapshots usually
/// have the same devices.
fn busiest<T>(devices: impl Iterator<Item = (u64, T)>) -> Vec<T> {
    let mut devices: Vec<_> = devices.enumerate().collect();
    if devices.len() > MAX_DEVICES {
        devices.sort_by_key(|(_, (work, _))| Reverse(*work));
        devices.truncate(MAX_DEVICES);
        devices.sort_by_key(|(place, _)| *place);
    }
    devices.into_iter().map(|(_, (_, device))| device).collect()
}

fn collect_disks(snapshot: &mut Snapshot, diskstats: &str) {
    let disks = diskstats.lines().filter_map(|line| {
        let mut fields = line.split_whitespace().skip(2);
        let name = fields.next().filter(|name| is_disk(name))?;
        let numbers: Vec<u64> = fields.map_while(|field| field.parse().ok()).collect();
        if numbers.len() < 11 {
            return None;
        }
        let requests = numbers[0].saturating_add(numbers[4]);
        // The statistics omit a disk that has had no request since the boot.
        (requests > 0).then_some((requests, (name, numbers)))
    });
    for (name, numbers) in busiest(disks) {
        add_disk(snapshot, name, &numbers);
    }
}

/// Adds the statistics of a disk. `numbers` contains at least the first 11 values of its line in
/// `/proc/diskstats`.
fn add_disk(snapshot: &mut Snapshot, name: &str, numbers: &[u64]) {
    let mut figures: Vec<(&'static Definition, u64)> = vec![
        (&catalog::DISK_READS, numbers[0]),
        (&catalog::DISK_READ_MERGES, numbers[1]),
        (&catalog::DISK_READ_BYTES, bytes_of_sectors(numbers[2])),
        (&catalog::DISK_READ_SECONDS, ns_of_ms(numbers[3])),
        (&catalog::DISK_WRITES, numbers[4]),
        (&catalog::DISK_WRITE_MERGES, numbers[5]),
        (&catalog::DISK_WRITTEN_BYTES, bytes_of_sectors(numbers[6])),
        (&catalog::DISK_WRITE_SECONDS, ns_of_ms(numbers[7])),
        (&catalog::DISK_IN_FLIGHT, numbers[8]),
        (&catalog::DISK_BUSY_SECONDS, ns_of_ms(numbers[9])),
        (&catalog::DISK_QUEUE_SECONDS, ns_of_ms(numbers[10])),
    ];
    // Older kernels than Linux 4.18 do not count discards.
    if let [discards, merges, sectors, ms, ..] = numbers.get(11..).unwrap_or_default() {
        figures.push((&catalog::DISK_DISCARDS, *discards));
        figures.push((&catalog::DISK_DISCARD_MERGES, *merges));
        figures.push((&catalog::DISK_DISCARDED_BYTES, bytes_of_sectors(*sectors)));
        figures.push((&catalog::DISK_DISCARD_SECONDS, ns_of_ms(*ms)));
    }
    // Older kernels than Linux 5.5 do not count flushes.
    if let [flushes, flush_ms, ..] = numbers.get(15..).unwrap_or_default() {
        figures.push((&catalog::DISK_FLUSHES, *flushes));
        figures.push((&catalog::DISK_FLUSH_SECONDS, ns_of_ms(*flush_ms)));
    }
    for (definition, figure) in figures {
        snapshot.count(definition, device(name), figure);
    }
}

fn collect_interfaces(snapshot: &mut Snapshot, net_dev: &str) {
    let lines = net_dev.lines().skip(2).filter_map(|line| line.split_once(':'));
    let interfaces = lines.filter_map(|(name, numbers)| {
        let numbers: Vec<u64> =
            numbers.split_whitespace().map_while(|field| field.parse().ok()).collect();
        let bytes = numbers.first()?.saturating_add(*numbers.get(8)?);
        (numbers.len() >= 12).then_some((bytes, (name.trim(), numbers)))
    });
    for (name, numbers) in busiest(interfaces) {
        snapshot.count(&catalog::NETWORK_RECEIVED, device(name), numbers[0]);
        snapshot.count(&catalog::NETWORK_SENT, device(name), numbers[8]);
        let errors = [2, 3, 10, 11].map(|at| numbers[at]);
        let errors = errors.into_iter().fold(0, u64::saturating_add);
        snapshot.count(&catalog::NETWORK_ERRORS, device(name), errors);
    }
}

fn device(name: &str) -> Labels {
    vec![("device", name.to_owned())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_metrics::Value;

    fn numbers(collect: impl Fn(&mut Snapshot)) -> Vec<(String, String, i64)> {
        let mut snapshot = Snapshot::default();
        collect(&mut snapshot);
        let line = |series: skep_metrics::Series| {
            let Value::Number(number) = series.value else { panic!("{series:?}") };
            let label = series.labels.first().map(|(_, value)| value.clone()).unwrap_or_default();
            (series.definition.name.to_owned(), label, number)
        };
        snapshot.iter().map(line).collect()
    }

    fn number(found: &[(String, String, i64)], name: &str, label: &str) -> i64 {
        let line = found.iter().find(|(it, of, _)| it == name && of == label);
        line.unwrap_or_else(|| panic!("{name} {label}: {found:?}")).2
    }

    #[test]
    fn disk_statistics_equal_those_of_iostat_without_partitions() {
        let text = "\
   8       0 sda 100 5 2000 30 200 6 4000 70 3 90 160 7 8 24 9 11 13
   8       1 sda1 90 5 1900 29 190 6 3900 69 0 80 150 0 0 0 0 0 0
 259       0 nvme0n1 1 0 8 1 0 0 0 0 0 1 1 0 0 0 0
 259       1 nvme0n1p1 1 0 8 1 0 0 0 0 0 1 1 0 0 0 0
   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
   1       0 ram0 5 0 8 1 0 0 0 0 0 1 1 0 0 0 0
 garbage
";
        let found = numbers(|snapshot| collect_disks(snapshot, text));
        assert_eq!(number(&found, "skep_host_disk_reads", "sda"), 100);
        assert_eq!(number(&found, "skep_host_disk_read_bytes", "sda"), 2000 * 512);
        assert_eq!(number(&found, "skep_host_disk_write_seconds", "sda"), 70_000_000);
        assert_eq!(number(&found, "skep_host_disk_in_flight", "sda"), 3);
        assert_eq!(number(&found, "skep_host_disk_queue_seconds", "sda"), 160_000_000);
        assert_eq!(number(&found, "skep_host_disk_flush_seconds", "sda"), 13_000_000);
        assert_eq!(number(&found, "skep_host_disk_read_merges", "sda"), 5);
        assert_eq!(number(&found, "skep_host_disk_write_merges", "sda"), 6);
        assert_eq!(number(&found, "skep_host_disk_discards", "sda"), 7);
        assert_eq!(number(&found, "skep_host_disk_discard_merges", "sda"), 8);
        assert_eq!(number(&found, "skep_host_disk_discarded_bytes", "sda"), 24 * 512);
        assert_eq!(number(&found, "skep_host_disk_discard_seconds", "sda"), 9_000_000);
        assert_eq!(number(&found, "skep_host_disk_reads", "nvme0n1"), 1);
        let names: std::collections::BTreeSet<_> = found.iter().map(|it| it.1.as_str()).collect();
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["nvme0n1", "sda"]);
    }

    #[test]
    fn cpu_memory_load_and_interfaces_are_parsed() {
        let stat = "cpu  10 1 20 300 4 0 5 6 0 0\ncpu0 5 0 10 150 2 0 2 3 0 0\ncpu1 1\nintr 5\n";
        let found = numbers(|snapshot| collect_cpu(snapshot, stat));
        assert_eq!(number(&found, "skep_host_cpu_seconds", "idle"), 3_000_000_000);
        assert_eq!(number(&found, "skep_host_cpu_seconds", "steal"), 60_000_000);
        assert_eq!(number(&found, "skep_host_cpus", ""), 2);
        let found = numbers(|snapshot| {
            collect_memory(snapshot, "MemTotal:   1000 kB\nMemAvailable: 400 kB\nDirty: 3 kB\n");
            collect_load(snapshot, "1.25 0.5 0.1 2/345 678\n");
        });
        assert_eq!(number(&found, "skep_host_memory_available_bytes", ""), 400 * 1024);
        assert_eq!(number(&found, "skep_host_load1", ""), 1_250_000);
        let net = "Inter-|   Receive\n face |bytes\n  eth0: 100 2 1 0 0 0 0 0 700 8 0 3 0 0 0 0\n";
        let found = numbers(|snapshot| collect_interfaces(snapshot, net));
        assert_eq!(number(&found, "skep_host_network_sent_bytes", "eth0"), 700);
        assert_eq!(number(&found, "skep_host_network_errors", "eth0"), 4);
    }

    #[test]
    fn many_idle_devices_do_not_hide_the_busiest_disk_and_interface() {
        let (mut disks, mut net) = (String::new(), "Inter-|   Receive\n face |bytes\n".to_owned());
        for number in 0..2 * MAX_DEVICES {
            disks += &format!("7 {number} loop{number} 1 0 8 1 0 0 0 0 0 1 1\n");
            net += &format!("veth{number}: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n");
        }
        disks += "8 0 sda 500 0 8 1 400 0 8 0 0 1 1\n";
        net += "eth0: 100 0 0 0 0 0 0 0 700 0 0 0 0 0 0 0\n";
        let devices_of = |found: &[(String, String, i64)], name: &str| {
            found.iter().filter(|it| it.0 == name).count()
        };
        let found = numbers(|snapshot| collect_disks(snapshot, &disks));
        assert_eq!(number(&found, "skep_host_disk_reads", "sda"), 500);
        assert_eq!(devices_of(&found, "skep_host_disk_reads"), MAX_DEVICES);
        let found = numbers(|snapshot| collect_interfaces(snapshot, &net));
        assert_eq!(number(&found, "skep_host_network_sent_bytes", "eth0"), 700);
        assert_eq!(devices_of(&found, "skep_host_network_sent_bytes"), MAX_DEVICES);
    }

    #[test]
    fn absurdly_large_kernel_counters_saturate() {
        let most = u64::MAX;
        let stat = format!("cpu  1 0 1 1 0 0 0 {most} 0 0\ncpu0 1\n");
        let found = numbers(|snapshot| collect_cpu(snapshot, &stat));
        assert_eq!(number(&found, "skep_host_cpu_seconds", "steal"), i64::MAX);
        let memory = format!("MemAvailable: {most} kB\n");
        let found = numbers(|snapshot| collect_memory(snapshot, &memory));
        assert_eq!(number(&found, "skep_host_memory_available_bytes", ""), i64::MAX);
        let all = vec![most.to_string(); 17].join(" ");
        let found = numbers(|snapshot| collect_disks(snapshot, &format!("8 0 sda {all}\n")));
        assert_eq!(number(&found, "skep_host_disk_written_bytes", "sda"), i64::MAX);
        let net = format!("\n\neth0: {all}\n");
        let found = numbers(|snapshot| collect_interfaces(snapshot, &net));
        assert_eq!(number(&found, "skep_host_network_errors", "eth0"), i64::MAX);
    }

    #[test]
    fn page_cache_and_pressure_are_parsed() {
        let vmstat = "nr_free_pages 9\nnr_dirty 60\nnr_writeback 20\nnr_dirtied 7\n\
                      nr_dirty_threshold 160\nnr_dirty_background_threshold 80\n";
        let found = numbers(|snapshot| collect_page_cache(snapshot, vmstat));
        assert_eq!(number(&found, "skep_host_memory_dirty_ratio", ""), 500_000);
        let none = numbers(|snapshot| collect_page_cache(snapshot, "nr_dirty 60\n"));
        assert_eq!(none, []);
        let pressure = "some avg10=1.53 avg60=0.87 avg300=0.22 total=5000\n\
                        full avg10=0.00 avg60=0.00 avg300=0.00 total=700\n";
        let mut snapshot = Snapshot::default();
        collect_pressure(&mut snapshot, "memory", pressure);
        let stalled: Vec<_> =
            snapshot.iter().map(|it| (it.labels[1].1.clone(), it.value.clone())).collect();
        let expected = [("all", 700_000), ("some", 5_000_000)]
            .map(|(stalled, ns)| (stalled.to_owned(), Value::Number(ns)));
        assert_eq!(stalled, expected);
    }

    #[test]
    fn counters_of_the_running_host_are_plausible() {
        let mut snapshot = Snapshot::default();
        HostFigures.collect(&mut snapshot);
        let names: std::collections::BTreeSet<_> =
            snapshot.iter().map(|series| series.definition.name).collect();
        for name in [
            "skep_host_load1",
            "skep_host_cpus",
            "skep_host_memory_bytes",
            "skep_host_memory_dirty_ratio",
            "skep_host_clock_seconds",
        ] {
            assert!(names.contains(name), "{name}");
        }
    }
}
