//! Tests names, attributes and the capacity that `statfs` returns.

use crate::fakes::{FakeCluster, METADATA_GROUPS};
use crate::{NEW, begin_held, create, create_request, mount, until, with_client, with_fake};
use skep_client::{Closes, Directories, InodeAttributes, Names, OpenMode, Opens, StatFs};
use skep_types::map::Capacity;
use skep_types::{Attributes, ErrorCode, InodeId, TargetKind};
use skep_wire::management::Heartbeat;
use skep_wire::metadata::{GetAttributes, Lookup, OpenSession, ReadDirectory};
use std::time::Duration;

/// Adds a name of an inode to the root directory, which is at the first metadata group.
fn set_name(fake: &FakeCluster, name: &[u8], inode: InodeId) {
    fake.with_metadata(METADATA_GROUPS[0], |it| {
        it.entries.insert((InodeId::ROOT, name.into()), inode);
    });
}

#[test]
fn lookup_within_one_metadata_group_sends_one_request() {
    with_client(|fake, client| async move {
        let (inode, _) = create(&client, "a").await;
        let before = fake.count::<Lookup>();
        for repetition in 1..=2 {
            assert_eq!(client.lookup(InodeId::ROOT, b"a").await.unwrap().inode, inode);
            assert_eq!(fake.count::<Lookup>(), before + repetition);
        }
        assert_eq!(fake.count::<GetAttributes>(), 0);
        assert_eq!(fake.count::<OpenSession>(), 1);
        let error = client.lookup(InodeId::ROOT, b"b").await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::NotFound);
    });
}

#[test]
fn attributes_come_from_the_metadata_group_of_the_inode() {
    with_client(|fake, client| async move {
        let elsewhere =
            fake.with_metadata(METADATA_GROUPS[1], |it| *it.inodes.keys().next().unwrap());
        fake.with_metadata(METADATA_GROUPS[0], |it| {
            it.behaviour.directory_elsewhere = Some(elsewhere);
        });
        let made = client.make_directory(InodeId::ROOT, b"d", NEW).await.unwrap();
        assert_eq!(made.inode, elsewhere);
        assert_eq!(client.lookup(InodeId::ROOT, b"d").await.unwrap(), made);
        assert_eq!(fake.count::<GetAttributes>(), 2);
        assert_eq!(fake.count::<OpenSession>(), 2, "one session at each group");
    });
}

/// docs/semantics.md 1.4. Another client replaces the file between the two requests of a lookup:
/// the name and the inode are at different metadata targets.
#[test]
fn lookup_finds_the_new_file_of_a_replaced_name() {
    with_client(|fake, client| async move {
        let there = METADATA_GROUPS[1];
        let [old, new] =
            [b"old", b"new"].map(|it| fake.with_metadata(there, |at| at.make_file(it)));
        set_name(&fake, b"a", old);
        let looking = {
            let client = client.clone();
            async move { client.lookup(InodeId::ROOT, b"a").await }
        };
        let looking = begin_held::<GetAttributes, _>(&fake, looking).await;
        set_name(&fake, b"a", new);
        fake.with_metadata(there, |it| it.inodes.remove(&old));
        fake.state.borrow_mut().hold = None;
        assert_eq!(looking.await.unwrap().inode, new);
        assert_eq!(fake.count::<Lookup>(), 2);
    });
}

#[test]
fn repeated_lookup_asks_both_groups_at_the_same_time() {
    with_client(|fake, client| async move {
        let inode = fake.with_metadata(METADATA_GROUPS[1], |it| it.make_file(b"a"));
        set_name(&fake, b"a", inode);
        let sent = |fake: &FakeCluster| (fake.count::<Lookup>(), fake.count::<GetAttributes>());
        client.lookup(InodeId::ROOT, b"a").await.unwrap();
        let (lookups, requests) = sent(&fake);
        let looking = async move { client.lookup(InodeId::ROOT, b"a").await };
        let looking = begin_held::<Lookup, _>(&fake, looking).await;
        // The request for the attributes does not wait for the reply to the lookup.
        until(|| sent(&fake) == (lookups + 1, requests + 1)).await;
        fake.state.borrow_mut().hold = None;
        assert_eq!(looking.await.unwrap().inode, inode);
        assert_eq!(sent(&fake), (lookups + 1, requests + 1));
    });
}

