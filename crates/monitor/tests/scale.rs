//! Test of the monitor with a large cluster: 64 storage targets on 64 services, with load from
//! 1,000 clients, 100 users and 128 jobs. Management and the services are simulated, and their
//! counters grow with each reply.
//!
//! The test measures the memory and the processor time of the monitor, and the times of the
//! requests of the web page. The limits also apply to a program without optimisation, because the
//! monitor pauses in proportion to its work. The option `--nocapture` shows the measured values.

#![allow(clippy::unwrap_used, reason = "a test fails at an unexpected result")]

use skep_env::{TcpListener, block_on, spawn};
use skep_monitor::{MonitorSettings, WatchedCluster};
use skep_rpc::server::{IncomingStream, authenticate};
use skep_rpc::{Identity, Incoming, JoinToken, Outbox, Secrets};
use skep_types::map::{Capacity, Reachability};
use skep_types::{
    ClusterId, ClusterMap, MapVersion, Node, NodeId, NodeKind, Target, TargetId, TargetKind,
};
use skep_wire::Request;
use skep_wire::management::{GetMap, MapUpdate};
use skep_wire::node::{GetStatistics, Statistics, StatisticsSeries};
use skep_wire::traces::{ListTraces, TraceList};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

const SERVICES: u32 = 64;
const CLIENTS: u32 = 1000;
/// Each target has accounts for the 128 heaviest clients and jobs.
const NAMED: u32 = 128;
const USERS: u32 = 100;
const GROUPS: u32 = 10;
const STAGES: [&str; 4] = ["waiting", "processing", "disk", "network"];
const KINDS: [&str; 6] =
    ["write_chunk", "read_chunk", "sync_chunk", "truncate_chunk", "remove_chunks", "get_size"];
const MAX_BYTES: u64 = 512 << 20;
/// Share of one processor that the monitor may use.
const MAX_SHARE: f64 = 0.1;
/// The requests of the web page that the test measures: the state of the cluster, which the page
/// requests each second, and the list of clients by load.
const PAGES: [&str; 2] = ["/api/live", "/api/load?by=client&span=60"];
/// Number of times that the test sends each of these requests.
const REQUESTS: usize = 9;
/// Maximum median time of each of these requests, so that the page can show new values each second.
/// A single request may take longer, because it may wait for a round of the monitor.
const MAX_PAGE_TIME: Duration = Duration::from_secs(1);
/// Number of rounds after which the test checks the measured values.
const ROUNDS: usize = 4;
const PATIENCE: Duration = Duration::from_secs(300);
/// Name of the monitor's thread.
const MONITOR: &str = "scale-monitor";

fn cluster() -> ClusterId {
    ClusterId::new([1; 16])
}

fn series(metric: &str, labels: &[(&str, &str)]) -> StatisticsSeries {
    let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let metric = metric.to_owned();
    StatisticsSeries { metric, labels: labels.collect(), value: 1, buckets: Vec::new() }
}

fn histogram(metric: &str, labels: &[(&str, &str)]) -> StatisticsSeries {
    let buckets = (8..28).map(|bucket| (bucket, 1)).collect();
    StatisticsSeries { buckets, ..series(metric, labels) }
}

/// Returns the series of a target, by kind of request.
fn figures_of_kinds(target: &str) -> Vec<StatisticsSeries> {
    let mut all = Vec::new();
    for kind in KINDS {
        let labels = [("target", target), ("operation", kind)];
        for metric in ["operations", "operation_errors", "received_bytes", "sent_bytes"] {
            all.push(series(&format!("skep_storage_{metric}"), &labels));
        }
        all.push(histogram("skep_storage_operation_seconds", &labels));
        for stage in STAGES {
            let labels = [&labels[..], &[("stage", stage)]].concat();
            all.push(histogram("skep_storage_stage_seconds", &labels));
        }
    }
    all
}

/// Returns the series of a target, by cause of load.
fn figures_of_causes(number: u32, target: &str) -> Vec<StatisticsSeries> {
    let mut all = Vec::new();
    for (by, count) in [("client", NAMED), ("user", USERS), ("group", GROUPS), ("job", NAMED)] {
        for place in 0..count {
            let id = match by {
                // The heaviest clients differ from target to target.
                "client" => 1000 + (number * 16 + place) % CLIENTS,
                _ => 5000 + place,
            };
            let id = id.to_string();
            let labels = [("service", "storage"), ("target", target), ("by", by), ("id", &*id)];
            for metric in ["operations", "read_bytes", "written_bytes", "busy_seconds"] {
                all.push(series(&format!("skep_load_{metric}"), &labels));
            }
            for stage in STAGES.iter().filter(|_| by != "group") {
                let labels = [&labels[..], &[("stage", *stage)]].concat();
                all.push(series("skep_load_stage_seconds", &labels));
            }
        }
    }
    all
}

