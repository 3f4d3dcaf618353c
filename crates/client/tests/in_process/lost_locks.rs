//! Tests locks that a metadata target has lost in a power loss of its host.

use crate::{
    FakeCluster, create_with, read, until, until_changes_are_compared, whole_lock, with_client,
};
use skep_client::{
    Client, HandleId, LockKind, LockOutcome, Locks, Names, OpenMode, Opens, Reads, Writes,
};
use skep_env::Buf;
use skep_types::{ErrorCode, InodeId, SessionId};
use skep_wire::file_locks::ListLocks;
use skep_wire::metadata::{KeepAlive, OpenSession};

async fn lock(client: &Client, handle: HandleId) {
    let outcome = client.set_lock(handle, whole_lock(LockKind::Flock, 0), 0).await.unwrap();
    assert!(matches!(outcome, LockOutcome::Granted { .. }), "{outcome:?}");
}

fn locks(fake: &FakeCluster) -> usize {
    fake.with_metadata(1, |metadata| metadata.lock_count())
}

/// docs/semantics.md 6.8.
#[test]
fn lost_lock_is_set_again_after_a_power_loss() {
    with_client(|fake, client| async move {
        let (_, handle) = create_with(&client, "a", b"bytes").await;
        lock(&client, handle).await;
        assert_eq!(locks(&fake), 1);
        fake.with_metadata(1, |metadata| metadata.lose_locks(None));
        until(|| locks(&fake) == 1).await;
        assert_eq!(read(&client, handle, 0, 10).await, b"bytes");
    });
}

/// docs/semantics.md 6.8: another client gets the lock before the mount sets it again.
#[test]
fn handle_of_a_lost_lock_fails_if_another_client_has_the_lock() {
    with_client(|fake, client| async move {
        let (inode, handle) = create_with(&client, "a", b"bytes").await;
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

/// docs/semantics.md 6.8: the background work of the mount has used the first session, and has not
/// noticed that another thread has replaced it.
#[test]
fn target_restart_after_a_lost_session_keeps_newer_locks() {
    with_client(|fake, client| async move {
        let (_, handle) = create_with(&client, "a", b"bytes").await;
        // The renewal of the lease that compares the opens ends before the next renewal begins.
        let until_next_renewal = async || {
            let renewals = fake.count::<KeepAlive>();
            until(|| fake.count::<KeepAlive>() > renewals).await;
        };
        fake.with_metadata(1, |metadata| metadata.start += 1);
        until_changes_are_compared(&fake).await;
        until_next_renewal().await;
        fake.forget_sessions(1);
        client.lookup(InodeId::ROOT, b"a").await.unwrap();
        lock(&client, handle).await;
        fake.with_metadata(1, |metadata| metadata.start += 1);
        until(|| fake.count::<ListLocks>() > 0).await;
        until_next_renewal().await;
        assert_eq!(fake.count::<OpenSession>(), 2, "the restart has ended no session");
        assert_eq!((locks(&fake), read(&client, handle, 0, 10).await), (1, b"bytes".to_vec()));
    });
}
