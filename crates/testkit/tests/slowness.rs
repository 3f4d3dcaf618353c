//! Causes of slowness on real clusters. `skep why` and `skep health check` must report each cause
//! within ten seconds, and must not report any other cause. The monitor uses the same rules as
//! these commands, and one test checks the monitor's report. Each test of a cause prints its row of
//! the table in `docs/design/0017-why.md` with the measured times.
//!
//! The causes are so large that the results do not depend on the speed of the host. The causes are
//! a disk with long delays, a link with a low limit, a disk without space, and a suspended process.
//! The last cause is a load of more programs than the single thread of a metadata target can serve
//! at the same time. The rules are in `skep_stats::why`.

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Gid, Signal, Uid};
use serde_json::Value;
use skep_testkit::lab::Lab;
use skep_testkit::power::Disk;
use skep_testkit::program::{finish, run};
use skep_testkit::view::{RULES_OF_THE_HOST, Typed};
use skep_testkit::{
    Cluster, PATIENCE, Scratch, Shape, Transport, cluster, eventually, files, schema, wait_for,
};
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time limit for the commands to report a cause, from the first call of the command. The tests
/// print the times.
const WITHIN: Duration = Duration::from_secs(10);
/// Time that each read, write and flush of the slow disk takes. A sync needs several such
/// operations.
const DELAY_OF_SLOW_DISK: Duration = Duration::from_millis(50);
/// Ids of users without privileges.
const USERS: [u32; 4] = [60_001, 60_002, 60_003, 60_004];

/// Threads that use a mount as programs do, until this value is dropped.
struct Load {
    is_done: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    fn new() -> Self {
        Self { is_done: Arc::default(), threads: Vec::new() }
    }

    /// Adds a thread that runs as the user `user`. This thread calls `work` repeatedly, with the
    /// index of the call as the argument.
    fn add(&mut self, user: u32, mut work: impl FnMut(u64) + Send + 'static) {
        let is_done = Arc::clone(&self.is_done);
        self.threads.push(std::thread::spawn(move || {
            rustix::thread::set_thread_gid(Gid::from_raw(user))
                .expect("root may change its user and group");
            rustix::thread::set_thread_uid(Uid::from_raw(user))
                .expect("root may change its user and group");
            let mut round = 0;
            while !is_done.load(Ordering::Relaxed) {
                work(round);
                round += 1;
            }
        }));
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.is_done.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "a program of the load has failed");
        }
    }
}

/// Creates a directory that every user may change.
fn open_directory(path: PathBuf) -> PathBuf {
    files::create_dir(&path);
    files::set_permissions(&path, std::fs::Permissions::from_mode(0o777));
    path
}

/// Writes and syncs a file.
fn write_file(path: &Path, bytes: usize) {
    let mut file = File::create(path).expect("a new file");
    file.write_all(&vec![1; bytes]).expect("the file is written");
    file.sync_all().expect("the file is synced");
}

/// Creates and removes a subdirectory.
fn use_names(directory: &Path, who: &str, round: u64) {
    let path = directory.join(format!("{who}-{}", round % 50));
    std::fs::create_dir(&path).expect("a new directory");
    std::fs::remove_dir(&path).expect("an empty directory");
}

type Named = BTreeSet<(String, String)>;

/// Whether a finding is about the cluster, and not only about the host of the tests.
fn is_of_cluster(finding: &&Value) -> bool {
    !RULES_OF_THE_HOST.contains(&finding["rule"].text())
}

/// Returns the rule and the object of each finding in a report.
fn named(report: &Value) -> Named {
    let found = report["findings"].list().iter().filter(is_of_cluster);
    found.map(|it| (it["rule"].text().to_owned(), it["object"].text().to_owned())).collect()
}

fn one(rule: &str, object: &str) -> Named {
    [(rule.to_owned(), object.to_owned())].into()
}

/// Calls `measure`, which runs `skep why`, until the report contains a cause. Checks that the
/// report contains `expected` in time, and no other cause. Returns the report, and the seconds
/// until the report contained the cause.
fn why(what: &str, expected: &Named, mut measure: impl FnMut() -> Value) -> (Value, f64) {
    let mut last = Value::Null;
    let found = eventually(WITHIN, || {
        last = measure();
        let found = named(&last);
        assert!(found.is_subset(expected), "{what}: the report names other causes too: {last:#}");
        (found == *expected).then_some(())
    });
    let took = found.map(|((), took)| took);
    assert!(
        took.is_some_and(|took| took <= WITHIN),
        "{what}: the report names the cause after {took:?} instead of {WITHIN:?}: {last:#}"
    );
    let seconds = took.unwrap_or_default().as_secs_f64();
    eprintln!("{what}: skep why names {expected:?} after {seconds:.1} s");
    schema::check("why", &last);
    (last, seconds)
}

