//! Truncate generations: late copies of truncations, and writes from before a truncation.

use super::*;

#[test]
fn a_late_copy_of_a_truncation_is_ignored() {
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
        // The chunk file did not exist yet.
        store.truncate(&key(2), 0, 3).await.unwrap();
        write(&store, key(2), 0, b"new").await.unwrap();
        store.truncate(&key(2), 0, 3).await.unwrap();
        assert_eq!(read(&store, key(2), 0, 10).await.unwrap(), b"new");
    });
}

/// Semantics 2.7 and 3.6.
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
        let copied = store.copy(source, to, 105).await;
        assert_eq!(copied.unwrap_err().code(), ErrorCode::EndMoved);
        assert!(!store.stat(&new).unwrap().exists, "a refused write creates no file");
    });
}

/// Semantics 2.7: the truncation is executed while the write waits for the lock of the file.
#[test]
fn write_that_waits_for_a_truncation_is_refused() {
    run(|dir| async move {
        let store = open(&dir);
        write(&store, key(1), 0, b"old bytes").await.unwrap();
        let file = store.existing(&key(1)).unwrap().unwrap();
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
