//! `kill -9` of processes at random moments under a mixed workload. No acknowledged operation may
//! be lost, and every byte must be correct. `skep entry info` must work on all files. No chunk file
//! may remain after the removal of its file.
//!
//! The tests in this file kill single processes. Half of the kills are with FUSE over io_uring, and
//! half with /dev/fuse. In CI, a run has 30 kills. A run of `cargo xtask external --only kills` has
//! 200 kills. [`together`] kills several processes at the same moment, and suspends services for a
//! long time. The tests check the transport, and print the seed. If `SKEP_TEST_SEED` is set to this
//! seed, a run has the same order of kills and operations, but not the same timing.

mod pages;
mod together;

use pages::SharedPages;
use skep_testkit::files;
use skep_testkit::process::Process;
use skep_testkit::workload::{Crash, Worker};
use skep_testkit::{Cluster, EndGuard, PATIENCE, Random, Shape, Transport, eventually, wait_for};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// Number of kills with each transport. `SKEP_KILLS` overrides this number.
const KILLS: usize = 15;
/// If the number of a kill is a multiple of this constant, the test kills the mount process. Such a
/// kill ends a round of the workload, because the running operations fail.
const CLIENT_KILL_EVERY: usize = 5;
const WORKERS: u64 = 4;
/// Maximum number of operations of the workload between two kills.
const BETWEEN: usize = 900;
/// Longest time without a finished operation after a kill of one service. The supervisor restarts
/// the service within a second. The rest of the limit is for the recovery of the service on a busy
/// machine.
const LONGEST_PAUSE: Duration = Duration::from_secs(20);
/// Time limit for the cluster to remove the chunk files of removed files.
const CLEAN_UP: Duration = Duration::from_secs(90);

type Running<'scope> = ScopedJoinHandle<'scope, Result<(), String>>;

/// A writer of shared pages: the pages, the mount, and the source of its random numbers.
type PageWriter<'a> = (&'a SharedPages, &'a Path, Random);

/// Runs the workload while `violence` kills processes, and returns the failures of the workers and
/// of the writers of shared pages.
fn under_load(
    workers: &mut [Worker],
    writers: Vec<PageWriter<'_>>,
    violence: impl FnOnce(&mut dyn FnMut(usize)),
) -> Vec<String> {
    let stop = AtomicBool::new(false);
    let done: Vec<_> = workers.iter().map(Worker::operations).collect();
    std::thread::scope(|scope| {
        let stop = &stop;
        // The threads must end even if an assertion of `violence` fails.
        let stops = EndGuard(stop);
        let mut running: Vec<Running<'_>> =
            workers.iter_mut().map(|worker| scope.spawn(move || worker.run(stop))).collect();
        running.extend(writers.into_iter().map(|(pages, mount, random)| {
            scope.spawn(move || pages.write_until(stop, mount, random))
        }));
        // Waits until all workers together have completed `operations` further operations.
        let mut go_on = |operations: usize| {
            let count = || done.iter().map(|it| it.load(Ordering::Relaxed)).sum::<u64>();
            let goal = count() + operations as u64;
            wait_for("progress of the workload", PATIENCE, || {
                let has_failed = running.iter().any(ScopedJoinHandle::is_finished);
                (has_failed || count() >= goal).then_some(())
            });
        };
        violence(&mut go_on);
        drop(stops);
        let ends = running.into_iter().map(|it| it.join().expect("workers return their failures"));
        ends.filter_map(Result::err).collect()
    })
}

fn verify(workers: &mut [Worker], crash: &Crash, round: &str) {
    let problems: Vec<_> = workers.iter_mut().flat_map(|worker| worker.check(crash)).collect();
    assert!(problems.is_empty(), "{round}:\n{}", problems.join("\n"));
}

/// Selects a random service to kill. Selects metadata and storage more often than management.
fn victim(cluster: &Cluster, random: &mut Random) -> Process {
    let role = random.one_of(&["management", "metadata", "metadata", "storage", "storage"]);
    victim_of(cluster, role, random)
}

/// Selects a random service with the role `role`.
fn victim_of(cluster: &Cluster, role: &str, random: &mut Random) -> Process {
    wait_for("a service to kill", PATIENCE, || {
        let found = cluster.processes(role);
        (!found.is_empty()).then(|| random.one_of(&found))
    })
}

/// Checks that the kill of a mount explains each failure.
fn only_dead_mounts(failures: Vec<String>) {
    let fits =
        ["os error 103", "os error 107", "os error 125", "os error 5)", "os error 2)", "close "];
    for failure in failures {
        assert!(fits.iter().any(|fit| failure.contains(fit)), "the mount was killed: {failure}");
    }
}

