//! The cluster of the test: its hosts, disks, services and mounts, and the state of its groups.

use crate::histories::{Histories, SharedDirectory};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use skep_testkit::network::{Host, Switch};
use skep_testkit::program::{Finished, clean_up, run};
use skep_testkit::target_disk::{DiskKind, TargetDisk};
use skep_testkit::{PATIENCE, Scratch, cluster, eventually, files, wait_for};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Time limit for all members to serve again after a fault.
pub(crate) const LONGEST_RETURN: Duration = Duration::from_secs(120);
/// The mounts whose programs must not get any error.
pub(crate) const MOUNTS: [&str; 2] = ["mnt-1", "mnt-2"];
/// A mount on its own host, which faults disconnect for longer than the lease of a client.
pub(crate) const CUT_OFF: &str = "mnt-3";
pub(crate) const MANAGEMENT: [&str; 3] = ["management-1", "management-2", "management-3"];
/// The metadata services. Each service has one target.
pub(crate) const METADATA: [&str; 7] = [
    "metadata-1",
    "metadata-2",
    "metadata-3",
    "metadata-4",
    "metadata-5",
    "metadata-6",
    "metadata-7",
];
pub(crate) const STORAGE: &str = "storage";
/// The metadata groups, as indices in `METADATA`.
pub(crate) const GROUPS: [&[usize]; 3] = [&[0, 1], &[2, 3], &[4, 5, 6]];
/// Number of shared directories in each group.
const DIRECTORIES: usize = 3;
/// Nodes whose data is on a disk that can fail: the target of a metadata service, or the directory
/// of a management node. The directories of all other nodes are so small that a test can fill these
/// directories.
pub(crate) const WITH_DISKS: [&str; 3] = ["metadata-2", "metadata-5", "management-3"];
/// Mount options of the tmpfs for the small directory of a node. A test can fill this tmpfs.
pub(crate) const SMALL_DISK: &str = "size=1g,huge=never";
/// A cluster, its hosts and its mounts.
pub(crate) struct Site {
    // The services must be dropped before their hosts, and Rust drops fields in the order of their
    // declaration.
    services: BTreeMap<&'static str, Child>,
    mounts: Vec<Child>,
    pub(crate) disks: BTreeMap<&'static str, TargetDisk>,
    pub(crate) hosts: BTreeMap<&'static str, Host>,
    /// The addresses of management.
    addresses: String,
    _switch: Switch,
    pub(crate) scratch: Scratch,
}

pub(crate) fn kind(name: &str) -> &str {
    name.split('-').next().expect("a name")
}

impl Site {
    pub(crate) fn path(&self, name: &str) -> String {
        self.scratch.join(name).display().to_string()
    }

    /// Returns the directory of a node. This directory contains the node's own files and its
    /// target.
    pub(crate) fn place(&self, name: &str) -> PathBuf {
        self.scratch.join(&format!("{name}-host"))
    }

    pub(crate) fn command(&self, name: &str) -> Command {
        self.hosts[name].command_in_network(&cluster::program())
    }

    pub(crate) fn arguments(&self, name: &str) -> Vec<String> {
        let place = self.place(name);
        let directory = place.join("node").display().to_string();
        let address = &self.hosts[name].address;
        let mut arguments = vec![kind(name).to_owned(), "--directory".to_owned(), directory];
        arguments.extend(["--listen".to_owned(), format!("{address}:7400")]);
        if kind(name) != "management" {
            let target = place.join("target").display().to_string();
            arguments.extend(["--target".to_owned(), target]);
        }
        arguments
    }

    pub(crate) fn initialise(&self, name: &str, more: &[&str]) {
        let place = self.place(name);
        files::create_dir_all(&place);
        if name != STORAGE && !WITH_DISKS.contains(&name) {
            let options = ["-t", "tmpfs", "-o", SMALL_DISK, "skep-test"];
            run("mount", options.iter().copied().chain([place.to_str().expect("ASCII")]));
        }
        let mut command = self.command(name);
        command.args(self.arguments(name)).arg("--init").args(more);
        skep_testkit::program::finish(&mut command, PATIENCE).expect_success();
    }

    pub(crate) fn start(&mut self, name: &'static str) {
        let log = self.scratch.join(&format!("{name}.log"));
        let log = File::options().create(true).append(true).open(log).expect("a log file");
        let mut command = self.command(name);
        let child = command.args(self.arguments(name)).stderr(log).spawn();
        self.services.insert(name, child.expect("skep can be started"));
    }

    pub(crate) fn ask(&self, arguments: &[&str]) -> Finished {
        let token = self.token();
        let more = ["--cluster", &self.addresses, "--token-file", &token, "--output", "json"];
        cluster::skep([arguments, &more].concat())
    }

    pub(crate) fn token(&self) -> String {
        self.path("token")
    }

    pub(crate) fn try_json(&self, arguments: &[&str]) -> Option<Value> {
        let found = self.ask(arguments);
        found.status.success().then(|| serde_json::from_str(&found.stdout).expect("JSON"))
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        wait_for("management answers", PATIENCE, || self.try_json(arguments))
    }

