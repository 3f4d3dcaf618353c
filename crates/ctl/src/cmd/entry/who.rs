//! `skep entry who`: shows the clients that have a file open, and their locks on it.

use crate::access::{ClusterArgs, entry_at};
use crate::help::{Example, examples};
use crate::output::{print, render, table};
use crate::uses::{Lock, Users};
use serde::Serialize;
use skep_types::{Error, ErrorCode, Result};
use skep_wire::file_locks::FileUse;
use std::path::PathBuf;

const EXAMPLES: &[Example] =
    &[("the clients that have a file open", "skep entry who /mnt/skep/file")];

/// Show the clients that have a file open, and their locks in it
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct WhoArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Path of a file in a mount
    path: PathBuf,
}

/// A client that uses the file.
#[derive(Debug, Serialize)]
struct FileUser {
    client: u32,
    host: String,
    mount_point: String,
    session: String,
    readers: u32,
    writers: u32,
    locks: Vec<Lock>,
}

pub(crate) fn run(args: &WhoArgs) -> Result<()> {
    let WhoArgs { query, path } = args;
    let (inode, place) = entry_at(path)?;
    if !std::fs::symlink_metadata(path).is_ok_and(|found| found.is_file()) {
        return Err(Error::new(
            ErrorCode::InvalidArgument,
            format!(
                "cannot list the clients that use {}: it is not a regular file, and metadata \
                 tracks opens of regular files only; `fuser -v` lists the processes of one host",
                path.display()
            ),
        ));
    }
    let access = query.access(Some(&place))?;
    let lines = crate::cmd::block_on(async move {
        let users = Users::of(&access).await?;
        let group = users.map.shard_group(inode.shard()).ok_or_else(|| {
            Error::new(
                ErrorCode::StaleMap,
                format!(
                    "cannot list the clients that use entry \
                                                     {inode}: no metadata group serves its shard; \
                                                     `skep health check` lists problems"
                ),
            )
        })?;
        let uses = users.uses(group, Some(inode), false).await?;
        Ok(uses.iter().map(|used| line(&users, used)).collect::<Vec<_>>())
    })?;
    print(&lines, |lines| as_table(lines))
}

fn line(users: &Users, used: &FileUse) -> FileUser {
    let (host, mount_point) = users.place(used.client);
    FileUser {
        client: used.client.raw(),
        host,
        mount_point,
        session: used.session.to_string(),
        readers: used.readers,
        writers: used.writers,
        locks: Lock::all_of(used).collect(),
    }
}

fn as_table(lines: &[FileUser]) -> String {
    if lines.is_empty() {
        return "No client has the file open.\n".into();
    }
    let mut shown = table(&["CLIENT", "HOST", "MOUNT POINT", ">READERS", ">WRITERS", "LOCKS"]);
    for line in lines {
        let lock = |lock: &Lock| {
            let range = lock.range();
            let waits = if lock.is_waiting { " (waits)" } else { "" };
            format!("{} {} {range} by process {}{waits}", lock.kind, lock.mode, lock.pid)
        };
        shown.add_row([
            line.client.to_string(),
            line.host.clone(),
            line.mount_point.clone(),
            line.readers.to_string(),
            line.writers.to_string(),
            line.locks.iter().map(lock).collect::<Vec<_>>().join("; "),
        ]);
    }
    render(&shown)
}
