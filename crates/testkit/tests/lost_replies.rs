//! Operations whose reply is lost together with the connection, while other programs use the same
//! mount. Each operation must take effect exactly once.
//!
//! Between the first execution of the request and the retry by the mount, another mount makes a
//! change. A second execution of the request would destroy this change.

use skep_testkit::files;
use skep_testkit::proxy::{Message, Proxy};
use skep_testkit::{Cluster, Mounted, PATIENCE, Shape, Transport, wait_for};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// Number of programs that use the mount during the lost reply.
const WORKERS: u32 = 3;
/// Number of lost replies in each test.
const ROUNDS: u32 = 4;

/// A cluster with a mount behind a proxy, and the programs that use that mount.
struct Scene {
    // Fields are dropped in the order of declaration, so the mount must come before the cluster.
    work: Vec<JoinHandle<u32>>,
    is_ending: Arc<AtomicBool>,
    mount: Mounted,
    proxy: Proxy,
    cluster: Cluster,
}

impl Scene {
    fn new(transport: Transport) -> Self {
        let mut cluster = Cluster::start(Shape { storage_services: 1, ..Shape::default() });
        let proxy = cluster.proxy();
        let mount = cluster.mount_through(&proxy, transport);
        let is_ending = Arc::new(AtomicBool::new(false));
        let work = (0..WORKERS)
            .map(|number| {
                let directory = mount.path().join(format!("work-{number}"));
                files::create_dir(&directory);
                let is_ending = Arc::clone(&is_ending);
                thread::spawn(move || work(&directory, &is_ending))
            })
            .collect();
        Self { work, is_ending, mount, proxy, cluster }
    }

    /// Returns the path of a file on the mount behind the proxy.
    fn ours(&self, name: &str) -> PathBuf {
        self.mount.path().join(name)
    }

    /// Returns the path of a file on the other mount.
    fn theirs(&self, name: &str) -> PathBuf {
        self.cluster.path().join(name)
    }

    /// Runs `operation` on a separate thread, and drops the reply to its request. After the drop,
    /// runs `meanwhile`, and then lets the mount retry the request. Returns the result of the
    /// operation.
    fn lose<T: Send + 'static>(
        &self,
        (message, part): (Message, &[u8]),
        operation: impl FnOnce() -> T + Send + 'static,
        meanwhile: impl FnOnce(),
    ) -> T {
        let reply = self.proxy.drop_reply(message, part);
        let operation = thread::spawn(operation);
        reply.wait();
        assert!(!operation.is_finished(), "the operation has no reply");
        meanwhile();
        reply.release();
        join(operation, "the operation")
    }

    /// Ends the programs, and checks their results.
    fn end(mut self) {
        self.is_ending.store(true, Ordering::Relaxed);
        for (number, worker) in self.work.drain(..).enumerate() {
            let rounds = join(worker, "another program");
            assert!(rounds > 0, "the other programs worked during the lost reply");
            let directory = self.cluster.path().join(format!("work-{number}"));
            let mut names: Vec<_> = files::read_dir(&directory)
                .map(|entry| entry.expect("readable").file_name().into_string().expect("ASCII"))
                .collect();
            names.sort();
            assert_eq!(names, ["kept", "log"]);
            assert_eq!(files::read_to_string(directory.join("log")), lines(rounds));
            let kept = directory.join("kept");
            assert_eq!(files::read_to_string(&kept), format!("round {}", rounds - 1));
            assert_eq!(files::metadata(&kept).nlink(), 1);
        }
        let Self { mount, cluster, .. } = self;
        mount.unmount();
        cluster.stop_checked(&[]);
    }
}

/// Waits until a thread ends, and returns its result.
fn join<T>(thread: JoinHandle<T>, what: &str) -> T {
    wait_for(&format!("{what} ends"), PATIENCE, || thread.is_finished().then_some(()));
    thread.join().unwrap_or_else(|_| panic!("{what} has failed"))
}

fn lines(rounds: u32) -> String {
    (0..rounds).map(|round| format!("{round}\n")).collect()
}

/// Creates, links, renames, unlinks, extends and truncates files in `directory` until the test
/// ends. Each call must succeed. Returns the number of rounds.
fn work(directory: &Path, is_ending: &AtomicBool) -> u32 {
    let path = |name: &str| directory.join(name);
    let mut log = files::open_with(OpenOptions::new().append(true).create(true), path("log"));
    let mut round = 0;
    while round == 0 || !is_ending.load(Ordering::Relaxed) {
        let mut new = files::create_new(path("new"));
        new.write_all(b"longer than the next text").expect("a write succeeds");
        files::set_len(&new, 0);
        files::write_all_at(&new, format!("round {round}").as_bytes(), 0);
        new.lock().expect("no other program locks the file");
        drop(new);
        files::hard_link(path("new"), path("link"));
        files::rename(path("new"), path("kept"));
        files::remove_file(path("link"));
        log.write_all(format!("{round}\n").as_bytes()).expect("an append succeeds");
        round += 1;
    }
    round
}

fn inode_of(path: &Path) -> [u8; 8] {
    files::metadata(path).ino().to_le_bytes()
}

/// docs/semantics.md 4.3.
#[test]
fn retried_unlink_does_not_remove_a_newer_file() {
    let scene = Scene::new(Transport::Uring);
    for round in 0..ROUNDS {
        let name = format!("unlinked-{round}");
        let path = scene.ours(&name);
        files::write(&path, "first");
        let result = scene.lose(
            (Message::Unlink, name.as_bytes()),
            move || fs::remove_file(path),
            || {
                let mut new = files::create_new(scene.theirs(&name));
                new.write_all(b"second").expect("the name is free");
            },
        );
        result.expect("the file was unlinked once");
        assert_eq!(files::read(scene.theirs(&name)), b"second");
    }
    scene.end();
}

