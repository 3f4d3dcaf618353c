//! Reachability of nodes, and free space and health of targets, as heartbeats report them to
//! management.
//!
//! This state is soft: management does not log it. A restart loses the state, and the heartbeats of
//! the nodes restore it within one heartbeat interval. Until then a node counts as
//! `ProbablyOffline`, because management has no information yet whether the node runs. But a new
//! leader that has the last map of the previous leader begins with the state in that map. Times are
//! milliseconds of a clock that never goes back and that continues while the host is suspended.
//!
//! Does not own the publication of maps. The methods return whether a change justifies a new map.
//!
//! # Invariants
//! - A node that has left (`Contact::last_ms` is `None`) is `Offline`.
//! - Each published capacity belongs to a target that has reported a capacity to management.
//! - The time of the last tick is not earlier than the time of the start.
//!
//! [`SoftState::check_invariants`] asserts these invariants.

use crate::capacity_pools::PoolLimits;
use crate::limits::{LEASES_UNTIL_OFFLINE, LEASES_UNTIL_REMOVED, NOTABLE_CHANGE_PERCENT};
use crate::state::ClusterState;
use skep_types::map::{Capacity, Condition, Reachability, TargetHealth};
use skep_types::{ClusterMap, NodeId, NodeKind, Target, TargetId, TargetKind};
use std::collections::BTreeMap;

/// The last contact with a node.
#[derive(Debug, Clone, Copy)]
struct Contact {
    /// Time from which the silence of the node counts, in milliseconds: the last heartbeat, the
    /// start of management, or a later time that [`SoftState::tick`] has set. `None` means that the
    /// server has shut down cleanly.
    last_ms: Option<u64>,
    /// Time of the last heartbeat, or of the clean shutdown of the server, in milliseconds.
    silent_since_ms: u64,
    /// Whether no heartbeat of the node has arrived since the start of management. If this field is
    /// set, the node may be silent for longer than `silent_since_ms` shows.
    is_unheard: bool,
    reachability: Reachability,
    /// The last outage of the node. The outage ended when the node became `Online`. `None` if the
    /// node has not been away since the start of management.
    last_outage: Option<Outage>,
}

/// The condition of a target that does not serve all requests.
#[derive(Debug, Clone)]
struct Fault {
    health: TargetHealth,
    /// Time at which the target first reported this condition, in milliseconds on the clock of the
    /// parameters `now_ms`.
    since_ms: u64,
    /// Whether the target already had this condition at the start of management. The duration of
    /// the condition is then not known.
    is_older: bool,
}

/// The duration of an outage of a node or a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outage {
    /// The duration in milliseconds, as far as the current leader of management has observed it.
    pub lasted_ms: u64,
    /// Whether the outage may have begun before the current leader of management started to lead.
    pub may_be_longer: bool,
}

/// The soft state: reachability and capacities from heartbeats.
#[derive(Debug, Clone)]
pub struct SoftState {
    nodes: BTreeMap<NodeId, Contact>,
    /// The capacities in the published map.
    published: BTreeMap<TargetId, Capacity>,
    /// The capacities that the targets reported last.
    reported: BTreeMap<TargetId, Capacity>,
    /// The health of the targets that do not serve all requests, as their nodes reported it last.
    faults: BTreeMap<TargetId, Fault>,
    started_ms: u64,
    ticked_ms: u64,
    /// The lease at the last tick.
    lease_ms: u64,
    /// The limits of capacity pools at the last tick.
    pool_limits: PoolLimits,
}

/// The changes that a tick has caused.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReachabilityChanges {
    /// Whether the reachability of any node changed.
    pub changed: bool,
    /// Clients without a heartbeat for [`LEASES_UNTIL_REMOVED`] leases. The caller must remove them
    /// by a command.
    pub expired_clients: Vec<NodeId>,
}

