//! The authority: the state machine, its command log, and the data of heartbeats.
//!
//! Owns the order: a command is checked on a copy, made durable, then takes effect and is
//! published. Nothing that was not synced is ever answered or seen.

use crate::command_log::CommandLog;
use crate::log_level_changes::LogLevelChanges;
use skep_cluster::state::ClientDetails;
use skep_cluster::{ClusterState, Command, Outcome, SoftState};
use skep_env::local::Notify;
use skep_types::codec::Codec;
use skep_types::map::Capacity;
use skep_types::{ClusterMap, MapVersion, NodeId, Result, TargetId};
use skep_wire::management::{ClientEntry, MapUpdate};
use std::cell::RefCell;
use std::rc::Rc;

/// The authority over one cluster.
#[derive(Debug)]
pub(crate) struct Authority {
    inner: RefCell<Inner>,
    /// There is a newer map.
    pub(crate) changed: Notify,
    /// What clients are to do with their logs.
    pub(crate) log_level_changes: LogLevelChanges,
}

#[derive(Debug)]
struct Inner {
    state: ClusterState,
    soft: SoftState,
    command_log: CommandLog,
    /// Room in the whole cluster: as in the published map, or as it was at a tick since.
    total_capacity: Option<Capacity>,
    /// What everybody may see.
    published: Rc<ClusterMap>,
    /// The same as the body of a `MapUpdate`, once somebody has asked: a new map goes to everybody.
    encoded: Option<Rc<[u8]>>,
}

fn now_ms() -> u64 {
    skep_env::now().as_millis() as u64
}

impl Authority {
    /// Begins to serve a restored state.
    pub(crate) fn start(state: ClusterState, command_log: CommandLog) -> Result<Rc<Self>> {
        let soft = SoftState::new(now_ms(), &state);
        let published = Rc::new(state.map().clone());
        let inner = RefCell::new(Inner {
            state,
            soft,
            command_log,
            total_capacity: None,
            published,
            encoded: None,
        });
        let authority = Rc::new(Self {
            inner,
            changed: Notify::default(),
            log_level_changes: LogLevelChanges::default(),
        });
        authority.command(&Command::Start)?;
        Ok(authority)
    }

    /// The newest map.
    pub(crate) fn map(&self) -> Rc<ClusterMap> {
        Rc::clone(&self.inner.borrow().published)
    }

    /// Room for files in the whole cluster, if enough was heard to tell.
    pub(crate) fn total_capacity(&self) -> Option<Capacity> {
        self.inner.borrow().total_capacity
    }

    /// The body of a `MapUpdate` with the map, if it is newer than the asker's.
    pub(crate) fn newer(&self, known: MapVersion) -> Option<Rc<[u8]>> {
        let mut inner = self.inner.borrow_mut();
        let Inner { published, encoded, .. } = &mut *inner;
        // An asker who is ahead knew management before its directory was put back from an older
        // copy. It takes no older map, and has to be restarted: docs/operations/several-hosts.md
        // says so.
        (published.version > known).then(|| {
            let encode = || MapUpdate { map: Some((**published).clone()) }.to_bytes().into();
            Rc::clone(encoded.get_or_insert_with(encode))
        })
    }

    /// So many clients with ids above one, by id.
    pub(crate) fn clients(&self, after: NodeId, most: usize) -> Vec<ClientEntry> {
        let inner = self.inner.borrow();
        let Inner { state, soft, .. } = &*inner;
        let now = now_ms();
        let clients = state.clients().iter().filter(|client| client.node > after);
        let entry = |client: &ClientDetails| ClientEntry {
            node: client.node,
            host: client.host.clone(),
            mount_point: client.mount_point.clone(),
            pid: client.pid,
            registered: client.registered,
            silent_ms: soft.silent_ms(now, client.node),
        };
        clients.take(most).map(entry).collect()
    }

    /// Whether a command would be carried out.
    pub(crate) fn check(&self, command: &Command) -> Result<()> {
        self.inner.borrow().state.clone().apply(command).map(|_| ())
    }

    /// Carries out a command, durably.
    pub(crate) fn command(&self, command: &Command) -> Result<Outcome> {
        let mut inner = self.inner.borrow_mut();
        let mut next = inner.state.clone();
        let outcome = next.apply(command)?;
        if outcome.changed {
            inner.command_log.append(command)?;
            inner.state = next;
            let Inner { state, command_log, .. } = &mut *inner;
            if let Err(error) = command_log.fold(state) {
                tracing::error!("the command log can't be folded into a snapshot: {error}");
            }
            drop(inner);
            self.publish();
        }
        Ok(outcome)
    }

    /// A node registered, or sent a heartbeat with the space on its targets.
    pub(crate) fn heard(&self, node: NodeId, capacities: &[(TargetId, Capacity)]) {
        let mut inner = self.inner.borrow_mut();
        let mut changed = inner.soft.heard(now_ms(), node);
        for (target, capacity) in capacities {
            let is_its_own = inner.state.map().target(*target).is_some_and(|it| it.node == node);
            changed |= is_its_own && inner.soft.report(*target, *capacity);
        }
        drop(inner);
        self.soft_change(changed);
    }

    /// A server said that it ends.
    pub(crate) fn left(&self, node: NodeId) {
        let changed = self.inner.borrow_mut().soft.left(node);
        self.soft_change(changed);
    }

    /// Forgets a client.
    pub(crate) fn remove_client(&self, node: NodeId) -> Result<()> {
        self.command(&Command::RemoveClient { node })?;
        self.inner.borrow_mut().soft.forget(node);
        Ok(())
    }

    /// Lets time pass.
    pub(crate) fn tick(&self) {
        let mut inner = self.inner.borrow_mut();
        let Inner { state, soft, total_capacity, .. } = &mut *inner;
        let passed = soft.tick(now_ms(), state);
        *total_capacity = soft.total_capacity(state.map());
        drop(inner);
        self.soft_change(passed.changed);
        for client in passed.expired_clients {
            match self.remove_client(client) {
                Ok(()) => tracing::info!("client {client} is gone: its lease ran out"),
                Err(error) => tracing::error!("client {client} can't be forgotten: {error}"),
            }
        }
    }

    fn soft_change(&self, changed: bool) {
        if changed {
            self.inner.borrow_mut().state.note_soft_change();
            self.publish();
        }
    }

    fn publish(&self) {
        let mut inner = self.inner.borrow_mut();
        let mut map = inner.state.map().clone();
        inner.soft.overlay(&mut map);
        // Not only at the next tick: who mounts when the first targets came would hear that there
        // were none.
        inner.total_capacity = inner.soft.total_capacity(&map);
        inner.published = Rc::new(map);
        inner.encoded = None;
        drop(inner);
        self.changed.notify();
    }
}
