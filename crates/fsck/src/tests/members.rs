//! Tests of the comparison of the members of a metadata group.

use super::{Stopped, entry, healthy, identity, inode, map, put_entry, remove, write_log};
use skep_format::cached_map::CachedMap;
use skep_format::identity::DirectoryKind;
use skep_metadata::engine::fjall_engine::FjallEngine;
use skep_metadata::engine::{Engine, Mutations};
use skep_store::identity::Directory;
use skep_types::{FileKind, GroupMember, InodeId, Lsn, MemberState, TargetId};

/// Adds a second member to the metadata group. Its store ends with the record `last`, and its log
/// has the records `logged` after it. Returns the findings, and whether the members were compared.
fn compare_with(
    records: &Mutations,
    last: u64,
    logged: &[Mutations],
    state: MemberState,
) -> (Vec<&'static str>, bool) {
    let other = TargetId::new(3);
    let stopped = Stopped::new(&healthy(), &[]);
    let mut map = map();
    map.groups[0].members.push(GroupMember { target: other, state });
    let cached = CachedMap { node_uuid: 1, map };
    std::fs::write(stopped.path("metadata-1/kept-map"), cached.to_file()).unwrap();
    let path = stopped.path("metadata-1/target-3");
    let target = identity(DirectoryKind::MetadataTarget, other);
    drop(Directory::initialise(&path, target).unwrap());
    let mut engine = FjallEngine::open(&path.join("store"), 1 << 20).unwrap();
    engine.apply(records, Lsn::new(last)).unwrap();
    engine.checkpoint().unwrap();
    drop(engine);
    write_log(&path, other, Lsn::new(last), logged);
    (stopped.words(), stopped.check().skipped.is_empty())
}

/// Returns the healthy records with another name for the file `/a`, and the change that gives the
/// file this name.
fn renamed() -> (Mutations, Mutations) {
    let mut renamed = healthy();
    remove(&mut renamed, &entry(InodeId::ROOT, "a"));
    put_entry(&mut renamed, InodeId::ROOT, "b", inode(5), FileKind::Regular);
    let mut change = Mutations::from([(entry(InodeId::ROOT, "a").to_bytes(), None)]);
    put_entry(&mut change, InodeId::ROOT, "b", inode(5), FileKind::Regular);
    (renamed, change)
}

#[test]
fn members_with_different_stores_at_one_record_are_reported() {
    let (renamed, _) = renamed();
    let serving = MemberState::Serving;
    assert_eq!(compare_with(&healthy(), 4, &[], serving), (vec![], true));
    assert_eq!(compare_with(&renamed, 4, &[], serving), (vec!["members-differ"], true));
    assert_eq!(compare_with(&renamed, 4, &[], MemberState::Syncing), (vec![], false));
}

#[test]
fn fsck_applies_missing_log_records_before_it_compares_members() {
    let (renamed, rename) = renamed();
    // The log record that reverts the rename. With this record, the second store equals the first
    // store.
    let mut back = Mutations::from([(entry(InodeId::ROOT, "b").to_bytes(), None)]);
    put_entry(&mut back, InodeId::ROOT, "a", inode(5), FileKind::Regular);
    let serving = MemberState::Serving;
    let logged = [back, rename.clone()];
    assert_eq!(compare_with(&renamed, 3, &logged[..1], serving), (vec![], true));
    // The newest store does not have record 5 yet.
    assert_eq!(compare_with(&renamed, 3, &logged, serving), (vec![], true));
    assert_eq!(compare_with(&healthy(), 3, &[rename], serving), (vec!["members-differ"], true));
    assert_eq!(compare_with(&renamed, 3, &[], serving), (vec![], false), "record 4 is missing");
}
