//! `skep target files`: lists the files on a storage target, and the directories whose stripe
//! patterns name the target.

use crate::access::{ClusterArgs, block_on};
use crate::entry_paths::EntryPaths;
use crate::group_files::GroupUses;
use crate::help::{Example, examples};
use crate::output::{print, render, table, warn, write_bytes};
use crate::view::target_named;
use serde::Serialize;
use skep_types::{Error, ErrorCode, FileKind, Result};
use skep_wire::metadata::GroupFile;
use std::os::unix::ffi::OsStrExt;

const EXAMPLES: &[Example] = &[
    ("list the files on target 6, with their paths", "skep target files --paths 6"),
    ("list the paths of these files for `xargs -0`", "skep target files 6 --null"),
    (
        "list the paths of the directories whose patterns name target 6, for `xargs -0`",
        "skep target files 6 --null --directories",
    ),
    ("list only the entry ids of these files, as JSON", "skep target files 6 --output json"),
];

/// List the files on a storage target, and the directories whose patterns name the target
///
/// The list includes files that have no bytes on the target yet. A file with several hard links is
/// listed once, with one of its paths. The command reads all inodes of the cluster, which takes
/// some seconds for each million inodes.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct FilesArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Also show the paths
    #[arg(long = "paths")]
    with_paths: bool,
    /// Print only the paths of the files, each followed by a NUL character, for `xargs -0`
    #[arg(long = "null", short = '0')]
    is_null_separated: bool,
    /// With --null: print the directories whose patterns name the target, instead of the files
    #[arg(long = "directories", requires = "is_null_separated")]
    is_directories: bool,
    /// Id of a storage target
    target: String,
}

/// A file or directory, as one entry of the list.
#[derive(Debug, Serialize)]
struct TargetFile {
    entry_id: String,
    kind: &'static str,
    /// The path. `None` if `--paths` is missing.
    path: Option<String>,
}

pub(crate) fn run(args: FilesArgs) -> Result<()> {
    let FilesArgs { query, with_paths, is_null_separated, is_directories, target } = args;
    let access = query.access(None)?;
    let (lines, null_separated) = block_on(async move {
        let map = access.map().await?;
        let id = target_named(&map, &target)?.id;
        let group = map.group_of(id).map(|group| group.id).ok_or_else(|| {
            let what =
                format!("cannot list the files of target {id}: this target belongs to no group");
            Error::new(ErrorCode::NotFound, what)
        })?;
        let uses = GroupUses::of(&access, &map, group).await?;
        if is_null_separated {
            let mut paths = EntryPaths::of(&access).await?;
            let bytes = null_separated(&mut paths, &uses.files, is_directories).await?;
            return Ok((Vec::new(), bytes));
        }
        let mut paths = if with_paths { Some(EntryPaths::of(&access).await?) } else { None };
        let mut lines = Vec::new();
        for GroupFile { inode, kind, .. } in uses.files {
            let path = match &mut paths {
                Some(paths) => Some(paths.text_of(inode).await),
                None => None,
            };
            let kind = if kind == FileKind::Directory { "directory" } else { "file" };
            lines.push(TargetFile { entry_id: inode.to_string(), kind, path });
        }
        Ok((lines, Vec::new()))
    })?;
    if is_null_separated {
        return write_bytes(&null_separated);
    }
    print(&lines, |lines| as_table(lines, with_paths))
}

/// Returns the paths of the files, or of the directories if `of_directories` is set. A NUL
/// character follows each path. Omits entries without a name with a warning.
async fn null_separated(
    paths: &mut EntryPaths,
    files: &[GroupFile],
    of_directories: bool,
) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let is_wanted = |file: &&GroupFile| (file.kind == FileKind::Directory) == of_directories;
    for file in files.iter().filter(is_wanted) {
        match paths.path_of(file.inode).await {
            Ok(path) => {
                bytes.extend_from_slice(path.as_os_str().as_bytes());
                bytes.push(0);
            }
            Err(error) if error.code() == ErrorCode::NotFound => {
                warn(&format!(
                    "cannot print the path of entry {}, so the list lacks this entry: {error}",
                    file.inode
                ));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

fn as_table(lines: &[TargetFile], with_paths: bool) -> String {
    if lines.is_empty() {
        return "This target stores no file, and no stripe pattern names this target.\n".into();
    }
    let titles = ["ENTRY", "KIND", "PATH"];
    let columns = if with_paths { titles.len() } else { titles.len() - 1 };
    let mut shown = table(&titles[..columns]);
    for line in lines {
        let path = line.path.clone().unwrap_or_default();
        let cells = [line.entry_id.clone(), line.kind.to_owned(), path];
        shown.add_row(&cells[..columns]);
    }
    render(&shown)
}