/// docs/semantics.md 4.3.
#[test]
fn retried_rename_does_not_move_a_newer_file() {
    let scene = Scene::new(Transport::Device);
    files::create_dir(scene.ours("other"));
    for round in 0..ROUNDS {
        let (old, new) = (format!("old-{round}"), format!("other/new-{round}"));
        let (from, to) = (scene.ours(&old), scene.ours(&new));
        files::write(&from, "first");
        let result = scene.lose(
            (Message::Rename, old.as_bytes()),
            move || fs::rename(from, to),
            || files::write(scene.theirs(&old), "second"),
        );
        result.expect("the file was renamed once");
        assert_eq!(files::read(scene.theirs(&new)), b"first");
        assert_eq!(files::read(scene.theirs(&old)), b"second");
    }
    scene.end();
}

/// docs/semantics.md 4.3.
#[test]
fn retried_link_creates_only_one_link() {
    let scene = Scene::new(Transport::Uring);
    files::write(scene.ours("file"), "bytes");
    for round in 0..ROUNDS {
        let name = format!("link-{round}");
        let (from, to) = (scene.ours("file"), scene.ours(&name));
        let result = scene.lose(
            (Message::Link, name.as_bytes()),
            move || fs::hard_link(from, to),
            || files::remove_file(scene.theirs(&name)),
        );
        result.expect("the link was made once");
        assert!(!scene.theirs(&name).exists(), "the other mount has removed the link");
        assert_eq!(files::metadata(scene.theirs("file")).nlink(), 1);
    }
    scene.end();
}

/// docs/semantics.md 2.9.
#[test]
fn retried_append_is_written_once() {
    let scene = Scene::new(Transport::Uring);
    append_without_replies(&scene, "small", Vec::new(), Message::WriteInline);
    // The first write is larger than the inline bytes, so all bytes are on storage.
    append_without_replies(&scene, "large", vec![b'x'; 20_000], Message::WriteChunk);
    scene.end();
}

/// Appends lines to a file by both mounts in turn. The network loses the replies to the requests of
/// one mount. `expected` is the content of the file before the call.
fn append_without_replies(scene: &Scene, name: &str, mut expected: Vec<u8>, message: Message) {
    let append =
        |path: PathBuf| files::open_with(OpenOptions::new().append(true).create(true), path);
    let mut theirs = append(scene.theirs(name));
    theirs.write_all(&expected).expect("the other mount writes the content");
    let ours = Arc::new(append(scene.ours(name)));
    let inode = inode_of(&scene.theirs(name));
    for round in 0..ROUNDS {
        let line = format!("ours {round}\n");
        let (file, written) = (Arc::clone(&ours), line.clone());
        let result =
            scene.lose((message, &inode), move || (&*file).write_all(written.as_bytes()), || {});
        result.expect("the line was appended once");
        expected.extend_from_slice(line.as_bytes());
        let line = format!("theirs {round}\n");
        theirs.write_all(line.as_bytes()).expect("an append of the other mount succeeds");
        expected.extend_from_slice(line.as_bytes());
    }
    drop((ours, theirs));
    let found = files::read(scene.theirs(name));
    assert_eq!(found.escape_ascii().to_string(), expected.escape_ascii().to_string());
}

/// docs/semantics.md 2.7 and 4.3.
#[test]
fn retried_truncation_does_not_remove_newer_bytes() {
    let scene = Scene::new(Transport::Device);
    for round in 0..ROUNDS {
        let name = format!("truncated-{round}");
        let path = scene.ours(&name);
        files::write(&path, [b'1'; 40_000]);
        let inode = inode_of(&path);
        let ours = files::open_with(OpenOptions::new().write(true), &path);
        let result = scene.lose(
            (Message::SetAttributes, &inode),
            move || ours.set_len(10),
            || {
                let mut file =
                    files::open_with(OpenOptions::new().append(true), scene.theirs(&name));
                file.write_all(&[b'2'; 5_000]).expect("an append succeeds");
            },
        );
        result.expect("the file was truncated once");
        let expected = [vec![b'1'; 10], vec![b'2'; 5_000]].concat();
        assert!(files::read(scene.theirs(&name)) == expected);
        assert!(files::read(scene.ours(&name)) == expected);
    }
    scene.end();
}

/// docs/semantics.md 6.1 and 4.3.
#[test]
fn retried_lock_and_unlock_take_effect_once() {
    let scene = Scene::new(Transport::Uring);
    for round in 0..ROUNDS {
        let name = format!("locked-{round}");
        let ours = Arc::new(files::create(scene.ours(&name)));
        let theirs = files::open(scene.theirs(&name));
        let inode = inode_of(&scene.theirs(&name));
        let is_locked = || theirs.try_lock().is_err();
        let file = Arc::clone(&ours);
        let aim = (Message::SetLock, &inode[..]);
        let locked = scene.lose(aim, move || file.lock(), || assert!(is_locked()));
        locked.expect("the lock was set once");
        assert!(is_locked(), "the file is locked after the retry");
        let file = Arc::clone(&ours);
        let unlocked = scene.lose(aim, move || file.unlock(), || assert!(!is_locked()));
        unlocked.expect("the lock was released once");
        let again = files::open(scene.ours(&name));
        assert!(again.try_lock().is_err(), "the other mount has the lock");
        theirs.unlock().expect("the other mount has the lock");
        again.try_lock().expect("the file is free");
    }
    scene.end();
}
