//! Tests the move of inline bytes to storage: when a mount begins the move, the state of the file
//! after a refused move, and how a client with an outdated pattern adopts the new pattern.

use crate::fakes::{FakeCluster, FakeMetadata};
use crate::{
    begin_held, bytes, create, mount, options, read, until, until_changes_are_compared,
    with_client, with_fake, write,
};
use skep_client::{Client, Closes, HandleId, Mount, OpenMode, Opens, Syncs};
use skep_types::{ChunkFileKey, ErrorCode, InodeId};
use skep_wire::Request;
use skep_wire::inline::{ReadInline, RemoveInline, SyncInline, WriteInline};
use skep_wire::metadata::{CloseMany, CloseSession, CompareOpens, Open};
use skep_wire::storage::{SyncChunk, WriteChunk};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const INLINE: usize = 4096;
const LEN: usize = 10_000;

/// Creates an empty file with an inline component.
async fn new_file(fake: &FakeCluster, client: &Client) -> (InodeId, HandleId) {
    fake.with_metadata(1, |metadata| metadata.behaviour.inline_bytes = INLINE as u64);
    create(client, "large").await
}

/// Creates a file with inline bytes and bytes on storage. Its first write fits into the inline
/// component, so the file keeps this component.
async fn grown(fake: &FakeCluster, client: &Client) -> (InodeId, HandleId) {
    let (inode, handle) = new_file(fake, client).await;
    write(client, handle, 0, &bytes(LEN)[..100]).await;
    write(client, handle, 0, &bytes(LEN)).await;
    (inode, handle)
}

/// Changes inline bytes and bytes on storage.
async fn change(client: &Client, handle: HandleId, byte: u8) {
    write(client, handle, 24, &[byte; 4]).await;
    write(client, handle, 6000, &[byte; 4]).await;
}

/// Changes inline bytes and bytes on storage, and syncs the file.
async fn commit(client: &Client, handle: HandleId, byte: u8) {
    change(client, handle, byte).await;
    client.fsync(handle).await.unwrap();
}

/// Creates a file whose next commit moves the inline bytes.
async fn file_before_move(fake: &FakeCluster, client: &Client) -> (InodeId, HandleId) {
    let (inode, handle) = grown(fake, client).await;
    commit(client, handle, 1).await;
    commit(client, handle, 2).await;
    (inode, handle)
}

/// Creates a file with reported changes, whose next fsync moves the inline bytes.
async fn changed_file_before_move(fake: &FakeCluster, client: &Client) -> (InodeId, HandleId) {
    let (inode, handle) = file_before_move(fake, client).await;
    change(client, handle, 3).await;
    client.flush(handle).await.unwrap();
    (inode, handle)
}

/// The bytes of the file after [`commit`].
fn committed(byte: u8) -> Vec<u8> {
    let mut expected = bytes(LEN);
    expected[24..28].fill(byte);
    expected[6000..6004].fill(byte);
    expected
}

/// Returns the key of the chunk file that follows the inline bytes.
fn chunk_file_key(inode: InodeId) -> ChunkFileKey {
    ChunkFileKey { inode, generation: 1, component: 1, index: 0 }
}

/// Returns the bytes of the chunk file that follows the inline bytes.
fn chunk_file(fake: &FakeCluster, inode: InodeId) -> Vec<u8> {
    let key = chunk_file_key(inode);
    let mut found = Vec::new();
    fake.each_storage(|storage| {
        if let Some(file) = storage.files.get(&key) {
            found.clone_from(file);
        }
    });
    found
}

/// Returns the inline bytes of the file at metadata.
fn inline_bytes(fake: &FakeCluster, inode: InodeId) -> Vec<u8> {
    fake.with_metadata(1, |metadata| metadata.inodes[&inode].inline.clone())
}

