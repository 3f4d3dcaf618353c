//! `AskTakeOver`: a member asks to become the primary of its metadata group, because it receives
//! nothing from the current primary. A member whose host may have lost records reports this with
//! the same request. So does a target whose recorded state of the group is newer than management's
//! state, because management was restored from a backup.

use crate::authority::Authority;
use crate::map_log::{self, Asker};
use skep_cluster::command::GroupRevision;
use skep_cluster::limits::MAX_MEMBERS;
use skep_cluster::losses::{Choice, choice_after_restore, needed_reports};
use skep_cluster::{Command, RequestId, groups, losses};
use skep_types::group_change::{GroupChange, MemberChange};
use skep_types::map::Consistency;
use skep_types::{ClusterMap, Epoch, Error, ErrorCode, Group, Result, TargetId};
use skep_wire::management::{AskTakeOver, EmptyReply};
use std::time::Duration;

pub(super) async fn handle(
    authority: &Authority,
    id: RequestId,
    request: AskTakeOver,
) -> Result<EmptyReply> {
    let AskTakeOver { group, epoch, target, lacks_records, .. } = request;
    if !lacks_records {
        // In an undecided epoch each member may lack records.
        if groups::is_undecided(epoch) {
            return Err(stale(&request));
        }
        let change = GroupChange { group, epoch, change: MemberChange::TakeOver, target };
        let before = authority.map();
        if authority.command(id, Command::ChangeGroup(change)).await?.changed {
            map_log::change_line(&before, &change, Asker::Member, Duration::ZERO).write();
        }
        return Ok(EmptyReply {});
    }
    let map = authority.map();
    let Some(found) = map.group(group) else { return Err(stale(&request)) };
    if request.record.is_after(found) {
        // A new leader may not have published its newest state yet. So compare the record with this
        // state, because only a restore makes the state older than the record.
        let newest = authority.confirmed_group(group).await?;
        let newest = newest.filter(|it| request.record.is_after(it));
        let Some(newest) = newest else { return Err(stale(&request)) };
        map_log::revision_line(&map, &newest, &request.record, target).write();
        let known = request.record.members.iter().copied();
        let members = known.chain([target]).collect();
        return revise(authority, &newest, request.record.epoch, members).await;
    }
    let is_member = found.members.iter().any(|member| member.target == target);
    let is_undecided = found.epoch == epoch && groups::is_undecided(epoch);
    if is_undecided && !is_member && returns(&map, found, &request) {
        // An earlier report of another member has begun this epoch, which is also above the epoch
        // of this record.
        map_log::revision_line(&map, found, &request.record, target).write();
        return revise(authority, found, Epoch::default(), vec![target]).await;
    }
    if found.epoch != epoch || !is_member {
        return Err(stale(&request));
    }
    let reports = authority.note_loss(&request);
    if !groups::is_undecided(epoch) {
        let ends = reports.iter().map(|(target, report)| (*target, report.end)).collect();
        return change(authority, &map, found, losses::changes(found, &ends)).await;
    }
    let absent = match choice_after_restore(found, &reports) {
        Choice::Changes(changes) => return change(authority, &map, found, changes).await,
        Choice::Wait(absent) => absent,
    };
    // A target that joined the group after the backup can report only as a member, so add the
    // needed targets. A damaged record may name more targets than a group can have. In this case,
    // add no target, because each report would begin another epoch.
    let needed = needed_reports(found, &reports);
    let has_space = needed.len() <= MAX_MEMBERS;
    if has_space && absent.iter().any(|it| may_join(&map, found, *it)) {
        return revise(authority, found, Epoch::default(), needed.into_iter().collect()).await;
    }
    if authority.note_loss_wait(group) {
        map_log::waiting_group_line(&map, found, &absent).write();
    }
    Ok(EmptyReply {})
}

/// Returns the refusal of a request that names another epoch than the group has.
fn stale(request: &AskTakeOver) -> Error {
    let AskTakeOver { group, epoch, target, .. } = request;
    let context = format!(
        "cannot let target {target} take over group {group}: the epoch of the group is not \
         {epoch}, the target is not a member of the group, or management compares the logs of the \
         members after a restore"
    );
    Error::new(ErrorCode::StaleMap, context)
}

/// Whether a target is in no group and can become a member of `group`.
fn may_join(map: &ClusterMap, group: &Group, target: TargetId) -> bool {
    let found = map.target(target);
    found.is_some_and(|it| it.kind == group.kind) && map.group_of(target).is_none()
}

/// Whether the sender of a report becomes a member of a group in an undecided epoch. The record of
/// this sender may be the newest record. The data of a target that has left its group are marked as
/// incomplete.
fn returns(map: &ClusterMap, group: &Group, request: &AskTakeOver) -> bool {
    let found = map.target(request.target);
    request.record.epoch > Epoch::default()
        && found.is_some_and(|it| it.consistency == Consistency::Good)
        && may_join(map, group, request.target)
        && group.members.len() < MAX_MEMBERS
}

/// Begins an epoch above `above` in which management compares the logs of the members. `members`
/// are the targets that may have all changes of the group.
async fn revise(
    authority: &Authority,
    group: &Group,
    above: Epoch,
    members: Vec<TargetId>,
) -> Result<EmptyReply> {
    let (group, epoch) = (group.id, group.epoch);
    let revision = GroupRevision { group, epoch, above, members };
    authority.command(RequestId::default(), Command::ReviseGroup(revision)).await?;
    Ok(EmptyReply {})
}

/// Makes changes of a group, each in the epoch that the change before it has begun. If another
/// change of the group comes between these changes, the decision is based on an old group, and
/// management refuses the remaining changes.
async fn change(
    authority: &Authority,
    map: &ClusterMap,
    group: &Group,
    changes: Vec<(MemberChange, TargetId)>,
) -> Result<EmptyReply> {
    let mut next = group.clone();
    for (change, target) in changes {
        let change = GroupChange { group: group.id, epoch: next.epoch, change, target };
        next = groups::apply(&next, &change)?;
        map_log::loss_line(map, &change).write();
        authority.command(RequestId::default(), Command::ChangeGroup(change)).await?;
    }
    Ok(EmptyReply {})
}
