//! Tests of concurrent writes to one chunk file.

use super::*;
use crate::chunk_store::write::Incoming;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(10);
/// An operation that does not wait for a lock certainly ends within this time.
const MOMENT: Duration = Duration::from_millis(20);

#[test]
fn writes_of_different_regions_do_not_wait_for_each_other() {
    run(|dir| async move {
        let (store, file) = open_with_file(&dir, &pattern(1, 6 * MIB as usize)).await;
        let first = file.lock.write(0..GRANULE_BYTES);
        first.admission().await;
        let writing = write(&store, key(1), 4 * MIB, b"beside it");
        let written = skep_env::timeout(PATIENCE, writing).await;
        written.expect("the write waits for a write of another region").unwrap();
        let same_region = write(&store, key(1), MIB, b"after it");
        assert!(
            skep_env::timeout(MOMENT, same_region).await.is_none(),
            "both writes change one page"
        );
        drop(first);
        assert_eq!(read(&store, key(1), 4 * MIB, 9).await.unwrap(), b"beside it");
    });
}

#[test]
fn waiting_writes_sync_the_dirty_log_together() {
    run(|dir| async move {
        let store = open(&dir);
        write(&store, key(1), 0, &pattern(1, 6 * MIB as usize)).await.unwrap();
        store.clean().await.unwrap();
        assert!(store.dirty_log.recorded().is_empty());
        let file = store.existing(&key(1)).unwrap().unwrap();
        let whole = file.lock.exclusive(0..u64::MAX).await;
        let tasks: Vec<_> = (0..3)
            .map(|region| {
                let store = Rc::clone(&store);
                skep_env::spawn(async move {
                    write(&store, key(1), region * REGION_BYTES, b"new").await
                })
            })
            .collect();
        let recorded = async {
            while store.dirty_log.recorded().len() < 3 {
                skep_env::yield_now().await;
            }
        };
        let recorded = skep_env::timeout(PATIENCE, recorded).await;
        assert!(recorded.is_some(), "the writes record their regions while they wait");
        drop(whole);
        for task in tasks {
            task.await.unwrap();
        }
        store.clean().await.unwrap();
        assert!(store.dirty_log.recorded().is_empty(), "the cleaner forgets the regions again");
        store.check_invariants();
    });
}

#[test]
fn undo_of_a_write_preserves_the_data_of_other_writes() {
    run(|dir| async move {
        let (store, file) = open_with_file(&dir, b"short").await;
        let length = || std::fs::metadata(&file.path).unwrap().len();
        let other = file.begin_write(3 * MIB);
        let (at, data) = (physical_offset(3 * MIB - 7), b"written");
        file.file.write_now(data, at).unwrap();
        store.undo(&file, &[]).await.unwrap();
        assert_eq!(length(), at + data.len() as u64, "the other write has extended the file");
        drop(other);
        store.undo(&file, &[]).await.unwrap();
        assert_eq!(length(), physical_offset(5));
    });
}

/// Checks docs/semantics.md 4.8.
#[test]
fn concurrent_failed_writes_preserve_acknowledged_bytes() {
    run(|dir| async move {
        let (store, file) = open_with_file(&dir, b"acknowledged").await;
        let data = Buf::copy_of(&[7; 5000]);
        let checksums = piece_checksums(12, &data.bytes());
        let incoming = Incoming { offset: 12, data: &data, checksums: &checksums };
        let (first, second) = (file.begin_write(5012), file.begin_write(3 * MIB));
        let writes = store.prepare(&file, &incoming).await.unwrap();
        file.file.write_now(&data.bytes(), physical_offset(12)).unwrap();
        file.file.write_now(b"written", physical_offset(3 * MIB - 7)).unwrap();
        store.undo(&file, &writes).await.unwrap();
        store.shrink(&file).unwrap();
        drop(first);
        // The second write fails before it has changed a region.
        store.shrink(&file).unwrap();
        drop(second);
        let length = std::fs::metadata(&file.path).unwrap().len();
        assert_eq!(length, physical_offset(12));
        write(&store, key(1), 12, b" and appended").await.unwrap();
        let all = b"acknowledged and appended";
        assert_eq!(read(&store, key(1), 0, 100).await.unwrap(), all);
    });
}

#[test]
fn failed_first_write_keeps_a_file_that_another_write_needs() {
    run(|dir| async move {
        let store = open(&dir);
        let file = store.existing_or_new(&key(1)).unwrap();
        let (failed, other) = (file.begin_write(10), file.begin_write(20));
        store.drop_if_new(&file);
        assert!(!file.is_removed.get() && file.path.exists());
        drop(other);
        store.drop_if_new(&file);
        assert!(file.is_removed.get() && !file.path.exists());
        drop(failed);
    });
}

/// docs/semantics.md 2.5 and 3.8. While a copy reads, its connection may be replaced, or its client
/// may be removed from the cluster.
#[test]
fn copy_checks_its_request_before_each_change() {
    run(|dir| async move {
        let store = open(&dir);
        let data = pattern(1, 2 * MIB as usize);
        write(&store, key(1), 0, &data[..5000]).await.unwrap();
        write(&store, key(1), MIB, &data[MIB as usize..]).await.unwrap();
        let old = pattern(2, 2 * MIB as usize);
        let gone =
            || Err(Error::new(ErrorCode::Disconnected, "the connection of the request has ended"));
        // The source consists of data, a hole and data.
        let hole = store.next_hole(&key(1), 0).await.unwrap() as usize;
        for changes in 0..3 {
            write(&store, key(2), 0, &old).await.unwrap();
            let left = Cell::new(changes);
            let check = || match left.get() {
                0 => gone(),
                _ => {
                    left.set(left.get() - 1);
                    Ok(())
                }
            };
            let source = CopySource { key: &key(1), offset: 0 };
            let error = store.copy(source, to(&key(2), 0), 2 << 20, check).await.unwrap_err();
            assert_eq!(error.code(), ErrorCode::Disconnected);
            let found = read(&store, key(2), 0, 2 << 20).await.unwrap();
            let copied = [0, hole, MIB as usize][changes];
            assert!(found[copied..] == old[copied..], "after {changes} changes");
            assert!(copied == 0 || found[..5000] == data[..5000]);
        }
    });
}
