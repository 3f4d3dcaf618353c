//! The templates in `deploy/`. Hosts run the user data of the templates' instances, and must become
//! a mounted cluster. Each host has a separate network, root directory and disks. A host gets the
//! program as a package from a web server, like an instance in a cloud. The module `kubernetes`
//! runs the containers of the manifests for Kubernetes. The module `servers` tests the choices of
//! disks and failure domains. The module `image` tests hosts that start from an image with Skep.
//!
//! Parameters have their defaults, with two exceptions. The feature `tune` is off, because it would
//! change the settings of this machine's kernel. Large systems get fewer hosts.

mod image;
mod kubernetes;
mod servers;

use serde_json::Value;
use skep_testkit::loop_device::LoopDevice;
use skep_testkit::page::{PageHost, PageNetwork};
use skep_testkit::program::finish;
use skep_testkit::{PATIENCE, eventually};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Time limit for the boot of all hosts. The limit is long, because the machine may be busy with
/// other work.
const LONG: Duration = Duration::from_secs(300);
/// Size in bytes of a disk.
const DISK_BYTES: u64 = 400 << 20;
/// A token that the test chooses before the creation of the cluster.
const TOKEN: &str = "skep1-0123456789abcdef0123456789abcdef-\
    00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

/// For each role, the user data of its hosts and the number of these hosts.
type Hosts = BTreeMap<String, (String, u64)>;

/// Evaluates a template with the given parameters, and returns its hosts.
fn render(template: &str, management: &str, parameters: &[String]) -> Hosts {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/templates/render.py");
    let mut command = Command::new("python3");
    command.arg(program).arg(directory().join(template)).arg(management).args(parameters);
    let output = finish(&mut command, PATIENCE).expect_success();
    let Value::Object(hosts) = serde_json::from_str(&output).expect("JSON") else {
        panic!("no object: {output}");
    };
    let pair = |it: &Value| {
        (it[0].as_str().expect("a text").to_owned(), it[1].as_u64().expect("a number"))
    };
    hosts.iter().map(|(roles, it)| (roles.clone(), pair(it))).collect()
}

/// A network with instances.
struct Cloud {
    // Rust drops fields in the order of their declaration, and the hosts must be dropped before
    // their disks and their switch.
    hosts: Vec<PageHost>,
    web: PageHost,
    disks: Vec<LoopDevice>,
    network: PageNetwork,
    /// The first three numbers of all addresses in the network.
    prefix: &'static str,
    sha256: String,
    /// Whether further hosts reach a metadata service at the address that clouds use.
    has_metadata_service: bool,
}

impl Cloud {
    /// Starts a network with a web server that serves the package.
    fn new(prefix: &'static str) -> Self {
        let network = PageNetwork::new();
        let mut web = network.host("web", &format!("{prefix}.99/24"));
        let script = include_str!("../../../../packaging/tarball/install.sh");
        web.run(&format!("cat >/srv/install.sh <<'END-OF-SCRIPT'\n{script}END-OF-SCRIPT"))
            .expect_success();
        web.run(
            "mkdir -p /srv/web/skep-0/bin /srv/web/skep-0/lib /srv/web/skep-0/share; cd /srv/web\n\
             strip -o skep-0/bin/skep /usr/bin/skep; rm /usr/bin/skep; cp /srv/install.sh skep-0\n\
             chmod 755 skep-0/install.sh; tar -c skep-0 | gzip -1 >skep.tar.gz; rm -r skep-0",
        )
        .expect_success();
        let sum = web.run("sha256sum </srv/web/skep.tar.gz").expect_success();
        web.start("python3 -m http.server --directory /srv/web 80");
        let sha256 = sum.split_whitespace().next().expect("a checksum").to_owned();
        let (hosts, disks, has_metadata_service) = (Vec::new(), Vec::new(), false);
        Self { hosts, web, disks, network, prefix, sha256, has_metadata_service }
    }

    fn url(&self) -> String {
        format!("http://{}.99/skep.tar.gz", self.prefix)
    }

