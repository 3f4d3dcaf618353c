//! Tests operations of programs that were killed: appends, writes to locked files, and zeros over
//! the bytes of failed writes. Such an operation continues in the mount until all servers have
//! replied.

use crate::{
    FakeCluster, begin_held, create_with, let_tasks_run, read, until, whole_lock, with_client,
};
use skep_client::{
    Client, Closes, FileLock, Forget, HandleId, InodeAttributes, LockKind, LockOutcome, Locks,
    OpenMode, Opens, Writes,
};
use skep_env::{Buf, Task};
use skep_types::{InodeId, TargetId};
use skep_wire::Request;
use skep_wire::metadata::CloseSession;
use skep_wire::storage::WriteChunk;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// An operation that does not wait certainly ends within this time.
const MOMENT: Duration = Duration::from_millis(20);

/// Creates a file of 1000 bytes, and kills a program that appends `data` while storage executes no
/// write.
async fn killed_append(fake: &FakeCluster, client: &Client, data: &Buf) -> (InodeId, HandleId) {
    let (inode, handle) = create_with(client, "log", &[1; 1000]).await;
    client.flush(handle).await.unwrap();
    kill_append(fake, client, handle, data).await;
    (inode, handle)
}

async fn kill_append(fake: &FakeCluster, client: &Client, handle: HandleId, data: &Buf) {
    let (client, data) = (client.clone(), data.clone());
    let appending = async move { client.append(handle, 1000, data).await };
    drop(begin_held::<WriteChunk, _>(fake, appending).await);
}

fn line() -> Buf {
    Buf::copy_of(b"first line\n")
}

async fn waits<T>(task: &mut Task<T>) -> bool {
    skep_env::timeout(MOMENT, task).await.is_none()
}

/// docs/semantics.md 4.1: a process can exit only after the mount has released the buffer of its
/// request.
#[test]
fn killed_append_releases_the_buffer_of_its_program() {
    with_client(|fake, client| async move {
        let data = line();
        let (_, handle) = killed_append(&fake, &client, &data).await;
        until(|| data.handles() == 1).await;
        data.write(0, b"other bytes");
        fake.state.borrow_mut().hold = None;
        client.append(handle, 1000, Buf::copy_of(b"second line\n")).await.unwrap();
        assert_eq!(read(&client, handle, 1000, 100).await, b"first line\nsecond line\n");
    });
}

/// docs/semantics.md 2.9. The kernel has the end of the file from before the killed append.
#[test]
fn append_waits_for_the_append_of_a_killed_program() {
    with_client(|fake, client| async move {
        let (_, handle) = killed_append(&fake, &client, &line()).await;
        let writes = fake.count::<WriteChunk>();
        let appender = client.clone();
        let mut second = skep_env::spawn(async move {
            appender.append(handle, 1000, Buf::copy_of(b"second line\n")).await
        });
        let writer = client.clone();
        let mut third = skep_env::spawn(async move {
            writer.write(handle, 1023, Buf::copy_of(b"third line\n")).await
        });
        assert!(waits(&mut second).await && waits(&mut third).await);
        assert_eq!(fake.count::<WriteChunk>(), writes);
        fake.state.borrow_mut().hold = None;
        second.await.unwrap();
        third.await.unwrap();
        let lines = b"first line\nsecond line\nthird line\n";
        assert_eq!(read(&client, handle, 1000, 100).await, lines);
    });
}

/// docs/semantics.md 2.5, 3.6: if the later write did not wait, a stopped storage target could
/// execute the zeros after it.
#[test]
fn write_waits_until_bytes_of_a_killed_write_are_cleared() {
    with_client(|fake, client| async move {
        let (_, handle) = create_with(&client, "a", &[1; 1000]).await;
        let is_full = |fake: &FakeCluster, is_full| {
            let mut state = fake.state.borrow_mut();
            state.storage.get_mut(&TargetId::new(13)).unwrap().is_full = is_full;
        };
        is_full(&fake, true);
        let writes = fake.count::<WriteChunk>();
        fake.state.borrow_mut().held_reply.of = Some(WriteChunk::ID);
        let data = Buf::copy_of(&[2; 192 << 10]);
        let (writer, bytes) = (client.clone(), data.clone());
        let failing = skep_env::spawn(async move { writer.write(handle, 0, bytes).await });
        // The write has three pieces, and the last one fails.
        until(|| fake.count::<WriteChunk>() == writes + 3).await;
        until(|| fake.state.borrow().held_reply.is_held).await;
        let_tasks_run().await;
        is_full(&fake, false);
        fake.state.borrow_mut().hold = Some(WriteChunk::ID);
        fake.state.borrow_mut().held_reply.is_held = false;
        until(|| fake.count::<WriteChunk>() == writes + 4).await;
        // The program is killed, and the time for which its write continues passes.
        drop(failing);
        until(|| data.handles() == 1).await;
        let writer = client.clone();
        let mut second =
            skep_env::spawn(
                async move { writer.write(handle, 70_000, Buf::copy_of(b"new")).await },
            );
        assert!(waits(&mut second).await);
        assert_eq!(fake.count::<WriteChunk>(), writes + 4, "the write waits for the zeros");
        fake.state.borrow_mut().hold = None;
        second.await.unwrap();
        let found = read(&client, handle, 0, 100_000).await;
        assert_eq!(found.len(), 70_003);
        assert!(found[1000..70_000].iter().all(|byte| *byte == 0));
        assert_eq!(found[70_000..], *b"new");
    });
}

