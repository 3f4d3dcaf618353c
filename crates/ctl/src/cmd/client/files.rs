//! `skep client files`: lists the files that clients have open.

use crate::access::ClusterArgs;
use crate::entry_paths::EntryPaths;
use crate::help::{Example, examples};
use crate::output::{count, print, render, table};
use crate::uses::Users;
use serde::Serialize;
use skep_types::Result;
use skep_wire::file_locks::FileUse;

const EXAMPLES: &[Example] = &[
    ("list the open files of all clients", "skep client files"),
    ("list the open files of client 7, with their paths", "skep client files --paths 7"),
    ("list the open files of all mounts on some hosts", "skep client files node-*"),
];

/// List the files that clients have open
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct FilesArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Show the path of each file too
    #[arg(long = "paths")]
    with_paths: bool,
    /// Only the files of these clients: an id or name, or a host, which may contain `*` and `?`
    client: Option<String>,
}

/// An open file, as one entry of the list.
#[derive(Debug, Serialize)]
struct OpenFile {
    client: u32,
    host: String,
    mount_point: String,
    session: String,
    entry_id: String,
    /// The path of the file. `None` if `--paths` is missing.
    path: Option<String>,
    readers: u32,
    writers: u32,
    /// Number of locks that the client's programs hold on the file.
    locks: u32,
}

pub(crate) fn run(args: FilesArgs) -> Result<()> {
    let FilesArgs { query, with_paths, client } = args;
    let access = query.access(None)?;
    let lines = crate::cmd::block_on(async move {
        let users = Users::of(&access).await?;
        let chosen = client.map(|name| users.clients.named(&users.map, &name)).transpose()?;
        let mut paths = if with_paths { Some(EntryPaths::of(&access).await?) } else { None };
        let mut lines = Vec::new();
        for group in users.groups() {
            let uses = users.uses(group, None, false).await?.into_iter();
            let is_wanted =
                |it: &FileUse| chosen.as_ref().is_none_or(|chosen| chosen.contains(&it.client));
            for used in uses.filter(is_wanted) {
                let path = match &mut paths {
                    Some(paths) => Some(paths.text_of(used.inode).await),
                    None => None,
                };
                lines.push(OpenFile { path, ..line(&users, &used) });
            }
        }
        lines.sort_by_key(|line| line.client);
        Ok(lines)
    })?;
    print(&lines, |lines| as_table(lines, with_paths))
}

fn line(users: &Users, used: &FileUse) -> OpenFile {
    let (host, mount_point) = users.place(used.client);
    OpenFile {
        client: used.client.raw(),
        host,
        mount_point,
        session: used.session.to_string(),
        entry_id: used.inode.to_string(),
        path: None,
        readers: used.readers,
        writers: used.writers,
        locks: used.held_count,
    }
}

fn as_table(lines: &[OpenFile], with_paths: bool) -> String {
    if lines.is_empty() {
        return "No client has a file open.\n".into();
    }
    let titles =
        ["CLIENT", "HOST", "MOUNT POINT", "ENTRY", ">READERS", ">WRITERS", ">LOCKS", "PATH"];
    let columns = if with_paths { titles.len() } else { titles.len() - 1 };
    let mut shown = table(&titles[..columns]);
    for line in lines {
        let cells = [
            line.client.to_string(),
            line.host.clone(),
            line.mount_point.clone(),
            line.entry_id.clone(),
            count(u64::from(line.readers)),
            count(u64::from(line.writers)),
            count(u64::from(line.locks)),
            line.path.clone().unwrap_or_default(),
        ];
        shown.add_row(&cells[..columns]);
    }
    render(&shown)
}
