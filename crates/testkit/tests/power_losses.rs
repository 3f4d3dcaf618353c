//! Power losses. The data directories are on a disk with a volatile write cache. A power loss
//! drops, keeps or tears each write in this cache. After a power loss, the restarted cluster must
//! have all data and operations that `metadata.sync` and `fsync` guarantee.
//!
//! Ten power losses interrupt a workload: five with `metadata.sync = interval` (10 ms), and five
//! with `always`. After each power loss, the workload continues on the restored disk. The test
//! prints its seed. If `SKEP_TEST_SEED` is set to this seed, a run has the same order of
//! operations, but not the same timing. Other tests sync files in each possible way before the
//! power loss, or let only one service lose its power while the mount continues to run.

use rustix::fs::{FallocateFlags, OFlags, copy_file_range};
use rustix::process::Signal;
use skep_testkit::files;
use skep_testkit::power::Disk;
use skep_testkit::program::finish;
use skep_testkit::workload::{Crash, Worker, verify};
use skep_testkit::{Cluster, PATIENCE, Random, Scratch, Shape, Transport, seen_within, wait_for};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Number of power losses with each value of `metadata.sync`.
const POWER_LOSSES: usize = 5;
const WORKERS: u64 = 4;
/// Maximum number of operations of the workload between two power losses.
const BETWEEN: usize = 1500;
const DISK_BYTES: u64 = 4 << 30;
/// Writes and syncs a small file until `stop` is set. Returns the start and the end of each sync.
fn syncs(directory: &Path, stop: &AtomicBool) -> Vec<(Instant, Instant)> {
    let file = files::create(directory.join("probe"));
    let mut done = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let begun = Instant::now();
        files::write_all_at(&file, b"probe", 0);
        files::sync_data(&file);
        done.push((begun, Instant::now()));
        std::thread::sleep(Duration::from_millis(5));
    }
    done
}

/// Lets the disk lose its power while the workload runs. After the power loss, kills all processes
/// of the cluster, and restores the disk.
fn lose_power_under_load(
    cluster: &Cluster,
    disk: &mut Disk,
    workers: &mut [Worker],
    operations: usize,
    late: Duration,
) -> Crash {
    let stop = AtomicBool::new(false);
    let done: Vec<_> = workers.iter().map(Worker::operations).collect();
    let place = disk.path().to_owned();
    let crash = std::thread::scope(|scope| {
        let running: Vec<_> = workers
            .iter_mut()
            .map(|worker| {
                let stop = &stop;
                scope.spawn(move || worker.run(stop))
            })
            .collect();
        let count = || done.iter().map(|it| it.load(Ordering::Relaxed)).sum::<u64>();
        let probe = scope.spawn(|| syncs(&place, &stop));
        let goal = count() + operations as u64;
        wait_for("progress of the workload", PATIENCE, || (count() >= goal).then_some(()));
        let begun = Instant::now();
        disk.lose_power();
        let ended = Instant::now();
        println!("    power loss after {} operations", count());
        stop.store(true, Ordering::Relaxed);
        for worker in running {
            worker.join().expect("no panic").expect("no operation fails before the power loss");
        }
        let before = probe.join().expect("no panic").into_iter().filter(|it| it.0 < begun);
        let slowest = before.map(|it| it.1.min(begun) - it.0).max().unwrap_or_default();
        // On a slow disk, metadata syncs later. So allow twice the duration of the slowest measured
        // sync in addition.
        let late = if late.is_zero() { late } else { late + 2 * slowest };
        println!("    the slowest sync took {slowest:?}");
        Crash::of_power(begun, ended, late)
    });
    workers.iter_mut().for_each(Worker::close);
    cluster.kill_all();
    disk.restore();
    crash
}

