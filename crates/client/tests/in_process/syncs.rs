//! Tests the effects of `fsync` and of writes with `O_SYNC`, and the number of their requests.

use crate::{
    FakeCluster, begin_held, begin_late, bytes, create, create_with, fakes, let_tasks_run,
    set_size, until, whole_lock, with_client, write,
};
use skep_client::{
    Client, Closes, FileLock, HandleId, InodeAttributes, LockKind, LockMode, Locks, Names,
    OpenMode, Opens, SetTime, Syncs, XattrMode, Xattrs,
};
use skep_env::Task;
use skep_types::{
    Attributes, ChunkFileKey, ErrorCode, GroupId, HostIncarnation, InodeId, Timestamp,
};
use skep_wire::Request;
use skep_wire::metadata::{
    GetAttributes, ReportWritten, SetAttributes, SetXattr, SyncAll, TruncatedChunk,
};
use skep_wire::storage::{SyncChunk, WriteChunk};
use std::time::Duration;

/// Returns two counts of requests that have arrived: reports and queries of attributes at metadata,
/// and syncs of chunk files at storage.
fn requests(fake: &FakeCluster) -> (usize, usize) {
    let at_metadata = fake.count::<ReportWritten>() + fake.count::<GetAttributes>();
    (at_metadata, fake.count::<SyncChunk>())
}

/// Begins an `fsync` in a new task.
fn begin_fsync(client: &Client, handle: HandleId) -> Task<()> {
    let client = client.clone();
    skep_env::spawn(async move { client.fsync(handle).await.unwrap() })
}

/// Creates a file of 5,000 bytes and syncs it.
async fn synced_file(client: &Client, name: &str) -> (InodeId, HandleId) {
    let (inode, handle) = create(client, name).await;
    write(client, handle, 0, &bytes(5000)).await;
    client.fsync(handle).await.unwrap();
    (inode, handle)
}

fn at_metadata(fake: &FakeCluster, inode: InodeId) -> Attributes {
    fake.with_metadata(1, |it| it.inodes[&inode].attributes.clone())
}

fn last_change(fake: &FakeCluster) -> Option<(u16, bool)> {
    fake.with_metadata(1, |it| it.executed.last().copied())
}

/// docs/semantics.md 3.3: the report of a new file is durable, and a second `fsync` sends no
/// requests.
#[test]
fn fsync_of_a_new_file_syncs_its_chunks_then_reports_durably() {
    with_client(|fake, client| async move {
        let (_, handle) = create_with(&client, "a", &bytes(100_000)).await;
        client.fsync(handle).await.unwrap();
        assert_eq!(requests(&fake), (1, 2), "100,000 bytes lie in two chunks");
        assert_eq!(last_change(&fake), Some((ReportWritten::ID, true)));
        client.fsync(handle).await.unwrap();
        assert_eq!(requests(&fake), (1, 2), "bytes, size and name are durable");
    });
}

/// docs/semantics.md 3.3: the report of a new end does not wait for storage.
#[test]
fn fsync_of_an_append_syncs_storage_and_metadata_in_parallel() {
    with_client(|fake, client| async move {
        let (inode, handle) = synced_file(&client, "a").await;
        write(&client, handle, 5000, &bytes(10)).await;
        fake.state.borrow_mut().hold = Some(SyncChunk::ID);
        let syncing = begin_fsync(&client, handle);
        until(|| at_metadata(&fake, inode).size == 5010).await;
        until(|| requests(&fake) == (2, 2)).await;
        assert!(!syncing.is_finished(), "the bytes are not durable yet");
        fake.state.borrow_mut().hold = None;
        syncing.await;
        assert_eq!(last_change(&fake), Some((ReportWritten::ID, true)));
    });
}

