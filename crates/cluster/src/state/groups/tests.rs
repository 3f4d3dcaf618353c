//! Tests of groups in the state of the cluster: waiting targets, and changes of members.

use crate::command::{Command, GroupRevision, Outcome};
use crate::state::tests::{cluster, server};
use crate::state::{ClusterState, kind_word};
use skep_types::group_change::{GroupChange, MemberChange};
use skep_types::map::{Consistency, Policy};
use skep_types::{Epoch, ErrorCode, GroupId, NodeKind, Result, TargetId, TargetKind};

const FIRST: TargetId = TargetId::new(1);
const SECOND: TargetId = TargetId::new(2);

/// Returns a cluster with two metadata targets that wait for a group.
fn waiting() -> ClusterState {
    let mut state = cluster();
    let policy = Policy { metadata_copies: 2, ..Policy::default() };
    state.apply(&Command::SetPolicy(policy)).unwrap();
    state.apply(&server(TargetKind::Metadata, 1, &[11])).unwrap();
    state.apply(&server(TargetKind::Metadata, 2, &[21])).unwrap();
    state
}

fn create(state: &mut ClusterState, targets: &[TargetId]) -> Result<Outcome> {
    state.apply(&Command::CreateGroup { targets: targets.to_vec() })
}

fn change(
    state: &mut ClusterState,
    epoch: u64,
    change: MemberChange,
    target: TargetId,
) -> Result<Outcome> {
    let (group, epoch) = (GroupId::new(1), Epoch::new(epoch));
    state.apply(&Command::ChangeGroup(GroupChange { group, epoch, change, target }))
}

fn code(result: Result<Outcome>) -> ErrorCode {
    result.unwrap_err().code()
}

fn consistency(state: &ClusterState, target: TargetId) -> Consistency {
    state.map().target(target).unwrap().consistency
}

#[test]
fn metadata_targets_wait_for_a_group_if_copies_are_configured() {
    let mut state = waiting();
    assert!(state.map().groups.is_empty());
    assert!(state.map().group_of(FIRST).is_none());
    let error = state.apply(&Command::Format).unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotReady);
    assert!(error.context().contains("`skep group create 1 2`"), "{error}");
    // The setting `metadata-copies` does not apply to storage targets.
    state.apply(&server(TargetKind::Storage, 3, &[31])).unwrap();
    assert!(state.map().group_of(TargetId::new(3)).is_some(), "{}", kind_word(NodeKind::Storage));
    // A target that waits for a group registers again. The second registration creates no group for
    // the target.
    assert!(!state.apply(&server(TargetKind::Metadata, 1, &[11])).unwrap().changed);
    assert!(state.map().group_of(FIRST).is_none());
    // A later change of the setting applies only to targets that register after the change.
    state.apply(&Command::SetPolicy(Policy::default())).unwrap();
    state.apply(&server(TargetKind::Metadata, 4, &[41])).unwrap();
    assert!(state.map().group_of(TargetId::new(4)).is_some());
    assert!(state.map().group_of(FIRST).is_none());
}

#[test]
fn repeated_creation_of_a_group_returns_the_same_group() {
    let mut state = waiting();
    let created = create(&mut state, &[FIRST]).unwrap();
    assert!(created.changed);
    assert_eq!(state.map().primary(created.group).unwrap().id, FIRST);
    let again = create(&mut state, &[FIRST]).unwrap();
    assert_eq!((again.changed, again.group), (false, created.group));
    assert_eq!(code(create(&mut state, &[FIRST, SECOND])), ErrorCode::Exists);
    assert_eq!(code(create(&mut state, &[TargetId::new(9)])), ErrorCode::NotFound);
    assert_eq!(code(create(&mut state, &[])), ErrorCode::InvalidArgument);
    state.apply(&server(TargetKind::Storage, 3, &[31])).unwrap();
    assert!(state.apply(&Command::Format).unwrap().changed);
}

