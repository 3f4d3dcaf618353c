//! `skep entry path`: shows the path of each file or directory whose id the user names.

use crate::access::{ClusterArgs, block_on};
use crate::entry_paths::{EntryPaths, parse_id};
use crate::help::{Example, examples};
use crate::output::{print, render, table};
use crate::{mounts, through_mount};
use serde::Serialize;
use skep_types::{Error, ErrorCode, InodeId, Result};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &[Example] = &[
    ("show the path of an entry id that `skep lock list` shows", "skep entry path DAA5-20003"),
    (
        "show the paths of the files to which two chunk files belong, without the cluster's token",
        "skep entry path --mount /mnt/skep DAA5-20003.1.0.0 DAA5-20004.1.0.0",
    ),
];

/// Show the paths of files and directories by their entry ids
///
/// In a mount, the command lists the directories on the path with the permissions of its user, and
/// needs no token. With the token, the command shows paths from the root of the file system. `skep
/// entry info` shows the id of a path.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct PathArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Search in the mount at this directory [default: the working directory, if it is in a mount]
    #[arg(long, value_name = "DIRECTORY", conflicts_with_all = ["cluster", "token_file"])]
    mount: Option<PathBuf>,
    /// Entry ids, names of chunk files, or inode numbers
    #[arg(required = true, value_name = "ID", value_parser = parse_id)]
    ids: Vec<InodeId>,
}

/// An entry id and its path, as JSON.
#[derive(Debug, Serialize)]
struct EntryPath {
    entry_id: String,
    path: Option<String>,
    /// The reason why `path` is missing.
    problem: Option<String>,
    #[serde(skip)]
    error: Option<Error>,
}

/// Shows the paths. Returns exit code 0 only if every id has a path.
pub(crate) fn run(args: PathArgs) -> Result<ExitCode> {
    let PathArgs { query, mount, ids } = args;
    let mut lines = match directory_in_mount(&query, mount)? {
        Some(directory) => through(&directory, &ids)?,
        None => by_token(&query, &ids)?,
    };
    if let [only] = &mut lines[..]
        && let Some(error) = only.error.take()
    {
        return Err(error);
    }
    print(&lines, |lines| as_text(lines))?;
    Ok(match lines.iter().any(|line| line.error.is_some()) {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

/// Returns the mounted directory in which the command searches. `None` if the options name a
/// cluster, or if the working directory is not in a mount.
fn directory_in_mount(query: &ClusterArgs, mount: Option<PathBuf>) -> Result<Option<PathBuf>> {
    if let Some(directory) = mount {
        if mounts::mounted_at(&directory).is_none() {
            let what = format!(
                "cannot search in {}: this directory is not in a mount of Skep; `findmnt -t \
                 fuse.skep` lists the mounts of this host",
                directory.display()
            );
            return Err(Error::new(ErrorCode::InvalidArgument, what));
        }
        return Ok(Some(directory));
    }
    let is_here = !query.is_explicit() && mounts::mounted_at(Path::new(".")).is_some();
    Ok(is_here.then(|| PathBuf::from(".")))
}

fn through(directory: &Path, ids: &[InodeId]) -> Result<Vec<EntryPath>> {
    let mut lines = Vec::new();
    for id in ids {
        let found = through_mount::path_of(directory, *id).transpose().unwrap_or_else(|| {
            let what = format!(
                "cannot find the path of entry {id}: the mount at {} runs an older version of \
                 skep; use --cluster and --token-file",
                directory.display()
            );
            Err(Error::new(ErrorCode::Unsupported, what))
        });
        lines.push(line(*id, found));
    }
    Ok(lines)
}

fn by_token(query: &ClusterArgs, ids: &[InodeId]) -> Result<Vec<EntryPath>> {
    let access = query.access(None)?;
    let ids = ids.to_vec();
    block_on(async move {
        let mut paths = EntryPaths::of(&access).await?;
        let mut lines = Vec::new();
        for id in ids {
            lines.push(line(id, paths.path_of(id).await));
        }
        Ok(lines)
    })
}

fn line(id: InodeId, found: Result<PathBuf>) -> EntryPath {
    let (path, error) = match found {
        Ok(path) => (Some(path.display().to_string()), None),
        Err(error) => (None, Some(error)),
    };
    let problem = error.as_ref().map(|error| error.context().to_owned());
    EntryPath { entry_id: id.to_string(), path, problem, error }
}

fn as_text(lines: &[EntryPath]) -> String {
    if let [EntryPath { path: Some(path), .. }] = lines {
        return format!("{path}\n");
    }
    let mut shown = table(&["ENTRY", "PATH"]);
    for EntryPath { entry_id, path, problem, .. } in lines {
        let path = path.clone().or_else(|| problem.as_ref().map(|why| format!("unknown: {why}")));
        shown.add_row([entry_id.clone(), path.unwrap_or_default()]);
    }
    render(&shown)
}
