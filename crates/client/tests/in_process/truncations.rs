//! Tests truncations by another client while this client reads, writes or appends.

use crate::fakes::FakeCluster;
use crate::{begin_held, create, create_with, mount, read, set_size, until, with_client, write};
use skep_client::{Client, Closes, Copies, HandleId, InodeAttributes, Writes};
use skep_env::Buf;
use skep_types::InodeId;
use skep_wire::Request;
use skep_wire::inline::{ReadInline, WriteInline};
use skep_wire::storage::{CopyChunk, ReadChunk, WriteChunk};
use std::time::Duration;

/// Truncates a file on another mount, without opening it. The fake metadata does not notify other
/// clients.
async fn truncate_elsewhere(fake: &FakeCluster, inode: InodeId, size: u64) {
    let other = mount(fake).await;
    let attributes = other.set_attributes(set_size(inode, size)).await.unwrap();
    fake.each_storage(|storage| {
        storage.files.values_mut().for_each(|file| file.truncate(size as usize));
        storage.truncate_generation = attributes.truncate_generation;
    });
}

/// Runs `operation`, and delays its requests of the type `R` until another mount has truncated the
/// file to zero bytes.
async fn truncate_during<R: Request>(
    fake: &FakeCluster,
    inode: InodeId,
    operation: impl Future<Output = ()> + 'static,
) {
    let operation = begin_held::<R, _>(fake, operation).await;
    truncate_elsewhere(fake, inode, 0).await;
    fake.state.borrow_mut().hold = None;
    operation.await;
}

async fn append(client: &Client, handle: HandleId, data: &[u8]) {
    client.append(handle, 1000, Buf::copy_of(data)).await.unwrap();
}

/// docs/semantics.md 2.7 and 2.9.
#[test]
fn append_refused_after_a_truncation_goes_to_the_new_end() {
    with_client(|fake, client| async move {
        let (inode, handle) = create_with(&client, "log", &[1; 1000]).await;
        let appender = client.clone();
        let appending = async move { append(&appender, handle, b"first line\n").await };
        truncate_during::<WriteChunk>(&fake, inode, appending).await;
        assert_eq!(read(&client, handle, 0, 2000).await, b"first line\n");
        client.attributes(inode).await.unwrap();
        assert_eq!(fake.with_metadata(1, |it| it.inodes[&inode].attributes.size), 11);
    });
}

/// docs/semantics.md 2.7: a repeated write keeps its offset.
#[test]
fn write_refused_after_a_truncation_is_repeated_at_its_offset() {
    with_client(|fake, client| async move {
        let (inode, handle) = create_with(&client, "a", &[1; 200_000]).await;
        let writer = client.clone();
        let writing = async move { write(&writer, handle, 60_000, &[2; 10_000]).await };
        truncate_during::<WriteChunk>(&fake, inode, writing).await;
        let found = read(&client, handle, 0, 200_000).await;
        assert_eq!(found.len(), 70_000);
        assert!(found[..60_000].iter().all(|byte| *byte == 0));
        assert!(found[60_000..].iter().all(|byte| *byte == 2));
    });
}

/// docs/semantics.md 2.7: a reader gets the old bytes, or the end of the truncated file.
#[test]
fn read_during_a_truncation_by_another_mount_has_no_zeros() {
    with_client(|fake, client| async move {
        let (inode, handle) = create_with(&client, "a", &[1; 200_000]).await;
        client.flush(handle).await.unwrap();
        let reader = client.clone();
        let reading = async move { assert_eq!(read(&reader, handle, 0, 200_000).await, []) };
        truncate_during::<ReadChunk>(&fake, inode, reading).await;
    });
}

/// docs/semantics.md 2.13: if another mount truncates the source of a copy, the copy has no zeros
/// in place of the removed bytes.
#[test]
fn copy_omits_bytes_of_its_source_truncated_during_the_copy() {
    with_client(|fake, client| async move {
        let (inode, source) = create_with(&client, "a", &[1; 200_000]).await;
        client.flush(source).await.unwrap();
        let (_, copy) = create(&client, "copy").await;
        let copier = client.clone();
        let copying = async move {
            assert_eq!(copier.copy((source, 0), (copy, 0), 200_000).await.unwrap(), 0);
        };
        truncate_during::<CopyChunk>(&fake, inode, copying).await;
        assert_eq!(read(&client, copy, 0, 200_000).await, []);
    });
}

