//! Tests file data: striping, holes, checksums, full and restarted storage.

use crate::{bytes, create, create_with, mount, read, until, with_client, write};
use skep_client::{Closes, InodeAttributes, Names, OpenMode, Opens, Reads, Syncs, Writes};
use skep_env::Buf;
use skep_types::{ErrorCode, GRANULE_BYTES, InodeId, TargetId};
use skep_wire::Request;
use skep_wire::metadata::{SetAttributes, SyncAll};
use skep_wire::storage::{ReadChunk, SyncChunk, WriteChunk};
use std::time::Duration;

#[test]
fn large_striped_file_is_read_unchanged_by_another_mount() {
    with_client(|fake, client| async move {
        let data = bytes(3_000_001);
        let (inode, handle) = create_with(&client, "a", &data[..1_234_567]).await;
        write(&client, handle, 1_234_567, &data[1_234_567..]).await;
        client.flush(handle).await.unwrap();
        client.close(handle).await.unwrap();
        fake.each_storage(|storage| assert_eq!(storage.files.len(), 1));
        let other = mount(&fake).await;
        let opened = other.open(inode, OpenMode::Read, false).await.unwrap();
        assert!(read(&other, opened.handle, 0, 4_000_000).await == data);
        assert!(read(&other, opened.handle, 65_530, 70_000).await == data[65_530..135_530]);
        assert_eq!(read(&other, opened.handle, 3_000_001, 10).await, []);
        let error = other.write(opened.handle, 0, Buf::new(1)).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "the handle is open only for reading");
    });
}

#[test]
fn hole_of_a_file_reads_as_zeros() {
    with_client(|_, client| async move {
        let (_, handle) = create(&client, "a").await;
        write(&client, handle, 400_000, b"end").await;
        let mut expected = vec![0; 400_003];
        expected[400_000..].copy_from_slice(b"end");
        assert!(read(&client, handle, 0, 500_000).await == expected);
        write(&client, handle, 10, b"x").await;
        expected[10] = b'x';
        assert!(read(&client, handle, 0, 100).await == expected[..100]);
    });
}

/// docs/semantics.md 4.6 and 4.9: metadata has lost the open in a power loss, and
/// another client has removed the file.
#[test]
fn read_of_a_removed_file_fails_if_metadata_lost_its_open() {
    with_client(|fake, client| async move {
        let (inode, handle) = create_with(&client, "a", &bytes(300_000)).await;
        client.flush(handle).await.unwrap();
        fake.with_metadata(1, |metadata| metadata.inodes.remove(&inode));
        fake.each_storage(|storage| storage.files.clear());
        let error = client.read(handle, 0, Buf::new(1000)).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Stale);
    });
}

#[test]
fn reads_return_the_newest_bytes_after_random_overwrites() {
    with_client(|_, client| async move {
        let (_, handle) = create(&client, "a").await;
        let mut model = vec![0; 600_000];
        let mut seed = 0x2545_F491_4F6C_DD1D_u64;
        let mut next = |below: usize| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed % below as u64) as usize
        };
        write(&client, handle, 599_999, &[0]).await;
        for round in 0..60 {
            let start = next(600_000);
            let len = 1 + next((600_000 - start).min(200_000));
            let data: Vec<u8> = bytes(len).iter().map(|byte| byte ^ round).collect();
            write(&client, handle, start as u64, &data).await;
            model[start..start + len].copy_from_slice(&data);
            let start = next(600_000);
            let len = 1 + next(600_000 - start);
            assert!(read(&client, handle, start as u64, len).await == model[start..start + len]);
        }
    });
}

#[test]
fn transfer_of_damaged_data_is_retried_once_before_the_error() {
    with_client(|fake, client| async move {
        let (inode, handle) = create(&client, "a").await;
        fake.each_storage(|storage| storage.refused_writes = 1);
        let data = bytes(GRANULE_BYTES as usize + 100);
        write(&client, handle, 0, &data).await;
        fake.each_storage(|storage| storage.flipped_reads = 1);
        assert!(read(&client, handle, 0, 10_000).await == data);
        fake.each_storage(|storage| storage.flipped_reads = 2);
        let error = client.read(handle, 0, Buf::new(10_000)).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Corrupt);
        let names = [inode.to_string(), "t11".into(), format!("{inode}.1.0.0")];
        assert!(names.iter().all(|name| error.context().contains(name)), "{error}");
        fake.each_storage(|storage| storage.refused_writes = 2);
        let error = client.write(handle, 0, Buf::copy_of(&data)).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Protocol);
    });
}

