//! Names and attributes.

use crate::fakes::METADATA_GROUPS;
use crate::{NEW, create, create_request, mount, until, with_client, with_fake};
use skep_client::{Closes, Directories, InodeAttributes, Names, Opens, StatFs};
use skep_types::map::Capacity;
use skep_types::{Attributes, ErrorCode, InodeId, TargetKind};
use skep_wire::management::Heartbeat;
use skep_wire::metadata::{GetAttributes, Lookup, OpenSession};
use std::time::Duration;

#[test]
fn a_lookup_is_one_message() {
    with_client(|fake, client| async move {
        let (inode, _) = create(&client, "a").await;
        let before = fake.count::<Lookup>();
        assert_eq!(client.lookup(InodeId::ROOT, b"a").await.unwrap().inode, inode);
        assert_eq!(fake.count::<Lookup>(), before + 1);
        assert_eq!(fake.count::<GetAttributes>(), 0);
        assert_eq!(fake.count::<OpenSession>(), 1);
        let error = client.lookup(InodeId::ROOT, b"b").await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::NotFound);
    });
}

#[test]
fn attributes_of_another_shard_are_asked_for_where_they_live() {
    with_client(|fake, client| async move {
        let elsewhere =
            fake.with_metadata(METADATA_GROUPS[1], |it| *it.inodes.keys().next().unwrap());
        fake.with_metadata(METADATA_GROUPS[0], |it| it.directory_elsewhere = Some(elsewhere));
        let made = client.make_directory(InodeId::ROOT, b"d", NEW).await.unwrap();
        assert_eq!(made.inode, elsewhere);
        assert_eq!(client.lookup(InodeId::ROOT, b"d").await.unwrap(), made);
        assert_eq!(fake.count::<GetAttributes>(), 2);
        assert_eq!(fake.count::<OpenSession>(), 2, "one session at each group");
    });
}

#[test]
fn a_directory_that_was_removed_is_shown_as_it_was_seen() {
    with_client(|fake, client| async move {
        let made = client.make_directory(InodeId::ROOT, b"d", NEW).await.unwrap();
        let (file, _) = create(&client, "a").await;
        fake.with_metadata(METADATA_GROUPS[0], |it| it.inodes.clear());
        let found = client.stat(made.inode).await.unwrap().attributes;
        assert_eq!(found, Attributes { links: 0, size: 0, ..made });
        assert!(client.stat(file).await.is_err(), "files are kept while they are open");
        assert!(client.stat(InodeId::new(77)).await.is_err(), "never seen");
    });
}

#[test]
fn the_root_is_shown_while_metadata_is_away() {
    with_client(|fake, client| async move {
        let seen = client.stat(InodeId::ROOT).await.unwrap().attributes;
        fake.state.borrow_mut().is_down = true;
        assert_eq!(client.stat(InodeId::ROOT).await.unwrap().attributes, seen);
    });
}

#[test]
fn the_root_is_opened_while_metadata_is_away_but_nothing_kept_of_it_is_right() {
    with_client(|fake, client| async move {
        client.stat(InodeId::ROOT).await.unwrap();
        assert!(!client.open_directory(InodeId::ROOT).await.unwrap(), "nothing is kept yet");
        assert!(client.open_directory(InodeId::ROOT).await.unwrap());
        fake.state.borrow_mut().is_down = true;
        assert!(!client.open_directory(InodeId::ROOT).await.unwrap());
    });
}

#[test]
fn a_create_opens_a_file_that_exists_unless_exclusive() {
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
fn a_create_opens_a_file_whose_inode_lives_in_another_shard() {
    with_client(|fake, client| async move {
        // A file of the second shard under a name in the first, as a rename leaves it.
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

#[test]
fn room_is_shown_when_all_targets_were_heard_or_after_a_lease() {
    for is_told in [true, false] {
        with_fake(move |fake| async move {
            let lease = Duration::from_millis(if is_told { 60_000 } else { 300 });
            if let Some(map) = &mut fake.state.borrow_mut().map {
                map.policy.lease_ms = lease.as_millis() as u32;
                let storage = map.targets.iter_mut().find(|it| it.kind == TargetKind::Storage);
                storage.expect("a target").capacity = Capacity::default();
            }
            let begun = skep_env::now();
            let client = mount(&fake).await;
            let asking = {
                let client = client.clone();
                skep_env::spawn(async move { client.statfs().await.unwrap().total_bytes })
            };
            let before = fake.count::<Heartbeat>();
            until(|| fake.count::<Heartbeat>() > before + 3).await;
            if is_told {
                assert!(!asking.is_finished(), "one target was not heard");
                let told = Capacity { total_bytes: 9, ..Capacity::default() };
                fake.state.borrow_mut().capacity = Some(told);
                assert_eq!(asking.await, 9);
            } else {
                assert_eq!(asking.await, 3 << 40, "what is known of the others");
                assert!(skep_env::now() >= begun + lease);
            }
        });
    }
}

#[test]
fn room_is_the_sum_over_storage_groups() {
    with_client(|fake, client| async move {
        let expected = StatFs {
            total_bytes: 4 << 40,
            free_bytes: 4 << 39,
            files: 4000,
            free_files: 3600,
            name_max: 255,
        };
        assert_eq!(client.statfs().await.unwrap(), expected);
        // What a heartbeat's answer says is newer than the map, until one says something else.
        let told = Capacity { total_bytes: 9, free_bytes: 5, ..Capacity::default() };
        for capacity in [Some(told), None] {
            fake.state.borrow_mut().capacity = capacity;
            let before = fake.count::<Heartbeat>();
            until(|| fake.count::<Heartbeat>() > before + 1).await;
            let found = client.statfs().await.unwrap();
            assert_eq!((found.total_bytes, found.free_bytes), (9, 5));
        }
    });
}