/// Ends a round by killing the mount. Only this kill may cause errors for a worker.
fn kill_client(cluster: &Cluster, workers: &mut [Worker], random: &mut Random) {
    let failures = under_load(workers, Vec::new(), |go_on| {
        go_on(1 + random.below(BETWEEN));
        for mount in cluster.processes("mount") {
            mount.kill();
        }
    });
    only_dead_mounts(failures);
    workers.iter_mut().for_each(Worker::close);
    cluster.wait_for_mount();
}

fn round(cluster: &Cluster, workers: &mut [Worker], random: &mut Random, kills: usize) {
    let failures = under_load(workers, Vec::new(), |go_on| {
        for _ in 0..kills {
            go_on(1 + random.below(BETWEEN));
            let victim = victim(cluster, random);
            let start = Instant::now();
            victim.kill();
            println!("    {} {} killed", victim.role(), victim.pid);
            go_on(1);
            let pause = start.elapsed();
            let role = victim.role();
            assert!(pause <= LONGEST_PAUSE, "no progress for {pause:?} after a kill of {role}");
        }
        go_on(50);
    });
    assert!(failures.is_empty(), "operations wait for a killed service:\n{}", failures.join("\n"));
}

fn all_files(directory: &Path, files: &mut Vec<std::path::PathBuf>) {
    for entry in files::read_dir(directory) {
        let entry = entry.expect("an entry");
        if entry.file_type().expect("a type").is_dir() {
            all_files(&entry.path(), files);
        }
        files.push(entry.path());
    }
}

/// Runs `skep entry info` on every entry.
fn entry_info_on_all(cluster: &Cluster) {
    let mut files = Vec::new();
    all_files(cluster.path(), &mut files);
    assert!(files.len() > 10, "the workload left {} entries", files.len());
    for path in &files {
        let path = path.to_str().expect("ASCII");
        // Wait, because metadata may still determine the size of a file that the killed mount had
        // open.
        wait_for(&format!("stat and `skep entry info` agree on {path}"), PATIENCE, || {
            let found = files::symlink_metadata(path);
            let info = cluster.skep_json(&["entry", "info", path]);
            let kind = match found.file_type() {
                it if it.is_dir() => "directory",
                it if it.is_symlink() => "symbolic link",
                _ => "file",
            };
            assert_eq!(info["kind"], kind, "{path}: {info}");
            let is_same = info["size_bytes"] == found.len() && info["links"] == found.nlink();
            (kind != "file" || is_same).then_some(())
        });
    }
}

/// Removes all files, and checks that the targets remove all chunk files. docs/semantics.md 4.5.
fn nothing_is_orphaned(cluster: &Cluster, workers: &mut Vec<Worker>) {
    workers.iter_mut().for_each(Worker::close);
    for worker in workers.drain(..) {
        files::remove_dir_all(worker.root());
    }
    let is_clean = eventually(CLEAN_UP, || cluster.chunk_files().is_empty().then_some(()));
    assert!(is_clean.is_some(), "chunk files of removed files: {:?}", cluster.chunk_files());
}

/// Returns the value of an environment variable. `None` if the variable is not set.
fn number(variable: &str) -> Option<usize> {
    std::env::var(variable).ok().map(|it| it.parse().expect("a number"))
}

fn kills_on(transport: Transport) {
    let seed = Random::seed_of_run();
    println!("seed {seed} (SKEP_TEST_SEED={seed} repeats it)");
    let mut random = Random::new(seed);
    let cluster = Cluster::start(Shape { transport, ..Shape::default() });
    let mut workers: Vec<_> =
        (0..WORKERS).map(|number| Worker::new(cluster.path(), number, seed)).collect();
    assert!(cluster.chunk_files().len() > 1, "the test finds the chunk files");
    let (wanted, mut kills) = (number("SKEP_KILLS").unwrap_or(KILLS), 0);
    while kills < wanted {
        let count = CLIENT_KILL_EVERY - 1;
        round(&cluster, &mut workers, &mut random, count);
        verify(&mut workers, &Crash::of_services(), &format!("after {count} kills of services"));
        kill_client(&cluster, &mut workers, &mut random);
        cluster.assert_transport(cluster.path(), transport);
        for worker in &mut workers {
            worker.moved_to(cluster.path());
        }
        verify(&mut workers, &Crash::of_client(), "after a kill of the mount");
        kills += count + 1;
        println!("{kills} kills");
    }
    entry_info_on_all(&cluster);
    nothing_is_orphaned(&cluster, &mut workers);
    cluster.stop_except(&[]);
}

/// docs/semantics.md 3.1 and 4.1.
#[test]
fn kills_lose_no_acknowledged_operation_with_io_uring() {
    kills_on(Transport::Uring);
}

#[test]
fn kills_lose_no_acknowledged_operation_with_dev_fuse() {
    kills_on(Transport::Device);
}