async fn lock(client: &Client, handle: HandleId, kind: LockKind) {
    let outcome = client.set_lock(handle, whole_lock(kind, 5), 0).await.unwrap();
    assert!(matches!(outcome, LockOutcome::Granted { .. }), "{outcome:?}");
}

/// docs/semantics.md 6.6: the next owner of the lock reads the bytes of the append, and the append
/// does not overwrite bytes of this owner.
#[test]
fn locks_of_a_killed_program_end_after_its_append() {
    with_client(|fake, client| async move {
        let locks = |fake: &FakeCluster| fake.with_metadata(1, |metadata| metadata.lock_count());
        let (inode, handle) = create_with(&client, "log", &[1; 1000]).await;
        // Another program has the file open too.
        client.open(inode, OpenMode::Write, false).await.unwrap();
        lock(&client, handle, LockKind::Posix).await;
        kill_append(&fake, &client, handle, &line()).await;
        let unlocker = client.clone();
        let mut unlocking =
            skep_env::spawn(async move { unlocker.unlock_process(handle, 5).await });
        assert!(waits(&mut unlocking).await);
        assert_eq!(locks(&fake), 1);
        fake.state.borrow_mut().hold = None;
        unlocking.await.unwrap();
        assert_eq!(locks(&fake), 0);
        lock(&client, handle, LockKind::Flock).await;
        kill_append(&fake, &client, handle, &line()).await;
        // The kernel sends few requests at a time, so the close must not occupy one of them.
        client.close(handle).await.unwrap();
        let_tasks_run().await;
        assert_eq!(locks(&fake), 1);
        fake.state.borrow_mut().hold = None;
        until(|| locks(&fake) == 0).await;
    });
}

/// docs/semantics.md 6.6: if the locks ended earlier, a storage target could execute the write
/// after a write of the next owner of the lock.
#[test]
fn locks_of_a_killed_program_end_after_its_write() {
    with_client(|fake, client| async move {
        let locks = |fake: &FakeCluster| fake.with_metadata(1, |metadata| metadata.lock_count());
        let (inode, handle) = create_with(&client, "data", &[1; 1000]).await;
        // Another program has the file open too.
        client.open(inode, OpenMode::Write, false).await.unwrap();
        lock(&client, handle, LockKind::Posix).await;
        let forgotten = Arc::new(AtomicBool::new(false));
        let note = Arc::clone(&forgotten);
        client.set_forget(Forget(Box::new(move |_| note.store(true, Ordering::Relaxed))));
        let (writer, data) = (client.clone(), line());
        let bytes = data.clone();
        let writing = async move { writer.write(handle, 500, bytes).await };
        drop(begin_held::<WriteChunk, _>(&fake, writing).await);
        // The program can exit, and the kernel then releases its locks.
        until(|| data.handles() == 1).await;
        let unlocker = client.clone();
        let mut unlocking =
            skep_env::spawn(async move { unlocker.unlock_process(handle, 5).await });
        assert!(waits(&mut unlocking).await);
        // A process without locks closes its descriptor of the file.
        client.unlock_process(handle, 6).await.unwrap();
        assert_eq!(locks(&fake), 1);
        assert!(!forgotten.load(Ordering::Relaxed));
        fake.state.borrow_mut().hold = None;
        unlocking.await.unwrap();
        assert_eq!(locks(&fake), 0);
        // The kernel may have read the old bytes again before the end of the write.
        assert!(forgotten.load(Ordering::Relaxed));
        assert_eq!(read(&client, handle, 500, 11).await, b"first line\n");
    });
}

/// Hole H137 in `docs/tests/holes.md`. docs/semantics.md 6.3: two processes have the same open file
/// description with its lock, and one process is killed while it writes.
#[test]
fn unlock_and_write_wait_for_the_write_of_a_killed_program() {
    with_client(|fake, client| async move {
        let locks = |fake: &FakeCluster| fake.with_metadata(1, |metadata| metadata.lock_count());
        let (_, handle) = create_with(&client, "data", &[1; 1000]).await;
        lock(&client, handle, LockKind::Flock).await;
        let writer = client.clone();
        let writing = async move { writer.write(handle, 500, line()).await };
        drop(begin_held::<WriteChunk, _>(&fake, writing).await);
        let writes = fake.count::<WriteChunk>();
        let writer = client.clone();
        let mut second = skep_env::spawn(async move {
            writer.write(handle, 500, Buf::copy_of(b"other line\n")).await
        });
        assert!(waits(&mut second).await);
        let unlocker = client.clone();
        let unlocked = FileLock { mode: None, ..whole_lock(LockKind::Flock, 5) };
        let mut unlocking =
            skep_env::spawn(async move { unlocker.set_lock(handle, unlocked, 0).await });
        assert!(waits(&mut unlocking).await);
        assert_eq!((fake.count::<WriteChunk>(), locks(&fake)), (writes, 1));
        fake.state.borrow_mut().hold = None;
        second.await.unwrap();
        unlocking.await.unwrap();
        assert_eq!(locks(&fake), 0);
        assert_eq!(read(&client, handle, 500, 11).await, b"other line\n");
    });
}

/// docs/semantics.md 2.9: if the unmount closed the session, another client could append at the
/// same offset, while a storage target still has the killed append in its socket.
#[test]
fn unmount_during_a_killed_append_closes_no_session() {
    with_client(|fake, client| async move {
        let (inode, handle) = killed_append(&fake, &client, &line()).await;
        client.close(handle).await.unwrap();
        client.shutdown().await.ok();
        assert_eq!(fake.count::<CloseSession>(), 0);
        assert!(fake.is_open(inode));
        fake.state.borrow_mut().hold = None;
    });
}
