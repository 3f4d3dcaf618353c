//! Acknowledged changes that a power loss of metadata has reverted.

use crate::fakes::{FakeCluster, FakeMetadata};
use crate::{
    NEW, begin_held, begin_late, create, create_with, options, read, set_size, until,
    until_changes_are_compared, whole_lock, with_client, with_fake, write,
};
use skep_client::{
    Client, Closes, HandleId, InodeAttributes, LockKind, LockOutcome, Locks, Mount, Names,
    OpenMode, Opens, SetAttributes, Syncs, Writes,
};
use skep_env::Buf;
use skep_types::{ErrorCode, InodeId};
use skep_wire::Request;
use skep_wire::file_locks::SetLock;
use skep_wire::inline::SyncInline;
use skep_wire::metadata::{CompareSlots, EndReplay, KeepAlive, Link, Replay, Unlink};
use std::sync::Arc;

const ROOT: InodeId = InodeId::ROOT;

async fn unlink(client: &Client, name: &[u8]) -> Result<(), ErrorCode> {
    client.unlink(ROOT, name).await.map_err(|error| error.code())
}

/// Creates the file `a` with synced bytes and the link `b`. Afterwards a power loss reverts the
/// link.
async fn file_with_reverted_link(fake: &FakeCluster, client: &Client) -> (InodeId, HandleId) {
    let (inode, handle) = create_with(client, "a", b"bytes").await;
    client.fsync(handle).await.unwrap();
    let before = fake.metadata_state();
    client.link(inode, ROOT, b"b").await.unwrap();
    fake.lose_power(&before);
    (inode, handle)
}

/// Hole H20 (docs/tests/holes.md): a power loss reverts `link(a, b)`, and the program then calls
/// `unlink(a)`. If the client sent this unlink, the unlink would remove the file.
#[test]
fn unlink_fails_if_a_power_loss_reverted_a_link_of_the_file() {
    with_client(|fake, client| async move {
        let (inode, handle) = file_with_reverted_link(&fake, &client).await;
        assert_eq!(unlink(&client, b"a").await, Err(ErrorCode::Io));
        assert!(fake.count::<Unlink>() <= 1, "the client does not repeat the refused change");
        assert_eq!(client.lookup(ROOT, b"a").await.unwrap().inode, inode);
        // The program that syncs the file and the program that syncs the directory each get the
        // error once.
        assert_eq!(client.fsync(handle).await.unwrap_err().code(), ErrorCode::Io);
        client.fsync(handle).await.unwrap();
        assert_eq!(client.sync_names(ROOT).await.unwrap_err().code(), ErrorCode::Io);
        client.sync_names(ROOT).await.unwrap();
        client.link(inode, ROOT, b"b").await.unwrap();
        unlink(&client, b"a").await.unwrap();
    });
}

/// Hole H53 (docs/tests/holes.md): the first request after the power loss is a sync.
#[test]
fn sync_right_after_a_power_loss_reports_a_reverted_link() {
    with_client(|fake, client| async move {
        file_with_reverted_link(&fake, &client).await;
        assert_eq!(client.sync_names(ROOT).await.unwrap_err().code(), ErrorCode::Io);
        client.sync_names(ROOT).await.unwrap();
    });
}

/// docs/semantics.md 3.2: the directory of the target was restored from a copy that is older than
/// the session of the mount.
#[test]
fn change_missing_in_a_restored_copy_is_reported() {
    with_client(|fake, client| async move {
        let (inode, _) = create(&client, "a").await;
        let mut copy = fake.metadata_state();
        copy.forget_sessions();
        client.link(inode, ROOT, b"b").await.unwrap();
        fake.lose_power(&copy);
        assert_eq!(unlink(&client, b"a").await, Err(ErrorCode::Io));
        assert_eq!(client.lookup(ROOT, b"a").await.unwrap().inode, inode);
        assert_eq!(client.sync_names(ROOT).await.unwrap_err().code(), ErrorCode::Io);
        client.sync_names(ROOT).await.unwrap();
    });
}

