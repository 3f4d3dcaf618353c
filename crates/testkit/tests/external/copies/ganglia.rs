//! Ganglia's own programs read the metrics of the monitor. `gmetad` stores these metrics together
//! with the metrics of a real `gmond`, and `gstat` lists the servers. The monitor's XML document
//! matches the document type that `gmond` declares in its own document.

use super::{PATIENCE, Running, free_addresses, port, read_all};
use crate::text;
use skep_testkit::process::Suspended;
use skep_testkit::program::{Finished, finish, run};
use skep_testkit::view::Typed;
use skep_testkit::{Cluster, Scratch, Shape, files, wait_for};
use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::path::Path;
use std::process::Command;

/// Name of the host in the metrics of `gmond`.
const OTHER_HOST: &str = "host-of-gmond";
/// Name of the metric that `gmetric` sends to `gmond`.
const OTHER_METRIC: &str = "rack_temperature";

/// The metrics of a document: pairs of host and metric.
type Metrics = BTreeSet<(String, String)>;

/// Returns the metrics in a document of `gmond` or `gmetad`.
fn metrics(document: &str) -> Metrics {
    let (mut found, mut host) = (Metrics::new(), String::new());
    // In these documents, the name is the first attribute.
    for tag in document.split('<') {
        let Some((kind, rest)) = tag.split_once(" NAME=\"") else { continue };
        let name = rest.split('"').next().unwrap_or_default();
        match kind {
            "HOST" => name.clone_into(&mut host),
            "METRIC" => {
                found.insert((host.clone(), name.to_owned()));
            }
            _ => {}
        }
    }
    found
}

/// Starts a `gmond` that gets its metrics by UDP on `port`, and listens on `listen`.
fn start_gmond(directory: &Path, listen: &str) -> Running {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let udp = socket.local_addr().expect("an address").port();
    drop(socket);
    let settings = directory.join("gmond.conf");
    let lines = format!(
        "globals {{ daemonize = no setuid = no send_metadata_interval = 1\n\
         override_hostname = \"{OTHER_HOST}\" override_ip = \"127.0.0.1\" }}\n\
         cluster {{ name = \"others\" }}\n\
         udp_send_channel {{ host = 127.0.0.1 port = {udp} }}\n\
         udp_recv_channel {{ bind = 127.0.0.1 port = {udp} }}\n\
         tcp_accept_channel {{ bind = 127.0.0.1 port = {} }}\n\
         modules {{ module {{ name = \"core_metrics\" }} }}\n\
         collection_group {{ collect_once = yes time_threshold = 1 \
         metric {{ name = \"heartbeat\" }} }}\n",
        port(listen)
    );
    files::write(&settings, lines);
    let gmond = Running::start(Command::new("gmond").args(["-f", "-c", text(&settings)]));
    wait_for("gmond listens", PATIENCE, || read_all(listen));
    wait_for("gmond shows a metric of gmetric", PATIENCE, || {
        let metric = ["-n", OTHER_METRIC, "-v", "21", "-t", "double", "-u", "Celsius"];
        run("gmetric", ["-c", text(&settings)].into_iter().chain(metric));
        read_all(listen).filter(|document| document.contains(OTHER_METRIC))
    });
    gmond
}

fn start_gmetad(directory: &Path, sources: [&str; 2], (xml, queries): (&str, &str)) -> Running {
    let (settings, rrds) = (directory.join("gmetad.conf"), directory.join("rrds"));
    files::create_dir(&rrds);
    let lines = format!(
        "data_source \"skep\" 1 {}\ndata_source \"others\" 1 {}\nrrd_rootdir \"{}\"\n\
         setuid off\nxml_port {xml}\ninteractive_port {queries}\ncase_sensitive_hostnames 1\n",
        sources[0],
        sources[1],
        text(&rrds)
    );
    files::write(&settings, lines);
    Running::start(Command::new("gmetad").args(["-d", "1", "-c", text(&settings)]))
}

