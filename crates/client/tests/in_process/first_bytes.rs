//! Tests new files whose first write is larger than the inline component: the client writes to
//! storage only, and its next report ends the inline component
//! (docs/design/0009-first-bytes-in-metadata.md).

use crate::fakes::FakeCluster;
use crate::{bytes, create, mount, read, set_size, until, with_client, write};
use skep_client::{
    Client, Closes, HandleId, InodeAttributes, OpenMode, Opens, Patterns, Syncs, Writes,
};
use skep_env::Buf;
use skep_types::{ErrorCode, InodeId};
use skep_wire::Request;
use skep_wire::inline::{RemoveInline, WriteInline};
use skep_wire::metadata::{Close, CompareOpens, GetEntryInfo, ReportWritten};
use skep_wire::sharing::{AcknowledgeNotifications, Notification};
use skep_wire::storage::WriteChunk;

const INLINE: usize = 4096;
const LEN: usize = 10_000;

/// Creates a file with an inline component.
async fn new_file(fake: &FakeCluster, client: &Client) -> (InodeId, HandleId) {
    fake.with_metadata(1, |metadata| metadata.behaviour.inline_bytes = INLINE as u64);
    create(client, "large").await
}

/// Whether the inline component of the file has ended at metadata.
fn has_ended(fake: &FakeCluster, inode: InodeId) -> bool {
    fake.with_metadata(1, |it| it.inodes[&inode].has_moved_inline)
}

/// Opens the file on another mount, and compares all its bytes.
async fn check_elsewhere(fake: &FakeCluster, inode: InodeId, expected: &[u8]) {
    let other = mount(fake).await;
    let opened = other.open(inode, OpenMode::Read, false).await.unwrap();
    assert!(read(&other, opened.handle, 0, expected.len() + 1).await == expected);
}

#[test]
fn large_first_write_sends_nothing_to_metadata() {
    with_client(|fake, client| async move {
        let (inode, handle) = new_file(&fake, &client).await;
        write(&client, handle, 0, &bytes(LEN)).await;
        assert_eq!((fake.count::<RemoveInline>(), fake.count::<WriteInline>()), (0, 0));
        assert_eq!((fake.count::<ReportWritten>(), has_ended(&fake, inode)), (0, false));
        assert!(read(&client, handle, 0, LEN).await == bytes(LEN));
        client.fsync(handle).await.unwrap();
        assert_eq!((fake.count::<ReportWritten>(), has_ended(&fake, inode)), (1, true));
        write(&client, handle, 24, &[1; 4]).await;
        client.fsync(handle).await.unwrap();
        assert_eq!(fake.count::<WriteInline>(), 0);
        let asked = fake.with_metadata(1, |metadata| metadata.asked_durably.clone());
        assert!(!asked.contains(&GetEntryInfo::ID), "the durable report confirms the end");
    });
}

#[test]
fn close_reports_the_end_of_the_inline_component() {
    with_client(|fake, client| async move {
        let (inode, handle) = new_file(&fake, &client).await;
        write(&client, handle, 0, &bytes(LEN)).await;
        client.close(handle).await.unwrap();
        assert_eq!((fake.count::<Close>(), fake.count::<ReportWritten>()), (1, 0));
        assert!(has_ended(&fake, inode));
        check_elsewhere(&fake, inode, &bytes(LEN)).await;
    });
}

/// docs/semantics.md 2.1: another client opens the file as soon as this client acknowledges the
/// notification. Without the report it would read zeros at metadata.
#[test]
fn notification_waits_for_the_report_of_the_end() {
    with_client(|fake, client| async move {
        let (inode, handle) = new_file(&fake, &client).await;
        write(&client, handle, 0, &bytes(LEN)).await;
        fake.state.borrow_mut().hold = Some(ReportWritten::ID);
        fake.state.borrow_mut().notifications.push(Notification { number: 1, inode });
        until(|| fake.count::<ReportWritten>() > 0).await;
        for _ in 0..20 {
            skep_env::yield_now().await;
        }
        assert_eq!(fake.count::<AcknowledgeNotifications>(), 0);
        fake.state.borrow_mut().hold = None;
        until(|| fake.count::<AcknowledgeNotifications>() > 0).await;
        assert!(has_ended(&fake, inode));
        check_elsewhere(&fake, inode, &bytes(LEN)).await;
    });
}

