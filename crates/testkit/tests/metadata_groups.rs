//! A group of two metadata targets with real processes: a member is killed, stopped, cut off or
//! loses power while programs on two mounts create, rename and lock files. No program sees an
//! error, nothing acknowledged is lost, and the longest pause is a few seconds.
//!
//! The service `metadata-1` runs in a network namespace, so that its link can be cut. It is not the
//! primary in all runs, since its group changes hands.

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use skep_testkit::network::Host;
use skep_testkit::program::Finished;
use skep_testkit::workload::{Crash, Worker};
use skep_testkit::{PATIENCE, Scratch, cluster, files, schema, wait_for};
use skep_types::codec::crc32c;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Longest pause of a program while a member of the group fails.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Time for which a process is stopped: much longer than the take-over takes.
const STOPPED: Duration = Duration::from_secs(10);
const METADATA: [&str; 2] = ["metadata-1", "metadata-2"];

const MOUNTS: [&str; 2] = ["mnt-1", "mnt-2"];

/// A cluster with one group of two metadata targets, on two services, and its mounts.
struct Pair {
    scratch: Scratch,
    /// The host of the first metadata service.
    host: Host,
    services: BTreeMap<&'static str, Child>,
    mounts: Vec<Child>,
}

/// The pauses that one program on each mount sees.
#[derive(Default)]
struct Pauses {
    longest_us: AtomicU64,
    rounds: [AtomicU64; MOUNTS.len()],
}

impl Pauses {
    /// Returns the longest pause since the last call, after each program has gone on.
    fn take(&self) -> Duration {
        let before: Vec<_> = self.rounds.iter().map(|it| it.load(Ordering::SeqCst)).collect();
        wait_for("all programs go on", PATIENCE, || {
            let mut rounds = self.rounds.iter().zip(&before);
            rounds.all(|(now, before)| now.load(Ordering::SeqCst) > before + 1).then_some(())
        });
        Duration::from_micros(self.longest_us.swap(0, Ordering::SeqCst))
    }
}

impl Pair {
    fn path(&self, name: &str) -> String {
        self.scratch.join(name).display().to_string()
    }

    fn mount_point(&self) -> PathBuf {
        self.scratch.join(MOUNTS[0])
    }

    /// Returns the address at which a service listens.
    fn listen(&self, name: &str) -> String {
        let address = match name == METADATA[0] {
            true => &self.host.address,
            false => &self.host.our_address,
        };
        format!("{address}:0")
    }

