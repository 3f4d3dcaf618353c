//! `skep entry set`: sets the stripe pattern of new files in directories, or of files that were
//! never written.

use super::pattern::{self, PatternArgs};
use crate::access::ClusterArgs;
use crate::help::{Example, examples};
use crate::output::print;
use crate::path_lookup::entry_at;
use crate::through_mount;
use crate::tree_walk::walk;
use serde::Serialize;
use skep_fuse::PATTERN_XATTR;
use skep_types::Result;
use std::fmt::Write;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

const EXAMPLES: &[Example] = &[
    (
        "use 8 targets and chunks of 1 MiB for new files in a directory",
        "skep entry set --num-targets 8 --chunk-size 1MiB /mnt/skep/results",
    ),
    (
        "use one target for the first 16 MiB of each new file, and all targets for the rest",
        "skep entry set --pattern count=1/from=16MiB,count=all /mnt/skep/results",
    ),
    ("use the cluster's settings again", "skep entry set --inherit /mnt/skep/results"),
    (
        "use all targets for new files in a directory and in all directories below",
        "skep entry set --recursive --num-targets all /mnt/skep/results",
    ),
];

/// Set the stripe pattern of new files in a directory, or of files that were never written
///
/// A new directory inherits the pattern of the directory above. Existing directories keep their
/// patterns, unless --recursive is given.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct SetArgs {
    #[command(flatten)]
    query: ClusterArgs,
    #[command(flatten)]
    asked: PatternArgs,
    /// Remove the directory's own pattern, so that the cluster's settings apply
    #[arg(long = "inherit", conflicts_with = "asked-pattern")]
    is_inherited: bool,
    /// Also set the pattern of all directories below the given directories. Files below keep their
    /// patterns
    #[arg(long = "recursive", short = 'r')]
    is_recursive: bool,
    /// Paths of directories or files in a mount
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

/// A path and its new stripe pattern, as JSON.
#[derive(Debug, Serialize)]
struct PathPattern {
    #[serde(serialize_with = "crate::output::path")]
    path: PathBuf,
    /// The new pattern. `None` means that the pattern of the cluster's settings applies.
    pattern: Option<String>,
}

pub(crate) fn run(args: &SetArgs) -> Result<()> {
    let SetArgs { query, asked, is_inherited, is_recursive, paths } = args;
    let text = match *is_inherited {
        true => None,
        false => Some(pattern::text(asked)?),
    };
    if let Some(text) = &text {
        pattern::check(text)?;
    }
    // Check all paths before the first path is changed.
    for path in paths {
        let (_, place) = entry_at(path)?;
        query.check_mount(&place)?;
    }
    let mut lines = Vec::new();
    let map = paths.first().and_then(|path| through_mount::cluster_map(path).ok().flatten());
    walk(paths, *is_recursive, &mut |path| {
        let is_given = paths.iter().any(|given| given == path);
        if !is_given && !is_directory(path) {
            return Ok(());
        }
        match change(path, text.as_deref()) {
            Ok(line) => lines.push(line),
            // Another program has removed this directory since the walk found it.
            Err(_) if !is_given && is_gone(path) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    })?;
    print(&lines, |lines| {
        let mut shown = String::new();
        for PathPattern { path, pattern } in lines {
            let _ = writeln!(shown, "{}", pattern::line(path, pattern.as_deref(), map.as_ref()));
        }
        shown
    })
}

/// Sets the pattern of the entry at `path`, or removes the pattern if `text` is `None`. Returns the
/// new pattern.
fn change(path: &Path, text: Option<&str>) -> Result<PathPattern> {
    match text {
        Some(text) => pattern::set(path, text)?,
        None => rustix::fs::removexattr(path, PATTERN_XATTR)
            .map_err(|errno| pattern::explained(errno, path, ""))?,
    }
    Ok(PathPattern { path: path.to_owned(), pattern: pattern::get(path)? })
}

/// Whether `path` is a directory. A symbolic link is not a directory.
fn is_directory(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

fn is_gone(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
}