/// Hole H20, with a target that has the time to replay: the mount replays the lost link before it
/// sends the unlink. So the file keeps its other name, and no call fails.
#[test]
fn lost_link_is_replayed_before_the_next_unlink() {
    with_client(|fake, client| async move {
        fake.with_metadata(1, |it| it.behaviour.replays = 9);
        let (inode, handle) = create(&client, "a").await;
        let before = fake.metadata_state();
        client.link(inode, ROOT, b"b").await.unwrap();
        fake.lose_power(&before);
        unlink(&client, b"a").await.unwrap();
        assert_eq!(client.lookup(ROOT, b"b").await.unwrap().inode, inode);
        client.fsync(handle).await.unwrap();
        client.sync_names(ROOT).await.unwrap();
        let executed = fake.with_metadata(1, |it| it.executed.clone());
        let of_names =
            executed.iter().map(|it| it.0).filter(|it| [Link::ID, Unlink::ID].contains(it));
        assert_eq!(of_names.collect::<Vec<_>>(), [Link::ID, Unlink::ID]);
        assert_eq!(fake.count::<Replay>(), 1);
    });
}

/// The target loses power a second time, after it has executed the lost link again.
#[test]
fn replayed_link_is_replayed_again_after_the_next_power_loss() {
    with_client(|fake, client| async move {
        fake.with_metadata(1, |it| it.behaviour.replays = 9);
        let (inode, _) = create(&client, "a").await;
        let before = fake.metadata_state();
        client.link(inode, ROOT, b"b").await.unwrap();
        for replays in 1..=2 {
            fake.lose_power(&before);
            until(|| fake.count::<EndReplay>() == replays).await;
            assert_eq!(fake.count::<Replay>(), replays);
        }
        unlink(&client, b"a").await.unwrap();
        assert_eq!(client.lookup(ROOT, b"b").await.unwrap().inode, inode);
    });
}

/// The thread of a replay ends before the replay, as at an unmount.
#[test]
fn replay_continues_on_another_thread_if_its_thread_ends() {
    with_fake(|fake| async move {
        let mount = Mount::new(options(&fake)).await.unwrap();
        let client = Client::new(Arc::clone(&mount), 0).unwrap();
        let _ = create(&client, "a").await;
        fake.with_metadata(1, |it| it.start += 1);
        fake.state.borrow_mut().hold = Some(EndReplay::ID);
        let (stop, stopped) = skep_env::Mailbox::new(1).unwrap();
        let replaying = std::thread::spawn(move || {
            skep_env::block_on(async move {
                let client = Client::new(mount, 1).unwrap();
                let _making =
                    skep_env::spawn(async move { client.make_directory(ROOT, b"d", NEW).await });
                stopped.receive().await.unwrap();
            })
        });
        until(|| fake.count::<EndReplay>() == 1).await;
        stop.send(()).unwrap();
        until(|| replaying.is_finished()).await;
        replaying.join().unwrap().unwrap();
        fake.state.borrow_mut().hold = None;
        client.make_directory(ROOT, b"e", NEW).await.unwrap();
        assert_eq!(fake.count::<EndReplay>(), 2);
    });
}

/// The target executes the unlink, loses power before it replies, and has then lost both the link
/// and the unlink. If the client repeated the unlink, it would remove the last name of the file.
#[test]
fn unlink_in_flight_at_a_power_loss_keeps_the_file() {
    with_client(|fake, client| async move {
        let (inode, _) = create(&client, "a").await;
        let before = fake.metadata_state();
        client.link(inode, ROOT, b"b").await.unwrap();
        fake.state.borrow_mut().start_again_after = Some((Unlink::ID, Some(before)));
        assert_eq!(unlink(&client, b"a").await, Err(ErrorCode::Io));
        assert_eq!(client.lookup(ROOT, b"a").await.unwrap().inode, inode);
    });
}

