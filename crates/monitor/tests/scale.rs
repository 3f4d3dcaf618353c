//! Test of the monitor with a large cluster: 64 storage targets on 64 services, with load from
//! 1,000 clients, 100 users and 128 jobs. Management and the services are simulated, and their
//! counters grow with each reply.
//!
//! The test measures the memory and the processor time of the monitor, the length of its rounds,
//! and the times of the requests of the web page. The limits also apply to a program without
//! optimisation, because the monitor pauses in proportion to its work. The option `--nocapture`
//! shows the measured values.
//!
//! If the environment variable `SKEP_SCALE_COMMAND` contains a shell command, the test runs this
//! command at its end, with the address of the web page as the last argument. The command must
//! succeed.

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
use std::cell::{Cell, RefCell};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
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
/// The request for the state of the cluster, which the web page sends each second.
const LIVE: &str = "/api/live";
/// The requests of the web page that the test measures: all requests of the first view
/// (`overview` in `page/views.js`), and the request for the list of clients by load.
const VIEWS: [(&str, &[&str]); 2] = [
    (
        "the first view",
        &[
            "/api/clusters",
            LIVE,
            "/api/history?by=node&service=storage&span=300&points=300",
            "/api/history?by=node&service=metadata&span=300&points=300",
        ],
    ),
    ("the list of clients", &["/api/load?by=client&span=60"]),
];
/// Number of times that the test sends the requests of each view.
const REQUESTS: usize = 9;
/// Maximum median time of the requests of a view, so that the page can show new values each second.
/// A single request may take longer, because it may wait for a round of the monitor.
const MAX_VIEW_TIME: Duration = Duration::from_secs(1);
/// Number of rounds after which the test checks the measured values.
const ROUNDS: usize = 4;
/// Maximum length of a round, from its first request until the page can show its values. With this
/// limit, a monitor that may use more processor time could make a round each second. A build that
/// is not fully optimized gets twice the time.
const MAX_ROUND: Duration = Duration::from_secs(if cfg!(debug_assertions) { 2 } else { 1 });
/// Pause between two requests for the values of a round that has not ended yet. Each request is
/// work for the monitor and makes the round longer.
const PAUSE: Duration = Duration::from_millis(20);
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

/// Returns the time in milliseconds since 1970, as in the replies of the monitor.
fn wall_ms() -> u64 {
    let now = skep_env::wall_time();
    u64::try_from(now.seconds).unwrap() * 1000 + u64::from(now.nanoseconds / 1_000_000)
}

/// Follows the rounds of the monitor. A round begins with a request for the map, and sends one
/// request to each service immediately after it.
struct RoundWatch {
    /// The beginning of the round, in milliseconds since 1970.
    begin_ms: Cell<u64>,
    /// Number of services that have not replied in this round yet.
    left: Cell<u32>,
    /// The watch sends the beginning of each round here when the last service has replied.
    begins: mpsc::Sender<u64>,
}

impl RoundWatch {
    fn on_map_request(&self) {
        self.begin_ms.set(wall_ms());
        // Management is a service, too.
        self.left.set(SERVICES + 1);
    }

    fn on_reply(&self) {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        if left == 1 {
            // The send fails if the test has ended.
            self.begins.send(self.begin_ms.get()).ok();
        }
    }
}

/// A simulated management or storage service.
struct Fake {
    identity: Identity,
    map: Rc<ClusterMap>,
    watch: Rc<RoundWatch>,
    figures: RefCell<Statistics>,
}

impl Fake {
    fn new(id: u32, secrets: &Secrets, map: &Rc<ClusterMap>, watch: &Rc<RoundWatch>) -> Rc<Self> {
        // The monitor asks management for statistics, too. The simulated management replies like a
        // storage service.
        let kind = if id == 1 { NodeKind::Management } else { NodeKind::Storage };
        let (secrets, node) = (secrets.clone(), NodeId::new(id));
        let identity = Identity { cluster: cluster(), secrets, node, kind };
        let (map, watch) = (Rc::clone(map), Rc::clone(watch));
        Rc::new(Self { identity, map, watch, figures: RefCell::new(figures(id)) })
    }

    fn reply(&self, Incoming { header, .. }: &Incoming, outbox: &Rc<Outbox>) {
        match header.message {
            GetMap::ID => {
                self.watch.on_map_request();
                outbox.reply(header, &MapUpdate { map: Some((*self.map).clone()) });
            }
            GetStatistics::ID => {
                let mut figures = self.figures.borrow_mut();
                figures.moment_ns = skep_env::now().as_nanos() as u64;
                for series in &mut figures.series {
                    series.value += 1_000_000;
                    series.buckets.iter_mut().for_each(|(_, count)| *count += 7);
                }
                outbox.reply(header, &*figures);
                self.watch.on_reply();
            }
            ListTraces::ID => outbox.reply(header, &TraceList::default()),
            other => panic!("unexpected message {other}"),
        }
    }
}

