//! `skep node disks`: shows the load of the disks of the hosts of all services, with the statistics
//! of `iostat -x`.

use crate::access::{Access, ClusterArgs, is_silence};
use crate::cmd::stats::{Fetcher, Series, check_reached, interval};
use crate::help::{Example, examples};
use crate::output::{
    OutputFormat, count, format, is_for_people, is_on_screen, is_one_value, print, render, say,
    size, table, warn,
};
use skep_stats::disks::{DiskLoad, disks};
use skep_types::{ClusterMap, ErrorCode, NodeId, Result};
use skep_wire::management::ListHosts;
use std::collections::HashMap;
use std::time::Duration;

const EXAMPLES: &[Example] = &[
    ("show the load of all disks, each second until Ctrl-C", "skep node disks"),
    ("show the disks of one host", "skep node disks --filter s1"),
    (
        "show the load of one interval, for a script",
        "skep node disks --once --interval 5s --output json",
    ),
];

/// Show the load of the disks of all services' hosts, as iostat -x does
///
/// Without --once, shows the load of each interval until Ctrl-C, the busiest disks first. The
/// kernels of the hosts count the requests, so the statistics include the load of other programs.
/// AWAIT is the mean time of a request, with its time in the queue; QUEUE is the mean number of
/// requests in progress; UTIL is the share of the time in which the disk had requests.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct DisksArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Time between two outputs, such as 1s or 500ms
    #[arg(long, default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Show one interval and exit
    #[arg(long)]
    once: bool,
    /// Show only the disks with this text in their name or in the name of their host
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
}

pub(crate) fn run(args: DisksArgs) -> Result<()> {
    let access = args.query.access(None)?;
    crate::cmd::block_on(async move { follow(&access, &args).await })
}

async fn follow(access: &Access, args: &DisksArgs) -> Result<()> {
    let hosts = hosts(access).await?;
    let fetcher = Fetcher::new(access.clone());
    let mut before = fetcher.fetch().await?;
    // An output format that consists of one value can show only one interval.
    let mut series = Series::begin(args.interval, args.once || is_one_value());
    // Retry: while the cluster does not answer, the command asks again after each interval. The
    // next report then also covers the time of the outage.
    while series.wait().await {
        let Some(now) = series.accept(fetcher.fetch().await)? else { continue };
        let host_of = |node: u32| host_name(&hosts, &now.map, NodeId::new(node));
        let mut loads = disks(&before.round, &now.round, host_of);
        let is_empty = loads.is_empty();
        loads.retain(|load| is_selected(load, args.filter.as_deref()));
        let report = Report { loads, is_empty, unreachable: now.unreachable.clone() };
        if series.is_once() {
            return report.print();
        }
        report.print_next()?;
        series.warn_of_unreachable(&report.unreachable);
        before = now;
    }
    Ok(())
}

/// Returns the names of hosts that the servers on these hosts have reported to management.
async fn hosts(access: &Access) -> Result<HashMap<NodeId, String>> {
    let hosts = match access.ask(&ListHosts {}).await {
        // A management leader of an older version cannot list the hosts of servers.
        Err(error) if error.code() == ErrorCode::Unsupported || is_silence(&error) => Vec::new(),
        list => list?.hosts,
    };
    Ok(hosts.into_iter().map(|it| (it.node, it.host)).collect())
}

/// Returns the name of the host of a service. Without this name, returns the host in the address of
/// the service, and without an address, the name of the service.
fn host_name(hosts: &HashMap<NodeId, String>, map: &ClusterMap, id: NodeId) -> String {
    if let Some(host) = hosts.get(&id).filter(|host| !host.is_empty()) {
        return host.clone();
    }
    let node = map.node(id);
    let address = node.and_then(|node| node.addresses.first());
    match address.and_then(|address| address.rsplit_once(':')) {
        Some((host, _)) => host.to_owned(),
        None => node.map_or_else(|| id.to_string(), |node| node.name.clone()),
    }
}

fn is_selected(load: &DiskLoad, filter: Option<&str>) -> bool {
    filter.is_none_or(|text| {
        let contains = |name: &str| name.to_lowercase().contains(&text.to_lowercase());
        contains(&load.host) || contains(&load.disk)
    })
}

