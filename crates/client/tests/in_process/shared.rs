//! Tests files that several clients have open while one client truncates the file or a write fails.

use crate::fakes::FakeCluster;
use crate::{
    begin_held, create, create_with, let_tasks_run, mount, read, set_size, until, with_client,
    write,
};
use skep_client::{Client, Closes, HandleId, InodeAttributes, OpenMode, Opens, Reads, Writes};
use skep_env::Buf;
use skep_types::{ErrorCode, InodeId, Result, TargetId};
use skep_wire::Request;
use skep_wire::metadata::{AwaitTruncation, Open, ReportWritten, TrimFile};
use skep_wire::sharing::{AcknowledgeNotifications, Notification};
use skep_wire::storage::WriteChunk;

/// Creates a file, and opens it on a second mount, which then treats the file as shared.
async fn shared(fake: &FakeCluster, client: &Client) -> (InodeId, HandleId, Client, HandleId) {
    fake.with_metadata(1, |metadata| metadata.behaviour.shares_files = true);
    let (inode, handle) = create(client, "shared").await;
    let other = mount(fake).await;
    let opened = other.open(inode, OpenMode::Write, false).await.unwrap();
    assert!(opened.is_shared);
    (inode, handle, other, opened.handle)
}

/// Truncates all chunk files of the fake cluster, since its metadata target does not truncate them.
fn truncate_chunk_files(fake: &FakeCluster, size: usize) {
    fake.each_storage(|storage| storage.files.values_mut().for_each(|file| file.truncate(size)));
}

/// docs/semantics.md 2.3 and 2.7.
#[test]
fn write_after_truncation_by_another_mount_extends_the_file() {
    with_client(|fake, client| async move {
        let (inode, _, other, there) = shared(&fake, &client).await;
        write(&other, there, 0, &[1; 1000]).await;
        client.set_attributes(set_size(inode, 0)).await.unwrap();
        truncate_chunk_files(&fake, 0);
        // The second mount still has the size from before the truncation.
        write(&other, there, 100, &[2; 10]).await;
        let size = fake.with_metadata(1, |it| it.inodes[&inode].attributes.size);
        assert_eq!(size, 110, "other mounts read up to this size");
        assert_eq!(read(&other, there, 0, 1000).await.len(), 110);
        write(&other, there, 50, &[3; 10]).await;
        let reports = fake.count::<ReportWritten>();
        write(&other, there, 60, &[3; 10]).await;
        assert_eq!(fake.count::<ReportWritten>(), reports, "the write does not move the end");
    });
}

/// docs/semantics.md 2.7: another mount truncates the file while the write is in progress, so
/// storage may have removed some bytes of the write.
#[test]
fn write_during_a_truncation_by_another_mount_is_repeated() {
    with_client(|fake, client| async move {
        let (inode, _, other, there) = shared(&fake, &client).await;
        write(&other, there, 0, &[1; 200_000]).await;
        let writer = other.clone();
        let writing = async move { write(&writer, there, 1000, &[2; 100_000]).await };
        let task = begin_held::<AwaitTruncation, _>(&fake, writing).await;
        client.set_attributes(set_size(inode, 0)).await.unwrap();
        truncate_chunk_files(&fake, 0);
        fake.state.borrow_mut().hold = None;
        task.await;
        let found = read(&other, there, 0, 200_000).await;
        assert_eq!(found.len(), 101_000);
        assert!(found[..1000].iter().all(|byte| *byte == 0));
        assert!(found[1000..].iter().all(|byte| *byte == 2), "all bytes of the write are there");
    });
}