fn why_of(cluster: &Cluster, what: &str, expected: &Named) -> (Value, f64) {
    why(what, expected, || cluster.skep_json(&["why", "--interval", "2s"]))
}

/// Calls `check`, which runs `skep health check`, until the report contains a problem. Checks that
/// the report contains the problem `rule` in time, and no other problem. Returns the seconds until
/// the report contained the problem.
fn assert_health(rule: &str, check: impl Fn() -> Value) -> f64 {
    let mut last = Value::Null;
    let found = eventually(WITHIN, || {
        last = check();
        let problems = last["problems"].list().iter().filter(is_of_cluster);
        let rules: BTreeSet<_> = problems.map(|it| it["rule"].text()).collect();
        assert!(rules.iter().all(|it| *it == rule), "the report names other rules too: {last:#}");
        (!rules.is_empty()).then_some(())
    });
    let took = found.map(|((), took)| took);
    assert!(
        took.is_some_and(|took| took <= WITHIN),
        "the report names {rule} after {took:?} instead of {WITHIN:?}: {last:#}"
    );
    let seconds = took.unwrap_or_default().as_secs_f64();
    eprintln!("skep health check names {rule} after {seconds:.1} s");
    seconds
}

fn assert_health_of(cluster: &Cluster, rule: &str) -> f64 {
    assert_health(rule, || {
        // The exit code shows whether the cluster is healthy.
        let text = cluster.try_skep(&["health", "check", "--output", "json"]).stdout;
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    })
}

/// Prints the row of `cause` in the table of the design page. The last two cells are the seconds
/// until `skep why` and `skep health check` named the cause.
fn print_row(cause: &str, why: f64, health: f64) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let top = here.ancestors().nth(2).expect("two directories below the top");
    let page = files::read_to_string(top.join("docs/design/0017-why.md"));
    let row = page.lines().find(|line| line.starts_with(&format!("| {cause} | ")));
    let row = row.unwrap_or_else(|| panic!("0017-why.md has no row for {cause}"));
    let columns: Vec<_> = row.split(" | ").take(3).collect();
    eprintln!("{} | {why:.1} | {health:.1} |", columns.join(" | "));
}

/// Stops the cluster, moves the directory of a target to a disk, and restarts the cluster.
fn move_target(cluster: &Cluster, target: &Value, disk: &Disk) {
    cluster.stop();
    let (place, moved) = (PathBuf::from(target["path"].text()), disk.path().join("target"));
    let copy = [place.as_os_str(), moved.as_os_str()];
    finish(Command::new("cp").arg("-a").args(copy), PATIENCE).expect_success();
    files::remove_dir_all(&place);
    files::symlink(&moved, &place);
    cluster.up().expect_success();
}

/// Command: skep why.
#[test]
fn slow_disk_is_the_only_reported_cause() {
    let scratch = Scratch::new();
    let mut disk = Disk::new(&scratch, 512 << 20);
    let shape = Shape {
        metadata_targets: 1,
        storage_services: 3,
        targets_per_service: 1,
        monitor: true,
        ..Shape::default()
    };
    let cluster = Cluster::start(shape);
    let targets = cluster.skep_list(&["target", "list"]);
    let slow = targets.iter().find(|it| it["path"].text().contains("storage-3")).expect("a target");
    let object = format!("t{}", slow["id"]);
    move_target(&cluster, slow, &disk);
    disk.slow_down(DELAY_OF_SLOW_DISK);
    let mut load = Load::new();
    for user in USERS {
        let directory = open_directory(cluster.path().join(user.to_string()));
        load.add(user, move |round| {
            write_file(&directory.join((round % 20).to_string()), 400 << 10);
        });
    }
    let expected = one("target-slow", &object);
    let (report, seconds) = why_of(&cluster, "a slow disk", &expected);
    let first = &report["phases"][0];
    assert_eq!(
        (first["stage"].text(), first["target"].to_string()),
        ("disk", slow["id"].to_string())
    );
    assert!(first["each_ms"].float() > 4.0 * first["peers_ms"].float(), "{first}");
    print_row("slow disk", seconds, assert_health_of(&cluster, "target-slow"));
    let (of_monitor, _) = why("the monitor", &expected, || {
        cluster.skep_json(&["why", "--since", "10s", "--target", &object])
    });
    assert!(of_monitor["requests"].number() > 0);
    // A report about another target, which is not slow, contains no cause.
    let other =
        targets.iter().find(|it| it["path"].text().contains("storage-1")).expect("a target");
    let of_other = cluster.skep_json(&["why", "--target", &other["id"].to_string()]);
    assert_eq!(named(&of_other), Named::new(), "{of_other:#}");
}