#[test]
fn repeated_fsyncs_of_metadata_and_data_move_inline_bytes() {
    with_client(|fake, client| async move {
        let (inode, handle) = grown(&fake, &client).await;
        for byte in [1, 2] {
            commit(&client, handle, byte).await;
            assert_eq!(fake.count::<RemoveInline>(), 0);
        }
        commit(&client, handle, 3).await;
        assert_eq!((fake.count::<RemoveInline>(), fake.durable_writes()), (1, 1));
        assert_eq!(chunk_file(&fake, inode), committed(3));
        let inline = (fake.count::<WriteInline>(), fake.count::<SyncInline>());
        commit(&client, handle, 4).await;
        assert_eq!((fake.count::<WriteInline>(), fake.count::<SyncInline>()), inline);
        let reads = fake.count::<ReadInline>();
        assert_eq!(read(&client, handle, 0, LEN).await, committed(4));
        let other = mount(&fake).await;
        let opened = other.open(inode, OpenMode::Read, false).await.unwrap();
        assert_eq!(read(&other, opened.handle, 0, LEN).await, committed(4));
        assert_eq!(fake.count::<ReadInline>(), reads);
    });
}

#[test]
fn fsync_syncs_metadata_and_storage_concurrently() {
    with_client(|fake, client| async move {
        let (_, handle) = grown(&fake, &client).await;
        fake.state.borrow_mut().hold = Some(SyncInline::ID);
        let syncing = client.clone();
        let task = skep_env::spawn(async move { syncing.fsync(handle).await });
        until(|| fake.count::<SyncChunk>() > 0 && fake.count::<SyncInline>() > 0).await;
        fake.state.borrow_mut().hold = None;
        task.await.unwrap();
    });
}

/// A program that opens a database for each transaction syncs it only once or twice after each
/// open. So the first such sync already moves the bytes of a file that was large at the open.
#[test]
fn first_fsync_of_metadata_and_storage_moves_old_inline_bytes() {
    with_client(|fake, client| async move {
        let (inode, handle) = grown(&fake, &client).await;
        client.fsync(handle).await.unwrap();
        client.close(handle).await.unwrap();
        let opened = client.open(inode, OpenMode::Write, false).await.unwrap();
        write(&client, opened.handle, 24, &[1; 4]).await;
        client.fsync(opened.handle).await.unwrap();
        assert_eq!(fake.count::<RemoveInline>(), 0, "only metadata had to sync");
        commit(&client, opened.handle, 2).await;
        assert_eq!(fake.count::<RemoveInline>(), 1);
        assert_eq!(chunk_file(&fake, inode), committed(2));
    });
}

#[test]
fn file_that_another_mount_has_open_keeps_its_inline_bytes() {
    with_client(|fake, client| async move {
        let (inode, handle) = grown(&fake, &client).await;
        client.flush(handle).await.unwrap();
        let other = mount(&fake).await;
        let opened = other.open(inode, OpenMode::Read, false).await.unwrap();
        for byte in 1..=4 {
            commit(&client, handle, byte).await;
            assert_eq!(read(&client, handle, 0, LEN).await, committed(byte));
        }
        assert_eq!(fake.count::<RemoveInline>(), 1, "metadata has refused the move");
        assert_eq!(read(&other, opened.handle, 0, LEN).await, committed(4));
        assert!(!fake.has_moved_inline(inode));
    });
}

#[test]
fn file_keeps_its_inline_bytes_if_storage_is_full() {
    with_client(|fake, client| async move {
        let (inode, handle) = file_before_move(&fake, &client).await;
        change(&client, handle, 3).await;
        fake.each_storage(|storage| storage.is_full = true);
        client.fsync(handle).await.unwrap();
        fake.each_storage(|storage| storage.is_full = false);
        assert_eq!(fake.count::<RemoveInline>(), 0);
        assert_eq!(read(&client, handle, 0, LEN).await, committed(3));
        assert!(!fake.has_moved_inline(inode));
    });
}