    /// Returns the target id of a service.
    pub(crate) fn target(&self, name: &str) -> String {
        let path = self.place(name).join("target").display().to_string();
        wait_for("the target is registered", PATIENCE, || {
            let targets = self.try_json(&["target", "list"])?;
            let mut targets = targets.as_array()?.iter();
            let found = targets.find(|it| it["path"] == path.as_str())?;
            (found["reachability"] == "Online").then(|| found["id"].to_string())
        })
    }

    /// Returns the service of the primary of each group, in the order of [`GROUPS`].
    pub(crate) fn primaries(&self) -> [&'static str; GROUPS.len()] {
        let targets = self.json(&["target", "list"]);
        let groups = self.json(&["group", "list"]);
        let is_primary = |name: &str| {
            let path = self.place(name).join("target").display().to_string();
            let targets = targets.as_array().expect("a list");
            let target = targets.iter().find(|it| it["path"] == path.as_str()).expect("listed");
            let groups = groups.as_array().expect("a list");
            groups.iter().any(|it| it["kind"] == "metadata" && it["primary"] == target["id"])
        };
        GROUPS.map(|members| {
            let mut names = members.iter().map(|at| METADATA[*at]);
            names.find(|name| is_primary(name)).expect("each group has a primary")
        })
    }

    /// Moves the data of a stopped node to a disk that can fail, if [`WITH_DISKS`] has the node.
    fn add_disk(&mut self, name: &'static str) {
        if WITH_DISKS.contains(&name) {
            let data = if kind(name) == "management" { "node" } else { "target" };
            let disk = TargetDisk::under(&self.place(name).join(data), DiskKind::Ext4);
            self.disks.insert(name, disk);
        }
    }