    /// Adds a host without the program `skep`. The host has only its own disks.
    fn add(&mut self, name: &str, address: u64, disks: usize) -> usize {
        let host = self.network.host(name, &format!("{}.{address}/24", self.prefix));
        host.run(
            "rm -f /usr/bin/skep /sbin/*mount.skep /sbin/*mount.fuse.skep; rm -rf /run/skep\n\
             rm -rf /var/log/skep; : >/etc/fstab; mount -t tmpfs tmpfs /sys/block\n\
             mkdir /srv/dev; mount -t tmpfs tmpfs /srv/dev\n\
             for it in null zero full random urandom tty fuse; do cp -a /dev/$it /srv/dev; done\n\
             mount --move /srv/dev /dev",
        )
        .expect_success();
        if self.has_metadata_service {
            host.run("ip route add 169.254.169.254 dev eth0").expect_success();
        }
        for index in 1..=disks {
            let disk = LoopDevice::with_size(DISK_BYTES);
            host.run(&format!(
                "mknod /dev/nvme{index}n1 b 7 {}\n\
                 mkdir -p /sys/block/nvme{index}n1/holders; cd /sys/block/nvme{index}n1\n\
                 echo 0 >ro; echo {} >size",
                disk.number(),
                (400 << 20) / 512
            ))
            .expect_success();
            self.disks.push(disk);
        }
        self.hosts.push(host);
        self.hosts.len() - 1
    }

    /// Adds the hosts of a template, and starts the user data of each host. Clients start first. So
    /// the test checks that clients wait for the other hosts. Management has the address
    /// `management`.
    fn boot(&mut self, hosts: &Hosts, management: u64) {
        let mut next = management + 1;
        for (roles, (user_data, number)) in hosts {
            for index in 1..=*number {
                let is_management = roles.contains("management");
                let address = if is_management { management } else { next };
                next += u64::from(!is_management);
                let name: String = roles.replace(' ', "").chars().take(7).collect();
                let is_server = ["metadata", "storage"].iter().any(|it| roles.contains(it));
                let at = self.add(&format!("{name}{index}"), address, usize::from(is_server));
                self.start(at, user_data);
            }
        }
        for at in 0..self.hosts.len() {
            self.await_ready(at);
        }
    }

    fn start(&mut self, at: usize, user_data: &str) {
        let host = &mut self.hosts[at];
        host.run(&format!(
            "cat >/srv/user-data <<'END OF USER DATA'\n{user_data}\nEND OF USER DATA"
        ))
        .expect_success();
        host.start("sh -c 'sh /srv/user-data >/srv/boot.log 2>&1; echo ended $? >>/srv/boot.log'");
    }

    fn await_ready(&self, at: usize) {
        let host = &self.hosts[at];
        let mut log = String::new();
        let has_ended = eventually(LONG, || {
            log = host.run("cat /srv/boot.log 2>/dev/null || true").stdout;
            log.contains("\nended ").then_some(())
        });
        assert!(has_ended.is_some(), "{} is not ready: {log}", host.name());
        assert!(log.contains("skep-node: ready\nended 0"), "{}: {log}", host.name());
    }

    fn named(&self, prefix: &str) -> Vec<&PageHost> {
        self.hosts.iter().filter(|host| host.name().starts_with(prefix)).collect()
    }

    /// Checks that all clients have mounted the same healthy cluster, and that this cluster has the
    /// given numbers of targets.
    fn expect_cluster(&self, mount: &str, metadata: usize, storage: usize) {
        let clients: Vec<_> = self
            .hosts
            .iter()
            .filter(|host| host.run(&format!("mountpoint {mount}")).status.success())
            .collect();
        let management = format!("{}.10", self.prefix);
        let targets = clients[0].run(&format!("skep target list --cluster {management}"));
        let targets = targets.expect_success();
        let count = |kind: &str| targets.lines().filter(|line| line.contains(kind)).count();
        assert_eq!((count(" metadata "), count(" storage ")), (metadata, storage), "{targets}");
        let health = format!("skep health check --cluster {management}");
        clients[0].run(&health).expect_success();
        clients[0]
            .run(&format!("head -c 3M /dev/urandom >{mount}/file; sync {mount}/file"))
            .expect_success();
        let sum = |host: &PageHost| host.run(&format!("sha256sum {mount}/file")).expect_success();
        let first = sum(clients[0]);
        assert!(clients.len() > 1, "the cluster has several clients");
        assert!(clients.iter().all(|host| sum(host) == first), "all clients read the same");
    }
}

