//! Tests that an event loop neither writes nor syncs when a target starts or ends, since the other
//! targets of the loop would have to wait. The tests freeze the file system during these steps, so
//! that each write or sync would block.

use super::*;
use skep_format::chunk::TargetState;
use skep_testkit::target_disk::Frozen;
use skep_testkit::thin::ThinDisk;
use std::sync::mpsc;
use std::time::Duration;

/// Time limit for each step, which is much longer than the steps take even on a busy host.
const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn event_loop_never_writes_to_disk_to_start_or_end_a_target() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = ThinDisk::new(dir.path(), 100) else { return };
    let target = disk.path().join("target");
    std::fs::create_dir(&target).unwrap();
    let prepared = PreparedStore::new(&target, CLUSTER, TARGET).unwrap();
    let frozen = Frozen::new(&disk.path());
    let (report, reports) = mpsc::channel();
    let of_loop = std::thread::spawn(move || {
        skep_env::block_on(async move {
            let store = ChunkStore::start(prepared);
            report.send("started").unwrap();
            let end = store.end().await.unwrap();
            report.send("ended").unwrap();
            end
        })
    });
    for step in ["started", "ended"] {
        assert_eq!(reports.recv_timeout(PATIENCE), Ok(step));
    }
    drop(frozen);
    let state = || TargetState::from_file(&std::fs::read(target.join(STATE_FILE)).unwrap());
    assert!(!state().unwrap().clean, "the loop has not recorded the end");
    of_loop.join().unwrap().unwrap().record().unwrap();
    assert!(state().unwrap().clean);
}
