//! Clients that have been unable to reach management for longer than their lease
//! (docs/design/0006-fencing.md).

use rustix::process::Signal;
use skep_testkit::{Cluster, Mounted, PATIENCE, Shape, Transport, wait_for};
use skep_testkit::{connections, files};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const LENGTH: usize = 4 << 20;

fn mounts(cluster: &Cluster) -> usize {
    cluster.nodes("client").len()
}

/// Suspends a mount's process, and waits until management has removed the client.
fn stop_beyond_lease(cluster: &Cluster, mount: &Mounted) {
    let before = mounts(cluster);
    mount.signal(Signal::STOP);
    wait_for("the stopped client is removed", PATIENCE, || {
        (mounts(cluster) < before).then_some(())
    });
}

fn open(path: &Path) -> File {
    files::open_with(OpenOptions::new().read(true).write(true).create(true).truncate(false), path)
}

/// A program that writes to a file until a write fails, and then reports which of its handles still
/// work. For a successful read, the program reports the byte that it has read. The program must be
/// a separate process, because a process that has open files on a suspended mount hangs when it
/// starts another process.
const WRITER: &str = r#"
import errno, os, sys
def outcome(of):
    try:
        result = of()
        return result.decode() if isinstance(result, bytes) else "done"
    except OSError as error:
        return errno.errorcode[error.errno]
path = sys.argv[1]
writable = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
ours = b"A" * (4 << 20)
os.pwrite(writable, ours, 0)
os.fsync(writable)
readable = os.open(path, os.O_RDONLY)
nameless = os.open(path + "-removed", os.O_RDWR | os.O_CREAT, 0o644)
os.pwrite(nameless, ours, 0)
os.fsync(nameless)
of_nameless = os.open(path + "-removed", os.O_RDONLY)
os.unlink(path + "-removed")
print("ready", flush=True)
while (first := outcome(lambda: os.pwrite(writable, ours, 0))) == "done":
    pass
print(first, *(outcome(of) for of in (
    lambda: os.pwrite(writable, b"A", 0), lambda: os.fsync(writable),
    lambda: os.pread(writable, 1, 0), lambda: os.ftruncate(writable, 0),
    lambda: os.pread(readable, 1, 0),
    lambda: os.pread(of_nameless, 1, 1 << 20), lambda: os.fsync(of_nameless),
    lambda: os.pwrite(nameless, b"A", 0), lambda: os.fsync(nameless))))
"#;

/// docs/semantics.md 3.8 and 4.6. Regression test: delayed writes of a suspended client overwrote
/// newer writes of other clients.
#[test]
fn client_suspended_past_its_lease_overwrites_no_newer_bytes() {
    for transport in [Transport::Uring, Transport::Device] {
        let mut cluster = Cluster::start(Shape::default());
        let first = cluster.mount(transport);
        let path = cluster.path().join("file");
        let mut writer = Command::new("python3")
            .args(["-c", WRITER])
            .arg(first.path().join("file"))
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 is installed");
        let mut says = BufReader::new(writer.stdout.take().expect("a pipe")).lines();
        assert_eq!(says.next().expect("a line").expect("text"), "ready");
        stop_beyond_lease(&cluster, &first);
        let theirs = vec![b'B'; LENGTH];
        let other = open(&path);
        files::write_all_at(&other, &theirs, 0);
        files::sync_all(&other);
        drop(other);
        first.signal(Signal::CONT);

        let outcomes = says.next().expect("a line").expect("text");
        let outcomes: Vec<_> = outcomes.split(' ').collect();
        // The read returns a byte that the other mount has written.
        let expected = ["EIO", "EIO", "EIO", "EIO", "EIO", "B"];
        assert_eq!(outcomes[..6], expected, "the results of the operations on the evicted client");
        assert_eq!(
            outcomes[6..],
            ["ESTALE", "ESTALE", "EIO", "EIO"],
            "the results for the file without a name"
        );
        assert!(writer.wait().expect("our own child").success());
        assert!(files::read(&path) == theirs, "bytes of other clients are unchanged");

        // After it resumes, the mount serves files without any action of an administrator.
        assert!(files::read(first.path().join("file")) == theirs);
        let again = open(&first.path().join("file"));
        files::write_all_at(&again, b"again", 0);
        drop(again);
        assert_eq!(files::read(&path)[..5], *b"again");
        files::write(first.path().join("new"), "new");
        assert_eq!(files::read(cluster.path().join("new")), b"new");
        first.unmount();
        cluster.stop_except(&[]);
    }
}

