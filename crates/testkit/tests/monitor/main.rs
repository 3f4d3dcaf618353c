//! The monitor's history, alerts, web page and HTTP interface, on real clusters. This file contains
//! the tests of the history and of alerts.

mod bench_io;
mod bench_runs;
mod each_second;
mod flood;
mod live_figures;
mod page;

use rustix::process::Signal;
use serde_json::Value;
use skep_testkit::object_store::Authority;
use skep_testkit::program::{Finished, finish, run};
use skep_testkit::view::{RULES_OF_THE_HOST, Typed};
use skep_testkit::{Cluster, PATIENCE, Scratch, Shape, Transport, cluster, eventually, wait_for};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
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

/// A mount in the background serves its metrics at the address of its option, and the monitor lists
/// the page for Prometheus.
///
/// Command: skep mount, skep monitor.
#[test]
fn monitor_lists_the_metrics_pages_of_hosts_with_mounts() {
    // The drop of this listener frees its port.
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let page = free.local_addr().unwrap();
    drop(free);
    let setting = format!("monitor:mount_metrics_port={}", page.port());
    let cluster = Cluster::start(Shape { more: vec!["--set".into(), setting], ..monitored() });
    let directory = cluster.data().with_file_name("mnt-page");
    fs::create_dir(&directory).unwrap();
    let options = format!("metrics={page}");
    cluster.skep(&["mount", "-o", &options, directory.to_str().expect("UTF-8")]);
    fs::write(directory.join("file"), "text").unwrap();
    let (status, metrics) = request(&page.to_string(), "/metrics", "").expect("the mount's page");
    assert_eq!(status, "HTTP/1.1 200 OK", "{metrics}");
    assert!(metrics.contains("\nskep_mount_operations_total{"), "{metrics}");
    let address = address_of(&cluster);
    let pages = wait_for("the monitor lists the mounts", PATIENCE, || {
        let pages = get(&address, "/api/prometheus/mounts");
        (!pages.list().is_empty()).then_some(pages)
    });
    // Both mounts of the cluster are on this host, so the list contains one page.
    assert_eq!(pages.list().len(), 1, "{pages}");
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!(pages[0]["targets"][0], format!("{}:{}", host.trim(), page.port()));
    finish(Command::new("umount").arg(&directory), PATIENCE).expect_success();
    cluster.stop();
}

#[test]
fn suspended_service_causes_an_alert_and_a_notification() {
    let scratch = Scratch::new();
    let (notified, program) = (scratch.path().join("notified"), scratch.path().join("notify"));
    let script = format!("#!/bin/sh\ncat >> {}\n", notified.display());
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
    // The targets of the suspended service are offline, too. The monitor lists this state as a
    // consequence of the alert, and not as a separate alert.
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

#[test]
fn rounds_stay_short_while_management_is_suspended() {
    let cluster = Cluster::start(monitored());
    let address = address_of(&cluster);
    wait_for("the monitor has seen all services", PATIENCE, || {
        (get(&address, "/api/live")["services"].as_array()?.len() == 3).then_some(())
    });
    let management = &cluster.processes("management")[0];
    management.signal(Signal::STOP);
    // A monitor that waits for management before it asks the services has no shorter round than
    // two seconds now.
    let problem = eventually(PATIENCE, || {
        let live = get(&address, "/api/live");
        let mut findings = live["findings"].list().iter();
        let finding = findings.find(|it| it["rule"] == "management-unreachable")?;
        (live["interval_ms"].number() < 1_500).then(|| finding["what"].text().to_owned())
    });
    management.signal(Signal::CONT);
    let (problem, _) = problem.expect("a short round that reports the silent management");
    assert!(problem.contains("the last reply arrived at"), "{problem}");
    cluster.stop();
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

/// A mounted file system of 1 MiB. Dropping this value unmounts the file system.
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
    assert!(problem.contains("free up space on the disk"), "{problem}");
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

/// Command: skep monitor, skep why.
#[test]
fn monitor_page_explains_a_slow_operation_like_skep_why() {
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