fn strings(parameters: &[&str]) -> Vec<String> {
    parameters.iter().map(|it| (*it).to_owned()).collect()
}

#[test]
fn cloudformation_cluster_boots_with_default_host_counts() {
    let mut cloud = Cloud::new("10.75.0");
    let mut parameters =
        strings(&["Image=ami-1", "KeyName=key", "AccessNetwork=192.0.2.0/24", "Features=monitor"]);
    parameters.push(format!("Token={TOKEN}"));
    parameters.push(format!("PackageUrl={}", cloud.url()));
    parameters.push(format!("PackageSha256={}", cloud.sha256));
    let hosts = render("cloudformation/cluster.yaml", "10.75.0.10", &parameters);
    cloud.boot(&hosts, 10);
    cloud.expect_cluster("/sharedscratch", 1, 8);
    let management = cloud.named("managem")[0];
    management.run("kill -0 $(cat /run/skep/monitor.pid)").expect_success();
    // Each server has already formatted its disk. A second run of the server's user data must have
    // no further effect.
    let at = cloud.hosts.iter().position(|it| it.name() == "storage1").expect("a storage server");
    let before = cloud.hosts[at].run("grep xfs /proc/mounts; cat /etc/fstab").expect_success();
    assert!(before.contains("/dev/nvme1n1 /srv/skep/disks/nvme1n1 xfs"), "{before}");
    let user_data = hosts["storage"].0.clone();
    cloud.start(at, &user_data);
    cloud.await_ready(at);
    let after = cloud.hosts[at].run("grep xfs /proc/mounts; cat /etc/fstab").expect_success();
    assert_eq!(before, after);
    cloud.expect_cluster("/sharedscratch", 1, 8);
}

#[test]
fn servers_join_a_compute_cluster_with_the_cluster_token() {
    let mut cloud = Cloud::new("10.75.0");
    let settings = |roles: &str| {
        vec![
            format!("SKEP_ROLES={roles}"),
            format!("SKEP_TOKEN={TOKEN}"),
            format!("SKEP_PACKAGE={}", cloud.url()),
            format!("SKEP_SHA256={}", cloud.sha256),
            "SKEP_FEATURES=job-accounting".to_owned(),
        ]
    };
    let mut hosts = render("cloud-init/node.yaml", "", &settings("management client"));
    hosts.append(&mut render("cloud-init/node.yaml", "", &settings("client")));
    let mut parameters = strings(&["Image=ami-1", "KeyName=key", "Vpc=vpc-1", "Subnet=subnet-1"]);
    parameters.extend(strings(&["PlacementGroup=group", "ClusterAddress=10.75.0.10"]));
    parameters.extend(strings(&["StorageServers=2", "AdditionalMetadataServers=1", "Features="]));
    // The parameter has the form of a token that `skep cluster token` prints on the login node.
    parameters.push(format!("Token={TOKEN}@10.75.0.10:7400"));
    parameters.push(format!("PackageUrl={}", cloud.url()));
    parameters.push(format!("PackageSha256={}", cloud.sha256));
    hosts.append(&mut render("cloudformation/attach.yaml", "10.75.0.10", &parameters));
    cloud.boot(&hosts, 10);
    cloud.expect_cluster("/sharedscratch", 2, 2);
}

