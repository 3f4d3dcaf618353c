//! Tests locks that a metadata target has lost in a power loss of its host.

use crate::{FakeCluster, create, read, until, with_client, write};
use skep_client::{
    Client, FileLock, HandleId, LOCK_END, LockKind, LockMode, LockOutcome, Locks, OpenMode, Opens,
    Reads, Writes,
};
use skep_env::Buf;
use skep_types::{ErrorCode, SessionId};

async fn lock(client: &Client, handle: HandleId) {
    let (kind, mode) = (LockKind::Flock, Some(LockMode::Exclusive));
    let lock = FileLock { kind, owner: 0, mode, range: 0..LOCK_END, pid: 1 };
    let outcome = client.set_lock(handle, lock, 0).await.unwrap();
    assert!(matches!(outcome, LockOutcome::Granted { .. }), "{outcome:?}");
}

fn locks(fake: &FakeCluster) -> usize {
    fake.with_metadata(1, |metadata| metadata.lock_count())
}

/// docs/semantics.md 6.8.
#[test]
fn lost_lock_is_set_again_after_a_power_loss() {
    with_client(|fake, client| async move {
        let (_, handle) = create(&client, "a").await;
        write(&client, handle, 0, b"bytes").await;
        lock(&client, handle).await;
        assert_eq!(locks(&fake), 1);
        fake.with_metadata(1, |metadata| metadata.lose_locks(None));
        until(|| locks(&fake) == 1).await;
        assert_eq!(read(&client, handle, 0, 10).await, b"bytes");
    });
}

/// docs/semantics.md 6.8: another client gets the lock before the mount sets it again.
#[test]
fn handle_of_a_lost_lock_fails_if_another_client_has_it() {
    with_client(|fake, client| async move {
        let (inode, handle) = create(&client, "a").await;
        write(&client, handle, 0, b"bytes").await;
        let unlocked = client.open(inode, OpenMode::Write, false).await.unwrap().handle;
        lock(&client, handle).await;
        fake.with_metadata(1, |metadata| metadata.lose_locks(Some(SessionId::new(77))));
        while client.read(handle, 0, Buf::new(5)).await.is_ok() {
            skep_env::yield_now().await;
        }
        let failed_read = client.read(handle, 0, Buf::new(5)).await.unwrap_err();
        assert_eq!(failed_read.code(), ErrorCode::Io);
        assert!(failed_read.context().contains("its locks were lost"), "{failed_read}");
        let failed_write = client.write(handle, 0, Buf::copy_of(b"late")).await.unwrap_err();
        assert_eq!(failed_write.code(), ErrorCode::Io);
        assert_eq!(read(&client, unlocked, 0, 10).await, b"bytes", "this handle had no lock");
    });
}
