//! Tests of power losses. A test changes the files of a closed store in the same way as a power
//! loss. The next start must distinguish torn writes from damage.

use super::*;
use std::task::Poll;

#[test]
fn torn_data_of_a_new_region_is_accepted() {
    run(|dir| async move {
        let store = open(&dir);
        let mut data = pattern(1, 100_000);
        write(&store, key(1), 0, &data).await.unwrap();
        let path = store.names.path(&key(1));
        drop(store);
        // Simulates that a page of the page cache never reached the device.
        tamper(&path, 4096 + 8192..4096 + 12_288, |_| 0);
        data[8192..12_288].fill(0);
        let store = open(&dir);
        assert!(read(&store, key(1), 0, 100_000).await.unwrap() == data);
        // After the clean shutdown, the region counts as intact, so a mismatch is damage.
        store.close().await.unwrap();
        tamper(&path, 4096 + 8192..4096 + 8193, |_| 1);
        assert!(read(&open(&dir), key(1), 0, 100_000).await.is_err());
    });
}

#[test]
fn new_region_with_a_lost_or_torn_page_is_accepted() {
    for lost in [0..4096, 512..4096, 1024..1536] {
        run(|dir| async move {
            let store = open(&dir);
            let data = pattern(1, 3 * MIB as usize);
            write(&store, key(1), 0, &data).await.unwrap();
            let path = store.names.path(&key(1));
            let page = page_offset(1);
            tamper(&path, page + lost.start..page + lost.end, |_| 0);
            drop(store);
            let store = open_after_power_loss(&dir);
            assert!(read(&store, key(1), 0, 4 << 20).await.unwrap() == data);
            write(&store, key(1), 2 * MIB + 10, b"more").await.unwrap();
            store.close().await.unwrap();
            let got = read(&open(&dir), key(1), 2 * MIB, 14).await.unwrap();
            assert_eq!(got[10..], *b"more");
        });
    }
}

#[test]
fn a_file_shortened_by_a_power_loss_is_read_to_its_end() {
    for length in [0, 100, 4096, 5000, page_offset(1) + 17, page_offset(1) + 5000] {
        run(|dir| async move {
            let store = open(&dir);
            let data = pattern(1, 3 * MIB as usize);
            write(&store, key(1), 0, &data).await.unwrap();
            let path = store.names.path(&key(1));
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(length).unwrap();
            let store = open(&dir);
            let size = skep_format::chunk::logical_size(length);
            assert_eq!(store.stat(&key(1)).unwrap().size, size);
            assert!(read(&store, key(1), 0, 4 << 20).await.unwrap() == data[..size as usize]);
            write(&store, key(1), 3 * MIB, b"x").await.unwrap();
            let got = read(&store, key(1), 0, 4 << 20).await.unwrap();
            assert!(got[size as usize..3 * MIB as usize].iter().all(|byte| *byte == 0));
        });
    }
}

#[test]
fn synced_region_is_logged_as_dirty_before_an_overwrite() {
    run(|dir| async move {
        let store = open(&dir);
        write(&store, key(1), 0, &pattern(1, 5 * MIB as usize)).await.unwrap();
        store.close().await.unwrap();
        let path = store.names.path(&key(1));

        let store = open(&dir);
        write(&store, key(1), 2 * MIB, b"overwritten").await.unwrap();
        let dirty = DirtyRegion { key: key(1), region: 1 };
        assert_eq!(store.dirty_log.recorded(), [dirty]);
        drop(store);
        // Simulates that the new page reached the device but the data did not, and that a bit in
        // another region flipped.
        let at = physical_offset(2 * MIB);
        tamper(&path, at..at + 11, |_| 7);
        tamper(&path, 4096..4097, |byte| byte ^ 1);

        let store = open(&dir);
        let got = read(&store, key(1), 2 * MIB, 11).await.unwrap();
        assert_eq!(got, [7; 11]);
        assert!(read(&store, key(1), 0, 10).await.is_err(), "the dirty log does not name region 0");
        store.clean().await.unwrap();
        assert_eq!(store.dirty_log.recorded(), []);
        drop(store);
        tamper(&path, at..at + 1, |byte| byte ^ 1);
        assert!(read(&open(&dir), key(1), 2 * MIB, 11).await.is_err());
    });
}

#[test]
fn page_torn_during_an_overwrite_does_not_count_as_damage() {
    run(|dir| async move {
        let store = open(&dir);
        write(&store, key(1), 0, &pattern(1, 100_000)).await.unwrap();
        store.close().await.unwrap();
        let path = store.names.path(&key(1));
        let old = std::fs::read(&path).unwrap();

        let store = open(&dir);
        write(&store, key(1), 0, &pattern(2, 100_000)).await.unwrap();
        // Simulates a torn page: its first sector, with the synced mark of the header, is old. The
        // sectors with the checksums are new, except for one sector.
        tamper_with(&path, 0, &old[..512]);
        tamper_with(&path, 1024, &old[1024..1536]);
        let store = open_after_power_loss(&dir);
        assert!(read(&store, key(1), 0, 100_000).await.unwrap() == pattern(2, 100_000));
    });
}

/// Opens the store as a start after a power loss does: with the boot id of another boot of the
/// host.
fn open_after_power_loss(dir: &Path) -> Rc<ChunkStore> {
    let host = host_mark(dir).unwrap();
    let host = HostMark { boot_id: host.boot_id ^ 1, ..host };
    ChunkStore::open_at(dir, CLUSTER, TARGET, host).unwrap()
}

