//! The number of requests that each system call causes. The kernel sends requests to the mount, and
//! the mount sends requests to the servers.
//!
//! The tests read the operation counters on the metrics pages. The tests fail if a change of Skep
//! adds a request to one of these system calls. A developer whose change saves a request must
//! reduce the expected number in this file and in the table in docs/benchmarks.md.
//!
//! The mount caches names and attributes for an hour. So no entry expires and causes a request
//! while the machine is busy.

use rustix::fs::{FlockOperation, OFlags, Uid};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity, set_thread_res_uid};
use skep_testkit::files::{self, OrFail};
use skep_testkit::{Cluster, Mounted, Shape, Transport, eventually};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Number of repetitions of each system call.
const CALLS: usize = 40;
/// Length of a small file in bytes.
const LEN: usize = 3901;
/// An ordinary user. Before a write of this user, the mount must find out whether the file has a
/// set-user-id bit.
const USER: u32 = 65_534;
/// Time limit for the counters to include the last request.
const COUNTER_PATIENCE: Duration = Duration::from_secs(5);
/// Kinds of requests for which no system call waits. The mount and the services send such requests
/// with a delay, several requests in one message.
const BACKGROUND: [&str; 8] = [
    "acknowledge_notifications",
    "close_many",
    "get_map",
    "interrupt",
    "keep_alive",
    "open_session",
    "remove_chunks",
    "wait_notifications",
];

/// The number of requests of each kind.
type Requests = BTreeMap<String, u64>;

/// A cluster, and the mount whose requests are counted.
struct Counted {
    cluster: Cluster,
    mount: Mounted,
}

/// Requests the metrics page of a service or mount, and returns the number of operations of each
/// kind.
fn operations(mut stream: impl Read + Write, service: &str) -> Requests {
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("the request is sent");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("a reply");
    assert!(page.ends_with("# EOF\n"), "a complete page");
    let prefix = format!("skep_{service}_operations_total{{");
    let mut found = Requests::new();
    for line in page.lines().filter_map(|line| line.strip_prefix(&prefix)) {
        let (labels, count) = line.split_once("} ").expect("a sample");
        let name = labels.split("operation=\"").nth(1).and_then(|it| it.split('"').next());
        let name = name.expect("the label of the operation");
        let count: u64 = count.parse().expect("a number");
        *found.entry(format!("{service}.{name}")).or_default() += count;
    }
    found
}

impl Counted {
    fn new() -> Self {
        Self::with("attribute_timeout=3600")
    }

    fn with(mount_options: &str) -> Self {
        let mut cluster = Cluster::start(Shape::small());
        cluster.turn_off_inline_bytes();
        let mount = cluster.mount_with(Transport::Uring, mount_options);
        Self { cluster, mount }
    }

    /// Stops the cluster, and checks its stores.
    fn end(self) {
        self.mount.unmount();
        self.cluster.stop_checked(&[]);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mount.path().join(name)
    }

    /// Returns a new empty directory. The kernel has the directory's attributes in its cache.
    fn directory(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        files::create_dir(&path);
        stat(self.mount.path());
        stat(&path);
        path
    }

    fn requests(&self) -> Requests {
        let socket = format!("/run/skep/mount-{}.sock", self.mount.pid());
        let mut all = operations(UnixStream::connect(socket).expect("the mount answers"), "mount");
        for service in ["metadata", "storage"] {
            let file = self.cluster.data().join(format!("{service}-1")).join("metrics-address");
            let address = files::read_to_string(file);
            let stream = TcpStream::connect(address.trim()).expect("the service answers");
            all.append(&mut operations(stream, service));
        }
        all.retain(|name, _| BACKGROUND.iter().all(|it| !name.ends_with(it)));
        all
    }

    /// Returns the number of requests of one kind until now.
    fn count(&self, kind: &str) -> u64 {
        self.requests().get(kind).copied().unwrap_or_default()
    }