#[test]
fn write_to_a_full_target_fails_and_keeps_the_file_size() {
    with_client(|fake, client| async move {
        let (inode, handle) = create_with(&client, "a", b"begin").await;
        fake.each_storage(|storage| storage.is_full = true);
        let error = client.write(handle, 5, Buf::new(300_000)).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::NoSpace);
        assert!(error.context().contains(&inode.to_string()), "{error}");
        assert_eq!(client.attributes(inode).await.unwrap().size, 5);
        assert_eq!(read(&client, handle, 0, 100).await, b"begin");
        fake.each_storage(|storage| storage.is_full = false);
        write(&client, handle, 5, b" end").await;
        client.close(handle).await.unwrap();
        assert_eq!(client.attributes(inode).await.unwrap().size, 9);
    });
}

/// docs/semantics.md 3.6.
#[test]
fn failed_write_leaves_no_bytes_beyond_the_end() {
    with_client(|fake, client| async move {
        let (_, handle) = create_with(&client, "a", &[1; 70_000]).await;
        let full = |fake: &crate::FakeCluster, is_full| {
            let mut state = fake.state.borrow_mut();
            state.storage.get_mut(&TargetId::new(13)).unwrap().is_full = is_full;
        };
        full(&fake, true);
        let error = client.write(handle, 0, Buf::copy_of(&[2; 500_000])).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::NoSpace);
        full(&fake, false);
        write(&client, handle, 600_000, b"x").await;
        let found = read(&client, handle, 0, 700_000).await;
        assert_eq!(found.len(), 600_001);
        assert!(found[70_000..600_000].iter().all(|byte| *byte == 0));
        assert!(
            found[..70_000].iter().all(|byte| *byte == 2),
            "bytes within the old size may be changed"
        );
    });
}

#[test]
fn syncfs_syncs_closed_files() {
    with_client(|fake, client| async move {
        for name in ["a", "b", "c"] {
            let (_, handle) = create(&client, name).await;
            write(&client, handle, 0, b"x").await;
            client.close(handle).await.unwrap();
        }
        client.sync_all().await.unwrap();
        assert_eq!(fake.count::<SyncChunk>(), 3);
        assert_eq!(fake.count::<SyncAll>(), 2, "each of the two metadata groups syncs once");
        client.sync_all().await.unwrap();
        assert_eq!(fake.count::<SyncChunk>(), 3);
        client.sync_names(InodeId::ROOT).await.unwrap();
        assert_eq!(fake.count::<SyncAll>(), 5, "the mount has changed nothing at the other group");
    });
}

#[test]
fn syncfs_skips_closed_files_that_were_removed() {
    with_client(|fake, client| async move {
        let (removed, handle) = create_with(&client, "a", b"x").await;
        client.close(handle).await.unwrap();
        let (open, handle) = create_with(&client, "b", b"y").await;
        for name in [b"a", b"b"] {
            client.unlink(InodeId::ROOT, name).await.unwrap();
        }
        assert!(fake.with_metadata(1, |it| !it.inodes.contains_key(&removed)));
        assert!(fake.with_metadata(1, |it| it.inodes.contains_key(&open)));
        client.sync_all().await.unwrap();
        assert_eq!(fake.count::<SyncChunk>(), 2, "an open file without a name is synced");
        // Metadata must keep the inode of an open file, so the loss of the inode is an error.
        write(&client, handle, 0, b"z").await;
        fake.with_metadata(1, |it| it.inodes.remove(&open));
        assert_eq!(client.sync_all().await.unwrap_err().code(), ErrorCode::Stale);
    });
}

#[test]
fn operations_wait_until_a_stopped_server_runs_again() {
    with_client(|fake, client| async move {
        let (_, handle) = create_with(&client, "a", &bytes(200_000)).await;
        fake.state.borrow_mut().is_down = true;
        let writer = client.clone();
        let data = vec![7; 200_000];
        let expected = data.clone();
        let task = skep_env::spawn(async move { write(&writer, handle, 0, &data).await });
        let reader = client.clone();
        let reading = skep_env::spawn(async move { read(&reader, handle, 0, 10).await });
        // Wait until enough further requests have arrived to prove that the client has sent each
        // request at least twice.
        let before = (fake.count::<WriteChunk>(), fake.count::<ReadChunk>());
        until(|| fake.count::<WriteChunk>() > before.0 + 8).await;
        until(|| fake.count::<ReadChunk>() > before.1 + 2).await;
        assert!(!task.is_finished() && !reading.is_finished());
        fake.state.borrow_mut().is_down = false;
        task.await;
        reading.await;
        assert!(read(&client, handle, 0, 200_000).await == expected);
    });
}