/// Regression test: if the early request for the attributes failed, the lookup sent this request a
/// second time.
#[test]
fn repeated_lookup_repeats_no_failed_request_for_attributes() {
    with_client(|fake, client| async move {
        let there = METADATA_GROUPS[1];
        let inode = fake.with_metadata(there, |it| it.make_file(b"a"));
        set_name(&fake, b"a", inode);
        client.lookup(InodeId::ROOT, b"a").await.unwrap();
        fake.with_metadata(there, |it| it.inodes.remove(&inode));
        let before = (fake.count::<Lookup>(), fake.count::<GetAttributes>());
        client.lookup(InodeId::ROOT, b"a").await.unwrap_err();
        let lookups = fake.count::<Lookup>() - before.0;
        assert!(lookups > 1, "the client looks the name up again");
        assert_eq!(fake.count::<GetAttributes>() - before.1, lookups);
    });
}

/// docs/semantics.md 1.2.
#[test]
fn repeated_lookup_shows_changes_of_the_name_and_attributes() {
    with_client(|fake, client| async move {
        let there = METADATA_GROUPS[1];
        let [old, new] =
            [b"old", b"new"].map(|it| fake.with_metadata(there, |at| at.make_file(it)));
        set_name(&fake, b"a", old);
        assert_eq!(client.lookup(InodeId::ROOT, b"a").await.unwrap().inode, old);
        fake.with_metadata(there, |it| it.inodes.get_mut(&old).unwrap().attributes.size = 7);
        assert_eq!(client.lookup(InodeId::ROOT, b"a").await.unwrap().size, 7);
        set_name(&fake, b"a", new);
        assert_eq!(client.lookup(InodeId::ROOT, b"a").await.unwrap().inode, new);
        fake.with_metadata(METADATA_GROUPS[0], |it| it.entries.clear());
        let error = client.lookup(InodeId::ROOT, b"a").await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::NotFound);
        let here = fake.with_metadata(METADATA_GROUPS[0], |it| it.make_file(b"a"));
        assert_eq!(client.lookup(InodeId::ROOT, b"a").await.unwrap().inode, here);
    });
}

/// docs/semantics.md 1.2 and 1.4.
#[test]
fn only_an_open_begun_before_a_removal_opens_the_removed_file() {
    with_client(|fake, client| async move {
        let inode = fake.with_metadata(METADATA_GROUPS[0], |it| it.make_file(b"a"));
        let hold = client.hold(inode).await.unwrap();
        mount(&fake).await.unlink(InodeId::ROOT, b"a").await.unwrap();
        let stale = client.open(inode, OpenMode::Read, false).await.unwrap_err();
        assert_eq!(stale.code(), ErrorCode::Stale, "a cached name opens no removed file");
        let opened = client.open_held(inode, OpenMode::Read, false).await.unwrap();
        client.close(hold).await.unwrap();
        let again = client.open(inode, OpenMode::Read, false).await.unwrap();
        client.close(again.handle).await.unwrap();
        client.close(opened.handle).await.unwrap();
        until(|| fake.with_metadata(METADATA_GROUPS[0], |it| it.open_count()) == 0).await;
    });
}

#[test]
fn stat_of_a_removed_directory_returns_its_last_attributes() {
    with_client(|fake, client| async move {
        let made = client.make_directory(InodeId::ROOT, b"d", NEW).await.unwrap();
        let (file, _) = create(&client, "a").await;
        fake.with_metadata(METADATA_GROUPS[0], |it| it.inodes.clear());
        let found = client.stat(made.inode).await.unwrap().attributes;
        assert_eq!(found, Attributes { links: 0, size: 0, ..made });
        assert!(client.stat(file).await.is_err(), "file attributes are not kept");
        assert!(
            client.stat(InodeId::new(77)).await.is_err(),
            "the mount has never seen this inode"
        );
    });
}

