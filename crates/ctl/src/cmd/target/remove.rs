//! `skep target remove`: removes a target that stores no data from the cluster. With `--lost`,
//! marks a target as lost because its disk is lost ([`super::give_up`]).

use super::give_up;
use crate::access::{Access, ClusterArgs, PATIENCE, block_on};
use crate::group_files::GroupUses;
use crate::help::{Example, examples};
use crate::output::print;
use crate::view::target_named;
use serde::Serialize;
use skep_rpc::CallOptions;
use skep_types::map::{Condition, Consistency, Reachability};
use skep_types::{ClusterMap, Error, ErrorCode, Node, Result, Target, TargetId, TargetKind};
use skep_wire::management::RemoveTarget;
use skep_wire::node::StopTarget;
use std::time::Duration;

const EXAMPLES: &[Example] = &[
    ("check whether target 6 can be removed", "skep target remove --dry-run 6"),
    ("remove target 6", "skep target remove 6"),
    ("list the files that lose bytes with the disk of target 4", "skep target remove --lost 4"),
    ("mark target 4 as lost", "skep target remove --lost --confirm 4 4"),
];

/// Remove a target that stores no data, or mark a target as lost
///
/// The command refuses as long as a file is stored on the target, a directory's pattern names the
/// target, the target is open to new files, or the settings of its service name the target. A
/// target that `skep target add` has added is removed without a restart of its service. The id of a
/// removed target is never used again.
///
/// If the disk of a target is lost for good, `--lost` marks the target as lost. Without
/// `--confirm`, the command lists the files that lose bytes, and changes nothing.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct RemoveArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Check whether the target can be removed; change nothing
    #[arg(long = "dry-run")]
    is_dry_run: bool,
    /// Mark a target as lost, if its disk is lost for good: reads of the bytes on this target fail
    /// with EIO instead of waiting. Without --confirm, only lists the files that lose bytes
    #[arg(long = "lost", conflicts_with = "is_dry_run")]
    is_lost: bool,
    /// With --lost: the id of the target a second time. This mark cannot be undone
    #[arg(long, value_name = "ID", requires = "is_lost")]
    confirm: Option<String>,
    /// Id of a target
    target: String,
}

/// Time between two rounds of requests to metadata targets, or between two requests to management.
const PAUSE: Duration = Duration::from_millis(200);
/// Time limit for a service to stop a target.
const STOP_PATIENCE: Duration = Duration::from_secs(90);

/// Text about a target that stores no file and that no directory's pattern names.
const UNUSED: &str = "no file lies on the target, and no directory's pattern names the target";

/// The JSON output: the removed target.
#[derive(Debug, Serialize)]
struct Removal {
    id: u32,
    path: String,
    is_dry_run: bool,
    /// Id of the target that now uses the directory of the removed target, on the same service.
    /// `None` means that no target uses this directory.
    reused_by: Option<u32>,
}

pub(crate) fn run(args: RemoveArgs) -> Result<()> {
    let RemoveArgs { query, is_dry_run, is_lost, confirm, target } = args;
    let access = query.access(None)?;
    if is_lost {
        return give_up::run(access, target, confirm);
    }
    let removal = block_on(async move {
        let map = access.map().await?;
        let target = target_named(&map, &target)?;
        let is_storage = target.kind == TargetKind::Storage;
        if is_storage {
            refuse_open(&access, &map, target).await?;
            await_unused(&access, &map, target).await?;
        }
        let is_stopped = stop_added(&access, &map, target, is_dry_run).await?;
        if !(is_stopped && is_dry_run) {
            let removed = remove(&access, &map, target.id, is_dry_run, is_stopped).await;
            removed.map_err(|error| match is_storage && error.code() == ErrorCode::InUse {
                true => Error::new(error.code(), format!("{}; {UNUSED}", error.context())),
                false => error,
            })?;
        }
        let reused_by = successor(&map, target).map(TargetId::raw);
        Ok(Removal { id: target.id.raw(), path: target.path.clone(), is_dry_run, reused_by })
    })?;
    print(&removal, as_text)
}

fn as_text(removal: &Removal) -> String {
    let Removal { id, path, is_dry_run, reused_by } = removal;
    match (is_dry_run, reused_by) {
        (true, _) => format!("Target {id} ({path}) can be removed.\n"),
        (false, Some(reused_by)) => format!(
            "Target {id} ({path}) is removed. {path} is now the directory of target {reused_by}: \
             do not delete this directory.\n"
        ),
        (false, None) => {
            format!("Target {id} ({path}) is removed. Its directory can be deleted.\n")
        }
    }
}

