//! `skep target replace`: replaces a target by a new target, for example on a new disk.
//!
//! For a metadata target, the command makes the new target a member of the group, and waits until
//! the new target has all data. Then the command removes the former target from the group. The
//! command decides each step from the cluster map alone, so a repeated command continues an
//! interrupted command.
//!
//! Skep does not mirror storage targets, and no command moves their bytes yet. For a storage
//! target, the command fails with the steps that remain for the administrator.

use super::remove::uses_text;
use crate::access::{Access, ClusterArgs, block_on};
use crate::cmd::group::add::remove_from_group;
use crate::cmd::group::change::{group_named, request};
use crate::cmd::group::create::check_domains;
use crate::group_files::GroupUses;
use crate::group_progress::{CopyStatus, ask, known};
use crate::help::{Example, examples};
use crate::output::print;
use crate::tree_output::ProgressLine;
use crate::view::target_named;
use serde::Serialize;
use skep_types::group_change::MemberChange;
use skep_types::map::{Condition, Consistency, Reachability};
use skep_types::{
    ClusterMap, Error, ErrorCode, Group, GroupId, MemberState, Result, Target, TargetId, TargetKind,
};
use std::time::Duration;

const EXAMPLES: &[Example] = &[
    ("show what to do to replace target 4", "skep target replace 4"),
    ("put metadata target 9 in the place of target 4 in its group", "skep target replace 4 9"),
];

/// Put a new metadata target in the place of another target in its group
///
/// First make a target on the new disk with `skep target add`. The command makes this target a
/// member of the group, waits until the new target has all data, and removes the former target from
/// the group. The group serves during the command. After an interruption, repeat the command.
///
/// The bytes of a storage target exist once, and no command moves them. For a storage target, the
/// command changes nothing, and prints the steps.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct ReplaceArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Accept a new target on the node or in the failure domain of a member that stays, although
    /// one failure may lose both
    #[arg(long)]
    allow_same_node: bool,
    /// Id of the target to be replaced
    #[arg(value_name = "TARGET")]
    former: String,
    /// Id of the target that takes its place. Without this target, the command only prints the
    /// steps
    #[arg(value_name = "NEW")]
    new: Option<String>,
}

/// Time between two reads of the cluster map while the new target gets the data.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of repeated attempts to change the group. An attempt fails if the epoch of the
/// group has changed since the command read the map.
const ATTEMPTS: u32 = 5;
/// Maximum number of attempts to get a reply of the primary before the former target leaves.
const QUESTIONS: u32 = 20;
/// The roles of targets in messages.
const NEW: &str = "the new target";
const PRIMARY: &str = "the primary of its group";

/// The JSON output: the group after the replacement.
#[derive(Debug, Serialize)]
struct Replacement {
    group: u32,
    former: u32,
    new: u32,
    epoch: u64,
}

/// The next step of a replacement in a metadata group.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Makes the new target a member.
    Add,
    /// Waits until the new target has all data.
    Wait,
    /// Makes the new target the primary in the place of the former target.
    HandOver,
    /// Takes the former target out of the group.
    Remove,
    /// The former target is no member any more.
    Done,
}

/// Returns the next step of the replacement of the member `former` by `new`.
fn next_step(group: &Group, former: TargetId, new: TargetId) -> Step {
    let state = |id: TargetId| group.members.iter().find(|it| it.target == id).map(|it| it.state);
    match state(new) {
        None => Step::Add,
        Some(MemberState::Serving) if state(former).is_none() => Step::Done,
        Some(MemberState::Serving) if group.primary == former => Step::HandOver,
        Some(MemberState::Serving) => Step::Remove,
        Some(_) => Step::Wait,
    }
}