/// docs/semantics.md 4.10.
#[test]
fn stat_of_the_root_succeeds_while_metadata_is_down() {
    with_client(|fake, client| async move {
        let seen = client.stat(InodeId::ROOT).await.unwrap().attributes;
        fake.state.borrow_mut().is_down = true;
        assert_eq!(client.stat(InodeId::ROOT).await.unwrap().attributes, seen);
    });
}

#[test]
fn root_can_be_opened_for_listing_while_metadata_is_down() {
    with_client(|fake, client| async move {
        client.stat(InodeId::ROOT).await.unwrap();
        assert!(
            !client.open_directory(InodeId::ROOT, Duration::ZERO).await.unwrap(),
            "no listing is cached yet"
        );
        assert!(client.open_directory(InodeId::ROOT, Duration::ZERO).await.unwrap());
        fake.state.borrow_mut().is_down = true;
        assert!(!client.open_directory(InodeId::ROOT, Duration::ZERO).await.unwrap());
    });
}

/// With an old listing, the kernel would look up each entry that a program then uses.
#[test]
fn small_directory_is_listed_again_after_its_entries_expire() {
    with_client(|fake, client| async move {
        let (root, hour) = (InodeId::ROOT, Duration::from_secs(3600));
        for name in ["a", "b", "c"] {
            create(&client, name).await;
        }
        client.stat(root).await.unwrap();
        assert!(!client.open_directory(root, hour).await.unwrap(), "no listing is cached yet");
        // Returns whether the next open keeps the listing, and the number of requests that the open
        // sends.
        let opens_after = async |max_bytes: u32, with_attributes: bool, max_age: Duration| {
            client.read_directory(root, 0, max_bytes, with_attributes).await.unwrap();
            let before = fake.count::<GetAttributes>();
            let keeps_listing = client.open_directory(root, max_age).await.unwrap();
            (keeps_listing, fake.count::<GetAttributes>() - before)
        };
        assert_eq!(opens_after(300, true, hour).await, (true, 1));
        assert_eq!(opens_after(300, true, Duration::ZERO).await, (false, 0));
        assert_eq!(opens_after(300, false, Duration::ZERO).await, (true, 1), "without attributes");
        assert_eq!(opens_after(200, true, Duration::ZERO).await, (true, 1), "two entries fit");
    });
}

/// docs/semantics.md 1.6: after the last entry, the kernel asks for more entries, and only an empty
/// reply ends the listing.
#[test]
fn end_of_a_listing_needs_no_request_to_metadata() {
    with_client(|fake, client| async move {
        let (root, hour) = (InodeId::ROOT, Duration::from_secs(3600));
        // Lists the directory as the kernel does. Returns the number of entries and of requests.
        let list = async |max_bytes: u32| {
            let before = fake.count::<ReadDirectory>();
            let (mut cursor, mut count, mut is_continued) = (0, 0, false);
            while !is_continued || !client.has_listed_all(root, cursor, hour) {
                let page = client.read_directory(root, cursor, max_bytes, true).await.unwrap();
                count += page.entries.len();
                match page.entries.last() {
                    Some(last) => cursor = last.cursor,
                    None if is_continued => break,
                    None => {}
                }
                is_continued = true;
            }
            (count, fake.count::<ReadDirectory>() - before)
        };
        assert_eq!(list(300).await, (0, 1));
        for name in ["a", "b", "c"] {
            create(&client, name).await;
        }
        assert_eq!(list(300).await, (3, 1));
        assert_eq!(list(200).await, (3, 2), "two pages");
        // Another program opens the directory, and may have seen a file that is created now.
        let page = client.read_directory(root, 0, 300, true).await.unwrap();
        client.open_directory(root, hour).await.unwrap();
        assert!(!client.has_listed_all(root, page.entries[2].cursor, hour));
    });
}