/// docs/semantics.md 2.7, for a file whose bytes metadata stores.
#[test]
fn inline_read_during_a_truncation_has_no_zeros() {
    with_client(|fake, client| async move {
        fake.with_metadata(1, |metadata| metadata.behaviour.inline_bytes = 4096);
        let (inode, handle) = create_with(&client, "a", &[1; 1000]).await;
        let reader = client.clone();
        let reading = async move { assert_eq!(read(&reader, handle, 0, 1000).await, []) };
        truncate_during::<ReadInline>(&fake, inode, reading).await;
    });
}

/// docs/semantics.md 2.9, for a file whose bytes metadata stores.
#[test]
fn inline_append_during_a_truncation_goes_to_the_new_end() {
    with_client(|fake, client| async move {
        fake.with_metadata(1, |metadata| metadata.behaviour.inline_bytes = 4096);
        let (inode, handle) = create_with(&client, "log", &[1; 1000]).await;
        let appender = client.clone();
        let appending = async move { append(&appender, handle, b"first line\n").await };
        truncate_during::<WriteInline>(&fake, inode, appending).await;
        assert_eq!(read(&client, handle, 0, 2000).await, b"first line\n");
    });
}

/// docs/semantics.md 2.7 and 3.6: the requests of a cancelled write may still arrive at storage, so
/// a later truncation must include the chunk files of these requests.
#[test]
fn possible_end_of_a_cancelled_write_is_reported_to_metadata() {
    with_client(|fake, client| async move {
        let (inode, handle) = create_with(&client, "a", &[1; 100]).await;
        let writer = client.clone();
        let cancelled = async move {
            let writing = writer.write(handle, 300_000, Buf::copy_of(&[2; 1000]));
            skep_env::timeout(Duration::from_millis(1), writing).await.is_none()
        };
        let killed = begin_held::<WriteChunk, _>(&fake, cancelled).await;
        assert!(killed.await, "the write was cancelled");
        client.set_attributes(set_size(inode, 50)).await.unwrap();
        assert_eq!(fake.with_metadata(1, |metadata| metadata.reach), 301_000);
        fake.state.borrow_mut().hold = None;
    });
}

/// docs/semantics.md 2.7 and 3.6: the mount forgets the state of the file after its last close, so
/// the close reports the possible end of the cancelled write.
#[test]
fn last_close_reports_the_possible_end_of_a_cancelled_write() {
    with_client(|fake, client| async move {
        let (inode, handle) = create_with(&client, "a", &[1; 100]).await;
        client.flush(handle).await.unwrap();
        let writer = client.clone();
        let writing = async move { writer.write(handle, 300_000, Buf::copy_of(&[2; 1000])).await };
        drop(begin_held::<WriteChunk, _>(&fake, writing).await);
        client.close(handle).await.unwrap();
        // The mount cancels the write after a second.
        until(|| !fake.is_open(inode)).await;
        assert_eq!(fake.with_metadata(1, |metadata| metadata.reach), 301_000);
        fake.state.borrow_mut().hold = None;
    });
}

/// docs/semantics.md 2.5: the client sends a write again after a lost reply, but never after the
/// write has returned.
#[test]
fn write_with_a_lost_reply_is_repeated_before_its_return() {
    with_client(|fake, client| async move {
        let (_, handle) = create(&client, "a").await;
        fake.state.borrow_mut().lose_reply_of = Some(WriteChunk::ID);
        write(&client, handle, 0, b"first").await;
        assert_eq!(fake.count::<WriteChunk>(), 2);
        write(&client, handle, 0, b"other").await;
        assert_eq!(read(&client, handle, 0, 10).await, b"other");
        assert_eq!(fake.count::<WriteChunk>(), 3);
    });
}