pub(crate) fn run(args: ReplaceArgs) -> Result<()> {
    let ReplaceArgs { query, allow_same_node, former, new } = args;
    let access = query.access(None)?;
    let replacement = block_on(async move {
        let map = access.map().await?;
        let former = target_named(&map, &former)?;
        if former.kind == TargetKind::Storage {
            return Err(storage_steps(&access, &map, former).await?);
        }
        let id = former.id.raw();
        let Some(group) = map.group_of(former.id).map(|group| group.id) else {
            let what = format!(
                "cannot replace target {id}: this target is in no group, so it stores nothing that \
                 is in use; `skep target remove {id}` removes the target from the cluster"
            );
            return Err(Error::new(ErrorCode::InvalidArgument, what));
        };
        let Some(new) = new else {
            return Err(metadata_steps(&map, former, group));
        };
        let new = target_named(&map, &new)?.id;
        if new == former.id {
            let what = format!("cannot replace target {id} by itself; name another target");
            return Err(Error::new(ErrorCode::InvalidArgument, what));
        }
        if let Some(other) = map.group_of(new).filter(|other| other.id != group) {
            let what = format!(
                "cannot replace target {id} by target {new}: target {new} is a member of group \
                 {other}. If target {new} stores no data, remove this target from the cluster \
                 (`skep target remove {new}`), run `skep config set metadata-copies 2`, so that a \
                 new target gets no group of its own, and add a new target with `skep target add`",
                new = new.raw(),
                other = other.id.raw()
            );
            return Err(Error::new(ErrorCode::InvalidArgument, what));
        }
        let line = ProgressLine::new();
        let replaced = replace_member(&access, &line, group, former.id, new, allow_same_node).await;
        line.show("");
        replaced
    })?;
    print(&replacement, |Replacement { group, former, new, .. }| {
        format!(
            "Target {new} has the place of target {former} in group {group}. `skep target remove \
             {former}` takes target {former} out of the cluster."
        )
    })
}

/// Carries out the steps of a replacement until the former target is no member any more.
///
/// # Errors
/// - `NotReady` if the new target or the primary goes offline before the former target has left, or
///   if the primary does not reply.
/// - The error of management, if management refuses a step.
async fn replace_member(
    access: &Access,
    line: &ProgressLine,
    group: GroupId,
    former: TargetId,
    new: TargetId,
    allow_same_node: bool,
) -> Result<Replacement> {
    let (mut attempts, mut questions) = (ATTEMPTS, QUESTIONS);
    let of_copy = |group: &Group| [(new, NEW), (group.primary, PRIMARY)];
    loop {
        let map = access.map().await?;
        let found = group_named(&map, group.raw())?;
        let changed = match next_step(found, former, new) {
            Step::Add => {
                check_online(&map, group, former, &of_copy(found))?;
                if !allow_same_node {
                    check_members(&map, found, former, new)?;
                }
                request(access, found, MemberChange::Add, new).await.map(drop)
            }
            Step::Wait => {
                check_online(&map, group, former, &of_copy(found))?;
                line.show(&progress(access, &map, group, new).await);
                skep_env::sleep(PAUSE).await;
                Ok(())
            }
            Step::HandOver => {
                check_online(&map, group, former, &[(new, NEW)])?;
                request(access, found, MemberChange::HandOver, new).await.map(drop)
            }
            Step::Remove => {
                check_online(&map, group, former, &of_copy(found))?;
                match primary_reply(access, &map, group).await {
                    Ok(()) => {
                        let (group, former) = (group.raw(), former.raw().to_string());
                        remove_from_group(access, group, &former).await.map(drop)
                    }
                    Err(error) if questions == 0 => return Err(silent(former, found, &error)),
                    Err(_) => {
                        questions -= 1;
                        line.show(&format!("waiting for target {}", found.primary.raw()));
                        skep_env::sleep(PAUSE).await;
                        Ok(())
                    }
                }
            }
            Step::Done => {
                let (group, former, new) = (group.raw(), former.raw(), new.raw());
                return Ok(Replacement { group, former, new, epoch: found.epoch.raw() });
            }
        };
        match changed {
            // The group has changed since this command read the map. The next iteration reads the
            // new map, and chooses a step again.
            Err(error) if error.code() == ErrorCode::StaleMap && attempts > 0 => attempts -= 1,
            result => result?,
        }
    }
}

/// Returns an error if a target in `needed` is offline. Each entry of `needed` is a target and its
/// role in messages.
fn check_online(
    map: &ClusterMap,
    group: GroupId,
    former: TargetId,
    needed: &[(TargetId, &str)],
) -> Result<()> {
    for (id, role) in needed {
        if map.target(*id).is_some_and(|it| it.reachability == Reachability::Offline) {
            let what = format!(
                "cannot replace target {}: target {}, {role}, is offline; start its service and \
                 repeat the command. Target {0} stays in group {}",
                former.raw(),
                id.raw(),
                group.raw()
            );
            return Err(Error::new(ErrorCode::NotReady, what));
        }
    }
    Ok(())
}