/// Returns another target of the same service whose directory has the same path. Such a target
/// exists if an administrator has replaced a lost disk by a new disk at the same path.
fn successor(map: &ClusterMap, removed: &Target) -> Option<TargetId> {
    let mut others = map.targets.iter().filter(|it| it.id != removed.id);
    let is_same = |it: &&Target| (it.node, &it.path) == (removed.node, &removed.path);
    others.find(is_same).map(|it| it.id)
}

/// Asks the service of a target to stop the target. The service also removes the target from its
/// list of targets that `skep target add` has added. Returns `false` if the service is not online,
/// if the target serves shards, or if the settings of the service name the target. A dry run
/// returns the same value, but stops nothing.
async fn stop_added(
    access: &Access,
    map: &ClusterMap,
    target: &Target,
    is_dry_run: bool,
) -> Result<bool> {
    let group = map.group_of(target.id).map(|group| group.id);
    let has_shards = map.shards.iter().any(|range| Some(range.group) == group);
    let is_online = |node: &&Node| node.reachability == Reachability::Online;
    let Some(node) = map.node(target.node).filter(is_online).filter(|_| !has_shards) else {
        return Ok(false);
    };
    let (_, connection) = access.connect(node, TargetId::default(), PATIENCE).await?;
    let request = StopTarget { target: target.id, is_dry_run };
    let options = CallOptions { time_left: Some(STOP_PATIENCE), ..CallOptions::default() };
    let stopped = connection.call(&request, &options).await;
    connection.close();
    match stopped {
        Ok(_) => Ok(true),
        // The settings of the service name the target. Management will refuse the removal with an
        // error that explains this.
        Err(error) if error.code() == ErrorCode::InUse => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes a target from the cluster map. Retries the request if the service has just stopped the
/// target, because management considers the target as served until the node's next heartbeat.
async fn remove(
    access: &Access,
    map: &ClusterMap,
    target: TargetId,
    is_dry_run: bool,
    is_stopped: bool,
) -> Result<()> {
    let heartbeat = Duration::from_millis(u64::from(map.policy.heartbeat_ms));
    let deadline = skep_env::now() + PATIENCE + 2 * heartbeat;
    loop {
        match access.ask(&RemoveTarget { target, is_dry_run, is_lost: false }).await {
            Err(error)
                if is_stopped && error.code() == ErrorCode::InUse && skep_env::now() < deadline =>
            {
                skep_env::sleep(PAUSE).await;
            }
            result => return result.map(drop),
        }
    }
}

/// Refuses to remove a target that still accepts new files. The error contains the number of files
/// on the target. The administrator must move these files before the removal.
async fn refuse_open(access: &Access, map: &ClusterMap, target: &Target) -> Result<()> {
    // If the target has a fault, the map contains the fault and not whether the target is open.
    // During the removal, management checks whether the target is open.
    if target.health.condition != Condition::Serving {
        return Ok(());
    }
    let id = target.id.raw();
    let found = match map.group_of(target.id) {
        Some(group) => uses_text(&GroupUses::of(access, map, group.id).await?),
        None => UNUSED.to_owned(),
    };
    let what = format!(
        "cannot remove target {id}: this target is open to new files; close the target with `skep \
         target set-state {id} closed`. At the moment {found}"
    );
    Err(Error::new(ErrorCode::InUse, what))
}

/// Checks twice that nothing uses the group of a target. During each check, every metadata target
/// must have a map in which the target is closed. Then no metadata target places new files on the
/// target. A metadata target may have placed a file on the target before it received this map. The
/// second check finds each such file that is not in a prepared transaction.
async fn await_unused(access: &Access, map: &ClusterMap, target: &Target) -> Result<()> {
    let Some(group) = map.group_of(target.id).map(|group| group.id) else { return Ok(()) };
    let deadline = skep_env::now() + PATIENCE;
    let mut clean_lists = 0;
    loop {
        let uses = GroupUses::of(access, map, group).await?;
        let is_current = uses.oldest_map.is_some_and(|oldest| oldest >= map.version);
        clean_lists = if uses.is_unused() && is_current { clean_lists + 1 } else { 0 };
        if clean_lists == 2 {
            return Ok(());
        }
        // The command waits for removals of chunk files and for transactions, because the services
        // complete this work without an action of the user.
        if !uses.files.is_empty() || skep_env::now() > deadline {
            return Err(in_use(target, &uses));
        }
        skep_env::sleep(PAUSE).await;
    }
}

/// Returns the files and directories in `uses` as the start of a sentence. Names the number of
/// files without bytes on the target, if such files exist.
pub(super) fn uses_text(uses: &GroupUses) -> String {
    let directories = uses.directories();
    let files = match uses.files.len() - directories {
        0 => "no file lies on the target".to_owned(),
        1 => "1 file lies on the target".to_owned(),
        count => format!("{count} files lie on the target"),
    };
    let patterns = match directories {
        0 => "no directory's pattern names the target".to_owned(),
        1 => "the pattern of 1 directory names the target".to_owned(),
        count => format!("the patterns of {count} directories name the target"),
    };
    let without_bytes = match uses.unwritten() {
        0 => String::new(),
        1 => " (1 of the files has no bytes on the target, and only names the target in its \
              pattern)"
            .to_owned(),
        count => format!(
            " ({count} of the files have no bytes on the target, and only name the target in their \
             patterns)"
        ),
    };
    format!("{files}, and {patterns}{without_bytes}")
}

fn in_use(target: &Target, uses: &GroupUses) -> Error {
    let id = target.id.raw();
    let directories = uses.directories();
    let files = uses.files.len() - directories;
    let found = uses_text(uses);
    let what = match (files, directories) {
        (0, 0) if uses.removals > 0 => format!(
            "cannot remove target {id}: {} still on the target; the metadata targets remove such \
             chunk files as soon as the target is reachable",
            match uses.removals {
                1 => "1 chunk file of a removed file is".to_owned(),
                count => format!("{count} chunk files of removed files are"),
            }
        ),
        (0, 0) => format!(
            "cannot remove target {id}: metadata targets are still finishing earlier requests; \
             repeat the command in some seconds"
        ),
        _ if target.consistency == Consistency::Bad => format!(
            "cannot remove target {id}: this target is marked as lost, {found}; `skep target files \
             --paths {id}` lists the files. Restore each file that has lost bytes from a backup, \
             or remove the file. An empty file, or a file without bytes on this target, has lost \
             nothing: `cp -a FILE FILE.new && mv FILE.new FILE` places such a file on other \
             targets. For files that are shown as (without a name), `skep client files` shows \
             which mounts have these files open. Set other patterns for the directories with `skep \
             entry set`"
        ),
        _ => format!(
            "cannot remove target {id}: {found}; `skep target files --paths {id}` lists the files. \
             Copy each file, also an empty file (`cp -a FILE FILE.new && mv FILE.new FILE` places \
             the file on other targets), and set other patterns for the directories with `skep \
             entry set`"
        ),
    };
    Error::new(ErrorCode::InUse, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{ClusterId, FileKind, InodeId, NodeId};
    use skep_wire::metadata::GroupFile;

    #[test]
    fn removal_warns_if_another_target_uses_the_same_directory() {
        let mut map = ClusterMap::empty(ClusterId::new([1; 16]));
        let target = |id, node, path: &str| {
            Target::new(TargetId::new(id), TargetKind::Storage, NodeId::new(node), path)
        };
        let lost = target(7, 4, "/disk1/skep");
        map.targets = vec![lost.clone(), target(3, 4, "/disk2/skep"), target(5, 6, "/disk1/skep")];
        assert_eq!(successor(&map, &lost), None, "another path, or another service");
        map.targets.push(target(9, 4, "/disk1/skep"));
        let reused_by = successor(&map, &lost).map(TargetId::raw);
        let text = |reused_by| {
            as_text(&Removal { id: 7, path: "/disk1/skep".into(), is_dry_run: false, reused_by })
        };
        let kept = text(reused_by);
        assert!(kept.contains("directory of target 9: do not delete this directory"), "{kept}");
        assert!(text(None).contains("can be deleted"));
    }

    #[test]
    fn refused_removal_of_a_target_also_counts_empty_files() {
        let file = |inode, kind, bytes, is_written| GroupFile {
            inode: InodeId::new(inode),
            kind,
            bytes,
            is_written,
        };
        let mut uses = GroupUses {
            files: vec![
                file(2, FileKind::Directory, 0, false),
                file(3, FileKind::Regular, 5, false),
                file(4, FileKind::Regular, 0, true),
            ],
            ..GroupUses::default()
        };
        let all = "2 files lie on the target, and the pattern of 1 directory names the target";
        assert_eq!(uses_text(&uses), all);
        uses.files.extend([5, 6].map(|inode| file(inode, FileKind::Regular, 0, false)));
        let some = uses_text(&uses);
        assert!(some.contains("(2 of the files have no bytes on the target"), "{some}");
    }
}
