//! `skep entry who`: shows the clients that have a file open, and the locks of these clients on the
//! file.

use crate::access::ClusterArgs;
use crate::help::{Example, examples};
use crate::output::{print, render, table};
use crate::path_lookup::entry_at;
use crate::uses::{Clients, Lock, users_of_file};
use serde::Serialize;
use skep_types::{Error, ErrorCode, Result};
use skep_wire::file_locks::FileUse;
use std::path::PathBuf;

const EXAMPLES: &[Example] = &[
    ("list the clients that have a file open", "skep entry who /mnt/skep/file"),
    ("list the clients that have one of two files open", "skep entry who /mnt/skep/a /mnt/skep/b"),
];

/// Show the clients that have files open, and their locks on these files
///
/// The mount of a file answers, so no token is needed. The user needs the permission to read the
/// file.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct WhoArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Paths of files in a mount
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// A client that has a file open, as one entry of the list.
#[derive(Debug, Serialize)]
struct FileUser {
    #[serde(serialize_with = "crate::output::path")]
    path: PathBuf,
    client: u32,
    host: String,
    mount_point: String,
    session: String,
    readers: u32,
    writers: u32,
    locks: Vec<Lock>,
}

pub(crate) fn run(args: &WhoArgs) -> Result<()> {
    let WhoArgs { query, paths } = args;
    let mut lines = Vec::new();
    for path in paths {
        let (inode, place) = entry_at(path)?;
        let found = std::fs::symlink_metadata(path);
        if found.as_ref().is_ok_and(std::fs::Metadata::is_symlink) {
            return Err(Error::new(
                ErrorCode::InvalidArgument,
                format!(
                    "cannot list the clients of {}: the path is a symbolic link, and programs open \
                     the file to which this link leads; name that file",
                    path.display()
                ),
            ));
        }
        if !found.is_ok_and(|found| found.is_file()) {
            return Err(Error::new(
                ErrorCode::InvalidArgument,
                format!(
                    "cannot list the clients that use {}: the path is not a regular file, and \
                     metadata tracks opens of regular files only; `fuser -v` lists the processes \
                     of one host",
                    path.display()
                ),
            ));
        }
        let (uses, clients) = users_of_file(query, inode, &place)?;
        lines.extend(uses.iter().map(|used| line(path, &clients, used)));
    }
    print(&lines, |lines| as_table(lines, paths.len()))
}

fn line(path: &std::path::Path, clients: &Clients, used: &FileUse) -> FileUser {
    let (host, mount_point) = clients.place(used.client);
    FileUser {
        path: path.to_owned(),
        client: used.client.raw(),
        host,
        mount_point,
        session: used.session.to_string(),
        readers: used.readers,
        writers: used.writers,
        locks: Lock::all_of(used).collect(),
    }
}

fn as_table(lines: &[FileUser], paths: usize) -> String {
    if lines.is_empty() {
        let what = if paths == 1 { "the file" } else { "these files" };
        return format!("No client has {what} open.\n");
    }
    let titles = ["CLIENT", "HOST", "MOUNT POINT", ">READERS", ">WRITERS", "LOCKS", "PATH"];
    // If the arguments contain only one path, the table omits the column with the path.
    let columns = if paths == 1 { titles.len() - 1 } else { titles.len() };
    let mut shown = table(&titles[..columns]);
    for line in lines {
        let lock = |lock: &Lock| {
            let range = lock.range();
            let waits = if lock.is_waiting { " (waits)" } else { "" };
            format!("{} {} {range} by process {}{waits}", lock.kind, lock.mode, lock.pid)
        };
        let cells = [
            line.client.to_string(),
            line.host.clone(),
            line.mount_point.clone(),
            line.readers.to_string(),
            line.writers.to_string(),
            line.locks.iter().map(lock).collect::<Vec<_>>().join("; "),
            line.path.display().to_string(),
        ];
        shown.add_row(&cells[..columns]);
    }
    render(&shown)
}