/// The load of one interval, in the form of the output.
struct Report {
    loads: Vec<DiskLoad>,
    /// Whether no service has reported a disk, regardless of the filter.
    is_empty: bool,
    unreachable: Vec<String>,
}

impl Report {
    /// Prints the report as the only output of the command.
    fn print(&self) -> Result<()> {
        if !is_for_people() {
            // A failure must print nothing to standard output, and only one line to standard error.
            check_reached(&self.unreachable, self.is_empty)?;
            for service in &self.unreachable {
                warn(&format!("cannot get statistics from {service}"));
            }
        }
        print(&self.loads, |loads| as_text(loads, &self.unreachable))?;
        check_reached(&self.unreachable, self.is_empty)
    }

    /// Prints the report as one report of a series. On a terminal, the report replaces the previous
    /// report.
    fn print_next(&self) -> Result<()> {
        let text = || as_text(&self.loads, &self.unreachable);
        match format() {
            // Moves the cursor to the upper left corner, and clears the screen below the cursor.
            OutputFormat::Table if is_on_screen() => say(&format!("\x1b[H\x1b[J{}", text())),
            OutputFormat::Table => say(&(text() + "\n")),
            _ => print(&self.loads, |_| String::new()),
        }
    }
}

fn as_text(loads: &[DiskLoad], unreachable: &[String]) -> String {
    let titles = [
        "Host",
        "Disk",
        ">r/s",
        ">w/s",
        ">READ/s",
        ">WRITTEN/s",
        ">r await",
        ">w await",
        ">Queue",
        ">Util",
    ];
    let mut shown = table(&titles);
    let rate = |per_second: f64| per_second.round() as u64;
    for load in loads {
        shown.add_row([
            load.host.clone(),
            load.disk.clone(),
            count(rate(load.reads_per_second)),
            count(rate(load.writes_per_second)),
            size(rate(load.read_bytes_per_second)),
            size(rate(load.written_bytes_per_second)),
            time(load.read_await_us),
            time(load.write_await_us),
            format!("{:.1}", load.queue),
            format!("{:.0} %", load.utilisation * 100.0),
        ]);
    }
    let mut text = render(&shown);
    for service in unreachable {
        text += &format!("cannot get statistics from {service}\n");
    }
    text
}

/// Formats a time in microseconds: 850us, 4.2ms.
fn time(us: Option<f64>) -> String {
    match us {
        None => "-".into(),
        Some(us) if us < 1e3 => format!("{us:.0}us"),
        Some(us) => format!("{:.1}ms", us / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::ClusterId;

    fn load(host: &str, disk: &str) -> DiskLoad {
        DiskLoad {
            host: host.into(),
            disk: disk.into(),
            reads_per_second: 1_234.4,
            read_bytes_per_second: 5.0 * 1_048_576.0,
            read_await_us: Some(850.0),
            queue: 1.26,
            utilisation: 0.987,
            ..DiskLoad::default()
        }
    }

    #[test]
    fn disk_load_has_units_and_a_dash_for_unknown_times() {
        let shown = as_text(&[load("s1", "nvme0n1")], &["storage-2 [ID: 4]: away".into()]);
        for words in
            ["1.2k", "5.0MiB", "850us", "1.3", "99 %", "cannot get statistics from storage-2"]
        {
            assert!(shown.contains(words), "{words}: {shown}");
        }
        let row = shown.lines().nth(1).unwrap();
        assert!(row.split_whitespace().any(|cell| cell == "-"), "{shown}");
    }

    #[test]
    fn filter_for_hosts_and_disks_ignores_upper_and_lower_case() {
        let (one, other) = (load("s1", "sda"), load("s2", "nvme0n1"));
        assert!(is_selected(&one, None));
        assert!(is_selected(&one, Some("S1")) && !is_selected(&other, Some("S1")));
        assert!(is_selected(&other, Some("nvme")) && !is_selected(&one, Some("nvme")));
    }

    #[test]
    fn host_without_a_known_name_is_shown_by_its_service_id() {
        let map = ClusterMap::empty(ClusterId::default());
        let mut hosts = HashMap::new();
        assert_eq!(host_name(&hosts, &map, NodeId::new(7)), NodeId::new(7).to_string());
        hosts.insert(NodeId::new(7), "s7".to_owned());
        assert_eq!(host_name(&hosts, &map, NodeId::new(7)), "s7");
    }
}