#[test]
fn request_in_flight_at_a_kill_of_metadata_gets_its_reply() {
    with_client(|fake, client| async move {
        let (inode, handle) = create(&client, "a").await;
        client.link(inode, ROOT, b"b").await.unwrap();
        fake.state.borrow_mut().start_again_after = Some((Unlink::ID, None));
        unlink(&client, b"a").await.unwrap();
        let executed = fake.with_metadata(1, |it| it.executed.clone());
        assert_eq!(executed.iter().filter(|it| it.0 == Unlink::ID).count(), 1);
        client.fsync(handle).await.unwrap();
    });
}

/// The client sends the unlink before it has received the target's new start number. The client
/// compares the slots before the target processes the unlink.
#[test]
fn unlink_sent_before_the_client_detects_a_loss_is_refused() {
    with_client(|fake, client| async move {
        let (inode, _) = create(&client, "a").await;
        let before = fake.metadata_state();
        client.link(inode, ROOT, b"b").await.unwrap();
        let unlinking = client.clone();
        let unlinked = async move { unlink(&unlinking, b"a").await };
        let task = begin_held::<Unlink, _>(&fake, unlinked).await;
        fake.lose_power(&before);
        until_changes_are_compared(&fake).await;
        fake.state.borrow_mut().hold = None;
        assert_eq!(task.await, Err(ErrorCode::Io));
        assert_eq!(client.lookup(ROOT, b"a").await.unwrap().inode, inode);
    });
}

/// Lets metadata lose its power while a reply of the type `R` is on its way to the mount. Returns
/// the result of the operation after the mount has compared its changes and then got the reply.
async fn with_late_reply<R: Request, T: 'static>(
    fake: &FakeCluster,
    operation: impl Future<Output = T> + 'static,
) -> T {
    let before = fake.metadata_state();
    let task = begin_late::<R, _>(fake, operation).await;
    fake.lose_power(&before);
    until_changes_are_compared(fake).await;
    fake.state.borrow_mut().held_reply.is_held = false;
    task.await
}

/// Hole H70 (docs/tests/holes.md). docs/semantics.md 3.2.
#[test]
fn lost_link_with_a_late_reply_is_sent_again() {
    with_client(|fake, client| async move {
        let (inode, _) = create(&client, "a").await;
        let linker = client.clone();
        let linking = async move { linker.link(inode, ROOT, b"b").await.unwrap() };
        with_late_reply::<Link, _>(&fake, linking).await;
        assert_eq!(client.lookup(ROOT, b"b").await.unwrap().inode, inode);
        client.sync_names(ROOT).await.unwrap();
    });
}

/// Hole H70 in `docs/tests/holes.md`: another client could get the lost lock, against
/// `docs/semantics.md` 6.8.
#[test]
fn lost_lock_with_a_late_reply_is_set_again() {
    with_client(|fake, client| async move {
        let (_, handle) = create(&client, "a").await;
        let lock = whole_lock(LockKind::Flock, 0);
        let locker = client.clone();
        let locking = async move { locker.set_lock(handle, lock, 0).await.unwrap() };
        let outcome = with_late_reply::<SetLock, _>(&fake, locking).await;
        assert!(matches!(outcome, LockOutcome::Granted { .. }), "{outcome:?}");
        assert_eq!(fake.with_metadata(1, |it| it.lock_count()), 1);
    });
}

/// The unlink names neither inode of the reverted link, so the client must find the file by a
/// lookup of the unlinked name.
#[test]
fn idle_mount_detects_changes_that_a_power_loss_reverted() {
    with_client(|fake, client| async move {
        let (inode, _) = create(&client, "a").await;
        let directory = client.make_directory(ROOT, b"d", NEW).await.unwrap().inode;
        client.sync_names(ROOT).await.unwrap();
        let before = fake.metadata_state();
        client.link(inode, directory, b"b").await.unwrap();
        fake.lose_power(&before);
        until_changes_are_compared(&fake).await;
        assert_eq!(unlink(&client, b"a").await, Err(ErrorCode::Io));
        assert_eq!(fake.count::<Unlink>(), 0, "the change was not sent");
        unlink(&client, b"a").await.unwrap();
    });
}

