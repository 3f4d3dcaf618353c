//! `skep client list`: lists the mounts of the cluster, or the recent evictions.

use crate::access::ClusterArgs;
use crate::evictions;
use crate::help::{Example, examples};
use crate::output::{count, print, render, span, table, utc};
use crate::uses::Users;
use crate::view::reachability;
use serde::Serialize;
use skep_types::Result;
use skep_types::map::Reachability;
use std::collections::BTreeMap;

const EXAMPLES: &[Example] = &[
    ("list all mounts", "skep client list"),
    ("list the last evictions: when, why, and the last contact", "skep client list --evicted"),
];

/// The table has this text instead of the time of the last heartbeat if the leader of management
/// has received no heartbeat of the client. A new leader does not have the times of earlier
/// leaders.
const BEFORE_LEADER: &str = "before this leader";

/// List all mounts: host, process, mount point, start, last heartbeat, sessions, open files
///
/// If a mount blocks others, `skep client evict` releases its files and locks. `before this leader`
/// means that management has received no heartbeat of the mount since management started or elected
/// its leader.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct ListArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// List the last 64 evictions instead, the newest first, with reason and last contact
    #[arg(long = "evicted")]
    is_of_evicted: bool,
}

/// A client with its numbers of sessions and open files, as one entry of the list.
#[derive(Debug, Serialize)]
struct ClientReport {
    id: u32,
    name: String,
    host: String,
    mount_point: String,
    /// The process id on the client's host.
    pid: u32,
    version: String,
    reachability: &'static str,
    /// UTC time at which the client mounted the file system, according to management's clock.
    mounted_at: String,
    /// Time since the last heartbeat in milliseconds. `None` means that the leader of management
    /// has received no heartbeat of the client since this leader began to lead.
    silent_ms: Option<u64>,
    /// Number of metadata targets at which the client has a session.
    sessions: usize,
    open_files: u64,
}

pub(crate) fn run(args: ListArgs) -> Result<()> {
    let access = args.query.access(None)?;
    if args.is_of_evicted {
        let lines = crate::cmd::block_on(async move { evictions::fetch(&access).await })?;
        return print(&lines, |lines| evictions::as_table(lines));
    }
    let lines = crate::cmd::block_on(async move {
        let users = Users::of(&access).await?;
        let mut used: BTreeMap<_, (usize, u64)> = BTreeMap::new();
        for group in users.groups() {
            for session in users.sessions(group).await? {
                let (sessions, open_files) = used.entry(session.client).or_default();
                *sessions += 1;
                *open_files += u64::from(session.open_files);
            }
        }
        Ok(users.clients.all().map(|client| line(&users, client, &used)).collect::<Vec<_>>())
    })?;
    print(&lines, |lines| as_table(lines))
}

fn line(
    users: &Users,
    client: &skep_wire::management::ClientEntry,
    used: &BTreeMap<skep_types::NodeId, (usize, u64)>,
) -> ClientReport {
    let node = users.map.node(client.node);
    let (sessions, open_files) = used.get(&client.node).copied().unwrap_or_default();
    ClientReport {
        id: client.node.raw(),
        name: node.map(|node| node.name.clone()).unwrap_or_default(),
        host: client.host.clone(),
        mount_point: client.mount_point.clone(),
        pid: client.pid,
        version: node.map(|node| node.version.clone()).unwrap_or_default(),
        reachability: reachability(node.map_or(Reachability::Offline, |node| node.reachability)),
        mounted_at: utc(client.registered),
        silent_ms: client.silent_ms,
        sessions,
        open_files,
    }
}

fn as_table(lines: &[ClientReport]) -> String {
    let titles =
        ["ID", "HOST", ">PID", "MOUNT POINT", "STATE", "SINCE", ">LAST SEEN", ">SESSIONS", ">OPEN"];
    let mut shown = table(&titles);
    for line in lines {
        shown.add_row([
            line.id.to_string(),
            line.host.clone(),
            line.pid.to_string(),
            line.mount_point.clone(),
            line.reachability.to_owned(),
            line.mounted_at.clone(),
            line.silent_ms.map_or_else(|| BEFORE_LEADER.into(), |ms| span(ms) + " ago"),
            line.sessions.to_string(),
            count(line.open_files),
        ]);
    }
    render(&shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_contact_with_a_client_is_unknown_to_a_new_leader() {
        let line = |silent_ms| ClientReport {
            id: 8,
            name: "cl2:/mnt/skep".into(),
            host: "cl2".into(),
            mount_point: "/mnt/skep".into(),
            pid: 4711,
            version: "1.0.0".into(),
            reachability: "Online",
            mounted_at: "2023-11-14T22:13:20Z".into(),
            silent_ms,
            sessions: 1,
            open_files: 2,
        };
        let shown = as_table(&[line(None)]);
        assert!(shown.contains(" before this leader ") && !shown.contains("ago"), "{shown}");
        let json = serde_json::to_value(line(None)).unwrap();
        assert_eq!(json["silent_ms"], serde_json::Value::Null);
        assert!(as_table(&[line(Some(1_500))]).contains(" 1.5s ago "));
    }
}
