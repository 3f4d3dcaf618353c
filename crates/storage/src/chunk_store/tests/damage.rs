//! Tests of damage that cannot come from a crash. A read must return an error that names the file
//! and the target, and must never return the damaged data.

use super::*;
use crate::chunk_store::dirty_log::DIRTY_LOG;

/// Writes a file of 5 MiB, closes the store so that the file is on the device, and returns its
/// path.
async fn settled(dir: &Path) -> PathBuf {
    let store = open(dir);
    write(&store, key(1), 0, &pattern(7, 5 * MIB as usize)).await.unwrap();
    store.close().await.unwrap();
    store.names.path(&key(1))
}

fn assert_names(error: &Error, path: &Path, place: &str) {
    assert_eq!(error.code(), ErrorCode::Corrupt, "{error}");
    let path = path.display().to_string();
    for part in [path.as_str(), place] {
        assert!(error.context().contains(part), "'{part}' is not in: {error}");
    }
}

#[test]
fn only_the_granule_with_a_flipped_bit_is_refused() {
    run(|dir| async move {
        let path = settled(&dir).await;
        let at = physical_offset(3 * MIB + 5000);
        tamper(&path, at..at + 1, |byte| byte ^ 4);
        let store = open(&dir);
        let error = read(&store, key(1), 3 * MIB, 100_000).await.unwrap_err();
        assert_names(&error, &path, "granule 769");
        assert!(error.context().contains("t3"), "{error}");
        // A partial overwrite must not give the damaged granule a valid checksum. A complete
        // overwrite repairs it.
        let error = write(&store, key(1), 3 * MIB + 4100, b"new").await.unwrap_err();
        assert_names(&error, &path, "granule 769");
        let rest = read(&store, key(1), 3 * MIB + 8192, 100_000).await.unwrap();
        assert!(rest == pattern(7, 5 * MIB as usize)[3 * MIB as usize + 8192..][..100_000]);
        write(&store, key(1), 3 * MIB + 4096, &[1; 4096]).await.unwrap();
        read(&store, key(1), 3 * MIB, 100_000).await.unwrap();
    });
}

/// Metadata already has the new size when storage truncates, so damage must not prevent the
/// truncation.
#[test]
fn granule_stays_damaged_after_a_truncation_within_the_granule() {
    run(|dir| async move {
        let path = settled(&dir).await;
        let at = physical_offset(3 * MIB + 5000);
        tamper(&path, at..at + 1, |byte| byte ^ 4);
        let store = open(&dir);
        store.truncate(&key(1), 3 * MIB + 6000, next_generation()).await.unwrap();
        assert_eq!(store.stat(&key(1)).unwrap().size, 3 * MIB + 6000);
        let error = read(&store, key(1), 3 * MIB + 4096, 10).await.unwrap_err();
        assert_names(&error, &path, "granule 769");
        let rest = read(&store, key(1), 3 * MIB, 4096).await.unwrap();
        assert!(rest == pattern(7, 5 * MIB as usize)[3 * MIB as usize..][..4096]);
        store.truncate(&key(1), 3 * MIB + 4096, next_generation()).await.unwrap();
        write(&store, key(1), 3 * MIB + 4096, b"new").await.unwrap();
        assert_eq!(read(&store, key(1), 3 * MIB + 4096, 10).await.unwrap(), b"new");
    });
}

/// Checks docs/semantics.md 4.7.
#[test]
fn truncation_to_zero_removes_a_damaged_page() {
    run(|dir| async move {
        let path = settled(&dir).await;
        tamper(&path, 100..101, |byte| byte ^ 1);
        let store = open(&dir);
        for size in [5 * MIB, 1000] {
            store.truncate(&key(1), size, next_generation()).await.unwrap();
            let error = write(&store, key(1), 0, b"new").await.unwrap_err();
            assert_names(&error, &path, "page of region 0");
        }
        store.truncate(&key(1), 0, next_generation()).await.unwrap();
        write(&store, key(1), 0, b"new").await.unwrap();
        assert_eq!(read(&store, key(1), 0, 10).await.unwrap(), b"new");
        store.close().await.unwrap();
        assert_eq!(read(&open(&dir), key(1), 0, 10).await.unwrap(), b"new");
    });
}