impl SoftState {
    /// Creates the state at the start of management, before the first heartbeat of any node.
    pub fn new(now_ms: u64, state: &ClusterState) -> Self {
        let unknown = Contact {
            last_ms: Some(now_ms),
            silent_since_ms: now_ms,
            is_unheard: true,
            reachability: Reachability::ProbablyOffline,
            last_outage: None,
        };
        let nodes = state.map().nodes.iter().map(|node| (node.id, unknown)).collect();
        Self {
            nodes,
            published: BTreeMap::new(),
            reported: BTreeMap::new(),
            faults: BTreeMap::new(),
            started_ms: now_ms,
            ticked_ms: now_ms,
            lease_ms: u64::from(state.map().policy.lease_ms),
            pool_limits: PoolLimits::of(&state.map().policy),
        }
    }

    /// Creates the state of a new leader of management, before the first heartbeat of any node.
    /// Takes over the reachability, capacities and health in `last`, the last map of the previous
    /// leader, and begins the lease of each node anew. Nodes and targets that are not in `last` are
    /// as in [`Self::new`].
    pub fn of_map(now_ms: u64, state: &ClusterState, last: &ClusterMap) -> Self {
        let mut soft = Self::new(now_ms, state);
        for (id, contact) in &mut soft.nodes {
            if let Some(node) = last.node(*id) {
                contact.reachability = node.reachability;
            }
        }
        for target in last.targets.iter().filter(|it| state.map().target(it.id).is_some()) {
            if target.capacity != Capacity::default() {
                soft.report(target.id, target.capacity);
            }
            soft.report_health(now_ms, target.id, &target.health);
        }
        soft.faults.values_mut().for_each(|fault| fault.is_older = true);
        soft
    }

    /// Handles a registration or a heartbeat of a node. Returns whether the node becomes `Online`
    /// now, which justifies a new map.
    pub fn record_contact(&mut self, now_ms: u64, node: NodeId) -> bool {
        let before = self.nodes.get(&node);
        let is_return = before.is_none_or(|before| before.reachability != Reachability::Online);
        let outage = |contact: &Contact| Outage {
            lasted_ms: now_ms.saturating_sub(contact.silent_since_ms),
            may_be_longer: contact.is_unheard,
        };
        let last_outage = match is_return {
            true => before.map(outage),
            false => before.and_then(|it| it.last_outage),
        };
        let contact = Contact {
            last_ms: Some(now_ms),
            silent_since_ms: now_ms,
            is_unheard: false,
            reachability: Reachability::Online,
            last_outage,
        };
        self.nodes.insert(node, contact);
        is_return
    }

    /// Records the capacity that a target has reported. Returns whether the change is large enough
    /// for a new map. If the change is too small, the published map keeps the previously published
    /// capacity.
    pub fn report(&mut self, target: TargetId, capacity: Capacity) -> bool {
        self.reported.insert(target, capacity);
        let shown = self.published.entry(target).or_default();
        let notable = is_notable(self.pool_limits, shown, &capacity);
        if notable {
            *shown = capacity;
        }
        notable
    }

    /// Records the health that a node has reported for one of its targets. Returns whether the
    /// change of the health justifies a new map.
    pub fn report_health(&mut self, now_ms: u64, target: TargetId, health: &TargetHealth) -> bool {
        if health.condition == Condition::Serving && health.problem.is_empty() {
            return self.faults.remove(&target).is_some();
        }
        let health = TargetHealth::new(health.condition, &health.problem);
        let before = self.faults.get(&target);
        let is_new = before.is_none_or(|before| before.health != health);
        let same = before.filter(|before| before.health.condition == health.condition);
        let (since_ms, is_older) = same.map_or((now_ms, false), |it| (it.since_ms, it.is_older));
        self.faults.insert(target, Fault { health, since_ms, is_older });
        is_new
    }

    /// Returns the capacity of the whole cluster for file data, from the newest report of each
    /// target. Returns `None` during the first lease after the start if not all storage targets
    /// have reported yet.
    pub fn total_capacity(&self, map: &ClusterMap) -> Option<Capacity> {
        let is_waiting = self.ticked_ms - self.started_ms < u64::from(map.policy.lease_ms);
        let mut storage = map.targets.iter().filter(|target| target.kind == TargetKind::Storage);
        if is_waiting && storage.any(|target| !self.reported.contains_key(&target.id)) {
            return None;
        }
        let capacity = |target: &Target| self.reported.get(&target.id).copied();
        Some(map.total_capacity(|target| capacity(target).unwrap_or_default()))
    }