    /// Runs `call` [`CALLS`] times, and compares the average number of requests per call, rounded,
    /// with `expected`. Single calls may cause other requests: the first call may use cached
    /// attributes, and the mount sends some reports with a delay. `expected` lists the expected
    /// requests. For example, `mount.lookup metadata.lookup` means one request of the kind
    /// `mount.lookup` and one request of the kind `metadata.lookup`.
    #[track_caller]
    fn check(&self, what: &str, expected: &str, mut call: impl FnMut(usize)) {
        let mut wanted = Requests::new();
        for name in expected.split_whitespace() {
            *wanted.entry(name.to_owned()).or_default() += 1;
        }
        let before = self.requests();
        for number in 0..CALLS {
            call(number);
        }
        let (mut sent, mut counted) = (Requests::new(), Requests::new());
        let are_equal = || {
            counted = self.requests();
            for (name, count) in &mut counted {
                *count -= before.get(name).copied().unwrap_or_default();
            }
            sent = counted.clone();
            sent.values_mut().for_each(|count| *count = (*count + CALLS as u64 / 2) / CALLS as u64);
            sent.retain(|_, count| *count > 0);
            (sent == wanted).then_some(())
        };
        let found = eventually(COUNTER_PATIENCE, are_equal);
        counted.retain(|_, count| *count > 0);
        assert!(
            found.is_some(),
            "{what}: one call costs {sent:?}, expected {wanted:?}; {CALLS} calls: {counted:?}"
        );
    }
}

fn name(directory: &Path, number: usize) -> PathBuf {
    directory.join(format!("name-{number}"))
}

fn open(path: &Path, flags: OFlags) -> File {
    let flags = i32::try_from(flags.bits()).expect("flags of open(2)");
    files::open_with(OpenOptions::new().read(true).write(true).custom_flags(flags), path)
}

/// Calls `stat(2)`. `std::fs::metadata` also requests the creation time, and the kernel sends an
/// additional request for this time.
fn stat(path: &Path) {
    rustix::fs::stat(path).or_fail("stat", path);
}

/// Sets or releases the lock of this process on a whole file, with `fcntl(2)`.
fn lock(file: &File, operation: FlockOperation) {
    rustix::fs::fcntl_lock(file, operation).expect("the lock is free");
}

/// Runs `call` as [`USER`], on a separate thread that stays on one processor. Over io_uring, a
/// single worker of the mount gets all requests of this thread.
fn as_user(call: impl FnOnce() + Send) {
    let work = || {
        let usable = sched_getaffinity(None).expect("the processors of the thread");
        let first = (0..CpuSet::MAX_CPU).find(|cpu| usable.is_set(*cpu)).expect("a processor");
        let mut one = CpuSet::new();
        one.set(first);
        sched_setaffinity(None, &one).expect("a thread may choose its processor");
        set_thread_res_uid(None, Uid::from_raw(USER), None).expect("root may change its ids");
        call();
    };
    std::thread::scope(|scope| scope.spawn(work).join()).expect("the calls succeed");
}

/// Opens a file, reads the whole file, and closes the file.
fn read(path: &Path) {
    let file = files::open(path);
    files::read_exact_at(&file, &mut [0; LEN], 0);
}

#[test]
fn changes_of_names_send_the_documented_requests() {
    let counted = Counted::new();
    let at = counted.directory("files");
    let new = |number: usize| at.join(format!("new-{number}"));
    counted.check(
        "create and close",
        "mount.get_attr mount.lookup metadata.lookup
         mount.create metadata.create mount.flush mount.release",
        |number| drop(files::create_new(name(&at, number))),
    );
    counted.check("stat after create", "", |number| stat(&name(&at, number)));
    counted.check("unlink", "mount.get_attr mount.unlink metadata.unlink", |number| {
        files::remove_file(name(&at, number))
    });
    counted.check(
        "create, write and close",
        "mount.get_attr mount.lookup metadata.lookup
         mount.create metadata.create mount.get_xattr mount.write storage.write_chunk
         mount.flush metadata.report_written mount.release",
        |number| files::write(name(&at, number), [7; LEN]),
    );
    counted.check(
        "rename",
        "mount.get_attr mount.lookup metadata.lookup
         mount.rename metadata.rename",
        |number| files::rename(name(&at, number), new(number)),
    );
    counted.check(
        "link",
        "mount.get_attr mount.lookup metadata.lookup
         mount.link metadata.link",
        |number| files::hard_link(new(number), name(&at, number)),
    );
    (0..CALLS).for_each(|number| files::remove_file(new(number)));
    counted.check(
        "mkdir",
        "mount.get_attr mount.lookup metadata.lookup
         mount.mk_dir metadata.make_directory",
        |number| files::create_dir(new(number)),
    );
    counted.check("rmdir", "mount.get_attr mount.rm_dir metadata.remove_directory", |number| {
        files::remove_dir(new(number))
    });
    counted.check(
        "symlink",
        "mount.get_attr mount.lookup metadata.lookup
         mount.symlink metadata.make_symlink",
        |number| files::symlink("file", new(number)),
    );
    counted.check("readlink", "mount.read_link metadata.read_link", |number| {
        files::read_link(new(number));
    });
    counted.check("readlink again", "", |number| drop(files::read_link(new(number))));
    counted.check(
        "fsync of a directory after a change",
        "mount.get_attr mount.unlink metadata.unlink
         mount.open_dir mount.fsync_dir metadata.sync_all mount.release_dir",
        |number| {
            files::remove_file(new(number));
            files::sync_all(&files::open(&at));
        },
    );
    counted.end();
}

