//! `skep group drop` and `skep group move`: changes of a group's members by an administrator.

use crate::access::{ClusterArgs, block_on};
use crate::help::{Example, examples};
use crate::output::print;
use crate::view::target_named;
use serde::Serialize;
use skep_types::group_change::{GroupChange, MemberChange};
use skep_types::{ClusterMap, Error, ErrorCode, Group, Result};
use skep_wire::management::ChangeGroup;

const DROP_EXAMPLES: &[Example] =
    &[("go on without metadata target 5, which does not answer", "skep group drop 2 5")];
const MOVE_EXAMPLES: &[Example] =
    &[("make metadata target 5 the primary of group 2", "skep group move 2 5")];

/// Stop waiting for a member of a metadata group
///
/// The primary drops a member that does not follow by itself after two seconds. The target stays in
/// the group. When its service runs again and reaches the primary, it gets the missing changes and
/// serves again.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(DROP_EXAMPLES))]
pub(crate) struct DropArgs {
    #[command(flatten)]
    member: MemberArgs,
}

/// Make a serving member the primary of its group
///
/// The former primary stays a serving member. Operations pause for up to three seconds.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(MOVE_EXAMPLES))]
pub(crate) struct MoveArgs {
    #[command(flatten)]
    member: MemberArgs,
}

#[derive(Debug, clap::Args)]
struct MemberArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Id of the group (`skep group list`)
    #[arg(value_name = "GROUP")]
    group: u32,
    /// Id of the member
    #[arg(value_name = "TARGET")]
    target: String,
}

/// The group after the change.
#[derive(Debug, Serialize)]
struct ChangedGroup {
    id: u32,
    target: u32,
    epoch: u64,
    map_version: u64,
}

pub(crate) fn drop_member(args: DropArgs) -> Result<()> {
    let changed = change(args.member, MemberChange::Drop)?;
    print(&changed, |it| {
        format!("Group {} goes on without target {} (epoch {}).", it.id, it.target, it.epoch)
    })
}

pub(crate) fn move_primary(args: MoveArgs) -> Result<()> {
    let changed = change(args.member, MemberChange::HandOver)?;
    print(&changed, |it| {
        format!("Target {} is the primary of group {} (epoch {}).", it.target, it.id, it.epoch)
    })
}

fn change(args: MemberArgs, change: MemberChange) -> Result<ChangedGroup> {
    let MemberArgs { query, group, target } = args;
    let access = query.access(None)?;
    block_on(async move {
        let map = access.map().await?;
        let found = group_named(&map, group)?;
        let target = target_named(&map, &target)?.id;
        let change = GroupChange { group: found.id, epoch: found.epoch, change, target };
        let reply = access.ask(&ChangeGroup { change }).await?;
        Ok(ChangedGroup {
            id: group,
            target: target.raw(),
            epoch: reply.epoch.raw(),
            map_version: reply.version.raw(),
        })
    })
}

/// Returns the group with this id.
pub(super) fn group_named(map: &ClusterMap, id: u32) -> Result<&Group> {
    map.groups.iter().find(|group| group.id.raw() == id).ok_or_else(|| {
        let context = format!("cannot find group {id}: `skep group list` lists all groups");
        Error::new(ErrorCode::NotFound, context)
    })
}
