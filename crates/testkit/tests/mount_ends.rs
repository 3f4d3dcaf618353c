//! Mounts as an administrator starts them, and how they end: by signals, by `umount`, with and
//! without a cluster.

use rustix::process::Signal;
use skep_testkit::cluster;
use skep_testkit::process::Process;
use skep_testkit::program::finish;
use skep_testkit::{Cluster, Scratch, Shape, Transport, wait_for};
use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
/// Longest time that `umount` may take when no server answers.
const UMOUNT_PATIENCE: Duration = Duration::from_secs(10);

fn small() -> Cluster {
    Cluster::start(Shape {
        metadata_targets: 1,
        storage_services: 1,
        targets_per_service: 1,
        ..Shape::default()
    })
}

fn is_mounted(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("the kernel tells");
    mounts.lines().any(|line| line.split(' ').nth(4) == path.to_str())
}

/// Mounts behind the terminal. Gives the mount's process; nobody has looked at the mount yet.
fn detach(cluster: &Cluster, transport: Transport, path: &Path) -> Process {
    fs::create_dir_all(path).expect("a directory to mount on");
    let before: Vec<_> = cluster.processes("mount").iter().map(|it| it.pid).collect();
    let (data, shown) = (cluster.data().display().to_string(), path.display().to_string());
    let arguments = ["mount", "--cluster", &data, "--transport", transport.name(), "--detach"];
    cluster::skep([&arguments[..], &[&shown]].concat()).expect_success();
    let mut found = cluster.processes("mount");
    found.retain(|it| !before.contains(&it.pid));
    assert!(is_mounted(path));
    found.pop().expect("its process runs")
}

fn ends(process: &Process, path: &Path) {
    wait_for("the mount ends", PATIENCE, || (!process.runs() && !is_mounted(path)).then_some(()));
}

#[test]
fn signals_unmount() {
    let mut cluster = small();
    let scratch = Scratch::new();
    for transport in [Transport::Uring, Transport::Device] {
        for signal in [Signal::TERM, Signal::INT] {
            let mounted = cluster.mount(transport);
            let path = mounted.path().to_owned();
            mounted.signal(signal);
            mounted.wait_for_end();
            assert!(!is_mounted(&path));
            let path = scratch.join("mnt");
            let process = detach(&cluster, transport, &path);
            process.signal(signal);
            ends(&process, &path);
        }
    }
    cluster.stop();
}

/// Also one that nobody has looked at: what is shown of it must be known before.
/// Semantics 4.10.
#[test]
fn umount_ends_mounts_while_the_cluster_is_away() {
    for transport in [Transport::Uring, Transport::Device] {
        let cluster = small();
        let scratch = Scratch::new();
        let ways = ["fresh", "used", "told"].map(|name| scratch.join(name));
        let processes = ways.each_ref().map(|path| detach(&cluster, transport, path));
        fs::write(ways[1].join("file"), "text").expect("written");
        // The supervisor first, or it would start the others again.
        for role in ["up", "management", "metadata", "storage"] {
            cluster.processes(role).iter().for_each(Process::kill);
        }
        finish(Command::new("umount").arg(&ways[0]), UMOUNT_PATIENCE).expect_success();
        finish(Command::new(cluster::program()).arg("umount").arg(&ways[1]), UMOUNT_PATIENCE)
            .expect_success();
        processes[2].signal(Signal::TERM);
        for (process, path) in processes.iter().zip(&ways) {
            ends(process, path);
        }
        cluster.kill_all();
    }
}

/// Locks all of a file, says so, and keeps it until it is told to end.
const LOCKER: &str = "
import fcntl, sys
with open(sys.argv[1], 'r+') as file:
    print('waits', flush=True)
    fcntl.lockf(file, fcntl.LOCK_EX)
    print('has it', flush=True)
    sys.stdin.read()
";

struct Locker(Child, Lines<BufReader<ChildStdout>>);

impl Locker {
    fn on(path: &Path) -> Self {
        let mut child = Command::new("python3")
            .args(["-c", LOCKER])
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 is there");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Self(child, lines)
    }

    fn says(&mut self, what: &str) {
        assert_eq!(self.1.next().expect("a line").expect("text"), what);
    }
}

