//! Clean stops of backups, as in an upgrade. A backup that stops leaves the serving members of its
//! group before its process ends, so no operation waits until the primary counts it as silent.

use crate::pair::{Pair, after};
use skep_testkit::{PATIENCE, files, wait_for};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Maximum time of one operation while a backup stops. Without the clean stop, operations wait for
/// the time of a lease, which is 2 s.
const LONGEST_OPERATION: Duration = Duration::from_secs(1);
/// Number of clean stops of the backup under load.
const STOPS: usize = 3;

/// The longest operation of a program, in microseconds, and the number of its rounds.
#[derive(Default)]
struct Operations {
    longest_us: AtomicU64,
    rounds: AtomicU64,
}

impl Operations {
    /// Measures one operation.
    fn measure<T>(&self, operation: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let result = operation();
        let took = u64::try_from(began.elapsed().as_micros()).expect("a short time");
        self.longest_us.fetch_max(took, Ordering::SeqCst);
        result
    }

    /// Waits until the program has made progress. Then returns the longest operation since the last
    /// call.
    fn take(&self) -> Duration {
        let before = self.rounds.load(Ordering::SeqCst);
        wait_for("the program goes on", PATIENCE, || {
            (self.rounds.load(Ordering::SeqCst) > before + 1).then_some(())
        });
        Duration::from_micros(self.longest_us.swap(0, Ordering::SeqCst))
    }
}

/// Creates a file, writes it, syncs it and removes it.
fn write_and_sync(root: &Path, operations: &Operations) {
    let path = root.join("written");
    let mut file = operations.measure(|| std::fs::File::create_new(&path)).expect("a new file");
    operations.measure(|| file.write_all(&[7; 4096])).expect("a write");
    operations.measure(|| file.sync_all()).expect("a sync");
    drop(file);
    operations.measure(|| std::fs::remove_file(&path)).expect("a removal");
    operations.rounds.fetch_add(1, Ordering::SeqCst);
}

/// Ends the program also if an assertion of the test fails.
struct EndGuard<'a>(&'a AtomicBool);

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn backup_that_stops_cleanly_delays_no_operation() {
    let mut pair = Pair::begin();
    let root = pair.mount_point();
    let (end, operations) = (AtomicBool::new(false), Operations::default());
    std::thread::scope(|scope| {
        let _end = EndGuard(&end);
        scope.spawn(|| {
            while !end.load(Ordering::SeqCst) {
                write_and_sync(&root, &operations);
            }
        });
        let mut table = Vec::new();
        for _ in 0..STOPS {
            after(Duration::from_secs(1));
            let (primary, backup) = pair.roles();
            operations.take();
            let began = Instant::now();
            pair.stop_service(backup);
            let stopped = began.elapsed();
            assert_eq!(pair.serving(), 1, "the backup has left before its process ended");
            after(Duration::from_millis(500));
            let at_stop = operations.take();
            pair.start_service("metadata", backup);
            pair.wait_for_serving(2);
            assert_eq!(pair.roles().0, primary);
            table.push((at_stop, stopped, operations.take()));
        }
        eprintln!("longest operation at the stop, time of the stop, at the return: {table:?}");
        assert!(table.iter().all(|(at_stop, ..)| *at_stop < LONGEST_OPERATION), "{table:?}");
    });
    let log = files::read_to_string(pair.scratch.join(&format!("{}.log", pair.roles().0)));
    assert!(log.contains(" stops: metadata group g"), "the primary logs the stop: {log}");
    assert!(!log.contains("does not answer its primary"), "{log}");
}

#[test]
fn backup_leaves_an_idle_group_before_its_process_ends() {
    let mut pair = Pair::begin();
    let root = pair.mount_point();
    files::write(root.join("before"), "x");
    after(Duration::from_secs(1));
    let backup = pair.roles().1;
    pair.stop_service(backup);
    assert_eq!(pair.serving(), 1, "the backup has left before its process ended");
    let operations = Operations::default();
    write_and_sync(&root, &operations);
    let longest = Duration::from_micros(operations.longest_us.load(Ordering::SeqCst));
    assert!(longest < LONGEST_OPERATION, "{longest:?}");
    pair.start_service("metadata", backup);
    pair.wait_for_serving(2);
}

/// A primary that has died must not become the only serving member by a clean stop of its backup.
#[test]
fn backup_stopped_after_a_dead_primary_can_take_over() {
    let mut pair = Pair::begin();
    let root = pair.mount_point();
    files::write(root.join("before"), "x");
    let (primary, backup) = pair.roles();
    pair.kill(primary);
    pair.stop_service(backup);
    assert_eq!((pair.serving(), pair.roles().0), (2, primary), "no member was dropped");
    pair.start_service("metadata", backup);
    pair.wait_for_primary(backup);
    assert_eq!(files::read_to_string(root.join("before")), "x");
    pair.start_service("metadata", primary);
    pair.wait_for_serving(2);
}