/// docs/semantics.md 2.1: this mount has not seen the move of the inline bytes. For example, the
/// reply to its request was lost together with the session.
#[test]
fn client_with_outdated_pattern_finds_moved_inline_bytes() {
    with_client(|fake, client| async move {
        let (inode, handle) = grown(&fake, &client).await;
        let inline = fake.with_metadata(1, |metadata| {
            let inode = metadata.inodes.get_mut(&inode).unwrap();
            inode.has_moved_inline = true;
            std::mem::take(&mut inode.inline)
        });
        let key = chunk_file_key(inode);
        fake.each_storage(|storage| {
            if let Some(file) = storage.files.get_mut(&key) {
                file[..INLINE].copy_from_slice(&inline);
            }
        });
        assert_eq!(read(&client, handle, 0, LEN).await, bytes(LEN));
        let writes = (fake.count::<WriteInline>(), fake.count::<WriteChunk>());
        write(&client, handle, 24, b"new").await;
        let expected = (writes.0, writes.1 + 1);
        assert_eq!((fake.count::<WriteInline>(), fake.count::<WriteChunk>()), expected);
        assert_eq!(chunk_file(&fake, inode)[24..27], *b"new");
    });
}

/// docs/semantics.md 2.1: this mount has not seen the move of the inline bytes. The client repeats
/// a whole write that begins within the inline component and ends beyond it.
#[test]
fn write_across_the_inline_limit_is_repeated_after_a_move() {
    with_client(|fake, client| async move {
        let (inode, handle) = grown(&fake, &client).await;
        fake.with_metadata(1, |metadata| {
            metadata.inodes.get_mut(&inode).unwrap().has_moved_inline = true;
        });
        write(&client, handle, 0, &bytes(LEN)).await;
        assert_eq!(chunk_file(&fake, inode), bytes(LEN));
        assert_eq!(read(&client, handle, 0, LEN).await, bytes(LEN));
    });
}

/// Creates a file, closes it, and opens it again. Another client may have written to it meanwhile,
/// so the client sends a request before its first large write.
async fn opened_empty(fake: &FakeCluster, client: &Client) -> (InodeId, HandleId) {
    let (inode, handle) = new_file(fake, client).await;
    client.close(handle).await.unwrap();
    (inode, client.open(inode, OpenMode::Write, false).await.unwrap().handle)
}

#[test]
fn large_write_to_an_old_empty_file_ends_its_inline_component() {
    with_client(|fake, client| async move {
        let (inode, handle) = opened_empty(&fake, &client).await;
        write(&client, handle, 0, &bytes(LEN)).await;
        assert_eq!((fake.count::<RemoveInline>(), fake.count::<WriteInline>()), (1, 0));
        assert_eq!(chunk_file(&fake, inode), bytes(LEN));
        client.fsync(handle).await.unwrap();
        write(&client, handle, 24, &[1; 4]).await;
        client.fsync(handle).await.unwrap();
        assert_eq!((fake.count::<RemoveInline>(), fake.count::<WriteInline>()), (1, 0));
        assert_eq!(fake.count::<SyncInline>(), 1, "the first sync has confirmed the change");
    });
}

/// docs/semantics.md 3.5.
#[test]
fn fsync_fails_if_the_end_of_an_inline_component_was_reverted() {
    with_client(|fake, client| async move {
        let (inode, handle) = opened_empty(&fake, &client).await;
        write(&client, handle, 0, &bytes(LEN)).await;
        fake.with_metadata(1, |metadata| {
            metadata.inodes.get_mut(&inode).unwrap().has_moved_inline = false;
            metadata.lose_last_record();
        });
        let error = client.fsync(handle).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Io);
        write(&client, handle, 0, &bytes(LEN)).await;
        client.fsync(handle).await.unwrap();
        assert_eq!(fake.count::<WriteInline>(), 1, "the bytes are inline again");
        assert_eq!(read(&client, handle, 0, LEN).await, bytes(LEN));
        assert_eq!(inline_bytes(&fake, inode), bytes(LEN)[..INLINE]);
    });
}

