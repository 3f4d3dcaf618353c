//! Tests of the rules for changes of a group's members.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const A: TargetId = TargetId::new(1);
const B: TargetId = TargetId::new(2);
const C: TargetId = TargetId::new(3);

/// Returns a group in which `A` is the primary, `B` serves, and `C` is a member that does not
/// serve.
fn group() -> Group {
    let mut group = create(GroupId::new(9), TargetKind::Metadata, &[A, B, C]).unwrap();
    group = done(&group, MemberChange::Drop, C);
    group = done(&group, MemberChange::HandOver, B);
    done(&group, MemberChange::HandOver, A)
}

fn change(group: &Group, change: MemberChange, target: TargetId) -> GroupChange {
    GroupChange { group: group.id, epoch: group.epoch, change, target }
}

/// Returns the group after a change that is based on the group's current epoch.
fn done(group: &Group, kind: MemberChange, target: TargetId) -> Group {
    let next = apply(group, &change(group, kind, target)).unwrap();
    check_invariants(&next);
    next
}

fn refused(group: &Group, kind: MemberChange, target: TargetId) -> ErrorCode {
    apply(group, &change(group, kind, target)).unwrap_err().code()
}

#[test]
fn first_target_of_a_new_group_is_primary_and_all_targets_serve() {
    let group = create(GroupId::new(9), TargetKind::Metadata, &[A, B]).unwrap();
    check_invariants(&group);
    assert_eq!((group.primary, group.epoch), (A, Epoch::new(1)));
    assert_eq!(state_of(&group, B), Some(MemberState::Serving));
    for wrong in [vec![], vec![A, A], (1..=9).map(TargetId::new).collect()] {
        let error = create(GroupId::new(9), TargetKind::Metadata, &wrong).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{wrong:?}");
    }
}

#[test]
fn second_take_over_in_the_same_epoch_is_refused() {
    let group = done(&group(), MemberChange::MarkInSync, C);
    let (by_b, by_c) =
        (change(&group, MemberChange::TakeOver, B), change(&group, MemberChange::TakeOver, C));
    let after = apply(&group, &by_b).unwrap();
    assert_eq!((after.primary, after.primary_since), (B, after.epoch));
    assert_eq!(after.epoch.raw(), group.epoch.raw() + 1);
    assert_eq!(state_of(&after, A), Some(MemberState::Waiting));
    assert_eq!(apply(&after, &by_c).unwrap_err().code(), ErrorCode::StaleMap);
    assert_eq!(apply(&after, &by_b).unwrap(), after, "a repetition changes nothing");
}

#[test]
fn deposed_primary_cannot_drop_the_new_primary() {
    let group = group();
    let drop_b = change(&group, MemberChange::Drop, B);
    let after = done(&group, MemberChange::TakeOver, B);
    assert_eq!(apply(&after, &drop_b).unwrap_err().code(), ErrorCode::StaleMap);
}

#[test]
fn last_serving_member_is_never_dropped() {
    let alone = done(&group(), MemberChange::Drop, B);
    for kind in [MemberChange::Drop, MemberChange::Remove] {
        let error = apply(&alone, &change(&alone, kind, A)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::NotPermitted, "{error}");
    }
    let error = apply(&alone, &change(&alone, MemberChange::Drop, A)).unwrap_err();
    assert!(error.context().contains("the last serving member of group g9"), "{error}");
}

#[test]
fn drop_of_a_member_revokes_requests_to_mark_it_as_in_sync() {
    let before = group();
    let marks = change(&before, MemberChange::MarkInSync, C);
    let after = done(&before, MemberChange::Drop, C);
    assert_eq!((&after.members, after.primary), (&before.members, before.primary));
    assert_eq!(after.epoch.raw(), before.epoch.raw() + 1);
    assert_eq!(apply(&after, &marks).unwrap_err().code(), ErrorCode::StaleMap);
    let again = change(&before, MemberChange::Drop, C);
    assert_eq!(apply(&after, &again).unwrap(), after, "a repetition changes nothing");
    assert_eq!(refused(&after, MemberChange::Drop, TargetId::new(77)), ErrorCode::NotFound);
}

#[test]
fn member_that_waits_for_a_resync_cannot_take_over() {
    let group = group();
    assert_eq!(refused(&group, MemberChange::TakeOver, C), ErrorCode::NotPermitted);
    assert_eq!(refused(&group, MemberChange::HandOver, C), ErrorCode::NotPermitted);
    // A member that was dropped must also be marked as in sync before it can become the primary.
    let dropped = done(&group, MemberChange::Drop, B);
    assert_eq!(refused(&dropped, MemberChange::TakeOver, B), ErrorCode::NotPermitted);
    let back = done(&dropped, MemberChange::MarkInSync, B);
    assert_eq!(done(&back, MemberChange::TakeOver, B).primary, B);
}

#[test]
fn returning_member_does_not_become_the_primary() {
    let after = done(&group(), MemberChange::TakeOver, B);
    let back = done(&after, MemberChange::MarkInSync, A);
    assert_eq!((back.primary, back.primary_since), (B, after.epoch));
    assert!(back.epoch > after.epoch);
}

#[test]
fn removal_of_a_member_revokes_requests_to_mark_it_as_in_sync() {
    let before = group();
    let marks = change(&before, MemberChange::MarkInSync, C);
    let without = done(&before, MemberChange::Remove, C);
    assert_eq!((without.epoch.raw(), without.members.len()), (before.epoch.raw() + 1, 2));
    let with = done(&without, MemberChange::Add, C);
    assert_eq!((with.epoch, &with.members), (without.epoch, &before.members));
    assert_eq!(apply(&with, &marks).unwrap_err().code(), ErrorCode::StaleMap);
    assert_eq!(done(&with, MemberChange::Add, C), with, "a repetition changes nothing");
    assert_eq!(refused(&with, MemberChange::TakeOver, TargetId::new(77)), ErrorCode::NotFound);
    let full = done(&with, MemberChange::Add, TargetId::new(4));
    assert_eq!(refused(&full, MemberChange::Add, TargetId::new(5)), ErrorCode::LimitReached);
}