#[test]
fn kill_of_metadata_causes_no_report_of_lost_changes() {
    with_client(|fake, client| async move {
        let (inode, handle) = create(&client, "a").await;
        client.link(inode, ROOT, b"b").await.unwrap();
        fake.with_metadata(1, |it| it.start += 1);
        unlink(&client, b"a").await.unwrap();
        client.fsync(handle).await.unwrap();
        client.sync_names(ROOT).await.unwrap();
        let renewals = fake.count::<KeepAlive>();
        until(|| fake.count::<KeepAlive>() > renewals + 2).await;
        assert!(fake.count::<CompareSlots>() >= 1);
    });
}

/// The mount ends the inline component by itself, so no program would get the error.
#[test]
fn internal_request_does_not_use_up_an_error_for_programs() {
    with_client(|fake, client| async move {
        fake.with_metadata(1, |it| it.behaviour.inline_bytes = 4096);
        let (inode, created) = create(&client, "a").await;
        // Open the file again. The mount sends a request to end the component only if it has not
        // created the file with the same handle.
        client.close(created).await.unwrap();
        let handle = client.open(inode, OpenMode::Write, false).await.unwrap().handle;
        let change = SetAttributes { permissions: Some(0o600), size: None, ..set_size(inode, 0) };
        let before = fake.metadata_state();
        client.set_attributes(change.clone()).await.unwrap();
        fake.lose_power(&before);
        write(&client, handle, 0, &[1; 10_000]).await;
        assert!(fake.has_moved_inline(inode));
        let error = client.set_attributes(change.clone()).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Io);
        client.set_attributes(change).await.unwrap();
    });
}

/// Creates a file with two inline writes, which the returned state of metadata does not have. After
/// a power loss, the target executes up to `replays` lost changes again.
pub(crate) async fn two_inline_writes(
    fake: &FakeCluster,
    client: &Client,
    replays: usize,
) -> (HandleId, FakeMetadata) {
    fake.with_metadata(1, |it| {
        it.behaviour.inline_bytes = 4096;
        it.behaviour.replays = replays;
    });
    let (_, handle) = create(client, "a").await;
    let before = fake.metadata_state();
    write(client, handle, 0, b"one").await;
    write(client, handle, 3, b"two").await;
    (handle, before)
}

/// Lets metadata lose its power, and waits until the mount has ended its replay number `number`.
pub(crate) async fn lose_and_replay(fake: &FakeCluster, before: &FakeMetadata, number: usize) {
    fake.lose_power(before);
    until(|| fake.count::<EndReplay>() == number).await;
}

/// docs/semantics.md 3.5: the mount has repeated all bytes that metadata has lost, also after the
/// second power loss, so nothing is missing.
#[test]
fn fsync_succeeds_if_all_lost_inline_writes_were_replayed() {
    with_client(|fake, client| async move {
        let (handle, before) = two_inline_writes(&fake, &client, 2).await;
        for number in 1..=2 {
            lose_and_replay(&fake, &before, number).await;
            assert_eq!(fake.count::<Replay>(), 2 * number);
        }
        client.fsync(handle).await.unwrap();
        assert_eq!(read(&client, handle, 0, 9).await, b"onetwo");
        let syncs = fake.count::<SyncInline>();
        client.fsync(handle).await.unwrap();
        assert_eq!((syncs, fake.count::<SyncInline>()), (1, 1), "the writes were synced");
    });
}

#[test]
fn fsync_fails_once_if_one_inline_write_was_not_replayed() {
    with_client(|fake, client| async move {
        let (handle, before) = two_inline_writes(&fake, &client, 1).await;
        lose_and_replay(&fake, &before, 1).await;
        assert_eq!(client.fsync(handle).await.unwrap_err().code(), ErrorCode::Io);
        client.fsync(handle).await.unwrap();
        write(&client, handle, 3, b"two").await;
        client.fsync(handle).await.unwrap();
        assert_eq!(read(&client, handle, 0, 9).await, b"onetwo");
    });
}

