//! The authority: the state machine of the cluster, its command log, and the data that heartbeats
//! report.
//!
//! Owns the order of steps of a command: check it on a copy of the state, log it durably, apply it,
//! publish the new map under the next version. A reply or map never contains the effect of a
//! command that is not synced.
//!
//! # Invariants
//! The version of the published map belongs to the newest start in the state: see
//! [`Authority::check_invariants`].

use crate::command_log::CommandLog;
use crate::log_level_changes::LogLevelChanges;
use crate::reported_waits::ReportedWaits;
use skep_cluster::state::{ClientDetails, check_report};
use skep_cluster::versions::{VersionSequence, starts_of};
use skep_cluster::{ClusterState, Command, Outcome, Proposal, RequestId, SoftState};
use skep_env::local::Notify;
use skep_types::codec::Codec;
use skep_types::map::{Capacity, Condition, Reachability, TargetHealth};
use skep_types::{ClusterMap, ErrorCode, MapVersion, NodeId, NodeKind, Result, TargetId};
use skep_wire::management::{ClientEntry, Heartbeat, MapUpdate, TargetReport};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// The only authority over the state of one cluster.
#[derive(Debug)]
pub(crate) struct Authority {
    inner: RefCell<AuthorityState>,
    /// Notified when a newer map is published.
    pub(crate) changed: Notify,
    /// Notified when the disk of the command log has failed. Management must then end: only a new
    /// start reads the log again.
    pub(crate) failed: Notify,
    /// Changes of clients' log levels that the clients have not confirmed yet.
    pub(crate) log_level_changes: LogLevelChanges,
    /// The requests of nodes that wait for a group.
    pub(crate) waits: ReportedWaits,
}

#[derive(Debug)]
struct AuthorityState {
    state: ClusterState,
    soft: SoftState,
    command_log: CommandLog,
    /// The versions of published maps.
    versions: VersionSequence,
    /// Free space of the whole cluster when the map was published or at the last tick, whichever is
    /// later.
    total_capacity: Option<Capacity>,
    /// The map that management sends to nodes.
    published: Rc<ClusterMap>,
    /// The published map, encoded as the body of a `MapUpdate` at the first request. The encoding
    /// is cached because each new map goes to all nodes.
    encoded: Option<Rc<[u8]>>,
}

/// The problem of a target that is missing from the reports of its node.
const UNSERVED: &str = "its service does not serve it";

fn now_ms() -> u64 {
    skep_env::now().as_millis() as u64
}

impl Authority {
    /// Starts the authority with the state restored from the command log, and logs the start as a
    /// command.
    pub(crate) fn start(state: ClusterState, command_log: CommandLog) -> Result<Rc<Self>> {
        let soft = SoftState::new(now_ms(), &state);
        let published = Rc::new(state.map().clone());
        let inner = RefCell::new(AuthorityState {
            state,
            soft,
            command_log,
            versions: VersionSequence::default(),
            total_capacity: None,
            published,
            encoded: None,
        });
        let authority = Rc::new(Self {
            inner,
            changed: Notify::default(),
            failed: Notify::default(),
            log_level_changes: LogLevelChanges::default(),
            waits: ReportedWaits::default(),
        });
        authority.propose(&Command::Start.into())?;
        Ok(authority)
    }

    /// Returns the published map.
    pub(crate) fn map(&self) -> Rc<ClusterMap> {
        Rc::clone(&self.inner.borrow().published)
    }

    /// Returns the free space of the whole cluster. `None` means that some targets have not
    /// reported their free space yet.
    pub(crate) fn total_capacity(&self) -> Option<Capacity> {
        self.inner.borrow().total_capacity
    }

    /// Returns the published map as the body of a `MapUpdate`, or `None` if the map is not newer
    /// than `known`.
    pub(crate) fn newer(&self, known: MapVersion) -> Option<Rc<[u8]>> {
        let mut inner = self.inner.borrow_mut();
        let AuthorityState { published, encoded, .. } = &mut *inner;
        // A node can have a newer map than management if management's directory is an old copy. The
        // heartbeat of such a node raises the version: `continue_above`.
        (published.version > known).then(|| {
            let encode = || MapUpdate { map: Some((**published).clone()) }.to_bytes().into();
            Rc::clone(encoded.get_or_insert_with(encode))
        })
    }

    /// Returns at most `most` clients whose ids are above `after`, in ascending order of ids.
    pub(crate) fn clients(&self, after: NodeId, most: usize) -> Vec<ClientEntry> {
        let inner = self.inner.borrow();
        let AuthorityState { state, soft, .. } = &*inner;
        let now = now_ms();
        let clients = state.clients().iter().filter(|client| client.node > after);
        let entry = |client: &ClientDetails| ClientEntry {
            node: client.node,
            host: client.host.clone(),
            mount_point: client.mount_point.clone(),
            pid: client.pid,
            registered: client.registered,
            silent_ms: soft.ms_since_contact(now, client.node),
        };
        clients.take(most).map(entry).collect()
    }