/// Waits for a reply of the primary of `group`. Without a reply, the former target must stay. The
/// cluster map shows a failed primary as online for some seconds, and the former target may be the
/// only other member. In this case, dropping the former target would leave the group without a
/// running member.
///
/// # Errors
/// The error of the last attempt, when the primary has not replied within some seconds.
async fn primary_reply(access: &Access, map: &ClusterMap, group: GroupId) -> Result<()> {
    let reply = ask(access, map, [group]).await.remove(&group);
    reply.transpose().map(drop)
}

/// Returns the error for a primary that does not reply before the former target leaves.
fn silent(former: TargetId, group: &Group, error: &Error) -> Error {
    let what = format!(
        "cannot replace target {}: target {}, the primary of its group, does not reply ({error}); \
         start its service and repeat the command. Target {0} stays in group {}",
        former.raw(),
        group.primary.raw(),
        group.id.raw()
    );
    Error::new(ErrorCode::NotReady, what)
}

/// Returns an error if the new target and a member that stays are on the same node or in the same
/// failure domain.
fn check_members(map: &ClusterMap, group: &Group, former: TargetId, new: TargetId) -> Result<()> {
    let stays = group.members.iter().map(|it| it.target).filter(|it| *it != former);
    let all: Vec<&Target> = stays.chain([new]).filter_map(|it| map.target(it)).collect();
    check_domains(map, &all)
}

/// Returns the progress of the copy to the new target as a short text.
async fn progress(access: &Access, map: &ClusterMap, group: GroupId, new: TargetId) -> String {
    let reply = ask(access, map, [group]).await.remove(&group).and_then(Result::ok);
    let member = reply.as_ref().and_then(|it| known(it, new));
    let copy = member.and_then(|it| it.copy.as_ref()).map(CopyStatus::of);
    match copy {
        None => format!("target {} gets the data of group {}", new.raw(), group.raw()),
        Some(CopyStatus { problem: Some(problem), .. }) => format!("the copy waits: {problem}"),
        Some(copy) => format!("copied {}", copy.words()),
    }
}

/// Returns the error if the user has named a metadata target and no new target. The error contains
/// the steps of the replacement.
fn metadata_steps(map: &ClusterMap, former: &Target, group: GroupId) -> Error {
    let id = former.id.raw();
    // With one copy of metadata, each new metadata target gets a group of its own.
    let first = match map.policy.metadata_copies {
        0 | 1 => {
            "Run `skep config set metadata-copies 2` first, so that a new target gets no group of \
             its own, and restore the setting at the end. "
        }
        _ => "",
    };
    let what = format!(
        "cannot replace target {id}: no new target is given. {first}Create a target on the new \
         disk (`skep target add NODE PATH`), and then run `skep target replace {id} NEW` with the \
         id of this target, which moves the data of group {}",
        group.raw()
    );
    Error::new(ErrorCode::InvalidArgument, what)
}

/// Returns the error for a storage target. The error contains the state of the target, and the
/// steps that replace the target.
///
/// # Errors
/// The error of a metadata target that cannot list the files on the target.
async fn storage_steps(access: &Access, map: &ClusterMap, target: &Target) -> Result<Error> {
    let found = match map.group_of(target.id) {
        Some(group) => uses_text(&GroupUses::of(access, map, group.id).await?),
        None => "no file lies on the target".to_owned(),
    };
    let node = map.node(target.node).map_or("NODE", |it| it.name.as_str());
    Ok(Error::new(ErrorCode::Unsupported, storage_text(target, node, &found)))
}

