//! Tests of a target whose disk becomes full, and later has free space again.

use super::*;

const WHAT: &str = "target t1 has 1 MiB left under /data: free space there";

fn short() -> Event {
    Event::FreeSpace { shortage: Some(WHAT.to_owned()) }
}

const NEW: md::NewInode = md::NewInode { permissions: 0o700, umask: 0, uid: 0, gid: 0 };

fn create(name: &str, open: md::OpenMode, exclusive: bool) -> md::Create {
    md::Create { new: NEW, exclusive, open, ..create_in(InodeId::ROOT, name) }
}

fn rename(from_directory: InodeId, to_name: &str) -> md::Rename {
    md::Rename {
        from_directory,
        from_name: b"a".as_slice().into(),
        to_directory: InodeId::ROOT,
        to_name: to_name.as_bytes().into(),
        no_replace: false,
        whiteout: None,
    }
}

/// Checks that the target refuses a request with `NoSpace` and the text of the shortage.
#[track_caller]
fn refused<R: Request>(story: &mut Story, sequence: u64, request: &R)
where
    R::Reply: std::fmt::Debug,
{
    let error = story.ask(1, 1, (0, sequence), request).unwrap_err();
    assert_eq!((error.code(), error.context()), (ErrorCode::NoSpace, WHAT));
}

#[test]
fn target_on_a_full_disk_refuses_requests_that_need_space() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    story.happens(short());
    let root = InodeId::ROOT;
    let new = create("b", md::OpenMode::Write, true);
    refused(&mut story, 2, &new);
    let name: skep_types::codec::Bytes = b"b".as_slice().into();
    refused(&mut story, 3, &md::MakeDirectory { directory: root, name: name.clone(), new: NEW });
    let link_target = b"a".as_slice().into();
    let symlink = md::MakeSymlink { directory: root, name: name.clone(), new: NEW, link_target };
    refused(&mut story, 4, &symlink);
    refused(&mut story, 5, &md::Link { inode, directory: root, name: name.clone() });
    let (value, mode) = (b"v".as_slice().into(), md::XattrMode::Any);
    refused(&mut story, 6, &md::SetXattr { inode, name, value, mode, clear_set_group_id: false });
    let pattern = md::SetPattern { inode: root, pattern: None, uid: 0 };
    refused(&mut story, 7, &pattern);
    story.happens(Event::FreeSpace { shortage: None });
    story.ask(1, 1, (0, 8), &new).unwrap();
}

#[test]
fn target_on_a_full_disk_serves_reads_and_removals() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    let root = InodeId::ROOT;
    let name: skep_types::codec::Bytes = b"x".as_slice().into();
    let (value, mode) = (b"v".as_slice().into(), md::XattrMode::Any);
    story
        .ask(
            1,
            1,
            (0, 2),
            &md::SetXattr { inode, name: name.clone(), value, mode, clear_set_group_id: false },
        )
        .unwrap();
    let directory = md::MakeDirectory { directory: root, name: name.clone(), new: NEW };
    story.ask(1, 1, (0, 3), &directory).unwrap();
    story.happens(short());
    let again = create("a", md::OpenMode::Write, false);
    let opened = story.ask_sharing(2, (0, 1), &again, (1, inode));
    assert!(!opened.created);
    let exists = story.ask(1, 1, (0, 4), &create("a", md::OpenMode::No, true)).unwrap_err();
    assert_eq!(exists.code(), ErrorCode::Exists, "the reply with enough free space");
    let open = open_of(inode, md::OpenMode::Read);
    story.ask(1, 1, (0, 5), &open).unwrap();
    let report = super::report(inode, written_up_to(9));
    assert_eq!(story.ask(1, 1, (0, 6), &report).unwrap().attributes.size, 9);
    let longer = md::SetAttributes { size: Some(20), ..truncate(inode) };
    story.send(1, 1, (0, 7), &longer);
    story.answer::<st::TruncateChunk>(&truncated(1));
    assert!(matches!(story.replies.pop(), Some((1, Ok(_)))));
    assert_eq!(story.size(inode), 20);
    story.ask(1, 1, (0, 8), &rename(root, "c")).unwrap();
    story.ask(1, 1, (0, 9), &md::RemoveXattr { inode, name: name.clone() }).unwrap();
    story.ask(1, 1, (0, 10), &md::RemoveDirectory { directory: root, name }).unwrap();
    let name = b"c".as_slice().into();
    story.ask(1, 1, (0, 11), &md::Unlink { directory: root, name }).unwrap();
    for (session, sequence, open) in [(1, 12, md::OpenMode::Write), (1, 13, md::OpenMode::Read)] {
        story.ask(1, session, (0, sequence), &md::Close { inode, open, written: None }).unwrap();
    }
    story.ask(1, 2, (0, 0), &md::KeepAlive { lease_ms: 0 }).unwrap();
    story.ask(1, 2, (0, 0), &md::CloseSession {}).unwrap();
    story.happens(Event::Tick);
    assert_eq!(
        story.calls.last().unwrap().1.message,
        st::RemoveChunks::ID,
        "its chunk files are removed"
    );
    story.answer::<st::RemoveChunks>(&skep_wire::management::EmptyReply {});
    assert!(story.target.is_idle());
}

