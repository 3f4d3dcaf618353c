//! Management on several nodes, with real processes and a mount. The tests kill or suspend the
//! leader under load, add and remove nodes, and recover from a lost majority.
//!
//! `skep up` restarts a killed process. So a test suspends the supervisor as long as a killed node
//! must not run.

use rustix::process::Signal;
use serde_json::Value;
use skep_testkit::health_watch::HealthWatch;
use skep_testkit::process::Process;
use skep_testkit::program::finish;
use skep_testkit::{Cluster, PATIENCE, Shape, cluster, files, schema, wait_for};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time limit for the election of a new leader and the publication of its first cluster map. If no
/// other program uses the machine, the election and the publication together take 1 to 2 s.
const FAIL_OVER: Duration = Duration::from_secs(3);

fn start(nodes: usize) -> Cluster {
    let more = vec!["--management-nodes".to_owned(), nodes.to_string()];
    Cluster::start(Shape { more, ..Shape::small() })
}

/// Returns the output of `skep management status`, as soon as a leader replies.
fn status(cluster: &Cluster) -> Value {
    wait_for("a leader answers", PATIENCE, || {
        let arguments = ["management", "status", "--output", "json"];
        let found = cluster.try_skep(&arguments);
        found.status.success().then(|| serde_json::from_str(&found.stdout).expect("JSON"))
    })
}

/// Returns the ids of the management nodes whose role is `role`.
fn with_role(status: &Value, role: &str) -> Vec<u64> {
    let nodes = status["nodes"].as_array().expect("a list").iter();
    nodes
        .filter(|node| node["role"] == role)
        .map(|node| node["id"].as_u64().expect("an id"))
        .collect()
}

/// Returns the directory of the management node with the id `id`.
fn directory(cluster: &Cluster, status: &Value, id: u64) -> PathBuf {
    let mut nodes = status["nodes"].as_array().expect("a list").iter();
    let node = nodes.find(|node| node["id"] == id).expect("a node with this id");
    let name = node["name"].as_str().expect("a name");
    let other = cluster.data().join(name);
    if other.exists() { other } else { cluster.data().join("management") }
}

fn process_in(cluster: &Cluster, directory: &Path) -> Process {
    let directory = directory.display().to_string();
    let mut processes = cluster.processes("management").into_iter();
    let found = processes.find(|process| process.arguments.contains(&directory));
    found.expect("the node runs")
}

/// Tries to change a setting until the change succeeds. Returns the time until the successful
/// change.
fn change_setting(cluster: &Cluster, value: u64) -> Duration {
    let begun = Instant::now();
    let value = format!("{value}ms");
    wait_for("the setting changes", PATIENCE, || {
        cluster.try_skep(&["config", "set", "heartbeat", &value]).status.success().then_some(())
    });
    begun.elapsed()
}

fn heartbeat(cluster: &Cluster) -> String {
    cluster.skep(&["config", "get", "heartbeat"])
}

/// A thread that writes and reads files on a mount until the test ends the thread. The bytes of
/// every second file are in metadata, and the bytes of the other files are on storage.
struct Load {
    stop: Arc<AtomicBool>,
    longest: Arc<Mutex<Duration>>,
    thread: JoinHandle<usize>,
}

impl Load {
    fn start(directory: &Path) -> Self {
        let (stop, longest) =
            (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Duration::ZERO)));
        let (ends, pause) = (Arc::clone(&stop), Arc::clone(&longest));
        let directory = directory.to_owned();
        let thread = std::thread::spawn(move || {
            let mut count = 0;
            while !ends.load(Ordering::Relaxed) {
                let begun = Instant::now();
                let path = directory.join(format!("load-{}", count % 50));
                let text = format!("{count}").repeat(if count % 2 == 0 { 1000 } else { 20_000 });
                files::write(&path, &text);
                assert_eq!(files::read(&path), text.as_bytes());
                let mut longest = pause.lock().expect("no panic");
                *longest = (*longest).max(begun.elapsed());
                count += 1;
            }
            count
        });
        Self { stop, longest, thread }
    }

    /// Ends the thread, and checks that the thread got no error. Returns the duration of its
    /// longest operation.
    fn end(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        let count = self.thread.join().expect("no operation failed");
        assert!(count > 10, "{count} files were written");
        *self.longest.lock().expect("no panic")
    }
}

/// A suspended supervisor. While the supervisor is suspended, it restarts no process. Dropping this
/// value resumes the supervisor.
struct WithoutSupervisor(Process);

impl WithoutSupervisor {
    fn new(cluster: &Cluster) -> Self {
        let supervisor = cluster.processes("up").pop().expect("the process runs");
        supervisor.signal(Signal::STOP);
        Self(supervisor)
    }
}

impl Drop for WithoutSupervisor {
    fn drop(&mut self) {
        self.0.signal(Signal::CONT);
    }
}