/// docs/semantics.md 3.6 and principle 1: the client removes the bytes of a failed write, but no
/// byte that storage has acknowledged to another client.
#[test]
fn failed_write_keeps_acknowledged_bytes_of_other_clients() {
    with_client(|fake, client| async move {
        let (inode, _, other, there) = shared(&fake, &client).await;
        let third = mount(&fake).await;
        let opened = third.open(inode, OpenMode::Write, false).await.unwrap();
        // Storage has acknowledged these bytes, but metadata has not recorded the new end yet.
        let writer = other.clone();
        let writing = async move { write(&writer, there, 0, &[7; 4096]).await };
        let task = begin_held::<ReportWritten, _>(&fake, writing).await;
        let set_full = |is_full| {
            let mut state = fake.state.borrow_mut();
            state.storage.get_mut(&TargetId::new(13)).unwrap().is_full = is_full;
        };
        set_full(true);
        let error = third.write(opened.handle, 0, Buf::copy_of(&[9; 300_000])).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::NoSpace);
        set_full(false);
        if fake.count::<TrimFile>() > 0 {
            truncate_chunk_files(&fake, 0);
        }
        fake.state.borrow_mut().hold = None;
        task.await;
        assert_eq!(read(&other, there, 0, 10_000).await, [7; 4096]);
        write(&other, there, 400_000, b"end").await;
        let found = read(&other, there, 0, 400_000).await;
        assert!(found[4096..].iter().all(|byte| *byte == 0), "no byte of the failed write");
    });
}

/// Begins an open that truncates the file. Returns when the request of the open has arrived at
/// metadata. Metadata replies only after the test has reset `hold`. The task returns the handle.
async fn begin_truncating_open(
    fake: &FakeCluster,
    client: &Client,
    inode: InodeId,
) -> skep_env::Task<HandleId> {
    let opener = client.clone();
    let opening = async move { opener.open(inode, OpenMode::Write, true).await.unwrap().handle };
    begin_held::<Open, _>(fake, opening).await
}

/// An append to a file that an open of the same mount is truncating.
struct Append {
    inode: InodeId,
    opening: skep_env::Task<HandleId>,
    appending: skep_env::Task<Result<()>>,
}

impl Append {
    /// Begins an open that truncates a file with 1000 bytes, and an append at its old end.
    async fn begin(fake: &FakeCluster, client: &Client) -> Self {
        let (inode, handle) = create_with(client, "log", &[1; 1000]).await;
        let opening = begin_truncating_open(fake, client, inode).await;
        let appender = client.clone();
        let appending = skep_env::spawn(async move {
            appender.append(handle, 1000, Buf::copy_of(b"first line\n")).await
        });
        Self { inode, opening, appending }
    }
}

/// docs/semantics.md 2.7 and 2.9.
#[test]
fn append_that_waits_for_a_truncation_goes_to_the_new_end() {
    with_client(|fake, client| async move {
        let Append { opening, appending, .. } = Append::begin(&fake, &client).await;
        let writes = fake.count::<WriteChunk>();
        let_tasks_run().await;
        assert_eq!(fake.count::<WriteChunk>(), writes, "the append waits for the truncation");
        truncate_chunk_files(&fake, 0);
        fake.state.borrow_mut().hold = None;
        let truncated = opening.await;
        appending.await.unwrap();
        assert_eq!(read(&client, truncated, 0, 2000).await, b"first line\n");
    });
}

/// docs/design/0008-shared-files.md: the open that truncates the file waits until this mount has
/// acknowledged that the file becomes shared, so the acknowledgement must not wait for the append.
#[test]
fn acknowledgement_does_not_wait_for_a_blocked_append() {
    with_client(|fake, client| async move {
        let Append { inode, opening, appending } = Append::begin(&fake, &client).await;
        let_tasks_run().await;
        fake.notify_of_open(inode);
        until(|| fake.count::<AcknowledgeNotifications>() > 0).await;
        assert!(client.is_shared(inode));
        // The program of the append is killed.
        drop(appending);
        truncate_chunk_files(&fake, 0);
        fake.state.borrow_mut().hold = None;
        let truncated = opening.await;
        assert_eq!(read(&client, truncated, 0, 2000).await, b"");
    });
}

