//! Tests of faults of the host and of the device. These faults must neither lose data silently nor
//! stop the target.

use super::*;
use crate::chunk_store::dirty_log::DIRTY_LOG;
use crate::chunk_store::names::leaf_of;
use crate::limits::SYNC_EACH_UP_TO;
use skep_testkit::thin::ThinDisk;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Tests lock this mutex if they drop the page cache of the host, or if their failed pages must
/// stay in the page cache.
static PAGE_CACHE: Mutex<()> = Mutex::new(());

/// Environment variable that makes a test run its body with a low limit of descriptors.
const LOW_LIMIT: &str = "SKEP_TEST_LOW_DESCRIPTOR_LIMIT";

/// Runs the test `name` again in a separate process with at most `limit` descriptors. Returns
/// `true` in the separate process, which then runs the body of the test.
fn is_limited_process(name: &str, limit: u64) -> bool {
    if std::env::var_os(LOW_LIMIT).is_some() {
        return true;
    }
    let mut command = Command::new("prlimit");
    command.arg(format!("--nofile={limit}:{limit}"));
    command.arg(std::env::current_exe().unwrap()).args([name, "--exact", "--nocapture"]);
    command.env(LOW_LIMIT, "1").process_group(0);
    let output = command.output().expect("prlimit is part of util-linux");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stdout));
    false
}

/// Opens files until the process has no free descriptor.
fn take_descriptors() -> Vec<std::fs::File> {
    std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect()
}

/// Runs a test's future with an empty directory on a thin disk, whose device has `pool_mib` MiB.
/// Does nothing if the test may not mount.
fn on_thin_disk<F: Future<Output = ()> + 'static>(
    pool_mib: u64,
    test: impl FnOnce(Rc<ThinDisk>, PathBuf) -> F,
) {
    let dir = tempfile::tempdir().unwrap();
    let Some(thin) = ThinDisk::new(dir.path(), pool_mib).map(Rc::new) else { return };
    let target = thin.path().join("target");
    std::fs::create_dir(&target).unwrap();
    skep_env::block_on(test(Rc::clone(&thin), target)).unwrap();
}

/// Writes 40 MiB. The writes are too short to begin an early write-back, because an early
/// write-back would use the file and prevent its eviction.
async fn write_in_pieces(store: &Rc<ChunkStore>) {
    for (index, piece) in pattern(1, 40 * MIB as usize).chunks(32 << 10).enumerate() {
        write(store, key(1), index as u64 * (32 << 10), piece).await.unwrap();
    }
}

#[test]
fn lack_of_file_descriptors_is_not_a_device_failure() {
    let name = "chunk_store::tests::faults::lack_of_file_descriptors_is_not_a_device_failure";
    if !is_limited_process(name, 300) {
        return;
    }
    run(|dir| async move {
        let store = open(&dir);
        write(&store, key(1), 0, b"old").await.unwrap();
        store.sync(&key(1)).await.unwrap();
        assert!(store.open.borrow_mut().evict_one());
        write(&store, key(2), 0, b"name is not durable yet").await.unwrap();
        let taken = take_descriptors();
        // The process has no free descriptor now, so the target opens and creates chunk files with
        // its spare descriptors.
        assert_eq!(read(&store, key(1), 0, 10).await.unwrap(), b"old");
        write(&store, key(3), 0, b"new").await.unwrap();
        // Other operations may fail, but they must not make the target refuse writes.
        for result in [store.sync(&key(2)).await, store.clean().await] {
            let code = result.err().map(|error| error.code());
            assert!(code.is_none_or(|code| code == ErrorCode::LimitReached), "{code:?}");
        }
        assert_eq!(store.failure(), None);
        drop(taken);
        store.sync(&key(2)).await.unwrap();
        store.sync(&key(3)).await.unwrap();
        store.close().await.unwrap();
    });
}

