//! Tests of truncate generations: late copies of truncations, and writes that a client began before
//! a truncation.

use super::*;

/// A late copy of a truncation request may wait in the socket of a stopped target. The target must
/// not clear bytes that it has acknowledged after the truncation.
#[test]
fn late_duplicate_of_a_truncate_request_is_ignored() {
    run(|dir| async move {
        let store = open(&dir);
        write(&store, key(1), 0, b"old bytes").await.unwrap();
        store.truncate(&key(1), 0, 7).await.unwrap();
        write(&store, key(1), 0, b"new").await.unwrap();
        for late in [6, 7] {
            store.truncate(&key(1), 0, late).await.unwrap();
            assert_eq!(read(&store, key(1), 0, 10).await.unwrap(), b"new");
        }
        store.truncate(&key(1), 1, 8).await.unwrap();
        assert_eq!(store.stat(&key(1)).unwrap().size, 1);
        // The target must also remember a truncation that arrives before the chunk file exists.
        store.truncate(&key(2), 0, 3).await.unwrap();
        write(&store, key(2), 0, b"new").await.unwrap();
        store.truncate(&key(2), 0, 3).await.unwrap();
        assert_eq!(read(&store, key(2), 0, 10).await.unwrap(), b"new");
    });
}

/// Checks docs/semantics.md 2.7 and 3.6.
#[test]
fn write_from_before_a_truncation_is_refused() {
    run(|dir| async move {
        let store = open(&dir);
        let bytes = Buf::copy_of(b"bytes");
        let write = async |number: u64, truncate_generation: u64| {
            let key = key(number);
            let to = Destination { truncate_generation, ..to(&key, 100) };
            store.write(to, &bytes, &[crc32c(b"bytes")]).await.map_err(|error| error.code())
        };
        write(1, 6).await.unwrap();
        store.truncate(&key(1), 50, 7).await.unwrap();
        assert_eq!(write(1, 6).await, Err(ErrorCode::EndMoved));
        assert_eq!(store.stat(&key(1)).unwrap().size, 50);
        write(1, 7).await.unwrap();
        store.truncate(&key(2), 0, 1).await.unwrap();
        assert_eq!(write(2, 0).await, Err(ErrorCode::EndMoved));
        let (from, new) = (key(1), key(2));
        let source = CopySource { key: &from, offset: 0 };
        let to = Destination { truncate_generation: 0, ..to(&new, 0) };
        let copied = store.copy(source, to, 105, || Ok(())).await;
        assert_eq!(copied.unwrap_err().code(), ErrorCode::EndMoved);
        assert!(!store.stat(&new).unwrap().exists, "a refused write creates no file");
    });
}

/// docs/semantics.md 2.7: the truncation is executed while the write waits for the lock of the
/// file.
#[test]
fn write_that_waits_for_a_truncation_is_refused() {
    run(|dir| async move {
        let (store, file) = open_with_file(&dir, b"old bytes").await;
        let guard = file.lock.exclusive(0..u64::MAX).await;
        let (truncater, writer) = (Rc::clone(&store), Rc::clone(&store));
        let truncating = skep_env::spawn(async move { truncater.truncate(&key(1), 0, 7).await });
        skep_env::yield_now().await;
        let writing = skep_env::spawn(async move {
            let key = key(1);
            let to = Destination { truncate_generation: 6, ..to(&key, 0) };
            writer.write(to, &Buf::copy_of(b"late"), &[crc32c(b"late")]).await
        });
        skep_env::yield_now().await;
        drop(guard);
        truncating.await.unwrap();
        assert_eq!(writing.await.unwrap_err().code(), ErrorCode::EndMoved);
        assert_eq!(store.stat(&key(1)).unwrap().size, 0);
    });
}

/// Checks docs/semantics.md 2.7.
#[test]
fn allocation_from_before_a_truncation_is_refused() {
    run(|dir| async move {
        let store = open(&dir);
        store.truncate(&key(2), 0, 7).await.unwrap();
        let reserved = store.reserve(&key(2), 0..4096, 6, false).await;
        assert_eq!(reserved.unwrap_err().code(), ErrorCode::EndMoved);
        assert!(!store.stat(&key(2)).unwrap().exists, "a refused request creates no file");
        store.truncate(&key(1), 0, 7).await.unwrap();
        write(&store, key(1), 0, b"new bytes").await.unwrap();
        let cleared = store.clear(&key(1), 0..4096, 6).await;
        assert_eq!(cleared.unwrap_err().code(), ErrorCode::EndMoved);
        assert_eq!(read(&store, key(1), 0, 9).await.unwrap(), b"new bytes");
        // The truncation is executed while the clearing waits for the lock of the file.
        let file = store.existing(&key(1)).unwrap().unwrap();
        let guard = file.lock.exclusive(0..u64::MAX).await;
        let (truncater, clearer) = (Rc::clone(&store), Rc::clone(&store));
        let truncating = skep_env::spawn(async move { truncater.truncate(&key(1), 3, 8).await });
        skep_env::yield_now().await;
        let clearing = skep_env::spawn(async move { clearer.clear(&key(1), 0..4096, 7).await });
        skep_env::yield_now().await;
        drop(guard);
        truncating.await.unwrap();
        assert_eq!(clearing.await.unwrap_err().code(), ErrorCode::EndMoved);
        assert_eq!(read(&store, key(1), 0, 9).await.unwrap(), b"new");
    });
}

/// Checks docs/semantics.md 4.7.
#[test]
fn lost_chunk_file_is_not_created_again() {
    run(|dir| async move {
        let store = open(&dir);
        let key = key(1);
        let to = Destination { must_exist: true, ..to(&key, 0) };
        let checksums = [crc32c(b"bytes")];
        let write = async || store.write(to, &Buf::copy_of(b"bytes"), &checksums).await;
        let error = write().await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Corrupt);
        assert!(error.context().contains("lost+found"), "{error}");
        let reserved = store.reserve(&key, 0..4096, u64::MAX, true).await;
        assert_eq!(reserved.unwrap_err().code(), ErrorCode::Corrupt);
        assert!(!store.stat(&key).unwrap().exists);
        store
            .write(Destination { must_exist: false, ..to }, &Buf::copy_of(b"bytes"), &checksums)
            .await
            .unwrap();
        write().await.unwrap();
    });
}