/// The file becomes shared while its first write is in progress.
#[test]
fn notification_during_the_first_write_reports_the_end() {
    with_client(|fake, client| async move {
        let (inode, handle) = new_file(&fake, &client).await;
        fake.state.borrow_mut().hold = Some(WriteChunk::ID);
        let writer = client.clone();
        let task = skep_env::spawn(async move { write(&writer, handle, 0, &bytes(LEN)).await });
        until(|| fake.count::<WriteChunk>() > 0).await;
        fake.state.borrow_mut().notifications.push(Notification { number: 1, inode });
        until(|| fake.count::<AcknowledgeNotifications>() > 0).await;
        assert!(has_ended(&fake, inode));
        fake.state.borrow_mut().hold = None;
        task.await;
        check_elsewhere(&fake, inode, &bytes(LEN)).await;
    });
}

#[test]
fn shared_file_keeps_its_inline_component() {
    with_client(|fake, client| async move {
        let (inode, handle) = new_file(&fake, &client).await;
        fake.state.borrow_mut().notifications.push(Notification { number: 1, inode });
        until(|| fake.count::<AcknowledgeNotifications>() > 0).await;
        write(&client, handle, 0, &bytes(LEN)).await;
        assert_eq!((fake.count::<WriteInline>(), has_ended(&fake, inode)), (1, false));
        check_elsewhere(&fake, inode, &bytes(LEN)).await;
    });
}

#[test]
fn small_first_write_keeps_the_inline_component() {
    with_client(|fake, client| async move {
        let (inode, handle) = new_file(&fake, &client).await;
        write(&client, handle, 100, &[7; 10]).await;
        write(&client, handle, 0, &bytes(LEN)).await;
        client.close(handle).await.unwrap();
        assert_eq!((fake.count::<WriteInline>(), has_ended(&fake, inode)), (2, false));
        check_elsewhere(&fake, inode, &bytes(LEN)).await;
    });
}

/// docs/semantics.md 3.6: the failed write has decided the place of the first bytes all the same.
#[test]
fn file_has_one_place_after_a_failed_first_write() {
    with_client(|fake, client| async move {
        let (inode, handle) = new_file(&fake, &client).await;
        fake.each_storage(|storage| storage.is_full = true);
        let error = client.write(handle, 0, Buf::copy_of(&bytes(LEN))).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::NoSpace);
        fake.each_storage(|storage| storage.is_full = false);
        write(&client, handle, 0, b"small").await;
        client.close(handle).await.unwrap();
        assert_eq!((fake.count::<WriteInline>(), has_ended(&fake, inode)), (0, true));
        check_elsewhere(&fake, inode, b"small").await;
    });
}

/// docs/semantics.md 2.7: metadata must not truncate with the old pattern.
#[test]
fn truncation_reports_the_end_first() {
    with_client(|fake, client| async move {
        let (inode, handle) = new_file(&fake, &client).await;
        write(&client, handle, 0, &bytes(LEN)).await;
        client.set_attributes(set_size(inode, 100)).await.unwrap();
        assert_eq!((fake.count::<ReportWritten>(), has_ended(&fake, inode)), (1, true));
    });
}

#[test]
fn pattern_that_a_program_reads_is_the_one_after_the_write() {
    with_client(|fake, client| async move {
        let (inode, handle) = new_file(&fake, &client).await;
        write(&client, handle, 0, &bytes(LEN)).await;
        client.pattern(inode).await.unwrap();
        assert!(has_ended(&fake, inode));
    });
}

/// docs/semantics.md 3.3: the bytes are on storage, so the client only has to report their place
/// again.
#[test]
fn power_loss_of_metadata_loses_no_bytes_of_a_first_write() {
    with_client(|fake, client| async move {
        let (inode, handle) = new_file(&fake, &client).await;
        let before = fake.with_metadata(1, |metadata| metadata.clone());
        write(&client, handle, 0, &bytes(LEN)).await;
        client.flush(handle).await.unwrap();
        assert!(has_ended(&fake, inode));
        fake.with_metadata(1, |metadata| metadata.lose_power(&before));
        // The lease renewal compares opens after it has compared the changes.
        until(|| fake.count::<CompareOpens>() > 0).await;
        assert!(read(&client, handle, 0, LEN).await == bytes(LEN));
        client.fsync(handle).await.unwrap();
        assert!(has_ended(&fake, inode));
        check_elsewhere(&fake, inode, &bytes(LEN)).await;
    });
}

