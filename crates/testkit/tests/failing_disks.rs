//! The disk of one storage target fails. Each test simulates one kind of failure. A program that
//! uses this target gets the error, `skep health check` names the target, and the other targets
//! continue to serve. After the repair, the target has all synced bytes.

use skep_testkit::target_disk::{DiskKind, TargetDisk};
use skep_testkit::view::Typed;
use skep_testkit::{Cluster, PATIENCE, Random, Shape, Transport, files, wait_for};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;

/// The error number `EIO`.
const IO_ERROR: i32 = 5;
/// The error number `ENOSPC`.
const NO_SPACE: i32 = 28;
const BYTES: usize = 300_000;

/// A cluster whose first storage target is on a separate disk that can fail.
struct Scene {
    disk: TargetDisk,
    /// Id and directory of the target on this disk.
    failing: (u64, PathBuf),
    /// Id of a target on a disk that does not fail.
    other: u64,
    // The disk must be the last field, because dropping the cluster removes the mount point of the
    // disk.
    cluster: Cluster,
}

impl Scene {
    fn new(kind: DiskKind) -> Self {
        let cluster = Cluster::start(Shape { targets_per_service: 3, ..Shape::small() });
        let targets = cluster.skep_list(&["target", "list"]);
        let storage: Vec<_> = targets.iter().filter(|it| it["kind"] == "storage").collect();
        let failing = (storage[0]["id"].number(), PathBuf::from(storage[0]["path"].text()));
        let other = storage[1]["id"].number();
        cluster.stop();
        let disk = TargetDisk::under(&failing.1, kind);
        cluster.up().expect_success();
        let scene = Self { disk, failing, other, cluster };
        scene.wait_for_condition("Serving");
        scene
    }

    /// Creates a file on the target `target`, writes and syncs it, and returns the open file.
    fn file_on(&self, target: u64, name: &str) -> File {
        let path = self.cluster.path().join(name);
        let id = target.to_string();
        self.create(&path, &id);
        let file = files::open_with(OpenOptions::new().read(true).write(true), &path);
        files::write_all_at(&file, &bytes(name), 0);
        files::sync_all(&file);
        file
    }

    fn create(&self, path: &Path, targets: &str) {
        let path = path.to_str().expect("ASCII");
        let words = ["entry", "create", "--targets", targets, path];
        skep_testkit::cluster::skep(words).expect_success();
    }

    fn wait_for_condition(&self, condition: &str) {
        wait_for(condition, PATIENCE, || {
            let targets = self.cluster.skep_list(&["target", "list"]);
            let of_target = targets.into_iter().find(|it| it["id"].number() == self.failing.0)?;
            (of_target["condition"] == condition).then_some(())
        });
    }

    /// Waits until `skep health check` reports the target on the failed disk.
    fn wait_for_problem(&self) {
        let name = self.failing.1.display().to_string();
        wait_for("health names the target", PATIENCE, || {
            let health = self.cluster.try_skep(&["health", "check"]);
            (!health.status.success() && health.stdout.contains(&name)).then_some(())
        });
    }

    /// Checks that the test can write, sync and read a file on another target.
    fn assert_others_serve(&self, other: &File) {
        let more = bytes("more");
        files::write_all_at(other, &more, 0);
        files::sync_all(other);
        assert!(contents(other) == more);
        files::write_all_at(other, &bytes("other"), 0);
        let new = self.cluster.path().join("new");
        self.create(&new, &self.other.to_string());
        files::write(&new, &more);
        assert!(files::read(&new) == more);
        files::remove_file(&new);
    }

    /// Kills all processes of the cluster, remounts the disk as after a repair, and starts the
    /// cluster.
    fn repair(&self) {
        self.cluster.kill_processes();
        self.disk.mount_again();
        self.cluster.up().expect_success();
        self.wait_for_condition("Serving");
    }

    fn assert_contents(&self, name: &str) {
        assert!(files::read(self.cluster.path().join(name)) == bytes(name), "{name}");
    }

    fn end(self) {
        self.cluster.stop_checked(&[]);
    }
}

fn bytes(name: &str) -> Vec<u8> {
    Random::new(name.len() as u64).bytes(BYTES)
}

fn contents(file: &File) -> Vec<u8> {
    let mut read = vec![0; BYTES];
    files::read_exact_at(file, &mut read, 0);
    read
}