    fn ask(&self, arguments: &[&str]) -> Finished {
        let management = self.path("management");
        let more = ["--cluster", &management, "--output", "json"];
        cluster::skep([arguments, &more].concat())
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let text = self.ask(arguments).expect_success();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Returns the command line of a service.
    fn arguments(&self, kind: &str, name: &str) -> Vec<String> {
        let words = [kind, "--directory", &self.path(name), "--listen", &self.listen(name)];
        let mut arguments = words.map(String::from).to_vec();
        if kind != "management" {
            arguments.extend(["--target".to_owned(), self.path(&format!("{name}-target"))]);
        }
        arguments
    }

    fn initialise(&self, kind: &str, name: &str) {
        let mut arguments = self.arguments(kind, name);
        arguments.push("--init".to_owned());
        if kind != "management" {
            let token = format!("{}/join-token", self.path("management"));
            arguments.extend(["--token-file".to_owned(), token]);
        }
        cluster::skep(arguments.iter().map(String::as_str)).expect_success();
    }

    /// Starts the process of an initialised service.
    fn start_service(&mut self, kind: &str, name: &'static str) {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.scratch.join(&format!("{name}.log")))
            .expect("a log file");
        let program = cluster::program();
        let mut command = match name == METADATA[0] {
            true => self.host.command_in_network(&program),
            false => Command::new(program),
        };
        command.args(self.arguments(kind, name)).stderr(log);
        self.services.insert(name, command.spawn().expect("skep can be started"));
    }

    fn begin() -> Self {
        let scratch = Scratch::new();
        let (host, services) = (Host::new(), BTreeMap::new());
        let mut pair = Self { scratch, host, services, mounts: Vec::new() };
        pair.initialise("management", "management");
        pair.start_service("management", "management");
        wait_for("management answers", PATIENCE, || {
            pair.ask(&["target", "list"]).status.success().then_some(())
        });
        pair.ask(&["config", "set", "metadata-copies", "2"]).expect_success();
        for (kind, name) in
            [("metadata", METADATA[0]), ("metadata", METADATA[1]), ("storage", "storage")]
        {
            pair.initialise(kind, name);
            pair.start_service(kind, name);
            wait_for("its target is online", PATIENCE, || {
                let targets = pair.json(&["target", "list"]);
                let is_online = |it: &Value| {
                    let path = it["path"].as_str().unwrap_or_default();
                    path.ends_with(&format!("{name}-target")) && it["reachability"] == "Online"
                };
                targets.as_array()?.iter().any(is_online).then_some(())
            });
        }
        pair.ask(&["group", "create", "1", "2"]).expect_success();
        pair.ask(&["cluster", "format"]).expect_success();
        for name in MOUNTS {
            pair.mount(name);
        }
        pair
    }

    fn mount(&mut self, name: &str) {
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
    fn group(&self) -> Value {
        let groups = self.json(&["group", "list"]);
        let groups = groups.as_array().expect("a list").clone();
        groups.into_iter().find(|it| it["kind"] == "metadata").expect("one metadata group")
    }

    /// Returns the service of the primary, and that of the other member.
    fn roles(&self) -> (&'static str, &'static str) {
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

    fn serving(&self) -> usize {
        let group = self.group();
        let members = group["members"].as_array().expect("members");
        members.iter().filter(|it| it["state"] == "Serving").count()
    }

    fn wait_for_serving(&self, count: usize) {
        wait_for("the number of serving members", PATIENCE, || {
            (self.serving() == count).then_some(())
        });
    }

    fn wait_for_primary(&self, name: &str) {
        wait_for("the other member takes over", PATIENCE, || {
            (self.roles().0 == name).then_some(())
        });
    }

    fn signal(&self, name: &str, signal: Signal) {
        let child = self.services.get(name).expect("a running service");
        kill_process(Pid::from_child(child), signal).expect("our own child");
    }

    fn kill(&mut self, name: &str) {
        let mut child = self.services.remove(name).expect("a running service");
        child.kill().expect("our own child");
        child.wait().expect("our own child");
    }

    /// Runs programs on the mounts while `faults` happen. Returns the longest pause of a program.
    fn under_load(&mut self, seed: u64, faults: impl FnOnce(&mut Self, &Pauses)) -> Duration {
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
            // The programs must end even if an expectation of the faults is not met.
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
            assert_eq!(problems, Vec::<String>::new(), "nothing acknowledged is lost");
            worker.close();
        }
        longest
    }
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
        let all = self.services.values_mut().chain(&mut self.mounts);
        for child in all {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Creates, locks, renames and removes a file again and again, and measures each round.
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

/// Makes a member that does not run look as if its host had lost power: its mark names another page
/// cache, and its log lacks the end of its last record, unless `lost_bytes` is zero.
fn lose_power(pair: &Pair, name: &str, lost_bytes: u64) {
    let directory = pair.scratch.join(&format!("{name}-target"));
    let path = directory.join("member-mark");
    let mut bytes = std::fs::read(&path).expect("a member has a mark");
    let end = bytes.len() - 4;
    bytes[16] ^= 1;
    let sum = crc32c(&bytes[..end]).to_le_bytes();
    bytes[end..].copy_from_slice(&sum);
    std::fs::write(&path, bytes).expect("a mark");
    if lost_bytes == 0 {
        return;
    }
    let logs = std::fs::read_dir(directory.join("log")).expect("a log");
    let mut logs: Vec<_> = logs.map(|it| it.expect("a segment").path()).collect();
    logs.retain(|path| path.extension().is_some_and(|it| it == "log"));
    let last = logs.iter().max().expect("a segment");
    let file = std::fs::File::options().write(true).open(last).expect("a segment");
    let used = std::fs::read(last).expect("a segment");
    let used = used.iter().rposition(|byte| *byte != 0).map_or(0, |at| at as u64 + 1);
    file.set_len(used.saturating_sub(lost_bytes)).expect("a shorter segment");
}

fn after(time: Duration) {
    let began = Instant::now();
    wait_for("time passes", PATIENCE, || (began.elapsed() >= time).then_some(()));
}

#[test]
fn group_goes_on_when_its_primary_is_killed() {
    let mut pair = Pair::begin();
    for round in 0..2 {
        let pause = pair.under_load(round, |pair, _| {
            after(Duration::from_secs(1));
            let (primary, backup) = pair.roles();
            pair.kill(primary);
            pair.wait_for_primary(backup);
            after(Duration::from_secs(1));
            pair.start_service("metadata", primary);
            pair.wait_for_serving(2);
            after(Duration::from_secs(1));
        });
        eprintln!("round {round}: longest pause {pause:?}");
        assert!(pause < LONGEST_PAUSE, "{pause:?}");
    }
}

#[test]
fn group_goes_on_when_its_primary_is_stopped_and_continued() {
    let mut pair = Pair::begin();
    let pause = pair.under_load(7, |pair, _| {
        after(Duration::from_secs(1));
        let (primary, backup) = pair.roles();
        pair.signal(primary, Signal::STOP);
        after(STOPPED);
        assert_eq!(pair.roles().0, backup);
        pair.signal(primary, Signal::CONT);
        pair.wait_for_serving(2);
        assert_eq!(pair.roles().0, backup, "a member takes nothing over by returning");
    });
    eprintln!("longest pause {pause:?}");
    assert!(pause < LONGEST_PAUSE, "{pause:?}");
}

#[test]
fn group_goes_on_when_its_backup_is_killed_and_returns() {
    let mut pair = Pair::begin();
    let pause = pair.under_load(8, |pair, _| {
        after(Duration::from_secs(1));
        let (primary, backup) = pair.roles();
        pair.kill(backup);
        pair.wait_for_serving(1);
        after(Duration::from_secs(1));
        pair.start_service("metadata", backup);
        pair.wait_for_serving(2);
        assert_eq!(pair.roles().0, primary);
    });
    eprintln!("longest pause {pause:?}");
    assert!(pause < LONGEST_PAUSE, "{pause:?}");
}

/// Power loss of one member, then a kill of the other: the first one does not serve, since it lacks
/// changes that were acknowledged.
#[test]
fn member_without_its_records_does_not_take_over() {
    let mut pair = Pair::begin();
    let (primary, backup) = pair.roles();
    let path = pair.mount_point().join("before");
    std::fs::write(&path, "before").expect("a file");
    pair.kill(backup);
    lose_power(&pair, backup, 10);
    // Management is away, so the primary cannot drop the other member.
    pair.signal("management", Signal::STOP);
    pair.kill(primary);
    pair.start_service("metadata", backup);
    pair.signal("management", Signal::CONT);
    after(Duration::from_secs(6));
    assert_eq!((pair.roles().0, pair.serving()), (primary, 2), "no member has taken over");
    pair.start_service("metadata", primary);
    pair.wait_for_serving(2);
    assert_eq!(std::fs::read_to_string(&path).expect("the file"), "before");
    let pause = pair.under_load(9, |_, _| after(Duration::from_secs(2)));
    eprintln!("longest pause {pause:?}");
    pair.wait_for_serving(2);
}

/// Command: skep group status.
#[test]
fn longest_log_goes_on_after_a_power_loss_of_both_members() {
    let mut pair = Pair::begin();
    let (primary, backup) = pair.roles();
    let path = pair.mount_point().join("before");
    let file = std::fs::File::create(&path).expect("a file");
    file.sync_all().expect("a sync");
    drop(file);
    for name in [primary, backup] {
        pair.kill(name);
    }
    lose_power(&pair, primary, 0);
    lose_power(&pair, backup, 0);
    for name in [primary, backup] {
        pair.start_service("metadata", name);
    }
    assert!(path.exists(), "what was synced is there");
    pair.wait_for_serving(2);
    let status = pair.json(&["group", "status"]);
    schema::check("group-status", &status);
    let members = status[0]["members"].as_array().expect("members").clone();
    assert_eq!(members.len(), 2, "{status}");
}

/// Command: skep group move.
/// Command: skep group drop.
#[test]
fn administrator_moves_the_primary_and_drops_a_member() {
    let mut pair = Pair::begin();
    let (primary, backup) = pair.roles();
    let id = pair.group()["id"].to_string();
    let target = |pair: &Pair, wanted: bool| {
        let group = pair.group();
        let members = group["members"].as_array().expect("members");
        let found = members.iter().find(|it| it["is_primary"] == wanted).expect("a member");
        found["target"].to_string()
    };
    let pause = pair.under_load(3, |pair, _| {
        let other = target(pair, false);
        schema::check("group-move", &pair.json(&["group", "move", &id, &other]));
        pair.wait_for_primary(backup);
        after(Duration::from_secs(1));
        let refused = pair.ask(&["group", "drop", &id, &other]).expect_failure();
        assert!(refused.contains("is the primary"), "{refused}");
        let former = target(pair, false);
        schema::check("group-drop", &pair.json(&["group", "drop", &id, &former]));
        // It runs and follows, so it serves again.
        pair.wait_for_serving(2);
    });
    eprintln!("longest pause {pause:?}");
    assert!(pause < LONGEST_PAUSE, "{pause:?}");
    assert_eq!(pair.roles(), (backup, primary));
}

/// A fault of a member while programs run.
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// The primary is killed, and starts again.
    Kill,
    /// The primary is stopped for longer than the take-over takes, and goes on.
    Stop,
    /// Packets from the first member are lost, packets to it arrive.
    CutOneWay,
    /// The link of the first member is down.
    Cut,
}

impl Pair {
    fn suffer(&mut self, fault: Fault) {
        let (primary, backup) = self.roles();
        match fault {
            Fault::Kill => {
                self.kill(primary);
                self.wait_for_primary(backup);
                self.start_service("metadata", primary);
            }
            Fault::Stop => {
                self.signal(primary, Signal::STOP);
                self.wait_for_primary(backup);
                after(Duration::from_secs(2));
                self.signal(primary, Signal::CONT);
            }
            Fault::CutOneWay => {
                self.host.set_outgoing(false);
                self.wait_for_serving(1);
                self.host.set_outgoing(true);
            }
            Fault::Cut => {
                self.host.set_link(false);
                self.wait_for_serving(1);
                self.host.set_link(true);
            }
        }
        self.wait_for_serving(2);
    }
}

#[test]
fn dozen_faults_in_a_row_lose_nothing() {
    let mut pair = Pair::begin();
    let mut table = String::new();
    let kinds = [Fault::Kill, Fault::Stop, Fault::CutOneWay, Fault::Cut];
    let mut longest = Duration::ZERO;
    pair.under_load(20, |pair, pauses| {
        for fault in kinds.iter().cycle().take(12) {
            pauses.take();
            let primary = pair.roles().0;
            pair.suffer(*fault);
            let pause = pauses.take();
            table.push_str(&format!("{fault:?} (primary {primary}): {pause:?}\n"));
            longest = longest.max(pause);
        }
    });
    eprintln!("{table}");
    assert!(longest < LONGEST_PAUSE, "{table}");
}
