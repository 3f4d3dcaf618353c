//! Tests unmounts while metadata does not confirm the last writes and changes.

use crate::{create_with, options, with_fake};
use skep_client::{Client, Mount, UNCONFIRMED};
use skep_types::ErrorCode;
use skep_wire::Request;
use skep_wire::metadata::{ReportWritten, SyncAll};

/// docs/semantics.md 3.2.
#[test]
fn unmount_reports_unconfirmed_changes_and_sizes() {
    for (refused, words) in [(ReportWritten::ID, "1 file "), (SyncAll::ID, "may not be durable")] {
        with_fake(move |fake| async move {
            let client = Client::new(Mount::new(options(&fake)).await.unwrap(), 0).unwrap();
            create_with(&client, "a", b"abc").await;
            fake.state.borrow_mut().refusal = Some((refused, ErrorCode::DeviceFailed));
            let error = client.shutdown().await.unwrap_err();
            let text = error.context();
            assert!(text.starts_with(UNCONFIRMED) && text.contains(words), "{text}");
            assert_eq!(text.contains("inodes"), refused == ReportWritten::ID, "{text}");
            assert_eq!(fake.with_metadata(1, |it| it.session_count()), 0, "the mount has ended");
            assert!(client.shutdown().await.is_ok(), "the first unmount has reported the changes");
        });
    }
}

/// Another client has removed the file, and metadata has lost the open of this mount.
#[test]
fn unmount_reports_no_missing_size_of_a_removed_file() {
    with_fake(|fake| async move {
        let client = Client::new(Mount::new(options(&fake)).await.unwrap(), 0).unwrap();
        let (inode, _) = create_with(&client, "a", b"abc").await;
        fake.with_metadata(1, |it| {
            it.entries.clear();
            it.inodes.remove(&inode);
        });
        client.shutdown().await.unwrap();
        assert_eq!(fake.count::<ReportWritten>(), 1, "metadata has refused the report");
    });
}