#[test]
fn azure_cluster_runs_profile_scripts_after_the_mount() {
    let mut cloud = Cloud::new("10.75.0");
    cloud
        .web
        .run(
            "echo 'echo profile on $(mountpoint -q /share/scratch && echo mounted)' >/srv/web/p.sh",
        )
        .expect_success();
    let sum = cloud.web.run("sha256sum </srv/web/p.sh").expect_success();
    let sum = sum.split_whitespace().next().expect("a checksum");
    let mut parameters = strings(&["accessNetwork=192.0.2.0/24", "sshKey=ssh-ed25519"]);
    parameters.extend(strings(&["storageServers=2", "computeNodes=1", "features=monitor"]));
    parameters.push(format!("packageUrl={}", cloud.url()));
    parameters.push(format!("packageSha256={}", cloud.sha256));
    parameters.push(format!("profiles=http://10.75.0.99/p.sh#{sum}"));
    let hosts = render("azure/cluster.json", "10.75.0.10", &parameters);
    cloud.boot(&hosts, 10);
    cloud.expect_cluster("/share/scratch", 1, 2);
    for host in cloud.named("client") {
        let log = host.run("cat /srv/boot.log").expect_success();
        assert!(log.contains("profile on mounted"), "{log}");
    }
}

#[test]
fn node_script_keeps_disks_with_data_and_names_problems() {
    let mut cloud = Cloud::new("10.75.0");
    let at = cloud.add("s1", 11, 2);
    let (url, sha256) = (cloud.url(), cloud.sha256.clone());
    let host = &cloud.hosts[at];
    host.run("mkfs.xfs -q -L mine /dev/nvme1n1").expect_success();
    let check = |changes: &[&str], words: &[&str]| {
        let mut settings = vec![
            "SKEP_ROLES=storage".to_owned(),
            "SKEP_MANAGEMENT=10.75.0.10".to_owned(),
            format!("SKEP_TOKEN={TOKEN}"),
            format!("SKEP_PACKAGE={url}"),
            format!("SKEP_SHA256={sha256}"),
        ];
        for change in changes {
            let name = change.split('=').next().expect("a name");
            settings.retain(|it| !it.starts_with(name));
            settings.push((*change).to_owned());
        }
        let hosts = render("cloud-init/node.yaml", "", &settings);
        let (user_data, _) = hosts.into_values().next().expect("one host");
        host.run(&format!(
            "cat >/srv/user-data <<'END OF USER DATA'\n{user_data}\nEND OF USER DATA"
        ))
        .expect_success();
        let text = host.run("SKEP_PATIENCE=3 sh /srv/user-data").expect_failure();
        for word in words {
            assert!(text.contains(word), "{changes:?}: {word}: {text}");
        }
    };
    check(&["SKEP_ROLES=metdata"], &["unknown role 'metdata'"]);
    check(&["SKEP_DOMAIN=rack\"1"], &["invalid SKEP_DOMAIN 'rack\"1'"]);
    check(&["SKEP_TOKEN=skep1-ID-SECRET"], &["SKEP_TOKEN", "skep1-ID-SECRET"]);
    check(&["SKEP_FEATURES=fast"], &["unknown feature 'fast'"]);
    check(&["SKEP_PACKAGE="], &["no /usr/bin/skep", "SKEP_PACKAGE is empty"]);
    let wrong = format!("SKEP_SHA256={}", "0".repeat(64));
    check(&[&wrong], &["skep.tar.gz", "its SHA-256 is not 000"]);
    check(&["SKEP_DISKS=/dev/nvme1n1"], &["/dev/nvme1n1", "holds data"]);
    check(&["SKEP_DISKS=auto 2"], &["did not get 2 blank disks"]);
    check(&["SKEP_DISKS=/dev/nvme7n1"], &["/dev/nvme7n1", "no block device"]);
    // The script must format only the blank disk.
    check(&["SKEP_DISKS=/dev/nvme2n1 /dev/nvme1n1"], &["/dev/nvme1n1", "holds data"]);
    let labels = host.run("for it in 1 2; do blkid -p -s LABEL -o value /dev/nvme${it}n1; done");
    assert_eq!(labels.expect_success(), "mine\nskep-target\n");
}