/// docs/design/0003-chunk-store.md, "The crash rule".
#[test]
fn dirty_log_keeps_its_name_without_free_descriptors() {
    let name = "chunk_store::tests::faults::dirty_log_keeps_its_name_without_free_descriptors";
    if !is_limited_process(name, 300) {
        return;
    }
    run(|dir| async move {
        let store = open(&dir);
        write(&store, key(1), 0, b"old").await.unwrap();
        store.clean().await.unwrap();
        let mut taken = take_descriptors();
        // The new file of the log can take the only free descriptor.
        taken.pop();
        let error = store.dirty_log.rewrite().await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::LimitReached, "{error}");
        write(&store, key(1), 0, b"new").await.unwrap();
        let bytes = std::fs::read(dir.join(DIRTY_LOG)).unwrap();
        let header = DirtyLogHeader { cluster: CLUSTER, target: TARGET };
        let recorded = skep_format::chunk::read_dirty_log(&bytes, &header).unwrap();
        assert_eq!(recorded, [DirtyRegion { key: key(1), region: 0 }]);
        drop(taken);
        store.close().await.unwrap();
    });
}

/// Remounts a disk with other options.
fn remount(disk: &Path, options: &str) {
    let output = Command::new("mount").args(["-o", options]).arg(disk).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Checks docs/semantics.md 4.8.
#[test]
fn target_serves_reads_from_a_read_only_disk() {
    on_thin_disk(200, |thin, target| async move {
        let disk = thin.path();
        let data = pattern(1, 3 * MIB as usize);
        let store = open(&target);
        for number in 1..=2 {
            write(&store, key(number), 0, &data).await.unwrap();
        }
        store.close().await.unwrap();
        drop(store);
        let store = open(&target);
        store.open.borrow_mut().evict_one();
        // The kernel refuses to remount as long as a file is open for writing.
        store.dirty_log.close_file();
        remount(&disk, "remount,ro");
        assert!(read(&store, key(1), 0, 3 << 20).await.unwrap() == data);
        let refused = write(&store, key(2), 0, b"x").await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::DeviceFailed);
        let health = store.health().await;
        assert_eq!(health.condition, skep_types::map::Condition::ReadOnly);
        assert!(health.problem.contains("ead-only"), "{}", health.problem);
        drop(store);
        // A target on a read-only file system starts, so that clients can read their data.
        let store = open(&target);
        assert!(read(&store, key(2), 0, 3 << 20).await.unwrap() == data);
        let refused = write(&store, key(2), 0, b"x").await.unwrap_err();
        assert!(refused.context().contains("read-only"), "{refused}");
        drop(store);
        remount(&disk, "remount,rw");
        let store = open(&target);
        write(&store, key(2), 0, b"x").await.unwrap();
        store.close().await.unwrap();
    });
}

/// The creation of a chunk file is the first write that the read-only disk refuses.
#[test]
fn disk_that_refuses_new_files_makes_the_target_read_only() {
    on_thin_disk(200, |thin, target| async move {
        let disk = thin.path();
        let store = open(&target);
        write(&store, key(1), 0, b"old").await.unwrap();
        store.close().await.unwrap();
        drop(store);
        // The leaf directory of the first new file exists, and the leaf directory of the second new
        // file is missing.
        let (with_directory, without) = (key(2), key(1 << 20));
        assert_eq!(leaf_of(&with_directory), leaf_of(&key(1)));
        assert_ne!(leaf_of(&without), leaf_of(&key(1)));
        for new in [with_directory, without] {
            let store = open(&target);
            store.dirty_log.close_file();
            remount(&disk, "remount,ro");
            let refused = write(&store, new, 0, b"x").await.unwrap_err();
            assert_eq!(refused.code(), ErrorCode::DeviceFailed, "{refused}");
            let health = store.health().await;
            assert_eq!(health.condition, skep_types::map::Condition::ReadOnly);
            assert!(health.problem.starts_with("a write failed at 20"), "{}", health.problem);
            assert_eq!(read(&store, key(1), 0, 10).await.unwrap(), b"old", "reads are served");
            drop(store);
            remount(&disk, "remount,rw");
        }
        let store = open(&target);
        write(&store, without, 0, b"x").await.unwrap();
        store.close().await.unwrap();
    });
}