fn power_losses(sync: &str, late: Duration, transport: Transport) {
    let seed = Random::seed_of_run();
    println!("seed {seed} (SKEP_TEST_SEED={seed} repeats it), metadata.sync = {sync}");
    let mut random = Random::new(seed);
    let scratch = Scratch::new();
    let mut disk = Disk::new(&scratch, DISK_BYTES);
    let more = vec!["--set".into(), format!("metadata:metadata.sync={sync}")];
    let shape = Shape { transport, more, ..Shape::default() };
    let mut cluster = Cluster::start_in(disk.path(), shape.clone());
    let mut workers: Vec<_> =
        (0..WORKERS).map(|number| Worker::new(cluster.path(), number, seed)).collect();
    for number in 1..=POWER_LOSSES {
        let operations = 1 + random.below(BETWEEN);
        let crash = lose_power_under_load(&cluster, &mut disk, &mut workers, operations, late);
        cluster = Cluster::start_in(disk.path(), shape.clone());
        let problems: Vec<_> = workers
            .iter_mut()
            .flat_map(|worker| {
                worker.moved_to(cluster.path());
                worker.check(&crash)
            })
            .collect();
        assert!(problems.is_empty(), "after power loss {number}:\n{}", problems.join("\n"));
        println!("power loss {number}: nothing is lost");
    }
    workers.clear();
    cluster.stop_except(&["orphan"]);
}

/// Every acknowledged operation is on the disk 10 ms after its acknowledgement. The simulator
/// checks exactly this limit. A busy machine may wake the syncing thread late. So this test allows
/// 40 ms more, plus twice the duration of the slowest measured sync. docs/semantics.md 3.2 and 3.3.
#[test]
fn synced_data_survives_power_loss_with_periodic_metadata_sync() {
    power_losses("interval", Duration::from_millis(50), Transport::Uring);
}

/// Every acknowledged operation is on the disk immediately. docs/semantics.md 3.2 and 3.3.
#[test]
fn all_changes_survive_power_loss_with_always_synced_metadata() {
    power_losses("always", Duration::ZERO, Transport::Device);
}

/// A way in which a program can sync its writes.
#[derive(Debug, Clone, Copy)]
enum Way {
    Fsync,
    Fdatasync,
    /// The kernel syncs each write, because the file is open with `O_SYNC`.
    Sync,
    Dsync,
    Msync,
    /// A `fallocate` on a file that is open with this flag. The flag makes the effect durable
    /// before the call returns.
    Allocate(OFlags),
    /// A `copy_file_range` to a file that is open with this flag. The flag makes the bytes durable
    /// before the call returns.
    Copy(OFlags),
}

/// A program that copies a file into a mapping of another file, and then syncs the mapping.
const MAPS: &str = "
import mmap, os, sys
path, start, source = sys.argv[1], int(sys.argv[2]), sys.argv[3]
with open(source, 'rb') as file:
    content = file.read()
file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
if os.fstat(file).st_size < start + len(content):
    os.ftruncate(file, start + len(content))
mapped = mmap.mmap(file, 0)
mapped[start:start + len(content)] = content
mapped.flush()
os._exit(0)
";

impl Way {
    const ALL: [Self; 9] = [
        Self::Fsync,
        Self::Fdatasync,
        Self::Sync,
        Self::Dsync,
        Self::Msync,
        Self::Allocate(OFlags::SYNC),
        Self::Allocate(files::DSYNC),
        Self::Copy(OFlags::SYNC),
        Self::Copy(files::DSYNC),
    ];

    /// Whether [`Self::write`] writes the bytes. `fallocate` only extends the file.
    fn writes_bytes(self) -> bool {
        !matches!(self, Self::Allocate(_))
    }

    /// Returns the name of the way, for the name of a file.
    fn name(self) -> String {
        let flag = |flag: OFlags| if flag == OFlags::SYNC { "Sync" } else { "Dsync" };
        match self {
            Self::Allocate(it) => format!("Allocate{}", flag(it)),
            Self::Copy(it) => format!("Copy{}", flag(it)),
            other => format!("{other:?}"),
        }
    }

