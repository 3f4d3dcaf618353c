//! Truncations that a power loss of metadata has reverted. No mount repeats a truncation.

use crate::fakes::{FakeCluster, FakeMetadata};
use crate::reverted::{lose_and_replay, size_at_metadata, two_inline_writes};
use crate::{begin_held, create, read, set_size, with_client, write};
use skep_client::{Client, Closes, HandleId, InodeAttributes, Names, OpenMode, Opens, Syncs};
use skep_types::{ErrorCode, InodeId};
use skep_wire::Request;
use skep_wire::metadata::{Close, Replay};

const ROOT: InodeId = InodeId::ROOT;

/// Truncates a file with synced inline bytes by an open, and writes other bytes. Returns the inode,
/// the handle of this open, and the state of metadata before this open.
async fn truncated_by_open(
    fake: &FakeCluster,
    client: &Client,
) -> (InodeId, HandleId, FakeMetadata) {
    let (handle, _) = two_inline_writes(fake, client, 9).await;
    client.fsync(handle).await.unwrap();
    let before = fake.metadata_state();
    let inode = client.lookup(ROOT, b"a").await.unwrap().inode;
    let truncated = client.open(inode, OpenMode::Write, true).await.unwrap().handle;
    write(client, truncated, 0, b"new").await;
    (inode, truncated, before)
}

/// Checks that a file of [`truncated_by_open`] has its old bytes, and that its program gets an
/// error.
async fn check_truncation_is_lost(
    fake: &FakeCluster,
    client: &Client,
    (inode, truncated): (InodeId, HandleId),
) {
    assert_eq!(fake.with_metadata(1, |it| it.inodes[&inode].inline.clone()), b"onetwo");
    assert_eq!(client.fsync(truncated).await.unwrap_err().code(), ErrorCode::Io);
}

/// Hole H72 (docs/tests/holes.md). docs/semantics.md 3.2: the truncation by the open is lost, so
/// the mount does not replay the write after it.
#[test]
fn write_after_a_lost_truncation_by_an_open_is_not_replayed() {
    with_client(|fake, client| async move {
        let (inode, truncated, before) = truncated_by_open(&fake, &client).await;
        lose_and_replay(&fake, &before, 1).await;
        assert_eq!(fake.count::<Replay>(), 1, "only the open");
        check_truncation_is_lost(&fake, &client, (inode, truncated)).await;
    });
}

/// Hole H93 (docs/tests/holes.md). The target repeats the open, and starts again before it replies.
#[test]
fn lost_truncation_is_reported_if_its_replay_got_no_reply() {
    with_client(|fake, client| async move {
        let (inode, truncated, before) = truncated_by_open(&fake, &client).await;
        fake.state.borrow_mut().start_again_after = Some((Replay::ID, None));
        lose_and_replay(&fake, &before, 1).await;
        check_truncation_is_lost(&fake, &client, (inode, truncated)).await;
    });
}

/// The truncation is lost and cannot be replayed, so the mount does not replay the write after the
/// truncation.
#[test]
fn fsync_fails_if_a_truncation_between_inline_writes_is_lost() {
    with_client(|fake, client| async move {
        let (handle, before) = two_inline_writes(&fake, &client, 9).await;
        let inode = client.lookup(ROOT, b"a").await.unwrap().inode;
        client.set_attributes(set_size(inode, 3)).await.unwrap();
        write(&client, handle, 3, b"TWO").await;
        lose_and_replay(&fake, &before, 1).await;
        assert_eq!(fake.count::<Replay>(), 2, "both writes before the truncation are replayed");
        assert_eq!(client.fsync(handle).await.unwrap_err().code(), ErrorCode::Io);
    });
}