fn figures(id: u32) -> Statistics {
    let target = id.to_string();
    let mut series = figures_of_kinds(&target);
    series.extend(figures_of_causes(id, &target));
    Statistics { moment_ns: 0, incarnation: id.into(), page: String::new(), series }
}

fn node(id: u32, kind: NodeKind, address: &str) -> Node {
    Node {
        id: NodeId::new(id),
        kind,
        name: format!("node-{id}"),
        addresses: vec![address.to_owned()],
        domain: String::new(),
        reachability: Reachability::Online,
        version: "1".into(),
    }
}

fn target(id: u32) -> Target {
    let capacity = Capacity { total_bytes: 1 << 40, free_bytes: 1 << 39, ..Capacity::default() };
    let kind = TargetKind::Storage;
    let registered = Target::new(TargetId::new(id), kind, NodeId::new(id), "/disk");
    Target { reachability: Reachability::Online, capacity, ..registered }
}

/// Returns the map of a cluster. `addresses` are the addresses of management and of the services.
fn map(addresses: &[String]) -> ClusterMap {
    let mut map = ClusterMap::empty(cluster());
    map.version = MapVersion::new(5);
    map.formatted = true;
    map.nodes.push(node(1, NodeKind::Management, &addresses[0]));
    for (id, address) in (2..).zip(&addresses[1..]) {
        map.nodes.push(node(id, NodeKind::Storage, address));
        map.targets.push(target(id));
    }
    map.nodes.extend((0..CLIENTS).map(|number| node(1000 + number, NodeKind::Client, "")));
    map
}

/// A simulated management or storage service.
struct Fake {
    identity: Identity,
    map: Rc<ClusterMap>,
    figures: RefCell<Statistics>,
}

impl Fake {
    fn new(id: u32, secrets: &Secrets, map: &Rc<ClusterMap>) -> Rc<Self> {
        // The monitor asks management for statistics, too. The simulated management replies like a
        // storage service.
        let kind = if id == 1 { NodeKind::Management } else { NodeKind::Storage };
        let (secrets, node) = (secrets.clone(), NodeId::new(id));
        let identity = Identity { cluster: cluster(), secrets, node, kind };
        Rc::new(Self { identity, map: Rc::clone(map), figures: RefCell::new(figures(id)) })
    }

    fn reply(&self, Incoming { header, .. }: &Incoming, outbox: &Rc<Outbox>) {
        match header.message {
            GetMap::ID => outbox.reply(header, &MapUpdate { map: Some((*self.map).clone()) }),
            GetStatistics::ID => {
                let mut figures = self.figures.borrow_mut();
                figures.moment_ns = skep_env::now().as_nanos() as u64;
                for series in &mut figures.series {
                    series.value += 1_000_000;
                    series.buckets.iter_mut().for_each(|(_, count)| *count += 7);
                }
                outbox.reply(header, &*figures);
            }
            ListTraces::ID => outbox.reply(header, &TraceList::default()),
            other => panic!("unexpected message {other}"),
        }
    }
}

/// Serves all simulated services for ever. When all of them listen, sends the address of management
/// to `started`.
fn serve(secrets: &Secrets, started: &mpsc::Sender<String>) {
    let (secrets, started) = (secrets.clone(), started.clone());
    let serving = async move {
        let listeners = (0..=SERVICES).map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
        let listeners: Vec<_> = listeners.collect();
        let address = |it: &TcpListener| it.local_address().unwrap().to_string();
        let addresses: Vec<_> = listeners.iter().map(address).collect();
        let map = Rc::new(map(&addresses));
        for (id, listener) in (1..).zip(listeners) {
            spawn(accept(listener, Fake::new(id, &secrets, &map))).detach();
        }
        started.send(addresses[0].clone()).unwrap();
        std::future::pending::<()>().await;
    };
    block_on(serving).unwrap();
}

async fn accept(listener: TcpListener, fake: Rc<Fake>) {
    while let Ok(stream) = listener.accept().await {
        let fake = Rc::clone(&fake);
        spawn(async move {
            let peer = authenticate(&stream, &fake.identity, 1, |_| Ok(())).await.unwrap();
            let (mut requests, outbox) = IncomingStream::new(stream, peer.kind);
            while let Ok(Some(incoming)) = requests.next().await {
                fake.reply(&incoming, &outbox);
            }
        })
        .detach();
    }
}

