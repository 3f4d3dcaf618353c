//! The monitor's history, alerts, web page and HTTP interface, on real clusters.

use rustix::process::Signal;
use serde_json::Value;
use skep_testkit::object_store::Authority;
use skep_testkit::program::{Finished, finish, run};
use skep_testkit::view::{RULES_OF_THE_HOST, Typed};
use skep_testkit::{
    Cluster, Mounted, PATIENCE, Scratch, Shape, Transport, cluster, eventually, wait_for,
};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

const MIB: usize = 1 << 20;

fn monitored() -> Shape {
    Shape { monitor: true, ..Shape::small() }
}

/// Sends an HTTP request to the monitor. Returns the first line and the body of the reply. `None`
/// means that the monitor is not listening.
fn request(address: &str, path: &str, headers: &str) -> Option<(String, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    let request = format!("GET {path} HTTP/1.0\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).ok()?;
    let (head, body) = reply.split_once("\r\n\r\n")?;
    Some((head.lines().next()?.to_owned(), body.to_owned()))
}

fn try_get(address: &str, path: &str) -> Option<Value> {
    let (status, body) = request(address, path, "")?;
    assert_eq!(status, "HTTP/1.1 200 OK", "{path}: {body}");
    Some(serde_json::from_str(&body).unwrap_or_else(|error| panic!("{path}: {error}: {body}")))
}

fn get(address: &str, path: &str) -> Value {
    try_get(address, path).unwrap_or_else(|| panic!("{path}: no reply"))
}

fn address_in(directory: &Path) -> Option<String> {
    let text = fs::read_to_string(directory.join("address")).ok()?;
    Some(text.trim().to_owned())
}

fn address_of(cluster: &Cluster) -> String {
    address_in(&cluster.data().join("monitor")).expect("the monitor of skep up listens")
}

/// Returns the number of bytes that an object, such as a user, has written in the last five
/// minutes, according to the monitor.
fn written(address: &str, by: &str, id: &str) -> u64 {
    let load = get(address, &format!("/api/load?by={by}&span=300"));
    let rows = load["rows"].list().iter().filter(|row| row["id"] == id || id.is_empty());
    rows.map(|row| row["written_bytes"].number()).sum()
}

/// Command: skep monitor, skep stats.
#[test]
fn monitor_history_has_all_operations_and_survives_a_kill() {
    let cluster = Cluster::start(monitored());
    let address = address_of(&cluster);
    wait_for("the monitor has seen all services", PATIENCE, || {
        let live = get(&address, "/api/live");
        let services = live["services"].as_array()?;
        let is_known = |service: &&Value| service["cpu_permille"].is_u64();
        (services.iter().filter(is_known).count() == 3).then_some(())
    });
    let bytes = 20 * MIB as u64;
    fs::write(cluster.path().join("file"), vec![7; 20 * MIB]).unwrap();
    for by in ["node", "target", "user", "client", "operation"] {
        let id = if by == "user" { "0" } else { "" };
        wait_for(by, PATIENCE, || (written(&address, by, id) == bytes).then_some(()));
    }
    let history = get(&address, "/api/history?by=node&service=storage&span=300&points=300");
    let rates = history["written_bytes"].list().iter().filter_map(Value::as_f64);
    let peak = rates.fold(0.0, f64::max);
    // The monitor may count all bytes in a single round, and a round may be shorter than a second.
    assert!(peak > 0.0 && peak <= 2.0 * bytes as f64, "{peak}");
    let csv = request(&address, "/api/history?span=60&format=csv", "").unwrap().1;
    assert!(csv.starts_with("at,") && csv.lines().count() > 30, "{csv}");

    let table = cluster.skep(&["stats", "--by", "user", "--history", "5min"]);
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    let lines = cluster.skep_json(&["stats", "--by", "user", "--history", "5min"]);
    skep_testkit::schema::check("stats", &lines);
    let root = lines.list().iter().find(|line| line["id"] == "0").expect("a line of root");
    assert_eq!((root["written_bytes"].number(), root["name"].text()), (bytes, "root"));

    let (status, page) = request(&address, "/", "").unwrap();
    assert!(status.ends_with("200 OK") && page.contains("<title>Skep monitor</title>"), "{page}");
    let pages = get(&address, "/api/prometheus");
    assert_eq!(pages.list().len(), 3, "{pages}");
    for entry in pages.list() {
        let target = entry["targets"][0].text();
        let (_, metrics) = request(target, "/metrics", "").expect("the page of a service");
        assert!(metrics.ends_with("# EOF\n"), "{target}");
    }

    let before = cluster.processes("monitor").remove(0);
    before.kill();
    wait_for("the supervisor has restarted the monitor", PATIENCE, || {
        let live = try_get(&address, "/api/live")?;
        (live["services"].is_array() && cluster.processes("monitor") != [before.clone()])
            .then_some(())
    });
    assert_eq!(written(&address, "user", "0"), bytes, "the history is on disk");
    cluster.stop();
}

#[test]
fn suspended_service_causes_an_alert_and_a_notification() {
    let scratch = Scratch::new();
    let (notified, program) = (scratch.path().join("notified"), scratch.path().join("notify"));
    let script = format!("#!/bin/sh\ncat >> {0}\necho >> {0}\n", notified.display());
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let setting = format!("monitor:alerts.command={}", program.display());
    let cluster = Cluster::start(Shape { more: vec!["--set".into(), setting], ..monitored() });
    let address = address_of(&cluster);
    let rules = |list: &str| -> Vec<String> {
        let alerts = get(&address, "/api/alerts");
        let rules = alerts[list].list().iter().map(|alert| alert["rule"].text().to_owned());
        rules.filter(|rule| !RULES_OF_THE_HOST.contains(&rule.as_str())).collect()
    };
    wait_for("the monitor has seen all services", PATIENCE, || {
        let live = get(&address, "/api/live");
        let mut findings = live["findings"].list().iter();
        let is_of_host = |finding: &Value| RULES_OF_THE_HOST.contains(&finding["rule"].text());
        (live["services"].as_array()?.len() == 3 && findings.all(is_of_host)).then_some(())
    });
    assert_eq!(rules("holding"), Vec::<String>::new(), "a healthy cluster has no alert");
    let stopped = &cluster.processes("storage")[0];
    stopped.signal(Signal::STOP);
    // The targets of the service are offline as well, but this follows from the same fault.
    let consequences = |list: &str| -> Vec<String> {
        let alerts = get(&address, "/api/alerts");
        let alert = alerts[list].list().iter().find(|it| it["rule"] == "service-unreachable");
        let found = alert.into_iter().flat_map(|alert| alert["consequences"].list());
        found.map(|it| it["rule"].text().to_owned()).collect()
    };
    let follows = "target-offline".to_owned();
    let found = eventually(PATIENCE, || consequences("holding").contains(&follows).then_some(()));
    let holding = rules("holding");
    stopped.signal(Signal::CONT);
    assert!(found.is_some(), "{:?}", get(&address, "/api/alerts"));
    assert!(!holding.contains(&follows), "{holding:?}");
    let sent = || -> Vec<Value> {
        let text = fs::read_to_string(&notified).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    };
    let states = || -> Vec<String> {
        let sent = sent();
        let of_rule = sent.iter().filter(|it| it["alert"]["rule"] == "service-unreachable");
        of_rule.map(|it| it["state"].text().to_owned()).collect()
    };
    wait_for("both notifications", PATIENCE, || (states() == ["began", "ended"]).then_some(()));
    assert!(sent().iter().all(|it| it["alert"]["rule"] != "target-offline"), "{:?}", sent());
    assert!(consequences("ended").contains(&follows));
    assert!(rules("ended").contains(&"service-unreachable".to_owned()));
}

/// A monitor that a test starts without `skep up`. Dropping this value kills the monitor.
struct Monitor {
    child: Child,
    directory: PathBuf,
}

impl Monitor {
    fn start(cluster: &Cluster, directory: &Path, more: &[&str]) -> Self {
        let mut command = Command::new(cluster::program());
        command.args(["monitor", "--listen", "127.0.0.1:0"]).args(more);
        command.arg("--cluster").arg(cluster.data()).arg("--directory").arg(directory);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.expect("the program starts");
        Self { child, directory: directory.to_owned() }
    }

    fn address(&self) -> String {
        wait_for("the monitor listens", PATIENCE, || {
            address_in(&self.directory).filter(|address| TcpStream::connect(address).is_ok())
        })
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A mounted file system of 1 MiB. Dropping this value unmounts it.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(path: PathBuf) -> Self {
        let text = path.to_str().expect("UTF-8");
        run("mount", ["-t", "tmpfs", "-o", "size=1m", "tmpfs", text]);
        Self(path)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("--lazy").arg(&self.0).status();
        assert!(unmounted.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

#[test]
fn monitor_reports_a_full_disk_and_still_collects() {
    let cluster = Cluster::start(Shape::small());
    let scratch = Scratch::new();
    let disk = SmallDisk::mount(scratch.directory("disk"));
    let monitor = Monitor::start(&cluster, &disk.0.join("monitor"), &[]);
    let address = monitor.address();
    let live = || get(&address, "/api/live");
    wait_for("the first figures", PATIENCE, || live()["services"].is_array().then_some(()));
    let filler = disk.0.join("filler");
    let full = fs::write(&filler, vec![0; 2 * MIB]);
    assert!(full.is_err(), "the disk is full");
    let problem = wait_for("the full disk is reported", PATIENCE, || {
        live()["history"]["problem"].as_str().map(str::to_owned)
    });
    assert!(problem.contains("free space on the disk"), "{problem}");
    let newest = live()["frame_ms"].number();
    wait_for("figures go on", PATIENCE, || (live()["frame_ms"].number() > newest).then_some(()));
    wait_for("the page shows the problem", PATIENCE, || {
        let live = live();
        live["findings"].list().iter().any(|it| it["rule"] == "history").then_some(())
    });
    fs::remove_file(&filler).unwrap();
    wait_for("the history is written again", PATIENCE, || {
        live()["history"]["problem"].is_null().then_some(())
    });
}

fn refused(result: Finished, words: &str) {
    let text = result.expect_failure();
    assert!(text.contains(words), "{words}: {text}");
}

#[test]
fn unauthorized_requests_and_wrong_options_are_refused() {
    let cluster = Cluster::start(Shape::small());
    let scratch = Scratch::new();
    let directory = scratch.path().join("monitor");
    let directory_text = directory.to_str().expect("UTF-8");
    let open = ["monitor", "--directory", directory_text, "--listen", "0.0.0.0:0"];
    refused(cluster.try_skep(&open), "password_file");
    let wrong = ["monitor", "--directory", directory_text, "--set", "histry=1GiB"];
    refused(cluster.try_skep(&wrong), "histry");
    let nobody = ["stats", "--history", "1h", "--monitor", "127.0.0.1:1"];
    refused(cluster.try_skep(&nobody), "cannot ask the monitor at 127.0.0.1:1");
    refused(cluster.try_skep(&["stats", "--history", "1h", "--total"]), "--total");

    let password = scratch.path().join("password");
    fs::write(&password, "correct horse\n").unwrap();
    let password = password.to_str().expect("UTF-8");
    let setting = format!("password_file={password}");
    let monitor = Monitor::start(&cluster, &directory, &["--set", &setting]);
    let address = monitor.address();
    for path in ["/", "/api/live", "/metrics"] {
        let (status, _) = request(&address, path, "").unwrap();
        assert_eq!(status, "HTTP/1.1 401 Unauthorized", "{path}");
        let right = "Authorization: Bearer correct horse\r\n";
        let (status, _) = request(&address, path, right).unwrap();
        assert_eq!(status, "HTTP/1.1 200 OK", "{path}");
    }
    let history = ["stats", "--history", "1min", "--monitor", &address];
    refused(cluster.try_skep(&history), "--monitor-password-file");
    let with_password = [&history[..], &["--monitor-password-file", password]].concat();
    cluster.skep(&with_password);
    // A second monitor in the same directory is refused. Both monitors would write frames to the
    // same files.
    let second = Command::new(cluster::program())
        .args(["monitor", "--directory", directory_text, "--listen", "127.0.0.1:0", "--cluster"])
        .arg(cluster.data())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && text.contains("another monitor runs there"), "{text}");
}

/// Command: skep monitor, skep stats.
#[test]
fn encrypted_page_is_served_to_clients_that_trust_it() {
    let cluster = Cluster::start(Shape::small());
    let scratch = Scratch::new();
    let authority = Authority::create(&scratch.directory("authority"));
    let (certificate, key) = authority.issue("DNS:localhost");
    let files = [&certificate, &key].map(|path| path.to_str().expect("UTF-8"));
    let options = ["--tls-certificate", files[0], "--tls-key", files[1]];
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let monitor = Monitor::start(&cluster, &scratch.path().join("monitor"), &options);
    let address = monitor.address();
    let (status, body) = request(&address, "/api/live", "").expect("a reply");
    assert_eq!(status, "HTTP/1.1 400 Bad Request", "{body}");
    assert!(body.contains("https://"), "{body}");
    let port = address.rsplit_once(':').expect("a port").1;
    let ask = |roots: &Path| {
        let mut command = Command::new(cluster::program());
        command.args(["stats", "--history", "1min", "--monitor"]);
        command.arg(format!("https://localhost:{port}")).env("SSL_CERT_FILE", roots);
        command.env_remove("SSL_CERT_DIR").arg("--cluster").arg(cluster.data());
        finish(&mut command, PATIENCE)
    };
    wait_for("the client that trusts the authority gets the history", PATIENCE, || {
        ask(&authority.certificate()).status.success().then_some(())
    });
    let stranger = Authority::create(&scratch.directory("stranger"));
    refused(ask(&stranger.certificate()), "TLS");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let directory = scratch.path().join("other");
    let directory = directory.to_str().expect("UTF-8");
    let open = [&["monitor", "--directory", directory, "--listen", "127.0.0.1:0"][..], &options];
    refused(cluster.try_skep(&open.concat()), "all users of this host");
}

/// Command: skep monitor.
#[test]
fn one_monitor_watches_two_clusters_separately() {
    let clusters = [(); 2].map(|()| Cluster::start(Shape::small()));
    let [first, second] = &clusters;
    let scratch = Scratch::new();
    let directory = scratch.path().join("monitor");
    let also = format!("second={}", second.data().display());
    let monitor = Monitor::start(first, &directory, &["--also", &also]);
    let address = monitor.address();
    wait_for("the monitor has the figures of the second cluster", PATIENCE, || {
        let live = get(&address, "/api/live?cluster=second");
        let services = live["services"].as_array()?;
        services.iter().all(|service| service["cpu_permille"].is_u64()).then_some(())
    });
    fs::write(second.path().join("file"), vec![7; MIB]).unwrap();
    let ids = wait_for("both maps have arrived", PATIENCE, || {
        let listed = get(&address, "/api/clusters");
        let ids = listed["clusters"].list().iter().map(|it| it["cluster"].text().to_owned());
        let ids: Vec<String> = ids.filter(|id| !id.is_empty()).collect();
        (ids.len() == 2).then_some(ids)
    });
    assert_ne!(ids[0], ids[1]);
    for (path, id) in [
        ("/api/live", &ids[0]),
        ("/api/live?cluster=main", &ids[0]),
        ("/api/live?cluster=second", &ids[1]),
    ] {
        assert_eq!(get(&address, path)["cluster"].text(), id, "{path}");
    }
    let written = |more: &str| -> u64 {
        let load = get(&address, &format!("/api/load?by=user&span=300{more}"));
        load["rows"].list().iter().map(|row| row["written_bytes"].number()).sum()
    };
    wait_for("the load of the second cluster", PATIENCE, || {
        (written("&cluster=second") == MIB as u64).then_some(())
    });
    assert_eq!(written(""), 0, "the first cluster has no load");
    // Commands get the figures of their own cluster.
    let history = ["stats", "--by", "user", "--history", "5min", "--monitor", &address];
    for (cluster, bytes) in [(first, 0), (second, MIB as u64)] {
        let lines = cluster.skep_json(&history);
        let written = lines.list().iter().map(|line| line["written_bytes"].number());
        assert_eq!(written.sum::<u64>(), bytes, "{lines}");
    }
    assert!(directory.join("history").is_dir());
    assert!(directory.join("clusters/second/history").is_dir());
    let (status, body) = request(&address, "/api/live?cluster=third", "").expect("a reply");
    assert!(status.contains("400") && body.contains("main, second"), "{status}: {body}");
    let same = format!("again={}", first.data().display());
    let other = scratch.path().join("other");
    let other = other.to_str().expect("UTF-8");
    let twice = ["monitor", "--directory", other, "--listen", "127.0.0.1:0", "--also", &same];
    refused(first.try_skep(&twice), "is the same cluster");
    refused(first.try_skep(&[&twice[..6], &["a/b=x"]].concat()), "invalid name");
}

/// Command: skep monitor.
#[test]
fn page_lists_and_opens_reports_but_no_other_files() {
    let cluster = Cluster::start(Shape::small());
    let scratch = Scratch::new();
    let reports = scratch.directory("reports");
    fs::create_dir(reports.join("study")).unwrap();
    fs::write(reports.join("study/index.html"), "<title>Sizes</title><p>text").unwrap();
    fs::write(scratch.path().join("secret.html"), "secret").unwrap();
    std::os::unix::fs::symlink("../secret.html", reports.join("link.html")).unwrap();
    let options = ["--reports", reports.to_str().expect("UTF-8")];
    let monitor = Monitor::start(&cluster, &scratch.path().join("monitor"), &options);
    let address = monitor.address();
    let listed = get(&address, "/api/reports");
    let found: Vec<_> = listed["reports"].list().iter().map(|it| it["path"].text()).collect();
    assert_eq!(found, ["study/index.html"], "{listed}");
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.write_all(b"GET /reports/study/index.html HTTP/1.0\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200 OK\r\n") && reply.ends_with("<p>text"), "{reply}");
    let policy = reply.lines().find(|line| line.starts_with("Content-Security-Policy:"));
    assert!(policy.is_some_and(|it| it.contains("sandbox")), "{reply}");
    for path in ["../secret.html", "%2e%2e/secret.html", "link.html", "study", ""] {
        let (status, body) = request(&address, &format!("/reports/{path}"), "").expect("a reply");
        assert_eq!(status, "HTTP/1.1 404 Not Found", "{path}: {body}");
    }
}

/// Command: skep monitor.
#[test]
fn page_shows_placement_and_the_end_of_removals() {
    let cluster = Cluster::start(monitored());
    let address = address_of(&cluster);
    wait_for("the page has the placement", PATIENCE, || {
        let live = get(&address, "/api/live");
        let storage = live["placement"].as_array()?.first()?.clone();
        let has_all = storage["targets"] == 2 && storage["used_share"]["mean"].is_f64();
        (has_all && storage["kind"] == "storage").then_some(())
    });
    for number in 0..50 {
        fs::write(cluster.path().join(format!("file-{number}")), "text").unwrap();
    }
    for number in 0..50 {
        fs::remove_file(cluster.path().join(format!("file-{number}"))).unwrap();
    }
    wait_for("no chunk file is left to remove", PATIENCE, || {
        let live = get(&address, "/api/live");
        let mut works = live["background"].as_array()?.iter();
        let is_over = works.all(|it| it["kind"] != "removal");
        (is_over && cluster.chunk_files().is_empty()).then_some(())
    });
}

#[test]
fn silent_connections_block_neither_page_nor_mount() {
    let cluster = Cluster::start(monitored());
    let address = address_of(&cluster);
    let flood: Vec<_> = (0..200).filter_map(|_| TcpStream::connect(&address).ok()).collect();
    assert_eq!(flood.len(), 200);
    assert!(try_get(&address, "/api/live").is_some());
    fs::write(cluster.path().join("file"), "text").unwrap();
    assert_eq!(fs::read_to_string(cluster.path().join("file")).unwrap(), "text");
    drop(flood);
}

/// The fields of figures that count bytes, in the order of the phases of `skep bench io`.
const FIELDS: [&str; 2] = ["written_bytes", "read_bytes"];

/// A phase of one `skep bench io`.
struct BenchPhase {
    bytes: u64,
    seconds: f64,
    mib_per_s: f64,
}

/// One `skep bench io` that an ordinary user runs as a job.
struct BenchRun {
    user: u32,
    job: u32,
    /// The phase that writes, and the phase that reads.
    phases: [BenchPhase; 2],
}

/// Starts one `skep bench io` for each directory, each as another user and another job, and waits
/// until all have ended.
fn bench_as_users(program: &Path, directories: &[PathBuf]) -> Vec<BenchRun> {
    let start = |(number, directory): (u32, &PathBuf)| {
        let (user, job) = (60_000 + number, 100 + number);
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={user}"), format!("--regid={user}")]);
        command.arg("--clear-groups").arg(program).args(["bench", "io", "--keep-caches", "-o"]);
        command.arg(directory.join(format!("file-{user}")));
        let mib = (8 * (number + 1)).to_string() + "m";
        // Use direct I/O. Otherwise the kernel would read from its page cache.
        command.args(["-w", "-r", "-B", "-e", "-k", "-t", "1m", "-b", &mib, "--output", "json"]);
        command.env("SLURM_JOB_ID", job.to_string()).current_dir("/");
        let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        (user, job, child.expect("setpriv can be started"))
    };
    let running: Vec<_> = (0..).zip(directories).map(start).collect();
    let finish = |(user, job, child): (u32, u32, Child)| {
        let output = child.wait_with_output().expect("ours");
        assert!(output.status.success(), "{output:?}");
        let outcome: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let phase = |number: usize, name: &str| {
            let phase = &outcome["phases"][number];
            assert_eq!(phase["phase"], name, "{outcome}");
            BenchPhase {
                bytes: phase["bytes"].number(),
                seconds: phase["seconds"].float(),
                mib_per_s: phase["bandwidth_mib_per_s"].float(),
            }
        };
        BenchRun { user, job, phases: [phase(0, "write"), phase(1, "read")] }
    };
    running.into_iter().map(finish).collect()
}

/// Returns the bytes per second in each second. `field` is a field of the history. The key is the
/// time of the second.
fn seconds_of(address: &str, query: &str, field: &str) -> BTreeMap<u64, f64> {
    let history = get(address, &format!("/api/history?{query}&span=300&points=300"));
    let at = history["at"].list().iter().map(Typed::number);
    let rates = history[field].list().iter().map(Value::as_f64);
    at.zip(rates).filter_map(|(at, rate)| Some((at, rate?))).collect()
}

/// Whether two figures differ by at most 3 %.
fn is_near(found: f64, expected: f64) -> bool {
    (found - expected).abs() <= expected * 0.03
}

/// Written and read bytes by the id of an object.
type BytesById = BTreeMap<String, [u64; 2]>;

/// A `skep stats` that prints the load of each second, while a test causes load.
struct LiveFigures {
    by: &'static str,
    child: Child,
    lines: Receiver<String>,
    /// The sums over all intervals.
    sums: BytesById,
}

impl LiveFigures {
    /// Starts the command, and waits until its first interval has begun.
    fn start(cluster: &Cluster, by: &'static str) -> Self {
        let mut command = Command::new(cluster::program());
        command.args(["stats", "--by", by, "--interval", "1s", "--output", "ndjson"]);
        command.arg("--cluster").arg(cluster.data());
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("built");
        // The command prints this line after its first question to the services.
        let mut announcement = String::new();
        let mut errors = BufReader::new(child.stderr.take().expect("piped"));
        errors.read_line(&mut announcement).expect("the command prints a line");
        assert!(announcement.contains("--once prints one interval"), "{announcement}");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = channel();
        // A thread reads the lines, so that the test does not wait for them without a limit.
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line).ok())
        });
        Self { by, child, lines, sums: BytesById::new() }
    }

    /// Adds up the intervals until they contain nearly all bytes of `expected`. Then the sums must
    /// be near `expected`, so they must not be much larger either.
    fn check(mut self, expected: &BytesById) {
        let has_all = |sums: &BytesById| {
            expected.iter().all(|(id, bytes)| {
                let found = sums.get(id).copied().unwrap_or_default();
                found.iter().zip(bytes).all(|(it, all)| *it as f64 >= *all as f64 * 0.97)
            })
        };
        let deadline = Instant::now() + PATIENCE;
        while !has_all(&self.sums) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => self.add(&line),
                Err(error) => panic!("by {}: {:?} only: {error}", self.by, self.sums),
            }
        }
        self.child.kill().expect("our own child");
        self.child.wait().expect("our own child");
        while let Ok(line) = self.lines.recv() {
            self.add(&line);
        }
        for (id, bytes) in expected {
            let found = self.sums[id];
            let is_right =
                found.iter().zip(bytes).all(|(it, all)| is_near(*it as f64, *all as f64));
            assert!(is_right, "by {} {id}: {found:?} instead of {bytes:?}", self.by);
        }
    }

    fn add(&mut self, line: &str) {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|it| panic!("{it}: {line}"));
        let sums = self.sums.entry(line["id"].text().to_owned()).or_default();
        for (sum, field) in sums.iter_mut().zip(FIELDS) {
            *sum += line[field].number();
        }
    }
}