    /// Returns the outcome that a command would have now, without changing the state.
    pub(crate) fn check(&self, command: &Command) -> Result<Outcome> {
        self.inner.borrow().state.clone().apply(command)
    }

    /// Executes the command of a request. See [`Self::propose`].
    pub(crate) fn command(&self, id: RequestId, command: Command) -> Result<Outcome> {
        self.propose(&Proposal { id, command })
    }

    /// Executes a command, once for all proposals of one request. If the command changes the state,
    /// it is durable when this returns.
    pub(crate) fn propose(&self, proposal: &Proposal) -> Result<Outcome> {
        let mut inner = self.inner.borrow_mut();
        let mut next = inner.state.clone();
        let outcome = next.execute(proposal)?;
        if outcome.changed {
            if let Err(error) = inner.command_log.append(proposal) {
                tracing::error!("management cannot store a change: {error}");
                if error.code() == ErrorCode::DeviceFailed {
                    self.failed.notify();
                }
                return Err(error);
            }
            inner.state = next;
            let AuthorityState { state, command_log, .. } = &mut *inner;
            if let Err(error) = command_log.fold(state) {
                tracing::error!("management cannot write a snapshot of the command log: {error}");
            }
            drop(inner);
            self.publish();
            if cfg!(debug_assertions) {
                self.check_invariants();
            }
        }
        Ok(outcome)
    }

    /// If a node has a newer map than management, or one with an id that management has not
    /// assigned, then management's directory is an old copy. New ids and map versions then continue
    /// above all that were assigned since.
    pub(crate) fn continue_above(&self, heartbeat: &Heartbeat) -> Result<()> {
        let Heartbeat { node, known, newest_node, .. } = heartbeat;
        let (version, newest) = {
            let inner = self.inner.borrow();
            (inner.published.version, inner.state.map().newest_node)
        };
        if *known <= version && *newest_node <= newest {
            return Ok(());
        }
        check_report(*node, *known, *newest_node)?;
        self.propose(&Command::ContinueAbove { version: *known }.into())?;
        tracing::warn!(
            "node {node} has cluster map {known} with node ids up to {newest_node}, and management \
             had only map {version} with ids up to {newest}: its directory is an old copy. New ids \
             and map versions continue above all that were assigned since"
        );
        Ok(())
    }

    /// Records a heartbeat of a node with the reports about its targets. A target of the node
    /// without a report is down.
    pub(crate) fn note_heartbeat(&self, node: NodeId, reports: &[TargetReport]) {
        let capacities: Vec<_> = reports
            .iter()
            .filter(|report| report.health.condition != Condition::Down)
            .map(|report| (report.target, report.capacity))
            .collect();
        let mut inner = self.inner.borrow_mut();
        let AuthorityState { state, soft, .. } = &mut *inner;
        let mut changed = false;
        for target in state.map().targets.iter().filter(|target| target.node == node) {
            let report = reports.iter().find(|report| report.target == target.id);
            let health = report.map_or_else(
                || TargetHealth::new(Condition::Down, UNSERVED),
                |report| report.health.clone(),
            );
            if soft.report_health(target.id, &health) {
                changed = true;
                match health.condition {
                    Condition::Serving => tracing::info!("target {} serves again", target.id),
                    condition => tracing::warn!(
                        "target {} ({}) is {condition:?}: {}",
                        target.id,
                        target.path,
                        health.problem
                    ),
                }
            }
        }
        drop(inner);
        self.soft_change(changed);
        self.note_alive(node, &capacities);
    }

    /// Records that a server has registered. `capacities` names the targets that it serves; its
    /// other targets count as down.
    pub(crate) fn note_registration(&self, node: NodeId, capacities: &[(TargetId, Capacity)]) {
        let mut inner = self.inner.borrow_mut();
        let AuthorityState { state, soft, .. } = &mut *inner;
        let mut changed = false;
        for target in state.map().targets.iter().filter(|target| target.node == node) {
            if capacities.iter().all(|(served, _)| *served != target.id) {
                let health = TargetHealth::new(Condition::Down, UNSERVED);
                changed |= soft.report_health(target.id, &health);
            }
        }
        drop(inner);
        self.soft_change(changed);
        self.note_alive(node, capacities);
    }

    /// Records that a node has registered, or has sent a heartbeat with the free space of its
    /// targets.
    pub(crate) fn note_alive(&self, node: NodeId, capacities: &[(TargetId, Capacity)]) {
        let mut inner = self.inner.borrow_mut();
        let mut changed = inner.soft.record_contact(now_ms(), node);
        for (target, capacity) in capacities {
            let is_its_own = inner.state.map().target(*target).is_some_and(|it| it.node == node);
            changed |= is_its_own && inner.soft.report(*target, *capacity);
        }
        drop(inner);
        self.soft_change(changed);
    }

