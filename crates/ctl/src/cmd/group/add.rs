//! `skep group add` and `skep group remove`: add a member to a metadata group, and remove a member
//! from its group.

use super::change::{ChangedGroup, MemberArgs, check_drop, group_named, request};
use super::create::check_domains;
use crate::access::{Access, block_on};
use crate::help::{Example, examples};
use crate::output::print;
use crate::view::target_named;
use skep_types::group_change::MemberChange;
use skep_types::map::MemberState;
use skep_types::{Error, ErrorCode, Result, Target, TargetKind};

const ADD_EXAMPLES: &[Example] =
    &[("give the metadata of group 2 a second copy on target 5", "skep group add 2 5")];
const REMOVE_EXAMPLES: &[Example] =
    &[("take metadata target 5, whose disk is lost, out of group 2", "skep group remove 2 5")];

/// Number of attempts to remove a member that serves. Each attempt first drops the member, so that
/// the member no longer serves, and then removes the member. Between the drop and the removal, the
/// primary may have let the member serve again.
const ATTEMPTS: u32 = 5;

/// Give a metadata group a further member, which gets a copy of the metadata
///
/// The group continues to serve during the copy. The target must have no group. The target serves
/// as a backup member as soon as it has the copy and all following changes; `skep group status`
/// shows the progress. The setting metadata-copy-rate limits the rate of the copy. The target must
/// lie on another node and in another failure domain than the members, unless --allow-same-node is
/// given.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(ADD_EXAMPLES))]
pub(crate) struct AddArgs {
    #[command(flatten)]
    member: MemberArgs,
    /// Accept a target on the node or in the failure domain of another member, although one failure
    /// may lose both
    #[arg(long)]
    allow_same_node: bool,
}

/// Take a member out of its metadata group
///
/// The primary cannot be removed: make another member the primary first (`skep group move`). The
/// data on the removed target is worthless. `skep group add` makes the target a member of a group,
/// and `skep target remove` removes the target from the cluster.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(REMOVE_EXAMPLES))]
pub(crate) struct RemoveArgs {
    #[command(flatten)]
    member: MemberArgs,
}

pub(crate) fn add_member(args: AddArgs) -> Result<()> {
    let AddArgs { member: MemberArgs { query, group, target }, allow_same_node } = args;
    let access = query.access(None)?;
    let added = block_on(async move {
        let map = access.map().await?;
        let found = group_named(&map, group)?;
        let new = target_named(&map, &target)?;
        if found.kind != TargetKind::Metadata {
            let what = format!(
                "cannot add target {} to storage group {group}: this version mirrors metadata \
                 targets only",
                new.id
            );
            return Err(Error::new(ErrorCode::Unsupported, what));
        }
        if !allow_same_node {
            let members = found.members.iter().filter_map(|it| map.target(it.target));
            let members = members.filter(|it| it.id != new.id);
            let all: Vec<&Target> = members.chain([new]).collect();
            check_domains(&map, &all)?;
        }
        request(&access, found, MemberChange::Add, new.id).await
    })?;
    print(&added, |it| {
        format!(
            "Target {} is a member of group {}, and gets a copy of its metadata: `skep group \
             status {1}` shows the progress.",
            it.target, it.id
        )
    })
}

pub(crate) fn remove_member(args: RemoveArgs) -> Result<()> {
    let MemberArgs { query, group, target } = args.member;
    let access = query.access(None)?;
    let removed = block_on(async move { remove_from_group(&access, group, &target).await })?;
    print(&removed, |it: &ChangedGroup| format!("Target {} has left group {}.", it.target, it.id))
}

/// Takes a target out of a group. Drops the member first if the member serves.
///
/// # Errors
/// The error of management, for example if the target is the primary.
pub(crate) async fn remove_from_group(
    access: &Access,
    group: u32,
    target: &str,
) -> Result<ChangedGroup> {
    let mut left = ATTEMPTS;
    loop {
        left -= 1;
        let map = access.map().await?;
        let found = group_named(&map, group)?;
        let id = target_named(&map, target)?.id;
        let serves =
            |it: &skep_types::GroupMember| it.target == id && it.state == MemberState::Serving;
        let mut found = found.clone();
        if found.members.iter().any(serves) {
            check_drop(&map, &found, id)?;
            let dropped = request(access, &found, MemberChange::Drop, id).await?;
            found.epoch = skep_types::Epoch::new(dropped.epoch);
        }
        match request(access, &found, MemberChange::Remove, id).await {
            Err(error) if error.code() == ErrorCode::StaleMap && left > 0 => {}
            result => return result,
        }
    }
}
