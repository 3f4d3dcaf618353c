//! Tests opens whose reply arrives late: after metadata has executed the open, this mount changes
//! the file, and only then the reply arrives.
//!
//! The reply has the attributes from before the change. Earlier, the mount used the old size in the
//! reply if no state of the file showed the change any more. Reads found no bytes, and an append
//! overwrote bytes that another program had synced. Now the mount treats such a file as shared, and
//! requests its size before each use.

use crate::fakes::FakeCluster;
use crate::{begin_late, read, set_size, until, with_client, write};
use skep_client::{
    Client, Closes, HandleId, InodeAttributes, OpenMode, OpenedFile, Opens, Syncs, Writes,
};
use skep_env::Buf;
use skep_types::InodeId;
use skep_wire::metadata::Open;

/// An open for writing that metadata has executed. The fake holds its reply.
struct LateOpen {
    inode: InodeId,
    opening: skep_env::Task<OpenedFile>,
}

impl LateOpen {
    /// Begins to open a new, empty file that another client has created.
    async fn begin(fake: &FakeCluster, client: &Client) -> Self {
        let inode = fake.with_metadata(1, |it| it.make_file(b"late"));
        let opener = client.clone();
        let opening = async move { opener.open(inode, OpenMode::Write, false).await.unwrap() };
        Self { inode, opening: begin_late::<Open, _>(fake, opening).await }
    }

    /// Lets the reply arrive, and returns the handle.
    async fn end(self, fake: &FakeCluster) -> HandleId {
        fake.state.borrow_mut().held_reply.is_held = false;
        self.opening.await.handle
    }
}

/// docs/semantics.md 2.1 and 2.4.
#[test]
fn open_with_a_late_reply_sees_a_truncation_by_its_mount() {
    with_client(|fake, client| async move {
        let late = LateOpen::begin(&fake, &client).await;
        let inode = late.inode;
        client.set_attributes(set_size(inode, 1000)).await.unwrap();
        let handle = late.end(&fake).await;
        assert_eq!(read(&client, handle, 0, 2000).await, [0; 1000]);
        client.append(handle, 0, Buf::copy_of(b"line")).await.unwrap();
        assert_eq!(read(&client, handle, 1000, 100).await, b"line");
        client.attributes(inode).await.unwrap();
        assert_eq!(fake.with_metadata(1, |it| it.inodes[&inode].attributes.size), 1004);
    });
}

/// docs/semantics.md 2.1 and 3.3: another program of the mount opens, writes, syncs and closes the
/// file.
#[test]
fn append_after_a_late_open_reply_keeps_synced_bytes() {
    with_client(|fake, client| async move {
        let late = LateOpen::begin(&fake, &client).await;
        let other = client.open(late.inode, OpenMode::Write, false).await.unwrap().handle;
        write(&client, other, 0, &[1; 1000]).await;
        client.fsync(other).await.unwrap();
        client.close(other).await.unwrap();
        until(|| fake.with_metadata(1, |it| it.open_count() == 1)).await;
        let handle = late.end(&fake).await;
        client.append(handle, 0, Buf::copy_of(b"line")).await.unwrap();
        let expected = [&[1_u8; 1000][..], b"line"].concat();
        assert_eq!(read(&client, handle, 0, 2000).await, expected);
    });
}

/// A file stays unshared if no other operation of the mount overtakes its open. So reads and writes
/// of the file cost no request to metadata.
#[test]
fn file_is_not_shared_if_no_operation_overtakes_its_open() {
    with_client(|fake, client| async move {
        let late = LateOpen::begin(&fake, &client).await;
        let other = fake.with_metadata(1, |it| it.make_file(b"other"));
        client.set_attributes(set_size(other, 1000)).await.unwrap();
        fake.state.borrow_mut().held_reply.is_held = false;
        assert!(!late.opening.await.is_shared);
        let truncated = client.open(other, OpenMode::Write, true).await.unwrap();
        assert!(!truncated.is_shared, "the truncation by the open itself does not count");
    });
}
