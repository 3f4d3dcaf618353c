//! Tests how the mounts of an administrator end: by signals and by `umount`, with and without a
//! reachable cluster.

use rustix::process::{Pid, Signal, kill_process};
use skep_testkit::cluster;
use skep_testkit::files;
use skep_testkit::process::{Process, Suspended, ctrl_c};
use skep_testkit::program::finish;
use skep_testkit::{Cluster, PATIENCE, Scratch, Shape, Transport, wait_for};
use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

/// Time limit for `umount` while no server accepts connections.
const UMOUNT_PATIENCE: Duration = Duration::from_secs(10);
/// Time limit for `umount` if servers accept requests but never reply. This limit is longer than
/// `umount`'s limit without servers, because each request must time out.
const SILENT_PATIENCE: Duration = Duration::from_secs(20);
/// Kills all services of the cluster. Suspends the supervisor first, so that the supervisor
/// restarts no service. After a kill of the supervisor, the kernel would send SIGTERM to the
/// services, and the services would make all changes durable before they end.
fn kill_services(cluster: &Cluster) {
    cluster.processes("up").iter().for_each(|supervisor| supervisor.signal(Signal::STOP));
    for role in ["management", "metadata", "storage"] {
        cluster.processes(role).iter().for_each(Process::kill);
    }
}

fn small() -> Cluster {
    Cluster::start(Shape { targets_per_service: 1, ..Shape::small() })
}

fn is_mounted(path: &Path) -> bool {
    let mounts = files::read_to_string("/proc/self/mountinfo");
    mounts.lines().any(|line| line.split(' ').nth(4) == path.to_str())
}

