//! Tests chunk files that storage has lost. If such a chunk file was synced, operations return an
//! error. If it was never synced, programs read zeros, as from a hole.

use crate::fakes::FakeCluster;
use crate::{bytes, create, create_with, mount, read, set_size, with_client, write};
use skep_client::{Closes, Copies, InodeAttributes, OpenMode, Opens, Reads, Syncs, Writes};
use skep_env::Buf;
use skep_types::{ErrorCode, InodeId};
use skep_wire::metadata::{AwaitTruncation, GetAttributes, ReportWritten};

/// Removes the chunk file on target t12 that has the bytes of a file from 64 KiB to 128 KiB.
fn lose_second_chunk(fake: &FakeCluster, inode: InodeId) {
    fake.each_storage(|storage| {
        storage.files.retain(|key, _| key.inode != inode || key.index != 1);
    });
}

/// docs/semantics.md 4.7.
#[test]
fn read_of_a_lost_synced_chunk_file_is_an_error() {
    with_client(|fake, client| async move {
        let data = bytes(250_000);
        let (inode, handle) = create_with(&client, "a", &data).await;
        client.fsync(handle).await.unwrap();
        lose_second_chunk(&fake, inode);
        let other = mount(&fake).await;
        let reader = other.open(inode, OpenMode::Read, false).await.unwrap().handle;
        for (client, handle) in [(&client, handle), (&other, reader)] {
            let error = client.read(handle, 60_000, Buf::new(10_000)).await.unwrap_err();
            assert_eq!(error.code(), ErrorCode::Corrupt);
            let names = [inode.to_string(), "t12".into(), "lost+found".into()];
            assert!(names.iter().all(|name| error.context().contains(name)), "{error}");
            assert!(read(client, handle, 0, 65_536).await == data[..65_536]);
        }
        let (_, copy) = create(&client, "copy").await;
        let error = client.copy((handle, 0), (copy, 0), 250_000).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Corrupt, "zeros are not copied in place of lost bytes");
    });
}

/// docs/semantics.md 4.7: without the error, a write would create the chunk file again, and the
/// other lost bytes would become zeros.
#[test]
fn write_to_a_lost_synced_chunk_file_is_an_error() {
    with_client(|fake, client| async move {
        let (inode, handle) = create_with(&client, "a", &bytes(250_000)).await;
        client.fsync(handle).await.unwrap();
        lose_second_chunk(&fake, inode);
        let other = mount(&fake).await;
        let writer = other.open(inode, OpenMode::Write, false).await.unwrap().handle;
        for (client, handle) in [(&client, handle), (&other, writer)] {
            let error = client.write(handle, 70_000, Buf::copy_of(b"x")).await.unwrap_err();
            assert_eq!(error.code(), ErrorCode::Corrupt);
            write(client, handle, 0, b"the other chunk files are there").await;
            let error = client.read(handle, 80_000, Buf::new(100)).await.unwrap_err();
            assert_eq!(error.code(), ErrorCode::Corrupt, "the loss is still visible");
        }
        // A truncation removes the lost bytes, so the file can be written again.
        client.set_attributes(set_size(inode, 0)).await.unwrap();
        for (client, handle) in [(&other, writer), (&client, handle)] {
            write(client, handle, 70_000, b"new").await;
            assert_eq!(read(client, handle, 70_000, 3).await, b"new");
        }
    });
}

/// After a power loss of a storage host, chunk files that were never synced may be missing.
#[test]
fn lost_chunk_file_that_was_never_synced_reads_as_zeros() {
    with_client(|fake, client| async move {
        let (inode, handle) = create_with(&client, "a", &bytes(250_000)).await;
        client.flush(handle).await.unwrap();
        lose_second_chunk(&fake, inode);
        assert_eq!(read(&client, handle, 65_536, 65_536).await, [0; 65_536]);
    });
}

/// docs/semantics.md 3.5: the sync of a missing chunk file succeeds on storage.
#[test]
fn fsync_reports_a_chunk_file_lost_before_the_fsync() {
    with_client(|fake, client| async move {
        let (inode, handle) = create_with(&client, "a", &bytes(250_000)).await;
        lose_second_chunk(&fake, inode);
        let error = client.fsync(handle).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Io);
        client.fsync(handle).await.unwrap();
        write(&client, handle, 65_536, &bytes(65_536)).await;
        client.fsync(handle).await.unwrap();
    });
}

#[test]
fn hole_without_a_chunk_file_reads_as_zeros_after_fsync() {
    with_client(|_, client| async move {
        let (_, handle) = create(&client, "a").await;
        write(&client, handle, 200_000, b"end").await;
        client.fsync(handle).await.unwrap();
        assert_eq!(read(&client, handle, 0, 200_000).await, [0; 200_000]);
    });
}

/// The report of an `fsync` contains the synced chunk files, so the client sends no other request
/// for them.
#[test]
fn fsync_reports_synced_chunk_files_without_another_request() {
    with_client(|fake, client| async move {
        let (inode, handle) = create(&client, "a").await;
        let synced = || fake.with_metadata(1, |it| it.inodes[&inode].synced.clone());
        let requests = || fake.count::<ReportWritten>() + fake.count::<GetAttributes>();
        write(&client, handle, 0, b"x").await;
        client.fsync(handle).await.unwrap();
        assert!(synced().contains(0) && !synced().contains(1));
        assert_eq!(requests(), 1);
        // Report the size first, so that the sync below need not report it.
        write(&client, handle, 70_000, b"x").await;
        client.flush(handle).await.unwrap();
        client.fsync(handle).await.unwrap();
        assert!(synced().contains(1));
        assert_eq!(requests(), 3);
        write(&client, handle, 0, b"y").await;
        client.flush(handle).await.unwrap();
        let reports = fake.count::<ReportWritten>();
        client.fsync(handle).await.unwrap();
        assert_eq!(
            (requests(), fake.count::<ReportWritten>()),
            (4, reports),
            "metadata has the chunk files already"
        );
        assert_eq!(fake.count::<AwaitTruncation>(), 0);
    });
}