#[test]
fn region_page_with_a_flipped_bit_is_refused() {
    for at in [20, 100, 1024, 3000, 4093] {
        run(|dir| async move {
            let path = settled(&dir).await;
            let place = page_offset(1) + at;
            tamper(&path, place..place + 1, |byte| byte ^ 1);
            let store = open(&dir);
            read(&store, key(1), 0, 1 << 20).await.unwrap();
            let error = read(&store, key(1), 2 * MIB, 10).await.unwrap_err();
            assert_names(&error, &path, "page of region 1");
        });
    }
}

/// Checks docs/semantics.md 4.7.
#[test]
fn torn_region_page_is_damage_if_the_page_cache_survived() {
    run(|dir| async move {
        let store = open(&dir);
        write(&store, key(1), 0, &pattern(7, 100_000)).await.unwrap();
        store.sync(&key(1)).await.unwrap();
        let path = store.names.path(&key(1));
        drop(store);
        // Simulates a kill of the process before the region was marked as synced. After the kill, a
        // bit of the page and a bit of the data flip. The checksums in an intact page would show
        // the damage of the data.
        tamper(&path, 3000..3001, |byte| byte ^ 1);
        tamper(&path, 4100..4101, |byte| byte ^ 1);
        let error = read(&open(&dir), key(1), 0, 4096).await.unwrap_err();
        assert_names(&error, &path, "page of region 0");
        // After a power loss, the damage may come from a torn page, so the target accepts the data.
        let host = host_mark(&dir).unwrap();
        let host = HostMark { boot_id: host.boot_id ^ 1, ..host };
        let store = ChunkStore::open_at(&dir, CLUSTER, TARGET, host).unwrap();
        assert_eq!(read(&store, key(1), 0, 4096).await.unwrap().len(), 4096);
    });
}

#[test]
fn region_page_at_the_offset_of_another_region_is_refused() {
    run(|dir| async move {
        let path = settled(&dir).await;
        let store = open(&dir);
        write(&store, key(2), 0, b"other").await.unwrap();
        store.close().await.unwrap();
        std::fs::copy(&path, store.names.path(&key(2))).unwrap();
        let error = read(&open(&dir), key(2), 0, 10).await.unwrap_err();
        assert_names(&error, &store.names.path(&key(2)), &key(1).to_string());
    });
}

#[test]
fn checksum_mismatch_in_data_written_since_start_is_damage() {
    run(|dir| async move {
        let store = open(&dir);
        write(&store, key(1), 0, &pattern(1, 10_000)).await.unwrap();
        let path = store.names.path(&key(1));
        tamper(&path, 4096..4097, |byte| byte ^ 1);
        let error = read(&store, key(1), 0, 10).await.unwrap_err();
        assert_names(&error, &path, "granule 0");
    });
}

#[test]
fn target_with_damaged_records_does_not_start() {
    for name in [STATE_FILE, DIRTY_LOG] {
        run(|dir| async move {
            settled(&dir).await;
            tamper(&dir.join(name), 20..21, |byte| byte ^ 1);
            let error = ChunkStore::open(&dir, CLUSTER, TARGET).unwrap_err();
            assert_names(&error, &dir.join(name), "");
        });
    }
}

#[test]
fn failed_write_makes_the_target_refuse_writes_until_restart() {
    run(|dir| async move {
        let store = open(&dir);
        write(&store, key(1), 0, b"before").await.unwrap();
        let incarnation = store.incarnation();
        let failure = store.note_failure(Error::new(ErrorCode::Io, "the disk is on fire"));
        assert_eq!(failure.code(), ErrorCode::DeviceFailed);
        assert!(failure.context().contains("on fire") && failure.context().contains("t3"));
        let refusals = [
            write(&store, key(1), 0, b"after").await,
            store.sync(&key(1)).await,
            store.truncate(&key(1), 1, next_generation()).await,
            store.remove(&[key(1)]).await,
            store.close().await,
        ];
        for refusal in refusals {
            assert_eq!(refusal.unwrap_err(), failure);
        }
        assert_eq!(read(&store, key(1), 0, 10).await.unwrap(), b"before", "reads are served");
        // The kernel may have dropped data that it could not write.
        let again = open(&dir);
        assert_ne!(again.incarnation(), incarnation);
        write(&again, key(1), 0, b"after").await.unwrap();
    });
}