#[test]
fn full_target_is_the_only_reported_cause() {
    let scratch = Scratch::new();
    let disk = Disk::new(&scratch, 512 << 20);
    let cluster = Cluster::start(Shape::small());
    let targets = cluster.skep_list(&["target", "list"]);
    let full = targets.iter().find(|it| it["kind"].text() == "storage").expect("a target");
    let object = format!("t{}", full["id"]);
    move_target(&cluster, full, &disk);
    // Another file fills the disk.
    let mut other = files::create(disk.path().join("other"));
    let block = vec![0; 1 << 20];
    while other.write_all(&block).is_ok() {}
    wait_for("management learns that the target is almost full", WITHIN, || {
        let list = cluster.skep_list(&["target", "list"]);
        let pool = list.iter().find(|it| it["id"] == full["id"])?["pool"].text() == "emergency";
        pool.then_some(())
    });
    let (_, seconds) = why_of(&cluster, "a full target", &one("target-full", &object));
    print_row("full target", seconds, assert_health_of(&cluster, "target-full"));
}

#[test]
fn metadata_storm_of_one_user_is_the_only_reported_cause() {
    let cluster = Cluster::start(Shape::small());
    let mut load = Load::new();
    for thread in 0..6 {
        let directory = open_directory(cluster.path().join(format!("storm-{thread}")));
        load.add(USERS[0], move |round| use_names(&directory, "name", round));
    }
    let directory = open_directory(cluster.path().join("other"));
    // The bytes of these files are on storage, so the other user does not use metadata more than
    // necessary.
    load.add(USERS[1], move |round| {
        write_file(&directory.join((round % 9).to_string()), 20_000);
    });
    let expected = one("user-storm", &format!("user {}", USERS[0]));
    let (_, seconds) = why_of(&cluster, "a storm of one user", &expected);
    print_row("storm of one user", seconds, assert_health_of(&cluster, "user-storm"));
}

#[test]
fn hot_directory_of_many_users_is_the_only_reported_cause() {
    let mut cluster = Cluster::start(Shape::small());
    let hot = open_directory(cluster.path().join("hot"));
    // The kernel of a client sends only one change of a directory at a time. So requests for a
    // directory wait for each other at metadata only if many mounts send such requests.
    let mounts: Vec<_> = (0..3 * USERS.len()).map(|_| cluster.mount(Transport::Uring)).collect();
    let mut load = Load::new();
    for (number, mounted) in mounts.iter().enumerate() {
        let directory = mounted.path().join("hot");
        let who = number.to_string();
        load.add(USERS[number % USERS.len()], move |round| use_names(&directory, &who, round));
    }
    let inode = std::os::unix::fs::MetadataExt::ino(&files::metadata(&hot));
    let expected = one("directory-hot", &format!("directory {inode}"));
    let (_, seconds) = why_of(&cluster, "a hot directory", &expected);
    let of_path = cluster.skep_json(&["why", hot.to_str().expect("UTF-8")]);
    assert_eq!(named(&of_path), expected, "{of_path:#}");
    print_row("hot directory", seconds, assert_health_of(&cluster, "directory-hot"));
    drop(load);
    mounts.into_iter().for_each(skep_testkit::cluster::Mounted::unmount);
}

/// Starts a program that locks a file until its standard input is closed. Waits until the program
/// has the lock.
///
/// The test itself must not have a file open on a mount that the test suspends. With such a file,
/// each program that the test starts would close its copy of the descriptor, and would wait for the
/// mount.
fn lock_holder(path: &Path) -> Child {
    let mut command = Command::new("flock");
    command.arg(path).args(["sh", "-c", "echo locked; exec cat"]);
    let mut holder =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("flock runs");
    let mut line = String::new();
    let output = holder.stdout.take().expect("a pipe");
    BufReader::new(output).read_line(&mut line).expect("the output of the program");
    assert_eq!(line, "locked\n");
    holder
}

fn locked(path: &Path) -> File {
    let file = files::open_with(OpenOptions::new().read(true).write(true), path);
    flock(&file, FlockOperation::LockExclusive).expect("the lock is granted");
    file
}

