//! `skep health df`: shows the space on all targets, or on the targets of some files.

use crate::access::{ClusterArgs, block_on};
use crate::help::{Example, examples};
use crate::output::print;
use crate::path_lookup::entry_at;
use crate::view::{self, TargetLine};
use crate::{mounts, through_mount};
use skep_types::{ClusterMap, GroupId, Result};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const EXAMPLES: &[Example] = &[
    ("show the free space of all targets", "skep health df"),
    (
        "show the free space as a user without the cluster's token, through a mount",
        "skep health df /mnt/skep",
    ),
    ("show the free space of the targets of a file", "skep health df /mnt/skep/file"),
];

/// Show total and free space of all targets, or of the targets of some files
///
/// In a mount, or with a path in a mount, no token is needed.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct DfArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Directory in a mount, to show all targets, or files, to show only the targets of these files
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// The advice in the error message for a user without the token who names no path.
const WITHOUT_TOKEN: &str = "name a path in a mount: `skep health df PATH`";

pub(crate) fn run(args: DfArgs) -> Result<()> {
    let DfArgs { query, paths } = args;
    let here = Path::new(".");
    let near = paths.first().map(PathBuf::as_path);
    let in_mount = near.or_else(|| mounts::mounted_at(here).map(|_| here));
    let map = match (in_mount, query.is_explicit()) {
        (Some(path), false) => through_mount::cluster_map(&entry_at(path)?.1)?,
        _ => None,
    };
    let map = match map {
        Some(map) => map,
        None => {
            let access = query.access_or(near, WITHOUT_TOKEN)?;
            block_on(async move { access.map().await })?
        }
    };
    let mut lines = view::targets(&map);
    if let Some(chosen) = targets_of(&map, &paths)? {
        lines.retain(|line| chosen.contains(&line.id));
    }
    print(&lines, |lines: &Vec<TargetLine>| view::df(lines, map.policy.heartbeat_ms))
}

/// Returns the targets that store the files at `paths`. `None` means all targets: `paths` is empty
/// or contains a directory.
fn targets_of(map: &ClusterMap, paths: &[PathBuf]) -> Result<Option<BTreeSet<u32>>> {
    let mut chosen = BTreeSet::new();
    for path in paths {
        let (inode, place) = entry_at(path)?;
        if place.is_dir() {
            return Ok(None);
        }
        let info = through_mount::entry_info(path)?;
        let components = info.and_then(|info| info.pattern).map(|pattern| pattern.components);
        let stored = components.into_iter().flatten().flat_map(|component| component.groups);
        let groups: Vec<GroupId> = stored.chain(map.shard_group(inode.shard())).collect();
        let targets = groups.iter().filter_map(|group| map.primary(*group));
        chosen.extend(targets.map(|target| target.id.raw()));
    }
    Ok((!paths.is_empty()).then_some(chosen))
}