/// Waits until `count` management nodes are members, are running, and have the whole command log.
fn wait_for_all(cluster: &Cluster, count: usize) -> Value {
    wait_for("all management nodes have the log", PATIENCE, || {
        let found = status(cluster);
        let nodes = found["nodes"].as_array()?;
        let is_well = |node: &Value| node["reachability"] == "Online" && node["lag"] == 0;
        (nodes.len() == count && nodes.iter().all(is_well)).then_some(found)
    })
}

/// docs/semantics.md 4.2.
///
/// Command: skep management status.
#[test]
fn killed_leader_is_replaced_within_3_s_while_io_continues() {
    let cluster = start(3);
    let before = wait_for_all(&cluster, 3);
    schema::check("management-status", &before);
    let load = Load::start(cluster.path());
    let leader = with_role(&before, "leader")[0];
    let process = process_in(&cluster, &directory(&cluster, &before, leader));
    let without = WithoutSupervisor::new(&cluster);
    process.kill();
    let pause = change_setting(&cluster, 700);
    println!("a change was acknowledged {pause:?} after the leader was killed");
    assert!(pause < FAIL_OVER, "{pause:?}");
    let after = status(&cluster);
    assert_ne!(with_role(&after, "leader"), [leader]);
    assert!(after["term"].as_u64() > before["term"].as_u64());
    // `skep health check` names the killed node.
    wait_for("health names the node", PATIENCE, || {
        let found = cluster.try_skep(&["health", "check"]);
        let is_named = |line: &str| line.contains("management") && line.contains("unreachable");
        found.stdout.lines().any(is_named).then_some(())
    });
    drop(without);
    wait_for_all(&cluster, 3);
    let longest = load.end();
    println!("the longest pause of a file operation was {longest:?}");
    assert!(heartbeat(&cluster).contains("700"));
    cluster.stop();
}

#[test]
fn suspended_leader_returns_as_a_follower() {
    let cluster = start(3);
    let before = wait_for_all(&cluster, 3);
    let load = Load::start(cluster.path());
    let leader = with_role(&before, "leader")[0];
    let process = process_in(&cluster, &directory(&cluster, &before, leader));
    process.signal(Signal::STOP);
    let pause = change_setting(&cluster, 800);
    println!("a change was acknowledged {pause:?} after the leader was stopped");
    // The suspended leader does not reply. A command needs up to 300 ms more to detect a missing
    // reply than to detect a refused connection.
    assert!(pause < FAIL_OVER + Duration::from_secs(1), "{pause:?}");
    process.signal(Signal::CONT);
    let after = wait_for_all(&cluster, 3);
    assert!(with_role(&after, "follower").contains(&leader), "{after}");
    change_setting(&cluster, 900);
    assert!(heartbeat(&cluster).contains("900"));
    load.end();
    cluster.stop();
}

#[test]
fn killed_follower_returns_and_catches_up() {
    let cluster = start(3);
    let before = wait_for_all(&cluster, 3);
    let follower = with_role(&before, "follower")[0];
    let process = process_in(&cluster, &directory(&cluster, &before, follower));
    let without = WithoutSupervisor::new(&cluster);
    process.kill();
    for value in 500..520 {
        assert!(
            change_setting(&cluster, value) < FAIL_OVER,
            "the remaining majority makes changes"
        );
    }
    drop(without);
    let after = wait_for_all(&cluster, 3);
    assert_eq!(after["leader"], before["leader"]);
    cluster.stop();
}

/// Starts a thread that changes a setting repeatedly.
fn changes(cluster: &Cluster, stop: &Arc<AtomicBool>) -> JoinHandle<u64> {
    let (data, stop) = (cluster.data().display().to_string(), Arc::clone(stop));
    std::thread::spawn(move || {
        let mut value = 500;
        while !stop.load(Ordering::Relaxed) {
            value = 500 + (value + 1) % 400;
            let setting = format!("{value}ms");
            let changed =
                cluster::skep(["config", "set", "heartbeat", &setting, "--cluster", &data]);
            changed.expect_success();
        }
        value
    })
}

/// Without a leader, the command still checks the other services. The command then uses the newest
/// cluster map that its host has stored.
///
/// Command: skep health check.
#[test]
fn health_check_watch_continues_without_a_leader() {
    let cluster = start(3);
    let before = wait_for_all(&cluster, 3);
    let watch = HealthWatch::start(&cluster, &["--interval", "200ms"]);
    let without = WithoutSupervisor::new(&cluster);
    for id in with_role(&before, "follower") {
        process_in(&cluster, &directory(&cluster, &before, id)).kill();
    }
    watch.wait_for("begins", "management has no leader");
    cluster.processes("storage").iter().for_each(Process::kill);
    watch.wait_for("begins", "storage-1 [ID: ");
    drop(without);
    watch.wait_for("ends", "management has no leader");
    watch.wait_for("ends", "storage-1 [ID: ");
    wait_for_all(&cluster, 3);
    drop(watch);
    cluster.stop();
}

