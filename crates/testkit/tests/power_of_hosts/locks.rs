//! Locks that a metadata host acknowledges in the last moments before its power loss.

use super::hosts::Hosts;
use super::{seeds, small};
use rustix::fs::{FlockOperation, flock};
use skep_testkit::view::Typed;
use skep_testkit::{PATIENCE, files, wait_for};
use std::fs::{File, OpenOptions};
use std::path::Path;

fn open(mount: &Path, name: &str) -> File {
    let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).clone();
    files::open_with(&options, mount.join(name))
}

fn lock(file: &File) {
    flock(file, FlockOperation::LockExclusive).expect("the lock is free");
}

fn unlock(file: &File) {
    flock(file, FlockOperation::Unlock).expect("an unlock");
}

fn is_granted(file: &File) -> bool {
    flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

fn wait_for_grant(file: &File) {
    wait_for("the lock is free", PATIENCE, || is_granted(file).then_some(()));
}

/// Waits until metadata lists `count` locked ranges. This function itself requests no lock, so the
/// query does not change the locks.
fn wait_for_locks(hosts: &Hosts, count: usize) {
    wait_for("the mount restores its locks", PATIENCE, || {
        let listed = hosts.cluster.try_skep(&["lock", "list", "--output", "json"]);
        let locks: serde_json::Value = serde_json::from_str(&listed.stdout).ok()?;
        let held = locks.list().iter().filter(|it| it["is_waiting"] == false);
        (held.count() == count).then_some(())
    });
}

/// docs/semantics.md 6.8. If a power loss reverts a lock, the mount repeats the lock. If a power
/// loss reverts the release of a lock, the mount repeats the release.
#[test]
fn lock_and_unlock_survive_a_power_loss_of_metadata() {
    let mut hosts = Hosts::start(small(&[]), &["metadata-1"]);
    for seed in seeds() {
        let [held, freed] = ["held", "freed"].map(|it| format!("{it}-{seed}"));
        let [holder, releaser] = [&held, &freed].map(|name| open(hosts.mount(), name));
        lock(&releaser);
        // All earlier operations are durable, including the lock of `releaser`.
        for synced in [&holder, &releaser, &files::open(hosts.mount())] {
            files::sync_all(synced);
        }
        unlock(&releaser);
        lock(&holder);
        hosts.lose_power(&["metadata-1"]);

        wait_for_locks(&hosts, 1);
        let [waiter, next] = [&held, &freed].map(|name| open(hosts.other(), name));
        wait_for_grant(&next);
        assert!(!is_granted(&waiter), "seed {seed}: the first mount has the lock");
        files::write_all_at(&holder, b"under the lock", 0);
        unlock(&holder);
        wait_for_grant(&waiter);
        assert_eq!(files::read(hosts.other().join(&held)), b"under the lock");
    }
    hosts.end();
}