impl Drop for LiveFigures {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Four users on two mounts write and read at two storage services with `skep bench io`. The
/// numbers of the services, of the live output and of the monitor must differ by less than 3 %. In
/// each second, the sums over all users, all jobs and all clients must be equal.
///
/// Command: skep stats.
#[test]
fn figures_by_user_job_and_client_agree_with_bench_io() {
    let shape = Shape { targets_per_service: 2, metadata_targets: 1, ..Shape::default() };
    let rate = ["--set", "storage:emulation.rate=16MB"].map(String::from).to_vec();
    let mut cluster = Cluster::start(Shape { monitor: true, more: rate, ..shape });
    let mounts = [(); 2].map(|()| cluster.mount_with(Transport::Device, "job_accounting"));
    let address = address_of(&cluster);
    let scratch = Scratch::new();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = scratch.join("skep");
    fs::copy(cluster::program(), &program).unwrap();
    let directories: Vec<_> =
        (0..4).map(|number: usize| mounts[number % 2].path().join("all")).collect();
    fs::create_dir(&directories[0]).unwrap();
    fs::set_permissions(&directories[0], fs::Permissions::from_mode(0o777)).unwrap();
    let live = ["user", "job", "client"].map(|by| LiveFigures::start(&cluster, by));
    let runs = bench_as_users(&program, &directories);
    let bytes = |run: &BenchRun| [run.phases[0].bytes, run.phases[1].bytes];
    let all = runs.iter().map(bytes).fold([0, 0], |sum, it| [sum[0] + it[0], sum[1] + it[1]]);
    assert_eq!(all, [80 * MIB as u64; 2]);

    let total = |by: &str, id: &str, field: &str| -> u64 {
        let lines = cluster.skep_json(&["stats", "--by", by, "--total"]);
        let own = lines.list().iter().filter(|line| id.is_empty() || line["id"] == id);
        own.map(|line| line[field].number()).sum()
    };
    for run in &runs {
        for (phase, field) in run.phases.iter().zip(FIELDS) {
            let found = [("user", run.user), ("job", run.job)]
                .map(|(by, id)| total(by, &id.to_string(), field));
            for bytes in found {
                assert!(is_near(bytes as f64, phase.bytes as f64), "{} {found:?}", run.user);
                let mib_per_s = bytes as f64 / MIB as f64 / phase.seconds;
                assert!(is_near(mib_per_s, phase.mib_per_s), "{mib_per_s} {}", phase.mib_per_s);
            }
        }
    }
    for by in ["client", "node", "target", "user", "group", "job", "operation"] {
        for (field, all) in FIELDS.iter().zip(all) {
            let found = total(by, "", field);
            assert!(is_near(found as f64, all as f64), "by {by}: {found} {field}");
        }
    }
    // The runs with even numbers have used the first mount.
    let clients = cluster.skep_json(&["client", "list"]);
    let id_of = |mount: &Mounted| {
        let path = mount.path().to_str().expect("UTF-8");
        let found = clients.list().iter().find(|client| client["mount_point"] == path);
        found.expect("the mount is listed")["id"].to_string()
    };
    let mut by_client = BytesById::new();
    for (number, run) in runs.iter().enumerate() {
        let sums = by_client.entry(id_of(&mounts[number % 2])).or_default();
        sums.iter_mut().zip(bytes(run)).for_each(|(sum, bytes)| *sum += bytes);
    }
    let by_user = runs.iter().map(|run| (run.user.to_string(), bytes(run))).collect();
    let by_job = runs.iter().map(|run| (run.job.to_string(), bytes(run))).collect();
    live.into_iter().zip([by_user, by_job, by_client]).for_each(|(it, bytes)| it.check(&bytes));

    let sums_of = |field: &str| {
        let load = get(&address, "/api/load?by=user&span=300");
        load["rows"].list().iter().map(|row| row[field].number()).sum::<u64>()
    };
    wait_for("the monitor has all bytes", PATIENCE, || (FIELDS.map(sums_of) == all).then_some(()));
    let queries = ["by=node&service=storage", "by=target", "by=client", "by=user", "by=job"];
    for field in FIELDS {
        let divisions = queries.map(|query| seconds_of(&address, query, field));
        let [first, others @ ..] = &divisions;
        let busy = first.values().filter(|rate| **rate > 0.0).count();
        assert!(busy > 0, "{field}: {first:?}");
        for (query, other) in queries[1..].iter().zip(others) {
            for (at, rate) in first {
                let found = other.get(at).copied().unwrap_or(*rate);
                let is_equal = (found - rate).abs() < 0.01;
                assert!(is_equal, "{field} {query} at {at}: {found} instead of {rate}");
            }
        }
    }
    mounts.into_iter().for_each(|mount| mount.unmount());
    cluster.stop();
}

/// Command: skep monitor, skep why.
#[test]
fn slow_operation_is_on_the_page_in_the_words_of_skep_why() {
    let rate = ["--set", "storage:emulation.rate=1MB"].map(String::from).to_vec();
    let cluster = Cluster::start(Shape { more: rate, ..monitored() });
    let address = address_of(&cluster);
    let file = fs::File::create(cluster.path().join("file")).unwrap();
    (&file).write_all(&vec![7; MIB]).unwrap();
    file.sync_all().unwrap();
    let slow = wait_for("the slow operation is listed", PATIENCE, || {
        let listed = get(&address, "/api/operations?span=300");
        let of_disk = |it: &&Value| it["client"] != "" && it["mainly"].text().contains("disk of");
        listed["operations"].list().iter().find(of_disk).cloned()
    });
    assert!(slow["mainly"].text().contains("disk of storage target"), "{slow}");
    assert!(slow["ms"].as_f64().is_some_and(|ms| ms >= 100.0) && slow["user_name"] == "root");
    let trace = slow["trace"].text();
    let report = get(&address, &format!("/api/operation?id={trace}"));
    assert_eq!(report["parts"][0]["stage"], "disk", "{report}");
    let explained = cluster.skep_json(&["why", "--op", trace]);
    assert_eq!(explained["parts"][0]["what"], report["parts"][0]["what"]);
    let live = get(&address, "/api/live");
    assert!(live["slowest"].list().iter().any(|it| it["trace"] == trace), "{live}");
    cluster.stop();
}
