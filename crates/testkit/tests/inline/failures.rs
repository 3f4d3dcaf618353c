//! Kills and power losses while programs change files with inline bytes.

use super::*;
use rustix::process::Signal;
use skep_testkit::Scratch;
use skep_testkit::power::Disk;
use std::os::unix::fs::FileExt;

const DISK_BYTES: u64 = 4 << 30;

/// docs/semantics.md 3.1. A program gets no error even for writes that it had not synced before the
/// kill.
#[test]
fn killed_metadata_service_loses_no_inline_bytes() {
    let (cluster, second) = mounts();
    for (round, mount) in [cluster.path(), second.path()].into_iter().enumerate() {
        let name = format!("file-{round}");
        let file = open(&mount.join(&name));
        files::write_all_at(&file, b"before", 0);
        cluster.processes("metadata").remove(0).kill();
        file.write_all_at(b"after", 10).expect("the write succeeds after the restart");
        file.sync_all().expect("no write was lost");
        let expected = b"before\0\0\0\0after";
        assert_eq!(files::read(cluster.path().join(&name)), expected);
        assert_eq!(files::read(second.path().join(&name)), expected);
    }
    end(cluster, second);
}

/// docs/semantics.md 3.1. The kill may come before, between or after the steps of the move of the
/// inline bytes.
#[test]
fn kill_during_a_move_to_storage_loses_no_inline_bytes() {
    let (cluster, second) = mounts();
    let mut moved = 0;
    for (round, role) in ["metadata", "storage"].into_iter().cycle().take(8).enumerate() {
        let name = format!("database-{round}");
        let paths = [cluster.path().join(&name), second.path().join(&name)];
        let mut it = Checked { paths, expected: Vec::new() };
        let file = open(&it.paths[0]);
        write_twice(&mut it, &file, &Random::new(round as u64).bytes(20_000));
        commit(&mut it, &file, 1);
        commit(&mut it, &file, 2);
        change_both(&mut it, &file, 3);
        let service =
            wait_for("a running service", PATIENCE, || cluster.processes(role).into_iter().next());
        std::thread::scope(|scope| {
            let sync = scope.spawn(|| file.sync_all());
            service.kill();
            sync.join().expect("no panic").expect("no write was lost");
        });
        it.check(&format!("round {round}, a kill of {role}"));
        commit(&mut it, &file, 4);
        drop(file);
        it.check(&format!("round {round}, a transaction after the kill"));
        moved += usize::from(!is_inline(&it.paths[0]));
    }
    assert!(moved > 0, "no file has moved its inline bytes");
    end(cluster, second);
}

/// docs/semantics.md 3.3: after a move of the inline bytes to storage, no byte of the file depends
/// on metadata.
#[test]
fn inline_bytes_moved_to_storage_survive_metadata_power_loss() {
    let scratch = Scratch::new();
    let mut disk = Disk::new(&scratch, DISK_BYTES);
    let cluster = with_metadata_on(disk.path());
    let path = cluster.path().join("database");
    let mut it = Checked { paths: [path.clone(), path.clone()], expected: Vec::new() };
    let file = open(&path);
    write_twice(&mut it, &file, &Random::new(9).bytes(20_000));
    for byte in 1..4 {
        commit(&mut it, &file, byte);
    }
    assert!(!is_inline(&path), "the third sync moves the inline bytes");
    disk.lose_power();
    it.write(&file, 24, &[4; 100]);
    lose_power(&cluster, &mut disk);
    files::sync_all(&file);
    it.check("a power loss of metadata");
    assert!(!is_inline(&path), "the move was durable");
    drop(file);
    cluster.stop();
}

/// Returns a cluster whose metadata service is on the separate disk at `disk`.
fn with_metadata_on(disk: &Path) -> Cluster {
    let shape = Shape { storage_services: 1, metadata_targets: 1, ..Shape::default() };
    let cluster = Cluster::start(shape);
    cluster.hand_down(cluster.path(), PATTERN);
    cluster.stop();
    let service = cluster.data().join("metadata-1");
    finish(Command::new("cp").arg("-a").arg(&service).arg(disk), PATIENCE).expect_success();
    files::remove_dir_all(&service);
    files::symlink(disk.join("metadata-1"), &service);
    files::syncfs(disk);
    cluster.up().expect_success();
    cluster
}

fn lose_power(cluster: &Cluster, disk: &mut Disk) {
    let supervisor = cluster.processes("up").remove(0);
    supervisor.signal(Signal::STOP);
    cluster.processes("metadata").remove(0).kill();
    disk.restore();
    supervisor.signal(Signal::CONT);
}