    /// Handles the clean shutdown of a server. The server is then `Offline` immediately. Returns
    /// whether the server was not `Offline` before.
    pub fn record_leave(&mut self, now_ms: u64, node: NodeId) -> bool {
        let contact = Contact {
            last_ms: None,
            silent_since_ms: now_ms,
            is_unheard: false,
            reachability: Reachability::Offline,
            last_outage: None,
        };
        self.nodes
            .insert(node, contact)
            .is_some_and(|before| before.reachability != Reachability::Offline)
    }

    /// Returns the milliseconds since the lease of a node began: since its last heartbeat or
    /// management's start, without the times in which management itself was suspended. `None` means
    /// that the node is unknown or has left.
    pub fn ms_since_contact(&self, now_ms: u64, node: NodeId) -> Option<u64> {
        // The subtraction saturates, because the caller may have read the clock before the
        // heartbeat arrived.
        self.nodes.get(&node)?.last_ms.map(|last_ms| now_ms.saturating_sub(last_ms))
    }

    /// Returns the milliseconds since the last heartbeat of a node. `None` means that no heartbeat
    /// of the node has arrived since management's start, or that the node is unknown or has left.
    pub fn ms_since_heartbeat(&self, now_ms: u64, node: NodeId) -> Option<u64> {
        let contact = self.nodes.get(&node).filter(|it| !it.is_unheard && it.last_ms.is_some())?;
        Some(now_ms.saturating_sub(contact.silent_since_ms))
    }

    /// Returns the milliseconds since the last heartbeat of a node, since the clean shutdown of the
    /// server, or since management's start, whichever was last. `None` means that the node is
    /// unknown.
    pub fn silent_ms(&self, now_ms: u64, node: NodeId) -> Option<u64> {
        self.nodes.get(&node).map(|contact| now_ms.saturating_sub(contact.silent_since_ms))
    }

    /// Returns the nodes that are not `Online`, with the time since their last heartbeats or clean
    /// shutdowns.
    pub fn silent_nodes(&self, now_ms: u64) -> impl Iterator<Item = (NodeId, Outage)> {
        let silent = self.nodes.iter().filter(|(_, it)| it.reachability != Reachability::Online);
        silent.map(move |(node, contact)| {
            let lasted_ms = now_ms.saturating_sub(contact.silent_since_ms);
            (*node, Outage { lasted_ms, may_be_longer: contact.is_unheard })
        })
    }

    /// Returns the last outage of a node that is `Online`. `None` means that the node was always
    /// online while management ran.
    pub fn last_outage(&self, node: NodeId) -> Option<Outage> {
        self.nodes.get(&node)?.last_outage
    }

    /// Returns the targets that do not serve all requests, with the duration of their current
    /// condition.
    pub fn faulty_targets(&self, now_ms: u64) -> impl Iterator<Item = (TargetId, Outage)> {
        self.faults.iter().map(move |(target, fault)| {
            let lasted_ms = now_ms.saturating_sub(fault.since_ms);
            (*target, Outage { lasted_ms, may_be_longer: fault.is_older })
        })
    }

    /// Removes a node from the soft state after it was removed from the map.
    pub fn remove(&mut self, node: NodeId) {
        self.nodes.remove(&node);
    }