#[test]
fn change_of_a_member_needs_the_current_epoch_of_the_group() {
    let mut state = waiting();
    create(&mut state, &[FIRST]).unwrap();
    change(&mut state, 1, MemberChange::Add, SECOND).unwrap();
    assert_eq!(consistency(&state, SECOND), Consistency::NeedsResync);
    assert_eq!(
        code(change(&mut state, 1, MemberChange::TakeOver, SECOND)),
        ErrorCode::NotPermitted
    );
    change(&mut state, 1, MemberChange::MarkInSync, SECOND).unwrap();
    assert_eq!(consistency(&state, SECOND), Consistency::Good);
    assert_eq!(code(change(&mut state, 1, MemberChange::TakeOver, SECOND)), ErrorCode::StaleMap);
    assert!(change(&mut state, 2, MemberChange::TakeOver, SECOND).unwrap().changed);
    assert_eq!(state.map().primary(GroupId::new(1)).unwrap().id, SECOND);
    assert_eq!(consistency(&state, FIRST), Consistency::NeedsResync);
    // The test assumes that the reply was lost, so the member asks again.
    assert!(!change(&mut state, 2, MemberChange::TakeOver, SECOND).unwrap().changed);
    let none = GroupChange {
        group: GroupId::new(7),
        epoch: Epoch::new(1),
        change: MemberChange::Drop,
        target: FIRST,
    };
    assert_eq!(code(state.apply(&Command::ChangeGroup(none))), ErrorCode::NotFound);
}

/// The data of a removed member is old. If the target became the primary of a new group, it would
/// assign inode numbers that its previous group has assigned already.
#[test]
fn removed_member_cannot_form_a_new_group() {
    let mut state = waiting();
    create(&mut state, &[FIRST]).unwrap();
    change(&mut state, 1, MemberChange::Add, SECOND).unwrap();
    change(&mut state, 1, MemberChange::Remove, SECOND).unwrap();
    assert!(state.map().group_of(SECOND).is_none());
    let error = create(&mut state, &[SECOND]).unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotPermitted);
    change(&mut state, 2, MemberChange::Add, SECOND).unwrap();
}

#[test]
fn group_accepts_only_ungrouped_targets_of_its_kind() {
    let mut state = waiting();
    create(&mut state, &[FIRST]).unwrap();
    state.apply(&server(TargetKind::Storage, 3, &[31])).unwrap();
    let storage = TargetId::new(3);
    assert_eq!(code(change(&mut state, 1, MemberChange::Add, storage)), ErrorCode::Exists);
    assert_eq!(
        code(change(&mut state, 1, MemberChange::Add, TargetId::new(8))),
        ErrorCode::NotFound
    );
}

/// The backup of management is older than the addition of the second target to the group.
#[test]
fn reported_members_of_a_restored_group_serve_in_a_new_epoch() {
    let mut state = waiting();
    create(&mut state, &[FIRST]).unwrap();
    let revise = |state: &mut ClusterState, epoch, above, members: &[TargetId]| {
        let (group, epoch, above) = (GroupId::new(1), Epoch::new(epoch), Epoch::new(above));
        let revision = GroupRevision { group, epoch, above, members: members.to_vec() };
        state.apply(&Command::ReviseGroup(revision))
    };
    assert_eq!(code(revise(&mut state, 2, 3, &[FIRST, SECOND])), ErrorCode::StaleMap);
    assert_eq!(code(revise(&mut state, 1, u64::MAX, &[FIRST])), ErrorCode::LimitReached);
    let unknown = TargetId::new(9);
    assert!(revise(&mut state, 1, 3, &[FIRST, SECOND, unknown]).unwrap().changed);
    state.check_invariants();
    let group = state.map().group(GroupId::new(1)).unwrap();
    assert!(crate::groups::is_undecided(group.epoch) && group.epoch.raw() > 3);
    assert_eq!(group.members.len(), 2, "the map does not have the third target");
    assert_eq!(consistency(&state, SECOND), Consistency::Good);
    // A target of another group is not moved.
    state.apply(&server(TargetKind::Metadata, 4, &[41])).unwrap();
    let third = TargetId::new(3);
    create(&mut state, &[third]).unwrap();
    let epoch = state.map().group(GroupId::new(1)).unwrap().epoch.raw();
    revise(&mut state, epoch, 3, &[third]).unwrap();
    assert_eq!(state.map().group_of(third).unwrap().id, GroupId::new(2));
}
