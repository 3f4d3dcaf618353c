//! Tests sizes and times of files during writes, and whether the kernel may keep its cache.

use crate::{create, create_with, mount, read, set_size, whole_lock, with_client, write};
use skep_client::{
    Client, Closes, Copies, FileLock, HandleId, InodeAttributes, LockKind, LockOutcome, Locks,
    Names, OpenMode, Opens, Reads, SetAttributes, Syncs,
};
use skep_types::{ErrorCode, InodeId};
use skep_wire::Request;
use skep_wire::metadata::{Close, GetAttributes, KeepAlive, ReportWritten};
use skep_wire::storage::StatChunk;
use std::time::Duration;

#[test]
fn new_size_is_visible_to_other_mounts_after_a_flush() {
    with_client(|fake, client| async move {
        let other = mount(&fake).await;
        let (inode, handle) = create(&client, "a").await;
        write(&client, handle, 10, b"0123456789").await;
        assert_eq!(client.lookup(InodeId::ROOT, b"a").await.unwrap().size, 20);
        assert_eq!(other.attributes(inode).await.unwrap().size, 0);
        client.flush(handle).await.unwrap();
        assert_eq!(other.attributes(inode).await.unwrap().size, 20);
        write(&client, handle, 20, b"x").await;
        assert_eq!(client.attributes(inode).await.unwrap().size, 21);
        assert_eq!(
            other.attributes(inode).await.unwrap().size,
            21,
            "a stat by the writer reports the size"
        );
    });
}

#[test]
fn flush_and_close_report_only_new_writes() {
    with_client(|fake, client| async move {
        let (inode, handle) = create(&client, "a").await;
        client.flush(handle).await.unwrap();
        assert_eq!(fake.count::<ReportWritten>(), 0);
        write(&client, handle, 0, b"abc").await;
        client.flush(handle).await.unwrap();
        client.flush(handle).await.unwrap();
        assert_eq!(fake.count::<ReportWritten>(), 1);
        write(&client, handle, 3, b"def").await;
        client.close(handle).await.unwrap();
        assert_eq!((fake.count::<ReportWritten>(), fake.count::<Close>()), (1, 1));
        assert_eq!(client.attributes(inode).await.unwrap().size, 6);
        assert!(client.close(handle).await.is_err());
    });
}

#[test]
fn read_at_the_known_end_returns_bytes_that_were_appended() {
    with_client(|fake, client| async move {
        let (inode, writer) = create(&client, "a").await;
        let other = mount(&fake).await;
        let reader = other.open(inode, OpenMode::Read, false).await.unwrap().handle;
        write(&client, writer, 0, b"appended").await;
        client.flush(writer).await.unwrap();
        let asked = fake.count::<GetAttributes>();
        while read(&other, reader, 0, 100).await != b"appended" {
            skep_env::sleep(std::time::Duration::from_millis(1)).await;
        }
        assert_eq!(fake.count::<GetAttributes>(), asked + 1);
    });
}

#[test]
fn truncation_by_the_writer_takes_effect_immediately() {
    with_client(|_, client| async move {
        let (inode, handle) = create_with(&client, "a", b"0123456789").await;
        assert_eq!(client.set_attributes(set_size(inode, 4)).await.unwrap().size, 4);
        assert_eq!(read(&client, handle, 0, 100).await, b"0123");
        write(&client, handle, 4, b"x").await;
        client.close(handle).await.unwrap();
        assert_eq!(client.attributes(inode).await.unwrap().size, 5);
        let again = client.open(inode, OpenMode::Write, true).await.unwrap();
        assert_eq!(read(&client, again.handle, 0, 100).await, b"");
    });
}

#[test]
fn truncation_by_another_mount_keeps_only_later_writes() {
    with_client(|fake, client| async move {
        let (inode, handle) = create_with(&client, "log", &[1; 1000]).await;
        let other = mount(&fake).await;
        other.set_attributes(set_size(inode, 0)).await.unwrap();
        fake.each_storage(|storage| storage.files.values_mut().for_each(Vec::clear));
        write(&client, handle, 1000, &[2; 10]).await;
        client.flush(handle).await.unwrap();
        assert_eq!(other.attributes(inode).await.unwrap().size, 1010);
        client.close(handle).await.unwrap();
        // Second case of the test: the client writes nothing after the truncation.
        let (inode, handle) = create_with(&client, "gone", &[1; 1000]).await;
        other.set_attributes(set_size(inode, 7)).await.unwrap();
        fake.each_storage(|storage| {
            storage
                .files
                .iter_mut()
                .filter(|it| it.0.inode == inode)
                .for_each(|it| it.1.truncate(7));
        });
        client.close(handle).await.unwrap();
        assert_eq!(other.attributes(inode).await.unwrap().size, 7);
    });
}