    /// Updates the reachability of all nodes for the time `now_ms`. The caller must tick more often
    /// than once per lease.
    ///
    /// A gap of more than one lease between two ticks does not count as silence of the nodes. In
    /// such a gap, management itself was suspended or got no processor time, and its sockets may
    /// have unread heartbeats. If the lease becomes shorter, the lease of each `Online` node starts
    /// anew, because a node sends heartbeats more often only after it has received the new lease.
    pub fn tick(&mut self, now_ms: u64, state: &ClusterState) -> ReachabilityChanges {
        debug_assert!(now_ms >= self.ticked_ms, "the clock of ticks never goes back");
        let lease_ms = u64::from(state.map().policy.lease_ms);
        let gap_ms = now_ms.saturating_sub(self.ticked_ms);
        let missed_ms = if gap_ms > lease_ms { gap_ms } else { 0 };
        let is_shorter = lease_ms < std::mem::replace(&mut self.lease_ms, lease_ms);
        self.ticked_ms = now_ms;
        self.pool_limits = PoolLimits::of(&state.map().policy);
        let mut changes = ReachabilityChanges::default();
        for (id, contact) in &mut self.nodes {
            let Some(last_ms) = &mut contact.last_ms else { continue };
            *last_ms = if is_shorter && contact.reachability == Reachability::Online {
                now_ms
            } else {
                (*last_ms + missed_ms).min(now_ms)
            };
            let silent_ms = now_ms - *last_ms;
            let next = if silent_ms >= LEASES_UNTIL_OFFLINE * lease_ms {
                Reachability::Offline
            } else if silent_ms >= lease_ms {
                Reachability::ProbablyOffline
            } else {
                contact.reachability
            };
            changes.changed |= next != contact.reachability;
            contact.reachability = next;
            let is_client = state.map().node(*id).is_some_and(|node| node.kind == NodeKind::Client);
            if is_client && silent_ms >= LEASES_UNTIL_REMOVED * lease_ms {
                changes.expired_clients.push(*id);
            }
        }
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
        changes
    }

    /// Asserts the invariants of the module.
    ///
    /// # Panics
    /// Panics if an invariant does not hold.
    pub fn check_invariants(&self) {
        assert!(self.started_ms <= self.ticked_ms, "no tick is before the start");
        for (node, contact) in &self.nodes {
            let has_left = contact.last_ms.is_none();
            let is_offline = contact.reachability == Reachability::Offline;
            assert!(!has_left || is_offline, "node {node} has left and is offline");
        }
        for target in self.published.keys() {
            assert!(self.reported.contains_key(target), "target {target} has reported");
        }
    }

    /// Sets the soft fields of a map: reachability, health, capacities and capacity pools.
    pub fn overlay(&self, map: &mut ClusterMap) {
        let reachability = |node: NodeId| {
            let contact = self.nodes.get(&node);
            contact.map_or(Reachability::ProbablyOffline, |contact| contact.reachability)
        };
        for node in &mut map.nodes {
            node.reachability = reachability(node.id);
        }
        let limits = PoolLimits::of(&map.policy);
        for target in &mut map.targets {
            target.reachability = reachability(target.node);
            let fault = self.faults.get(&target.id);
            target.health = fault.map(|fault| fault.health.clone()).unwrap_or_default();
            target.capacity = self.published.get(&target.id).copied().unwrap_or_default();
            target.capacity_pool = limits.pool(&target.capacity);
        }
    }
}

