//! `skep client evict`: removes clients from the cluster, and waits until the metadata targets have
//! released the files and locks of these clients.

use crate::access::{ClusterArgs, PATIENCE};
use crate::help::{Example, examples};
use crate::output::{counted, print};
use crate::uses::Users;
use crate::view::reachability;
use serde::Serialize;
use skep_types::map::Reachability;
use skep_types::{Error, ErrorCode, NodeId, Result};
use skep_wire::management::Evict;
use std::collections::BTreeSet;
use std::time::Duration;

const EXAMPLES: &[Example] = &[
    ("evict a client that hangs and holds a lock", "skep client evict 7"),
    ("show which files and locks would be released", "skep client evict 7 8 --dry-run"),
    (
        "evict a client that is alive, although its programs get errors",
        "skep client evict 7 --force",
    ),
    ("evict all mounts of a host that has crashed", "skep client evict node-07"),
];

/// Evict clients from the cluster: release their open files and locks immediately
///
/// Programs of an evicted client get EIO for files that they have open for writing or have locked.
/// A mount that is still alive rejoins the cluster as a new client with another id. Evicting a
/// client that is alive requires --force.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct EvictArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Evict clients even if they are alive
    #[arg(long = "force")]
    is_forced: bool,
    /// Show the clients with their open files and locks; change nothing
    #[arg(long = "dry-run")]
    is_dry_run: bool,
    /// Id or name of a client, or a host for all its mounts; a host may contain `*` and `?`
    #[arg(required = true, value_name = "CLIENT")]
    clients: Vec<String>,
}

/// Interval between checks whether metadata targets have ended the sessions of evicted clients.
const PAUSE: Duration = Duration::from_millis(50);

/// An evicted client, as JSON. With `--dry-run`, a client that the command would evict.
#[derive(Debug, Serialize)]
struct Eviction {
    id: u32,
    name: String,
    host: String,
    mount_point: String,
    pid: u32,
    reachability: &'static str,
    /// Number of files that the client has open, or had open at its eviction.
    open_files: u64,
    locks: u64,
    is_dry_run: bool,
    /// Whether all metadata targets have ended the client's sessions and released its files and
    /// locks.
    is_released: bool,
}

pub(crate) fn run(args: EvictArgs) -> Result<()> {
    let EvictArgs { query, is_forced, is_dry_run, clients } = args;
    let access = query.access(None)?;
    let lines = crate::cmd::block_on(async move {
        let users = Users::of(&access).await?;
        let mut lines = Vec::new();
        let mut chosen = BTreeSet::new();
        for name in &clients {
            chosen.extend(users.clients.named(&users.map, name)?);
        }
        for client in chosen {
            let line = line(&users, client, is_dry_run).await?;
            if !is_forced && !is_dry_run {
                refuse_alive(&line)?;
            }
            lines.push(line);
        }
        if is_dry_run {
            return Ok(lines);
        }
        for line in &lines {
            access.ask(&Evict { client: NodeId::new(line.id), unless_heard: false }).await?;
        }
        let deadline = skep_env::now() + PATIENCE;
        for line in &mut lines {
            line.is_released = loop {
                let is_released = !has_session(&users, NodeId::new(line.id)).await?;
                if is_released || skep_env::now() > deadline {
                    break is_released;
                }
                skep_env::sleep(PAUSE).await;
            };
        }
        Ok(lines)
    })?;
    print(&lines, |lines| lines.iter().map(describe).collect::<Vec<_>>().join("\n"))
}

async fn line(users: &Users, client: NodeId, is_dry_run: bool) -> Result<Eviction> {
    let node = users.map.node(client).ok_or_else(|| {
        let what =
            format!("cannot evict client {client}: this client has already left the cluster");
        Error::new(ErrorCode::NotFound, what)
    })?;
    let (mut open_files, mut locks) = (0, 0);
    for group in users.groups() {
        let sessions = users.sessions(group).await?.into_iter();
        let of_client = sessions.filter(|session| session.client == node.id);
        open_files += of_client.map(|session| u64::from(session.open_files)).sum::<u64>();
        let uses = users.uses(group, None, true).await?.into_iter();
        let of_client = uses.filter(|used| used.client == node.id);
        locks += of_client.map(|used| u64::from(used.held_count)).sum::<u64>();
    }
    let (host, mount_point) = users.place(node.id);
    Ok(Eviction {
        id: node.id.raw(),
        name: node.name.clone(),
        host,
        mount_point,
        pid: users.clients.get(node.id).map(|client| client.pid).unwrap_or_default(),
        reachability: reachability(node.reachability),
        open_files,
        locks,
        is_dry_run,
        is_released: false,
    })
}

/// Returns an error for a client that is alive, because an eviction would only cause errors in the
/// programs of this client.
fn refuse_alive(line: &Eviction) -> Result<()> {
    if line.reachability != reachability(Reachability::Online) {
        return Ok(());
    }
    let Eviction { name, id, host, mount_point, pid, .. } = line;
    let what = format!(
        "cannot evict {name} [ID: {id}]: this client is alive, and its programs would get EIO for \
         files that they write; end these programs, run `skep umount {mount_point}` on {host} \
         (process {pid}), or evict the client nevertheless with --force"
    );
    Err(Error::new(ErrorCode::InUse, what))
}

async fn has_session(users: &Users, client: NodeId) -> Result<bool> {
    for group in users.groups() {
        if users.sessions(group).await?.iter().any(|session| session.client == client) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn describe(line: &Eviction) -> String {
    let Eviction { name, id, open_files, locks, .. } = line;
    let open_files = counted(*open_files, "open file", "open files");
    let holds = format!("{open_files} and {}", counted(*locks, "lock", "locks"));
    match (line.is_dry_run, line.is_released) {
        (true, _) => format!(
            "{name} [ID: {id}] would be evicted: {holds} would be released, its programs would get \
             EIO for files open for writing, and the mount, if alive, would rejoin the cluster."
        ),
        (false, true) => format!("{name} [ID: {id}] is evicted; this client held {holds}."),
        (false, false) => format!(
            "{name} [ID: {id}] is evicted, but not all metadata targets have ended its sessions \
             yet; this client held {holds}. `skep session list --client {id}` shows these \
             sessions."
        ),
    }
}