#[test]
fn target_on_a_full_disk_refuses_only_prepares_that_add_data() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    let prepare = |number, step| md::Prepare {
        transaction: md::TransactionId { coordinator: GroupId::new(9), number },
        steps: vec![step],
    };
    let parent = InodeId::ROOT;
    let make = md::Step::MakeDirectoryInode {
        parent,
        new: NEW,
        pattern: None,
        project: 0,
        hands_down_project: false,
        access_acl: Vec::new().into(),
        default_acl: Vec::new().into(),
    };
    let before = prepare(1, make.clone());
    let prepared = story.ask(1, 0, (0, 0), &before).unwrap();
    story.happens(short());
    let error = story.ask(1, 0, (0, 0), &prepare(2, make)).unwrap_err();
    assert_eq!((error.code(), error.context()), (ErrorCode::NoSpace, WHAT));
    let decide = md::Decide { transaction: before.transaction, commit: true };
    story.ask(1, 0, (0, 0), &decide).unwrap();
    let made = prepared.attributes[0].inode;
    story.ask(1, 2, (0, 0), &md::GetAttributes { inode: made }).unwrap();
    let own = md::TransactionId { coordinator: GroupId::new(1), number: 99 };
    story.ask(1, 0, (0, 0), &md::AskDecision { transaction: own }).unwrap();
    let drop = prepare(3, md::Step::DropLink { inode });
    assert!(!story.ask(1, 0, (0, 0), &drop).unwrap().busy);
    let decide = md::Decide { transaction: drop.transaction, commit: true };
    story.ask(1, 0, (0, 0), &decide).unwrap();
}

#[test]
fn group_with_little_space_gets_no_new_directory() {
    let mut story = Story::begin();
    let make = |directory, name: &str| md::MakeDirectory {
        directory,
        name: name.as_bytes().into(),
        new: NEW,
    };
    let parent = story.ask(1, 1, (0, 1), &make(InodeId::ROOT, "d")).unwrap().entry.inode;
    let mut map = map();
    let (other, shard) = (GroupId::new(3), ShardId::new(u16::MAX));
    map.targets.push(Target { id: TargetId::new(3), ..map.targets[0].clone() });
    map.groups.push(Group::of_one(other, TargetKind::Metadata, TargetId::new(3)));
    map.shards[0].last = ShardId::new(u16::MAX - 1);
    map.shards.push(ShardRange { first: shard, last: shard, group: other });
    map.targets[0].capacity_pool = CapacityPool::Low;
    map.version = MapVersion::new(2);
    story.happens(Event::Map(map.into()));
    story.send(1, 1, (0, 2), &make(parent, "e"));
    let request = &story.calls.last().unwrap().1;
    assert_eq!((request.group, request.message), (other, md::Prepare::ID));
}
