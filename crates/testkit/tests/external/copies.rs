//! A monitor sends its metrics and alerts to real programs of other projects. This module has the
//! case of Prometheus with remote write, and the steps that all cases share. The submodules have
//! the cases of InfluxDB, Alertmanager and Ganglia.

pub(crate) mod alerts;
pub(crate) mod ganglia;
pub(crate) mod influx;

use crate::prometheus::Prometheus;
use serde_json::Value;
use skep_testkit::files;
use skep_testkit::{Cluster, Scratch, Shape, cluster, wait_for};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);
/// Number of lines of a program's log in the message about its failed start.
const SHOWN_LINES: usize = 20;

/// A running program. Dropping this value kills the program.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Self {
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Self(child.unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    /// Starts a program that logs its address to standard error. The address follows the text `key`
    /// in the first line that contains `words`.
    fn listening(command: &mut Command, words: &str, key: &str) -> (Self, String) {
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut log = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let running = Self(child);
        let mut seen = Vec::new();
        let address = log.by_ref().map_while(Result::ok).find_map(|line| {
            let address = match line.contains(words) {
                true => line.split_once(key).and_then(|(_, rest)| rest.split(' ').next()),
                false => None,
            };
            let address = address.map(str::to_owned);
            seen.push(line);
            address
        });
        // Read the log to its end. Without these reads, the program would wait when the pipe is
        // full.
        std::thread::spawn(move || log.for_each(drop));
        let shown = &seen[seen.len().saturating_sub(SHOWN_LINES)..];
        let address = address.unwrap_or_else(|| panic!("{command:?} ended: {shown:#?}"));
        (running, address)
    }

    /// Starts a monitor of a cluster with some settings, in the directory `monitor` of `scratch`.
    fn monitor(cluster: &Cluster, scratch: &Scratch, settings: &[String]) -> Self {
        let mut command = Command::new(cluster::program());
        command.args(["monitor", "--listen", "127.0.0.1:0"]);
        command.args(settings.iter().flat_map(|it| ["--set", it]));
        command.arg("--cluster").arg(cluster.data());
        command.arg("--directory").arg(scratch.join("monitor"));
        Self::start(&mut command)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Returns addresses of this host with free ports. The settings of the programs need the ports
/// before the programs run.
fn free_addresses<const N: usize>() -> [String; N] {
    let listeners = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    listeners.each_ref().map(|it| it.local_addr().expect("an address").to_string())
}

fn port(address: &str) -> &str {
    address.rsplit_once(':').expect("host:port").1
}

/// Returns all bytes that a program sends to a new connection. `None` means that the program does
/// not listen.
fn read_all(address: &str) -> Option<String> {
    let mut text = String::new();
    TcpStream::connect(address).ok()?.read_to_string(&mut text).ok()?;
    Some(text)
}

/// Sends an HTTP request without a body, and returns the status and the JSON of the reply. `None`
/// means that no JSON has arrived.
fn ask(address: &str, method: &str, path: &str) -> Option<(u16, Value)> {
    let mut stream = TcpStream::connect(address).ok()?;
    let head = format!("{method} {path} HTTP/1.0\r\nHost: {address}\r\nContent-Length: 0\r\n\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).ok()?;
    let (head, body) = reply.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, serde_json::from_str(body).ok()?))
}

/// Prometheus returns the metrics that the monitor has written to Prometheus.
pub(crate) fn prometheus_has_the_metrics_that_the_monitor_writes(_: &()) {
    let cluster = Cluster::start(Shape::default());
    let scratch = Scratch::new();
    let arguments = ["--web.enable-remote-write-receiver"];
    let prometheus = Prometheus::start_with(scratch.path(), "127.0.0.1:1", &arguments, "");
    let url = format!("remote_write.url=http://{}/api/v1/write", prometheus.address());
    let settings = [url, "remote_write.interval=1s".into()];
    let monitor = Running::monitor(&cluster, &scratch, &settings);
    // Wait for the first write, because the load must be in an interval that begins after the
    // monitor has started. Each write ends an interval.
    wait_for("the first write", PATIENCE, || {
        (prometheus.results("skep_monitor_target_free_bytes") > 0).then_some(())
    });
    files::write(cluster.path().join("file"), [7; 1 << 20]);
    let targets = cluster.target_ids("storage").len() + cluster.target_ids("metadata").len();
    for (query, count) in [
        ("skep_monitor_target_free_bytes", targets),
        ("max_over_time(skep_monitor_operations_per_second{by=\"node\"}[5m]) > 0", 1),
        ("max_over_time(skep_monitor_written_bytes_per_second{by=\"user\",id=\"0\"}[5m]) > 0", 1),
    ] {
        wait_for(query, PATIENCE, || (prometheus.results(query) >= count).then_some(()));
    }
    drop((monitor, prometheus));
    cluster.stop();
}
