//! Tests renewals of a lost session that fail at first, or during which programs use files.

use crate::{FakeCluster, create, create_with, mount, read, until, with_client};
use skep_client::{InodeAttributes, Names, Reads};
use skep_env::Buf;
use skep_types::{ErrorCode, InodeId};
use skep_wire::Request;
use skep_wire::management::Heartbeat;
use skep_wire::metadata::OpenSession;

/// Ends all sessions at metadata, which then refuses to open a session until the test has reset
/// `refusal`.
fn lose_sessions(fake: &FakeCluster) {
    fake.state.borrow_mut().refusal = Some((OpenSession::ID, ErrorCode::Io));
    fake.forget_sessions(1);
}

/// docs/semantics.md 4.6 and 4.9: another client removes one file before the renewal succeeds, and
/// the other file after that.
#[test]
fn files_are_opened_again_after_a_failed_renewal() {
    with_client(|fake, client| async move {
        let (_, kept) = create_with(&client, "kept", b"data").await;
        let (inode, removed) = create_with(&client, "removed", b"data").await;
        lose_sessions(&fake);
        fake.with_metadata(1, |it| {
            it.entries.retain(|_, entry| *entry != inode);
            it.inodes.remove(&inode);
        });
        let error = client.lookup(InodeId::ROOT, b"kept").await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Io);
        fake.state.borrow_mut().refusal = None;
        client.lookup(InodeId::ROOT, b"kept").await.unwrap();
        let opens = || fake.with_metadata(1, |it| it.open_count());
        assert_eq!(opens(), 1, "the operation uses the session only after the files are open");
        let other = mount(&fake).await;
        other.unlink(InodeId::ROOT, b"kept").await.unwrap();
        assert_eq!(read(&client, kept, 0, 10).await, b"data");
        let error = client.read(removed, 0, Buf::new(10)).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Stale);
    });
}

/// Each waiting operation repeats the renewal, one after the other, and returns its error without a
/// further wait.
#[test]
fn failed_session_renewal_fails_each_waiting_operation() {
    with_client(|fake, client| async move {
        let _ = create(&client, "a").await;
        lose_sessions(&fake);
        let looking_up: Vec<_> = (0..50)
            .map(|_| {
                let client = client.clone();
                skep_env::spawn(async move { client.lookup(InodeId::ROOT, b"a").await })
            })
            .collect();
        for task in looking_up {
            assert_eq!(task.await.unwrap_err().code(), ErrorCode::Io);
        }
        fake.state.borrow_mut().refusal = None;
        client.lookup(InodeId::ROOT, b"a").await.unwrap();
    });
}

/// docs/semantics.md 4.6.
#[test]
fn idle_mount_repeats_a_failed_renewal() {
    with_client(|fake, client| async move {
        let _ = create(&client, "a").await;
        lose_sessions(&fake);
        until(|| fake.count::<OpenSession>() > 3).await;
        fake.state.borrow_mut().refusal = None;
        until(|| fake.with_metadata(1, |it| it.open_count()) == 1).await;
        assert_eq!(fake.with_metadata(1, |it| it.session_count()), 1);
    });
}

/// If the mount replaced a session that metadata is still opening, metadata would have two sessions
/// of this client. When the lease of the unused session runs out, metadata would evict the client.
#[test]
fn read_during_a_renewal_waits_for_the_new_session() {
    with_client(|fake, client| async move {
        let (inode, handle) = create_with(&client, "a", b"data").await;
        client.note_shown(&client.attributes(inode).await.unwrap());
        assert!(client.attributes_for_reading(handle).await.is_some());
        fake.state.borrow_mut().hold = Some(OpenSession::ID);
        fake.forget_sessions(1);
        until(|| fake.count::<OpenSession>() == 2).await;
        let heartbeats = fake.count::<Heartbeat>();
        let reading = client.clone();
        let task = skep_env::spawn(async move { reading.attributes_for_reading(handle).await });
        // Wait for several heartbeats, so that metadata and the mount have time for several
        // messages.
        until(|| fake.count::<Heartbeat>() >= heartbeats + 4).await;
        fake.state.borrow_mut().hold = None;
        task.await;
        until(|| fake.with_metadata(1, |it| it.open_count()) == 1).await;
        assert_eq!(fake.count::<OpenSession>(), 2, "the mount has opened one new session");
        assert_eq!(fake.with_metadata(1, |it| it.session_count()), 1);
    });
}