/// Metadata removes the opens of a dead client even if no other client uses the files.
#[test]
fn dead_client_and_its_open_files_are_removed_within_a_lease() {
    let mut cluster = Cluster::start(Shape::default());
    let first = cluster.mount(Transport::Uring);
    let file = open(&first.path().join("removed"));
    files::write_all_at(&file, &vec![b'A'; LENGTH], 0);
    files::remove_file(cluster.path().join("removed"));
    let before = mounts(&cluster);
    first.kill();
    wait_for("the dead client is removed", PATIENCE, || (mounts(&cluster) < before).then_some(()));
    wait_for("the chunk files of its unlinked file are removed", PATIENCE, || {
        let is_chunk = |path: &Path| path.to_string_lossy().contains("/chunks/");
        let mut left = Vec::new();
        let mut directories = vec![cluster.data().to_path_buf()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => directories.push(entry.path()),
                    _ => left.push(entry.path()),
                }
            }
        }
        (!left.iter().any(|path| is_chunk(path))).then_some(())
    });
    cluster.stop_except(&[]);
}

/// A program that unlinks a file at the end of its input. At that time, the kernel still has the
/// name in its cache.
const UNLINKER: &str = r#"
import os, sys
os.stat(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
os.unlink(sys.argv[1])
"#;

/// Starts a program that unlinks `name` on the first mount. Metadata executes the request, but the
/// mount receives no reply. Returns the running program, and leaves the mount's process suspended.
/// Returns `None` if the kernel looked up the name before the unlink, because metadata then has not
/// executed the unlink.
fn unlink_without_a_reply(cluster: &Cluster, first: &Mounted, name: &str) -> Option<Child> {
    let metadata = cluster.processes("metadata").pop().expect("one metadata service runs");
    let mut unlinker = Command::new("python3")
        .args(["-c", UNLINKER])
        .arg(first.path().join(name))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 is installed");
    let mut says = BufReader::new(unlinker.stdout.take().expect("a pipe")).lines();
    assert_eq!(says.next().expect("a line").expect("text"), "ready");
    metadata.signal(Signal::STOP);
    drop(unlinker.stdin.take());
    wait_for("the request is in the socket of metadata", PATIENCE, || {
        (connections::unread_bytes(first.pid(), metadata.pid) > 0).then_some(())
    });
    first.signal(Signal::STOP);
    connections::break_between(first.pid(), metadata.pid);
    metadata.signal(Signal::CONT);
    let path = cluster.path().join(name);
    let deadline = Instant::now() + Duration::from_secs(3);
    while path.exists() {
        if Instant::now() > deadline {
            first.signal(Signal::CONT);
            unlinker.wait().expect("our own child");
            return None;
        }
        std::thread::yield_now();
    }
    Some(unlinker)
}

/// docs/semantics.md 4.3. Regression test: after its eviction, the first mount repeated the unlink,
/// and so removed the lock file of the other host. The unlink succeeded for both programs.
#[test]
fn evicted_client_does_not_unlink_a_newer_lock_file() {
    let mut cluster = Cluster::start(Shape::small());
    let first = cluster.mount(Transport::Uring);
    let path = cluster.path().join("lock");
    let mut unlinker = (0..10).find_map(|_| {
        files::write(first.path().join("lock"), "first");
        unlink_without_a_reply(&cluster, &first, "lock")
    });
    let unlinker = unlinker.as_mut().expect("an unlink whose reply is lost");
    let mounted = first.path().to_string_lossy().into_owned();
    let clients = cluster.skep_list(&["client", "list"]);
    let client = clients.iter().find(|it| it["mount_point"] == mounted.as_str());
    let id = client.expect("the first mount is listed")["id"].to_string();
    cluster.skep(&["client", "evict", &id, "--force"]);
    let mut lock = files::create_new(&path);
    lock.write_all(b"second").expect("the new file can be written");
    drop(lock);
    first.signal(Signal::CONT);
    assert!(unlinker.wait().expect("our own child").success(), "the first unlink was executed");
    assert_eq!(files::read(&path), b"second", "the lock of the other host stays");
    assert_eq!(files::read(first.path().join("lock")), b"second");
    first.unmount();
    cluster.stop_except(&[]);
}