#[test]
fn create_opens_an_existing_file_unless_exclusive() {
    with_client(|_, client| async move {
        let (inode, _) = create(&client, "a").await;
        let found = client.create(create_request("a", false)).await.unwrap();
        assert_eq!((found.attributes.inode, found.created), (inode, false));
        assert!(found.handle.is_some());
        let error = client.create(create_request("a", true)).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Exists);
    });
}

#[test]
fn create_opens_existing_files_with_an_inode_in_another_shard() {
    with_client(|fake, client| async move {
        // As after a rename, the inode of the file is in the second shard, and its name is in the
        // first shard.
        let group = METADATA_GROUPS[1];
        let mut request = create_request("there", true);
        request.directory = fake.with_metadata(group, |it| *it.inodes.keys().next().unwrap());
        let there = client.create(request).await.unwrap().attributes.inode;
        fake.with_metadata(METADATA_GROUPS[0], |it| {
            it.entries.insert((InodeId::ROOT, b"here"[..].into()), there);
        });
        let opens = fake.with_metadata(group, |it| it.open_count());
        let found = client.create(create_request("here", false)).await.unwrap();
        assert_eq!((found.attributes.inode, found.created), (there, false));
        assert_eq!(fake.with_metadata(group, |it| it.open_count()), opens + 1);
        client.close(found.handle.unwrap()).await.unwrap();
        until(|| fake.with_metadata(group, |it| it.open_count()) == opens).await;
    });
}

/// docs/semantics.md 1.15.
#[test]
fn statfs_waits_at_most_a_lease_for_capacity_of_all_targets() {
    for is_reported in [true, false] {
        with_fake(move |fake| async move {
            let lease = Duration::from_millis(if is_reported { 60_000 } else { 300 });
            if let Some(map) = &mut fake.state.borrow_mut().map {
                map.policy.lease_ms = lease.as_millis() as u32;
                let storage =
                    map.targets.iter_mut().find(|target| target.kind == TargetKind::Storage);
                storage.expect("a target").capacity = Capacity::default();
            }
            let started = skep_env::now();
            let client = mount(&fake).await;
            let pending = {
                let client = client.clone();
                skep_env::spawn(async move { client.statfs().await.unwrap().total_bytes })
            };
            let before = fake.count::<Heartbeat>();
            until(|| fake.count::<Heartbeat>() > before + 3).await;
            if is_reported {
                assert!(!pending.is_finished(), "one target has not reported its capacity");
                let reported = Capacity { total_bytes: 9, ..Capacity::default() };
                fake.state.borrow_mut().capacity = Some(reported);
                assert_eq!(pending.await, 9);
            } else {
                assert_eq!(pending.await, 3 << 40, "the sum of the other targets");
                assert!(skep_env::now() >= started + lease);
            }
        });
    }
}

#[test]
fn statfs_is_the_sum_over_storage_groups() {
    with_client(|fake, client| async move {
        let expected = StatFs {
            total_bytes: 4 << 40,
            free_bytes: 4 << 39,
            files: 4000,
            free_files: 3600,
            name_max: 255,
        };
        assert_eq!(client.statfs().await.unwrap(), expected);
        // The capacity in the reply to a heartbeat is newer than the capacity in the map. The mount
        // continues to use this newer capacity if a later reply contains none.
        let reported = Capacity { total_bytes: 9, free_bytes: 5, ..Capacity::default() };
        for capacity in [Some(reported), None] {
            fake.state.borrow_mut().capacity = capacity;
            let before = fake.count::<Heartbeat>();
            until(|| fake.count::<Heartbeat>() > before + 1).await;
            let found = client.statfs().await.unwrap();
            assert_eq!((found.total_bytes, found.free_bytes), (9, 5));
        }
    });
}
