//! The load of the nodes and their targets in the XML form of Ganglia's `gmond`, which `gmetad`
//! reads from a TCP port. `gmetad` stores the metrics, and adds them up for the cluster.
//!
//! Each node of Skep that is a server is a host of Ganglia. A server that did not reply to the
//! monitor has no metrics, and counts as down. All programs that can connect to the
//! port can read the metrics, as with `gmond`, so the metrics name no users and no jobs.
//!
//! The metrics about the machine also have the names that `gmond` uses, such as `load_one`, because
//! the web page of Ganglia shows metrics with these names by default. `gmetad` adds up these
//! metrics for the cluster, so only one of the servers on a machine has them.

use crate::frame::{Dimension, Frame, Measure};
use crate::limits::{GANGLIA_PATIENCE, GANGLIA_SPAN_MS, MAX_GANGLIA_CONNECTIONS};
use crate::live::{MonitorState, sum_of};
use crate::now_ms;
use crate::settings::GangliaSettings;
use skep_env::local::Semaphore;
use skep_env::{MessagePart, TcpListener};
use skep_exporter::failed_accepts::FailedAccepts;
use skep_stats::why::host_address;
use skep_stats::{Round, series_with};
use skep_types::map::{Node, Reachability};
use skep_types::{ClusterMap, Error, NodeKind, Result};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::rc::Rc;
use std::time::Duration;

/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// Interval in seconds at which Ganglia expects a new value. A host without a new value for four
/// intervals counts as down.
const VALUE_INTERVAL_S: u64 = 20;

/// Listens on the address in the settings. Returns `None` if the address is empty.
///
/// # Errors
/// Errors of the kernel, which name the setting.
pub(crate) fn listen(settings: &GangliaSettings) -> Result<Option<TcpListener>> {
    let address = &settings.listen;
    if address.is_empty() {
        return Ok(None);
    }
    let named = |error: std::io::Error| {
        Error::from(error)
            .within(format!("cannot listen on the address {address} of `ganglia.listen`"))
    };
    let listener = TcpListener::bind(address).map_err(named)?;
    let address = listener.local_address().map_err(named)?;
    tracing::info!("gmetad can read the load at {address}");
    Ok(Some(listener))
}