    /// Writes and syncs `bytes`, and creates the file if necessary. Returns the open file, because
    /// the sync alone must make the data durable, without a later `close`.
    fn write(self, path: &Path, start: usize, bytes: &[u8], scratch: &Scratch) -> Option<File> {
        let flags = match self {
            Self::Fsync | Self::Fdatasync => OFlags::empty(),
            Self::Sync => OFlags::SYNC,
            Self::Dsync => files::DSYNC,
            Self::Allocate(flag) | Self::Copy(flag) => flag,
            Self::Msync => {
                let (from, start) = (scratch.join("bytes"), start.to_string());
                files::write(&from, bytes);
                let mut command = Command::new("python3");
                command.args(["-c", MAPS]).arg(path).arg(start).arg(from);
                finish(&mut command, PATIENCE).expect_success();
                return None;
            }
        };
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        options.custom_flags(flags.bits().try_into().expect("a flag"));
        let file = files::open_with(&options, path);
        match self {
            Self::Allocate(_) => {
                files::fallocate(&file, FallocateFlags::empty(), start as u64, bytes.len() as u64);
            }
            Self::Copy(_) => copy_bytes(&file, path, start as u64, bytes),
            _ => files::write_all_at(&file, bytes, start as u64),
        }
        match self {
            Self::Fsync => files::sync_all(&file),
            Self::Fdatasync => files::sync_data(&file),
            _ => {}
        }
        Some(file)
    }
}

/// Writes `bytes` to another file beside `path`, and copies these bytes by `copy_file_range` to
/// `file`, from `start`.
fn copy_bytes(file: &File, path: &Path, start: u64, bytes: &[u8]) {
    let source = path.with_extension("source");
    files::write(&source, bytes);
    let source = files::open(&source);
    let (mut from, mut to) = (0, start);
    while from < bytes.len() as u64 {
        let rest = bytes.len() - usize::try_from(from).expect("not much");
        let copied = copy_file_range(&source, Some(&mut from), file, Some(&mut to), rest);
        assert!(copied.expect("copied") > 0, "copied only {from} bytes to {}", path.display());
    }
}

/// docs/semantics.md 3.3. Each way to sync makes data durable, both in new files and in files that
/// the writes extend.
#[test]
fn bytes_synced_by_each_sync_call_survive_a_power_loss() {
    // The bytes of a new file of the first length are in metadata.
    const LENGTHS: [usize; 4] = [10, 20_000, 300_000, 2_000_000];
    let (scratch, elsewhere) = (Scratch::new(), Scratch::new());
    let mut disk = Disk::new(&scratch, DISK_BYTES);
    let cluster = Cluster::start_in(disk.path(), Shape::default());
    let mut random = Random::new(3);
    let mut expected = Vec::new();
    for way in Way::ALL {
        for len in LENGTHS {
            let name = format!("old-{}-{len}", way.name());
            let old = random.bytes(500_000);
            let file = files::create(cluster.path().join(&name));
            files::write_all_at(&file, &old, 0);
            files::sync_all(&file);
            expected.push((way, 450_000, random.bytes(len), name, old));
        }
        for len in LENGTHS {
            let name = format!("new-{}-{len}", way.name());
            expected.push((way, 0, random.bytes(len), name, Vec::new()));
        }
    }
    let open: Vec<_> = expected
        .iter_mut()
        .map(|(way, start, new, name, content)| {
            let file = way.write(&cluster.path().join(name), *start, new, &elsewhere);
            content.resize(content.len().max(*start + new.len()), 0);
            if way.writes_bytes() {
                content[*start..*start + new.len()].copy_from_slice(new);
            }
            file
        })
        .collect();
    disk.lose_power();
    cluster.kill_all();
    drop(open);
    disk.restore();
    let cluster = Cluster::start_in(disk.path(), Shape::default());
    let differ: Vec<_> = expected
        .iter()
        .filter_map(|(.., name, content)| {
            let found = fs::read(cluster.path().join(name)).map_err(|error| error.to_string());
            let problem = match found {
                Ok(found) => verify::first_difference(content, &found)?,
                Err(error) => error,
            };
            Some(format!("{name}: {problem}"))
        })
        .collect();
    assert!(differ.is_empty(), "{}", differ.join("\n"));
    cluster.stop_except(&["orphan"]);
}

/// Starts a cluster with one service on a separate disk.
fn with_service_on(disk: &Path, name: &str) -> Cluster {
    let shape = Shape { storage_services: 1, metadata_targets: 1, ..Shape::default() };
    let cluster = Cluster::start(shape);
    cluster.stop_except(&["orphan"]);
    let service = cluster.data().join(name);
    finish(Command::new("cp").arg("-a").arg(&service).arg(disk), PATIENCE).expect_success();
    files::remove_dir_all(&service);
    files::symlink(disk.join(name), &service);
    // Sync the copied data. Without this sync, the disk could lose its power before the service has
    // synced the data.
    files::syncfs(disk);
    cluster.up().expect_success();
    cluster
}

