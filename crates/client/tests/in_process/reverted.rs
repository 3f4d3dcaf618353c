//! Acknowledged changes that a power loss of metadata has reverted.

use crate::{NEW, create, until, with_client, write};
use skep_client::{Client, Names, Syncs};
use skep_types::{ErrorCode, InodeId};
use skep_wire::Request;
use skep_wire::metadata::{CompareOpens, CompareSlots, KeepAlive, Unlink};

const ROOT: InodeId = InodeId::ROOT;

async fn unlink(client: &Client, name: &[u8]) -> Result<(), ErrorCode> {
    client.unlink(ROOT, name).await.map_err(|error| error.code())
}

/// Hole H20: `link(a, b)`, power loss, `unlink(a)`. Before the fix, the file was gone.
#[test]
fn unlink_after_a_reverted_link_fails_and_keeps_the_file() {
    with_client(|fake, client| async move {
        let (inode, handle) = create(&client, "a").await;
        write(&client, handle, 0, b"bytes").await;
        client.fsync(handle).await.unwrap();
        let before = fake.with_metadata(1, |it| it.clone());
        client.link(inode, ROOT, b"b").await.unwrap();
        fake.with_metadata(1, |it| it.lose_power(&before));
        assert_eq!(unlink(&client, b"a").await, Err(ErrorCode::Io));
        assert!(fake.count::<Unlink>() <= 1, "the target has refused it, and it was not repeated");
        assert_eq!(client.lookup(ROOT, b"a").await.unwrap().inode, inode);
        // Each program gets the error once: the program that syncs the file, and one that syncs
        // the directory.
        assert_eq!(client.fsync(handle).await.unwrap_err().code(), ErrorCode::Io);
        client.fsync(handle).await.unwrap();
        assert_eq!(client.sync_names().await.unwrap_err().code(), ErrorCode::Io);
        client.sync_names().await.unwrap();
        client.link(inode, ROOT, b"b").await.unwrap();
        unlink(&client, b"a").await.unwrap();
    });
}

/// The target executes the unlink, loses power before it replies, and has lost both changes. A
/// repetition of the unlink would remove the last name.
#[test]
fn unlink_in_flight_at_a_power_loss_keeps_the_file() {
    with_client(|fake, client| async move {
        let (inode, _) = create(&client, "a").await;
        let before = fake.with_metadata(1, |it| it.clone());
        client.link(inode, ROOT, b"b").await.unwrap();
        fake.state.borrow_mut().start_again_after = Some((Unlink::ID, Some(before)));
        assert_eq!(unlink(&client, b"a").await, Err(ErrorCode::Io));
        assert_eq!(client.lookup(ROOT, b"a").await.unwrap().inode, inode);
    });
}

#[test]
fn request_in_flight_at_a_kill_gets_its_reply() {
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

/// The client has sent the unlink before it learned of the start, and compares before the target
/// looks at the unlink.
#[test]
fn change_from_before_the_comparison_is_refused() {
    with_client(|fake, client| async move {
        let (inode, _) = create(&client, "a").await;
        let before = fake.with_metadata(1, |it| it.clone());
        client.link(inode, ROOT, b"b").await.unwrap();
        fake.state.borrow_mut().hold = Some(Unlink::ID);
        let unlinking = client.clone();
        let task = skep_env::spawn(async move { unlink(&unlinking, b"a").await });
        until(|| fake.count::<Unlink>() == 1).await;
        fake.with_metadata(1, |it| it.lose_power(&before));
        // The renewal compares opens after it has compared the changes.
        until(|| fake.count::<CompareOpens>() >= 1).await;
        fake.state.borrow_mut().hold = None;
        assert_eq!(task.await, Err(ErrorCode::Io));
        assert_eq!(client.lookup(ROOT, b"a").await.unwrap().inode, inode);
    });
}

/// The file of a name is found although the change names another directory.
#[test]
fn idle_mount_notices_reverted_changes_by_its_renewals() {
    with_client(|fake, client| async move {
        let (inode, _) = create(&client, "a").await;
        let directory = client.make_directory(ROOT, b"d", NEW).await.unwrap().inode;
        client.sync_names().await.unwrap();
        let before = fake.with_metadata(1, |it| it.clone());
        client.link(inode, directory, b"b").await.unwrap();
        fake.with_metadata(1, |it| it.lose_power(&before));
        until(|| fake.count::<CompareSlots>() >= 1).await;
        assert_eq!(unlink(&client, b"a").await, Err(ErrorCode::Io));
        assert_eq!(fake.count::<Unlink>(), 0, "the change was not sent");
        unlink(&client, b"a").await.unwrap();
    });
}

#[test]
fn start_after_a_kill_reports_nothing() {
    with_client(|fake, client| async move {
        let (inode, handle) = create(&client, "a").await;
        client.link(inode, ROOT, b"b").await.unwrap();
        fake.with_metadata(1, |it| it.start += 1);
        unlink(&client, b"a").await.unwrap();
        client.fsync(handle).await.unwrap();
        client.sync_names().await.unwrap();
        let renewals = fake.count::<KeepAlive>();
        until(|| fake.count::<KeepAlive>() > renewals + 2).await;
        assert!(fake.count::<CompareSlots>() >= 1);
    });
}