fn storage_text(target: &Target, node: &str, found: &str) -> String {
    let id = target.id.raw();
    let add = format!("add a target on the new disk (`skep target add {node} PATH`)");
    let steps = if target.consistency == Consistency::Bad {
        format!(
            "The target is marked as lost: {add}, restore or remove the files that `skep target \
             files --paths {id}` lists, then run `skep target remove {id}`"
        )
    } else if target.reachability == Reachability::Offline
        || target.health.condition == Condition::Down
    {
        let (state, first) = match target.reachability {
            Reachability::Offline => ("offline", "start its service"),
            _ => ("not served", "solve the problem that `skep target list` shows"),
        };
        format!(
            "The target is {state}: if its disk is lost for good, `skep target remove --lost {id}` \
             lists the files that lose bytes, and with `--confirm {id}` marks the target as lost; \
             if the disk is not lost, {first} first"
        )
    } else {
        let path = &target.path;
        format!(
            "If its disk still works, stop {node}, copy the whole directory {path} to the new disk \
             (`cp -a --sparse=always`), mount the new disk in the place of the old one, and start \
             {node} (docs/operations/backups.md). To move the files while the target serves, \
             {add}, close target {id} to new files (`skep target set-state {id} closed`), copy \
             each file that `skep target files --paths {id}` lists (`cp -a FILE FILE.new && mv \
             FILE.new FILE` places the file on other targets), set other patterns for the listed \
             directories (`skep entry set`), then run `skep target remove {id}`"
        )
    };
    format!(
        "cannot replace storage target {id} by a command, since no command moves the bytes of a \
         storage target: {found}. {steps}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::map::TargetHealth;
    use skep_types::{GroupMember, NodeId};

    #[test]
    fn former_member_leaves_only_after_the_new_member_serves() {
        let (former, new, third) = (TargetId::new(1), TargetId::new(2), TargetId::new(3));
        let mut group = Group::of_one(GroupId::new(7), TargetKind::Metadata, former);
        assert_eq!(next_step(&group, former, new), Step::Add);
        for state in [MemberState::Waiting, MemberState::Syncing, MemberState::Offline] {
            group.members.truncate(1);
            group.members.push(GroupMember { target: new, state });
            assert_eq!(next_step(&group, former, new), Step::Wait, "{state:?}");
        }
        group.members[1].state = MemberState::Serving;
        assert_eq!(next_step(&group, former, new), Step::HandOver, "the primary leaves last");
        for primary in [new, third] {
            group.primary = primary;
            assert_eq!(next_step(&group, former, new), Step::Remove);
        }
        group.members.remove(0);
        assert_eq!(next_step(&group, former, new), Step::Done);
        group.members[0].state = MemberState::Waiting;
        assert_eq!(next_step(&group, former, new), Step::Wait, "the replacement is incomplete");
    }

    #[test]
    fn replace_keeps_the_former_member_if_the_new_target_is_offline() {
        let (former, new) = (TargetId::new(1), TargetId::new(2));
        let mut map = ClusterMap::empty(skep_types::ClusterId::default());
        map.targets.push(Target::new(new, TargetKind::Metadata, NodeId::new(2), "/disk1/skep"));
        let check = |map: &ClusterMap| check_online(map, GroupId::new(7), former, &[(new, NEW)]);
        map.targets[0].reachability = Reachability::Online;
        check(&map).unwrap();
        map.targets[0].reachability = Reachability::Offline;
        let error = check(&map).unwrap_err();
        assert_eq!(error.code(), ErrorCode::NotReady);
        assert!(error.context().contains("Target 1 stays in group 7"), "{error}");
    }

    #[test]
    fn steps_to_replace_a_metadata_target_create_no_group() {
        let mut map = ClusterMap::empty(skep_types::ClusterId::default());
        let former =
            Target::new(TargetId::new(4), TargetKind::Metadata, NodeId::new(2), "/disk1/skep");
        for (copies, is_set) in [(1, true), (2, false)] {
            map.policy.metadata_copies = copies;
            let steps = metadata_steps(&map, &former, GroupId::new(3));
            assert_eq!(steps.context().contains("config set metadata-copies 2"), is_set);
            assert!(steps.context().contains("`skep target replace 4 NEW`"), "{steps}");
        }
    }

    #[test]
    fn steps_to_replace_a_storage_target_depend_on_its_state() {
        let mut target =
            Target::new(TargetId::new(4), TargetKind::Storage, NodeId::new(2), "/disk1/skep");
        target.reachability = Reachability::Online;
        let text = |target: &Target| storage_text(target, "storage-1", "3 files lie on the target");
        let served = text(&target);
        for words in ["3 files", "stop storage-1", "/disk1/skep to the new disk", "remove 4"] {
            assert!(served.contains(words), "{served}");
        }
        assert!(served.contains("target set-state 4 closed"), "{served}");
        target.reachability = Reachability::Offline;
        let offline = text(&target);
        assert!(offline.contains("target remove --lost 4"), "{offline}");
        // The disk of a service that runs is missing.
        target.reachability = Reachability::Online;
        target.health = TargetHealth::new(Condition::Down, "its data is missing");
        let down = text(&target);
        assert!(down.contains("not served") && down.contains("remove --lost 4"), "{down}");
        target.consistency = Consistency::Bad;
        let lost = text(&target);
        assert!(lost.contains("marked as lost") && lost.contains("remove 4"), "{lost}");
    }
}