/// Command: skep management add, skep management remove.
#[test]
fn management_nodes_change_from_1_to_3_to_5_to_3_under_load() {
    let cluster = start(1);
    let load = Load::start(cluster.path());
    let stop = Arc::new(AtomicBool::new(false));
    let changing = changes(&cluster, &stop);
    // Add further management nodes, which the test starts without `skep up`.
    let mut further = Vec::new();
    for (number, voters) in (2..=5).zip(2..) {
        let directory = cluster.data().join(format!("further-{number}"));
        let directory = directory.display().to_string();
        let token = cluster.data().join("management/join-token").display().to_string();
        let service = ["management", "--directory", &directory, "--listen", "127.0.0.1:0"];
        let join = ["--init", "--join", "--token-file", &token, "--output", "json"];
        let made = cluster::skep([&service[..], &join].concat()).expect_success();
        let made: Value = serde_json::from_str(&made).expect("JSON");
        schema::check("management-join", &made);
        let mut command = Command::new(cluster::program());
        command.args(service).stderr(std::process::Stdio::null());
        further.push(command.spawn().expect("skep can be started"));
        let id = made["node"].to_string();
        let added = cluster.skep_json(&["management", "add", &id]);
        schema::check("management-add", &added);
        assert_eq!(added["voters"], voters);
        let warning = added["warning"].as_str().expect("a text");
        assert_eq!(warning.contains("add a third member"), voters == 2, "{warning}");
    }
    let five = wait_for_all(&cluster, 5);
    for id in with_role(&five, "follower").into_iter().rev().take(2) {
        let removed = cluster.skep_json(&["management", "remove", &id.to_string()]);
        schema::check("management-remove", &removed);
    }
    let three = status(&cluster);
    assert_eq!(three["voters"], 3);
    let leader = three["leader"].to_string();
    let refused = cluster.try_skep(&["management", "remove", &leader]).expect_failure();
    assert!(refused.contains("this node leads management"), "{refused}");
    stop.store(true, Ordering::Relaxed);
    let last = changing.join().expect("each change succeeded");
    assert!(heartbeat(&cluster).contains(&last.to_string()));
    load.end();
    for mut child in further {
        child.kill().expect("our own child");
        child.wait().expect("our own child");
    }
}

#[test]
fn management_node_refuses_to_start_in_an_emptied_directory() {
    let cluster = start(3);
    let before = wait_for_all(&cluster, 3);
    let follower = with_role(&before, "follower")[0];
    let directory = directory(&cluster, &before, follower);
    let without = WithoutSupervisor::new(&cluster);
    process_in(&cluster, &directory).kill();
    let shown = directory.display().to_string();
    let start = || cluster::skep(["management", "--directory", &shown]).expect_failure();
    std::fs::remove_file(directory.join("raft-log")).expect("the node has a log");
    let refused = start();
    for words in [&*shown, "skep management remove", "--init --join"] {
        assert!(refused.contains(words), "{words}: {refused}");
    }
    std::fs::remove_dir_all(&directory).expect("a directory");
    let refused = start();
    for words in [&*shown, "the directory has no state of management", "--init --join"] {
        assert!(refused.contains(words), "{words}: {refused}");
    }
    drop(without);
    cluster.kill_all();
}

/// Command: skep management recover.
#[test]
fn one_management_node_recovers_after_loss_of_the_other_nodes() {
    let cluster = start(3);
    let before = wait_for_all(&cluster, 3);
    change_setting(&cluster, 750);
    let load = Load::start(cluster.path());
    let follower = with_role(&before, "follower")[0];
    let left = directory(&cluster, &before, follower);
    let left_text = left.display().to_string();
    let _without = WithoutSupervisor::new(&cluster);
    cluster.processes("management").iter().for_each(Process::kill);
    wait_for("all management nodes have ended", PATIENCE, || {
        cluster.processes("management").is_empty().then_some(())
    });
    let recover = |more: &[&str]| {
        let arguments = ["management", "recover", "--directory", &left_text, "--output", "json"];
        let printed = cluster::skep([&arguments[..], more].concat()).expect_success();
        let recovery: Value = serde_json::from_str(&printed).expect("JSON");
        schema::check("management-recover", &recovery);
        recovery
    };
    let shown = recover(&[]);
    assert_eq!(shown["is_dry_run"], true);
    assert_eq!(recover(&["--confirm"])["last"], shown["last"]);
    let mut command = Command::new(cluster::program());
    command.args(["management", "--directory", &left_text, "--listen", "127.0.0.1:0"]);
    let mut child = command.stderr(std::process::Stdio::null()).spawn().expect("skep starts");
    let ask = |arguments: &[&str]| {
        let mut command = Command::new(cluster::program());
        finish(command.args(arguments).args(["--cluster", &left_text]), PATIENCE)
    };
    wait_for("the node serves", PATIENCE, || {
        ask(&["management", "status"]).status.success().then_some(())
    });
    let setting = ask(&["config", "get", "heartbeat"]).expect_success();
    assert!(setting.contains("750"), "{setting}");
    // The services connect to the recovered node.
    wait_for("the targets are online", PATIENCE, || {
        let targets = ask(&["target", "list"]).expect_success();
        (targets.matches(" Online ").count() == 3).then_some(())
    });
    load.end();
    child.kill().expect("our own child");
    child.wait().expect("our own child");
    cluster.kill_all();
}