/// The reply to the creation contains the permissions of the file. So the worker does not request
/// these permissions for the first write.
#[test]
fn new_files_of_users_cause_no_request_for_permissions() {
    let counted = Counted::new();
    let at = counted.directory("files");
    files::chown(&at, Some(USER), None);
    stat(&at);
    counted.check(
        "create, write and close by a user",
        "mount.get_attr mount.lookup metadata.lookup
         mount.create metadata.create mount.get_xattr mount.get_xattr
         mount.write storage.write_chunk
         mount.flush metadata.report_written mount.release",
        |number| as_user(|| files::write(name(&at, number), [7; LEN])),
    );
    // A program that unpacks an archive also changes the permissions of each file.
    counted.check(
        "create, write, close and chmod by a user",
        "mount.get_attr mount.lookup metadata.lookup
         mount.create metadata.create mount.get_xattr mount.get_xattr mount.get_xattr
         mount.write storage.write_chunk
         mount.flush metadata.report_written mount.release
         mount.set_attr metadata.set_attributes",
        |number| {
            as_user(|| {
                let path = name(&at, CALLS + number);
                files::write(&path, [7; LEN]);
                files::set_permissions(&path, Permissions::from_mode(0o600));
            });
        },
    );
    counted.end();
}

/// A new owner clears the set-user-id bit. The reply to the creation shows that the file does not
/// have this bit, so the mount does not request the permissions.
#[test]
fn chown_of_a_new_file_sends_one_request_to_metadata() {
    let counted = Counted::new();
    let at = counted.directory("files");
    let kinds = ["metadata.get_attributes", "metadata.set_attributes"];
    let before = kinds.map(|kind| counted.count(kind));
    // The files stay open: the close of a file might run at the same time as the next `chown`.
    let chown = |number: usize| {
        let file = files::create_new(name(&at, number));
        std::os::unix::fs::fchown(&file, Some(USER), None).expect("root may change the owner");
        file
    };
    let open: Vec<_> = (0..CALLS).map(chown).collect();
    let sent = || {
        let now = kinds.map(|kind| counted.count(kind));
        let (queries, changes) = (now[0] - before[0], now[1] - before[1]);
        (changes >= CALLS as u64).then_some((queries, changes))
    };
    let ((queries, changes), _) = eventually(COUNTER_PATIENCE, sent).expect("a change per file");
    assert_eq!(changes, CALLS as u64);
    // Other requests of the mount may run at the same time as a few of the calls.
    assert!(queries < CALLS as u64 / 4, "{queries} requests for attributes of new files");
    drop(open);
    counted.end();
}

#[test]
fn locks_of_an_unchanged_file_send_the_documented_requests() {
    let counted = Counted::new();
    let at = counted.directory("files");
    let path = at.join("file");
    files::write(&path, [7; LEN]);
    let file = open(&path, OFlags::empty());
    stat(&path);
    counted.check(
        "lock, stat and unlock",
        "mount.set_lock metadata.set_lock mount.set_lock metadata.set_lock",
        |_| {
            lock(&file, FlockOperation::NonBlockingLockShared);
            stat(&path);
            lock(&file, FlockOperation::NonBlockingUnlock);
        },
    );
    // After a write, the kernel requests the attributes at the next `stat`. The mount has received
    // these attributes in the reply to the last lock.
    counted.check(
        "lock, write, unlock, lock, stat and unlock",
        "mount.set_lock metadata.set_lock mount.get_xattr mount.write storage.write_chunk
         mount.set_lock metadata.report_written metadata.set_lock
         mount.set_lock metadata.set_lock mount.get_attr
         mount.set_lock metadata.set_lock",
        |_| {
            lock(&file, FlockOperation::NonBlockingLockExclusive);
            files::write_all_at(&file, &[8; LEN], 0);
            lock(&file, FlockOperation::NonBlockingUnlock);
            lock(&file, FlockOperation::NonBlockingLockShared);
            stat(&path);
            lock(&file, FlockOperation::NonBlockingUnlock);
        },
    );
    // The reply to the last unlock contains the attributes too.
    counted.check(
        "lock, write, unlock and stat",
        "mount.set_lock metadata.set_lock mount.get_xattr mount.write storage.write_chunk
         mount.set_lock metadata.report_written metadata.set_lock mount.get_attr",
        |_| {
            lock(&file, FlockOperation::NonBlockingLockExclusive);
            files::write_all_at(&file, &[9; LEN], 0);
            lock(&file, FlockOperation::NonBlockingUnlock);
            stat(&path);
        },
    );
}