impl Drop for Locker {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[test]
fn a_mount_of_which_a_waiting_program_was_killed_ends() {
    for transport in [Transport::Uring, Transport::Device] {
        let cluster = small();
        let scratch = Scratch::new();
        fs::write(cluster.path().join("file"), "").expect("made");
        let mut holder = Locker::on(&cluster.path().join("file"));
        holder.says("waits");
        holder.says("has it");
        let path = scratch.join("mnt");
        let process = detach(&cluster, transport, &path);
        let mut waiter = Locker::on(&path.join("file"));
        waiter.says("waits");
        let waits = || {
            let locks = cluster.skep_json(&["lock", "list"]);
            let mut list = locks.as_array()?.iter();
            list.any(|lock| lock["is_waiting"] == true).then_some(())
        };
        wait_for("it waits for the lock", PATIENCE, waits);
        drop(waiter);
        for role in ["up", "management", "metadata", "storage"] {
            cluster.processes(role).iter().for_each(Process::kill);
        }
        finish(Command::new("umount").arg(&path), PATIENCE).expect_success();
        ends(&process, &path);
        drop(holder);
        cluster.kill_all();
    }
}

/// Changes a mapped page, says so, and waits to be killed.
const MAPPER: &str = "
import mmap, sys
with open(sys.argv[1], 'r+b') as file:
    pages = mmap.mmap(file.fileno(), 65536)
    pages[:4] = b'late'
    print('changed', flush=True)
    sys.stdin.read()
";

/// Lets stopped processes go on, also when a test fails: nothing that waits for them would end.
struct Stopped(Vec<Process>);

impl Stopped {
    fn all(processes: Vec<Process>) -> Self {
        processes.iter().for_each(|process| process.signal(Signal::STOP));
        Self(processes)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.0.iter().for_each(|process| process.signal(Signal::CONT));
    }
}

/// Semantics 4.1.
#[test]
fn umount_by_force_lets_go_who_was_killed_with_changed_pages() {
    for transport in [Transport::Uring, Transport::Device] {
        let cluster = small();
        let scratch = Scratch::new();
        fs::write(cluster.path().join("file"), vec![b'.'; 65_536]).expect("written");
        let path = scratch.join("mnt");
        let process = detach(&cluster, transport, &path);
        let mut mapper = Command::new("python3")
            .args(["-c", MAPPER])
            .arg(path.join("file"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 is there");
        let mut lines = BufReader::new(mapper.stdout.take().expect("a pipe")).lines();
        assert_eq!(lines.next().expect("a line").expect("text"), "changed");
        let stopped = Stopped::all(cluster.processes("storage"));
        mapper.kill().expect("our own child");
        let state = |pid: u32| {
            let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            text.rsplit_once(") ")?.1.chars().next()
        };
        wait_for("it waits in the kernel", PATIENCE, || {
            (state(mapper.id()) == Some('D')).then_some(())
        });
        // It may say that the mount is busy; whoever waits is let go nevertheless.
        finish(Command::new("umount").arg("-f").arg(&path), PATIENCE);
        wait_for("it ends", PATIENCE, || mapper.try_wait().expect("our own child"));
        finish(Command::new("umount").arg("-l").arg(&path), PATIENCE);
        drop(stopped);
        ends(&process, &path);
        assert_eq!(fs::read(cluster.path().join("file")).expect("read").len(), 65_536);
        cluster.stop();
    }
}

/// The log has the mount point in its name, and names have 255 bytes at most.
#[test]
fn mount_points_may_have_any_name() {
    let cluster = small();
    let scratch = Scratch::new();
    let long: Vec<_> = (0..4).map(|it| it.to_string().repeat(200)).collect();
    for name in [&long.join("/")[..], "a blank, and more", "\u{e4}\u{65e5}"] {
        let path = scratch.join(name);
        fs::create_dir_all(&path).expect("made");
        let (data, shown) = (cluster.data().display().to_string(), path.display().to_string());
        cluster::skep(["mount", "--cluster", &data, "--detach", &shown]).expect_success();
        fs::write(path.join("file"), name).expect("written");
        assert_eq!(fs::read_to_string(cluster.path().join("file")).expect("seen"), name);
        cluster::skep(["umount", &shown]).expect_success();
    }
    cluster.stop();
}
