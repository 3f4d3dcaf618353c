//! The rules for changes of a group's members: which change is possible, and which epoch follows.
//!
//! Pure functions over one [`Group`]. Does not own the targets ([`crate::state`]). Does not decide
//! when a member takes over, because the members ask for a take-over.
//!
//! # Compare and set
//! A change contains the epoch on which its sender has based its decision. If the group has another
//! epoch, the change is refused. So if two members request changes in the same epoch, only the
//! first request succeeds. A sender whose reply was lost may repeat the change. The retry changes
//! nothing.
//!
//! # Invariants
//! - A group has at least one serving member, and its primary is one of them. So no change removes
//!   the last serving member.
//! - The epoch rises by one with each change of the primary or of the serving members. The epoch
//!   also rises by one when a member that does not serve is dropped or removed. With a restore of
//!   management, the epoch rises by far more ([`reopen`]). The epoch rises in no other case.
//!   Therefore a group has only one primary in each epoch.
//! - A group leaves an undecided epoch ([`is_undecided`]) only by the choice of a primary
//!   (`TakeOver` or `HandOver`). The term of this primary begins with the epoch of the choice.
//! - `primary_since` is the epoch in which the current primary became the primary.
//! - A member that does not serve becomes the primary only after management has marked the member
//!   as in sync.
//!
//! [`check_invariants`] asserts the invariants that a single state of a group can violate.
//!
//! # Undecided epochs
//! Management that was restored from a backup does not have the last changes of a group. So
//! management begins an undecided epoch, in which all members serve according to the map and no
//! member leads. Each member reports the end of its log and the last state of the group that it has
//! recorded. Management then chooses the primary ([`crate::losses`]). Any other change in an
//! undecided epoch begins another undecided epoch. Otherwise, after an administrator has dropped
//! all other members, the last member would lead without a comparison of the logs.
//!
//! # Hazard: late requests to mark a member as in sync
//! Before a primary asks management to mark a member as in sync, it begins to delay each reply
//! until this member has the records. As long as management may still execute the request, the
//! primary must not stop these delays. If the member dies meanwhile, the primary asks management to
//! drop the member, although the member does not serve. The drop revokes the earlier request.
//! Otherwise the group would send no reply until the member is back. A removal of the member also
//! revokes the earlier request, because the target may be added again.

use crate::limits::MAX_MEMBERS;
use skep_types::group_change::{GroupChange, MemberChange};
use skep_types::{
    Epoch, Error, ErrorCode, Group, GroupId, GroupMember, MemberState, Result, TargetId, TargetKind,
};

/// Distance between two epochs in which no member may lead ([`is_undecided`]). A group skips at
/// most this number of epochs when management's directory is restored from a backup.
const SKIPPED_EPOCHS: u64 = 1 << 32;
/// Maximum epoch that a member reports: half of all epochs. So reports of a faulty member never use
/// up the epochs of a group.
const MAX_REPORTED_EPOCH: u64 = u64::MAX / 2;

/// Whether no member may lead in this epoch, because management was restored from a backup and has
/// not compared the logs of the members yet.
pub fn is_undecided(epoch: Epoch) -> bool {
    epoch.raw() > 0 && epoch.raw() & (SKIPPED_EPOCHS - 1) == 0
}

/// Returns the first undecided epoch above `epoch`.
fn next_undecided(epoch: Epoch) -> Epoch {
    Epoch::new((epoch.raw() / SKIPPED_EPOCHS).saturating_add(1).saturating_mul(SKIPPED_EPOCHS))
}

/// Returns the group in an undecided epoch, because management was restored from a backup. Any
/// member may have all records, so all members serve according to the map. The new epoch is above
/// `above`, the newest epoch that a member has reported. The targets in `needed` are the first
/// members, because one of them may have all records. The present members follow up to the limit of
/// members.
pub fn reopen(group: &Group, above: Epoch, needed: &[TargetId]) -> Group {
    let mut next = group.clone();
    next.epoch = next_undecided(group.epoch.max(above));
    next.primary_since = next.epoch;
    next.members.clear();
    let present = group.members.iter().map(|member| member.target);
    for target in needed.iter().copied().chain(present) {
        if next.members.len() < MAX_MEMBERS && !is_member(&next, target) {
            next.members.push(GroupMember { target, state: MemberState::Serving });
        }
    }
    if !is_member(&next, next.primary)
        && let Some(first) = next.members.first()
    {
        next.primary = first.target;
    }
    next
}