/// Checks docs/semantics.md 3.5.
#[test]
fn failed_write_back_is_an_error_for_each_sync() {
    let _page_cache = PAGE_CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    on_thin_disk(200, |thin, target| async move {
        let store = open(&target);
        // The file system allocates space for the file. `fallocate -d` then makes a hole for the
        // zeros in the image of the device, so later data needs new space of the device.
        write(&store, key(1), 0, &vec![0; 40 * MIB as usize]).await.unwrap();
        store.sync(&key(1)).await.unwrap();
        let dug = Command::new("fallocate").arg("-d").arg(thin.image()).output().unwrap();
        assert!(dug.status.success(), "{}", String::from_utf8_lossy(&dug.stderr));
        thin.resize(24);
        let data = pattern(1, 40 * MIB as usize);
        write(&store, key(1), 0, &data).await.unwrap();
        let incarnation = store.incarnation();
        // Each client that wrote sends its own sync. None of these syncs may succeed.
        let first = store.sync(&key(1)).await.unwrap_err();
        let second = store.sync(&key(1)).await.unwrap_err();
        for error in [&first, &second] {
            assert_eq!(error.code(), ErrorCode::NoSpace, "{error}");
        }
        // The pool gets more space, so the next sync writes all data that the page cache still has.
        thin.resize(200);
        store.sync(&key(1)).await.unwrap();
        let is_lost = store.incarnation() != incarnation;
        drop(store);
        ThinDisk::drop_page_cache();
        let store = open(&target);
        // If the kernel has dropped bytes, a read of these bytes fails, and each client gets an
        // error for the loss.
        match read(&store, key(1), 0, 40 << 20).await {
            Ok(bytes) => assert!(bytes == data),
            Err(error) => assert!(is_lost && error.code() == ErrorCode::Corrupt, "{error}"),
        }
        drop(store);
    });
}

/// Checks docs/semantics.md 3.5.
#[test]
fn target_gets_a_new_incarnation_after_a_lost_write_back() {
    let _page_cache = PAGE_CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    on_thin_disk(24, |_thin, target| async move {
        let store = open(&target);
        write_in_pieces(&store).await;
        let incarnation = store.incarnation();
        // The target evicts the file from the cache with unsynced changes. The kernel then tries to
        // write the file's pages back, fails, and drops the pages and the error of the file.
        assert!(store.open.borrow_mut().evict_one());
        let file = std::fs::File::open(&target).unwrap();
        let _no_space = skep_env::File::from(file).sync_file_system_now();
        std::fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
        let synced = store.sync(&key(1)).await;
        assert!(synced.is_err() || store.incarnation() != incarnation, "the loss is reported");
        drop(store);
    });
}

/// docs/semantics.md 3.5. The kernel closes the files of a killed process, so it may drop the error
/// of a failed write-back together with the file.
#[test]
fn failed_write_back_of_a_killed_process_is_reported() {
    let _page_cache = PAGE_CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    on_thin_disk(24, |thin, target| async move {
        let store = open(&target);
        write_in_pieces(&store).await;
        let incarnation = store.incarnation();
        drop(store);
        // `sync(2)` reports no errors, so the next start of the target has to detect the error.
        assert!(Command::new("sync").status().unwrap().success());
        std::fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
        thin.resize(200);
        let store = open(&target);
        assert_eq!(store.incarnation(), incarnation, "the page cache was not lost");
        let synced = store.sync(&key(1)).await;
        assert!(synced.is_err() || store.incarnation() != incarnation, "the loss is reported");
        drop(store);
    });
}

/// docs/semantics.md 3.5. The kernel reports a failed write-back to only one sync.
#[test]
fn end_of_a_target_drops_no_sync_of_the_cleaner() {
    run(|dir| async move {
        let (store, file) = open_with_file(&dir, b"new").await;
        // The sync of the round waits until this permit is released.
        let syncing = file.syncing.acquire().await;
        let cleaner = Rc::clone(&store);
        let mut cleaning = skep_env::spawn(async move { cleaner.clean_forever().await });
        let round = async {
            while file.syncing.waiting() == 0 {
                store.cleaner.wanted.notify();
                skep_env::yield_now().await;
            }
        };
        skep_env::timeout(Duration::from_secs(10), round).await.expect("a round begins");
        store.end_cleaning();
        let moment = Duration::from_millis(20);
        assert!(
            skep_env::timeout(moment, &mut cleaning).await.is_none(),
            "the round has not ended"
        );
        drop(syncing);
        cleaning.await;
        assert_eq!(store.dirty.len(), 0, "the round has synced the write");
    });
}

