//! Tests opens that a metadata target has lost in a power loss of its host.

use crate::fakes::LEASE_MS;
use crate::{create, create_with, mount, options, read, until, with_client, write};
use skep_client::{Client, Closes, InodeAttributes, Mount, Names, OpenMode, Opens, Reads};
use skep_env::Buf;
use skep_types::{ErrorCode, InodeId};
use skep_wire::Request;
use skep_wire::metadata::{CloseMany, CompareOpens, KeepAlive, Open};
use std::time::Duration;

/// docs/semantics.md 4.9: another mount removes the file after the power loss.
#[test]
fn open_lost_by_metadata_is_restored_before_a_removal() {
    with_client(|fake, client| async move {
        let (inode, handle) = create_with(&client, "a", b"bytes").await;
        client.flush(handle).await.unwrap();
        let second = client.open(inode, OpenMode::Write, false).await.unwrap().handle;
        let opens = || fake.with_metadata(1, |metadata| metadata.open_count());
        fake.with_metadata(1, |metadata| metadata.lose_opens());
        until(|| opens() == 2).await;
        let other = mount(&fake).await;
        other.unlink(InodeId::ROOT, b"a").await.unwrap();
        assert_eq!(read(&client, handle, 0, 10).await, b"bytes");
        client.close(handle).await.unwrap();
        client.close(second).await.unwrap();
        until(|| opens() == 0).await;
    });
}

/// docs/semantics.md 4.9: at the comparison, metadata has one open of the file, which is the open
/// of the handle that is being closed.
#[test]
fn lost_open_is_restored_while_another_close_is_in_progress() {
    with_client(|fake, client| async move {
        let (inode, first) = create(&client, "a").await;
        let second = client.open(inode, OpenMode::Write, false).await.unwrap().handle;
        fake.state.borrow_mut().hold = Some(CloseMany::ID);
        client.close(first).await.unwrap();
        until(|| fake.count::<CloseMany>() > 0).await;
        // A power loss reverts the second of two opens.
        fake.with_metadata(1, |it| {
            let opens = &mut it.inodes.get_mut(&inode).unwrap().opens;
            opens.values_mut().for_each(|count| *count -= 1);
            it.start += 1;
        });
        until(|| fake.count::<CompareOpens>() > 0).await;
        fake.state.borrow_mut().hold = None;
        until(|| fake.count::<Open>() > 1).await;
        client.close(second).await.unwrap();
        until(|| fake.with_metadata(1, |it| it.open_count()) == 0).await;
    });
}

/// docs/semantics.md 4.9: the program that reads gets a signal while the client opens a file again.
#[test]
fn lost_opens_are_restored_if_a_signal_interrupts_a_read() {
    with_client(|fake, _| async move {
        // This mount has no background work, so only its reads renew the session.
        let client = Client::new(Mount::new(options(&fake)).await.unwrap(), 0).unwrap();
        let (inode, handle) = create(&client, "a").await;
        create(&client, "b").await;
        write(&client, handle, 0, b"x").await;
        client.note_shown(&client.attributes(inode).await.unwrap());
        assert!(client.attributes_for_reading(handle).await.is_some());
        let end = skep_env::now() + Duration::from_millis(u64::from(LEASE_MS));
        until(|| skep_env::now() > end).await;
        fake.with_metadata(1, |metadata| metadata.lose_opens());
        fake.state.borrow_mut().hold = Some(Open::ID);
        let mut reading = Box::pin(client.attributes_for_reading(handle));
        while fake.count::<Open>() == 0 {
            let read = skep_env::timeout(Duration::from_millis(1), reading.as_mut()).await;
            assert_eq!(read, None, "the read waits until the file is open again");
        }
        drop(reading);
        fake.state.borrow_mut().hold = None;
        until(|| fake.with_metadata(1, |it| it.open_count()) == 2).await;
    });
}

/// docs/semantics.md 4.6: the file was deleted before the client could open it again. Storage may
/// still have the bytes of the file for some time.
#[test]
fn handle_is_stale_if_its_open_is_lost_and_its_file_is_removed() {
    with_client(|fake, client| async move {
        let (_, handle) = create_with(&client, "a", b"bytes").await;
        client.flush(handle).await.unwrap();
        fake.with_metadata(1, |metadata| {
            metadata.inodes.retain(|inode, _| *inode == InodeId::ROOT);
            metadata.lose_opens();
        });
        let opens = fake.count::<Open>();
        until(|| fake.count::<Open>() > opens).await;
        let error = loop {
            match client.read(handle, 0, Buf::new(10)).await {
                Ok(_) => skep_env::yield_now().await,
                Err(error) => break error,
            }
        };
        assert_eq!(error.code(), ErrorCode::Stale);
    });
}

/// The client compares its opens with the opens at the target once for each start of the target.
#[test]
fn client_checks_its_opens_once_after_each_target_restart() {
    with_client(|fake, client| async move {
        create(&client, "a").await;
        until(|| fake.count::<KeepAlive>() > 2).await;
        assert_eq!(fake.count::<CompareOpens>(), 0);
        fake.with_metadata(1, |metadata| metadata.start += 1);
        let renewals = fake.count::<KeepAlive>();
        until(|| fake.count::<KeepAlive>() > renewals + 4).await;
        assert_eq!(fake.count::<CompareOpens>(), 1);
    });
}

/// An open in a new session may wait until metadata has evicted another client. The lease of this
/// session must not run out meanwhile.
#[test]
fn lease_is_renewed_while_files_are_opened_again() {
    with_client(|fake, client| async move {
        create(&client, "a").await;
        fake.state.borrow_mut().hold = Some(Open::ID);
        fake.forget_sessions(1);
        until(|| fake.count::<Open>() > 0).await;
        let renewals = fake.count::<KeepAlive>();
        until(|| fake.count::<KeepAlive>() > renewals + 2).await;
        fake.state.borrow_mut().hold = None;
        until(|| fake.with_metadata(1, |it| it.open_count()) == 1).await;
    });
}