/// The mount has replaced the marks of both writes, and then cannot replay them a second time.
#[test]
fn fsync_fails_if_replayed_inline_writes_are_lost_again() {
    with_client(|fake, client| async move {
        let (handle, mut before) = two_inline_writes(&fake, &client, 2).await;
        lose_and_replay(&fake, &before, 1).await;
        before.behaviour.replays = 0;
        lose_and_replay(&fake, &before, 2).await;
        assert_eq!(client.fsync(handle).await.unwrap_err().code(), ErrorCode::Io);
        client.fsync(handle).await.unwrap();
    });
}

/// The target refuses the request of the `fsync`, which names the former start, so the mount sends
/// the request again after the replay. The repeated request still has the marks of the lost writes.
#[test]
fn fsync_in_flight_at_a_power_loss_checks_the_replayed_writes() {
    for (replays, syncs) in [(2, 3), (1, 3), (0, 2)] {
        with_client(move |fake, client| async move {
            let (handle, before) = two_inline_writes(&fake, &client, replays).await;
            let syncing = client.clone();
            let sync = async move { syncing.fsync(handle).await };
            let task = begin_held::<SyncInline, _>(&fake, sync).await;
            lose_and_replay(&fake, &before, 1).await;
            fake.state.borrow_mut().hold = None;
            let synced = task.await.map_err(|error| error.code());
            assert_eq!(synced, if replays == 2 { Ok(()) } else { Err(ErrorCode::Io) });
            assert_eq!(fake.count::<SyncInline>(), syncs);
        });
    }
}

/// Creates a file and writes to it. Afterwards a power loss reverts the open, and another client
/// replaces the stripe pattern.
async fn file_with_replaced_pattern(fake: &FakeCluster, client: &Client) -> (InodeId, HandleId) {
    let (inode, handle) = create_with(client, "a", b"bytes").await;
    fake.with_metadata(1, |it| {
        it.inodes.get_mut(&inode).unwrap().opens.clear();
        it.generation += 1;
    });
    (inode, handle)
}

/// Returns the size of the file at metadata, without unreported writes.
pub(crate) fn size_at_metadata(fake: &FakeCluster, inode: InodeId) -> u64 {
    fake.with_metadata(1, |it| it.inodes[&inode].attributes.size)
}

/// docs/semantics.md 3.5: the power loss has reverted the open too, so another client could set the
/// stripe pattern of the empty file. No reader finds the bytes of this mount in the new pattern.
#[test]
fn fsync_fails_if_another_client_has_replaced_the_pattern() {
    with_client(|fake, client| async move {
        let (inode, handle) = file_with_replaced_pattern(&fake, &client).await;
        assert_eq!(client.fsync(handle).await.unwrap_err().code(), ErrorCode::Stale);
        let size = || size_at_metadata(&fake, inode);
        assert_eq!(size(), 0, "the file has no zeros in place of the bytes");
        let repeated = client.write(handle, 0, Buf::copy_of(b"bytes")).await;
        assert_eq!(repeated.unwrap_err().code(), ErrorCode::Stale);
        client.close(handle).await.unwrap();
        assert_eq!(size(), 0);
        let again = client.open(inode, OpenMode::Write, false).await.unwrap().handle;
        write(&client, again, 0, b"bytes").await;
        client.fsync(again).await.unwrap();
        assert_eq!((size(), read(&client, again, 0, 9).await), (5, b"bytes".to_vec()));
    });
}

/// docs/semantics.md 3.5: the program closes the file without `fsync`, and the mount reports the
/// end of the writes together with the close.
#[test]
fn close_fails_if_another_client_has_replaced_the_pattern() {
    with_client(|fake, client| async move {
        let (inode, handle) = file_with_replaced_pattern(&fake, &client).await;
        assert_eq!(client.close(handle).await.unwrap_err().code(), ErrorCode::Stale);
        let size = size_at_metadata(&fake, inode);
        assert_eq!(size, 0, "the file has no zeros in place of the bytes");
    });
}