/// Checks the epoch in a report of a member, before management begins an epoch above it.
///
/// # Errors
/// `LimitReached` if the epoch is too high.
pub fn check_reported_epoch(group: GroupId, epoch: Epoch) -> Result<()> {
    if epoch.raw() <= MAX_REPORTED_EPOCH {
        return Ok(());
    }
    let context = format!(
        "cannot accept epoch {epoch} of group {group}, which a member reports: management accepts \
         epochs up to {MAX_REPORTED_EPOCH} in a report; the file `member-mark` in the directory of \
         the member is damaged"
    );
    Err(Error::new(ErrorCode::LimitReached, context))
}

/// Whether management was restored from a backup between the epochs `before` and `now` of a group.
/// Without a restore, the epoch of a group never rises by half of `SKIPPED_EPOCHS`.
pub fn has_skipped(before: Epoch, now: Epoch) -> bool {
    now.raw() >= before.raw().saturating_add(SKIPPED_EPOCHS / 2)
}

/// Returns the epoch after a change that begins an epoch. Only the choice of a primary ends the
/// undecided epochs of a group.
fn epoch_after(before: Epoch, change: MemberChange) -> Epoch {
    let chooses_primary = matches!(change, MemberChange::TakeOver | MemberChange::HandOver);
    match is_undecided(before) && !chooses_primary {
        true => next_undecided(before),
        false => Epoch::new(before.raw().saturating_add(1)),
    }
}

/// Returns a new group of targets without data. The first target is the primary, and all targets
/// serve.
///
/// # Errors
/// `InvalidArgument` if the list of targets is empty, is too long, or has a duplicate.
pub fn create(id: GroupId, kind: TargetKind, targets: &[TargetId]) -> Result<Group> {
    let wrong = |what: String| Err(Error::new(ErrorCode::InvalidArgument, what));
    let Some((first, others)) = targets.split_first() else {
        return wrong("cannot create a group without targets".into());
    };
    if targets.len() > MAX_MEMBERS {
        return wrong(format!(
            "cannot create a group of {} targets: a group has at most {MAX_MEMBERS}",
            targets.len()
        ));
    }
    let mut group = Group::of_one(id, kind, *first);
    for target in others {
        if is_member(&group, *target) {
            return wrong(format!("cannot create a group with target {target} twice"));
        }
        group.members.push(GroupMember { target: *target, state: MemberState::Serving });
    }
    Ok(group)
}

/// Returns the group after a change. If the change is a retry, returns the group unchanged.
///
/// # Errors
/// - `StaleMap` if the epoch of the group differs from the epoch in the change.
/// - `NotPermitted` if the state of the member does not allow the change.
/// - `NotFound` if the target is not a member.
/// - `LimitReached` if the group has the maximum number of members.
pub fn apply(group: &Group, change: &GroupChange) -> Result<Group> {
    if is_done(group, change) {
        return Ok(group.clone());
    }
    if change.epoch != group.epoch {
        let context = format!(
            "cannot change group {} in epoch {}: another change was faster, and the group now has \
             epoch {}; repeat the change",
            group.id, change.epoch, group.epoch
        );
        return Err(Error::new(ErrorCode::StaleMap, context));
    }
    let mut next = group.clone();
    let target = change.target;
    // The drop or removal of a member that does not serve begins an epoch too, because the new
    // epoch revokes all requests of the old epoch.
    let mut begins_epoch = matches!(change.change, MemberChange::Drop | MemberChange::Remove);
    match change.change {
        // A member that does not serve counts as dropped by an administrator, so the comparison of
        // the logs would not wait for an added member.
        MemberChange::Add if is_undecided(group.epoch) => return Err(undecided(group, target)),
        MemberChange::Add => add(&mut next, target)?,
        MemberChange::Remove => {
            expect_state(group, target, false)?;
            next.members.retain(|member| member.target != target);
        }
        MemberChange::MarkInSync => {
            expect_state(group, target, false)?;
            set_state(&mut next, target, MemberState::Serving);
        }
        MemberChange::Drop => {
            if state_of(group, target).is_none() {
                expect_state(group, target, true)?;
            }
            expect_backup(group, target)?;
            set_state(&mut next, target, MemberState::Waiting);
        }
        MemberChange::TakeOver => {
            expect_state(group, target, true)?;
            expect_backup(group, target)?;
            set_state(&mut next, group.primary, MemberState::Waiting);
            next.primary = target;
        }
        // In an undecided epoch, this change chooses the primary. The present primary can be chosen
        // too.
        MemberChange::HandOver if is_undecided(group.epoch) => {
            expect_state(group, target, true)?;
            next.primary = target;
            begins_epoch = true;
        }
        MemberChange::HandOver => {
            expect_state(group, target, true)?;
            expect_backup(group, target)?;
            next.primary = target;
        }
    }
    begins_epoch |= next.primary != group.primary || !serving(&next).eq(serving(group));
    if begins_epoch {
        next.epoch = epoch_after(group.epoch, change.change);
    }
    let begins_term = is_undecided(group.epoch) && !is_undecided(next.epoch);
    if next.primary != group.primary || begins_term {
        next.primary_since = next.epoch;
    }
    Ok(next)
}

