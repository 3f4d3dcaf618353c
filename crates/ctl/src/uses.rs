//! Lists the sessions, open files and locks of clients. Management lists the clients, and metadata
//! targets list their sessions, open files and locks. The functions request all lists page by page.

use crate::access::{Access, ClusterArgs, PATIENCE, block_on};
use crate::through_mount;
use crate::view::node_named;
use serde::Serialize;
use skep_rpc::{CallOptions, Channel, MapCell, Router};
use skep_types::{
    ClusterMap, Error, ErrorCode, GroupId, InodeId, NodeId, NodeKind, Result, SessionId, TargetKind,
};
use skep_wire::file_locks::{FileUse, HeldLock, ListLocks, LockKind, LockMode};
use skep_wire::management::{ClientEntry, ListClients};
use skep_wire::metadata::{ListSessions, SessionEntry};
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

/// The clients of a cluster, and a router for requests to its metadata groups.
pub(crate) struct Users {
    pub(crate) map: ClusterMap,
    pub(crate) clients: Clients,
    router: Rc<Router>,
}

/// Returns the call options for each request.
fn options() -> CallOptions {
    CallOptions { time_left: Some(PATIENCE), ..CallOptions::default() }
}

impl Users {
    /// Gets the cluster map and all clients from management.
    pub(crate) async fn of(access: &Access) -> Result<Self> {
        let map = access.map().await?;
        let mut clients = BTreeMap::new();
        let mut after = Some(NodeId::default());
        while let Some(request) = after.map(|after| ListClients { after }) {
            let page = access.ask(&request).await?;
            clients.extend(page.clients.into_iter().map(|client| (client.node, client)));
            after = page.next;
        }
        Ok(Self { clients: Clients(clients), ..Self::of_map(access, map) })
    }

    /// Returns the users of the cluster with the map `map`, without a list of clients, for commands
    /// that work while management does not answer.
    pub(crate) fn of_map(access: &Access, map: ClusterMap) -> Self {
        let cell = MapCell::new(map.clone(), NodeId::default());
        let router = Router::new(access.identity(), Channel::random(), cell);
        Self { map, clients: Clients::default(), router }
    }

    /// Returns the ids of the metadata groups.
    pub(crate) fn groups(&self) -> Vec<GroupId> {
        let groups = self.map.groups.iter().filter(|group| group.kind == TargetKind::Metadata);
        groups.map(|group| group.id).collect()
    }

    /// Returns all sessions at the metadata group `group`.
    pub(crate) async fn sessions(&self, group: GroupId) -> Result<Vec<SessionEntry>> {
        let mut sessions = Vec::new();
        let mut after = Some(SessionId::default());
        while let Some(request) = after.map(|after| ListSessions { after }) {
            let answer = self.router.call(group, &request, options()).await;
            let (page, _) = answer.map_err(|error| self.explain(group, &error))?;
            sessions.extend(page.sessions);
            after = page.next;
        }
        Ok(sessions)
    }

    /// Returns the open and locked files of each session. If `inode` is `None`, returns all files
    /// of the group.
    pub(crate) async fn uses(
        &self,
        group: GroupId,
        inode: Option<InodeId>,
        only_locked: bool,
    ) -> Result<Vec<FileUse>> {
        let mut uses = Vec::new();
        let mut after = Some((SessionId::default(), InodeId::default()));
        while let Some((after_session, after_inode)) = after {
            let inode = inode.unwrap_or_default();
            let request = ListLocks { inode, after_session, after_inode, only_locked };
            let answer = self.router.call(group, &request, options()).await;
            let (page, _) = answer.map_err(|error| self.explain(group, &error))?;
            uses.extend(page.uses);
            after = page.next;
        }
        Ok(uses)
    }

    /// Adds the name of the metadata target, and a hint on how to fix the problem, to an error.
    fn explain(&self, group: GroupId, error: &Error) -> Error {
        let target = self.map.primary(group);
        let node = target.and_then(|target| self.map.node(target.node));
        let names = target.zip(node).map(|(target, node)| {
            format!("metadata target {} of {} [ID: {}]", target.id, node.name, node.id.raw())
        });
        let names = names.unwrap_or_else(|| format!("metadata group {group}"));
        let what = format!(
            "cannot list the uses of files at {names}: {}; `skep health check` \
                            lists problems",
            error.context()
        );
        Error::new(error.code(), what)
    }

    /// Returns the host and mount point of a client, as [`Clients::place`] does. If the list of
    /// clients lacks the client, takes both from its name in the cluster map (`HOST:MOUNT-POINT`).
    pub(crate) fn place(&self, client: NodeId) -> (String, String) {
        let in_map = || self.map.node(client).and_then(|node| node.name.split_once(':'));
        match (self.clients.get(client), in_map()) {
            (None, Some((host, mount_point))) => (host.to_owned(), mount_point.to_owned()),
            _ => self.clients.place(client),
        }
    }
}

/// Clients by their ids.
#[derive(Debug, Default)]
pub(crate) struct Clients(BTreeMap<NodeId, ClientEntry>);

impl Clients {
    /// Returns a client. `None` if management no longer lists the client.
    pub(crate) fn get(&self, client: NodeId) -> Option<&ClientEntry> {
        self.0.get(&client)
    }

    /// Returns all clients in the order of their ids.
    pub(crate) fn all(&self) -> impl Iterator<Item = &ClientEntry> {
        self.0.values()
    }

