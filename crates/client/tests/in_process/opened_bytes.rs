//! Tests reads of the bytes that metadata sends in its reply to the open of a small file.

use crate::fakes::FakeCluster;
use crate::{bytes, create_with, mount, read, set_size, with_client, write};
use skep_client::{Client, Closes, HandleId, InodeAttributes, OpenMode, Opens};
use skep_types::InodeId;
use skep_wire::inline::ReadInline;

const LEN: usize = 3901;

/// Creates a file of inline bytes on `client`. Opens it for reading on a new mount, whose kernel
/// has no pages of the file.
async fn opened(fake: &FakeCluster, client: &Client) -> (InodeId, Client, HandleId) {
    fake.with_metadata(1, |metadata| metadata.behaviour.inline_bytes = 4096);
    let (inode, handle) = create_with(client, "small", &bytes(LEN)).await;
    client.close(handle).await.unwrap();
    let other = mount(fake).await;
    let opened = other.open(inode, OpenMode::Read, false).await.unwrap();
    (inode, other, opened.handle)
}

#[test]
fn first_read_of_a_small_file_after_its_open_needs_no_request() {
    with_client(|fake, client| async move {
        let (inode, other, handle) = opened(&fake, &client).await;
        assert_eq!(read(&other, handle, 0, 1000).await, bytes(LEN)[..1000]);
        assert_eq!(read(&other, handle, 1000, 4096).await, bytes(LEN)[1000..]);
        assert_eq!(fake.count::<ReadInline>(), 0);
        assert_eq!(read(&other, handle, 0, 4096).await, bytes(LEN));
        assert_eq!(fake.count::<ReadInline>(), 1, "the mount has dropped the bytes");
        other.close(handle).await.unwrap();
        // The kernel probably has the pages now, so the first open requests no bytes. The read
        // shows that the kernel lacks the pages, so the second open requests the bytes again.
        for requests in [2, 2] {
            let again = other.open(inode, OpenMode::Read, false).await.unwrap();
            assert!(again.keep_cache);
            assert_eq!(read(&other, again.handle, 0, 4096).await, bytes(LEN));
            assert_eq!(fake.count::<ReadInline>(), requests);
            other.close(again.handle).await.unwrap();
        }
    });
}

/// docs/semantics.md 2.1.
#[test]
fn read_returns_a_write_of_the_same_mount_after_the_open() {
    with_client(|fake, client| async move {
        let (inode, other, handle) = opened(&fake, &client).await;
        let writer = other.open(inode, OpenMode::Write, false).await.unwrap();
        write(&other, writer.handle, 10, b"new").await;
        let mut expected = bytes(LEN);
        expected[10..13].copy_from_slice(b"new");
        assert_eq!(read(&other, handle, 0, 4096).await, expected);
    });
}

/// docs/semantics.md 1.2: another mount truncates the file without opening it.
#[test]
fn read_after_an_open_sees_a_truncation_by_another_mount() {
    with_client(|fake, client| async move {
        let (inode, other, handle) = opened(&fake, &client).await;
        client.set_attributes(set_size(inode, 5)).await.unwrap();
        client.set_attributes(set_size(inode, LEN as u64)).await.unwrap();
        other.attributes(inode).await.unwrap();
        let found = read(&other, handle, 0, 4096).await;
        assert_eq!((&found[..5], &found[5..]), (&bytes(5)[..], &[0; LEN - 5][..]));
    });
}

/// docs/semantics.md 2.3: another mount opens the file for writing.
#[test]
fn read_of_a_shared_file_ignores_bytes_of_an_earlier_open() {
    with_client(|fake, client| async move {
        fake.with_metadata(1, |metadata| metadata.behaviour.shares_files = true);
        let (inode, other, handle) = opened(&fake, &client).await;
        let writer = client.open(inode, OpenMode::Write, false).await.unwrap();
        // The reply to the second open on the same mount shows that the file is shared.
        other.open(inode, OpenMode::Read, false).await.unwrap();
        write(&client, writer.handle, 0, b"new").await;
        assert_eq!(read(&other, handle, 0, 3).await, b"new");
    });
}

/// Between two requests of one open, the mount keeps the file open by a hold (`Opens::hold`). The
/// reply to the second request has the newest bytes.
#[test]
fn repeated_open_returns_the_newest_bytes_of_the_file() {
    with_client(|fake, client| async move {
        let (inode, other, handle) = opened(&fake, &client).await;
        other.close(handle).await.unwrap();
        let third = mount(&fake).await;
        let hold = third.hold(inode).await.unwrap();
        let writer = client.open(inode, OpenMode::Write, false).await.unwrap();
        write(&client, writer.handle, 0, b"new").await;
        client.close(writer.handle).await.unwrap();
        let requests = fake.count::<ReadInline>();
        let held = third.open_held(inode, OpenMode::Read, false).await.unwrap();
        third.close(hold).await.unwrap();
        let expected = [b"new", &bytes(LEN)[3..]].concat();
        assert_eq!(read(&third, held.handle, 0, 4096).await, expected);
        assert_eq!(fake.count::<ReadInline>(), requests, "the open returned the bytes");
    });
}