fn tamper_with(path: &Path, at: u64, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

#[test]
fn rewritten_region_is_logged_as_dirty_once_until_cleaned() {
    run(|dir| async move {
        let store = open(&dir);
        write(&store, key(1), 0, &pattern(1, 100_000)).await.unwrap();
        write(&store, key(1), 50_000, &pattern(2, 100_000)).await.unwrap();
        assert_eq!(store.dirty_log.recorded(), [], "new regions need no entry");
        store.clean().await.unwrap();
        for round in 0..10 {
            write(&store, key(1), round * 100, b"again").await.unwrap();
            assert_eq!(store.dirty_log.recorded().len(), 1);
        }
        store.clean().await.unwrap();
        assert_eq!(store.dirty_log.recorded(), []);
        write(&store, key(1), 0, b"again").await.unwrap();
        assert_eq!(store.dirty_log.recorded().len(), 1);
    });
}

#[test]
fn synced_region_is_logged_as_dirty_before_a_truncation() {
    run(|dir| async move {
        let store = open(&dir);
        write(&store, key(1), 0, &pattern(1, 100_000)).await.unwrap();
        store.clean().await.unwrap();
        store.truncate(&key(1), 50_000, next_generation()).await.unwrap();
        assert_eq!(store.dirty_log.recorded().len(), 1);
        // Simulates that the page reached the device but the truncation did not.
        let path = store.names.path(&key(1));
        std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(104_096).unwrap();
        let store = open(&dir);
        assert_eq!(read(&store, key(1), 0, 200_000).await.unwrap().len(), 100_000);
    });
}

#[test]
fn incarnation_changes_after_the_loss_of_the_page_cache() {
    run(|dir| async move {
        let host = host_mark(&dir).unwrap();
        let other = HostMark { boot_id: host.boot_id ^ 1, ..host };
        let start = |host| ChunkStore::open_at(&dir, CLUSTER, TARGET, host).unwrap();
        let first = start(host).incarnation();
        assert_eq!(start(host).incarnation(), first, "a killed process has lost nothing");
        let booted = start(other);
        assert_ne!(booted.incarnation(), first, "the host may have lost power");
        booted.close().await.unwrap();
        assert_eq!(start(host).incarnation(), booted.incarnation(), "the target had ended cleanly");
    });
}

#[test]
fn removed_and_truncated_files_leave_no_dirty_log_entries() {
    run(|dir| async move {
        let store = open(&dir);
        let keys: Vec<_> = (1..=3).map(key).collect();
        for key in &keys {
            write(&store, *key, 0, &pattern(1, 5 * MIB as usize)).await.unwrap();
        }
        store.clean().await.unwrap();
        for key in &keys {
            write(&store, *key, 4 * MIB, b"new").await.unwrap();
        }
        store.remove(&keys[..1]).await.unwrap();
        store.quarantine(&keys[1..2]).await.unwrap();
        store.truncate(&keys[2], 100, next_generation()).await.unwrap();
        store.clean().await.unwrap();
        assert_eq!(store.dirty_log.recorded(), []);
        assert!(!store.dirty_log.has_forgotten(), "the file has no entry either");
        store.check_invariants();
        // After a kill before the next round of the cleaner, the next start removes the entries.
        write(&store, keys[2], 0, b"new").await.unwrap();
        store.remove(&keys).await.unwrap();
        drop(store);
        let store = open(&dir);
        assert_eq!(store.dirty_log.recorded().len(), 1);
        store.clean().await.unwrap();
        assert_eq!(store.dirty_log.recorded(), []);
        store.close().await.unwrap();
    });
}

/// docs/semantics.md 3.3. One step makes the bytes and the name of a new chunk file durable.
#[test]
fn sync_of_a_new_file_syncs_data_and_name_concurrently() {
    run(|dir| async move {
        let (store, file) = open_with_file(&dir, &pattern(1, 5000)).await;
        let key = key(1);
        let mut syncing = std::pin::pin!(store.sync(&key));
        let is_ready =
            std::future::poll_fn(|context| Poll::Ready(syncing.as_mut().poll(context).is_ready()));
        assert!(!is_ready.await && file.has_unsynced_changes() && !file.is_name_synced.get());
        assert!(store.names.is_syncing(), "the sync of the name does not wait for the data");
        syncing.await.unwrap();
        assert!(!file.has_unsynced_changes() && file.is_name_synced.get());
    });
}

/// docs/semantics.md 3.5. Only a sync of the whole file system makes the writes of a killed process
/// durable, since the target has no list of the files of that process.
#[test]
fn first_sync_after_a_kill_syncs_the_whole_file_system() {
    run(|dir| async move {
        let owes = |store: &Rc<ChunkStore>| store.cleaner.full_sync.is_owed.get();
        let store = open(&dir);
        assert!(!owes(&store), "this is the first start");
        write(&store, key(1), 0, b"before the kill").await.unwrap();
        drop(store);
        let store = open(&dir);
        assert!(owes(&store));
        store.sync(&key(1)).await.unwrap();
        assert!(!owes(&store));
        drop(store);
        let store = open(&dir);
        assert!(owes(&store));
        store.close().await.unwrap();
        assert!(!owes(&open(&dir)), "the previous process has ended cleanly");
        let store = open_after_power_loss(&dir);
        assert!(!owes(&store), "the page cache is lost, and the incarnation has changed");
    });
}