/// Returns one of the memory values of this process in bytes, such as `VmHWM`, the highest use of
/// memory so far.
fn memory(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Returns the processor time that the monitor's thread has used.
fn processor_time() -> Duration {
    let of_task = |task: std::io::Result<std::fs::DirEntry>| {
        let task = task.ok()?.path();
        let name = std::fs::read_to_string(task.join("comm")).ok()?;
        let times = std::fs::read_to_string(task.join("schedstat")).ok()?;
        (name.trim() == MONITOR).then(|| times.split(' ').next()?.parse::<u64>().ok())?
    };
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    Duration::from_nanos(tasks.filter_map(of_task).sum())
}

/// Sends a request of the web page to the monitor. Returns the reply, and the time until the reply.
fn request(address: &Path, page: &str) -> Option<(serde_json::Value, Duration)> {
    let address = std::fs::read_to_string(address).ok()?;
    let begin = Instant::now();
    let mut stream = TcpStream::connect(address.trim()).ok()?;
    stream.write_all(format!("GET {page} HTTP/1.0\r\n\r\n").as_bytes()).ok()?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).ok()?;
    let took = begin.elapsed();
    let (_, body) = reply.split_once("\r\n\r\n")?;
    Some((serde_json::from_str(body).ok()?, took))
}

/// Asks the monitor for the current state of the cluster. Returns the end of the newest frame in
/// the reply. `None` means that the monitor has no complete frame yet.
fn newest_frame(address: &Path) -> Option<u64> {
    request(address, PAGES[0])?.0["frame_ms"].as_u64().filter(|frame| *frame > 0)
}

/// Sends each request of [`PAGES`] several times, and checks that the median of its times is within
/// the limit.
fn check_page_times(address: &Path) {
    for page in PAGES {
        let mut times = Vec::new();
        for _ in 0..REQUESTS {
            let (reply, took) = request(address, page).unwrap();
            assert!(reply.is_object(), "{page}: {reply}");
            times.push(took);
        }
        times.sort();
        let (median, longest) = (times[REQUESTS / 2], times[REQUESTS - 1]);
        println!("{page}: {median:?} in the median, {longest:?} at most");
        assert!(median < MAX_PAGE_TIME, "{page}: {median:?}");
    }
}

fn start_monitor(directory: &Path, token: JoinToken) {
    let token_file = directory.join("token");
    std::fs::write(&token_file, token.to_text()).unwrap();
    let settings = MonitorSettings {
        directory: directory.join("monitor"),
        listen: "127.0.0.1:0".into(),
        ..MonitorSettings::default()
    };
    let cluster = WatchedCluster { name: "main".into(), token, token_file };
    let body = move || skep_monitor::run(&settings, &[cluster]);
    skep_env::spawn_thread(MONITOR.into(), None, body).unwrap();
}

#[test]
fn monitor_of_a_large_cluster_stays_within_its_limits() {
    let secrets = Secrets::generate();
    let (sender, started) = mpsc::channel();
    let of_fakes = secrets.clone();
    let fakes = move || serve(&of_fakes, &sender);
    skep_env::spawn_thread("scale-fakes".into(), None, fakes).unwrap();
    let addresses = vec![started.recv_timeout(PATIENCE).unwrap()];
    let before = memory("VmRSS");
    let directory = tempfile::tempdir().unwrap();
    start_monitor(directory.path(), JoinToken { cluster: cluster(), secrets, addresses });

    let address = directory.path().join("monitor/address");
    let begin = Instant::now();
    let (mut frames, mut since) = (BTreeSet::new(), None);
    while frames.len() < ROUNDS {
        assert!(begin.elapsed() < PATIENCE, "the monitor has only the frames {frames:?}");
        // Send a request each second, as the web page does, because each request is work for the
        // monitor.
        std::thread::park_timeout(Duration::from_secs(1));
        if !newest_frame(&address).is_some_and(|frame| frames.insert(frame)) {
            continue;
        }
        // The first round has no earlier round for a comparison, so the pause after it is short.
        if frames.len() == 2 {
            since = Some((Instant::now(), processor_time()));
        }
        let mebibytes = memory("VmHWM") >> 20;
        println!("{:?} after the start: {mebibytes} MiB of memory", begin.elapsed());
    }
    let (since, used) = since.unwrap();
    let used = processor_time().saturating_sub(used);
    let share = used.as_secs_f64() / since.elapsed().as_secs_f64();
    let bytes = memory("VmHWM").saturating_sub(before);
    let round = since.elapsed().as_secs_f64() / (ROUNDS - 2) as f64;
    println!("{share:.3} of a processor, {} MiB, a round each {round:.1} s", bytes >> 20);
    assert!(bytes < MAX_BYTES, "{} MiB", bytes >> 20);
    assert!(share < MAX_SHARE, "{share:.3} of a processor");
    check_page_times(&address);
}
