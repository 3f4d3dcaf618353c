//! `skep client files`: lists the files that clients have open.

use crate::access::ClusterArgs;
use crate::help::{Example, examples};
use crate::output::{count, print, render, table};
use crate::uses::Users;
use crate::view::node_named;
use serde::Serialize;
use skep_types::Result;
use skep_wire::file_locks::FileUse;

const EXAMPLES: &[Example] = &[
    ("all open files", "skep client files"),
    ("the open files of client 7", "skep client files 7"),
];

/// List the files that clients have open
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct FilesArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Only the files of this client: an id or name
    client: Option<String>,
}

/// A file that a client has open.
#[derive(Debug, Serialize)]
struct OpenFile {
    client: u32,
    host: String,
    mount_point: String,
    session: String,
    entry_id: String,
    readers: u32,
    writers: u32,
    /// Number of locks that the client's programs hold on the file.
    locks: u32,
}

pub(crate) fn run(args: FilesArgs) -> Result<()> {
    let FilesArgs { query, client } = args;
    let access = query.access(None)?;
    let lines = crate::cmd::block_on(async move {
        let users = Users::of(&access).await?;
        let client = client.map(|name| node_named(&users.map, &name)).transpose()?.map(|it| it.id);
        let mut lines = Vec::new();
        for group in users.groups() {
            let uses = users.uses(group, None, false).await?.into_iter();
            let wanted = uses.filter(|it| client.is_none_or(|client| it.client == client));
            lines.extend(wanted.map(|used| line(&users, &used)));
        }
        lines.sort_by_key(|line| line.client);
        Ok(lines)
    })?;
    print(&lines, |lines| as_table(lines))
}

fn line(users: &Users, used: &FileUse) -> OpenFile {
    let (host, mount_point) = users.place(used.client);
    OpenFile {
        client: used.client.raw(),
        host,
        mount_point,
        session: used.session.to_string(),
        entry_id: used.inode.to_string(),
        readers: used.readers,
        writers: used.writers,
        locks: used.held_count,
    }
}

fn as_table(lines: &[OpenFile]) -> String {
    if lines.is_empty() {
        return "Nothing is open.\n".into();
    }
    let titles = ["CLIENT", "HOST", "MOUNT POINT", "ENTRY", ">READERS", ">WRITERS", ">LOCKS"];
    let mut shown = table(&titles);
    for line in lines {
        shown.add_row([
            line.client.to_string(),
            line.host.clone(),
            line.mount_point.clone(),
            line.entry_id.clone(),
            count(u64::from(line.readers)),
            count(u64::from(line.writers)),
            count(u64::from(line.locks)),
        ]);
    }
    render(&shown)
}