/// Kills the service with the role `role`, whose disk has already lost its power. After the kill,
/// restores the disk, and lets the supervisor restart the service.
fn lose_power(cluster: &Cluster, role: &str, disk: &mut Disk) {
    let supervisor = cluster.processes("up").remove(0);
    supervisor.signal(Signal::STOP);
    cluster.processes(role).remove(0).kill();
    disk.restore();
    supervisor.signal(Signal::CONT);
}

/// docs/semantics.md 3.3 and 3.5. Only a metadata host loses its power, while the mount continues
/// to run. File sizes that the mount had reported and that metadata had not synced are lost.
#[test]
fn sync_reports_lost_sizes_again_after_metadata_power_loss() {
    let scratch = Scratch::new();
    let mut disk = Disk::new(&scratch, DISK_BYTES);
    let mut cluster = with_service_on(disk.path(), "metadata-1");
    let other = cluster.mount(Transport::Device);
    let mut random = Random::new(7);
    let (before, more) = (random.bytes(1 << 20), random.bytes(2 << 20));
    for (mount, names) in [(cluster.path(), ["a", "b"]), (other.path(), ["c", "d"])] {
        let open = |name: &str| {
            let path = mount.join(name);
            files::open_with(
                OpenOptions::new().read(true).write(true).create(true).truncate(false),
                path,
            )
        };
        let [longer, truncated] = names.map(open);
        for file in [&longer, &truncated] {
            files::write_all_at(file, &before, 0);
            files::sync_all(file);
        }
        disk.lose_power();
        files::write_all_at(&longer, &more, 1 << 20);
        // Each close reports the file's size to metadata.
        drop(open(names[0]));
        files::set_len(&truncated, 100);
        lose_power(&cluster, "metadata", &mut disk);

        longer.sync_all().expect("the mount reports the size again");
        let error = truncated.sync_all().expect_err("the truncation is lost");
        assert_eq!(error.raw_os_error(), Some(5), "{error}");
        files::sync_all(&truncated);
        let error = truncated.set_len(100).expect_err("the next change reports the loss too");
        assert_eq!(error.raw_os_error(), Some(5), "{error}");
        files::set_len(&truncated, 100);
        files::sync_all(&truncated);
        disk.lose_power();
        lose_power(&cluster, "metadata", &mut disk);
        drop((longer, truncated));
        for mount in [cluster.path(), other.path()] {
            let found = files::read(mount.join(names[0]));
            assert!(found == [&before[..], &more].concat(), "{} bytes", found.len());
            assert!(files::read(mount.join(names[1])) == before[..100]);
        }
    }
    other.unmount();
    cluster.stop_except(&["orphan"]);
}

/// docs/semantics.md 3.5. Only the storage host loses its power, while the mount continues to run.
#[test]
fn unsynced_write_gets_one_error_after_a_storage_power_loss() {
    let scratch = Scratch::new();
    let mut disk = Disk::new(&scratch, DISK_BYTES);
    let mut cluster = with_service_on(disk.path(), "storage-1");
    let other = cluster.mount(Transport::Device);
    let mut random = Random::new(6);
    let (before, lost) = (random.bytes(3 << 20), random.bytes(2 << 20));
    for (mount, names) in [(cluster.path(), ["a", "b"]), (other.path(), ["c", "d"])] {
        let open = |name: &str| {
            let path = mount.join(name);
            files::open_with(
                OpenOptions::new().read(true).write(true).create(true).truncate(false),
                path,
            )
        };
        let files = names.map(open);
        for file in &files {
            files::write_all_at(file, &before, 0);
            files::sync_all(file);
        }
        let [untouched, hit] = files;
        let second = open(names[1]);
        disk.lose_power();
        files::write_all_at(&hit, &lost, 1 << 20);

        lose_power(&cluster, "storage", &mut disk);
        for (which, file) in [&hit, &second].into_iter().enumerate() {
            let error = file.sync_all().expect_err("unsynced writes may be lost");
            assert_eq!(error.raw_os_error(), Some(5), "handle {which}: {error}");
            file.sync_all()
                .unwrap_or_else(|error| panic!("a second sync reports the error again: {error}"));
        }
        untouched.sync_all().expect("the data of this file was synced");
        // After the program has repeated and synced the lost write, the data is durable.
        files::write_all_at(&hit, &lost, 1 << 20);
        files::sync_all(&hit);
        drop((untouched, hit, second));
        let mut expected = before.clone();
        expected[1 << 20..3 << 20].copy_from_slice(&lost);
        for mount in [cluster.path(), other.path()] {
            assert!(files::read(mount.join(names[0])) == before);
            assert!(files::read(mount.join(names[1])) == expected);
        }
    }
    other.unmount();
    cluster.stop_except(&["orphan"]);
}