/// Checks the monitor's document against the document type that the document of `gmond` declares.
fn check_form(directory: &Path, document: &str, of_gmond: &str) {
    let begin = of_gmond.find("<!DOCTYPE").expect("declarations");
    let end = of_gmond.find("]>").expect("the end of the declarations") + 2;
    let root = document.find("<GANGLIA_XML").expect("a root element");
    let file = directory.join("document.xml");
    let declared = [&document[..root], &of_gmond[begin..end], "\n", &document[root..]].concat();
    files::write(&file, declared);
    run("xmllint", ["--noout", "--valid", text(&file)]);
}

/// Runs `gstat` for the monitor.
fn gstat(address: &str) -> Finished {
    let arguments = ["-a", "-i", "127.0.0.1", "-p", port(address)];
    finish(Command::new("gstat").args(arguments), PATIENCE)
}

/// Whether a subdirectory of `directory` contains `file`.
fn is_in(directory: &Path, file: &Path) -> bool {
    files::read_dir(directory).flatten().any(|it| it.path().join(file).exists())
}

/// `gmetad` stores each metric of each server together with the metrics of a `gmond`, and `gstat`
/// shows dead servers.
pub(crate) fn ganglia_stores_the_metrics_of_each_server(_: &()) {
    let cluster = Cluster::start(Shape::default());
    let scratch = Scratch::new();
    let [listen, of_gmond, xml, queries] = free_addresses();
    let monitor = Running::monitor(&cluster, &scratch, &[format!("ganglia.listen={listen}")]);
    let gmond = start_gmond(scratch.path(), &of_gmond);
    let kinds = ["management", "metadata", "storage"].into_iter();
    let servers = kinds.flat_map(|kind| cluster.nodes(kind));
    let servers: BTreeSet<_> = servers.map(|node| node["name"].text().to_owned()).collect();
    let document = wait_for("the monitor lists all servers", PATIENCE, || {
        let document = read_all(&listen)?;
        let hosts: BTreeSet<_> = metrics(&document).into_iter().map(|(host, _)| host).collect();
        (hosts == servers).then_some(document)
    });
    check_form(scratch.path(), &document, &read_all(&of_gmond).expect("gmond listens"));
    let shown = gstat(&listen).expect_success();
    assert!(shown.contains(&format!(" Hosts: {}\n", servers.len())), "{shown}");
    assert!(shown.contains("Dead Hosts: 0\n"), "{shown}");
    assert!(servers.iter().all(|name| shown.contains(name.as_str())), "{shown}");
    let sources = [listen.as_str(), of_gmond.as_str()];
    let gmetad = start_gmetad(scratch.path(), sources, (port(&xml), port(&queries)));
    let mut expected = metrics(&document);
    for target in cluster.target_ids("storage").iter().chain(&cluster.target_ids("metadata")) {
        let free = format!("skep_t{target}_free");
        assert!(expected.iter().any(|(_, metric)| *metric == free), "{free}: {expected:?}");
    }
    expected.insert((OTHER_HOST.into(), OTHER_METRIC.into()));
    // A document that `gmond` sends after `document` may have more metrics.
    let mut missing = Vec::new();
    let is_complete = skep_testkit::eventually(PATIENCE, || {
        let stored = metrics(&read_all(&xml)?);
        missing = expected.difference(&stored).cloned().collect();
        missing.is_empty().then_some(())
    });
    assert!(is_complete.is_some(), "gmetad does not show {missing:?}");
    let rrds = scratch.join("rrds");
    for (host, metric) in &expected {
        let file = Path::new(host).join(format!("{metric}.rrd"));
        wait_for(text(&file), PATIENCE, || is_in(&rrds, &file).then_some(()));
    }
    println!("gmetad stores {} metrics of {} servers", expected.len(), servers.len());
    let suspended = Suspended::of(vec![cluster.processes("storage").remove(0)]);
    wait_for("gstat shows the suspended server as dead", PATIENCE, || {
        gstat(&listen).expect_success().contains("Dead Hosts: 1\n").then_some(())
    });
    drop(suspended);
    wait_for("gstat shows the server again", PATIENCE, || {
        gstat(&listen).expect_success().contains("Dead Hosts: 0\n").then_some(())
    });
    drop((gmetad, gmond, monitor));
    cluster.stop();
}
