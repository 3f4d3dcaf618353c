//! Many random faults of management and metadata. In the cluster of this test, both have several
//! members: 3 management nodes, 2 groups of 2 metadata targets, and 1 group of 3 metadata targets.
//! Each node runs on a host of its own, in a network namespace. Two mounts create, rename and
//! remove files. They also use the same names in shared directories of all groups.
//!
//! No acknowledged operation may be lost, and no program may get an error. The operations on shared
//! names must be linearizable, and no pause of a program may be longer than the limits in this
//! file. The test prints a table of the pauses. The environment variable `SKEP_FAULTS` sets the
//! number of faults, and `SKEP_TEST_SEED` sets the seed that determines them.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use skep_testkit::linearizable::{self, Operation, Outcome};
use skep_testkit::network::{Host, Switch};
use skep_testkit::program::{Finished, clean_up, run};
use skep_testkit::target_disk::{DiskKind, TargetDisk};
use skep_testkit::workload::{Crash, Worker};
use skep_testkit::{PATIENCE, Random, Scratch, cluster, eventually, files, wait_for};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Maximum pause of a program.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Maximum pause of a program if management may have lost its leader.
const LONGEST_WITHOUT_LEADER: Duration = Duration::from_secs(8);
/// Time limit for all members to serve again after a fault.
const LONGEST_RETURN: Duration = Duration::from_secs(120);
const MOUNTS: [&str; 2] = ["mnt-1", "mnt-2"];
const MANAGEMENT: [&str; 3] = ["management-1", "management-2", "management-3"];
/// The metadata services. Each service has one target.
const METADATA: [&str; 7] = [
    "metadata-1",
    "metadata-2",
    "metadata-3",
    "metadata-4",
    "metadata-5",
    "metadata-6",
    "metadata-7",
];
const STORAGE: &str = "storage";
/// The metadata groups, as indices in `METADATA`.
const GROUPS: [&[usize]; 3] = [&[0, 1], &[2, 3], &[4, 5, 6]];
/// Metadata services whose target is on a disk that can fail. The directories of all other nodes
/// are so small that a test can fill them.
const WITH_DISKS: [&str; 2] = ["metadata-2", "metadata-5"];
/// Mount options for the small directory of a node, which a test can fill.
const SMALL_DISK: &str = "size=1g,huge=never";
/// Number of shared names. Each name is in a directory of its own, and each group has directories.
const NAMES: usize = 3 * GROUPS.len();
/// Number of programs on each mount that use the shared names.
const SHARING: usize = 2;
/// Number of operations after which a program has very probably used names of all groups.
const ROUNDS: u64 = 30;

/// A fault of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// The process of the node is killed, and then started again.
    Kill,
    /// The process of the node is suspended, and then continues.
    Stop,
    /// Packets from the host are lost, but packets to the host arrive.
    CutOneWay,
    /// The link of the host is down.
    Cut,
    /// The node's disk is full.
    FullDisk,
    /// The disk of the node's target fails. Then the disk is repaired, and the process is started
    /// again.
    DiskError,
}

/// A cluster, its hosts and its mounts.
struct Site {
    // Fields are dropped in this order, because the services must end before their hosts.
    services: BTreeMap<&'static str, Child>,
    mounts: Vec<Child>,
    disks: BTreeMap<&'static str, TargetDisk>,
    hosts: BTreeMap<&'static str, Host>,
    /// The addresses of management.
    addresses: String,
    _switch: Switch,
    scratch: Scratch,
}

fn kind(name: &str) -> &str {
    name.split('-').next().expect("a name")
}

impl Site {
    fn path(&self, name: &str) -> String {
        self.scratch.join(name).display().to_string()
    }

    /// Returns the directory of a node. It contains the node's own files and its target.
    fn place(&self, name: &str) -> PathBuf {
        self.scratch.join(&format!("{name}-host"))
    }

    fn command(&self, name: &str) -> Command {
        self.hosts[name].command_in_network(&cluster::program())
    }