/// docs/semantics.md 2.4 and 3.3: the size and the name are durable already, and the mount reports
/// the time of the write to metadata a moment later.
#[test]
fn fsync_of_an_overwrite_sends_metadata_only_the_times() {
    with_client(|fake, client| async move {
        let (inode, handle) = synced_file(&client, "a").await;
        let before = at_metadata(&fake, inode).change_counter;
        // During the syncs of this test, metadata does not reply to reports.
        fake.state.borrow_mut().hold = Some(ReportWritten::ID);
        for _ in 0..5 {
            write(&client, handle, 100, &bytes(10)).await;
            client.fsync(handle).await.unwrap();
        }
        assert_eq!(fake.count::<SyncChunk>(), 6);
        assert_eq!(fake.count::<GetAttributes>(), 0);
        fake.state.borrow_mut().hold = None;
        until(|| at_metadata(&fake, inode).change_counter > before).await;
        assert_eq!(last_change(&fake), Some((ReportWritten::ID, false)));
    });
}

/// docs/semantics.md 6.6: before a mount releases a lock, it reports the writes under this lock. A
/// database releases its locks between two calls of `fsync`. So the report runs while storage syncs
/// the data, and the program does not wait for it.
#[test]
fn write_under_a_lock_is_reported_during_its_fsync() {
    with_client(|fake, client| async move {
        let (_, handle) = synced_file(&client, "a").await;
        let set = async |mode: Option<LockMode>| {
            let lock = FileLock { mode, ..whole_lock(LockKind::Posix, 7) };
            client.set_lock(handle, lock, 0).await.unwrap();
        };
        set(Some(LockMode::Exclusive)).await;
        set(None).await;
        set(Some(LockMode::Exclusive)).await;
        write(&client, handle, 100, &bytes(10)).await;
        let before = fake.count::<ReportWritten>();
        let syncing = client.clone();
        let sync = async move { syncing.fsync(handle).await.unwrap() };
        let sync = begin_held::<SyncChunk, _>(&fake, sync).await;
        until(|| fake.count::<ReportWritten>() > before).await;
        fake.state.borrow_mut().hold = None;
        sync.await;
        set(None).await;
        assert_eq!(fake.count::<ReportWritten>(), before + 1, "the release has nothing to report");
    });
}

/// Returns whether a task waits while metadata holds the reply to a report. Lets metadata send the
/// reply afterwards.
async fn waits_for_report<T>(fake: &FakeCluster, task: &mut Task<T>) -> bool {
    let waits = skep_env::timeout(Duration::from_millis(20), task).await.is_none();
    fake.state.borrow_mut().held_reply.is_held = false;
    waits
}

/// Begins a `stat` after a write. Metadata executes its report of the write, and holds the reply.
async fn begin_stat(
    fake: &FakeCluster,
    client: &Client,
    (inode, handle): (InodeId, HandleId),
) -> Task<()> {
    write(client, handle, 100, &bytes(10)).await;
    let reader = client.clone();
    let stat = async move { reader.attributes(inode).await.map(|_| ()).unwrap() };
    begin_late::<ReportWritten, _>(fake, stat).await
}

/// docs/semantics.md 2.4 and 1.16: the report of a `stat` that arrives after the change would
/// replace the times, and would remove the capability.
#[test]
fn change_of_times_waits_for_the_report_of_a_stat() {
    with_client(|fake, client| async move {
        let (inode, handle) = synced_file(&client, "a").await;
        let stat = begin_stat(&fake, &client, (inode, handle)).await;
        let modified = Some(SetTime { now: false, at: Timestamp { seconds: 5, nanoseconds: 0 } });
        let change = SetAttributes { size: None, modified, ..set_size(inode, 0) };
        let changer = client.clone();
        let mut changing = skep_env::spawn(async move { changer.set_attributes(change).await });
        assert!(waits_for_report(&fake, &mut changing).await);
        changing.await.unwrap();
        stat.await;
        let stat = begin_stat(&fake, &client, (inode, handle)).await;
        // The fake cannot execute this request, so let the request wait at the fake.
        fake.state.borrow_mut().hold = Some(SetXattr::ID);
        let setter = client.clone();
        let mut setting = skep_env::spawn(async move {
            let name = b"security.capability";
            setter.set_xattr(inode, name, b"value", XattrMode::Any, false).await
        });
        assert!(waits_for_report(&fake, &mut setting).await);
        assert_eq!(fake.count::<SetXattr>(), 0);
        until(|| fake.count::<SetXattr>() > 0).await;
        stat.await;
    });
}

