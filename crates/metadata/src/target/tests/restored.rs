//! Tests of a target whose log was restored from a backup.

use super::*;
use skep_wire::limits::MAX_STARTS;

fn which_exist(story: &mut Story, inodes: &[InodeId]) -> Result<Vec<bool>> {
    let request = st::WhichExist { inodes: inodes.to_vec() };
    story.ask(1, 0, (0, 0), &request).map(|reply| reply.exists)
}

/// docs/semantics.md 1.8: a restored target reuses no inode number that it had assigned after the
/// backup.
#[test]
fn restored_target_reuses_no_inode_number_or_version() {
    let mut story = Story::begin();
    let first = story.create_as("first", 1, (0, 1));
    let copy = story.log.clone();
    for start in 0..3 * MAX_STARTS as u64 {
        story.create_as(&format!("later {start}"), 1, (0, 2 + start));
        story.restart();
    }
    let newest = story.create_as("newest", 1, (0, 1000));
    let version = |story: &mut Story, inode| {
        story.ask(1, 2, (0, 0), &md::GetAttributes { inode }).unwrap().attributes.change_counter
    };
    let newest_version = version(&mut story, newest);

    story.log = copy;
    story.kill();
    story.target.continue_above_copy();
    assert!(!story.target.has_safe_numbers());
    story.happens(Event::Tick);
    assert!(story.target.has_safe_numbers());
    let next = story.create_as("next", 1, (0, 2));
    assert!(next.number() > newest.number() && first.number() < newest.number());
    assert!(version(&mut story, next) > newest_version);
    // After another restart, the target assigns higher numbers than before this restart.
    story.restart();
    assert!(story.create_as("after", 1, (0, 3)).number() > next.number());
}

/// If a restored target replied that an inode does not exist, storage would remove the chunk files
/// of the inode. But the target may have created the inode after the backup.
#[test]
fn restored_target_reports_missing_inodes_only_if_permitted() {
    let mut story = Story::begin();
    let file = story.create(1, (0, 1));
    let gone = InodeId::from_parts(file.shard(), file.number() + 1);
    assert_eq!(which_exist(&mut story, &[file, gone]).unwrap(), [true, false]);
    // Storage asks about an inode number that this target has not assigned yet.
    let newer = InodeId::from_parts(file.shard(), file.number() + (1 << 31));
    let refused = which_exist(&mut story, &[file, newer]).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::NotPermitted);
    assert_eq!(story.target.newer_inode(), Some(newer));
    story.kill();
    story.target.continue_above_copy();
    story.target.permit_removal(false);
    story.happens(Event::Tick);
    assert!(which_exist(&mut story, &[gone]).is_err());
    story.target.permit_removal(true);
    assert_eq!(which_exist(&mut story, &[file, gone]).unwrap(), [true, false]);
}
