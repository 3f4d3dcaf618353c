//! A real Prometheus reads a real cluster under load, with the settings and rules in
//! `dashboards/prometheus`. Each query of the Grafana dashboards must have a result.

use crate::text;
use serde_json::Value;
use skep_testkit::files;
use skep_testkit::program::run_in;
use skep_testkit::view::Typed;
use skep_testkit::{Cluster, EndGuard, Scratch, Shape, Transport, wait_for};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time limit for a query to have a result. Prometheus needs the time [`RATE`] to collect the
/// values for a rate, and longer on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// The interval over which the queries compute rates. This value replaces Grafana's variable
/// `$__rate_interval`. In the test, Prometheus reads the metrics every second.
const RATE: &str = "15s";

/// Returns the directory of dashboards, settings and rules in the repository.
fn dashboards() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("two directories below the top").join("dashboards")
}

/// A running Prometheus. Dropping this value kills the process.
pub(crate) struct Prometheus {
    child: Child,
    address: String,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Prometheus {
    /// Starts Prometheus on a free port, with the settings of the repository and the address of a
    /// monitor.
    fn start(directory: &Path, monitor: &str) -> Self {
        Self::start_with(directory, monitor, &[], "")
    }

    /// Starts Prometheus like [`Self::start`], with further arguments, and further lines of its
    /// settings.
    pub(crate) fn start_with(
        directory: &Path,
        monitor: &str,
        arguments: &[&str],
        settings_end: &str,
    ) -> Self {
        let from = dashboards().join("prometheus");
        let settings = files::read_to_string(from.join("prometheus.yml"));
        assert!(settings.contains("localhost:7480") && settings.contains("interval: 10s"));
        let settings =
            settings.replace("localhost:7480", monitor).replace("interval: 10s", "interval: 1s");
        let path = directory.join("prometheus.yml");
        fs::write(&path, settings + settings_end).expect("the settings are written");
        fs::copy(from.join("alerts.yml"), directory.join("alerts.yml")).expect("the rules");
        let mut child = Command::new("prometheus")
            .arg(format!("--config.file={}", text(&path)))
            .arg(format!("--storage.tsdb.path={}", text(&directory.join("series"))))
            .arg("--web.listen-address=127.0.0.1:0")
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("prometheus starts");
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let address = lines.by_ref().find_map(|line| {
            let line = line.ok()?;
            let rest = line.split_once("\"Listening on\" address=")?.1;
            Some(rest.trim_end().to_owned())
        });
        // Read the log to its end. Without these reads, Prometheus would wait when the pipe is
        // full.
        std::thread::spawn(move || lines.for_each(drop));
        let address = address.expect("prometheus listens");
        Self { child, address }
    }

    /// Returns the address as `host:port`.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    fn get(&self, path: &str) -> Option<Value> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        let request = format!("GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n", self.address);
        stream.write_all(request.as_bytes()).ok()?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply).ok()?;
        let (head, body) = reply.split_once("\r\n\r\n")?;
        let status = head.lines().next()?;
        // During its start, Prometheus replies with status 503.
        if status.contains(" 503 ") {
            return None;
        }
        assert!(status.contains(" 200 "), "{path}: {reply}");
        serde_json::from_str(body).ok()
    }

    /// Returns the number of series in the result of a query. Counts only series whose newest value
    /// is a number.
    pub(crate) fn results(&self, query: &str) -> usize {
        let escaped: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let Some(reply) = self.get(&format!("/api/v1/query?query={escaped}")) else { return 0 };
        let is_number = |series: &&Value| {
            let value = series["value"][1].as_str().and_then(|value| value.parse::<f64>().ok());
            value.is_some_and(|value| !value.is_nan())
        };
        reply["data"]["result"].list().iter().filter(is_number).count()
    }
}

/// A query of a dashboard: the place of the query in the dashboard, and its expression in the
/// language of Prometheus.
type Query = (String, String);

/// Returns all queries of all dashboards, including the queries of variables. If a query is for a
/// single target, the list contains the query once for each target in `targets`.
fn queries(targets: &[u64]) -> Vec<Query> {
    let mut found = Vec::new();
    for entry in files::read_dir(dashboards().join("grafana")).flatten() {
        let name = entry.file_name().into_string().expect("an ASCII name");
        let dashboard: Value =
            serde_json::from_str(&files::read_to_string(entry.path())).expect("JSON");
        for panel in dashboard["panels"].list() {
            for target in panel["targets"].list() {
                let place = format!("{name}: {}", panel["title"].text());
                found.push((place, target["expr"].text().to_owned()));
            }
        }
        for variable in dashboard["templating"]["list"].list() {
            let query = variable["query"]["query"].as_str().unwrap_or_default();
            if let Some((series, _)) = query.rsplit_once(", ") {
                let series = series.strip_prefix("label_values(").expect("values of a label");
                found.push((format!("{name}: {}", variable["name"].text()), series.to_owned()));
            }
        }
    }
    let fill = |expression: &str, target: u64| {
        let filled = expression.replace("$__rate_interval", RATE).replace("$cluster", ".+");
        filled.replace("$target", &target.to_string())
    };
    let mut filled: Vec<Query> = Vec::new();
    for (place, expression) in found {
        let is_of_target = expression.contains("$target");
        for target in if is_of_target { targets } else { &targets[..1] } {
            let place = if is_of_target { format!("{place} (t{target})") } else { place.clone() };
            filled.push((place, fill(&expression, *target)));
        }
    }
    filled
}