/// docs/semantics.md 3.5: a power loss has reverted the end of the component. Another mount has
/// then written inline bytes, and has moved them over the bytes of this mount.
#[test]
fn fsync_fails_if_another_client_repeats_a_reverted_inline_end() {
    with_client(|fake, client| async move {
        let (_, handle) = opened_empty(&fake, &client).await;
        write(&client, handle, 0, &bytes(LEN)).await;
        // The pattern of the file is the same as before the power loss.
        fake.with_metadata(1, FakeMetadata::lose_last_record);
        assert_eq!(client.fsync(handle).await.unwrap_err().code(), ErrorCode::Io);
        write(&client, handle, 24, b"new").await;
        client.fsync(handle).await.unwrap();
        assert_eq!(read(&client, handle, 24, 3).await, b"new");
    });
}

/// After a move, metadata replies to an open only when the move is durable.
#[test]
fn moved_inline_bytes_in_an_open_reply_need_no_confirmation() {
    with_client(|fake, client| async move {
        let (inode, handle) = new_file(&fake, &client).await;
        write(&client, handle, 0, &bytes(LEN)).await;
        client.fsync(handle).await.unwrap();
        client.close(handle).await.unwrap();
        let other = mount(&fake).await;
        let opened = other.open(inode, OpenMode::Write, false).await.unwrap();
        let syncs = fake.count::<SyncInline>();
        write(&other, opened.handle, 24, &[1; 4]).await;
        other.fsync(opened.handle).await.unwrap();
        assert_eq!(fake.count::<SyncInline>(), syncs);
    });
}

/// If the mount closed the file earlier, another client could move the bytes and write to the chunk
/// file before storage executes the copy.
#[test]
fn close_waits_for_the_storage_reply_to_copied_inline_bytes() {
    with_client(|fake, client| async move {
        let (inode, handle) = changed_file_before_move(&fake, &client).await;
        let syncer = client.clone();
        let synced = async move { syncer.fsync(handle).await };
        let syncing = begin_held::<WriteChunk, _>(&fake, synced).await;
        // The program is killed, and the kernel closes its descriptor.
        drop(syncing);
        let closer = client.clone();
        let closing = skep_env::spawn(async move { closer.close(handle).await });
        let (other, second) = create(&client, "other").await;
        client.close(second).await.unwrap();
        until(|| !fake.is_open(other)).await;
        assert!(fake.is_open(inode), "the copy is on its way");
        fake.state.borrow_mut().hold = None;
        closing.await.unwrap();
        until(|| !fake.is_open(inode)).await;
        assert_eq!(fake.count::<RemoveInline>(), 1);
        assert_eq!(chunk_file(&fake, inode), committed(3));
    });
}

/// If the mount copied the bytes, the close could end the only open that metadata still has, while
/// the copy is on its way.
#[test]
fn inline_bytes_are_not_copied_if_a_close_hides_a_lost_open() {
    with_client(|fake, client| async move {
        let (inode, handle) = file_before_move(&fake, &client).await;
        client.flush(handle).await.unwrap();
        // A program is killed while it opens the file.
        fake.state.borrow_mut().hold = Some(Open::ID);
        let opener = client.clone();
        let opening =
            skep_env::spawn(async move { opener.open(inode, OpenMode::Write, false).await });
        until(|| fake.count::<Open>() > 0).await;
        drop(opening);
        fake.state.borrow_mut().hold = Some(CloseMany::ID);
        until(|| fake.count::<CloseMany>() > 0).await;
        // A power loss has reverted the open of the handle, but not the interrupted open.
        fake.with_metadata(1, |it| {
            let opens = &mut it.inodes.get_mut(&inode).unwrap().opens;
            opens.values_mut().for_each(|count| *count -= 1);
        });
        commit(&client, handle, 3).await;
        assert_eq!((fake.count::<RemoveInline>(), fake.durable_writes()), (0, 0));
        fake.state.borrow_mut().hold = None;
        until(|| !fake.is_open(inode)).await;
    });
}

