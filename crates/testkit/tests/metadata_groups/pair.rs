//! A cluster whose metadata is on one group of two targets, with its services and mounts. This
//! module also starts the programs that use the mounts while a member fails.
//!
//! The tests themselves cause the faults of the members.

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use skep_testkit::network::Host;
use skep_testkit::program::Finished;
use skep_testkit::workload::{Crash, Worker};
use skep_testkit::{PATIENCE, Scratch, cluster, files, wait_for};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub(crate) const METADATA: [&str; 2] = ["metadata-1", "metadata-2"];

pub(crate) const MOUNTS: [&str; 2] = ["mnt-1", "mnt-2"];
/// Maximum number of stops of the cluster until `skep fsck` has compared both members.
const STOPS: usize = 4;

/// A cluster with one group of two metadata targets, on two services, and its mounts.
pub(crate) struct Pair {
    pub(crate) scratch: Scratch,
    /// The host of the first metadata service.
    pub(crate) host: Host,
    launcher: Launcher,
    /// Process ids of the services.
    services: BTreeMap<&'static str, u32>,
    mounts: Vec<Child>,
}

/// A shell that starts the services. This shell has no open files on the mounts.
///
/// A child process of the test has copies of the test's open files until this process executes its
/// program. At that moment the kernel closes the copies, and such a close waits for metadata. So if
/// the test started a metadata service, the service's process would wait for itself.
struct Launcher {
    shell: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Launcher {
    fn new() -> Self {
        let script = "while read -r line; do\n\
            case $line in wait*) $line; echo $? ;; *) eval \"$line\" & echo $! ;; esac\n\
            done";
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = command.spawn().expect("a shell can be started");
        let input = shell.stdin.take().expect("a pipe");
        let output = BufReader::new(shell.stdout.take().expect("a pipe"));
        Self { shell, input, output }
    }

    /// Sends a line to the shell, and returns the number in its reply.
    fn ask(&mut self, line: &str) -> u32 {
        writeln!(self.input, "{line}").expect("the shell reads");
        let mut reply = String::new();
        self.output.read_line(&mut reply).expect("the shell replies");
        reply.trim().parse().expect("a number")
    }

    /// Starts a program, and appends its standard error to `log`. Returns its process id.
    fn start(&mut self, command: &Command, log: &Path) -> u32 {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let words: Vec<_> = words.map(|word| format!("'{}'", word.display())).collect();
        let log = log.display();
        self.ask(&format!("exec {} </dev/null >/dev/null 2>>'{log}'", words.join(" ")))
    }

    /// Waits until a program ends. Returns its exit status.
    fn wait(&mut self, process: u32) -> u32 {
        self.ask(&format!("wait {process}"))
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

/// The pauses of programs, measured by one program on each mount.
#[derive(Default)]
pub(crate) struct Pauses {
    longest_us: AtomicU64,
    rounds: [AtomicU64; MOUNTS.len()],
}

impl Pauses {
    /// Waits until each program has made progress. After that, returns the longest pause since the
    /// previous call of this function.
    pub(crate) fn take(&self) -> Duration {
        let before: Vec<_> = self.rounds.iter().map(|it| it.load(Ordering::SeqCst)).collect();
        wait_for("all programs go on", PATIENCE, || {
            let mut rounds = self.rounds.iter().zip(&before);
            rounds.all(|(now, before)| now.load(Ordering::SeqCst) > before + 1).then_some(())
        });
        Duration::from_micros(self.longest_us.swap(0, Ordering::SeqCst))
    }
}

impl Pair {
    pub(crate) fn path(&self, name: &str) -> String {
        self.scratch.join(name).display().to_string()
    }

    pub(crate) fn mount_point(&self) -> PathBuf {
        self.scratch.join(MOUNTS[0])
    }

    /// Returns the address on which a service listens.
    pub(crate) fn listen(&self, name: &str) -> String {
        let address = match name == METADATA[0] {
            true => &self.host.address,
            false => &self.host.our_address,
        };
        format!("{address}:0")
    }

    pub(crate) fn ask(&self, arguments: &[&str]) -> Finished {
        let management = self.path("management");
        let more = ["--cluster", &management, "--output", "json"];
        cluster::skep([arguments, &more].concat())
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let text = self.ask(arguments).expect_success();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Returns the command line of a service.
    pub(crate) fn arguments(&self, kind: &str, name: &str) -> Vec<String> {
        let words = [kind, "--directory", &self.path(name), "--listen", &self.listen(name)];
        let mut arguments = words.map(String::from).to_vec();
        if kind != "management" {
            arguments.extend(["--target".to_owned(), self.path(&format!("{name}-target"))]);
        }
        arguments
    }

    pub(crate) fn initialise(&self, kind: &str, name: &str) {
        let mut arguments = self.arguments(kind, name);
        arguments.push("--init".to_owned());
        if kind != "management" {
            let token = format!("{}/join-token", self.path("management"));
            arguments.extend(["--token-file".to_owned(), token]);
        }
        cluster::skep(arguments.iter().map(String::as_str)).expect_success();
    }

    /// Starts the process of a service that was initialised before.
    pub(crate) fn start_service(&mut self, kind: &str, name: &'static str) {
        let log = self.scratch.join(&format!("{name}.log"));
        let program = cluster::program();
        let mut command = match name == METADATA[0] {
            true => self.host.command_in_network(&program),
            false => Command::new(program),
        };
        command.args(self.arguments(kind, name));
        self.services.insert(name, self.launcher.start(&command, &log));
    }

    /// Starts only management.
    fn begin_management() -> Self {
        let scratch = Scratch::new();
        let (host, services) = (Host::new(), BTreeMap::new());
        let (launcher, mounts) = (Launcher::new(), Vec::new());
        let mut pair = Self { scratch, host, launcher, services, mounts };
        pair.initialise("management", "management");
        pair.start_service("management", "management");
        wait_for("management answers", PATIENCE, || {
            pair.ask(&["target", "list"]).status.success().then_some(())
        });
        pair
    }

    /// Starts a cluster with a metadata group of two targets.
    pub(crate) fn begin() -> Self {
        let mut pair = Self::begin_management();
        pair.ask(&["config", "set", "metadata-copies", "2"]).expect_success();
        for name in METADATA {
            pair.add_service("metadata", name);
        }
        pair.add_service("storage", "storage");
        pair.ask(&["group", "create", "1", "2"]).expect_success();
        pair.format();
        pair
    }

    /// Starts a cluster whose metadata is on a single target, which belongs to the first service.
    pub(crate) fn begin_alone() -> Self {
        let mut pair = Self::begin_management();
        pair.add_service("metadata", METADATA[0]);
        pair.add_service("storage", "storage");
        pair.format();
        pair.ask(&["config", "set", "metadata-copies", "2"]).expect_success();
        pair
    }

    fn format(&mut self) {
        self.ask(&["cluster", "format"]).expect_success();
        for name in MOUNTS {
            self.mount(name);
        }
    }

    /// Initialises and starts a service. Returns the id of its target.
    pub(crate) fn add_service(&mut self, kind: &str, name: &'static str) -> String {
        self.initialise(kind, name);
        self.start_service(kind, name);
        wait_for("the target of the new service is online", PATIENCE, || {
            let targets = self.json(&["target", "list"]);
            let is_online = |it: &&Value| {
                let path = it["path"].as_str().unwrap_or_default();
                path.ends_with(&format!("{name}-target")) && it["reachability"] == "Online"
            };
            Some(targets.as_array()?.iter().find(is_online)?["id"].to_string())
        })
    }

    /// Unmounts the file systems, and stops all services. Stops the backup member before the
    /// primary, so that the primary keeps its role.
    pub(crate) fn stop(&mut self) {
        self.unmount_all();
        let (primary, backup) = self.roles();
        for name in [backup, primary, "storage", "management"] {
            self.stop_service(name);
        }
    }

    fn unmount_all(&mut self) {
        for name in MOUNTS {
            let point = self.scratch.join(name);
            let status = Command::new("umount").arg(&point).status().expect("umount runs");
            assert!(status.success(), "{name} is unmounted");
        }
        for mut mount in std::mem::take(&mut self.mounts) {
            mount.wait().expect("our own child");
        }
    }

    /// Stops the cluster, and checks that both members have equal stores. Stops both members at the
    /// same time, so that management lists both members as serving. If the signals arrive at
    /// different times, one member leaves the group during the stop, and `skep fsck` does not
    /// compare this member. In that case this function restarts the cluster and repeats the stop.
    pub(crate) fn stop_with_equal_members(&mut self) {
        let mut skipped = Vec::new();
        for _ in 0..STOPS {
            self.wait_for_serving(2);
            // `skep fsck` reads the cluster map that the services store at most once a second.
            after(Duration::from_secs(2));
            self.unmount_all();
            self.stop_services(&METADATA);
            self.stop_service("storage");
            self.stop_service("management");
            skipped = self.check_stores();
            if skipped.is_empty() {
                return;
            }
            self.start_again();
        }
        panic!("members were not compared in {STOPS} stops: {skipped:?}");
    }

    /// Stops a service cleanly, and waits until its process has ended.
    pub(crate) fn stop_service(&mut self, name: &'static str) {
        self.stop_services(&[name]);
    }

    /// Stops services cleanly at the same time, and waits until their processes have ended.
    pub(crate) fn stop_services(&mut self, names: &[&'static str]) {
        for name in names {
            self.signal(name, Signal::TERM);
        }
        for name in names {
            let process = self.services.remove(name).expect("a running service");
            assert_eq!(self.launcher.wait(process), 0, "{name} ends");
        }
    }

    /// Starts a stopped cluster.
    pub(crate) fn start_again(&mut self) {
        self.start_service("management", "management");
        for name in METADATA {
            self.start_service("metadata", name);
        }
        self.start_service("storage", "storage");
        for name in MOUNTS {
            self.mount(name);
        }
        self.wait_for_serving(2);
    }

    /// Checks the stores of a stopped cluster. Returns a line for each member that `skep fsck` did
    /// not compare with the other member.
    pub(crate) fn check_stores(&self) -> Vec<String> {
        let names = ["management", METADATA[0], METADATA[1], "storage"];
        let targets = [METADATA[0], METADATA[1], "storage"].map(|it| format!("{it}-target"));
        let names = names.map(String::from).into_iter().chain(targets);
        let paths: Vec<_> = names.map(|name| self.path(&name)).collect();
        let arguments = ["fsck", "--output", "json"];
        let arguments = arguments.into_iter().chain(paths.iter().map(String::as_str));
        let found = cluster::skep(arguments).expect_success();
        let report: Value = serde_json::from_str(&found).expect("JSON");
        assert!(report["inodes"].as_u64().is_some_and(|count| count > 1000), "{report}");
        let skipped = report["skipped"].as_array().expect("a list").iter();
        skipped.map(|it| it.to_string()).collect()
    }

    pub(crate) fn mount(&mut self, name: &str) {
        let (management, point) = (self.path("management"), self.scratch.join(name));
        files::create_dir_all(&point);
        let log = self.scratch.join(&format!("{name}.log"));
        let log = std::fs::File::create(log).expect("a log file");
        let mut command = Command::new(cluster::program());
        command.args(["mount", "--foreground", "--cluster", &management]).arg(&point);
        let child = command.stdout(Stdio::null()).stderr(log).spawn();
        self.mounts.push(child.expect("skep can be started"));
        wait_for("the mount", PATIENCE, || {
            let mut bytes = [0_u8; 64];
            rustix::fs::getxattr(&point, "user.skep.transport", &mut bytes).ok()
        });
    }

    /// Returns the metadata group in the cluster map.
    pub(crate) fn group(&self) -> Value {
        let groups = self.json(&["group", "list"]);
        let groups = groups.as_array().expect("a list").clone();
        groups.into_iter().find(|it| it["kind"] == "metadata").expect("one metadata group")
    }

    /// Asks management to make the other member the primary. Returns the name of the new primary's
    /// service.
    pub(crate) fn move_primary(&self) -> &'static str {
        let group = self.group();
        let members = group["members"].as_array().expect("members");
        let backup = members.iter().find(|it| it["is_primary"] == false).expect("a backup");
        let (id, target) = (group["id"].to_string(), backup["target"].to_string());
        let name = self.roles().1;
        self.ask(&["group", "move", &id, &target]).expect_success();
        name
    }

    /// Returns the name of the service with the primary, and the name of the service with the other
    /// member.
    pub(crate) fn roles(&self) -> (&'static str, &'static str) {
        let group = self.group();
        let members = group["members"].as_array().expect("members");
        let primary = members.iter().find(|it| it["is_primary"] == true).expect("a primary");
        let node = primary["node"].as_u64().expect("a node");
        let nodes = self.json(&["target", "list"]);
        let target = nodes.as_array().expect("targets").iter();
        let path = target
            .filter(|it| it["id"] == primary["target"])
            .find_map(|it| it["path"].as_str())
            .unwrap_or_else(|| panic!("the target of node {node}"));
        match path.contains(METADATA[0]) {
            true => (METADATA[0], METADATA[1]),
            false => (METADATA[1], METADATA[0]),
        }
    }

    pub(crate) fn serving(&self) -> usize {
        let group = self.group();
        let members = group["members"].as_array().expect("members");
        members.iter().filter(|it| it["state"] == "Serving").count()
    }

    pub(crate) fn wait_for_serving(&self, count: usize) {
        wait_for("the number of serving members", PATIENCE, || {
            (self.serving() == count).then_some(())
        });
    }

    pub(crate) fn wait_for_primary(&self, name: &str) {
        wait_for("the other member takes over", PATIENCE, || {
            (self.roles().0 == name).then_some(())
        });
    }

    pub(crate) fn signal(&self, name: &str, signal: Signal) {
        let process = self.services.get(name).expect("a running service");
        send(*process, signal);
    }

    pub(crate) fn kill(&mut self, name: &str) {
        let process = self.services.remove(name).expect("a running service");
        send(process, Signal::KILL);
        self.launcher.wait(process);
    }

    /// Runs programs on the mounts while `faults` runs. Returns the longest pause of any program.
    pub(crate) fn under_load(
        &mut self,
        seed: u64,
        faults: impl FnOnce(&mut Self, &Pauses),
    ) -> Duration {
        let roots = MOUNTS.map(|name| self.scratch.join(name));
        let numbered = (0..).zip(&roots);
        let mut workers: Vec<_> =
            numbered.map(|(number, root)| Worker::new(root, 2 * seed + number, seed)).collect();
        let (stop, pauses) = (AtomicBool::new(false), Pauses::default());
        let mut longest = Duration::ZERO;
        std::thread::scope(|scope| {
            let probe = |at: usize| probe(&roots[at], at, &stop, &pauses);
            let probing: Vec<_> =
                (0..MOUNTS.len()).map(|at| scope.spawn(move || probe(at))).collect();
            let running: Vec<_> =
                workers.iter_mut().map(|worker| scope.spawn(|| worker.run(&stop))).collect();
            // The programs must end even if an assertion about the faults fails.
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                faults(self, &pauses);
                longest = pauses.take();
            }));
            stop.store(true, Ordering::Relaxed);
            if let Err(panic) = ended {
                std::panic::resume_unwind(panic);
            }
            for probing in probing {
                probing.join().expect("the probe sees no error");
            }
            for worker in running {
                worker.join().expect("no panic").expect("no program sees an error");
            }
        });
        for worker in &mut workers {
            let problems = worker.check(&Crash::of_services());
            assert_eq!(problems, Vec::<String>::new(), "no acknowledged change is lost");
            worker.close();
        }
        longest
    }
}

/// Sends a signal to a process that the launcher has started. The launcher must not have reaped
/// this process yet.
fn send(process: u32, signal: Signal) {
    let process = i32::try_from(process).ok().and_then(Pid::from_raw).expect("a process id");
    kill_process(process, signal).expect("our own process");
}

impl Drop for Pair {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for name in METADATA.iter().chain(&["management"]) {
                let log = std::fs::read_to_string(self.scratch.join(&format!("{name}.log")));
                eprintln!("--- {name}\n{}", log.unwrap_or_default());
            }
        }
        for name in MOUNTS {
            let point = self.scratch.join(name);
            let _ = Command::new("umount").arg("--lazy").arg(&point).status();
        }
        for child in &mut self.mounts {
            let _ = child.kill();
            let _ = child.wait();
        }
        for process in std::mem::take(&mut self.services).into_values() {
            send(process, Signal::KILL);
            self.launcher.wait(process);
        }
    }
}

/// Repeatedly creates, locks, renames and removes a file, and measures the duration of each round.
fn probe(root: &std::path::Path, number: usize, stop: &AtomicBool, pauses: &Pauses) {
    let (one, other) = (root.join(format!("p{number}-1")), root.join(format!("p{number}-2")));
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        let file = std::fs::File::create_new(&one).expect("a new file");
        flock(&file, FlockOperation::LockExclusive).expect("a lock");
        std::fs::rename(&one, &other).expect("a rename");
        flock(&file, FlockOperation::Unlock).expect("an unlock");
        drop(file);
        std::fs::remove_file(&other).expect("a removal");
        let took = u64::try_from(began.elapsed().as_micros()).expect("a short time");
        pauses.longest_us.fetch_max(took, Ordering::SeqCst);
        pauses.rounds[number].fetch_add(1, Ordering::SeqCst);
    }
}

/// Waits until `time` has passed.
pub(crate) fn after(time: Duration) {
    let began = Instant::now();
    wait_for("time passes", PATIENCE, || (began.elapsed() >= time).then_some(()));
}
