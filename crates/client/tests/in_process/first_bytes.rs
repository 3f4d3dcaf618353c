//! Tests new files whose first write is larger than the inline component: the client writes to
//! storage only, and its next report ends the inline component
//! (docs/design/0009-first-bytes-in-metadata.md).

use crate::fakes::FakeCluster;
use crate::{
    begin_held, bytes, create, let_tasks_run, mount, read, set_size, until,
    until_changes_are_compared, with_client, write,
};
use skep_client::{
    Client, Closes, HandleId, InodeAttributes, OpenMode, Opens, Patterns, Syncs, Writes,
};
use skep_env::Buf;
use skep_types::{ErrorCode, InodeId};
use skep_wire::Request;
use skep_wire::inline::{RemoveInline, WriteInline};
use skep_wire::metadata::{Close, GetEntryInfo, ReportWritten};
use skep_wire::sharing::AcknowledgeNotifications;
use skep_wire::storage::WriteChunk;

const INLINE: usize = 4096;
const LEN: usize = 10_000;

/// A new file with an inline component, which a mount has open.
struct NewFile {
    fake: FakeCluster,
    client: Client,
    inode: InodeId,
    handle: HandleId,
}

impl NewFile {
    async fn create(fake: FakeCluster, client: Client) -> Self {
        fake.with_metadata(1, |metadata| metadata.behaviour.inline_bytes = INLINE as u64);
        let (inode, handle) = create(&client, "large").await;
        Self { fake, client, inode, handle }
    }

    /// Writes all bytes of the file with one call.
    async fn write_all(&self) {
        write(&self.client, self.handle, 0, &bytes(LEN)).await;
    }

    async fn read_all(&self) -> Vec<u8> {
        read(&self.client, self.handle, 0, LEN).await
    }

    /// Whether the inline component of the file has ended at metadata.
    fn has_ended(&self) -> bool {
        self.fake.has_moved_inline(self.inode)
    }

    /// Writes all bytes and reports the end of the inline component. A power loss of metadata then
    /// reverts this report.
    async fn write_and_revert_report(&self) {
        let before = self.fake.metadata_state();
        self.write_all().await;
        self.client.flush(self.handle).await.unwrap();
        assert!(self.has_ended());
        self.fake.lose_power(&before);
    }

    /// Notifies the mount that another client opens the file, and waits until the mount
    /// acknowledges the notification.
    async fn notify_of_open(&self) {
        self.fake.notify_of_open(self.inode);
        until(|| self.fake.count::<AcknowledgeNotifications>() > 0).await;
    }

    /// Opens the file on another mount, and compares all its bytes.
    async fn check_elsewhere(&self, expected: &[u8]) {
        let other = mount(&self.fake).await;
        let opened = other.open(self.inode, OpenMode::Read, false).await.unwrap();
        assert!(read(&other, opened.handle, 0, expected.len() + 1).await == expected);
    }
}

/// Runs a test with a [`NewFile`].
fn with_new_file<F: Future<Output = ()> + 'static>(test: impl FnOnce(NewFile) -> F + 'static) {
    with_client(|fake, client| async move {
        test(NewFile::create(fake, client).await).await;
    });
}

#[test]
fn large_first_write_sends_nothing_to_metadata() {
    with_new_file(|file| async move {
        file.write_all().await;
        assert_eq!((file.fake.count::<RemoveInline>(), file.fake.count::<WriteInline>()), (0, 0));
        assert_eq!((file.fake.count::<ReportWritten>(), file.has_ended()), (0, false));
        assert!(file.read_all().await == bytes(LEN));
        file.client.fsync(file.handle).await.unwrap();
        assert_eq!((file.fake.count::<ReportWritten>(), file.has_ended()), (1, true));
        write(&file.client, file.handle, 24, &[1; 4]).await;
        file.client.fsync(file.handle).await.unwrap();
        assert_eq!(file.fake.count::<WriteInline>(), 0);
        let asked = file.fake.with_metadata(1, |metadata| metadata.asked_durably.clone());
        assert!(!asked.contains(&GetEntryInfo::ID), "the durable report confirms the end");
    });
}

#[test]
fn close_reports_the_end_of_the_inline_component() {
    with_new_file(|file| async move {
        file.write_all().await;
        file.client.close(file.handle).await.unwrap();
        assert_eq!((file.fake.count::<Close>(), file.fake.count::<ReportWritten>()), (1, 0));
        assert!(file.has_ended());
        file.check_elsewhere(&bytes(LEN)).await;
    });
}

/// docs/semantics.md 2.1: the other client opens the file as soon as this client acknowledges the
/// notification. If this client had not reported the end of the inline component before, the other
/// client would read zeros from metadata.
#[test]
fn notification_is_acknowledged_after_inline_end_is_reported() {
    with_new_file(|file| async move {
        file.write_all().await;
        file.fake.state.borrow_mut().hold = Some(ReportWritten::ID);
        file.fake.notify_of_open(file.inode);
        until(|| file.fake.count::<ReportWritten>() > 0).await;
        let_tasks_run().await;
        assert_eq!(file.fake.count::<AcknowledgeNotifications>(), 0);
        file.fake.state.borrow_mut().hold = None;
        until(|| file.fake.count::<AcknowledgeNotifications>() > 0).await;
        assert!(file.has_ended());
        file.check_elsewhere(&bytes(LEN)).await;
    });
}

