//! Servers of the templates that differ from the default: machines of scale sets, local disks of
//! the machines, failure domains from the cloud, and devices that the user names.

use super::{Cloud, TOKEN, render, strings};
use serde_json::Value;
use skep_testkit::page::PageHost;
use skep_testkit::{PATIENCE, wait_for};
use std::collections::BTreeMap;

/// A replacement of Azure's metadata service, with the replies that the user data requests. A host
/// whose address ends with an even number is in fault domain 0, any other host in fault domain 1.
const METADATA_SERVICE: &str = r#"
from http.server import BaseHTTPRequestHandler, HTTPServer

class Service(BaseHTTPRequestHandler):
    def do_GET(self):
        compute, end = "/metadata/instance/compute/", "?api-version=2021-02-01&format=text"
        last = int(self.client_address[0].split(".")[-1])
        values = {"platform" + "Fault" + "Domain": str(last % 2), "zone": ""}
        name = self.path.removeprefix(compute).removesuffix(end)
        known = name in values and self.headers.get("Metadata") == "true"
        self.send_response(200 if known else 404)
        self.end_headers()
        self.wfile.write(values.get(name, "").encode() if known else b"")

HTTPServer(("169.254.169.254", 80), Service).serve_forever()
"#;

/// Starts the metadata service on the web server. Hosts that the test adds after this call can
/// reach the service.
fn start_metadata_service(cloud: &mut Cloud) {
    cloud.web.run("ip addr add 169.254.169.254/32 dev eth0").expect_success();
    // The web server of the package listens on all addresses.
    cloud.web.stop();
    let web = format!("python3 -m http.server --directory /srv/web --bind {}.99 80", cloud.prefix);
    cloud.web.start(&web);
    let write =
        format!("cat >/srv/service.py <<'END OF SERVICE'\n{METADATA_SERVICE}\nEND OF SERVICE");
    cloud.web.run(&write).expect_success();
    cloud.web.start("python3 /srv/service.py");
    let zone = "http://169.254.169.254/metadata/instance/compute/zone";
    let ask = format!("curl -fs -H Metadata:true '{zone}?api-version=2021-02-01&format=text'");
    wait_for("the metadata service answers", PATIENCE, || {
        cloud.web.run(&ask).status.success().then_some(())
    });
    cloud.has_metadata_service = true;
}

/// Returns the first address and the failure domain of each node of the kind `kind`.
fn domains(host: &PageHost, kind: &str) -> BTreeMap<String, Option<String>> {
    let list = host.run("skep node list --cluster 10.75.0.10 --output json").expect_success();
    let list: Value = serde_json::from_str(&list).expect("JSON");
    let nodes = list.as_array().expect("a list").iter().filter(|node| node["kind"] == kind);
    let text = |value: &Value| value.as_str().map(str::to_owned);
    nodes.map(|it| (text(&it["addresses"][0]).expect("an address"), text(&it["domain"]))).collect()
}

/// Returns the user data of a host that runs all services of a cluster. `disks` is the value of
/// `SKEP_DISKS`.
fn all_services(cloud: &Cloud, disks: &str) -> String {
    let settings = [
        "SKEP_ROLES=management metadata storage".to_owned(),
        "SKEP_MANAGEMENT=10.75.0.10".to_owned(),
        format!("SKEP_TOKEN={TOKEN}"),
        "SKEP_FORMAT=1 1".to_owned(),
        format!("SKEP_DISKS={disks}"),
        format!("SKEP_PACKAGE={}", cloud.url()),
        format!("SKEP_SHA256={}", cloud.sha256),
    ];
    let hosts = render("cloud-init/node.yaml", "", &settings);
    let (user_data, _) = hosts.into_values().next().expect("one host");
    user_data
}

