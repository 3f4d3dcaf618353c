//! Truncations that are interrupted by a failure, or by appends of another mount.

use rustix::process::Signal;
use skep_testkit::process::Process;
use skep_testkit::program::finish;
use skep_testkit::workload::verify;
use skep_testkit::{Cluster, PATIENCE, Random, Scratch, Shape, files, wait_for};
use std::fs;
use std::path::Path;
use std::process::Command;

const LONG: usize = 8 << 20;

fn chunk_bytes(cluster: &Cluster, service: &str) -> u64 {
    let all = cluster.chunk_files();
    let of_service =
        all.iter().filter(|path| path.components().any(|it| it.as_os_str() == service));
    of_service.filter_map(|path| fs::metadata(path).ok()).map(|it| it.len()).sum()
}

/// docs/semantics.md 3.1. The test kills all processes when only one of two storage services has
/// truncated its chunk files. Regression test: the file got its old length back, and bytes that a
/// program had synced were zeros.
#[test]
fn kill_of_all_processes_in_a_truncation_zeroes_no_synced_bytes() {
    let scratch = Scratch::new();
    // Each file is striped over both targets.
    let shape = Shape { metadata_targets: 1, targets_per_service: 1, ..Shape::default() };
    let mut cluster = Cluster::start_in(scratch.path(), shape.clone());
    let content = Random::new(21).bytes(LONG);
    let path = cluster.path().join("file");
    let file = files::create(&path);
    files::write_all_at(&file, &content, 0);
    files::sync_all(&file);
    assert!(["storage-1", "storage-2"].iter().all(|it| chunk_bytes(&cluster, it) > 1 << 20));
    let services = cluster.processes("storage");
    let is_second = |it: &&Process| it.arguments.iter().any(|it| it.contains("storage-2"));
    services.iter().find(is_second).expect("the second service runs").signal(Signal::STOP);
    let truncating = std::thread::spawn(move || file.set_len(100));
    wait_for("the truncation of one service", PATIENCE, || {
        (chunk_bytes(&cluster, "storage-1") < 1 << 20).then_some(())
    });
    cluster.kill_all();
    // The call must fail, because its mount was killed.
    let _ = truncating.join().expect("no panic");
    cluster = Cluster::start_in(scratch.path(), shape);
    let found = files::read(cluster.path().join("file"));
    assert_eq!(found.len(), 100);
    assert_eq!(verify::first_difference(&content[..100], &found), None);
    // The truncated bytes do not reappear when a program extends the file.
    let file = files::open_with(fs::OpenOptions::new().write(true), cluster.path().join("file"));
    files::set_len(&file, LONG as u64);
    let found = files::read(cluster.path().join("file"));
    assert_eq!(verify::first_difference(&vec![0; LONG - 100], &found[100..]), None);
    drop(file);
    cluster.stop_except(&[]);
}

/// Truncates a file to zero by `truncate(2)`, without opening the file.
fn truncate_by_path(path: &Path) {
    let mut command = Command::new("python3");
    command.args(["-c", "import os, sys; os.truncate(sys.argv[1], 0)"]).arg(path);
    finish(&mut command, PATIENCE).expect_success();
}

/// docs/semantics.md 1.2, 2.9. One mount has the file open and appends to this file, while another
/// mount truncates the file by path. The bytes of one file are in metadata, and the bytes of the
/// other file are on storage. Regression test: the appends continued at the old end of the file,
/// behind a hole.
#[test]
fn append_starts_at_the_end_after_a_truncation_by_another_mount() {
    let mut cluster = Cluster::start(Shape::small());
    let other = cluster.mount(skep_testkit::Transport::Device);
    for (name, repetitions) in [("small", 1), ("large", 2000)] {
        let log = files::open_with(
            fs::OpenOptions::new().append(true).create(true),
            cluster.path().join(name),
        );
        let before = "a line before\n".repeat(repetitions);
        for round in 0..10 {
            files::write_all(&log, before.as_bytes());
            truncate_by_path(&other.path().join(name));
            files::write_all(&log, b"after\n");
            let found = files::read(other.path().join(name));
            assert_eq!(found, b"after\n", "{name}, round {round}");
            truncate_by_path(&other.path().join(name));
        }
    }
    other.unmount();
    cluster.stop_except(&[]);
}