/// The file becomes shared while its first write is in progress.
#[test]
fn notification_during_first_write_reports_the_inline_end() {
    with_new_file(|file| async move {
        let (writer, handle) = (file.client.clone(), file.handle);
        let writing = async move { write(&writer, handle, 0, &bytes(LEN)).await };
        let task = begin_held::<WriteChunk, _>(&file.fake, writing).await;
        file.notify_of_open().await;
        assert!(file.has_ended());
        file.fake.state.borrow_mut().hold = None;
        task.await;
        file.check_elsewhere(&bytes(LEN)).await;
    });
}

#[test]
fn shared_file_keeps_its_inline_component() {
    with_new_file(|file| async move {
        file.notify_of_open().await;
        file.write_all().await;
        assert_eq!((file.fake.count::<WriteInline>(), file.has_ended()), (1, false));
        file.check_elsewhere(&bytes(LEN)).await;
    });
}

#[test]
fn small_first_write_keeps_the_inline_component() {
    with_new_file(|file| async move {
        write(&file.client, file.handle, 100, &[7; 10]).await;
        file.write_all().await;
        file.client.close(file.handle).await.unwrap();
        assert_eq!((file.fake.count::<WriteInline>(), file.has_ended()), (2, false));
        file.check_elsewhere(&bytes(LEN)).await;
    });
}

/// docs/semantics.md 3.6: although the write has failed, it has ended the inline component.
#[test]
fn failed_large_first_write_also_ends_the_inline_component() {
    with_new_file(|file| async move {
        file.fake.each_storage(|storage| storage.is_full = true);
        let error = file.client.write(file.handle, 0, Buf::copy_of(&bytes(LEN))).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::NoSpace);
        file.fake.each_storage(|storage| storage.is_full = false);
        write(&file.client, file.handle, 0, b"small").await;
        file.client.close(file.handle).await.unwrap();
        assert_eq!((file.fake.count::<WriteInline>(), file.has_ended()), (0, true));
        file.check_elsewhere(b"small").await;
    });
}

/// docs/semantics.md 2.7: metadata must not truncate with the old pattern.
#[test]
fn truncation_reports_the_inline_end_first() {
    with_new_file(|file| async move {
        file.write_all().await;
        file.client.set_attributes(set_size(file.inode, 100)).await.unwrap();
        assert_eq!((file.fake.count::<ReportWritten>(), file.has_ended()), (1, true));
    });
}

#[test]
fn pattern_query_reports_the_inline_end_first() {
    with_new_file(|file| async move {
        file.write_all().await;
        file.client.pattern(file.inode).await.unwrap();
        assert!(file.has_ended());
    });
}

/// docs/semantics.md 3.3: the bytes are on storage, so the client only has to report the end of the
/// inline component again.
#[test]
fn power_loss_of_metadata_loses_no_bytes_of_a_first_write() {
    with_new_file(|file| async move {
        file.write_and_revert_report().await;
        until_changes_are_compared(&file.fake).await;
        assert!(file.read_all().await == bytes(LEN));
        file.client.fsync(file.handle).await.unwrap();
        assert!(file.has_ended());
        file.check_elsewhere(&bytes(LEN)).await;
    });
}

/// docs/semantics.md 2.1 and 3.3: another client opens the file after the power loss.
#[test]
fn notification_after_a_power_loss_reports_inline_end_again() {
    with_new_file(|file| async move {
        file.write_and_revert_report().await;
        file.notify_of_open().await;
        assert!(file.has_ended());
        file.check_elsewhere(&bytes(LEN)).await;
        file.client.fsync(file.handle).await.unwrap();
    });
}

/// docs/semantics.md 2.1 and 3.3: the power loss has reverted the report, and the client has not
/// noticed this loss when it closes the file.
#[test]
fn close_after_a_power_loss_reports_the_inline_end_again() {
    with_new_file(|file| async move {
        file.write_and_revert_report().await;
        file.client.close(file.handle).await.unwrap();
        until(|| !file.fake.is_open(file.inode)).await;
        assert!(file.has_ended(), "no other client can use the inline component");
        let again = file.client.open(file.inode, OpenMode::Write, false).await.unwrap().handle;
        file.client.fsync(again).await.unwrap();
        file.check_elsewhere(&bytes(LEN)).await;
    });
}

/// docs/semantics.md 2.1 and 3.3: the power loss has reverted the report and the close, so metadata
/// notifies this mount of the open of another client.
#[test]
fn notification_after_reverted_close_reports_inline_end_again() {
    with_new_file(|file| async move {
        let before = file.fake.metadata_state();
        file.write_all().await;
        file.client.close(file.handle).await.unwrap();
        until(|| !file.fake.is_open(file.inode)).await;
        file.fake.lose_power(&before);
        assert!(!file.has_ended());
        file.notify_of_open().await;
        assert!(file.has_ended());
        file.check_elsewhere(&bytes(LEN)).await;
    });
}

/// docs/semantics.md 3.5: a power loss of metadata has lost the open of this mount, and another
/// client has written inline bytes since.
#[test]
fn fsync_fails_once_if_another_client_wrote_the_inline_bytes() {
    with_new_file(|file| async move {
        file.write_all().await;
        file.fake.with_metadata(1, |metadata| {
            metadata.inodes.get_mut(&file.inode).unwrap().inline = b"other".to_vec();
        });
        assert_eq!(file.client.fsync(file.handle).await.unwrap_err().code(), ErrorCode::Io);
        file.client.fsync(file.handle).await.unwrap();
        assert!(!file.has_ended());
        file.write_all().await;
        assert_eq!(file.fake.count::<WriteInline>(), 1, "the mount uses the inline component");
        file.client.close(file.handle).await.unwrap();
        file.check_elsewhere(&bytes(LEN)).await;
    });
}