/// If a `stat` waited for each close, it could wait for ever while other programs close the file
/// again and again.
#[test]
fn stat_waits_for_no_close_after_the_report_of_its_writes() {
    with_client(|fake, client| async move {
        let (inode, handle) = synced_file(&client, "a").await;
        write(&client, handle, 100, &bytes(10)).await;
        let closer = client.clone();
        let closing = async move { closer.flush(handle).await };
        let closing = begin_late::<ReportWritten, _>(&fake, closing).await;
        let reader = client.clone();
        let stat = skep_env::spawn(async move { reader.attributes(inode).await });
        let_tasks_run().await;
        // This close reports the write too.
        client.flush(handle).await.unwrap();
        stat.await.unwrap();
        assert!(fake.state.borrow().held_reply.is_held, "the first close is still in progress");
        fake.state.borrow_mut().held_reply.is_held = false;
        closing.await.unwrap();
    });
}

/// docs/semantics.md 3.3: a new name, new attributes and a new open may not be durable, so the next
/// sync makes them durable.
#[test]
fn fsync_syncs_metadata_after_changes_that_may_not_be_durable() {
    with_client(|fake, client| async move {
        let (inode, handle) = synced_file(&client, "a").await;
        let asked = || fake.with_metadata(1, |it| it.asked_durably.len());
        client.exchange(InodeId::ROOT, b"a", InodeId::ROOT, b"a").await.unwrap();
        client.fsync(handle).await.unwrap();
        assert_eq!(asked(), 1, "the exchange may not be durable");
        client.fsync(handle).await.unwrap();
        assert_eq!(asked(), 1);
        let change = SetAttributes { permissions: Some(0o600), ..set_size(inode, 0) };
        client.set_attributes(SetAttributes { size: None, ..change }).await.unwrap();
        client.fsync(handle).await.unwrap();
        assert_eq!(asked(), 2, "the permissions may not be durable");
        let again = client.open(inode, OpenMode::Write, false).await.unwrap().handle;
        client.fsync(again).await.unwrap();
        assert_eq!(asked(), 3, "another client may have moved the end meanwhile");
    });
}

/// docs/semantics.md 3.3: the names of a directory are at one group, so the other groups need to
/// sync only if this mount has changed something there.
#[test]
fn fsync_of_a_directory_syncs_only_groups_with_changes() {
    with_client(|fake, client| async move {
        let [_, other] = fakes::METADATA_GROUPS;
        let there = fake.with_metadata(other, |it| *it.inodes.keys().next().unwrap());
        // Syncs a directory. Returns the number of syncs that metadata has received.
        let sync = async |directory: InodeId| {
            let before = fake.count::<SyncAll>();
            client.sync_names(directory).await.unwrap();
            fake.count::<SyncAll>() - before
        };
        create(&client, "a").await;
        assert_eq!(sync(InodeId::ROOT).await, 1);
        let change = SetAttributes { permissions: Some(0o700), ..set_size(there, 0) };
        client.set_attributes(SetAttributes { size: None, ..change }).await.unwrap();
        assert_eq!(sync(InodeId::ROOT).await, 2, "the change may not be durable");
        assert_eq!(sync(InodeId::ROOT).await, 1);
        create(&client, "b").await;
        assert_eq!(sync(there).await, 2, "the new name may not be durable");
        assert_eq!(sync(there).await, 1);
    });
}

/// docs/semantics.md 3.5.
#[test]
fn fsync_repeats_a_size_report_that_metadata_has_lost() {
    with_client(|fake, client| async move {
        let (inode, handle) = synced_file(&client, "a").await;
        write(&client, handle, 5000, &bytes(10)).await;
        client.flush(handle).await.unwrap();
        assert_eq!(last_change(&fake), Some((ReportWritten::ID, false)));
        fake.with_metadata(1, |it| it.inodes.get_mut(&inode).unwrap().attributes.size = 5000);
        client.fsync(handle).await.unwrap();
        assert_eq!(at_metadata(&fake, inode).size, 5010);
        assert_eq!(last_change(&fake), Some((ReportWritten::ID, true)));
    });
}