/// Checks docs/semantics.md 3.5.
#[test]
fn cleaner_repeats_a_failed_write_of_the_state_record() {
    run(|dir| async move {
        let store = open(&dir);
        let before = store.incarnation();
        let state = dir.join(STATE_FILE);
        // A directory in place of the temporary file makes the replacement fail.
        let temporary = dir.join("state.new");
        std::fs::create_dir(&temporary).unwrap();
        let _refused = store.report_loss("a test");
        assert!(store.problems.is_state_unrecorded.get());
        std::fs::remove_dir(&temporary).unwrap();
        store.record_state_if_needed();
        assert!(!store.problems.is_state_unrecorded.get());
        let written = TargetState::from_file(&std::fs::read(&state).unwrap()).unwrap();
        assert_eq!(written.incarnation, store.incarnation());
        assert_ne!(written.incarnation, before);
    });
}

/// Stores the error of an early write-back, as if the kernel had dropped pages of the file.
fn fail_write_back(file: &ChunkFile) {
    let error = std::io::Error::from(std::io::ErrorKind::StorageFull);
    file.writes.failed_write_back.replace(Some(error));
    file.note_change();
}

/// docs/semantics.md 3.5. A sync of the whole file system does not return the error of an early
/// write-back.
#[test]
fn full_sync_does_not_hide_a_failed_early_write_back() {
    run(|dir| async move {
        let store = open(&dir);
        let count = SYNC_EACH_UP_TO + 1;
        for number in 1..=count as u64 {
            write(&store, key(number), 0, b"new").await.unwrap();
        }
        let file = store.existing(&key(1)).unwrap().unwrap();
        fail_write_back(&file);
        store.sync_all(|| true).await.unwrap();
        assert_eq!(store.sync(&key(1)).await.unwrap_err().code(), ErrorCode::NoSpace);
        fail_write_back(&file);
        assert_eq!(store.clean().await.unwrap_err().code(), ErrorCode::NoSpace);
        assert_eq!(store.dirty.len(), count, "the round has marked no region as synced");
        store.clean().await.unwrap();
        assert_eq!(store.dirty.len(), 0);
    });
}

/// A removed region stays dirty as long as the dirty log lists the region, but none of its data can
/// be lost.
#[test]
fn failed_write_back_after_a_truncation_is_no_loss() {
    run(|dir| async move {
        let store = open(&dir);
        write(&store, key(1), 0, &pattern(1, 2 * REGION_BYTES as usize)).await.unwrap();
        store.clean().await.unwrap();
        write(&store, key(1), REGION_BYTES, b"new").await.unwrap();
        store.truncate(&key(1), 100, 1).await.unwrap();
        assert_eq!(store.dirty.regions_of(&key(1)), [0, 1]);
        let incarnation = store.incarnation();
        let file = store.existing(&key(1)).unwrap().unwrap();
        fail_write_back(&file);
        assert_eq!(store.sync(&key(1)).await.unwrap_err().code(), ErrorCode::NoSpace);
        assert_eq!(store.incarnation(), incarnation);
    });
}

/// Checks docs/semantics.md 3.5.
#[test]
fn sync_waits_for_early_write_backs_of_its_file() {
    run(|dir| async move {
        let (store, file) = open_with_file(&dir, b"new").await;
        let number = file.writes.write_backs.begin();
        let syncer = Rc::clone(&store);
        let mut syncing = skep_env::spawn(async move { syncer.sync(&key(1)).await });
        let moment = Duration::from_millis(20);
        assert!(skep_env::timeout(moment, &mut syncing).await.is_none());
        fail_write_back(&file);
        file.writes.write_backs.end(number);
        assert_eq!(syncing.await.unwrap_err().code(), ErrorCode::NoSpace);
    });
}