/// The unmount has found no move in progress, so it may close the session at any moment.
#[test]
fn inline_bytes_are_not_copied_after_an_unmount_has_begun() {
    with_client(|fake, client| async move {
        let (_, handle) = changed_file_before_move(&fake, &client).await;
        let ending = client.clone();
        let ended = async move { ending.shutdown().await };
        let unmounting = begin_held::<CloseSession, _>(&fake, ended).await;
        client.fsync(handle).await.unwrap();
        assert_eq!((fake.count::<RemoveInline>(), fake.durable_writes()), (0, 0));
        fake.state.borrow_mut().hold = None;
        unmounting.await.ok();
    });
}

/// The threads of a mount end before it leaves the cluster, but a storage target may still have the
/// copy in its socket.
#[test]
fn unmount_during_a_copy_of_inline_bytes_closes_no_session() {
    with_fake(|fake| async move {
        let mount = Mount::new(options(&fake)).await.unwrap();
        skep_env::spawn(Arc::clone(&mount).run_background()).detach();
        let client = Client::new(Arc::clone(&mount), 0).unwrap();
        let (inode, handle) = changed_file_before_move(&fake, &client).await;
        let writes = fake.count::<WriteChunk>();
        fake.state.borrow_mut().hold = Some(WriteChunk::ID);
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            skep_env::block_on(async move {
                let worker = Client::new(mount, 1).unwrap();
                let _syncing = skep_env::spawn(async move { worker.fsync(handle).await });
                until(|| ends.load(Ordering::Acquire)).await;
            })
            .unwrap();
        });
        until(|| fake.count::<WriteChunk>() > writes).await;
        is_over.store(true, Ordering::Release);
        until(|| thread.is_finished()).await;
        thread.join().unwrap();
        client.shutdown().await.ok();
        client.close(handle).await.unwrap();
        assert_eq!((fake.count::<CloseSession>(), fake.count::<RemoveInline>()), (0, 0));
        assert!(fake.is_open(inode));
        fake.state.borrow_mut().hold = None;
    });
}

/// Another client could have the file open, and could move the bytes at the same time.
#[test]
fn inline_bytes_are_not_copied_if_metadata_lost_the_open() {
    with_client(|fake, client| async move {
        let (inode, handle) = file_before_move(&fake, &client).await;
        let compared = fake.count::<CompareOpens>();
        fake.with_metadata(1, |it| it.inodes.get_mut(&inode).unwrap().opens.clear());
        commit(&client, handle, 3).await;
        assert_eq!(fake.count::<CompareOpens>(), compared + 1);
        assert_eq!((fake.count::<RemoveInline>(), fake.durable_writes()), (0, 0));
        let asked = fake.with_metadata(1, |metadata| metadata.asked_durably.clone());
        assert!(asked.contains(&CompareOpens::ID), "no power loss may revert the open later");
    });
}

/// docs/semantics.md 3.5: storage acknowledges the write after the mount has found out that a power
/// loss has reverted the end of the inline component.
#[test]
fn write_during_a_reverted_move_of_inline_bytes_is_repeated() {
    with_client(|fake, client| async move {
        let (inode, handle) = opened_empty(&fake, &client).await;
        let before = fake.metadata_state();
        let writer = client.clone();
        let writing = async move { write(&writer, handle, 0, &bytes(LEN)).await };
        let task = begin_held::<WriteChunk, _>(&fake, writing).await;
        fake.lose_power(&before);
        until_changes_are_compared(&fake).await;
        fake.state.borrow_mut().hold = None;
        task.await;
        assert_eq!(inline_bytes(&fake, inode), bytes(LEN)[..INLINE]);
        assert_eq!(client.fsync(handle).await.unwrap_err().code(), ErrorCode::Io);
        client.fsync(handle).await.unwrap();
        assert_eq!(read(&client, handle, 0, LEN).await, bytes(LEN));
    });
}
