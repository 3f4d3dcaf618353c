//! `skep target remove`: removes a target that stores no data from the cluster. With `--lost`,
//! gives up a target ([`super::give_up`]).

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
    ("show what is lost with the disk of target 4", "skep target remove --lost 4"),
    ("give target 4 up", "skep target remove --lost --confirm 4 4"),
];

/// Remove a target that stores no data, or give up a lost target
///
/// The command refuses as long as a file is stored on the target, a directory's pattern names it,
/// the target is open to new files, or the settings of its service name it. A target that `skep
/// target add` has added is removed without a restart of its service. The id of a removed target is
/// never used again.
///
/// If the disk of a target is lost for good, `--lost` gives the target up. Without `--confirm`, the
/// command lists the files that lose bytes, and changes nothing.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct RemoveArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Check whether the target can be removed; change nothing
    #[arg(long = "dry-run")]
    is_dry_run: bool,
    /// Give up a target whose disk is lost for good: reads of the bytes on it fail with EIO instead
    /// of waiting. Without --confirm, only lists the files that lose bytes
    #[arg(long = "lost", conflicts_with = "is_dry_run")]
    is_lost: bool,
    /// With --lost: the id of the target once more. This cannot be undone
    #[arg(long, value_name = "ID", requires = "is_lost")]
    confirm: Option<String>,
    /// Id of a target
    target: String,
}

/// Interval between two rounds of requests to metadata targets, or to management.
const PAUSE: Duration = Duration::from_millis(200);
/// Time limit for a service to stop a target.
const STOP_PATIENCE: Duration = Duration::from_secs(90);

/// The removed target, as JSON.
#[derive(Debug, Serialize)]
struct Removal {
    id: u32,
    path: String,
    is_dry_run: bool,
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
        if target.kind == TargetKind::Storage {
            refuse_open(target)?;
            await_unused(&access, &map, target).await?;
        }
        let is_stopped = stop_added(&access, &map, target, is_dry_run).await?;
        if !(is_stopped && is_dry_run) {
            remove(&access, &map, target.id, is_dry_run, is_stopped).await?;
        }
        Ok(Removal { id: target.id.raw(), path: target.path.clone(), is_dry_run })
    })?;
    print(&removal, |removal| {
        let Removal { id, path, is_dry_run } = removal;
        match is_dry_run {
            true => format!("Target {id} ({path}) can be removed.\n"),
            false => format!(
                "Target {id} ({path}) is removed. Its directory can be \
                 deleted.\n"
            ),
        }
    })
}

/// Asks the service of a target to stop the target, and to remove it from the list of added
/// targets. Returns `false` if the service is not online, if the target serves shards, or if the
/// settings of the service name the target. A dry run stops nothing, and returns the same value.
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
        // The settings of the service name the target. The refusal of management explains this.
        Err(error) if error.code() == ErrorCode::InUse => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes a target from the cluster map. After the service has stopped the target, management
/// still considers the target as served until the next heartbeat of the node.
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

fn refuse_open(target: &Target) -> Result<()> {
    // For a faulty target, the map shows the fault instead of the state. Management checks the
    // state again.
    if target.health.condition != Condition::Serving {
        return Ok(());
    }
    let id = target.id.raw();
    let what = format!(
        "cannot remove target {id}: it is open to new files; close it with `skep target set-state \
         {id} closed`"
    );
    Err(Error::new(ErrorCode::InUse, what))
}

/// Checks twice that nothing uses the group of a target. During both checks, every metadata target
/// has a map in which the target is closed, so it places no more files there. The second check
/// finds each file that the metadata target placed there earlier, or the file is in a prepared
/// transaction.
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
        // Chunk files of removed files and transactions disappear by themselves.
        if !uses.files.is_empty() || skep_env::now() > deadline {
            return Err(in_use(target, &uses));
        }
        skep_env::sleep(PAUSE).await;
    }
}

fn in_use(target: &Target, uses: &GroupUses) -> Error {
    let id = target.id.raw();
    let directories = uses.directories();
    let files = uses.files.len() - directories;
    let what = match (files, directories) {
        (0, 0) if uses.removals > 0 => format!(
            "cannot remove target {id}: {} chunk files of removed files are still on it; the \
             metadata targets remove them as soon as the target is reachable",
            uses.removals
        ),
        (0, 0) => format!(
            "cannot remove target {id}: metadata targets are still finishing earlier requests; try \
             again in some seconds"
        ),
        _ if target.consistency == Consistency::Bad => format!(
            "cannot remove target {id}: it is given up as lost, {files} files lie on it, and the \
             patterns of {directories} directories name it; `skep target files --paths {id}` lists \
             them. Restore each file from a backup or remove it; a file without bytes on this \
             target can be copied (`cp -a FILE FILE.new && mv FILE.new FILE`). For files that are \
             shown as (without a name), `skep client files` shows which mounts have them open. Set \
             other patterns for the directories with `skep entry set`"
        ),
        _ => format!(
            "cannot remove target {id}: {files} files lie on it, and the patterns of {directories} \
             directories name it; `skep target files --paths {id}` lists them. Copy each file \
             (`cp -a FILE FILE.new && mv FILE.new FILE` places it on other targets), and set other \
             patterns for the directories with `skep entry set`"
        ),
    };
    Error::new(ErrorCode::InUse, what)
}