fn code<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

fn shut_down_disk_fails_its_files_only(kind: DiskKind) {
    let scene = Scene::new(kind);
    let failing = scene.file_on(scene.failing.0, "failing");
    let other = scene.file_on(scene.other, "other");
    scene.disk.shut_down();
    let written = failing.write_at(&bytes("lost"), 0).and_then(|_| failing.sync_all());
    assert_eq!(code(written), Some(IO_ERROR));
    scene.assert_others_serve(&other);
    scene.wait_for_condition("Read-Only");
    scene.wait_for_problem();
    assert_eq!(code(failing.write_at(b"again", 0)), Some(IO_ERROR));
    drop((failing, other));
    scene.repair();
    // The device contains no byte of the failed writes.
    scene.assert_contents("failing");
    scene.assert_contents("other");
    scene.end();
}

/// docs/semantics.md 4.8.
#[test]
fn shutdown_of_an_ext4_disk_fails_only_files_of_its_target() {
    shut_down_disk_fails_its_files_only(DiskKind::Ext4);
}

/// docs/semantics.md 4.8.
#[test]
fn shutdown_of_an_xfs_disk_fails_only_files_of_its_target() {
    shut_down_disk_fails_its_files_only(DiskKind::Xfs);
}

/// docs/semantics.md 3.5 and 4.8.
#[test]
fn full_thin_device_fails_each_fsync() {
    let mut scene = Scene::new(DiskKind::Thin { pool_mib: 200 });
    let kept = scene.file_on(scene.failing.0, "kept");
    let other = scene.file_on(scene.other, "other");
    let path = scene.cluster.path().join("too long");
    scene.create(&path, &scene.failing.0.to_string());
    let second = scene.cluster.mount(Transport::Device);
    let write = OpenOptions::new().write(true).clone();
    let ours = files::open_with(&write, &path);
    let theirs = files::open_with(&write, second.path().join("too long"));
    scene.disk.resize(40);
    let half = vec![7; 60 << 20];
    files::write_all_at(&ours, &half, 0);
    files::write_all_at(&theirs, &half, 60 << 20);
    for file in [&ours, &theirs] {
        assert_eq!(
            code(file.sync_all()),
            Some(NO_SPACE),
            "the first fsync on each mount reports the full disk"
        );
    }
    scene.assert_others_serve(&other);
    drop((ours, theirs, kept, other));
    second.unmount();
    scene.disk.resize(400);
    scene.repair();
    scene.assert_contents("kept");
    scene.assert_contents("other");
    files::write(scene.cluster.path().join("too long"), &half);
    assert!(files::read(scene.cluster.path().join("too long")) == half);
    scene.end();
}

/// docs/semantics.md 4.1 and 4.8.
///
/// Command: skep why.
#[test]
fn frozen_disk_blocks_only_its_files_until_the_thaw() {
    let scene = Scene::new(DiskKind::Ext4);
    let failing = scene.file_on(scene.failing.0, "failing");
    let other = scene.file_on(scene.other, "other");
    let frozen = scene.disk.freeze();
    let (file, new) = (failing.try_clone().expect("a copy"), bytes("frozen disk"));
    let writer = thread::spawn(move || {
        file.write_all_at(&new, 0)?;
        file.sync_all()
    });
    // `skep why` reports the waiting requests as a cause even before the target counts as hung.
    let object = format!("t{}", scene.failing.0);
    wait_for("`skep why` names the open requests", PATIENCE, || {
        let report = scene.cluster.skep_json(&["why", "--interval", "200ms"]);
        let findings = report["findings"].list();
        let is_it = |it: &serde_json::Value| {
            it["rule"] == "requests-open" && it["object"] == object.as_str()
        };
        findings.iter().any(is_it).then_some(())
    });
    scene.wait_for_condition("Hung");
    scene.wait_for_problem();
    assert!(!writer.is_finished(), "the write waits for the disk");
    scene.assert_others_serve(&other);
    drop(frozen);
    wait_for("the writer ends", PATIENCE, || writer.is_finished().then_some(()));
    writer.join().expect("no panic").expect("the write succeeds when the disk is back");
    scene.wait_for_condition("Serving");
    assert!(contents(&failing) == bytes("frozen disk"));
    drop((failing, other));
    scene.assert_contents("other");
    scene.end();
}