#[test]
fn reads_of_small_files_send_the_documented_requests() {
    let counted = Counted::new();
    let at = counted.cluster.path().join("files");
    files::create_dir(&at);
    (0..CALLS).for_each(|number| files::write(name(&at, number), [7; LEN]));
    let at = counted.path("files");
    stat(&at);
    counted.check(
        "open, read and close",
        "mount.lookup metadata.lookup mount.open metadata.open
         mount.read storage.read_chunk mount.release",
        |number| read(&name(&at, number)),
    );
    counted.check("read again", "mount.open metadata.open mount.release", |number| {
        read(&name(&at, number));
    });
    // When a program reads a file, the kernel drops the file's cached access time.
    counted.check("stat after read", "mount.get_attr metadata.get_attributes", |number| {
        stat(&name(&at, number));
    });
    counted.check("stat again", "", |number| stat(&name(&at, number)));
}

/// After the last entry of a directory, the kernel sends one more request to the mount. The mount
/// replies to this request without a request to metadata. Every second directory is empty.
#[test]
fn listing_of_a_directory_sends_one_request_to_metadata() {
    let counted = Counted::new();
    let at = counted.directory("directories");
    for number in 0..CALLS {
        files::create_dir(name(&at, number));
        if number % 2 == 1 {
            (0..3).for_each(|file| files::write(name(&name(&at, number), file), b"x"));
        }
    }
    let before = counted.count("metadata.read_directory");
    for number in 0..CALLS {
        assert_eq!(files::read_dir(name(&at, number)).count(), number % 2 * 3);
    }
    let listed = || {
        let sent = counted.count("metadata.read_directory") - before;
        (sent >= CALLS as u64).then_some(sent)
    };
    let found = eventually(COUNTER_PATIENCE, listed);
    assert_eq!(found.map(|(sent, _)| sent), Some(CALLS as u64));
    counted.end();
}

#[test]
fn inline_files_send_the_documented_requests() {
    let counted = Counted::new();
    let (own, other) = (counted.directory("own"), counted.cluster.path().join("other"));
    files::create_dir(&other);
    for at in [&own, &other] {
        counted.cluster.hand_down(at, "inline/from=4KiB");
    }
    (0..CALLS).for_each(|number| files::write(name(&other, number), [7; LEN]));
    let other = counted.path("other");
    [&own, &other].into_iter().for_each(|at| stat(at));
    counted.check(
        "create, write and close",
        "mount.get_attr mount.lookup metadata.lookup
         mount.create metadata.create mount.get_xattr mount.write metadata.write_inline
         mount.flush mount.release",
        |number| files::write(name(&own, number), [7; LEN]),
    );
    counted.check("unlink", "mount.get_attr mount.unlink metadata.unlink", |number| {
        files::remove_file(name(&own, number))
    });
    counted.check(
        "open, read and close",
        "mount.lookup metadata.lookup mount.open metadata.open
         mount.read mount.release",
        |number| read(&name(&other, number)),
    );
    counted.check("read again", "mount.open metadata.open mount.release", |number| {
        read(&name(&other, number));
    });
    let path = own.join("file");
    files::write(&path, [1; LEN]);
    let file = open(&path, OFlags::empty());
    files::sync_all(&file);
    counted.check(
        "overwrite and fsync",
        "mount.write metadata.write_inline mount.fsync metadata.sync_inline",
        |_| {
            files::write_all_at(&file, &[2; LEN], 0);
            files::sync_all(&file);
        },
    );
}