#[test]
fn reads_and_writes_are_repeated_after_lost_replies() {
    with_client(|fake, client| async move {
        let (_, handle) = create(&client, "a").await;
        for message in [WriteChunk::ID, ReadChunk::ID] {
            fake.state.borrow_mut().lose_reply_of = Some(message);
            let data = bytes(300_000);
            write(&client, handle, 0, &data).await;
            assert!(read(&client, handle, 0, 300_000).await == data);
        }
    });
}

#[test]
fn append_of_each_mount_begins_at_the_end_of_the_file() {
    with_client(|fake, client| async move {
        let (inode, handle) = create(&client, "a").await;
        client.append(handle, 0, Buf::copy_of(b"one ")).await.unwrap();
        client.append(handle, 4, Buf::copy_of(b"two ")).await.unwrap();
        client.close(handle).await.unwrap();
        let other = mount(&fake).await;
        let there = other.open(inode, OpenMode::Write, false).await.unwrap().handle;
        other.append(there, 8, Buf::copy_of(b"three")).await.unwrap();
        assert_eq!(read(&other, there, 0, 100).await, b"one two three");
    });
}

/// docs/semantics.md 2.9: the kernel sends the parts of one large append at the same
/// time, and the client keeps their order.
#[test]
fn parts_of_a_large_append_stay_in_order() {
    with_client(|_, client| async move {
        let (inode, handle) = create_with(&client, "a", b"begin ").await;
        // Another mount has changed the file, so the kernel sends each append with an outdated end
        // of the file.
        let part = |expected, text: &'static str| {
            let client = client.clone();
            skep_env::spawn(async move {
                client.append(handle, expected, Buf::copy_of(text.as_bytes())).await
            })
        };
        for task in [part(100, "one "), part(104, "two "), part(108, "three")] {
            task.await.unwrap();
        }
        assert_eq!(read(&client, handle, 0, 100).await, b"begin one two three");
        assert_eq!(client.attributes(inode).await.unwrap().size, 19);
    });
}

#[test]
fn dropped_read_leaves_its_buffer_unchanged() {
    with_client(|fake, client| async move {
        let (_, handle) = create_with(&client, "a", &[1; 1000]).await;
        fake.state.borrow_mut().hold = Some(ReadChunk::ID);
        let into = Buf::copy_of(&[7; 1000]);
        let dropped = client.read(handle, 0, into.clone());
        assert!(skep_env::timeout(Duration::from_millis(10), dropped).await.is_none());
        let replies = fake.state.borrow().replies;
        fake.state.borrow_mut().hold = None;
        until(|| fake.state.borrow().replies > replies).await;
        // The late reply uses the same connection, so it arrives before the reply to this read.
        assert_eq!(read(&client, handle, 0, 1000).await, [1; 1000]);
        assert_eq!(*into.bytes(), [7; 1000]);
    });
}

#[test]
fn truncation_waits_for_a_dropped_write() {
    with_client(|fake, client| async move {
        let (inode, handle) = create(&client, "a").await;
        fake.state.borrow_mut().hold = Some(WriteChunk::ID);
        let write = client.write(handle, 0, Buf::copy_of(b"dropped"));
        assert!(skep_env::timeout(Duration::from_millis(10), write).await.is_none());
        let truncating = client.clone();
        let task = skep_env::spawn(async move {
            truncating.set_attributes(crate::set_size(inode, 3)).await.unwrap()
        });
        // Let other operations of this thread complete while the truncation waits for the write.
        for _ in 0..20 {
            client.lookup(InodeId::ROOT, b"a").await.unwrap();
        }
        assert_eq!(fake.count::<SetAttributes>(), 0);
        fake.state.borrow_mut().hold = None;
        assert_eq!(task.await.size, 3);
        assert_eq!(client.attributes(inode).await.unwrap().size, 3);
        until(|| fake.count::<WriteChunk>() == 1).await;
    });
}