/// docs/semantics.md 3.2 and 3.5. Only a metadata host loses its power, while the mounts continue
/// to run. The mounts repeat the lost writes, so no program gets an error.
#[test]
fn mounts_repeat_inline_writes_that_a_power_loss_reverted() {
    let scratch = Scratch::new();
    let mut disk = Disk::new(&scratch, DISK_BYTES);
    let mut cluster = with_metadata_on(disk.path());
    let other = cluster.mount(Transport::Device);
    let expected = [vec![1; 500], vec![2; 2000], vec![1; 500]].concat();
    for (mount, names) in [(cluster.path(), ["a", "b"]), (other.path(), ["c", "d"])] {
        let [untouched, hit] = names.map(|name| open(&mount.join(name)));
        for file in [&untouched, &hit] {
            files::write_all_at(file, &[1; 3000], 0);
            files::sync_all(file);
        }
        let second = open(&mount.join(names[1]));
        disk.lose_power();
        files::write_all_at(&hit, &[2; 2000], 500);
        lose_power(&cluster, &mut disk);
        for file in [&hit, &second, &untouched] {
            file.sync_all().expect("the mount has repeated the lost write");
        }
        // The mount does not repeat writes that a sync has made durable, so the disk must have the
        // bytes.
        disk.lose_power();
        lose_power(&cluster, &mut disk);
        hit.sync_all().expect("the repeated write is durable");
        drop((untouched, hit, second));
        for mount in [cluster.path(), other.path()] {
            assert!(files::read(mount.join(names[0])) == [1; 3000]);
            assert!(files::read(mount.join(names[1])) == expected);
        }
    }
    other.unmount();
    cluster.stop();
}

/// docs/semantics.md 3.5. Another mount has created the empty file. The power loss reverts the
/// record that the bytes of the first write are on storage.
#[test]
fn unsynced_large_first_write_gets_one_error_after_a_power_loss() {
    let scratch = Scratch::new();
    let mut disk = Disk::new(&scratch, DISK_BYTES);
    let mut cluster = with_metadata_on(disk.path());
    let creator = cluster.mount(Transport::Device);
    files::write(creator.path().join("large"), b"");
    creator.unmount();
    let path = cluster.path().join("large");
    let mut it = Checked { paths: [path.clone(), path.clone()], expected: Vec::new() };
    let file = open(&path);
    files::sync_all(&file);
    let bytes = Random::new(13).bytes(20_000);
    disk.lose_power();
    it.write(&file, 0, &bytes);
    assert!(!is_inline(&path));
    lose_power(&cluster, &mut disk);
    let error = file.sync_all().expect_err("the unsynced bytes are lost");
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    file.sync_all().unwrap_or_else(|error| panic!("a second sync fails again: {error}"));
    it.write(&file, 0, &bytes);
    files::sync_all(&file);
    assert!(is_inline(&path), "the file has its inline component again");
    it.check("the repeated write");
    drop(file);
    it.check("a new open");
    cluster.stop();
}

/// docs/semantics.md 3.3 and 3.5. The power loss reverts the report of the first write to a new
/// file. The bytes are on storage, so the `fsync` need only repeat the report of these bytes to
/// metadata.
#[test]
fn large_first_write_to_a_new_file_survives_a_power_loss() {
    let scratch = Scratch::new();
    let mut disk = Disk::new(&scratch, DISK_BYTES);
    let cluster = with_metadata_on(disk.path());
    let path = cluster.path().join("large");
    let mut it = Checked { paths: [path.clone(), path.clone()], expected: Vec::new() };
    let file = open(&path);
    files::sync_all(&file);
    disk.lose_power();
    it.write(&file, 0, &Random::new(17).bytes(20_000));
    assert!(!is_inline(&path), "the mount reports the write before it returns the pattern");
    lose_power(&cluster, &mut disk);
    file.sync_all().expect("storage has all bytes");
    assert!(!is_inline(&path));
    it.check("the first write");
    drop(file);
    it.check("a new open");
    cluster.stop();
}

/// docs/semantics.md 3.7. The mount process dies before it has reported its write to a new file.
#[test]
fn large_first_write_of_a_killed_mount_is_not_lost() {
    let (cluster, second) = mounts();
    let bytes = Random::new(19).bytes(20_000);
    let file = open(&second.path().join("large"));
    files::write_all_at(&file, &bytes, 0);
    second.kill();
    let path = cluster.path().join("large");
    wait_for("the recovered size of the file", PATIENCE, || {
        (files::read(&path) == bytes).then_some(())
    });
    assert!(!is_inline(&path));
    drop(file);
    cluster.stop_except(&[]);
}