/// docs/semantics.md 3.3: storage syncs the chunk files of the write before it replies.
#[test]
fn write_with_o_sync_needs_no_further_sync_of_storage() {
    with_client(|fake, client| async move {
        let (_, handle) = synced_file(&client, "a").await;
        client.set_synced(handle);
        let before = fake.count::<SyncChunk>();
        fake.state.borrow_mut().hold = Some(ReportWritten::ID);
        for _ in 0..3 {
            write(&client, handle, 7, b"durable").await;
            client.fsync(handle).await.unwrap();
        }
        assert_eq!((fake.count::<SyncChunk>(), fake.count::<GetAttributes>()), (before, 0));
        assert!(fake.durable_writes() == 3 && fake.count::<WriteChunk>() == 4);
        fake.state.borrow_mut().hold = None;
        write(&client, handle, 5000, b"the end moves").await;
        client.fsync(handle).await.unwrap();
        assert_eq!(fake.count::<SyncChunk>(), before);
        assert_eq!(last_change(&fake), Some((ReportWritten::ID, true)));
    });
}

/// docs/semantics.md 3.5: storage loses an earlier write that is not durable, and the write with
/// `O_SYNC` detects the loss.
#[test]
fn write_with_o_sync_detects_the_loss_of_an_earlier_write() {
    with_client(|fake, client| async move {
        let (inode, handle) = synced_file(&client, "a").await;
        let synced = client.open(inode, OpenMode::Write, false).await.unwrap().handle;
        client.set_synced(synced);
        write(&client, handle, 0, b"lost").await;
        fake.each_storage(|storage| storage.incarnation += 1);
        write(&client, synced, 10, b"kept").await;
        assert_eq!(client.fsync(synced).await.unwrap_err().code(), ErrorCode::Io);
        assert_eq!(client.fsync(handle).await.unwrap_err().code(), ErrorCode::Io);
        client.fsync(handle).await.unwrap();
    });
}

/// docs/semantics.md 3.3.
#[test]
fn fsync_repeats_reports_lost_in_a_power_loss() {
    with_client(|fake, client| async move {
        let (inode, handle) = create_with(&client, "a", &bytes(5000)).await;
        client.flush(handle).await.unwrap();
        let size = |fake: &crate::FakeCluster| {
            fake.with_metadata(1, |it| it.inodes[&inode].attributes.size)
        };
        assert_eq!(size(&fake), 5000);
        fake.with_metadata(1, |it| it.inodes.get_mut(&inode).unwrap().attributes.size = 0);
        client.fsync(handle).await.unwrap();
        assert_eq!(size(&fake), 5000);
        let executed = fake.with_metadata(1, |it| it.executed.last().copied());
        assert_eq!(executed, Some((ReportWritten::ID, true)));
    });
}

/// docs/semantics.md 3.4.
#[test]
fn fsync_makes_writes_through_a_closed_handle_durable() {
    with_client(|fake, client| async move {
        let (inode, handle) = create_with(&client, "a", b"x").await;
        client.close(handle).await.unwrap();
        let again = client.open(inode, OpenMode::Read, false).await.unwrap();
        client.fsync(again.handle).await.unwrap();
        assert_eq!(fake.count::<SyncChunk>(), 1);
    });
}

/// docs/semantics.md 3.5.
#[test]
fn storage_power_loss_fails_fsync_once_for_each_handle() {
    with_client(|fake, client| async move {
        let (inode, handle) = create(&client, "a").await;
        let second = client.open(inode, OpenMode::Read, false).await.unwrap().handle;
        write(&client, handle, 0, b"lost").await;
        fake.each_storage(|storage| storage.incarnation += 1);
        let error = client.fsync(handle).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Io);
        assert!(error.context().contains("lost power"), "{error}");
        assert_eq!(client.fsync(second).await.unwrap_err().code(), ErrorCode::Io);
        client.fsync(handle).await.unwrap();
        write(&client, handle, 0, b"kept").await;
        client.fsync(handle).await.unwrap();
        client.fsync(second).await.unwrap();
    });
}

