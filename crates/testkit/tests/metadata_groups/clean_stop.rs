//! Clean stops of members, as in an upgrade. When a backup member stops, it first removes itself
//! from the serving members of its group, and then its process ends. So the primary's timeout for
//! this member delays no operation. When a primary stops, it first makes the backup member the
//! primary. After that, it also removes itself from the serving members.

use crate::pair::{Pair, after};
use rustix::process::Signal;
use skep_testkit::{EndGuard, PATIENCE, files, wait_for};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Maximum time of one operation while a backup member stops. In most stops of a primary, the
/// slowest operation also ends within this time. Without the clean stop, operations wait for the
/// time of a lease, which is 2 s.
const LONGEST_OPERATION: Duration = Duration::from_secs(1);
/// Maximum time of one operation while a primary stops. Without the clean stop, the new primary
/// replies 2.5 s after the last request of the previous primary.
const LONGEST_AT_A_MOVE: Duration = Duration::from_millis(1_900);
/// Number of clean stops of a member under load.
const STOPS: usize = 3;
/// Maximum time in which all members stop if an administrator stops all members at the same time.
/// Each member waits less than a second for the other members.
const STOP_OF_ALL: Duration = Duration::from_secs(4);
/// Maximum time in which a primary stops while management does not reply. The primary waits 2 s for
/// a new primary. The primary's node waits 5 s until management confirms that the node leaves.
const STOP_WITHOUT_MANAGEMENT: Duration = Duration::from_secs(15);

/// The longest operation of a program, in microseconds, and the number of its rounds.
#[derive(Default)]
struct Operations {
    longest_us: AtomicU64,
    rounds: AtomicU64,
}

impl Operations {
    /// Measures the time of an operation.
    fn measure<T>(&self, operation: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let result = operation();
        let took = u64::try_from(began.elapsed().as_micros()).expect("a short time");
        self.longest_us.fetch_max(took, Ordering::SeqCst);
        result
    }

    /// Waits until the program has made progress. After that, returns the longest operation since
    /// the previous call of this function.
    fn take(&self) -> Duration {
        let before = self.rounds.load(Ordering::SeqCst);
        wait_for("the program goes on", PATIENCE, || {
            (self.rounds.load(Ordering::SeqCst) > before + 1).then_some(())
        });
        Duration::from_micros(self.longest_us.swap(0, Ordering::SeqCst))
    }
}

/// Creates, writes, syncs and removes a file. In every second round, the bytes of the file are on
/// storage, because the write is larger than the inline bytes.
fn write_and_sync(root: &Path, operations: &Operations) {
    let path = root.join("written");
    let mut file = operations.measure(|| std::fs::File::create_new(&path)).expect("a new file");
    let is_small = operations.rounds.load(Ordering::SeqCst).is_multiple_of(2);
    let bytes = vec![7; if is_small { 4096 } else { 20_000 }];
    operations.measure(|| file.write_all(&bytes)).expect("a write");
    operations.measure(|| file.sync_all()).expect("a sync");
    drop(file);
    operations.measure(|| std::fs::remove_file(&path)).expect("a removal");
    operations.rounds.fetch_add(1, Ordering::SeqCst);
}

/// Creates, writes, syncs and removes files until `end` is set.
fn write_until(end: &AtomicBool, root: &Path, operations: &Operations) {
    while !end.load(Ordering::SeqCst) {
        write_and_sync(root, operations);
    }
}

/// Starts a group with two members, and writes the file `before`. Returns the group, and the path
/// of the mount point.
fn pair_with_file() -> (Pair, PathBuf) {
    let pair = Pair::begin();
    let root = pair.mount_point();
    files::write(root.join("before"), "x");
    (pair, root)
}

/// Stops a member cleanly, and returns the time until its process has ended.
fn stop(pair: &mut Pair, name: &'static str) -> Duration {
    let began = Instant::now();
    pair.stop_service(name);
    began.elapsed()
}

/// Starts a member that has stopped, and waits until both members serve.
fn start_again(pair: &mut Pair, name: &'static str) {
    pair.start_service("metadata", name);
    pair.wait_for_serving(2);
}

/// Checks that each operation of a round ends within [`LONGEST_OPERATION`].
fn assert_no_operation_waits(root: &Path) {
    let operations = Operations::default();
    write_and_sync(root, &operations);
    let longest = Duration::from_micros(operations.longest_us.load(Ordering::SeqCst));
    assert!(longest < LONGEST_OPERATION, "{longest:?}");
}

