//! `skep session list`: lists the sessions of clients at each metadata target.

use crate::access::ClusterArgs;
use crate::help::{Example, examples};
use crate::output::{count, print, render, span, table};
use crate::uses::Users;
use serde::Serialize;
use skep_types::{GroupId, Result};
use skep_wire::metadata::SessionEntry;

const EXAMPLES: &[Example] = &[
    ("list the sessions of all clients", "skep session list"),
    ("list the sessions of client 7", "skep session list --client 7"),
];

/// List the sessions at all metadata targets: client, lease, last renewal, open files
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct ListArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Only the sessions of these clients: an id or name, or a host, which may contain `*` and `?`
    #[arg(long)]
    client: Option<String>,
}

/// A session of a client at a metadata target, as one entry of the list.
#[derive(Debug, Serialize)]
struct SessionReport {
    session: String,
    client: u32,
    host: String,
    mount_point: String,
    target: u32,
    node: u32,
    node_name: String,
    lease_ms: u32,
    silent_ms: u64,
    slots: u32,
    open_files: u32,
}

pub(crate) fn run(args: ListArgs) -> Result<()> {
    let ListArgs { query, client } = args;
    let access = query.access(None)?;
    let lines = crate::cmd::block_on(async move {
        let users = Users::of(&access).await?;
        let chosen = client.map(|name| users.clients.named(&users.map, &name)).transpose()?;
        let mut lines = Vec::new();
        for group in users.groups() {
            let sessions = users.sessions(group).await?.into_iter();
            let wanted = sessions
                .filter(|it| chosen.as_ref().is_none_or(|chosen| chosen.contains(&it.client)));
            lines.extend(wanted.map(|session| line(&users, group, &session)));
        }
        Ok(lines)
    })?;
    print(&lines, |lines| as_table(lines))
}

fn line(users: &Users, group: GroupId, session: &SessionEntry) -> SessionReport {
    let (host, mount_point) = users.place(session.client);
    let target = users.map.primary(group);
    let node = target.and_then(|target| users.map.node(target.node));
    SessionReport {
        session: session.session.to_string(),
        client: session.client.raw(),
        host,
        mount_point,
        target: target.map_or(0, |target| target.id.raw()),
        node: node.map_or(0, |node| node.id.raw()),
        node_name: node.map(|node| node.name.clone()).unwrap_or_default(),
        lease_ms: session.lease_ms,
        silent_ms: session.silent_ms,
        slots: session.slots,
        open_files: session.open_files,
    }
}

fn as_table(lines: &[SessionReport]) -> String {
    let titles =
        ["SESSION", "CLIENT", "HOST", "MOUNT POINT", "TARGET", ">LAST SEEN", ">LEASE", ">OPEN"];
    let mut shown = table(&titles);
    for line in lines {
        shown.add_row([
            line.session.clone(),
            line.client.to_string(),
            line.host.clone(),
            line.mount_point.clone(),
            format!("{} @ {}", line.target, line.node_name),
            span(line.silent_ms) + " ago",
            span(u64::from(line.lease_ms)),
            count(u64::from(line.open_files)),
        ]);
    }
    render(&shown)
}