    /// Returns the management node that is the leader.
    pub(crate) fn leader(&self) -> &'static str {
        let status = self.json(&["management", "status"]);
        let nodes = status["nodes"].as_array().expect("a list");
        let leader = nodes.iter().find(|it| it["id"] == status["leader"]).expect("a leader");
        let addresses = leader["addresses"].to_string();
        let has_address =
            |name: &str| addresses.contains(&format!("\"{}:7400\"", self.hosts[name].address));
        MANAGEMENT.into_iter().find(|name| has_address(name)).expect("the leader is known")
    }

    pub(crate) fn start_management(&mut self) {
        self.initialise(MANAGEMENT[0], &[]);
        self.start(MANAGEMENT[0]);
        let source = self.place(MANAGEMENT[0]).join("node/join-token");
        wait_for("the token", PATIENCE, || source.exists().then_some(()));
        run("cp", [source.to_str().expect("ASCII"), &self.token()]);
        self.json(&["target", "list"]);
        for name in &MANAGEMENT[1..] {
            self.initialise(name, &["--join", "--token-file", &self.token()]);
            self.add_disk(name);
            self.start(name);
            let host = self.hosts[name].address.clone();
            let node = wait_for("the node is registered", PATIENCE, || {
                let nodes = self.try_json(&["node", "list"])?;
                let of_host = |it: &&Value| it.to_string().contains(&host);
                nodes.as_array()?.iter().find(of_host).map(|it| it["id"].to_string())
            });
            wait_for("the node is a member of management", PATIENCE, || {
                self.ask(&["management", "add", &node]).status.success().then_some(())
            });
        }
        self.addresses =
            MANAGEMENT.map(|name| format!("{}:7400", self.hosts[name].address)).join(",");
    }

    pub(crate) fn new() -> Self {
        let switch = Switch::new();
        let all = MANAGEMENT.iter().chain(&METADATA).chain(&[STORAGE, CUT_OFF]);
        let hosts: BTreeMap<_, _> = all.map(|name| (*name, switch.host())).collect();
        let addresses = format!("{}:7400", hosts[MANAGEMENT[0]].address);
        let mut site = Self {
            services: BTreeMap::new(),
            mounts: Vec::new(),
            disks: BTreeMap::new(),
            hosts,
            addresses,
            _switch: switch,
            scratch: Scratch::new(),
        };
        site.start_management();
        site.ask(&["config", "set", "metadata-copies", "2"]).expect_success();
        for name in METADATA.iter().chain(&[STORAGE]) {
            site.initialise(name, &["--token-file", &site.token()]);
            site.add_disk(name);
            site.start(name);
            site.target(name);
        }
        for members in GROUPS {
            let targets: Vec<_> = members.iter().map(|at| site.target(METADATA[*at])).collect();
            let targets = targets.iter().map(String::as_str);
            site.ask(&["group", "create"].into_iter().chain(targets).collect::<Vec<_>>())
                .expect_success();
        }
        site.ask(&["cluster", "format"]).expect_success();
        MOUNTS.iter().chain(&[CUT_OFF]).for_each(|name| site.mount(name));
        site
    }

    pub(crate) fn mount(&mut self, name: &str) {
        let point = self.scratch.directory(name);
        let log = File::create(self.scratch.join(&format!("{name}.log"))).expect("a log file");
        let mut command = match self.hosts.contains_key(name) {
            true => self.command(name),
            false => Command::new(cluster::program()),
        };
        command.args(["mount", "--foreground", "-o", "attribute_timeout=0"]);
        command.args(["--cluster", &self.addresses, "--token-file", &self.token()]).arg(&point);
        let child = command.stdout(Stdio::null()).stderr(log).spawn();
        self.mounts.push(child.expect("skep can be started"));
        wait_for("the mount", PATIENCE, || {
            let mut bytes = [0_u8; 64];
            rustix::fs::getxattr(&point, "user.skep.transport", &mut bytes).ok()
        });
    }

    /// Creates directories below the first mount point until each group has the same number of
    /// directories.
    pub(crate) fn make_directories(&self) -> Vec<SharedDirectory> {
        let mut of_groups: BTreeMap<u64, usize> = BTreeMap::new();
        let mut directories = Vec::new();
        for number in 0.. {
            let name = format!("shared-{number}");
            let path = self.scratch.join(MOUNTS[0]).join(&name);
            files::create_dir(&path);
            let info = self.json(&["entry", "info", path.to_str().expect("ASCII")]);
            let group = info["metadata"]["group"].as_u64().expect("a group");
            let count = of_groups.entry(group).or_default();
            if *count < DIRECTORIES {
                *count += 1;
                directories.push(SharedDirectory { name, group });
            }
            if directories.len() == DIRECTORIES * GROUPS.len() {
                break;
            }
            assert!(number < 1000, "no directories on some groups: {of_groups:?}");
        }
        directories
    }

    /// Copies the logs of all processes to the directory for results. If the run has no directory
    /// for results, prints the end of each log.
    pub(crate) fn show_logs(&self) {
        let results = std::env::var("SKEP_EXTERNAL_RESULTS").map(PathBuf::from);
        for name in MANAGEMENT.iter().chain(&METADATA).chain(&[STORAGE, CUT_OFF]).chain(&MOUNTS) {
            let log = self.scratch.join(&format!("{name}.log"));
            if let Ok(results) = &results {
                let saved = std::fs::create_dir_all(results)
                    .and_then(|()| std::fs::copy(log, results.join(format!("{name}.log"))));
                eprintln!("--- log of {name}: {saved:?} bytes in {}", results.display());
                continue;
            }
            let log = std::fs::read_to_string(log).unwrap_or_default();
            let lines: Vec<_> = log.lines().collect();
            let last = lines[lines.len().saturating_sub(60)..].join("\n");
            eprintln!("--- {name}\n{last}");
        }
    }

    /// Returns the reason why not all nodes serve. `None` means that all nodes serve.
    pub(crate) fn obstacle(&self) -> Option<String> {
        let Some(groups) = self.try_json(&["group", "list"]) else {
            return Some("management does not answer".into());
        };
        for group in groups.as_array().expect("a list") {
            let members = group["members"].as_array().expect("members");
            if group["kind"] == "metadata" && members.iter().any(|it| it["state"] != "Serving") {
                return Some(group.to_string());
            }
        }
        let Some(status) = self.try_json(&["management", "status"]) else {
            return Some("management does not answer".into());
        };
        let nodes = status["nodes"].as_array().expect("a list");
        let is_well = |it: &Value| it["reachability"] == "Online" && it["lag"] == 0;
        (!nodes.iter().all(is_well)).then(|| status.to_string())
    }

    /// After a fault, waits until all nodes serve. If a member was unreachable for a short time,
    /// management may still list the member as serving. So this function first waits until the
    /// programs have used names of each group.
    pub(crate) fn wait_until_all_serve(&self, histories: &Histories) {
        histories.wait_until_all_go_on();
        let mut last = None;
        let ended = eventually(LONGEST_RETURN, || {
            last = self.obstacle();
            last.is_none().then_some(())
        });
        assert!(ended.is_some(), "all nodes serve again: {last:?}");
    }

    pub(crate) fn signal(&self, name: &str, signal: Signal) {
        kill_process(Pid::from_child(&self.services[name]), signal).expect("our own child");
    }

    pub(crate) fn kill(&mut self, name: &str) {
        let mut child = self.services.remove(name).expect("a running service");
        child.kill().expect("our own child");
        child.wait().expect("our own child");
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.show_logs();
        }
        for name in MOUNTS.into_iter().chain([CUT_OFF]) {
            clean_up(Command::new("umount").arg("--lazy").arg(self.scratch.join(name)));
        }
        for child in self.services.values_mut().chain(&mut self.mounts) {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.disks.clear();
        for name in MANAGEMENT.iter().chain(&METADATA) {
            if !WITH_DISKS.contains(name) {
                clean_up(Command::new("umount").arg("--lazy").arg(self.place(name)));
            }
        }
    }
}
