//! How clients use a cluster: the clients, as management lists them, and their sessions, open files
//! and locks, as metadata targets list them. The lists are requested page by page.

use crate::access::{Access, PATIENCE};
use serde::Serialize;
use skep_rpc::{CallOptions, Channel, MapCell, Router};
use skep_types::{ClusterMap, Error, GroupId, InodeId, NodeId, Result, SessionId, TargetKind};
use skep_wire::file_locks::{FileUse, HeldLock, ListLocks, LockKind, LockMode};
use skep_wire::management::{ClientEntry, ListClients};
use skep_wire::metadata::{ListSessions, SessionEntry};
use std::collections::BTreeMap;
use std::rc::Rc;

/// A cluster with its clients, and a router for requests to its metadata groups.
pub(crate) struct Users {
    pub(crate) map: ClusterMap,
    pub(crate) clients: BTreeMap<NodeId, ClientEntry>,
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
        let cell = MapCell::new(map.clone(), NodeId::default());
        let router = Router::new(access.identity(), Channel::random(), cell);
        Ok(Self { map, clients, router })
    }

    /// Returns the ids of the metadata groups.
    pub(crate) fn groups(&self) -> Vec<GroupId> {
        let groups = self.map.groups.iter().filter(|group| group.kind == TargetKind::Metadata);
        groups.map(|group| group.id).collect()
    }

    /// Returns all sessions at one group.
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

    /// Returns the sessions that have a file open or locked. `None` as the inode means all files of
    /// a group.
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

    /// Adds the target, and a hint how to fix it, to an error of a group.
    fn explain(&self, group: GroupId, error: &Error) -> Error {
        let target = self.map.primary(group);
        let node = target.and_then(|target| self.map.node(target.node));
        let names = target.zip(node).map(|(target, node)| {
            format!("metadata target {} of {} [ID: {}]", target.id, node.name, node.id)
        });
        let names = names.unwrap_or_else(|| format!("metadata group {group}"));
        let what = format!(
            "cannot list the uses of files at {names}: {}; `skep health check` \
                            lists problems",
            error.context()
        );
        Error::new(error.code(), what)
    }

    /// Returns the host and mount point of a client. Both are empty if management no longer lists
    /// the client.
    pub(crate) fn place(&self, client: NodeId) -> (String, String) {
        let client = self.clients.get(&client);
        client.map(|it| (it.host.clone(), it.mount_point.clone())).unwrap_or_default()
    }
}

/// A lock that is held or waited for, as commands print it.
#[derive(Debug, Serialize)]
pub(crate) struct Lock {
    pub(crate) pid: u32,
    pub(crate) kind: &'static str,
    pub(crate) mode: &'static str,
    start_byte: u64,
    /// The first byte after the range. `None` means that the range extends to the end of the file.
    end_byte: Option<u64>,
    pub(crate) is_waiting: bool,
}

impl Lock {
    /// Returns the locks that a session holds on a file, followed by the locks that it waits for.
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

    /// Formats the locked range for people.
    pub(crate) fn range(&self) -> String {
        match (self.start_byte, self.end_byte) {
            (start, Some(end)) => format!("{start} to {end}"),
            (0, None) => "all".into(),
            (start, None) => format!("{start} to the end"),
        }
    }
}