#[test]
fn backup_member_that_stops_cleanly_delays_no_operation() {
    let mut pair = Pair::begin();
    let root = pair.mount_point();
    let (end, operations) = (AtomicBool::new(false), Operations::default());
    std::thread::scope(|scope| {
        let _end = EndGuard(&end);
        scope.spawn(|| write_until(&end, &root, &operations));
        let mut table = Vec::new();
        for _ in 0..STOPS {
            after(Duration::from_secs(1));
            let (primary, backup) = pair.roles();
            operations.take();
            let stopped = stop(&mut pair, backup);
            assert_eq!(pair.serving(), 1, "the backup member left the serving members in time");
            after(Duration::from_millis(500));
            let at_stop = operations.take();
            start_again(&mut pair, backup);
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

/// docs/semantics.md 4.1.
#[test]
fn primary_that_stops_cleanly_pauses_its_group_only_briefly() {
    let mut pair = Pair::begin();
    let root = pair.mount_point();
    let (end, operations) = (AtomicBool::new(false), Operations::default());
    let mut table = Vec::new();
    std::thread::scope(|scope| {
        let _end = EndGuard(&end);
        scope.spawn(|| write_until(&end, &root, &operations));
        for _ in 0..STOPS {
            after(Duration::from_secs(1));
            let (primary, backup) = pair.roles();
            operations.take();
            let stopped = stop(&mut pair, primary);
            assert_eq!(pair.roles().0, backup, "the backup has become the primary");
            assert_eq!(pair.serving(), 1, "the former primary left the serving members in time");
            after(Duration::from_millis(500));
            let at_stop = operations.take();
            start_again(&mut pair, primary);
            assert_eq!(pair.roles().0, backup, "a member that returns does not take over");
            table.push((at_stop, stopped, operations.take()));
        }
    });
    eprintln!("longest operation at the stop, time of the stop, at the return: {table:?}");
    table.sort();
    assert!(table[STOPS / 2].0 < LONGEST_OPERATION, "{table:?}");
    assert!(table.iter().all(|(at_stop, ..)| *at_stop < LONGEST_AT_A_MOVE), "{table:?}");
}

#[test]
fn primary_of_an_idle_group_moves_its_role_before_it_stops() {
    let (mut pair, root) = pair_with_file();
    after(Duration::from_secs(1));
    let (primary, backup) = pair.roles();
    pair.stop_service(primary);
    assert_eq!((pair.roles().0, pair.serving()), (backup, 1));
    assert_no_operation_waits(&root);
    assert_eq!(files::read_to_string(root.join("before")), "x");
    let log = files::read_to_string(pair.scratch.join(&format!("{primary}.log")));
    assert!(log.contains("becomes the primary of metadata group g"), "{log}");
    start_again(&mut pair, primary);
}

/// An administrator may move the primary and then stop its service immediately.
///
/// Command: skep group move.
#[test]
fn previous_primary_that_stops_after_a_move_releases_its_lease() {
    let (mut pair, root) = pair_with_file();
    after(Duration::from_secs(1));
    let primary = pair.roles().0;
    let backup = pair.move_primary();
    pair.stop_service(primary);
    assert_eq!((pair.roles().0, pair.serving()), (backup, 1));
    assert_no_operation_waits(&root);
    start_again(&mut pair, primary);
}

#[test]
fn members_that_stop_at_the_same_time_exit_within_4_s() {
    let (mut pair, root) = pair_with_file();
    let epoch = |pair: &Pair| pair.group()["epoch"].as_u64().expect("an epoch");
    for round in 0..STOPS {
        after(Duration::from_secs(1));
        let (before, (primary, backup)) = (epoch(&pair), pair.roles());
        // Alternate the order of the signals, because on real hosts either signal may arrive first.
        let names = if round % 2 == 0 { [primary, backup] } else { [backup, primary] };
        let began = Instant::now();
        pair.stop_services(&names);
        let took = began.elapsed();
        let changes = epoch(&pair) - before;
        eprintln!("all members have stopped after {took:?}, with {changes} changes of the group");
        assert!(took < STOP_OF_ALL, "{took:?}");
        // If one of the signals arrives late, the group changes its primary once, and the new
        // primary drops the other member.
        assert!(changes <= 2, "the group changes its primary at most once");
        for name in names {
            pair.start_service("metadata", name);
        }
        pair.wait_for_serving(2);
        assert_eq!(files::read_to_string(root.join("before")), "x");
    }
}

#[test]
fn primary_stops_in_time_although_management_is_suspended() {
    let (mut pair, root) = pair_with_file();
    let (primary, backup) = pair.roles();
    pair.signal("management", Signal::STOP);
    let took = stop(&mut pair, primary);
    pair.signal("management", Signal::CONT);
    assert!(took < STOP_WITHOUT_MANAGEMENT, "{took:?}");
    pair.wait_for_primary(backup);
    assert_eq!(files::read_to_string(root.join("before")), "x");
    start_again(&mut pair, primary);
}

#[test]
fn stopping_backup_member_leaves_its_group_before_it_exits() {
    let (mut pair, root) = pair_with_file();
    after(Duration::from_secs(1));
    let backup = pair.roles().1;
    pair.stop_service(backup);
    assert_eq!(pair.serving(), 1, "the backup member left the serving members in time");
    assert_no_operation_waits(&root);
    start_again(&mut pair, backup);
}

/// A clean stop of the backup member must not make its dead primary the only serving member.
#[test]
fn backup_member_stopped_after_its_primary_died_can_take_over() {
    let (mut pair, root) = pair_with_file();
    let (primary, backup) = pair.roles();
    pair.kill(primary);
    pair.stop_service(backup);
    assert_eq!((pair.serving(), pair.roles().0), (2, primary), "no member was dropped");
    pair.start_service("metadata", backup);
    pair.wait_for_primary(backup);
    assert_eq!(files::read_to_string(root.join("before")), "x");
    start_again(&mut pair, primary);
}