/// Serves all simulated services for ever. When all of them listen, sends the address of management
/// to `started`. Sends the beginning of each round to `begins`, as [`RoundWatch`] describes.
fn serve(secrets: &Secrets, started: &mpsc::Sender<String>, begins: &mpsc::Sender<u64>) {
    let (secrets, started) = (secrets.clone(), started.clone());
    let (begin_ms, left, begins) = (Cell::default(), Cell::default(), begins.clone());
    let watch = Rc::new(RoundWatch { begin_ms, left, begins });
    let serving = async move {
        let listeners = (0..=SERVICES).map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
        let listeners: Vec<_> = listeners.collect();
        let address = |it: &TcpListener| it.local_address().unwrap().to_string();
        let addresses: Vec<_> = listeners.iter().map(address).collect();
        let map = Rc::new(map(&addresses));
        for (id, listener) in (1..).zip(listeners) {
            spawn(accept(listener, Fake::new(id, &secrets, &map, &watch))).detach();
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
    request(address, LIVE)?.0["frame_ms"].as_u64().filter(|frame| *frame > 0)
}

/// Waits until the monitor shows the values of the round that began at `begin_ms`. Returns the
/// length of the round.
fn length_of_round(address: &Path, begin_ms: u64) -> Duration {
    let start = Instant::now();
    while newest_frame(address).is_none_or(|frame| frame < begin_ms) {
        assert!(start.elapsed() < PATIENCE, "the round from {begin_ms} has no frame");
        std::thread::park_timeout(PAUSE);
    }
    Duration::from_millis(wall_ms().saturating_sub(begin_ms))
}

/// Sends the requests of each view in [`VIEWS`] several times, one request after the other, and
/// checks that the median of their times is within the limit.
fn check_view_times(address: &Path) {
    for (view, pages) in VIEWS {
        let time_of = |page: &&str| {
            let (reply, took) = request(address, page).unwrap();
            assert!(reply.is_object(), "{page}: {reply}");
            took
        };
        let mut times: Vec<Duration> =
            (0..REQUESTS).map(|_| pages.iter().map(&time_of).sum()).collect();
        times.sort();
        let (median, longest) = (times[REQUESTS / 2], times[REQUESTS - 1]);
        println!("{view}: {median:?} in the median, {longest:?} at most");
        assert!(median < MAX_VIEW_TIME, "{view}: {median:?}");
    }
}

/// Runs the command in `SKEP_SCALE_COMMAND`, if this variable is set, with the address of the web
/// page.
fn run_command(address: &Path) {
    let Ok(command) = std::env::var("SKEP_SCALE_COMMAND") else { return };
    let address = std::fs::read_to_string(address).unwrap();
    let line = format!("{command} http://{}/", address.trim());
    let mut limited = Command::new("timeout");
    limited.arg(PATIENCE.as_secs().to_string()).args(["sh", "-c", &line]);
    let status = limited.status().unwrap();
    assert!(status.success(), "{line}: {status}");
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
    let (begins, rounds) = mpsc::channel();
    let of_fakes = secrets.clone();
    let fakes = move || serve(&of_fakes, &sender, &begins);
    skep_env::spawn_thread("scale-fakes".into(), None, fakes).unwrap();
    let addresses = vec![started.recv_timeout(PATIENCE).unwrap()];
    let before = memory("VmRSS");
    let directory = tempfile::tempdir().unwrap();
    start_monitor(directory.path(), JoinToken { cluster: cluster(), secrets, addresses });

    let address = directory.path().join("monitor/address");
    let start = Instant::now();
    let (mut lengths, mut since) = (Vec::new(), None);
    while lengths.len() < ROUNDS {
        assert!(start.elapsed() < PATIENCE, "the monitor has made only the rounds {lengths:?}");
        // Send a request each second, as the web page does, because each request is work for the
        // monitor.
        let Ok(begin_ms) = rounds.recv_timeout(Duration::from_secs(1)) else {
            newest_frame(&address);
            continue;
        };
        lengths.push(length_of_round(&address, begin_ms));
        // The pause after the first round is short, because the monitor has no processor time of an
        // earlier round.
        if lengths.len() == 2 {
            since = Some((Instant::now(), processor_time()));
        }
        let mebibytes = memory("VmHWM") >> 20;
        println!("{:?} after the start: {mebibytes} MiB of memory", start.elapsed());
    }
    let (since, used) = since.unwrap();
    let used = processor_time().saturating_sub(used);
    let share = used.as_secs_f64() / since.elapsed().as_secs_f64();
    let bytes = memory("VmHWM").saturating_sub(before);
    let interval = since.elapsed().as_secs_f64() / (ROUNDS - 2) as f64;
    println!("{share:.3} of a processor, {} MiB, a round each {interval:.1} s", bytes >> 20);
    println!("lengths of the rounds: {lengths:?}");
    assert!(bytes < MAX_BYTES, "{} MiB", bytes >> 20);
    assert!(share < MAX_SHARE, "{share:.3} of a processor");
    // Other programs on the host make a round longer, so only the shortest round must be within the
    // limit. The first round also opens the connections.
    let shortest = lengths[1..].iter().min().unwrap();
    assert!(*shortest < MAX_ROUND, "rounds of {lengths:?}");
    check_view_times(&address);
    run_command(&address);
}