#[test]
fn page_cache_is_kept_until_another_mount_changes_the_file() {
    with_client(|fake, client| async move {
        let (inode, handle) = create_with(&client, "a", b"x").await;
        client.close(handle).await.unwrap();
        let open = async |client: &crate::Client| {
            let opened = client.open(inode, OpenMode::Write, false).await.unwrap();
            (opened.handle, opened.keep_cache)
        };
        let (handle, kept) = open(&client).await;
        assert!(kept, "only this mount wrote");
        client.close(handle).await.unwrap();
        let other = mount(&fake).await;
        let (handle, kept) = open(&other).await;
        assert!(!kept, "this mount has never opened the file");
        write(&other, handle, 0, b"y").await;
        other.close(handle).await.unwrap();
        let (first, kept) = open(&client).await;
        assert!(!kept);
        assert!(!open(&client).await.1, "the kernel may not have handled the first reply yet");
        assert_eq!(read(&client, first, 0, 9).await, b"y");
        assert!(open(&client).await.1, "the kernel has dropped its pages before this read");
    });
}

/// Hole H182 in `docs/tests/holes.md`. docs/semantics.md 6.6: until the kernel has dropped the
/// pages for a lock, it must also drop them for other locks and opens.
#[test]
fn pages_stay_outdated_until_the_kernel_drops_them_for_a_lock() {
    with_client(|fake, client| async move {
        let (inode, handle) = create_with(&client, "a", b"x").await;
        let other = mount(&fake).await;
        other.set_attributes(set_size(inode, 0)).await.unwrap();
        let lock = async || {
            let lock = whole_lock(LockKind::Flock, 0);
            match client.set_lock(handle, lock, 0).await.unwrap() {
                LockOutcome::Granted { keep_cache, version, .. } => (keep_cache, version),
                LockOutcome::Refused => panic!("no other owner has a lock"),
            }
        };
        let open = async || client.open(inode, OpenMode::Read, false).await.unwrap();
        let (kept, version) = lock().await;
        assert!(!kept);
        assert!(!lock().await.0);
        assert!(!open().await.keep_cache);
        client.pages_dropped(inode, version);
        assert!(lock().await.0);
        assert!(open().await.keep_cache);
    });
}

/// Hole H182 in `docs/tests/holes.md`. docs/semantics.md 2.2: the program was killed during its
/// open, so the kernel has dropped no pages.
#[test]
fn open_of_a_killed_program_drops_no_pages() {
    with_client(|fake, client| async move {
        let (inode, handle) = create_with(&client, "a", b"x").await;
        client.close(handle).await.unwrap();
        let other = mount(&fake).await;
        other.set_attributes(set_size(inode, 0)).await.unwrap();
        let open = async || client.open(inode, OpenMode::Read, false).await.unwrap();
        client.close_unused(open().await.handle).await.unwrap();
        let opened = open().await;
        assert!(!opened.keep_cache);
        client.close(opened.handle).await.unwrap();
        assert!(open().await.keep_cache);
    });
}

/// Databases call `fstat` after each lock.
#[test]
fn stat_after_a_lock_needs_no_request() {
    with_client(|fake, client| async move {
        let (inode, handle) = create_with(&client, "a", b"bytes").await;
        client.stat(inode).await.unwrap();
        client.set_lock(handle, whole_lock(LockKind::Flock, 0), 0).await.unwrap();
        let known = |max_age| client.known_attributes(inode, max_age).map(|(it, _)| it.size);
        let hour = Duration::from_secs(3600);
        assert_eq!(known(hour), Some(5));
        assert_eq!(known(Duration::ZERO), None, "the attribute timeout is zero");
        write(&client, handle, 5, b"more").await;
        assert_eq!(known(hour), None, "metadata has no report of the write");
        client.stat(inode).await.unwrap();
        assert_eq!(known(hour), Some(9), "the reply to the report has the attributes");
        create(&client, "b").await;
        assert_eq!(known(hour), None, "the mount has changed another file");
        assert_eq!(fake.count::<GetAttributes>(), 0);
        client.stat(inode).await.unwrap();
        assert_eq!((known(hour), fake.count::<GetAttributes>()), (Some(9), 1));
    });
}