/// Mounts the cluster in the background. Returns the mount process, and does not access the mount.
fn detach(cluster: &Cluster, transport: Transport, path: &Path) -> Process {
    files::create_dir_all(path);
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
fn termination_signals_end_a_mount() {
    let mut cluster = small();
    let scratch = Scratch::new();
    for transport in [Transport::Uring, Transport::Device] {
        for signal in [Signal::TERM, ctrl_c()] {
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

/// `umount` must not wait for attributes from a server, even if no program has used the mount.
/// docs/semantics.md 4.10.
#[test]
fn umount_ends_mounts_while_the_cluster_is_stopped() {
    for transport in [Transport::Uring, Transport::Device] {
        let cluster = small();
        let scratch = Scratch::new();
        let ways = ["fresh", "used", "told"].map(|name| scratch.join(name));
        let processes = ways.each_ref().map(|path| detach(&cluster, transport, path));
        files::write(ways[1].join("file"), "text");
        files::write(ways[1].join("large"), vec![b'.'; 65_536]);
        kill_services(&cluster);
        finish(Command::new("umount").arg(&ways[0]), UMOUNT_PATIENCE).expect_success();
        // `skep umount` also waits until the mount process has exited. The mount process tries to
        // reach the servers before it exits.
        let printed =
            finish(Command::new(cluster::program()).arg("umount").arg(&ways[1]), PATIENCE)
                .expect_failure();
        assert!(printed.contains("may not be durable"), "the new files: {printed}");
        assert!(!processes[1].runs(), "skep umount returned before the process had ended");
        processes[2].signal(Signal::TERM);
        for (process, path) in processes.iter().zip(&ways) {
            ends(process, path);
        }
        cluster.kill_all();
    }
}

/// The log of a mount in the foreground may be the journal or a pipe, which `skep umount` cannot
/// read. docs/semantics.md 3.2.
#[test]
fn umount_reports_lost_changes_of_a_mount_without_a_log_file() {
    let cluster = small();
    let scratch = Scratch::new();
    let path = scratch.directory("mnt");
    let mut mount = Command::new(cluster::program());
    mount.args(["mount", "--foreground", "--cluster"]).arg(cluster.data()).arg(&path);
    mount.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut mount = mount.spawn().expect("the program starts");
    wait_for("the cluster is mounted", PATIENCE, || is_mounted(&path).then_some(()));
    files::write(path.join("file"), "text");
    kill_services(&cluster);
    let umount = finish(Command::new(cluster::program()).arg("umount").arg(&path), PATIENCE);
    let printed = umount.expect_failure();
    assert!(printed.contains("may not be durable"), "the new file: {printed}");
    let result = format!("/run/skep/mount-{}.result", mount.id());
    assert!(!Path::new(&result).exists(), "the command removes the file with the mount's result");
    mount.wait().expect("our own child");
    cluster.kill_all();
}

/// A bind mount keeps the file system in use, so `skep umount` must not wait for the mount process.
#[test]
fn umount_names_a_bind_mount_that_keeps_the_file_system_in_use() {
    let cluster = small();
    let scratch = Scratch::new();
    let (path, bound) = (scratch.join("mnt"), scratch.directory("bound"));
    let process = detach(&cluster, Transport::Device, &path);
    finish(Command::new("mount").arg("--bind").arg(&path).arg(&bound), PATIENCE).expect_success();
    let umount =
        |path: &Path| finish(Command::new(cluster::program()).arg("umount").arg(path), PATIENCE);
    let unmounted = umount(&path);
    let expected = format!("still mounted on {}", bound.display());
    assert!(unmounted.stderr.contains(&expected), "{}", unmounted.stderr);
    unmounted.expect_success();
    assert!(process.runs() && !is_mounted(&path));
    umount(&bound).expect_success();
    ends(&process, &bound);
    cluster.stop();
}

/// A program that locks a whole file and prints a line after it has locked the file. The program
/// releases the lock at the end of its input.
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
            .expect("python3 is installed");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Self(child, lines)
    }

    fn expect_line(&mut self, what: &str) {
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
fn umount_succeeds_after_a_kill_of_a_program_in_a_lock_wait() {
    for transport in [Transport::Uring, Transport::Device] {
        let cluster = small();
        let scratch = Scratch::new();
        files::write(cluster.path().join("file"), "");
        let mut holder = Locker::on(&cluster.path().join("file"));
        holder.expect_line("waits");
        holder.expect_line("has it");
        let path = scratch.join("mnt");
        let process = detach(&cluster, transport, &path);
        let mut waiter = Locker::on(&path.join("file"));
        waiter.expect_line("waits");
        let waits = || {
            let locks = cluster.skep_json(&["lock", "list"]);
            let mut list = locks.as_array()?.iter();
            list.any(|lock| lock["is_waiting"] == true).then_some(())
        };
        wait_for("the program waits for the lock", PATIENCE, waits);
        drop(waiter);
        kill_services(&cluster);
        finish(Command::new("umount").arg(&path), PATIENCE).expect_success();
        ends(&process, &path);
        drop(holder);
        cluster.kill_all();
    }
}

/// A program that changes a mapped page, prints a line, and then waits until it is killed.
const MAPPER: &str = "
import mmap, sys
with open(sys.argv[1], 'r+b') as file:
    pages = mmap.mmap(file.fileno(), 65536)
    pages[:4] = b'late'
    print('changed', flush=True)
    sys.stdin.read()
";

/// docs/semantics.md 4.1.
#[test]
fn forced_umount_ends_a_killed_program_with_dirty_pages() {
    for transport in [Transport::Uring, Transport::Device] {
        let cluster = small();
        let scratch = Scratch::new();
        files::write(cluster.path().join("file"), vec![b'.'; 65_536]);
        let path = scratch.join("mnt");
        let process = detach(&cluster, transport, &path);
        let mut mapper = Command::new("python3")
            .args(["-c", MAPPER])
            .arg(path.join("file"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 is installed");
        let mut lines = BufReader::new(mapper.stdout.take().expect("a pipe")).lines();
        assert_eq!(lines.next().expect("a line").expect("text"), "changed");
        let stopped = Suspended::of(cluster.processes("storage"));
        mapper.kill().expect("our own child");
        let state = |pid: u32| {
            let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            text.rsplit_once(") ")?.1.chars().next()
        };
        wait_for("the killed program waits in the kernel", PATIENCE, || {
            (state(mapper.id()) == Some('D')).then_some(())
        });
        // Ignore the exit status. `umount -f` may report a busy mount, but even in this case it
        // aborts the waiting requests.
        finish(Command::new("umount").arg("-f").arg(&path), PATIENCE);
        wait_for("the killed program ends", PATIENCE, || mapper.try_wait().expect("our own child"));
        finish(Command::new("umount").arg("-l").arg(&path), PATIENCE);
        drop(stopped);
        ends(&process, &path);
        assert_eq!(files::read(cluster.path().join("file")).len(), 65_536);
        cluster.stop();
    }
}

/// A program that handles SIGINT, and that opens and then reads a file.
const READER: &str = "
import os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
print('opened', flush=True)
os.read(file, 65536)
";

/// docs/semantics.md 4.4. While the handled SIGINT is pending, the kernel does not turn SIGTERM
/// into SIGKILL, so the mount has to end the request.
#[test]
fn sigterm_ends_a_blocked_read_after_a_handled_sigint() {
    for transport in [Transport::Uring, Transport::Device] {
        let mut cluster = small();
        files::write(cluster.path().join("file"), vec![b'.'; 65_536]);
        let mounted = cluster.mount(transport);
        let stopped = Suspended::of(cluster.processes("storage"));
        let mut command = Command::new("python3");
        command.args(["-c", READER]).arg(mounted.path().join("file")).stdout(Stdio::piped());
        let mut reader = Reader(command.spawn().expect("python3 is installed"));
        let mut lines = BufReader::new(reader.0.stdout.take().expect("a pipe")).lines();
        assert_eq!(lines.next().expect("a line").expect("text"), "opened");
        reader.waits();
        let pid = Pid::from_child(&reader.0);
        for signal in [Signal::INT, Signal::TERM] {
            kill_process(pid, signal).expect("our own child");
        }
        let status = wait_for("the program ends", PATIENCE, || reader.0.try_wait().expect("ours"));
        assert_eq!(status.signal(), Some(Signal::TERM.as_raw()));
        drop(stopped);
    }
}

/// A program that reads a file. Dropping this value kills the program, but does not wait until the
/// program has exited. The program may be unable to exit while the servers are suspended.
struct Reader(Child);

impl Reader {
    fn of(path: &Path) -> Self {
        let mut command = Command::new("cat");
        command.arg(path).stdin(Stdio::null()).stdout(Stdio::null());
        Self(command.spawn().expect("cat can be started"))
    }

    /// Waits until the program is waiting for a reply of the mount.
    fn waits(&self) {
        wait_for("the reader waits for the mount", PATIENCE, || {
            let place = fs::read_to_string(format!("/proc/{}/wchan", self.0.id())).ok()?;
            let kernel = ["fuse", "request_wait_answer", "folio_wait"];
            kernel.iter().any(|part| place.contains(part)).then_some(())
        });
    }

    /// Kills the program, and waits until the program has exited.
    fn end(mut self) {
        self.0.kill().expect("our own child");
        wait_for("the killed reader ends", SILENT_PATIENCE, || {
            self.0.try_wait().expect("our own child")
        });
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.kill().ok();
    }
}

/// Connections to suspended services stay open, so a mount notices the suspension only by a
/// timeout. docs/semantics.md 4.1 and 4.10.
#[test]
fn mounts_end_while_the_services_are_suspended() {
    for transport in Transport::ALL {
        let cluster = small();
        let scratch = Scratch::new();
        files::write(cluster.path().join("file"), "text");
        let ways = ["fresh", "used", "told", "busy"].map(|name| scratch.join(name));
        let processes = ways.each_ref().map(|path| detach(&cluster, transport, path));
        let [fresh, used, _, busy] = &ways;
        files::write(used.join("own"), "text");
        let services = ["up", "management", "metadata", "storage"]
            .iter()
            .flat_map(|role| cluster.processes(role))
            .collect();
        let stopped = Suspended::of(services);
        let run = |command: &mut Command| finish(command, SILENT_PATIENCE).expect_success();
        // `df` opens the directory. At the second `df`, the kernel uses cached attributes, and for
        // users other than root the kernel also reads the access control list.
        run(Command::new("df").arg(used));
        let of_user = ["--reuid", "65534", "--regid", "65534", "--clear-groups", "df"];
        run(Command::new("setpriv").args(of_user).arg(used));
        processes[2].signal(Signal::TERM);
        run(Command::new("umount").arg(fresh));
        let printed = finish(Command::new(cluster::program()).arg("umount").arg(used), PATIENCE)
            .expect_failure();
        assert!(printed.contains("may not be durable"), "the new file: {printed}");
        assert!(!processes[1].runs(), "skep umount returned before the process had ended");
        let reader = Reader::of(&busy.join("file"));
        reader.waits();
        let printed = finish(Command::new("umount").arg(busy), SILENT_PATIENCE).expect_failure();
        assert!(printed.contains("busy"), "{printed}");
        run(Command::new("umount").arg("-l").arg(busy));
        assert!(!is_mounted(busy));
        assert!(processes[3].runs(), "the process serves as long as a program uses the mount");
        reader.end();
        for (process, path) in processes.iter().zip(&ways) {
            ends(process, path);
        }
        drop(stopped);
        // The other mounts still serve requests.
        let file = cluster.path().join("file");
        let found = finish(Command::new("cat").arg(file), PATIENCE).expect_success();
        assert_eq!(found, "text");
        cluster.stop();
    }
}

/// The file name of a mount's log contains the path of the mount point. A file name has at most 255
/// bytes, but this path may be longer than 255 bytes.
#[test]
fn mount_points_may_have_any_name() {
    let cluster = small();
    let scratch = Scratch::new();
    let long: Vec<_> = (0..4).map(|it| it.to_string().repeat(200)).collect();
    for name in [&long.join("/")[..], "a blank, and more", "\u{e4}\u{65e5}"] {
        let path = scratch.join(name);
        files::create_dir_all(&path);
        let (data, shown) = (cluster.data().display().to_string(), path.display().to_string());
        cluster::skep(["mount", "--cluster", &data, "--detach", &shown]).expect_success();
        files::write(path.join("file"), name);
        assert_eq!(files::read_to_string(cluster.path().join("file")), name);
        cluster::skep(["umount", &shown]).expect_success();
    }
    cluster.stop();
}
