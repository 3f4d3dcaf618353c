//! The figures of a monitor arrive in a real Prometheus by remote write, and in the files of a real
//! `gmetad`.

use crate::prometheus::Prometheus;
use crate::text;
use skep_testkit::files;
use skep_testkit::{Cluster, Scratch, Shape, cluster, wait_for};
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);

/// A running program. Dropping this value kills it.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Self {
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Self(child.expect("the program starts"))
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

pub(crate) fn arrive_in_prometheus_and_ganglia(_: &()) {
    let cluster = Cluster::start(Shape::default());
    let scratch = Scratch::new();
    let [gmond, xml, queries] = free_addresses();
    let prometheus = Prometheus::start_with(
        scratch.path(),
        "127.0.0.1:1",
        &["--web.enable-remote-write-receiver"],
    );
    let url = format!("remote_write.url=http://{}/api/v1/write", prometheus.address());
    let mut monitor = Command::new(cluster::program());
    monitor.args(["monitor", "--listen", "127.0.0.1:0", "--set", &url]);
    monitor.args(["--set", "remote_write.interval=1s"]);
    monitor.args(["--set", &format!("ganglia.listen={gmond}")]);
    monitor.arg("--cluster").arg(cluster.data());
    monitor.arg("--directory").arg(scratch.join("monitor"));
    let monitor = Running::start(&mut monitor);
    wait_for("gmetad's port", PATIENCE, || TcpStream::connect(&gmond).ok());
    let gmetad = start_gmetad(scratch.path(), &gmond, (port(&xml), port(&queries)));
    files::write(cluster.path().join("file"), [7; 1 << 20]);
    let targets = cluster.target_ids("storage").len() + cluster.target_ids("metadata").len();
    for (query, count) in [
        ("skep_monitor_target_free_bytes", targets),
        ("max_over_time(skep_monitor_operations_per_second{by=\"node\"}[5m]) > 0", 1),
        ("max_over_time(skep_monitor_written_bytes_per_second{by=\"user\",id=\"0\"}[5m]) > 0", 1),
    ] {
        wait_for(query, PATIENCE, || (prometheus.results(query) >= count).then_some(()));
    }
    let rrds = scratch.join("rrds");
    for metric in ["skep_operations.rrd", "skep_written.rrd", "skep_host_cpu.rrd"] {
        wait_for(metric, PATIENCE, || is_in(&rrds, "storage-1", metric).then_some(()));
    }
    let grid = wait_for("gmetad replies", PATIENCE, || {
        let mut reply = String::new();
        TcpStream::connect(&xml).ok()?.read_to_string(&mut reply).ok()?;
        reply.contains("NAME=\"metadata-1\"").then_some(reply)
    });
    assert!(grid.contains("skep_t1_free"), "{grid}");
    drop((gmetad, monitor, prometheus));
    cluster.stop();
}

fn start_gmetad(directory: &Path, gmond: &str, (xml, queries): (&str, &str)) -> Running {
    let (settings, rrds) = (directory.join("gmetad.conf"), directory.join("rrds"));
    files::create_dir(&rrds);
    let lines = format!(
        "data_source \"skep\" 1 {gmond}\nrrd_rootdir \"{}\"\nsetuid off\nxml_port {xml}\n\
         interactive_port {queries}\ncase_sensitive_hostnames 1\n",
        text(&rrds)
    );
    files::write(&settings, lines);
    Running::start(Command::new("gmetad").args(["-d", "1", "-c", text(&settings)]))
}

/// Whether `gmetad` has written the file of a metric of a host, in the directory of any cluster.
fn is_in(rrds: &Path, host: &str, metric: &str) -> bool {
    files::read_dir(rrds).flatten().any(|it| it.path().join(host).join(metric).exists())
}