/// docs/semantics.md 2.7, 3.2. Only a metadata host loses its power, between the acknowledgement of
/// a truncation and the next sync of the log. After the power loss, the file has either its old
/// length and all its bytes, or its new length. Bytes that a program had synced must never be
/// zeros.
#[test]
fn power_loss_after_a_truncation_zeroes_no_synced_bytes() {
    let scratch = Scratch::new();
    let mut disk = Disk::new(&scratch, DISK_BYTES);
    let cluster = with_service_on(disk.path(), "metadata-1");
    let content = Random::new(11).bytes(3 << 20);
    for round in 0..8 {
        let path = cluster.path().join(format!("f{round}"));
        let file = files::create(&path);
        files::write_all_at(&file, &content, 0);
        files::sync_all(&file);
        // In odd rounds, `open` truncates the file, and the program then writes a few bytes.
        if round % 2 == 0 {
            files::set_len(&file, 100);
        } else {
            let again = files::create(&path);
            files::write_all_at(&again, &content[..100], 0);
        }
        disk.lose_power();
        lose_power(&cluster, "metadata", &mut disk);
        drop(file);
        let found = files::read(&path);
        let is_whole = found.len() == content.len() || found.len() == 100 || found.is_empty();
        assert!(is_whole, "round {round}: {} bytes", found.len());
        let differs = verify::first_difference(&content[..found.len()], &found);
        assert_eq!(differs, None, "round {round}");
    }
    cluster.stop_except(&["orphan"]);
}

/// docs/semantics.md 3.2, hole H20. Only a metadata host loses its power, and this power loss
/// reverts an acknowledged `link`. The mount repeats the `link` before it unlinks the other name.
/// Regression test: the `unlink` removed the last name of a synced file.
#[test]
fn unlink_after_a_lost_link_keeps_the_other_name_of_the_file() {
    let scratch = Scratch::new();
    let mut disk = Disk::new(&scratch, DISK_BYTES);
    let mut cluster = with_service_on(disk.path(), "metadata-1");
    let other = cluster.mount(Transport::Device);
    let content = Random::new(20).bytes(300_000);
    for (round, mount) in [cluster.path(), other.path()].into_iter().enumerate() {
        let [a, b] = ["a", "b"].map(|name| mount.join(format!("{name}{round}")));
        let file = files::create(&a);
        files::write_all_at(&file, &content, 0);
        files::sync_all(&file);
        disk.lose_power();
        fs::hard_link(&a, &b).expect("the link is acknowledged");
        lose_power(&cluster, "metadata", &mut disk);

        files::remove_file(&a);
        assert!(!a.exists(), "the unlink has taken effect");
        assert!(files::read(&b) == content, "the link has been made again");
        files::sync_all(&file);
        files::sync_all(&File::open(mount).expect("the root can be opened"));
    }
    other.unmount();
    cluster.stop_except(&["orphan"]);
}