/// SQLite locks two ranges, unlocks one of them, and then calls `fstat`. Before the fix, the unlock
/// made the attributes in the reply to the lock unusable, and the mount ignored the attributes in
/// the reply to the unlock.
#[test]
fn stat_after_an_unlock_needs_no_request() {
    with_client(|fake, client| async move {
        let other = mount(&fake).await;
        let (inode, handle) = create_with(&client, "a", b"bytes").await;
        let asked = fake.count::<GetAttributes>();
        let known = || {
            let known = client.known_attributes(inode, Duration::from_secs(3600));
            known.map(|(it, _)| it.size)
        };
        let unlock = async || {
            let lock = FileLock { mode: None, ..whole_lock(LockKind::Posix, 7) };
            client.set_lock(handle, lock, 0).await.unwrap();
        };
        client.set_lock(handle, whole_lock(LockKind::Posix, 7), 0).await.unwrap();
        write(&client, handle, 5, b"more").await;
        unlock().await;
        assert_eq!(known(), Some(9), "the report before the unlock contains the write");
        assert_eq!(fake.count::<GetAttributes>(), asked);
        // If another mount has changed the file, the mount requests the attributes.
        let change = SetAttributes { size: None, permissions: Some(0o600), ..set_size(inode, 0) };
        other.set_attributes(change).await.unwrap();
        unlock().await;
        assert_eq!(known(), None);
        let requested = client.stat(inode).await.unwrap().attributes;
        assert_eq!((requested.size, requested.permissions), (9, 0o600));
        assert_eq!(fake.count::<GetAttributes>(), asked + 1);
    });
}

/// Programs that unpack archives change the owner of each new file. To change the owner, the mount
/// needs the permissions of the file.
#[test]
fn attributes_of_a_new_file_need_no_request() {
    with_client(|fake, client| async move {
        let (inode, _) = create(&client, "a").await;
        let known = || {
            let known = client.known_attributes(inode, Duration::from_secs(3600));
            known.map(|(it, _)| it.inode)
        };
        assert_eq!(known(), Some(inode));
        create(&client, "b").await;
        assert_eq!(known(), None, "the mount has changed another file");
        assert_eq!(fake.count::<GetAttributes>(), 0);
    });
}

/// Returns the size and the version in the attributes that the kernel gets before it reads from its
/// pages.
async fn for_reading(client: &Client, handle: HandleId) -> Option<(u64, u64)> {
    let attributes = client.attributes_for_reading(handle).await;
    attributes.map(|it| (it.size, it.change_counter))
}

/// docs/semantics.md 2.1: the kernel's pages contain the writes of this mount, so the kernel keeps
/// these pages, and the mount sends no request to metadata.
#[test]
fn kernel_keeps_its_pages_after_writes_of_this_mount() {
    with_client(|fake, client| async move {
        let (inode, handle) = create(&client, "a").await;
        client.note_shown(&client.attributes(inode).await.unwrap());
        assert_eq!(for_reading(&client, handle).await, None, "nothing has changed the time");
        write(&client, handle, 0, b"0123456789").await;
        assert_eq!(for_reading(&client, handle).await, Some((10, 1)));
        client.fsync(handle).await.unwrap();
        assert_eq!(
            for_reading(&client, handle).await,
            Some((10, 1)),
            "a report does not change the time"
        );
        assert_eq!((fake.count::<GetAttributes>(), fake.count::<ReportWritten>()), (1, 1));
        let reader = client.open(inode, OpenMode::Read, false).await.unwrap().handle;
        assert_eq!(for_reading(&client, reader).await, Some((10, 1)));
        client.note_shown(&client.attributes(inode).await.unwrap());
        assert_eq!(for_reading(&client, handle).await, Some((10, 2)), "a program saw the new time");
        client.close(handle).await.unwrap();
        assert_eq!(for_reading(&client, reader).await, None, "this mount cannot write");
    });
}

