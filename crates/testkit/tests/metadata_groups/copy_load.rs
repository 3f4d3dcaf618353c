//! A member gets a copy of the store on its new disk, while programs create files at a steady rate.
//! `cargo xtask external --only copy-load` copies a large store, and compares the rates of creates
//! before and during the copy.

use crate::copies::{check_files, make_files};
use crate::pair::{MOUNTS, Pair, after};
use skep_testkit::{EndGuard, PATIENCE, files, wait_for};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Number of files in the store, unless `SKEP_COPIED_FILES` sets it.
const FILES: usize = 2_000;
/// Number of programs that create files.
const CREATORS: usize = 4;
/// Number of files that each program creates in each interval. All programs together create 2,000
/// files per second, if the cluster is fast enough.
const BATCH: u64 = 50;
const INTERVAL: Duration = Duration::from_millis(100);
/// Length of the measurement before the copy.
const BEFORE: Duration = Duration::from_secs(5);
/// Minimum rate of creates during the copy, as a part of the rate before the copy.
const SLOWEST: f64 = 0.7;

/// Returns the number of files in the store, and whether the test compares rates. In CI, the test
/// does not compare rates, because other tests use the same processors.
fn shape() -> (usize, bool) {
    match std::env::var("SKEP_COPIED_FILES") {
        Ok(files) => (files.parse().expect("a number"), true),
        Err(_) => (FILES, false),
    }
}

fn path_of(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("c{number}"))
}

/// Creates files at a steady rate until `stop` is set. Returns the number of created files.
fn create(directory: &Path, stop: &AtomicBool, created: &AtomicU64) -> u64 {
    let mut number = 0;
    loop {
        let began = Instant::now();
        for _ in 0..BATCH {
            File::create_new(path_of(directory, number)).expect("a new file");
            created.fetch_add(1, Ordering::Relaxed);
            number += 1;
        }
        if stop.load(Ordering::Relaxed) {
            return number;
        }
        wait_for("the next interval", PATIENCE, || (began.elapsed() >= INTERVAL).then_some(()));
    }
}

/// Returns the number of creates per second while `work` runs.
fn rate_during(created: &AtomicU64, work: impl FnOnce()) -> f64 {
    let (began, before) = (Instant::now(), created.load(Ordering::Relaxed));
    work();
    let count = created.load(Ordering::Relaxed) - before;
    count as f64 / began.elapsed().as_secs_f64()
}

#[test]
fn creates_continue_while_a_member_receives_a_store_copy() {
    let (count, is_timed) = shape();
    let mut pair = Pair::begin();
    make_files(&pair, count);
    let (primary, backup) = pair.roles();
    pair.lose_data(backup);
    let directories: Vec<_> = (0..CREATORS)
        .map(|it| pair.scratch.join(MOUNTS[it % MOUNTS.len()]).join(format!("created-{it}")))
        .collect();
    for directory in &directories {
        files::create_dir(directory);
    }
    let (stop, created) = (AtomicBool::new(false), AtomicU64::new(0));
    let (stop, created) = (&stop, &created);
    let (before, during, numbers) = std::thread::scope(|scope| {
        let creators = directories.iter();
        let creators: Vec<_> = creators
            .map(|directory| scope.spawn(move || create(directory, stop, created)))
            .collect();
        // The programs must end even if an assertion fails.
        let guard = EndGuard(stop);
        let before = rate_during(created, || after(if is_timed { BEFORE } else { INTERVAL }));
        let began = Instant::now();
        let during = rate_during(created, || {
            pair.start_service("metadata", backup);
            pair.wait_for_serving(2);
        });
        eprintln!("{count} files copied in {:?}", began.elapsed());
        drop(guard);
        let ended = creators.into_iter().map(|it| it.join().expect("no program sees an error"));
        (before, during, ended.collect::<Vec<_>>())
    });
    eprintln!("{before:.0} creates/s before the copy, {during:.0} creates/s during the copy");
    if is_timed {
        assert!(
            during >= SLOWEST * before,
            "{during:.0} creates/s during the copy, {before:.0} before it"
        );
    }

    // The member has the copy, and all files that programs created during the copy.
    pair.kill(primary);
    pair.wait_for_primary(backup);
    check_files(&pair, count);
    for (directory, number) in directories.iter().zip(numbers) {
        assert_eq!(files::read_dir(directory).count() as u64, number, "{}", directory.display());
        assert!(path_of(directory, number - 1).exists());
    }
    pair.start_service("metadata", primary);
    pair.wait_for_serving(2);
}