/// Creates a file with these bytes, lets another mount truncate it, and lets a power loss revert
/// the truncation, which this mount has seen. Returns the handle, and the result of `fsync`.
async fn fsync_after_a_lost_truncation(
    fake: &FakeCluster,
    client: &Client,
    bytes: &[u8],
) -> (HandleId, Result<(), ErrorCode>) {
    let (inode, handle) = create(client, "a").await;
    if !bytes.is_empty() {
        write(client, handle, 0, bytes).await;
    }
    client.fsync(handle).await.unwrap();
    let before = fake.metadata_state();
    fake.with_metadata(1, |it| it.set_attributes(&set_size(inode, 0)).unwrap());
    assert_eq!(client.attributes(inode).await.unwrap().size, 0);
    fake.lose_power(&before);
    // A real target gives the inode a higher version after each start.
    fake.with_metadata(1, |it| {
        it.inodes.get_mut(&inode).unwrap().attributes.change_counter = 1 << 40;
    });
    assert_eq!(client.attributes(inode).await.unwrap().size, bytes.len() as u64);
    (handle, client.fsync(handle).await.map_err(|error| error.code()))
}

/// Hole H135 in `docs/tests/holes.md`. docs/semantics.md 3.2: another mount has truncated the file,
/// this mount has seen the truncation, and later replies show the file as before the truncation.
#[test]
fn fsync_reports_a_lost_truncation_by_another_mount() {
    with_client(|fake, client| async move {
        let (handle, synced) = fsync_after_a_lost_truncation(&fake, &client, b"bytes").await;
        assert_eq!(synced, Err(ErrorCode::Io));
        client.fsync(handle).await.unwrap();
    });
}

/// Hole H135 in `docs/tests/holes.md`: the file was empty, so the mount reports no error.
#[test]
fn fsync_succeeds_if_a_lost_truncation_had_removed_no_bytes() {
    with_client(|fake, client| async move {
        let (_, synced) = fsync_after_a_lost_truncation(&fake, &client, b"").await;
        assert_eq!(synced, Ok(()));
    });
}

/// Hole H180 in `docs/tests/holes.md`. docs/semantics.md 3.2: the file was empty when the mount
/// truncated it by an open. So the mount repeats all later changes: an inline write, or a close
/// with the size. The file gets the truncate generation that these changes name, also after a
/// second power loss.
#[test]
fn changes_after_a_truncation_of_no_bytes_are_replayed() {
    for inline_bytes in [0, 4096] {
        with_client(move |fake, client| async move {
            fake.with_metadata(1, |it| {
                it.behaviour.inline_bytes = inline_bytes;
                it.behaviour.replays = 9;
            });
            let (inode, created) = create(&client, "a").await;
            client.fsync(created).await.unwrap();
            let before = fake.metadata_state();
            let truncated = client.open(inode, OpenMode::Write, true).await.unwrap().handle;
            write(&client, truncated, 0, b"bytes").await;
            client.close(truncated).await.unwrap();
            for number in 1..=2 {
                lose_and_replay(&fake, &before, number).await;
                assert_eq!(size_at_metadata(&fake, inode), 5);
            }
            client.fsync(created).await.unwrap();
            assert_eq!(read(&client, created, 0, 9).await, b"bytes");
        });
    }
}

/// Hole H180 in `docs/tests/holes.md`. The close is on its way during the power loss. After the
/// replay, the mount sends it again, with the truncate generation of the lost truncation.
#[test]
fn close_after_a_lost_truncation_of_no_bytes_reports_the_size() {
    with_client(|fake, client| async move {
        fake.with_metadata(1, |it| it.behaviour.replays = 9);
        let (inode, created) = create(&client, "a").await;
        client.fsync(created).await.unwrap();
        let before = fake.metadata_state();
        let truncated = client.open(inode, OpenMode::Write, true).await.unwrap().handle;
        write(&client, truncated, 0, b"bytes").await;
        let closer = client.clone();
        let closing = async move { closer.close(truncated).await };
        let task = begin_held::<Close, _>(&fake, closing).await;
        lose_and_replay(&fake, &before, 1).await;
        fake.state.borrow_mut().hold = None;
        task.await.unwrap();
        assert_eq!(size_at_metadata(&fake, inode), 5);
    });
}