/// docs/semantics.md 2.1 and 2.3: after each event in this test, the kernel's pages may be out of
/// date.
#[test]
fn open_makes_the_kernel_check_pages_that_may_be_outdated() {
    with_client(|fake, client| async move {
        let written = async |name: &str| {
            let (inode, handle) = create(&client, name).await;
            client.note_shown(&client.attributes(inode).await.unwrap());
            assert_eq!(for_reading(&client, handle).await, None, "nothing has changed the time");
            write(&client, handle, 0, b"x").await;
            assert!(for_reading(&client, handle).await.is_some());
            (inode, handle)
        };
        let (_, direct) = written("direct").await;
        client.note_direct_write(direct);
        assert_eq!(for_reading(&client, direct).await, None, "a write without the kernel's pages");
        fake.with_metadata(1, |metadata| metadata.behaviour.shares_files = true);
        let (inode, shared) = written("shared").await;
        mount(&fake).await.open(inode, OpenMode::Write, false).await.unwrap();
        let again = client.open(inode, OpenMode::Read, false).await.unwrap();
        assert!(again.is_shared);
        assert_eq!(for_reading(&client, shared).await, None, "another mount has the file open");
        let (inode, lost) = written("lost").await;
        fake.forget_sessions(1);
        client.attributes(inode).await.unwrap();
        assert_eq!(for_reading(&client, lost).await, None, "the session was lost meanwhile");
    });
}

/// docs/semantics.md 2.3 and 3.8: other clients may change the file as soon as the lease has run
/// out.
#[test]
fn kernel_keeps_its_pages_only_while_the_lease_is_valid() {
    with_client(|fake, client| async move {
        let (inode, handle) = create(&client, "a").await;
        client.note_shown(&client.attributes(inode).await.unwrap());
        assert_eq!(for_reading(&client, handle).await, None, "nothing has changed the time");
        write(&client, handle, 0, b"x").await;
        fake.state.borrow_mut().hold = Some(KeepAlive::ID);
        // The mount replies to the kernel immediately until the lease may have run out.
        let reading = loop {
            let reader = client.clone();
            let reading = skep_env::spawn(async move { for_reading(&reader, handle).await });
            // On a busy host, a read that waits for nothing may need longer than this pause.
            loop {
                skep_env::sleep(std::time::Duration::from_millis(1)).await;
                if reading.is_finished() || fake.count::<KeepAlive>() > 0 {
                    break;
                }
            }
            if !reading.is_finished() {
                break reading;
            }
            assert_eq!(reading.await, Some((1, 1)));
        };
        fake.state.borrow_mut().hold = None;
        assert_eq!(reading.await, Some((1, 1)));
    });
}

/// Hole H138 in `docs/tests/holes.md`. docs/semantics.md 3.7: the chunk files do not show a hole at
/// the end of the copy, so metadata would not find this hole if it computed the size after the
/// death of this client.
#[test]
fn size_of_a_copy_that_ends_with_a_hole_is_reported() {
    with_client(|fake, client| async move {
        let (source, from) = create_with(&client, "from", b"bytes").await;
        client.set_attributes(set_size(source, 1000)).await.unwrap();
        let (inode, to) = create(&client, "to").await;
        assert_eq!(client.copy((from, 0), (to, 0), 1000).await.unwrap(), 1000);
        assert_eq!(fake.with_metadata(1, |it| it.inodes[&inode].attributes.size), 1000);
    });
}

/// Hole H139 in `docs/tests/holes.md`. docs/semantics.md 4.7: the size of a file stays although a
/// target with chunk files of it was marked as lost.
#[test]
fn stat_of_a_sparse_file_on_a_lost_target_succeeds() {
    with_client(|fake, client| async move {
        let (inode, handle) = create(&client, "a").await;
        write(&client, handle, 1000, b"bytes").await;
        fake.state.borrow_mut().refusal = Some((StatChunk::ID, ErrorCode::TargetLost));
        let stat = client.stat(inode).await.unwrap();
        assert!(stat.attributes.is_sparse);
        assert_eq!((stat.attributes.size, stat.allocated_bytes), (1005, 0));
    });
}