#[test]
fn scale_set_servers_get_failure_domains_from_the_cloud() {
    let mut cloud = Cloud::new("10.75.0");
    start_metadata_service(&mut cloud);
    let mut parameters = strings(&["accessNetwork=192.0.2.0/24", "sshKey=ssh-ed25519"]);
    parameters.extend(strings(&["system=nvme-l8s", "scaleSets=true", "features="]));
    parameters.extend(strings(&["storageServers=2", "computeNodes=1"]));
    parameters.push(format!("packageUrl={}", cloud.url()));
    parameters.push(format!("packageSha256={}", cloud.sha256));
    let hosts = render("azure/cluster.json", "10.75.0.10", &parameters);
    assert_eq!(hosts["storage"].1, 2, "the scale set of the storage servers");
    assert_eq!(hosts["client"].1, 2, "the login node and the scale set of the compute nodes");
    cloud.boot(&hosts, 10);
    cloud.expect_cluster("/share/scratch", 1, 2);
    let management = cloud.named("managem")[0];
    let found = domains(management, "storage");
    assert_eq!(found.len(), 2, "{found:?}");
    for (address, domain) in &found {
        let end = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
        let last: u32 = end.rsplit_once('.').expect("IPv4").1.parse().expect("a number");
        assert_eq!(domain.as_deref(), Some(format!("fault-{}", last % 2).as_str()), "{found:?}");
    }
}

#[test]
fn node_script_formats_the_named_logical_volumes() {
    let mut cloud = Cloud::new("10.75.0");
    let at = cloud.add("all", 10, 3);
    // Nodes of loop devices play the logical volumes. Two of these volumes have the same name in
    // two volume groups.
    cloud.hosts[at]
        .run(
            "cd /dev; mkdir vg1 vg2; mv nvme1n1 vg1/data; mv nvme2n1 vg2/names\n\
             mv nvme3n1 vg2/data",
        )
        .expect_success();
    let user_data = all_services(&cloud, "/dev/vg2/names /dev/vg1/data /dev/vg2/data");
    cloud.start(at, &user_data);
    cloud.await_ready(at);
    let host = &cloud.hosts[at];
    let mounts = host.run("grep -o '^/dev/vg[^ ]* [^ ]* xfs' /proc/mounts | sort").expect_success();
    assert_eq!(
        mounts,
        "/dev/vg1/data /srv/skep/disks/vg1-data xfs\n/dev/vg2/data /srv/skep/disks/vg2-data xfs\n\
         /dev/vg2/names /srv/skep/disks/vg2-names xfs\n"
    );
    let config = host.run("cat /etc/skep/storage-skep.toml").expect_success();
    let storage = "\"/srv/skep/disks/vg1-data/storage\", \"/srv/skep/disks/vg2-data/storage\"";
    assert!(config.contains(storage), "{config}");
}

/// A disk becomes a target, although the services run when the disk is attached. The name of the
/// new disk sorts before the names of all other disks, but the metadata target must stay on its own
/// disk.
#[test]
fn disk_added_to_a_running_server_becomes_a_target() {
    let mut cloud = Cloud::new("10.75.0");
    let at = cloud.add("all", 10, 3);
    cloud.hosts[at].run("mv /dev/nvme1n1 /dev/later").expect_success();
    let user_data = all_services(&cloud, "auto");
    cloud.start(at, &user_data);
    cloud.await_ready(at);
    let targets = |host: &PageHost, kind: &str| {
        host.run(&format!("grep targets /etc/skep/{kind}-skep.toml")).expect_success()
    };
    let of_metadata = "targets = [\"/srv/skep/disks/nvme2n1/metadata\"]\n";
    assert_eq!(targets(&cloud.hosts[at], "metadata"), of_metadata);

    cloud.hosts[at].run("mv /dev/later /dev/nvme1n1; rm /srv/boot.log").expect_success();
    cloud.start(at, &user_data);
    cloud.await_ready(at);
    let host = &cloud.hosts[at];
    assert_eq!(targets(host, "metadata"), of_metadata);
    let of_storage = targets(host, "storage");
    for disk in ["nvme1n1", "nvme3n1"] {
        assert!(of_storage.contains(&format!("/srv/skep/disks/{disk}/storage\"")), "{of_storage}");
    }
    wait_for("both storage targets and the metadata target are online", PATIENCE, || {
        let list = host.run("skep target list --cluster 10.75.0.10").stdout;
        (list.matches(" Online ").count() == 3).then_some(())
    });
}