/// Writes, syncs, reads and creates files until the test ends, as a job of a batch system does.
fn work(directory: &Path, is_done: &AtomicBool) {
    let data = vec![7; 1 << 20];
    let path = directory.join("file");
    let mut round = 0_u64;
    while !is_done.load(Ordering::Relaxed) {
        let file = files::create(&path);
        for part in 0..16 {
            file.write_all_at(&data, part << 20).expect("written");
        }
        file.sync_all().expect("synced");
        let arguments = [format!("if={}", text(&path)), "of=/dev/null".into(), "bs=1M".into()];
        let mut reader = Command::new("dd");
        reader.args(arguments).args(["iflag=direct", "status=none"]).env("SLURM_JOB_ID", "4711");
        assert!(reader.status().expect("dd starts").success());
        for number in 0..20 {
            files::create(directory.join(format!("small-{}-{number}", round % 10)))
                .write_all(b"text")
                .expect("written");
        }
        round += 1;
    }
}

/// Runs `check` while four programs work on a mount.
pub(crate) fn under_load(mount: &Path, check: impl FnOnce()) {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _done = EndGuard(&is_done);
        for number in 0..4 {
            let directory = mount.join(format!("work-{number}"));
            files::create_dir(&directory);
            let is_done = &is_done;
            scope.spawn(move || work(&directory, is_done));
        }
        check();
    });
}

/// Returns a port on which no program listens. The monitor gets the port before the mount exists,
/// so the mount cannot choose this port.
fn free_port() -> u16 {
    let listener = TcpListener::bind("0.0.0.0:0").expect("a free port");
    listener.local_addr().expect("an address").port()
}

fn check_files() {
    let place = dashboards().join("prometheus");
    for arguments in [
        ["check", "config", "prometheus.yml"],
        ["check", "rules", "alerts.yml"],
        ["test", "rules", "alerts-test.yml"],
    ] {
        run_in(&place, "promtool", arguments);
    }
}

pub(crate) fn each_dashboard_query_has_a_result_in_prometheus(_: &()) {
    check_files();
    let port = free_port();
    let more = vec!["--set".to_owned(), format!("monitor:mount_metrics_port={port}")];
    let mut cluster = Cluster::start(Shape { monitor: true, more, ..Shape::default() });
    let options = format!("job_accounting,metrics=0.0.0.0:{port}");
    let mount = cluster.mount_with(Transport::Device, &options);
    cluster.hand_down(mount.path(), "count=all");
    let monitor = files::read_to_string(cluster.data().join("monitor/address"));
    let targets: Vec<u64> =
        ["metadata", "storage"].iter().flat_map(|kind| cluster.target_ids(kind)).collect();
    let scratch = Scratch::new();
    let prometheus = Prometheus::start(scratch.path(), monitor.trim());
    let queries = queries(&targets);
    assert!(queries.len() > 100, "{} queries", queries.len());
    under_load(mount.path(), || {
        let mut empty = Vec::new();
        wait_for_all(&prometheus, &queries, &mut empty);
        assert!(empty.is_empty(), "queries without a result: {empty:#?}");
        let rules = prometheus.get("/api/v1/rules").expect("the rules");
        let rules = rules["data"]["groups"][0]["rules"].list();
        assert!(rules.len() >= 8 && rules.iter().all(|rule| rule["health"] == "ok"), "{rules:?}");
    });
    println!("{} queries have results", queries.len());
    drop(prometheus);
    mount.unmount();
    cluster.stop();
}

/// Waits until each query has had a result. Adds the queries that have not had a result in time to
/// `empty`.
fn wait_for_all(prometheus: &Prometheus, queries: &[Query], empty: &mut Vec<Query>) {
    wait_for("Prometheus has metrics of the services", PATIENCE, || {
        (prometheus.results("up{job=\"skep\"} == 1") >= 5).then_some(())
    });
    *empty = queries.to_vec();
    skep_testkit::eventually(PATIENCE, || {
        empty.retain(|(_, query)| prometheus.results(query) == 0);
        empty.is_empty().then_some(())
    });
}
