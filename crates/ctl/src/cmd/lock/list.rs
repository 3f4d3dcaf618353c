//! `skep lock list`: lists the locks that applications hold or wait for.

use crate::access::{ClusterArgs, entry_at};
use crate::help::{Example, examples};
use crate::output::{print, render, table};
use crate::uses::{Lock, Users};
use serde::Serialize;
use skep_types::{GroupId, InodeId, Result};
use skep_wire::file_locks::FileUse;
use std::path::PathBuf;

const EXAMPLES: &[Example] = &[
    ("the locks in all files", "skep lock list"),
    ("the locks in one file", "skep lock list /mnt/skep/database"),
];

/// List the locks that applications hold and wait for, in one file or in all
///
/// If the holder of a lock cannot be ended, `skep client evict` releases all files and locks of its
/// mount.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct ListArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Path of a file in a mount [default: all files]
    path: Option<PathBuf>,
}

/// A lock that is held or waited for.
#[derive(Debug, Serialize)]
struct LockEntry {
    entry_id: String,
    client: u32,
    host: String,
    mount_point: String,
    #[serde(flatten)]
    lock: Lock,
}

pub(crate) fn run(args: ListArgs) -> Result<()> {
    let ListArgs { query, path } = args;
    let entry = path.as_deref().map(entry_at).transpose()?;
    let access = query.access(entry.as_ref().map(|(_, place)| place.as_path()))?;
    let inode = entry.map(|(inode, _)| inode);
    let lines = crate::cmd::block_on(async move {
        let users = Users::of(&access).await?;
        let mut lines = Vec::new();
        for group in groups(&users, inode) {
            for used in users.uses(group, inode, true).await? {
                lines.extend(Lock::all_of(&used).map(|lock| line(&users, &used, lock)));
            }
        }
        Ok(lines)
    })?;
    print(&lines, |lines| as_table(lines))
}

/// Returns the metadata group that serves a file, or all groups without a file.
fn groups(users: &Users, inode: Option<InodeId>) -> Vec<GroupId> {
    match inode.and_then(|inode| users.map.shard_group(inode.shard())) {
        Some(group) => vec![group],
        None => users.groups(),
    }
}

fn line(users: &Users, used: &FileUse, lock: Lock) -> LockEntry {
    let (host, mount_point) = users.place(used.client);
    LockEntry {
        entry_id: used.inode.to_string(),
        client: used.client.raw(),
        host,
        mount_point,
        lock,
    }
}

fn as_table(lines: &[LockEntry]) -> String {
    if lines.is_empty() {
        return "Nothing is locked.\n".into();
    }
    let mut shown =
        table(&["ENTRY", "HOST", "MOUNT POINT", ">PID", "KIND", "MODE", "BYTES", "STATE"]);
    for line in lines {
        shown.add_row([
            line.entry_id.clone(),
            line.host.clone(),
            line.mount_point.clone(),
            line.lock.pid.to_string(),
            line.lock.kind.to_owned(),
            line.lock.mode.to_owned(),
            line.lock.range(),
            if line.lock.is_waiting { "waits" } else { "held" }.to_owned(),
        ]);
    }
    render(&shown)
}