fn any_change() -> impl Strategy<Value = (MemberChange, u32, u64)> {
    let kind = prop_oneof![
        Just(MemberChange::Add),
        Just(MemberChange::MarkInSync),
        Just(MemberChange::TakeOver),
        Just(MemberChange::Drop),
        Just(MemberChange::HandOver),
        Just(MemberChange::Remove),
    ];
    // The last number of each tuple is the age of the sender's map in epochs.
    (kind, 1..6_u32, prop_oneof![4 => Just(0_u64), 1 => 1..3_u64])
}

proptest! {
    #[test]
    fn an_epoch_has_one_primary_and_one_set_of_serving_members(
        changes in prop::collection::vec(any_change(), 1..80)
    ) {
        let mut group = create(GroupId::new(9), TargetKind::Metadata, &[A, B, C]).unwrap();
        let mut epochs = BTreeMap::new();
        for (kind, target, behind) in changes {
            let epoch = Epoch::new(group.epoch.raw().saturating_sub(behind));
            let target = TargetId::new(target);
            let asked = GroupChange { group: group.id, epoch, change: kind, target };
            let before = group.clone();
            if let Ok(next) = apply(&group, &asked) {
                group = next;
            }
            check_invariants(&group);
            let of_epoch: (TargetId, Vec<TargetId>) = (group.primary, serving(&group).collect());
            let known = epochs.entry(group.epoch).or_insert_with(|| of_epoch.clone());
            prop_assert_eq!(&*known, &of_epoch);
            prop_assert!(group.epoch.raw() - before.epoch.raw() <= 1);
            if group != before {
                prop_assert_eq!(epoch, before.epoch);
                // A retry of a change that has just succeeded changes nothing.
                prop_assert_eq!(&apply(&group, &asked).unwrap(), &group);
            }
            if group.primary != before.primary {
                prop_assert_eq!(state_of(&before, group.primary), Some(MemberState::Serving));
                prop_assert_eq!(group.primary_since, group.epoch);
            }
        }
    }
}

#[test]
fn group_of_restored_management_skips_many_epochs() {
    let before = group();
    let next = reopen(&before, Epoch::default(), &[]);
    check_invariants(&next);
    assert!(has_skipped(before.epoch, next.epoch) && !has_skipped(next.epoch, next.epoch));
    let later = Epoch::new(before.epoch.raw() + 1000);
    assert!(has_skipped(later, next.epoch), "the copy lacks a thousand changes of the group");
    assert!(!has_skipped(before.epoch, later), "a member was away during a thousand changes");
    assert_eq!(state_of(&next, C), Some(MemberState::Serving), "this member may have all records");
    assert_eq!(next.primary_since, next.epoch, "the primary begins a term");
    assert!(!is_undecided(before.epoch) && is_undecided(next.epoch));
}

#[test]
fn reopened_group_has_all_needed_members_and_a_higher_epoch() {
    let (needed, late) = ([TargetId::new(7), TargetId::new(8)], Epoch::new(5 << 32));
    let next = reopen(&group(), late, &needed);
    check_invariants(&next);
    assert!(is_undecided(next.epoch) && next.epoch > late, "{:?}", next.epoch);
    let members: Vec<_> = next.members.iter().map(|it| it.target).collect();
    assert_eq!(members, [needed[0], needed[1], A, B], "the group has at most four members");
    assert!(next.members.iter().all(|it| it.state == MemberState::Serving));
    assert_eq!(next.primary, A);
    let all = [5, 6, 7, 8].map(TargetId::new);
    assert_eq!(reopen(&group(), late, &all).primary, all[0]);
    assert!(check_reported_epoch(next.id, late).is_ok());
    let wild = check_reported_epoch(next.id, Epoch::new(u64::MAX)).unwrap_err();
    assert_eq!(wild.code(), ErrorCode::LimitReached);
}

/// A member that is alone after an administrator has dropped all other members must not lead before
/// management has compared its log.
#[test]
fn no_member_leads_a_restored_group_until_one_is_chosen() {
    let restored = reopen(&group(), Epoch::default(), &[]);
    let late = TargetId::new(9);
    assert_eq!(refused(&restored, MemberChange::Add, late), ErrorCode::NotPermitted);
    let without_b = done(&restored, MemberChange::Drop, B);
    assert!(is_undecided(without_b.epoch) && without_b.epoch > restored.epoch);
    let drop_b = change(&restored, MemberChange::Drop, B);
    assert_eq!(apply(&without_b, &drop_b).unwrap(), without_b, "a repetition changes nothing");
    let alone = done(&without_b, MemberChange::Drop, C);
    assert!(is_undecided(alone.epoch));
    let stays = change(&alone, MemberChange::HandOver, A);
    let decided = apply(&alone, &stays).unwrap();
    check_invariants(&decided);
    assert_eq!((decided.primary, decided.primary_since), (A, decided.epoch));
    assert_eq!(decided.epoch.raw(), alone.epoch.raw() + 1);
    assert_eq!(apply(&decided, &stays).unwrap(), decided, "a repetition changes nothing");
    let taken = done(&without_b, MemberChange::TakeOver, C);
    assert!(!is_undecided(taken.epoch) && taken.primary_since == taken.epoch);
    assert_eq!(refused(&decided, MemberChange::HandOver, A), ErrorCode::NotPermitted);
}