    /// Returns the host and mount point of a client. Host and mount point are empty if management
    /// no longer lists the client.
    pub(crate) fn place(&self, client: NodeId) -> (String, String) {
        let client = self.get(client);
        client.map(|it| (it.host.clone(), it.mount_point.clone())).unwrap_or_default()
    }

    /// Finds clients by `text`: an id, a name, a host, or a pattern of hosts with `*` and `?`.
    ///
    /// # Errors
    /// - `NotFound` if there is no such client, with a hint on how to list the clients.
    /// - `InvalidArgument` if `text` names a server.
    pub(crate) fn named(&self, map: &ClusterMap, text: &str) -> Result<Vec<NodeId>> {
        let of_host = || {
            let found = self.all().filter(|client| matches_pattern(text, &client.host));
            found.map(|client| client.node).collect::<Vec<_>>()
        };
        match node_named(map, text) {
            Ok(node) if node.kind == NodeKind::Client => Ok(vec![node.id]),
            Ok(node) => Err(Error::new(
                ErrorCode::InvalidArgument,
                format!(
                    "cannot use {} [ID: {}] as a client: this node is a server; `skep client list` \
                     shows the clients",
                    node.name,
                    node.id.raw()
                ),
            )),
            Err(error) if error.code() != ErrorCode::NotFound => Err(error),
            Err(_) if !of_host().is_empty() => Ok(of_host()),
            Err(_) => Err(Error::new(
                ErrorCode::NotFound,
                format!(
                    "cannot find client '{text}': no client has this id, name or host; `skep \
                     client list` shows all clients"
                ),
            )),
        }
    }
}

/// Whether a text matches a pattern, in which `*` stands for any characters and `?` for one
/// character.
fn matches_pattern(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), text.chars().collect());
    let (mut at, mut seen) = (0, 0);
    // The position in the pattern after its last star so far, and the position in the text after
    // the characters that this star matches so far.
    let mut star: Option<(usize, usize)> = None;
    while seen < text.len() {
        match pattern.get(at) {
            Some('*') => {
                at += 1;
                star = Some((at, seen));
            }
            Some(wanted) if *wanted == '?' || *wanted == text[seen] => {
                at += 1;
                seen += 1;
            }
            _ => {
                let Some((after, covered)) = star else { return false };
                (at, seen) = (after, covered + 1);
                star = Some((after, covered + 1));
            }
        }
    }
    pattern[at..].iter().all(|rest| *rest == '*')
}

/// Returns the sessions that have a file open or locked, and their clients. Asks the mount that
/// contains `place`, so no token is needed. If the options name a cluster, asks the services of
/// this cluster instead of the mount.
pub(crate) fn users_of_file(
    query: &ClusterArgs,
    inode: InodeId,
    place: &Path,
) -> Result<(Vec<FileUse>, Clients)> {
    if !query.is_explicit()
        && let Some(users) = through_mount::file_users(place)?
    {
        let clients = users.clients.into_iter().map(|client| (client.node, client)).collect();
        return Ok((users.uses, Clients(clients)));
    }
    let access = query.access(Some(place))?;
    block_on(async move {
        let users = Users::of(&access).await?;
        let group = users.map.shard_group(inode.shard()).ok_or_else(|| {
            Error::new(
                ErrorCode::StaleMap,
                format!(
                    "cannot list the clients that use entry {inode}: no metadata group serves its \
                     shard; `skep health check` lists problems"
                ),
            )
        })?;
        let uses = users.uses(group, Some(inode), false).await?;
        Ok((uses, users.clients))
    })
}

/// A lock that a program holds or waits for, in the form of the output.
#[derive(Debug, Serialize)]
pub(crate) struct Lock {
    pub(crate) pid: u32,
    pub(crate) kind: &'static str,
    pub(crate) mode: &'static str,
    start_byte: u64,
    /// Offset of the first byte after the locked range. `None` means that the range has no end.
    end_byte: Option<u64>,
    pub(crate) is_waiting: bool,
}

impl Lock {
    /// Returns the locks on a file that a session holds, followed by the locks for which the
    /// session waits.
    pub(crate) fn all_of(used: &FileUse) -> impl Iterator<Item = Self> {
        let held = used.held.iter().map(|lock| Self::of(lock, false));
        held.chain(used.waiting.iter().map(|lock| Self::of(lock, true)))
    }

    fn of(lock: &HeldLock, is_waiting: bool) -> Self {
        Self {
            pid: lock.pid,
            kind: match lock.kind {
                LockKind::Posix => "posix",
                LockKind::Flock => "flock",
                LockKind::Append => "append",
            },
            mode: match lock.mode {
                LockMode::Shared => "shared",
                LockMode::Exclusive => "exclusive",
            },
            start_byte: lock.start,
            end_byte: (lock.end < skep_wire::limits::LOCK_END).then_some(lock.end),
            is_waiting,
        }
    }

    /// Formats the locked byte range for people.
    pub(crate) fn range(&self) -> String {
        match (self.start_byte, self.end_byte) {
            (start, Some(end)) => format!("{start} to {end}"),
            (0, None) => "all".into(),
            (start, None) => format!("{start} to the end"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcard_patterns_match_host_names() {
        for (pattern, text) in [
            ("c1", "c1"),
            ("c*", "c1"),
            ("*", ""),
            ("node-??", "node-07"),
            ("*a*b", "xaayab"),
            ("c*.example", "c1.lab.example"),
        ] {
            assert!(matches_pattern(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("c1", "c11"), ("c?", "c"), ("*a", "ab"), ("", "c1")] {
            assert!(!matches_pattern(pattern, text), "{pattern} {text}");
        }
    }
}