/// docs/semantics.md 2.9: if the mount closed the file earlier, another client could append without
/// a notification to this mount. Storage could then write the bytes of the killed append to the
/// same place.
#[test]
fn last_close_waits_for_the_append_of_a_killed_program() {
    with_client(|fake, client| async move {
        let (inode, handle) = create_with(&client, "log", &[1; 1000]).await;
        client.flush(handle).await.unwrap();
        let appender = client.clone();
        let appending =
            async move { appender.append(handle, 1000, Buf::copy_of(b"last line\n")).await };
        let killed = begin_held::<WriteChunk, _>(&fake, appending).await;
        // The program is killed, and the kernel closes its descriptor.
        drop(killed);
        client.close(handle).await.unwrap();
        let (other, second) = create(&client, "other").await;
        client.close(second).await.unwrap();
        until(|| !fake.is_open(other)).await;
        assert!(fake.is_open(inode), "the append is on its way");
        fake.state.borrow_mut().hold = None;
        until(|| !fake.is_open(inode)).await;
        assert_eq!(fake.with_metadata(1, |it| it.inodes[&inode].attributes.size), 1010);
    });
}

/// Sends the notification with the number `number` to the mount. Returns when the mount has
/// acknowledged it.
async fn notify(fake: &FakeCluster, number: usize, inode: InodeId) {
    let notification = Notification { number: number as u64, inode };
    fake.state.borrow_mut().notifications.push(notification);
    until(|| fake.count::<AcknowledgeNotifications>() == number).await;
}

/// Creates a file that is shared, and whose times the mount has not reported yet.
async fn shared_and_changed(fake: &FakeCluster, client: &Client) -> InodeId {
    let (inode, handle) = create_with(client, "shared", &[1; 1000]).await;
    notify(fake, 1, inode).await;
    // This write changes only the times, which the mount reports later.
    write(client, handle, 0, &[2; 10]).await;
    inode
}

/// Two mounts may renew their sessions at the same time, and each renewal may wait for an
/// acknowledgement of the other mount.
#[test]
fn acknowledgement_does_not_wait_for_a_long_renewal() {
    with_client(|fake, client| async move {
        let inode = shared_and_changed(&fake, &client).await;
        let reports = fake.count::<ReportWritten>();
        fake.state.borrow_mut().hold = Some(Open::ID);
        fake.forget_sessions(1);
        until(|| fake.count::<Open>() > 0).await;
        notify(&fake, 2, inode).await;
        assert_eq!(fake.count::<ReportWritten>(), reports, "the session is still being renewed");
        fake.state.borrow_mut().hold = None;
        client.attributes(inode).await.unwrap();
        // The mount reports the times after the renewal, before it reads the attributes, or at both
        // moments.
        assert!(fake.count::<ReportWritten>() > reports, "the mount reports the times later");
    });
}

/// Hole H69 (docs/tests/holes.md): after a power loss, metadata executes no report before the
/// replayed open of the other mount, which waits for this acknowledgement.
#[test]
fn acknowledgement_does_not_wait_for_a_report_of_times() {
    with_client(|fake, client| async move {
        let inode = shared_and_changed(&fake, &client).await;
        fake.state.borrow_mut().hold = Some(ReportWritten::ID);
        let reports = fake.count::<ReportWritten>();
        notify(&fake, 2, inode).await;
        assert!(fake.count::<ReportWritten>() > reports, "the report is on its way");
        fake.state.borrow_mut().hold = None;
    });
}

/// Hole H183 in `docs/tests/holes.md`. docs/semantics.md 2.3: if this mount acknowledged without a
/// report, the other mount would use the smaller size at metadata. It would not read the
/// acknowledged bytes, and its appends would overwrite them.
#[test]
fn notification_is_acknowledged_only_after_a_report_of_the_size() {
    with_client(|fake, client| async move {
        // After a second start, the fake accepts gaps between the sequences of a slot. The refused
        // reports leave such gaps.
        fake.with_metadata(1, |it| it.start += 1);
        let (inode, _) = create_with(&client, "a", b"bytes").await;
        fake.state.borrow_mut().refusal = Some((ReportWritten::ID, ErrorCode::DeviceFailed));
        fake.notify_of_open(inode);
        until(|| fake.count::<ReportWritten>() > 1).await;
        assert_eq!(fake.count::<AcknowledgeNotifications>(), 0);
        fake.state.borrow_mut().refusal = None;
        until(|| fake.count::<AcknowledgeNotifications>() == 1).await;
        assert_eq!(fake.with_metadata(1, |it| it.inodes[&inode].attributes.size), 5);
    });
}