/// docs/semantics.md 3.5: a power loss of a storage host could restore truncated bytes after a
/// successful `fsync`, if `fsync` did not sync the chunk files of the truncation.
#[test]
fn fsync_syncs_truncated_chunk_files() {
    with_client(|fake, client| async move {
        let (inode, handle) = create(&client, "a").await;
        let key = |index| ChunkFileKey { inode, generation: 1, component: 0, index };
        let named = |index: u16, incarnation| {
            let group = GroupId::new(fakes::STORAGE_GROUPS[usize::from(index)]);
            let incarnation = HostIncarnation::new(incarnation);
            TruncatedChunk { key: key(index), group, incarnation }
        };
        let mut incarnation = 0;
        fake.each_storage(|storage| incarnation = storage.incarnation);
        let both = vec![named(0, incarnation), named(1, incarnation)];
        fake.with_metadata(1, |it| it.behaviour.truncated = both);
        client.set_attributes(set_size(inode, 0)).await.unwrap();
        client.fsync(handle).await.unwrap();
        assert_eq!(fake.count::<SyncChunk>(), 2);
        // The storage host loses power between this truncation and the sync.
        client.set_attributes(set_size(inode, 0)).await.unwrap();
        fake.each_storage(|storage| storage.incarnation += 1);
        assert_eq!(client.fsync(handle).await.unwrap_err().code(), ErrorCode::Io);
        client.close(handle).await.unwrap();
        // Truncate the file twice more: by an open with `O_TRUNC`, and while the file is not open.
        let again = vec![named(0, incarnation + 1)];
        fake.with_metadata(1, |it| it.behaviour.truncated = again);
        client.set_attributes(set_size(inode, 0)).await.unwrap();
        let opened = client.open(inode, OpenMode::Write, true).await.unwrap();
        let before = fake.count::<SyncChunk>();
        client.fsync(opened.handle).await.unwrap();
        assert_eq!(fake.count::<SyncChunk>(), before + 1);
        client.set_attributes(set_size(inode, 0)).await.unwrap();
        client.sync_all().await.unwrap();
        assert_eq!(fake.count::<SyncChunk>(), before + 2);
    });
}

/// Creates a file with 16 KiB of inline bytes, and writes them `count` times. Returns whether one
/// of the writes had the durable flag, so that the program waited for a sync.
async fn write_inline_bytes(fake: &FakeCluster, client: &Client, count: usize) -> bool {
    fake.with_metadata(1, |it| it.behaviour.inline_bytes = 16 << 10);
    let (_, handle) = create(client, "a").await;
    for _ in 0..count {
        write(client, handle, 0, &bytes(16 << 10)).await;
    }
    fake.with_metadata(1, |it| it.executed.iter().any(|(_, is_durable)| *is_durable))
}

/// The changes that the mount keeps for a replay are limited to 4 MiB. The mount syncs them when
/// half of this limit is reached, and in this test metadata does not reply to the sync.
#[test]
fn writer_does_not_wait_for_a_background_sync_of_changes() {
    with_client(|fake, client| async move {
        fake.state.borrow_mut().hold = Some(SyncAll::ID);
        assert!(!write_inline_bytes(&fake, &client, 200).await);
        until(|| fake.count::<SyncAll>() == 1).await;
        fake.state.borrow_mut().hold = None;
    });
}

/// The writes have more than twice as many bytes as the mount may keep.
#[test]
fn syncs_in_the_background_keep_the_list_of_changes_short() {
    with_client(|fake, client| async move {
        assert!(!write_inline_bytes(&fake, &client, 600).await);
        assert!(fake.count::<SyncAll>() >= 4, "one sync for each 128 writes");
    });
}
