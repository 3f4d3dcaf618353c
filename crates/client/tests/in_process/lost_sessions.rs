//! Tests requests whose reply arrives after their session was lost. Another thread has received the
//! reply that metadata has ended the session, and has replaced the session. In these tests, the
//! fake holds the reply of the first request.

use crate::fakes::FakeCluster;
use crate::{begin_late, create, until, whole_lock, with_client, write};
use skep_client::{Client, Closes, HandleId, LockKind, LockOutcome, Locks, OpenMode, Opens};
use skep_types::{InodeId, SessionId};
use skep_wire::Request;
use skep_wire::file_locks::SetLock;
use skep_wire::metadata::{CloseMany, KeepAlive, Open};

fn opens(fake: &FakeCluster) -> usize {
    fake.with_metadata(1, |it| it.open_count())
}

/// Creates a file and closes it.
async fn closed_file(fake: &FakeCluster, client: &Client) -> InodeId {
    let (inode, handle) = create(client, "a").await;
    client.close(handle).await.unwrap();
    until(|| opens(fake) == 0).await;
    inode
}

/// Removes the client from the cluster, and waits until it has joined again.
async fn evict(fake: &FakeCluster, client: &Client) {
    let before = client.mount().node();
    fake.state.borrow_mut().clients.clear();
    until(|| client.mount().node() != before).await;
}

/// Ends the sessions of the mount, waits until its background work has opened another one, and lets
/// the held reply arrive.
async fn replace_session(fake: &FakeCluster) {
    fake.forget_sessions(1);
    until(|| fake.with_metadata(1, |it| it.session_count()) == 1).await;
    fake.state.borrow_mut().held_reply.is_held = false;
}

/// Hole H67 (docs/tests/holes.md). docs/semantics.md 3.8, 4.6 and 4.9: metadata must have an open
/// for each handle, otherwise another client could remove or change the file unnoticed.
#[test]
fn open_with_a_late_reply_is_repeated_in_the_next_session() {
    for is_evicted in [false, true] {
        with_client(move |fake, client| async move {
            let inode = closed_file(&fake, &client).await;
            let opener = client.clone();
            let opening = async move { opener.open(inode, OpenMode::Write, false).await.unwrap() };
            let task = begin_late::<Open, _>(&fake, opening).await;
            if is_evicted {
                evict(&fake, &client).await;
            }
            replace_session(&fake).await;
            let handle = task.await.handle;
            assert_eq!(opens(&fake), 1);
            write(&client, handle, 0, b"bytes").await;
            client.close(handle).await.unwrap();
            assert_eq!(opens(&fake), 0);
        });
    }
}

/// Hole H67. docs/semantics.md 6.7: metadata has released the lock with its session, and another
/// client has got it.
#[test]
fn lock_with_a_late_reply_is_not_granted() {
    with_client(|fake, client| async move {
        let (_, handle) = create(&client, "a").await;
        let lock = whole_lock(LockKind::Flock, 0);
        let locker = client.clone();
        let locking = async move { locker.set_lock(handle, lock, 0).await.unwrap() };
        let task = begin_late::<SetLock, _>(&fake, locking).await;
        fake.with_metadata(1, |it| it.lose_locks(Some(SessionId::new(77))));
        replace_session(&fake).await;
        assert_eq!(task.await, LockOutcome::Refused);
    });
}

/// Hole H67. The renewal has opened the file again for the handle that is being closed, so the
/// close is repeated.
#[test]
fn close_with_a_late_reply_is_repeated_in_the_next_session() {
    with_client(|fake, client| async move {
        let (_, handle) = create(&client, "a").await;
        let closer = client.clone();
        let closing = async move { closer.close(handle).await.unwrap() };
        let task = begin_late::<CloseMany, _>(&fake, closing).await;
        task.await;
        replace_session(&fake).await;
        until(|| fake.count::<CloseMany>() == 2 && opens(&fake) == 0).await;
    });
}

/// Begins to close a handle. The fake does not execute the close until the test has reset `hold`.
async fn begin_to_close(fake: &FakeCluster, client: &Client, handle: HandleId) {
    fake.state.borrow_mut().hold = Some(CloseMany::ID);
    client.close(handle).await.unwrap();
    until(|| fake.count::<CloseMany>() > 0).await;
}

/// Hole H68 (docs/tests/holes.md). docs/semantics.md 3.8 and 4.9: after an eviction, the mount does
/// not open the file again for a handle for writing. A program opens the file again before the
/// close of this handle is repeated.
#[test]
fn repeated_close_after_an_eviction_ends_no_newer_open() {
    with_client(|fake, client| async move {
        let (inode, old) = create(&client, "a").await;
        begin_to_close(&fake, &client, old).await;
        evict(&fake, &client).await;
        fake.forget_sessions(1);
        let new = client.open(inode, OpenMode::Write, false).await.unwrap().handle;
        assert_eq!(opens(&fake), 1);
        fake.state.borrow_mut().hold = None;
        // Wait for several renewals of the lease, so that the mount has time to send several
        // messages.
        let renewals = fake.count::<KeepAlive>();
        until(|| fake.count::<KeepAlive>() > renewals + 2).await;
        assert_eq!(opens(&fake), 1, "the close of the old handle ends no open");
        write(&client, new, 0, b"bytes").await;
    });
}