/// Sends the metrics to each program that connects, until this future is dropped.
pub(crate) async fn serve(listener: TcpListener, state: Rc<RefCell<MonitorState>>) {
    let permits = Semaphore::new(MAX_GANGLIA_CONNECTIONS);
    // Read the address now, because the read needs a file descriptor, and the process may have no
    // free descriptor later.
    let address = listener.local_address().map_or_else(|_| "?".into(), |it| it.to_string());
    let failed = FailedAccepts::new(format!("the page for gmetad at {address}"));
    let mut made = (0, String::new());
    // Retry: after a failed accept, for example because no file descriptor is free, the monitor
    // accepts again after `ACCEPT_PAUSE`, without limit.
    loop {
        let permit = permits.acquire().await;
        match listener.accept().await {
            Ok(stream) => {
                // The monitor computes the document at most once per second, so that a flood of
                // connections does not delay its rounds.
                let now_s = now_ms() / 1000;
                if made.0 != now_s {
                    made = (now_s, text(&state.borrow()));
                }
                let text = made.1.clone();
                let sending = async move {
                    let parts = vec![MessagePart::Bytes(text.into_bytes())];
                    // Ignore the result, because a program that has ended the connection needs no
                    // reply.
                    let _ = skep_env::timeout(GANGLIA_PATIENCE, stream.send(parts)).await;
                    drop(permit);
                };
                skep_env::spawn(sending).detach();
            }
            Err(error) => {
                failed.note(&error);
                skep_env::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn text(state: &MonitorState) -> String {
    let now = now_ms();
    // Rounds may be further apart than the usual interval of the queries, so the span must cover at
    // least two rounds.
    let span_ms = GANGLIA_SPAN_MS.max(2 * state.interval_ms);
    let frames = state.history.recent().iter();
    let new = frames.filter(|it| it.start_ms + it.span_ms + span_ms > now);
    let sum = Frame::sum_with_newest_readings(new);
    document((&sum, state.replies()), state.collected.map.as_ref(), now)
}

/// Returns the document for the sum of the newest frames, and for the newest replies of the
/// services.
fn document((frame, replies): (&Frame, &Round), map: Option<&ClusterMap>, now_ms: u64) -> String {
    let cluster = map.map_or_else(String::new, |map| map.cluster.to_string());
    let now_s = now_ms / 1000;
    let age_s = now_ms.saturating_sub(frame.start_ms + frame.span_ms) / 1000;
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\" standalone=\"yes\"?>\n\
         <GANGLIA_XML VERSION=\"3.7.2\" SOURCE=\"gmond\">\n\
         <CLUSTER NAME=\"skep {cluster}\" LOCALTIME=\"{now_s}\" OWNER=\"unspecified\" \
         LATLONG=\"unspecified\" URL=\"unspecified\">\n"
    );
    if let Some(map) = map {
        let mut machines = BTreeSet::new();
        for node in servers(map) {
            let machine = match has_replied(frame, node) && machines.insert(host_address(node)) {
                true => machine_metrics(frame, replies, node.id.raw()),
                false => Vec::new(),
            };
            add_host(&mut text, frame, map, (node, machine.as_slice()), (now_s, age_s));
        }
    }
    text += "</CLUSTER>\n</GANGLIA_XML>\n";
    text
}

fn servers(map: &ClusterMap) -> impl Iterator<Item = &Node> {
    map.nodes.iter().filter(|node| node.kind != NodeKind::Client)
}

fn add_host(
    text: &mut String,
    frame: &Frame,
    map: &ClusterMap,
    (node, machine): (&Node, &[Metric]),
    (now_s, age_s): (u64, u64),
) {
    let address = node.addresses.first().map_or("", String::as_str);
    let ip = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
    let replied = has_replied(frame, node);
    // A host counts as down after four intervals without a value.
    let is_down = !replied || node.reachability == Reachability::Offline;
    let silent_s = if is_down { 5 * VALUE_INTERVAL_S } else { age_s };
    let _ = writeln!(
        text,
        "<HOST NAME=\"{}\" IP=\"{}\" TAGS=\"\" REPORTED=\"{}\" TN=\"{silent_s}\" \
         TMAX=\"{VALUE_INTERVAL_S}\" DMAX=\"0\" LOCATION=\"unspecified\" GMOND_STARTED=\"0\">",
        host_name(map, node),
        plain(ip),
        now_s.saturating_sub(silent_s)
    );
    if replied {
        add_metrics(text, frame, map, (node, machine), age_s);
    }
    *text += "</HOST>\n";
}

/// Returns the name of a node as a host of Ganglia. Nodes of different kinds may have the same
/// name, but hosts of Ganglia may not.
fn host_name(map: &ClusterMap, node: &Node) -> String {
    let name = plain(&node.name);
    match servers(map).filter(|it| plain(&it.name) == name).count() {
        1 => name,
        _ => format!("{name}.n{}", node.id.raw()),
    }
}

/// Whether a server has replied to the monitor. All services report the memory of their host, so
/// the metrics of a service without this reading are unknown.
fn has_replied(frame: &Frame, node: &Node) -> bool {
    reading(frame, Measure::Memory, node.id.raw()).is_some()
}

/// A metric of a machine under the name that `gmond` uses: name, value, unit and group.
type Metric = (&'static str, f64, &'static str, &'static str);

/// Returns the metrics of the machine on which the service `node` runs. Leaves out unknown
/// metrics.
fn machine_metrics(frame: &Frame, replies: &Round, node: u32) -> Vec<Metric> {
    let reply = replies.iter().find(|reply| reply.node == node);
    let newest = |metric: &str| {
        let found = series_with(reply?, metric).iter().find(|series| series.metric == metric);
        found.map(|series| series.value as f64)
    };
    let kib = |measure| reading(frame, measure, node).map(|bytes| bytes / 1024.0);
    let used = reading(frame, Measure::CpuPermille, node).map(|permille| permille / 10.0);
    let all = [
        // The value of the metric is in millionths.
        ("load_one", newest("skep_host_load1").map(|load| load / 1e6), " ", "load"),
        ("cpu_num", newest("skep_host_cpus"), "CPUs", "cpu"),
        ("cpu_idle", used.map(|percent| 100.0 - percent), "%", "cpu"),
        ("mem_total", kib(Measure::Memory), "KB", "memory"),
        ("mem_free", kib(Measure::MemoryFree), "KB", "memory"),
    ];
    let known = all.into_iter();
    known.filter_map(|(name, value, units, group)| Some((name, value?, units, group))).collect()
}

fn add_metrics(
    text: &mut String,
    frame: &Frame,
    map: &ClusterMap,
    (node, machine): (&Node, &[Metric]),
    age_s: u64,
) {
    let mut add = |name: &str, value: f64, units: &str, group: &str| {
        let _ = writeln!(
            text,
            "<METRIC NAME=\"{name}\" VAL=\"{value:.3}\" TYPE=\"double\" UNITS=\"{units}\" \
             TN=\"{age_s}\" TMAX=\"{VALUE_INTERVAL_S}\" DMAX=\"0\" SLOPE=\"both\">\
             <EXTRA_DATA><EXTRA_ELEMENT NAME=\"GROUP\" VAL=\"{group}\"/></EXTRA_DATA></METRIC>"
        );
    };
    for &(name, value, units, group) in machine {
        add(name, value, units, group);
    }
    let id = node.id.raw();
    for (name, value, units) in figures(frame, Dimension::Node, id) {
        add(&format!("skep_{name}"), value, units, "skep");
    }
    for (measure, name, units, divisor) in [
        (Measure::CpuPermille, "skep_host_cpu", "%", 10.0),
        (Measure::MemoryFree, "skep_host_memory_available", "bytes", 1.0),
        (Measure::Memory, "skep_host_memory", "bytes", 1.0),
    ] {
        if let Some(value) = reading(frame, measure, id) {
            add(name, value / divisor, units, "skep host");
        }
    }
    for target in map.targets.iter().filter(|target| target.node == node.id) {
        let id = target.id.raw();
        let group = format!("skep target {id}");
        for (name, value, units) in figures(frame, Dimension::Target, id) {
            add(&format!("skep_t{id}_{name}"), value, units, &group);
        }
        for (measure, name) in [(Measure::FreeBytes, "free"), (Measure::SizeBytes, "size")] {
            if let Some(value) = reading(frame, measure, id) {
                add(&format!("skep_t{id}_{name}"), value, "bytes", &group);
            }
        }
    }
}

/// Returns the metrics of the load of a node or target: name, mean over the frame, and unit.
fn figures(frame: &Frame, dimension: Dimension, id: u32) -> [(&'static str, f64, &'static str); 6] {
    let load = sum_of(frame, dimension, id);
    let rate = |count: u64| count as f64 * 1000.0 / frame.span_ms.max(1) as f64;
    let mean = |sum: u64| sum as f64 / frame.samples.max(1) as f64;
    [
        ("operations", rate(load.operations), "operations/s"),
        ("errors", rate(load.errors), "errors/s"),
        ("read", rate(load.read_bytes), "bytes/s"),
        ("written", rate(load.written_bytes), "bytes/s"),
        ("queued", mean(load.queued.sum), "requests"),
        ("busy", mean(load.busy.sum), "requests"),
    ]
}

fn reading(frame: &Frame, measure: Measure, id: u32) -> Option<f64> {
    let level = frame.readings.get(&(measure, id))?;
    Some(level.sum as f64 / frame.samples.max(1) as f64)
}

/// Returns a name in which all characters are harmless in XML and in the name of a file: `gmetad`
/// uses the names of hosts as names of directories.
fn plain(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':');
    let plain = name.replace(|c| !is_plain(c), "_");
    match plain.strip_prefix('.') {
        Some(rest) => format!("_{rest}"),
        None if plain.is_empty() => "_".into(),
        None => plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Level;
    use crate::frame::tests::frame;
    use skep_stats::ServiceFigures;
    use skep_types::{ClusterId, NodeId};
    use skep_wire::node::{Statistics, StatisticsSeries};

    fn node(id: u32, kind: NodeKind, name: &str, reachability: Reachability) -> Node {
        Node {
            id: NodeId::new(id),
            kind,
            name: name.into(),
            addresses: vec!["[2001:db8::1]:7410".into()],
            domain: String::new(),
            reachability,
            version: String::new(),
        }
    }

    fn map() -> ClusterMap {
        let mut map = ClusterMap::empty(ClusterId::default());
        let name = "../<s'1\"&\u{7}>";
        map.nodes = vec![
            node(2, NodeKind::Storage, name, Reachability::Online),
            node(3, NodeKind::Storage, "two", Reachability::Offline),
            node(4, NodeKind::Client, "two", Reachability::Online),
            node(5, NodeKind::Metadata, "two", Reachability::Online),
            node(6, NodeKind::Metadata, "silent", Reachability::Online),
        ];
        map
    }

    #[test]
    fn ganglia_document_has_each_server_with_its_load() {
        let mut sum = frame(1_800_000_000, 30);
        sum.add(&frame(1_800_000_001, 50));
        sum.readings.insert((Measure::CpuPermille, 2), Level { sum: 500, max: 300 });
        for node in [2, 3, 5] {
            sum.readings.insert((Measure::Memory, node), Level { sum: 16, max: 8 });
        }
        let text = document((&sum, &replies()), Some(&map()), 1_800_000_007_000);
        let xml = roxmltree::Document::parse(&text).unwrap();
        let hosts: Vec<_> = xml.descendants().filter(|it| it.has_tag_name("HOST")).collect();
        let of =
            |name: &str| hosts.iter().map(|it| it.attribute(name).unwrap()).collect::<Vec<_>>();
        assert_eq!(of("NAME"), ["_.__s_1____", "two.n3", "two.n5", "silent"]);
        assert_eq!(of("TN"), ["5", "100", "5", "100"], "offline and silent hosts are down");
        assert_eq!(of("IP")[0], "2001:db8::1");
        let value = |host: usize, name: &str| {
            let metric = hosts[host].children().find(|it| it.attribute("NAME") == Some(name));
            metric.and_then(|it| it.attribute("VAL")).map(|it| it.parse::<f64>().unwrap())
        };
        assert_eq!(value(0, "skep_operations"), Some(40.0));
        assert_eq!(value(0, "skep_written"), Some(40.0 * 4096.0));
        assert_eq!(value(0, "skep_queued"), Some(3.0));
        assert_eq!(value(0, "skep_host_cpu"), Some(25.0));
        assert_eq!(value(0, "skep_host_memory_available"), None, "not measured");
        assert_eq!(value(2, "skep_operations"), Some(0.0));
        assert_eq!(value(3, "skep_operations"), None, "unknown");
        let of_machine = ["load_one", "cpu_num", "cpu_idle", "mem_total", "mem_free"];
        let known = [Some(1.5), Some(8.0), Some(75.0), Some(8.0 / 1024.0), None];
        assert_eq!(of_machine.map(|name| value(0, name)), known.map(|it| it.map(rounded)));
        assert_eq!(of_machine.map(|name| value(1, name)), [None; 5], "on the same machine");
    }

    /// Rounds a value as the document does.
    fn rounded(value: f64) -> f64 {
        (value * 1000.0).round() / 1000.0
    }

    /// Returns the newest replies, which consist of the reply of service 2.
    fn replies() -> Round {
        let series = [("skep_host_cpus", 8), ("skep_host_load1", 1_500_000)];
        let series = series.map(|(metric, value)| StatisticsSeries {
            metric: metric.into(),
            labels: Vec::new(),
            value,
            buckets: Vec::new(),
        });
        let (page, series) = (String::new(), series.to_vec());
        let statistics = Statistics { moment_ns: 1, incarnation: 1, page, series };
        vec![ServiceFigures { node: 2, name: String::new(), statistics }]
    }

    #[test]
    fn document_is_valid_xml_if_the_monitor_has_no_cluster_map() {
        let text = document((&Frame::default(), &Round::new()), None, 1_800_000_007_000);
        let xml = roxmltree::Document::parse(&text).unwrap();
        assert!(xml.descendants().any(|it| it.has_tag_name("CLUSTER")));
    }
}
