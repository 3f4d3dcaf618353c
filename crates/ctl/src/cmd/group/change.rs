//! `skep group drop` and `skep group move`: change the state of a group's member.

use crate::access::{Access, ClusterArgs, block_on};
use crate::help::{Example, examples};
use crate::output::print;
use crate::view::target_named;
use serde::Serialize;
use skep_cluster::groups::is_undecided;
use skep_types::group_change::{GroupChange, MemberChange};
use skep_types::map::Reachability;
use skep_types::{ClusterMap, Error, ErrorCode, Group, MemberState, Result, TargetId};
use skep_wire::management::ChangeGroup;

const DROP_EXAMPLES: &[Example] =
    &[("stop waiting for metadata target 5, which does not answer", "skep group drop 2 5")];
const MOVE_EXAMPLES: &[Example] =
    &[("make metadata target 5 the primary of group 2", "skep group move 2 5")];

/// Stop waiting for a member of a metadata group
///
/// Without this command, the primary drops a member that has not answered for the time of the
/// setting metadata-lease (2 s by default). The target stays in the group. When the service of the
/// dropped member runs and reaches the primary, the target gets the missing changes and returns to
/// service.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(DROP_EXAMPLES))]
pub(crate) struct DropArgs {
    #[command(flatten)]
    member: MemberArgs,
}

/// Make a serving member the primary of its group
///
/// The previous primary stays a serving member. Operations pause for up to three seconds.
///
/// After a restore of management from a backup, a group waits until management has compared the
/// logs of its members. If a member is lost for good, this command ends the wait, also with the id
/// of the present primary. Changes that only the lost member has are lost.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(MOVE_EXAMPLES))]
pub(crate) struct MoveArgs {
    #[command(flatten)]
    member: MemberArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct MemberArgs {
    #[command(flatten)]
    pub(super) query: ClusterArgs,
    /// Id of the group (`skep group list`)
    #[arg(value_name = "GROUP")]
    pub(super) group: u32,
    /// Id of the member
    #[arg(value_name = "TARGET")]
    pub(super) target: String,
}

/// The JSON output: the group after the change.
#[derive(Debug, Serialize)]
pub(crate) struct ChangedGroup {
    pub(super) id: u32,
    pub(super) target: u32,
    pub(super) epoch: u64,
    pub(super) map_version: u64,
}

pub(crate) fn drop_member(args: DropArgs) -> Result<()> {
    let (changed, _) = change(args.member, MemberChange::Drop)?;
    print(&changed, |it| {
        format!("Group {} continues without target {} (epoch {}).", it.id, it.target, it.epoch)
    })
}

pub(crate) fn move_primary(args: MoveArgs) -> Result<()> {
    let (changed, is_changed) = change(args.member, MemberChange::HandOver)?;
    let already = if is_changed { "" } else { " already" };
    print(&changed, |it| {
        let ChangedGroup { id, target, epoch, .. } = it;
        format!("Target {target} is the primary of group {id}{already} (epoch {epoch}).")
    })
}

/// Changes a member, and returns its group after the change. Also returns whether this command has
/// changed the group. Changes nothing if the member is already the primary, unless the group waits
/// for a decision after a restore of management.
fn change(args: MemberArgs, change: MemberChange) -> Result<(ChangedGroup, bool)> {
    let MemberArgs { query, group, target } = args;
    let access = query.access(None)?;
    block_on(async move {
        let map = access.map().await?;
        let found = group_named(&map, group)?;
        let target = target_named(&map, &target)?.id;
        let is_primary = change == MemberChange::HandOver && found.primary == target;
        if is_primary && !is_undecided(found.epoch) {
            let (epoch, map_version) = (found.epoch.raw(), map.version.raw());
            let target = target.raw();
            return Ok((ChangedGroup { id: group, target, epoch, map_version }, false));
        }
        if change == MemberChange::Drop {
            check_drop(&map, found, target)?;
        }
        request(&access, found, change, target).await.map(|changed| (changed, true))
    })
}

/// Refuses to drop the only other serving member of a group whose primary does not answer
/// management. If the host of the primary has lost power, only the other member has the last
/// acknowledged changes. This member then takes over without a command.
///
/// # Errors
/// `NotPermitted` if the drop may lose changes.
pub(super) fn check_drop(map: &ClusterMap, group: &Group, target: TargetId) -> Result<()> {
    let serving = group.members.iter().filter(|it| it.state == MemberState::Serving);
    let others: Vec<TargetId> =
        serving.map(|it| it.target).filter(|it| *it != group.primary).collect();
    let primary = map.target(group.primary);
    let answers = primary.is_some_and(|it| it.reachability == Reachability::Online);
    if answers || others != [target] {
        return Ok(());
    }
    let (id, primary) = (group.id.raw(), group.primary);
    let context = format!(
        "cannot drop target {target}: the primary of group {id}, target {primary}, does not answer \
         management, so target {target} may be the only one with the last changes; make target \
         {target} the primary first (`skep group move {id} {0}`), or repeat the command when \
         target {primary} answers",
        target.raw()
    );
    Err(Error::new(ErrorCode::NotPermitted, context))
}

/// Asks management to change a member of `group`. Management refuses the request if the group's
/// epoch has changed since `group` was read.
pub(crate) async fn request(
    access: &Access,
    group: &Group,
    change: MemberChange,
    target: TargetId,
) -> Result<ChangedGroup> {
    let id = group.id;
    let change = GroupChange { group: id, epoch: group.epoch, change, target };
    let reply = access.ask(&ChangeGroup { change }).await?;
    Ok(ChangedGroup {
        id: id.raw(),
        target: target.raw(),
        epoch: reply.epoch.raw(),
        map_version: reply.version.raw(),
    })
}

/// Returns the group with the id `id`.
pub(crate) fn group_named(map: &ClusterMap, id: u32) -> Result<&Group> {
    map.groups.iter().find(|group| group.id.raw() == id).ok_or_else(|| {
        let context = format!(
            "cannot find group {id}: no group has this id; `skep group list` lists all groups"
        );
        Error::new(ErrorCode::NotFound, context)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{ClusterId, GroupId, GroupMember, NodeId, Target, TargetKind};

    #[test]
    fn last_backup_member_is_not_dropped_while_the_primary_is_down() {
        let kind = TargetKind::Metadata;
        let [primary, second, third] = [1, 2, 3].map(TargetId::new);
        let drop = |reachability, target, states: &[(TargetId, MemberState)]| {
            let mut map = ClusterMap::empty(ClusterId::default());
            map.targets
                .push(Target { reachability, ..Target::online(primary, kind, NodeId::new(1)) });
            let mut group = Group::of_one(GroupId::new(7), kind, primary);
            let members = states.iter().map(|(target, state)| (*target, *state));
            group.members.extend(members.map(|(target, state)| GroupMember { target, state }));
            check_drop(&map, &group, target)
        };
        let (serves, waits) = (MemberState::Serving, MemberState::Waiting);
        let (online, offline) = (Reachability::Online, Reachability::Offline);
        let refused = drop(offline, second, &[(second, serves)]).unwrap_err();
        for part in ["target t2", "`skep group move 7 2`", "target t1 answers"] {
            assert!(refused.context().contains(part), "{part}: {refused}");
        }
        drop(online, second, &[(second, serves)]).unwrap();
        drop(offline, second, &[(second, waits)]).unwrap();
        drop(offline, second, &[(second, serves), (third, serves)]).unwrap();
        drop(offline, second, &[(second, serves), (third, waits)]).unwrap_err();
    }
}