/// A new file that does not fit into its inline component causes as many requests as a file without
/// such a component.
#[test]
fn new_files_beyond_inline_bytes_send_the_documented_requests() {
    let counted = Counted::new();
    let at = counted.directory("files");
    counted.cluster.hand_down(&at, "inline/from=16KiB");
    stat(&at);
    let bytes = vec![7_u8; 32 << 10];
    counted.check(
        "create, write 32 KiB and close",
        "mount.get_attr mount.lookup metadata.lookup
         mount.create metadata.create mount.get_xattr mount.write storage.write_chunk
         mount.flush metadata.report_written mount.release",
        |number| files::write(name(&at, number), &bytes),
    );
    let new = |first: usize| -> Vec<_> {
        (0..CALLS).map(|number| files::create_new(name(&at, first + number))).collect()
    };
    let mut written = new(CALLS);
    counted.check(
        "first write of 32 KiB",
        "mount.get_xattr mount.write storage.write_chunk",
        |number| files::write_all_at(&written[number], &bytes, 0),
    );
    counted.check("close after it", "mount.flush metadata.report_written mount.release", |_| {
        drop(written.pop())
    });
    let synced = new(2 * CALLS);
    counted.check(
        "first write of 32 KiB and fsync",
        "mount.get_xattr mount.write storage.write_chunk
         mount.fsync storage.sync_chunk metadata.report_written",
        |number| {
            files::write_all_at(&synced[number], &bytes, 0);
            files::sync_all(&synced[number]);
        },
    );
}

#[test]
fn writes_and_syncs_send_the_documented_requests() {
    let counted = Counted::new();
    let at = counted.directory("files");
    let path = at.join("file");
    files::write(&path, vec![1; 4096 * CALLS]);
    let file = open(&path, OFlags::empty());
    files::sync_all(&file);
    let place = |number: usize| (number * 4096) as u64;
    counted.check(
        "overwrite and fsync",
        "mount.write storage.write_chunk mount.fsync storage.sync_chunk",
        |number| {
            files::write_all_at(&file, &[2; 4096], place(number));
            files::sync_all(&file);
        },
    );
    counted.check("fsync again", "mount.fsync", |_| files::sync_all(&file));
    counted.check(
        "append and fsync",
        "mount.write storage.write_chunk mount.fsync storage.sync_chunk metadata.report_written",
        |number| {
            files::write_all_at(&file, &[3; 4096], place(CALLS + number));
            files::sync_all(&file);
        },
    );
    drop(file);
    let file = open(&path, OFlags::SYNC);
    counted.check(
        "overwrite with O_SYNC",
        "mount.write storage.write_chunk mount.fsync",
        |number| files::write_all_at(&file, &[5; 4096], place(number)),
    );
    drop(file);
    counted.end();
}

/// The mount option `direct_io`. Without this option, the kernel returns the bytes of repeated
/// reads from its pages.
#[test]
fn direct_io_sends_each_read_and_write_to_storage() {
    for (options, expected) in [
        ("attribute_timeout=3600", ""),
        ("attribute_timeout=3600,direct_io", "mount.read storage.read_chunk"),
    ] {
        let counted = Counted::with(options);
        let path = counted.path("file");
        files::write(&path, vec![1; 4096 * CALLS]);
        // While this mount has a file open for writing, the kernel requests the attributes before
        // each read from its page cache. So the reads use a handle that cannot write.
        let file = files::open(&path);
        files::sync_all(&file);
        files::read_exact_at(&file, &mut [0; 4096], 0);
        counted.check("read the same page again", expected, |_| {
            files::read_exact_at(&file, &mut [0; 4096], 0);
        });
        let file = open(&path, OFlags::empty());
        counted.check("write one byte", "mount.write storage.write_chunk", |number| {
            files::write_all_at(&file, &[2], number as u64);
        });
    }
}

#[test]
fn sequential_io_sends_one_request_per_mib_to_each_target() {
    let counted = Counted::new();
    let at = counted.directory("files");
    // The first 4 MiB of the file are on one target. The following bytes are in chunks of 512 KiB
    // on both targets.
    let (mib, narrow) = (1 << 20, 4 << 20);
    let data = vec![6; mib];
    let file = files::create_new(at.join("narrow"));
    counted.check("write 1 MiB to one target", "mount.write storage.write_chunk", |number| {
        files::write_all_at(&file, &data, (number * mib % narrow) as u64);
    });
    let file = files::create_new(at.join("wide"));
    counted.check(
        "write 1 MiB to two targets",
        "mount.write storage.write_chunk storage.write_chunk",
        |number| files::write_all_at(&file, &data, (narrow + number * mib) as u64),
    );
}