    /// Records that a server has left cleanly.
    pub(crate) fn left(&self, node: NodeId) {
        let changed = self.inner.borrow_mut().soft.record_leave(now_ms(), node);
        self.soft_change(changed);
    }

    /// Returns the id of the server with this uuid. `None` means that it has not registered.
    pub(crate) fn server_with_uuid(&self, uuid: u128) -> Option<NodeId> {
        self.inner.borrow().state.server_with_uuid(uuid)
    }

    /// Returns the time since a server sent its last heartbeat or has left, but at most the time
    /// since management started.
    pub(crate) fn silence(&self, node: NodeId) -> Duration {
        let silent_ms = self.inner.borrow().soft.silent_ms(now_ms(), node);
        Duration::from_millis(silent_ms.unwrap_or(0))
    }

    /// Returns whether management has received a heartbeat of a node within a lease.
    pub(crate) fn has_contact(&self, node: NodeId) -> bool {
        let inner = self.inner.borrow();
        let lease_ms = u64::from(inner.state.map().policy.lease_ms);
        inner.soft.ms_since_contact(now_ms(), node).is_some_and(|silent| silent <= lease_ms)
    }

    /// Removes a client from the cluster.
    pub(crate) fn remove_client(&self, id: RequestId, node: NodeId) -> Result<()> {
        self.command(id, Command::RemoveClient { node })?;
        self.inner.borrow_mut().soft.remove(node);
        Ok(())
    }

    /// Removes a server without targets from the cluster.
    pub(crate) fn remove_server(&self, id: RequestId, node: NodeId) -> Result<()> {
        self.command(id, Command::RemoveServer { node })?;
        self.inner.borrow_mut().soft.remove(node);
        Ok(())
    }

    /// Updates everything that depends on time: reachability, leases and free space.
    pub(crate) fn tick(&self) {
        let mut inner = self.inner.borrow_mut();
        let AuthorityState { state, soft, total_capacity, .. } = &mut *inner;
        let passed = soft.tick(now_ms(), state);
        *total_capacity = soft.total_capacity(state.map());
        drop(inner);
        self.soft_change(passed.changed);
        for client in passed.expired_clients {
            match self.remove_client(RequestId::default(), client) {
                Ok(()) => tracing::info!("removed client {client}: its lease expired"),
                Err(error) => tracing::error!(
                    "management cannot remove client {client}, whose lease expired: {error}"
                ),
            }
        }
    }

    /// Checks that the published map is of this cluster, and that its version belongs to the newest
    /// start.
    ///
    /// # Panics
    /// Panics if one of these conditions does not hold.
    pub(crate) fn check_invariants(&self) {
        let inner = self.inner.borrow();
        let (published, state) = (&inner.published, &inner.state);
        assert_eq!(published.cluster, state.map().cluster, "the published map is of this cluster");
        let starts = starts_of(published.version);
        assert_eq!(starts, state.starts(), "the map is published after the newest start");
    }

    fn soft_change(&self, changed: bool) {
        if changed {
            self.publish();
        }
    }

    fn publish(&self) {
        let mut inner = self.inner.borrow_mut();
        let AuthorityState { state, versions, .. } = &mut *inner;
        let mut map = state.map().clone();
        map.version = versions.next(state.starts());
        inner.soft.overlay(&mut map);
        inner.state.mark_closed(&mut map);
        log_reachability(&inner.published, &map);
        // Updated here too, not only at each tick: a client that mounts right after the first
        // targets have registered must not get a capacity of zero.
        inner.total_capacity = inner.soft.total_capacity(&map);
        inner.published = Rc::new(map);
        inner.encoded = None;
        drop(inner);
        self.changed.notify();
    }
}

/// Logs the servers whose reachability differs between two maps.
fn log_reachability(before: &ClusterMap, now: &ClusterMap) {
    for node in now.nodes.iter().filter(|node| node.kind != NodeKind::Client) {
        let Some(former) = before.node(node.id) else { continue };
        let addresses = node.addresses.join(", ");
        let (id, name) = (node.id, &node.name);
        match (former.reachability, node.reachability) {
            (former, now) if former == now => {}
            (_, Reachability::Online) => {
                tracing::info!("{name} ({id}) at {addresses} is online");
            }
            (Reachability::Online, Reachability::ProbablyOffline) => tracing::warn!(
                "{name} ({id}) at {addresses} has sent no heartbeat for a while; operations on its \
                 targets may wait for it"
            ),
            (_, Reachability::ProbablyOffline) => {}
            (_, Reachability::Offline) => tracing::warn!(
                "{name} ({id}) at {addresses} is offline; operations on its targets wait until it \
                 is back"
            ),
        }
    }
}