/// docs/semantics.md 3.2. Only a metadata host loses its power. The lost changes of two mounts
/// depend on each other: one mount makes a directory, and the other mount makes and moves files in
/// this directory. The bytes of every second file are on storage, because the file's first write is
/// larger than the inline bytes.
#[test]
fn lost_changes_of_two_mounts_are_replayed_in_their_order() {
    let scratch = Scratch::new();
    let mut disk = Disk::new(&scratch, DISK_BYTES);
    let mut cluster = with_service_on(disk.path(), "metadata-1");
    let other = cluster.mount(Transport::Device);
    let (here, there) = (cluster.path().join("d"), other.path().join("d"));
    let content = |number: usize| format!("bytes {number}\n").repeat(1 + number % 2 * 3000);
    let before = files::create(cluster.path().join("before"));
    files::sync_all(&before);
    files::sync_all(&File::open(cluster.path()).expect("the root can be opened"));
    assert!(other.path().join("before").exists(), "both mounts have sessions");
    disk.lose_power();
    fs::create_dir(&here).expect("the directory is acknowledged");
    for number in 0..20 {
        let file = files::create(there.join(format!("f{number}")));
        files::write_all_at(&file, content(number).as_bytes(), 0);
        drop(file);
        let (from, to) = (here.join(format!("f{number}")), here.join(format!("g{number}")));
        fs::rename(from, to).expect("the rename is acknowledged");
    }
    lose_power(&cluster, "metadata", &mut disk);
    for number in 0..20 {
        for mount in [&here, &there] {
            let found = files::read(mount.join(format!("g{number}")));
            let differs = verify::first_difference(content(number).as_bytes(), &found);
            assert_eq!(differs, None, "file {number} on {}", mount.display());
            // The kernel may keep the old name for one second after a rename by another mount
            // (docs/semantics.md 1.2).
            seen_within("the old name is gone", Duration::from_secs(1), || {
                !mount.join(format!("f{number}")).exists()
            });
        }
    }
    drop(before);
    other.unmount();
    cluster.stop_except(&["orphan"]);
}

/// docs/semantics.md 2.6, 3.3 and 3.5. Only the storage host loses its power. A truncation that an
/// `fsync` followed is durable. If a truncation without an `fsync` is lost, the next `fsync` fails.
#[test]
fn fsync_makes_truncations_durable_at_storage() {
    let scratch = Scratch::new();
    let mut disk = Disk::new(&scratch, DISK_BYTES);
    let cluster = with_service_on(disk.path(), "storage-1");
    let content = Random::new(12).bytes(3 << 20);
    let [kept, lost] = ["kept", "lost"].map(|name| {
        let file = files::open_with(
            OpenOptions::new().read(true).write(true).create_new(true),
            cluster.path().join(name),
        );
        files::write_all_at(&file, &content, 0);
        files::sync_all(&file);
        files::set_len(&file, 0);
        file
    });
    files::sync_all(&kept);
    disk.lose_power();
    lose_power(&cluster, "storage", &mut disk);
    files::set_len(&kept, 1 << 20);
    let found = files::read(cluster.path().join("kept"));
    assert_eq!(verify::first_difference(&vec![0; 1 << 20], &found), None);
    let error = lost.sync_all().expect_err("the truncation may be lost");
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    files::sync_all(&kept);
    drop((kept, lost));
    cluster.stop_except(&["orphan"]);
}

/// docs/semantics.md 4.9. A metadata host loses its power, and this power loss reverts an
/// acknowledged open. The mount repeats the open before another mount unlinks the file.
#[test]
fn mount_restores_an_open_that_a_metadata_power_loss_lost() {
    let scratch = Scratch::new();
    let mut disk = Disk::new(&scratch, DISK_BYTES);
    let mut cluster = with_service_on(disk.path(), "metadata-1");
    let other = cluster.mount(Transport::Device);
    let content = Random::new(5).bytes(300_000);
    // Write on the other mount, so that the mount that reads has no cached page of the file.
    let there = other.path().join("a");
    let file = files::create(&there);
    files::write_all_at(&file, &content, 0);
    files::sync_all(&file);
    drop(file);
    let here = cluster.path().join("a");
    assert!(here.exists(), "the mount has a session before the power loss");
    disk.lose_power();
    let reader = files::open(&here);
    lose_power(&cluster, "metadata", &mut disk);
    let log = cluster.data().join("logs").join("mount.log");
    wait_for("the mount opens the file again", PATIENCE, || {
        files::read_to_string(&log).contains("the mount has repeated them").then_some(())
    });
    files::remove_file(&there);
    let mut found = vec![0; content.len()];
    files::read_exact_at(&reader, &mut found, 0);
    assert!(found == content, "the bytes of the file");
    drop(reader);
    other.unmount();
    cluster.stop_except(&["orphan"]);
}