#[test]
fn suspended_client_is_reported_while_clients_await_its_lock() {
    let mut cluster = Cluster::start(Shape::small());
    let other = cluster.mount(Transport::Device);
    let name = "file";
    files::write(cluster.path().join(name), "text");
    let mut holder = lock_holder(&other.path().join(name));
    let path = cluster.path().join(name);
    let list = cluster.skep_list(&["client", "list"]);
    let stopped = list.iter().find(|it| it["pid"].number() == u64::from(other.pid()));
    let object = format!("n{}", stopped.expect("the mount")["id"]);
    other.signal(Signal::STOP);
    let waiter = std::thread::spawn(move || drop(locked(&path)));
    // Run the two commands at the same time, because management evicts the client when the client's
    // lease has expired.
    std::thread::scope(|scope| {
        let health = scope.spawn(|| assert_health_of(&cluster, "client-silent"));
        let (_, seconds) = why("a stopped client", &one("client-silent", &object), || {
            cluster.skep_json(&["why", "--interval", "300ms"])
        });
        print_row("stopped client", seconds, health.join().expect("the check names the client"));
    });
    // The metadata target releases the lock when the client is evicted.
    waiter.join().expect("the waiter gets the lock");
    other.signal(Signal::CONT);
    drop(holder.stdin.take());
    holder.wait().expect("the program exits");
}

/// Runs `skep` on the metadata host of a lab, and parses the output.
fn skep_in_lab(lab: &Lab, arguments: &[&str]) -> Value {
    let skep = cluster::program().display().to_string();
    let token = lab.token().display().to_string();
    let of_cluster = ["--token-file", &token, "--output", "json"];
    let command = [&["--host", "m1", "--", &skep][..], arguments, &of_cluster].concat();
    let run = lab.json("run", &command);
    let text = run["hosts"][0]["stdout"].text();
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {run:#}"))
}

#[test]
fn slow_link_of_a_client_is_the_only_reported_cause() {
    let lab = Lab::new();
    let shape = ["--servers", "2", "--targets", "1", "--clients", "3", "--in-memory"];
    lab.call("up", &shape).expect_success();
    let host = lab.namespace("c1");
    let slow = "tbf rate 16mbit burst 32kb limit 4mb".split(' ');
    let command = ["-n", &host, "qdisc", "replace", "dev", "eth0", "root"];
    run("tc", command.into_iter().chain(slow));
    let mut load = Load::new();
    for client in ["c1", "c2", "c3"] {
        let directory = lab.mount(client).join(client);
        files::create_dir(&directory);
        load.add(0, move |round| {
            write_file(&directory.join((round % 10).to_string()), 2 << 20);
        });
    }
    let clients = skep_in_lab(&lab, &["client", "list"]);
    let mut list = clients.list().iter();
    let slow = list.find(|it| Path::new(it["mount_point"].text()) == lab.mount("c1"));
    let slow = slow.unwrap_or_else(|| panic!("client 1 is missing: {clients:#}"));
    let expected = one("link-slow", &format!("n{}", slow["id"]));
    let (_, seconds) =
        why("a slow link", &expected, || skep_in_lab(&lab, &["why", "--interval", "2s"]));
    let health = assert_health("link-slow", || skep_in_lab(&lab, &["health", "check"]));
    print_row("slow link", seconds, health);
}

/// Command: skep why.
#[test]
fn why_finds_no_cause_in_idle_clusters_and_explains_bad_input() {
    let cluster = Cluster::start(Shape::small());
    let report = cluster.skep_json(&["why", "--interval", "500ms"]);
    schema::check("why", &report);
    assert_eq!(named(&report), Named::new(), "{report:#}");
    let text = cluster.skep(&["why", "--interval", "200ms"]);
    let is_short_of_memory = text.contains(" lacks memory: ");
    assert!(text.contains("No cause of slowness was found") || is_short_of_memory, "{text}");
    for (arguments, words) in [
        (&["why", "--target", "99"][..], "99"),
        (&["why", "--client", "absent"], "absent"),
        (&["why", "--since", "2h"], "for 600s"),
        (&["why", "--monitor", "127.0.0.1:1"], "--since"),
        (&["why", "--since", "5m", "--monitor", "127.0.0.1:1"], "cannot ask the monitor"),
        (&["why", "/proc/self"], "/proc/self"),
    ] {
        let message = cluster.try_skep(arguments).expect_failure();
        assert!(message.contains(words), "{arguments:?}: {message}");
    }
}