/// docs/semantics.md 2.1 and 3.3: another client opens the file after the power loss.
#[test]
fn notification_after_a_power_loss_reports_the_end_again() {
    with_client(|fake, client| async move {
        let (inode, handle) = new_file(&fake, &client).await;
        let before = fake.with_metadata(1, |metadata| metadata.clone());
        write(&client, handle, 0, &bytes(LEN)).await;
        client.flush(handle).await.unwrap();
        fake.with_metadata(1, |metadata| metadata.lose_power(&before));
        fake.state.borrow_mut().notifications.push(Notification { number: 1, inode });
        until(|| fake.count::<AcknowledgeNotifications>() > 0).await;
        assert!(has_ended(&fake, inode));
        check_elsewhere(&fake, inode, &bytes(LEN)).await;
        client.fsync(handle).await.unwrap();
    });
}

/// docs/semantics.md 2.1 and 3.3: the power loss has reverted the report, and the client does not
/// know this when it closes the file.
#[test]
fn close_after_a_power_loss_contains_the_end_again() {
    with_client(|fake, client| async move {
        let (inode, handle) = new_file(&fake, &client).await;
        let before = fake.with_metadata(1, |metadata| metadata.clone());
        write(&client, handle, 0, &bytes(LEN)).await;
        client.flush(handle).await.unwrap();
        fake.with_metadata(1, |metadata| metadata.lose_power(&before));
        client.close(handle).await.unwrap();
        until(|| fake.with_metadata(1, |it| it.inodes[&inode].opens.is_empty())).await;
        assert!(has_ended(&fake, inode), "no other client can use the inline component");
        let again = client.open(inode, OpenMode::Write, false).await.unwrap().handle;
        client.fsync(again).await.unwrap();
        check_elsewhere(&fake, inode, &bytes(LEN)).await;
    });
}

/// docs/semantics.md 2.1 and 3.3: the power loss has reverted the report and the close, so metadata
/// notifies this mount of the open of another client.
#[test]
fn notification_after_a_reverted_close_reports_the_end_again() {
    with_client(|fake, client| async move {
        let (inode, handle) = new_file(&fake, &client).await;
        let before = fake.with_metadata(1, |metadata| metadata.clone());
        write(&client, handle, 0, &bytes(LEN)).await;
        client.close(handle).await.unwrap();
        until(|| fake.with_metadata(1, |it| it.inodes[&inode].opens.is_empty())).await;
        fake.with_metadata(1, |metadata| metadata.lose_power(&before));
        assert!(!has_ended(&fake, inode));
        fake.state.borrow_mut().notifications.push(Notification { number: 1, inode });
        until(|| fake.count::<AcknowledgeNotifications>() > 0).await;
        assert!(has_ended(&fake, inode));
        check_elsewhere(&fake, inode, &bytes(LEN)).await;
    });
}

/// docs/semantics.md 3.5: a power loss of metadata has lost the open of this mount, and another
/// client has written inline bytes since.
#[test]
fn refused_end_of_the_inline_component_is_an_error() {
    with_client(|fake, client| async move {
        let (inode, handle) = new_file(&fake, &client).await;
        write(&client, handle, 0, &bytes(LEN)).await;
        fake.with_metadata(1, |metadata| {
            metadata.inodes.get_mut(&inode).unwrap().inline = b"other".to_vec();
        });
        assert_eq!(client.fsync(handle).await.unwrap_err().code(), ErrorCode::Io);
        client.fsync(handle).await.unwrap();
        assert!(!has_ended(&fake, inode));
        write(&client, handle, 0, &bytes(LEN)).await;
        assert_eq!(fake.count::<WriteInline>(), 1, "the mount uses the inline component");
        client.close(handle).await.unwrap();
        check_elsewhere(&fake, inode, &bytes(LEN)).await;
    });
}