    fn arguments(&self, name: &str) -> Vec<String> {
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

    fn initialise(&self, name: &str, more: &[&str]) {
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

    fn start(&mut self, name: &'static str) {
        let log = self.scratch.join(&format!("{name}.log"));
        let log = File::options().create(true).append(true).open(log).expect("a log file");
        let mut command = self.command(name);
        let child = command.args(self.arguments(name)).stderr(log).spawn();
        self.services.insert(name, child.expect("skep can be started"));
    }

    fn ask(&self, arguments: &[&str]) -> Finished {
        let token = self.token();
        let more = ["--cluster", &self.addresses, "--token-file", &token, "--output", "json"];
        cluster::skep([arguments, &more].concat())
    }

    fn token(&self) -> String {
        self.path("token")
    }

    fn try_json(&self, arguments: &[&str]) -> Option<Value> {
        let found = self.ask(arguments);
        found.status.success().then(|| serde_json::from_str(&found.stdout).expect("JSON"))
    }

    fn json(&self, arguments: &[&str]) -> Value {
        wait_for("management answers", PATIENCE, || self.try_json(arguments))
    }

    /// Returns the target id of a service.
    fn target(&self, name: &str) -> String {
        let path = self.place(name).join("target").display().to_string();
        wait_for("the target is registered", PATIENCE, || {
            let targets = self.try_json(&["target", "list"])?;
            let mut targets = targets.as_array()?.iter();
            let found = targets.find(|it| it["path"] == path.as_str())?;
            (found["reachability"] == "Online").then(|| found["id"].to_string())
        })
    }

    fn start_management(&mut self) {
        self.initialise(MANAGEMENT[0], &[]);
        self.start(MANAGEMENT[0]);
        let source = self.place(MANAGEMENT[0]).join("node/join-token");
        wait_for("the token", PATIENCE, || source.exists().then_some(()));
        run("cp", [source.to_str().expect("ASCII"), &self.token()]);
        self.json(&["target", "list"]);
        for name in &MANAGEMENT[1..] {
            self.initialise(name, &["--join", "--token-file", &self.token()]);
            self.start(name);
            let host = self.hosts[name].address.clone();
            let node = wait_for("the node is registered", PATIENCE, || {
                let nodes = self.try_json(&["node", "list"])?;
                let of_host = |it: &&Value| it.to_string().contains(&host);
                nodes.as_array()?.iter().find(of_host).map(|it| it["id"].to_string())
            });
            wait_for("it is a member", PATIENCE, || {
                self.ask(&["management", "add", &node]).status.success().then_some(())
            });
        }
        self.addresses =
            MANAGEMENT.map(|name| format!("{}:7400", self.hosts[name].address)).join(",");
    }

    fn new() -> Self {
        let switch = Switch::new();
        let all = MANAGEMENT.iter().chain(&METADATA).chain(&[STORAGE]);
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
            if WITH_DISKS.contains(name) {
                let target = site.place(name).join("target");
                site.disks.insert(name, TargetDisk::under(&target, DiskKind::Ext4));
            }
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
        MOUNTS.iter().for_each(|name| site.mount(name));
        site
    }

    fn mount(&mut self, name: &str) {
        let point = self.scratch.directory(name);
        let log = File::create(self.scratch.join(&format!("{name}.log"))).expect("a log file");
        let mut command = Command::new(cluster::program());
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
    /// them. Returns their names.
    fn make_directories(&self) -> Vec<String> {
        let mut of_groups: BTreeMap<u64, usize> = BTreeMap::new();
        let mut names = Vec::new();
        for number in 0.. {
            let name = format!("shared-{number}");
            let path = self.scratch.join(MOUNTS[0]).join(&name);
            files::create_dir(&path);
            let info = self.json(&["entry", "info", path.to_str().expect("ASCII")]);
            let group = info["metadata"]["group"].as_u64().expect("a group");
            let count = of_groups.entry(group).or_default();
            if *count < NAMES / GROUPS.len() {
                *count += 1;
                names.push(name);
            }
            if names.len() == NAMES {
                break;
            }
            assert!(number < 1000, "no directories on some groups: {of_groups:?}");
        }
        names
    }

    /// Copies the logs of all processes to the directory for results. Without such a directory,
    /// prints the end of each log.
    fn show_logs(&self) {
        let results = std::env::var("SKEP_EXTERNAL_RESULTS").map(PathBuf::from);
        for name in MANAGEMENT.iter().chain(&METADATA).chain(&[STORAGE]).chain(&MOUNTS) {
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
    fn obstacle(&self) -> Option<String> {
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

    /// Waits until all nodes serve again after a fault. A member that was unreachable for a short
    /// time may still count as serving. So first wait until the programs have used names of its
    /// group.
    fn wait_until_all_serve(&self, histories: &Histories) {
        histories.wait_until_all_go_on();
        let mut last = None;
        let ended = eventually(LONGEST_RETURN, || {
            last = self.obstacle();
            last.is_none().then_some(())
        });
        assert!(ended.is_some(), "all nodes serve again: {last:?}");
    }

    fn signal(&self, name: &str, signal: Signal) {
        kill_process(Pid::from_child(&self.services[name]), signal).expect("our own child");
    }

    fn kill(&mut self, name: &str) {
        let mut child = self.services.remove(name).expect("a running service");
        child.kill().expect("our own child");
        child.wait().expect("our own child");
    }

    /// Causes a fault of a node, and ends the fault after `time`.
    fn suffer(&mut self, fault: Fault, name: &'static str, time: Duration) {
        match fault {
            Fault::Kill => {
                self.kill(name);
                after(time);
                self.start(name);
            }
            Fault::Stop => {
                self.signal(name, Signal::STOP);
                after(time);
                self.signal(name, Signal::CONT);
            }
            Fault::CutOneWay => {
                self.hosts[name].set_outgoing(false);
                after(time);
                self.hosts[name].set_outgoing(true);
            }
            Fault::Cut => {
                self.hosts[name].set_link(false);
                after(time);
                self.hosts[name].set_link(true);
            }
            Fault::FullDisk => {
                let filler = self.place(name).join("filler");
                let script = "head -c 2G /dev/zero >\"$0\" 2>/dev/null || true";
                run("sh", ["-c", script, filler.to_str().expect("ASCII")]);
                after(time);
                files::remove_file(&filler);
            }
            Fault::DiskError => {
                self.disks[name].shut_down();
                after(time);
                self.kill(name);
                self.disks[name].mount_again();
                self.start(name);
            }
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.show_logs();
        }
        for name in MOUNTS {
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

fn after(time: Duration) {
    let began = Instant::now();
    wait_for("time passes", PATIENCE, || (began.elapsed() >= time).then_some(()));
}

/// The operations on each shared name, and the pauses of the programs that perform them.
#[derive(Default)]
struct Histories {
    /// The paths of the shared names, relative to a mount point.
    paths: Vec<PathBuf>,
    names: [Mutex<Vec<Operation>>; NAMES],
    longest_us: AtomicU64,
    rounds: [AtomicU64; MOUNTS.len() * SHARING],
}

fn file_of(file: std::io::Result<std::fs::Metadata>, path: &Path) -> Option<u64> {
    match file {
        Ok(found) => Some(found.ino()),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => panic!("lookup of {}: {error}", path.display()),
    }
}

/// Performs one operation on a name.
fn operate(path: &Path, choice: usize) -> Outcome {
    match choice {
        0 | 1 => match File::create_new(path) {
            Ok(file) => Outcome::Created(file.metadata().expect("an open file").ino()),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Outcome::Exists,
            Err(error) => panic!("creation of {}: {error}", path.display()),
        },
        2 => match std::fs::remove_file(path) {
            Ok(()) => Outcome::Removed,
            Err(error) if error.kind() == ErrorKind::NotFound => Outcome::Absent,
            Err(error) => panic!("removal of {}: {error}", path.display()),
        },
        _ => file_of(std::fs::symlink_metadata(path), path).map_or(Outcome::Absent, Outcome::Found),
    }
}

impl Histories {
    /// Uses the shared names through one mount until `stop` is set.
    fn record(&self, mount: &Path, program: usize, stop: &AtomicBool) {
        let mut random = Random::new(program as u64);
        while !stop.load(Ordering::Relaxed) {
            let name = random.below(NAMES);
            let path = mount.join(&self.paths[name]);
            let began = Instant::now();
            let outcome = operate(&path, random.below(4));
            let ended = Instant::now();
            self.names[name].lock().expect("no panic").push(Operation { began, ended, outcome });
            let took = u64::try_from((ended - began).as_micros()).expect("a short time");
            self.longest_us.fetch_max(took, Ordering::SeqCst);
            self.rounds[program].fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Waits until each program has performed operations on names of all groups.
    fn wait_until_all_go_on(&self) {
        let before: Vec<_> = self.rounds.iter().map(|it| it.load(Ordering::SeqCst)).collect();
        wait_for("all programs go on", PATIENCE, || {
            let mut rounds = self.rounds.iter().zip(&before);
            rounds.all(|(now, before)| now.load(Ordering::SeqCst) > before + ROUNDS).then_some(())
        });
    }

    /// Waits until each program has made progress. Then returns the longest pause since the last
    /// call.
    fn take_pause(&self) -> Duration {
        self.wait_until_all_go_on();
        Duration::from_micros(self.longest_us.swap(0, Ordering::SeqCst))
    }

    /// Checks the operations on all names. Returns the number of operations.
    fn check(&self) -> usize {
        let mut count = 0;
        for (name, operations) in self.names.iter().enumerate() {
            let operations = operations.lock().expect("no panic");
            let path = self.paths[name].display();
            linearizable::check(&operations).unwrap_or_else(|why| panic!("{path}: {why}"));
            count += operations.len();
        }
        count
    }
}

/// The faults of each kind of node, with the pauses that they caused.
#[derive(Default)]
struct Pauses(BTreeMap<(Fault, String), Vec<Duration>>);

impl Pauses {
    fn table(&self) -> String {
        let mut text =
            "| fault | of | times | longest pause | median |\n|---|---|---|---|---|\n".to_owned();
        for ((fault, of), pauses) in &self.0 {
            let mut pauses = pauses.clone();
            pauses.sort();
            let (longest, median) = (pauses[pauses.len() - 1], pauses[pauses.len() / 2]);
            text += &format!(
                "| {fault:?} | {of} | {} | {:.2} s | {:.2} s |\n",
                pauses.len(),
                longest.as_secs_f64(),
                median.as_secs_f64()
            );
        }
        text
    }
}

fn choose(random: &mut Random) -> (Fault, &'static str, Duration) {
    let names: Vec<_> = MANAGEMENT.into_iter().chain(METADATA).collect();
    let name = random.one_of(&names);
    let mut faults = vec![Fault::Kill, Fault::Stop, Fault::CutOneWay, Fault::Cut];
    faults.push(if WITH_DISKS.contains(&name) { Fault::DiskError } else { Fault::FullDisk });
    let fault = random.one_of(&faults);
    let longest = if fault == Fault::Stop { 20_000 } else { 6_000 };
    (fault, name, Duration::from_millis(random.below(longest) as u64))
}

/// Causes the faults one after the other. Returns the pauses that they caused, and the faults whose
/// pauses exceed the limits.
fn suffer_all(
    site: &mut Site,
    histories: &Histories,
    random: &mut Random,
) -> (Pauses, Vec<String>) {
    let count = std::env::var("SKEP_FAULTS").map_or(20, |it| it.parse().expect("a number"));
    let (mut pauses, mut long) = (Pauses::default(), Vec::new());
    for number in 1..=count {
        let (fault, name, time) = choose(random);
        histories.take_pause();
        site.suffer(fault, name, time);
        site.wait_until_all_serve(histories);
        let pause = histories.take_pause();
        let until = run("date", ["-u", "+%T"]);
        let until = until.trim();
        eprintln!("{number}, until {until}: {fault:?} of {name} for {time:?}: pause {pause:?}");
        let of_management = kind(name) == "management";
        let limit = if of_management { LONGEST_WITHOUT_LEADER } else { LONGEST_PAUSE };
        if pause > limit {
            long.push(format!("until {until}: {fault:?} of {name} for {time:?}: {pause:?}"));
        }
        pauses.0.entry((fault, kind(name).to_owned())).or_default().push(pause);
    }
    (pauses, long)
}

#[test]
fn many_faults_lose_no_data_and_pause_operations_for_seconds() {
    let seed = Random::seed_of_run();
    eprintln!("seed {seed}");
    let mut site = Site::new();
    let roots = MOUNTS.map(|name| site.scratch.join(name));
    let paths = site.make_directories().iter().map(|it| Path::new(it).join("name")).collect();
    let numbered = (0..).zip(&roots);
    let mut workers: Vec<_> =
        numbered.map(|(number, root)| Worker::new(root, number, seed)).collect();
    let (stop, histories) = (AtomicBool::new(false), Histories { paths, ..Histories::default() });
    let mut results = None;
    std::thread::scope(|scope| {
        let (histories, stop) = (&histories, &stop);
        for program in 0..MOUNTS.len() * SHARING {
            let mount = &roots[program / SHARING];
            scope.spawn(move || histories.record(mount, program, stop));
        }
        let running: Vec<_> =
            workers.iter_mut().map(|worker| scope.spawn(|| worker.run(stop))).collect();
        // The programs must end even if an assertion about the faults fails.
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            suffer_all(&mut site, histories, &mut Random::new(seed))
        }));
        stop.store(true, Ordering::Relaxed);
        results = Some(ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        for worker in running {
            worker.join().expect("no panic").expect("no program sees an error");
        }
    });
    let (pauses, long) = results.expect("the faults have ended");
    eprintln!("{}", pauses.table());
    for worker in &mut workers {
        let problems = worker.check(&Crash::of_services());
        assert_eq!(problems, Vec::<String>::new(), "nothing acknowledged is lost");
        worker.close();
    }
    eprintln!("{} operations on shared names are linearizable", histories.check());
    assert_eq!(long, Vec::<String>::new(), "pauses above the limits");
}
