//! `skep lock list`: lists the locks that applications hold or wait for.

use crate::access::{ClusterArgs, block_on};
use crate::entry_paths::EntryPaths;
use crate::help::{Example, examples};
use crate::output::{print, render, table};
use crate::path_lookup::entry_at;
use crate::uses::{Clients, Lock, Users, users_of_file};
use serde::Serialize;
use skep_types::Result;
use skep_wire::file_locks::FileUse;
use std::path::PathBuf;

const EXAMPLES: &[Example] = &[
    ("list the locks in one file", "skep lock list /mnt/skep/database"),
    ("list the locks in all files, with the paths of the files", "skep lock list --paths"),
];

/// List the locks that applications hold and wait for, in some files or in all
///
/// With paths, the mount of each file answers, and no token is needed. If the holder of a lock
/// cannot be ended, `skep client evict` releases all files and locks of its mount.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct ListArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Show the path of each file too
    #[arg(long = "paths")]
    with_paths: bool,
    /// Paths of files in a mount [default: all files]
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// A lock that an application holds or waits for, as one entry of the list.
#[derive(Debug, Serialize)]
struct LockEntry {
    entry_id: String,
    /// The path of the file. `None` if the command shows no paths.
    path: Option<String>,
    client: u32,
    host: String,
    mount_point: String,
    #[serde(flatten)]
    lock: Lock,
}

pub(crate) fn run(args: ListArgs) -> Result<()> {
    let ListArgs { query, with_paths, paths } = args;
    let with_paths = with_paths || paths.len() > 1;
    // The user named the paths, so the JSON output always has the paths.
    let lines = match paths.is_empty() {
        true => of_cluster(&query, with_paths)?,
        false => of_files(&query, &paths)?,
    };
    print(&lines, |lines| as_table(lines, with_paths))
}

/// The advice in the error message for a user without the token who names no path.
const WITHOUT_TOKEN: &str = "name a file in a mount: `skep lock list PATH`";

fn of_files(query: &ClusterArgs, paths: &[PathBuf]) -> Result<Vec<LockEntry>> {
    let mut lines = Vec::new();
    for path in paths {
        let (inode, place) = entry_at(path)?;
        let (uses, clients) = users_of_file(query, inode, &place)?;
        let shown = path.display().to_string();
        for used in &uses {
            lines.extend(Lock::all_of(used).map(|it| line(&clients, used, Some(&shown), it)));
        }
    }
    Ok(lines)
}

fn of_cluster(query: &ClusterArgs, with_paths: bool) -> Result<Vec<LockEntry>> {
    let access = query.access_or(None, WITHOUT_TOKEN)?;
    block_on(async move {
        let users = Users::of(&access).await?;
        let mut paths = if with_paths { Some(EntryPaths::of(&access).await?) } else { None };
        let mut lines = Vec::new();
        for group in users.groups() {
            for used in users.uses(group, None, true).await? {
                let path = match &mut paths {
                    Some(paths) => Some(paths.text_of(used.inode).await),
                    None => None,
                };
                let clients = &users.clients;
                lines.extend(
                    Lock::all_of(&used).map(|it| line(clients, &used, path.as_deref(), it)),
                );
            }
        }
        Ok(lines)
    })
}

fn line(clients: &Clients, used: &FileUse, path: Option<&str>, lock: Lock) -> LockEntry {
    let (host, mount_point) = clients.place(used.client);
    LockEntry {
        entry_id: used.inode.to_string(),
        path: path.map(str::to_owned),
        client: used.client.raw(),
        host,
        mount_point,
        lock,
    }
}

fn as_table(lines: &[LockEntry], with_paths: bool) -> String {
    if lines.is_empty() {
        return "No file is locked.\n".into();
    }
    let titles = ["ENTRY", "HOST", "MOUNT POINT", ">PID", "KIND", "MODE", "BYTES", "STATE", "PATH"];
    let columns = if with_paths { titles.len() } else { titles.len() - 1 };
    let mut shown = table(&titles[..columns]);
    for line in lines {
        let cells = [
            line.entry_id.clone(),
            line.host.clone(),
            line.mount_point.clone(),
            line.lock.pid.to_string(),
            line.lock.kind.to_owned(),
            line.lock.mode.to_owned(),
            line.lock.range(),
            if line.lock.is_waiting { "waits" } else { "held" }.to_owned(),
            line.path.clone().unwrap_or_default(),
        ];
        shown.add_row(&cells[..columns]);
    }
    render(&shown)
}