fn is_notable(limits: PoolLimits, shown: &Capacity, now: &Capacity) -> bool {
    let far = |a: u64, b: u64, total: u64| {
        u128::from(a.abs_diff(b)) * 100 > u128::from(total) * u128::from(NOTABLE_CHANGE_PERCENT)
    };
    shown.file_system != now.file_system
        || far(shown.total_bytes, now.total_bytes, now.total_bytes)
        || limits.pool(shown) != limits.pool(now)
        || shown.is_full() != now.is_full()
        || far(shown.free_bytes, now.free_bytes, now.total_bytes)
        || far(shown.free_inodes, now.free_inodes, now.total_inodes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{ClientRegistration, Command};
    use crate::settings::Setting;
    use crate::state::tests::{cluster, server};
    use skep_types::map::{CapacityPool, Policy};

    const LEASE: u64 = 5_000;

    /// Creates a cluster of one storage service with two targets and one client. Both nodes have
    /// sent a heartbeat at time 0.
    fn in_contact() -> (ClusterState, SoftState, NodeId, NodeId) {
        let mut state = cluster();
        let mut soft = SoftState::new(0, &state);
        let server = state.apply(&server(TargetKind::Storage, 10, &[11, 12])).unwrap().node;
        let client = ClientRegistration { host: "host".into(), ..Default::default() };
        let client = state.apply(&Command::RegisterClient(client)).unwrap().node;
        assert!(soft.record_contact(0, server) && soft.record_contact(0, client));
        (state, soft, server, client)
    }

    fn shown(state: &ClusterState, soft: &SoftState, node: NodeId) -> Reachability {
        let mut map = state.map().clone();
        soft.overlay(&mut map);
        for target in map.targets.iter().filter(|target| target.node == node) {
            assert_eq!(target.reachability, map.node(node).unwrap().reachability);
        }
        map.node(node).unwrap().reachability
    }

    fn tick_to(
        soft: &mut SoftState,
        state: &ClusterState,
        from: u64,
        to: u64,
    ) -> Vec<ReachabilityChanges> {
        let times = (from..=to).step_by(1_000);
        times
            .map(|now| soft.tick(now, state))
            .filter(|p| *p != ReachabilityChanges::default())
            .collect()
    }

    #[test]
    fn new_leader_has_no_times_of_earlier_heartbeats() {
        let (state, soft, server, client) = in_contact();
        let mut last = state.map().clone();
        soft.overlay(&mut last);
        let mut next = SoftState::of_map(60_000, &state, &last);
        assert_eq!(shown(&state, &next, client), Reachability::Online);
        assert_eq!(next.ms_since_heartbeat(61_000, client), None);
        next.record_contact(61_000, client);
        assert_eq!(next.ms_since_heartbeat(61_250, client), Some(250));
        next.record_leave(61_000, server);
        assert_eq!(next.ms_since_heartbeat(62_000, server), None);
    }

    #[test]
    fn silent_node_goes_offline_and_silent_client_expires() {
        let (state, mut soft, server, client) = in_contact();
        assert_eq!(tick_to(&mut soft, &state, 0, LEASE - 1), []);
        assert_eq!(shown(&state, &soft, server), Reachability::Online);
        assert_eq!(tick_to(&mut soft, &state, LEASE, 3 * LEASE - 1).len(), 1);
        assert_eq!(shown(&state, &soft, server), Reachability::ProbablyOffline);
        let passed = soft.tick(3 * LEASE, &state);
        assert_eq!(passed, ReachabilityChanges { changed: true, expired_clients: Vec::new() });
        assert_eq!(shown(&state, &soft, server), Reachability::Offline);
        let passed = tick_to(&mut soft, &state, 3 * LEASE, LEASES_UNTIL_REMOVED * LEASE);
        assert_eq!(passed, [ReachabilityChanges { changed: false, expired_clients: vec![client] }]);
        let now = LEASES_UNTIL_REMOVED * LEASE;
        assert!(soft.record_contact(now, server));
        assert_eq!(shown(&state, &soft, server), Reachability::Online);
        assert!(!soft.record_contact(now, server));
    }

    #[test]
    fn leaving_server_is_offline_immediately_and_stays_offline() {
        let (state, mut soft, server, _) = in_contact();
        assert!(soft.record_leave(500, server));
        assert!(!soft.record_leave(500, server));
        assert!(!soft.tick(1_000, &state).changed);
        assert_eq!(soft.silent_ms(1_000, server), Some(500));
        assert_eq!(shown(&state, &soft, server), Reachability::Offline);
    }

    #[test]
    fn pause_of_management_makes_no_node_offline() {
        let (state, mut soft, server, _) = in_contact();
        assert_eq!(soft.tick(100 * LEASE, &state), ReachabilityChanges::default());
        assert_eq!(shown(&state, &soft, server), Reachability::Online);
        tick_to(&mut soft, &state, 100 * LEASE, 103 * LEASE);
        assert_eq!(shown(&state, &soft, server), Reachability::Offline);
    }

    /// Regression test: when an administrator made the lease shorter than the old heartbeat
    /// interval, all nodes were offline for a moment.
    #[test]
    fn nodes_stay_online_for_a_whole_lease_after_it_was_shortened() {
        let (mut state, mut soft, server, client) = in_contact();
        soft.tick(LEASE / 2, &state);
        let policy = Policy { lease_ms: 200, heartbeat_ms: 20, ..Policy::default() };
        state.apply(&Command::SetPolicy(policy)).unwrap();
        assert_eq!(soft.tick(LEASE / 2 + 50, &state), ReachabilityChanges::default());
        assert_eq!(soft.tick(LEASE / 2 + 249, &state), ReachabilityChanges::default());
        assert_eq!(shown(&state, &soft, server), Reachability::Online);
        assert!(soft.tick(LEASE / 2 + 250, &state).changed, "the lease has ended");
        let end = 50 + LEASES_UNTIL_REMOVED * 200;
        let ends = (300..=end)
            .step_by(50)
            .flat_map(|ms| soft.tick(LEASE / 2 + ms, &state).expired_clients);
        assert_eq!(ends.take(1).collect::<Vec<_>>(), [client]);
    }

    #[test]
    fn node_is_probably_offline_after_a_restart_of_management() {
        let (state, _, server, _) = in_contact();
        let mut soft = SoftState::new(7, &state);
        assert_eq!(shown(&state, &soft, server), Reachability::ProbablyOffline);
        assert!(soft.record_contact(8, server));
        assert_eq!(shown(&state, &soft, server), Reachability::Online);
    }

    #[test]
    fn new_leader_takes_over_node_states_from_the_last_map() {
        let (state, mut soft, server, client) = in_contact();
        let target = state.map().targets[0].id;
        soft.report(target, Capacity { total_bytes: 1_000, ..Capacity::default() });
        soft.report_health(1, target, &TargetHealth::new(Condition::ReadOnly, "failed"));
        soft.record_leave(1, client);
        let mut last = state.map().clone();
        soft.overlay(&mut last);
        let mut next = SoftState::of_map(90_000, &state, &last);
        let mut map = state.map().clone();
        next.overlay(&mut map);
        assert_eq!(map, last);
        // The lease of each node begins anew, so no client is removed yet.
        assert_eq!(next.silent_ms(90_000, server), Some(0));
        let passed = next.tick(90_000 + LEASE - 1, &state);
        assert_eq!(passed, ReachabilityChanges::default());
        assert_eq!(shown(&state, &next, server), Reachability::Online);
        assert!(next.tick(90_000 + LEASE, &state).changed);
        // A target may be in the map of the previous leader and not in the state of the new leader.
        let empty = cluster();
        SoftState::of_map(90_000, &empty, &last).check_invariants();
    }

    #[test]
    fn map_changes_only_if_space_changes_by_over_one_percent() {
        let (state, mut soft, ..) = in_contact();
        let target = state.map().targets[0].id;
        let total_capacity =
            |free_bytes| Capacity { total_bytes: 1_000, free_bytes, ..Capacity::default() };
        assert!(soft.report(target, total_capacity(500)));
        assert!(!soft.report(target, total_capacity(490)));
        assert!(soft.report(target, total_capacity(489)));
        // The size of a disk with a reserve changes a little when other programs write to it.
        assert!(!soft.report(target, Capacity { total_bytes: 991, ..total_capacity(489) }));
        assert!(soft.report(target, Capacity { total_bytes: 980, ..total_capacity(489) }));
        assert!(
            soft.report(
                target,
                Capacity { total_bytes: 980, file_system: 7, ..total_capacity(489) }
            )
        );
        let mut map = state.map().clone();
        soft.overlay(&mut map);
        assert_eq!(map.targets[0].capacity.free_bytes, 489);
        // The map shows immediately that a target is full.
        let large =
            |free_bytes| Capacity { total_bytes: 1 << 40, free_bytes, ..Capacity::default() };
        soft.report(target, large(5 << 20));
        assert!(!soft.report(target, large(4 << 20)));
        assert!(soft.report(target, large((4 << 20) - 1)));
    }

    #[test]
    fn changed_limits_of_free_space_change_the_pools_in_the_map() {
        let (mut state, mut soft, ..) = in_contact();
        let target = state.map().targets[0].id;
        let half = Capacity { total_bytes: 1_000, free_bytes: 500, ..Capacity::default() };
        soft.report(target, half);
        let pool = |state: &ClusterState, soft: &SoftState| {
            let mut map = state.map().clone();
            soft.overlay(&mut map);
            map.targets[0].capacity_pool
        };
        assert_eq!(pool(&state, &soft), CapacityPool::Normal);
        let command = Setting::named("low-percent").unwrap().change(50).unwrap();
        state.apply(&command).unwrap();
        soft.tick(1, &state);
        assert_eq!(pool(&state, &soft), CapacityPool::Normal, "exactly half is free");
        assert!(soft.report(target, Capacity { free_bytes: 499, ..half }), "the pool changes");
        assert_eq!(pool(&state, &soft), CapacityPool::Low);
    }

    #[test]
    fn cluster_map_shows_the_condition_of_a_target_that_failed() {
        let (state, mut soft, ..) = in_contact();
        let target = state.map().targets[0].id;
        let failed = TargetHealth::new(Condition::ReadOnly, "the disk failed\n\u{1b}[2J");
        assert!(!soft.report_health(1, target, &TargetHealth::default()));
        assert!(soft.report_health(1, target, &failed));
        assert!(!soft.report_health(1, target, &failed), "the health has not changed");
        let mut map = state.map().clone();
        soft.overlay(&mut map);
        assert_eq!(map.targets[0].health.condition, Condition::ReadOnly);
        assert!(!map.targets[0].health.problem.contains(char::is_control));
        assert_eq!(map.targets[1].health, TargetHealth::default());
        assert!(soft.report_health(1, target, &TargetHealth::default()));
        soft.overlay(&mut map);
        assert_eq!(map.targets[0].health, TargetHealth::default());
    }

    #[test]
    fn outage_begins_at_the_last_heartbeat_or_first_bad_condition() {
        let (state, mut soft, server, _) = in_contact();
        let target = state.map().targets[0].id;
        assert_eq!(soft.silent_nodes(1).count() + soft.faulty_targets(1).count(), 0);
        soft.record_contact(1_000, server);
        let hung = |problem| TargetHealth::new(Condition::Hung, problem);
        soft.report_health(2_000, target, &hung("no answer for 5 s"));
        soft.report_health(3_000, target, &hung("no answer for 6 s"));
        tick_to(&mut soft, &state, 0, 1_000 + LEASE);
        let silent: Vec<_> = soft.silent_nodes(9_000).filter(|(node, _)| *node == server).collect();
        assert_eq!(silent, [(server, Outage { lasted_ms: 8_000, may_be_longer: false })]);
        let faulty: Vec<_> = soft.faulty_targets(9_000).collect();
        assert_eq!(faulty, [(target, Outage { lasted_ms: 7_000, may_be_longer: false })]);
        // The next leader of management did not observe the beginning of the outage.
        let mut last = state.map().clone();
        soft.overlay(&mut last);
        let next = SoftState::of_map(10_000, &state, &last);
        let later = Outage { lasted_ms: 500, may_be_longer: true };
        assert!(next.silent_nodes(10_500).any(|it| it == (server, later)));
        assert_eq!(next.faulty_targets(10_500).collect::<Vec<_>>(), [(target, later)]);
        soft.report_health(9_500, target, &TargetHealth::new(Condition::Down, "no disk"));
        assert_eq!(soft.faulty_targets(9_600).next().unwrap().1.lasted_ms, 100);
    }

    #[test]
    fn capacity_is_unknown_until_all_targets_report_or_lease_ends() {
        let (state, mut soft, ..) = in_contact();
        let [first, second] = [0, 1].map(|index| state.map().targets[index].id);
        let total_capacity =
            |free_bytes| Capacity { total_bytes: 1_000, free_bytes, ..Capacity::default() };
        assert_eq!(soft.total_capacity(state.map()), None);
        soft.report(first, total_capacity(500));
        assert_eq!(soft.total_capacity(state.map()), None);
        let mut late = soft.clone();
        late.tick(LEASE, &state);
        assert_eq!(late.total_capacity(state.map()), Some(total_capacity(500)));
        soft.report(second, total_capacity(300));
        assert!(!soft.report(second, total_capacity(299)), "the change is too small for a new map");
        let whole = soft.total_capacity(state.map()).unwrap();
        assert_eq!((whole.total_bytes, whole.free_bytes), (2_000, 799));
        let mut map = state.map().clone();
        map.targets[1].consistency = skep_types::map::Consistency::Bad;
        assert_eq!(soft.total_capacity(&map), Some(total_capacity(500)), "without the lost target");
    }
}
