//! Tests the simulated disk of the power-loss tests. The disk must keep all flushed writes, and
//! must lose unflushed writes. A disk that keeps unflushed writes could not show a missing sync in
//! Skep.

use rustix::fs::OFlags;
use skep_testkit::power::{Disk, FileSystem};
use skep_testkit::{PATIENCE, Scratch, files, wait_for};
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const BYTES: u64 = 512 << 20;
/// Length of a write in bytes. The disk with XFS has sectors of this length. On the disk with ext4,
/// this length is eight sectors.
const SECTORS: usize = 4096;
static CONTENT: [u8; 300_000] = [7; 300_000];

fn on_each_file_system(check: impl Fn(&mut Disk)) {
    for file_system in FileSystem::ALL {
        let scratch = Scratch::new();
        let mut disk = Disk::with(&scratch, "disk", file_system, BYTES);
        check(&mut disk);
    }
}

/// Creates the file `name` with the contents [`CONTENT`], and syncs the file and its directory.
fn write_synced(disk: &Disk, name: &str) {
    let file = files::create(disk.path().join(name));
    files::write_all_at(&file, &CONTENT, 0);
    files::sync_all(&file);
    files::sync_all(&files::open(disk.path()));
}

fn is_whole(disk: &Disk, name: &str) -> bool {
    fs::read(disk.path().join(name)).is_ok_and(|found| found == CONTENT)
}

#[test]
fn power_loss_keeps_synced_files_and_loses_unsynced_files() {
    on_each_file_system(|disk| {
        for round in 0..6 {
            let [synced, unsynced] = ["synced", "unsynced"].map(|it| format!("{it}-{round}"));
            write_synced(disk, &synced);
            files::write(disk.path().join(&unsynced), CONTENT);
            disk.lose_power();
            files::write(disk.path().join("later"), CONTENT);
            files::syncfs(disk.path());
            disk.restore();
            assert!(is_whole(disk, &synced), "round {round}");
            // The kernel writes back an unsynced file only after some seconds, or when the disk is
            // unmounted.
            assert!(!is_whole(disk, &unsynced), "round {round}");
            assert!(!disk.path().join("later").exists(), "round {round}");
        }
    });
}

/// Writes `byte` over the first sectors of the file at `path`, and makes the kernel submit this
/// write to the disk.
fn submit(path: &Path, byte: u8) {
    let direct = OFlags::DIRECT.bits().try_into().expect("a flag");
    let file = files::open_with(fs::OpenOptions::new().write(true).custom_flags(direct), path);
    let buffer = vec![byte; 2 * SECTORS];
    let start = buffer.as_ptr().align_offset(SECTORS);
    files::write_all_at(&file, &buffer[start..start + SECTORS], 0);
}

/// The power loss drops, keeps or tears a write that the kernel has submitted and that no flush
/// followed. A copy of a loop device's backing file would always contain such a write.
#[test]
fn submitted_writes_without_a_flush_may_be_lost() {
    on_each_file_system(|disk| {
        let path = disk.path().join("file");
        write_synced(disk, "file");
        let mut numbers = 8..=255;
        let (mut dropped, mut kept) = (false, false);
        wait_for("power losses drop one write and keep another", PATIENCE, || {
            let number = numbers.next().expect("fewer power losses");
            submit(&path, number);
            disk.lose_power();
            disk.restore();
            let found = &files::read(&path)[..SECTORS];
            dropped |= !found.contains(&number);
            kept |= found.contains(&number);
            (dropped && kept).then_some(())
        });
    });
}

#[test]
fn disk_that_ignores_flushes_loses_synced_files() {
    on_each_file_system(|disk| {
        files::syncfs(disk.path());
        disk.ignore_flushes();
        for number in 0..4 {
            write_synced(disk, &number.to_string());
        }
        disk.lose_power();
        disk.restore();
        let whole = (0..4).filter(|number| is_whole(disk, &number.to_string())).count();
        assert!(whole < 4, "{whole} files");
    });
}

#[test]
fn slow_disk_delays_syncs_until_its_power_loss() {
    on_each_file_system(|disk| {
        let delay = Duration::from_millis(100);
        disk.slow_down(delay);
        let began = Instant::now();
        write_synced(disk, "file");
        // A sync writes at least the data, and then flushes the disk.
        assert!(began.elapsed() >= 2 * delay, "{:?}", began.elapsed());
        disk.lose_power();
        disk.restore();
        assert!(is_whole(disk, "file"));
    });
}

#[test]
fn stalled_disk_completes_no_sync() {
    on_each_file_system(|disk| {
        let path = disk.path().join("file");
        let is_synced = AtomicBool::new(false);
        std::thread::scope(|scope| {
            disk.stall();
            let writer = scope.spawn(|| {
                let file = files::create(&path);
                files::write_all_at(&file, &CONTENT, 0);
                file.sync_all().expect("the disk serves requests after the power loss");
                is_synced.store(true, Ordering::Relaxed);
            });
            let began = Instant::now();
            wait_for("300 ms have passed", PATIENCE, || {
                (began.elapsed() > Duration::from_millis(300)).then_some(())
            });
            assert!(!is_synced.load(Ordering::Relaxed));
            disk.lose_power();
            writer.join().expect("no panic");
        });
        disk.restore();
        assert!(!path.exists());
    });
}