/// Asserts the invariants of one group.
///
/// # Panics
/// Panics if an invariant does not hold.
pub fn check_invariants(group: &Group) {
    let Group { id, epoch, primary, primary_since, ref members, .. } = *group;
    assert!(serving(group).any(|it| it == primary), "the primary of group {id} serves");
    assert!(primary_since.raw() >= 1 && primary_since <= epoch, "group {id} has a current term");
    assert!(members.len() <= MAX_MEMBERS, "group {id} has at most the maximum number of members");
    for (index, member) in members.iter().enumerate() {
        let others = &members[index + 1..];
        assert!(
            others.iter().all(|it| it.target != member.target),
            "group {id} has each member once"
        );
    }
}

/// Whether a change is a retry. If so, the group already has the epoch and the state that follow
/// from the change.
fn is_done(group: &Group, change: &GroupChange) -> bool {
    let follows = group.epoch == epoch_after(change.epoch, change.change);
    let state = state_of(group, change.target);
    match change.change {
        MemberChange::Add => group.epoch == change.epoch && state.is_some(),
        MemberChange::Remove => (follows || group.epoch == change.epoch) && state.is_none(),
        MemberChange::MarkInSync => follows && state == Some(MemberState::Serving),
        MemberChange::Drop => follows && state == Some(MemberState::Waiting),
        MemberChange::TakeOver | MemberChange::HandOver => {
            follows && group.primary == change.target && group.primary_since == group.epoch
        }
    }
}

fn undecided(group: &Group, target: TargetId) -> Error {
    let context = format!(
        "cannot add target {target} to group {id}: management was restored from a backup, compares \
         the logs of the members, and makes targets with newer changes members without a command. \
         Repeat the command when `skep group status {}` shows a primary that replies",
        group.id.raw(),
        id = group.id
    );
    Error::new(ErrorCode::NotPermitted, context)
}

fn add(group: &mut Group, target: TargetId) -> Result<()> {
    if group.members.len() >= MAX_MEMBERS {
        let context = format!(
            "cannot add target {target} to group {}: the group has {MAX_MEMBERS} members, which is \
             the limit; remove another member first",
            group.id
        );
        return Err(Error::new(ErrorCode::LimitReached, context));
    }
    group.members.push(GroupMember { target, state: MemberState::Waiting });
    Ok(())
}

/// Checks that a target is a member, and that it serves or does not serve, as `serves` requires.
fn expect_state(group: &Group, target: TargetId, serves: bool) -> Result<()> {
    let Some(state) = state_of(group, target) else {
        let context =
            format!("cannot change target {target}: it is not a member of group {}", group.id);
        return Err(Error::new(ErrorCode::NotFound, context));
    };
    if (state == MemberState::Serving) == serves {
        return Ok(());
    }
    let found = if serves { "does not serve, since it lacks data" } else { "serves" };
    let context =
        format!("cannot change target {target} of group {}: the target {found}", group.id);
    Err(Error::new(ErrorCode::NotPermitted, context))
}

/// Checks that a member is not the primary.
fn expect_backup(group: &Group, target: TargetId) -> Result<()> {
    if target != group.primary {
        return Ok(());
    }
    let others = serving(group).count() - 1;
    let context = match others {
        0 => format!(
            "cannot drop target {target}: it is the last serving member of group {}",
            group.id
        ),
        _ => {
            let other = serving(group).find(|other| *other != target).unwrap_or(target);
            format!(
                "cannot change target {target}: it is the primary of group {id}; make another \
                 member the primary first: `skep group move {} {}`",
                group.id.raw(),
                other.raw(),
                id = group.id
            )
        }
    };
    Err(Error::new(ErrorCode::NotPermitted, context))
}

fn set_state(group: &mut Group, target: TargetId, state: MemberState) {
    for member in group.members.iter_mut().filter(|member| member.target == target) {
        member.state = state;
    }
}

fn state_of(group: &Group, target: TargetId) -> Option<MemberState> {
    group.members.iter().find(|member| member.target == target).map(|member| member.state)
}

fn is_member(group: &Group, target: TargetId) -> bool {
    state_of(group, target).is_some()
}

/// Returns the members that serve.
pub(crate) fn serving(group: &Group) -> impl Iterator<Item = TargetId> {
    let serving = group.members.iter().filter(|member| member.state == MemberState::Serving);
    serving.map(|member| member.target)
}

#[cfg(test)]
mod tests;
