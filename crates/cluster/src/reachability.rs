//! Who answers at the moment, and how much space there is: what management learns from heartbeats.
//!
//! Soft state: not logged, lost at a restart, learnt again within one heartbeat. Until then a node
//! counts as `ProbablyOffline`: nothing was heard from it, and nothing speaks for its end. Time is
//! a number of milliseconds on any clock that counts suspension and never goes back.

use crate::limits::{
    EMERGENCY_CAP_BYTES, EMERGENCY_CAP_INODES, EMERGENCY_PERCENT, LEASES_UNTIL_OFFLINE,
    LEASES_UNTIL_REMOVED, LOW_CAP_BYTES, LOW_CAP_INODES, LOW_PERCENT, NOTABLE_CHANGE_PERCENT,
};
use crate::state::ClusterState;
use skep_types::map::{Capacity, CapacityPool, Reachability};
use skep_types::{ClusterMap, NodeId, NodeKind, TargetId, TargetKind};
use std::collections::BTreeMap;

/// When a node was last heard.
#[derive(Debug, Clone, Copy)]
struct Heard {
    /// `None`: it said that it ends.
    last_ms: Option<u64>,
    reachability: Reachability,
}

/// What heartbeats tell.
#[derive(Debug, Clone)]
pub struct SoftState {
    nodes: BTreeMap<NodeId, Heard>,
    /// As the map shows them.
    capacities: BTreeMap<TargetId, Capacity>,
    /// As they were reported last.
    newest: BTreeMap<TargetId, Capacity>,
    started_ms: u64,
    ticked_ms: u64,
    /// The lease of the last tick.
    lease_ms: u64,
}

/// What the passing of time has changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Passed {
    /// Whether any node's reachability changed.
    pub changed: bool,
    /// Clients whose lease ran out long ago; to be removed by a command.
    pub expired_clients: Vec<NodeId>,
}

impl SoftState {
    /// At the start of management: no node was heard yet.
    pub fn new(now_ms: u64, state: &ClusterState) -> Self {
        let unheard = Heard { last_ms: Some(now_ms), reachability: Reachability::ProbablyOffline };
        let nodes = state.map().nodes.iter().map(|node| (node.id, unheard)).collect();
        Self {
            nodes,
            capacities: BTreeMap::new(),
            newest: BTreeMap::new(),
            started_ms: now_ms,
            ticked_ms: now_ms,
            lease_ms: u64::from(state.map().policy.lease_ms),
        }
    }

    /// A node registered or sent a heartbeat. Says whether that is a change worth a new map.
    pub fn heard(&mut self, now_ms: u64, node: NodeId) -> bool {
        let heard = Heard { last_ms: Some(now_ms), reachability: Reachability::Online };
        let before = self.nodes.insert(node, heard);
        before.is_none_or(|before| before.reachability != Reachability::Online)
    }

    /// A target's room was reported. Says whether that is a change worth a new map; if not, the map
    /// keeps the older numbers.
    pub fn report(&mut self, target: TargetId, capacity: Capacity) -> bool {
        self.newest.insert(target, capacity);
        let shown = self.capacities.entry(target).or_default();
        let notable = is_notable(shown, &capacity);
        if notable {
            *shown = capacity;
        }
        notable
    }

    /// Room for files in the whole cluster, as it was reported last, however little it changed.
    /// None while targets may still be heard for the first time: for one lease after the start.
    pub fn total_capacity(&self, map: &ClusterMap) -> Option<Capacity> {
        let is_waited_for = self.ticked_ms - self.started_ms < u64::from(map.policy.lease_ms);
        let mut storage = map.targets.iter().filter(|target| target.kind == TargetKind::Storage);
        if is_waited_for && storage.any(|target| !self.newest.contains_key(&target.id)) {
            return None;
        }
        Some(map.total_capacity(|target| self.newest.get(&target.id).copied().unwrap_or_default()))
    }

    /// A server said that it ends: it is offline at once. Says whether that is a change.
    pub fn left(&mut self, node: NodeId) -> bool {
        let heard = Heard { last_ms: None, reachability: Reachability::Offline };
        self.nodes
            .insert(node, heard)
            .is_some_and(|before| before.reachability != Reachability::Offline)
    }

    /// For how long a node was silent; none: it was not heard at all, or said that it ends.
    pub fn silent_ms(&self, now_ms: u64, node: NodeId) -> Option<u64> {
        self.nodes.get(&node)?.last_ms.map(|last_ms| now_ms.saturating_sub(last_ms))
    }

    /// A node was removed from the map.
    pub fn forget(&mut self, node: NodeId) {
        self.nodes.remove(&node);
    }

    /// Lets time pass. Call it more often than once per lease.
    ///
    /// Time in which nobody called doesn't count against the nodes: management itself was stopped
    /// or starved then, and their heartbeats wait in its sockets. A lease that became shorter
    /// begins anew for those who were on time by the longer one: they send heartbeats as soon as
    /// they hear of it.
    pub fn tick(&mut self, now_ms: u64, state: &ClusterState) -> Passed {
        let lease_ms = u64::from(state.map().policy.lease_ms);
        let gap_ms = now_ms.saturating_sub(self.ticked_ms);
        let missed_ms = if gap_ms > lease_ms { gap_ms } else { 0 };
        let is_shorter = lease_ms < std::mem::replace(&mut self.lease_ms, lease_ms);
        self.ticked_ms = now_ms;
        let mut passed = Passed::default();
        for (id, heard) in &mut self.nodes {
            let Some(last_ms) = &mut heard.last_ms else { continue };
            *last_ms = match is_shorter && heard.reachability == Reachability::Online {
                true => now_ms,
                false => last_ms.saturating_add(missed_ms).min(now_ms),
            };
            let silent_ms = now_ms - *last_ms;
            let next = if silent_ms >= LEASES_UNTIL_OFFLINE * lease_ms {
                Reachability::Offline
            } else if silent_ms >= lease_ms {
                Reachability::ProbablyOffline
            } else {
                heard.reachability
            };
            passed.changed |= next != heard.reachability;
            heard.reachability = next;
            let is_client = state.map().node(*id).is_some_and(|node| node.kind == NodeKind::Client);
            if is_client && silent_ms >= LEASES_UNTIL_REMOVED * lease_ms {
                passed.expired_clients.push(*id);
            }
        }
        passed
    }

    /// Lays what is known over the soft fields of a map.
    pub fn overlay(&self, map: &mut ClusterMap) {
        let reachability = |node: NodeId| {
            self.nodes.get(&node).map_or(Reachability::ProbablyOffline, |heard| heard.reachability)
        };
        for node in &mut map.nodes {
            node.reachability = reachability(node.id);
        }
        for target in &mut map.targets {
            target.reachability = reachability(target.node);
            target.capacity = self.capacities.get(&target.id).copied().unwrap_or_default();
            target.capacity_pool = capacity_pool(&target.capacity);
        }
    }
}

/// The capacity pool of a target with this much space. A target that hasn't reported yet is
/// `Normal`.
pub fn capacity_pool(capacity: &Capacity) -> CapacityPool {
    let below = |free: u64, total: u64, percent: u64, cap: u64| {
        total > 0 && free < cap && u128::from(free) * 100 < u128::from(total) * u128::from(percent)
    };
    let Capacity { total_bytes, free_bytes, total_inodes, free_inodes, .. } = *capacity;
    if below(free_bytes, total_bytes, EMERGENCY_PERCENT, EMERGENCY_CAP_BYTES)
        || below(free_inodes, total_inodes, EMERGENCY_PERCENT, EMERGENCY_CAP_INODES)
    {
        CapacityPool::Emergency
    } else if below(free_bytes, total_bytes, LOW_PERCENT, LOW_CAP_BYTES)
        || below(free_inodes, total_inodes, LOW_PERCENT, LOW_CAP_INODES)
    {
        CapacityPool::Low
    } else {
        CapacityPool::Normal
    }
}

fn is_notable(shown: &Capacity, now: &Capacity) -> bool {
    let far = |a: u64, b: u64, total: u64| {
        u128::from(a.abs_diff(b)) * 100 > u128::from(total) * u128::from(NOTABLE_CHANGE_PERCENT)
    };
    (shown.total_bytes, shown.file_system) != (now.total_bytes, now.file_system)
        || capacity_pool(shown) != capacity_pool(now)
        || far(shown.free_bytes, now.free_bytes, now.total_bytes)
        || far(shown.free_inodes, now.free_inodes, now.total_inodes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{ClientRegistration, Command};
    use crate::state::tests::{cluster, server};
    use skep_types::map::Policy;

    const LEASE: u64 = 5_000;

    /// A cluster of one storage service (with two targets) and one client, both heard at 0.
    fn heard() -> (ClusterState, SoftState, NodeId, NodeId) {
        let mut state = cluster();
        let mut soft = SoftState::new(0, &state);
        let server = state.apply(&server(TargetKind::Storage, 10, &[11, 12])).unwrap().node;
        let client = ClientRegistration { host: "host".into(), ..Default::default() };
        let client = state.apply(&Command::RegisterClient(client)).unwrap().node;
        assert!(soft.heard(0, server) && soft.heard(0, client));
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

    fn tick_to(soft: &mut SoftState, state: &ClusterState, from: u64, to: u64) -> Vec<Passed> {
        let times = (from..=to).step_by(1_000);
        times.map(|now| soft.tick(now, state)).filter(|p| *p != Passed::default()).collect()
    }

    #[test]
    fn silence_of_one_lease_is_suspicious_of_three_is_offline_and_of_many_ends_a_client() {
        let (state, mut soft, server, client) = heard();
        assert_eq!(tick_to(&mut soft, &state, 0, LEASE - 1), []);
        assert_eq!(shown(&state, &soft, server), Reachability::Online);
        assert_eq!(tick_to(&mut soft, &state, LEASE, 3 * LEASE - 1).len(), 1);
        assert_eq!(shown(&state, &soft, server), Reachability::ProbablyOffline);
        let passed = soft.tick(3 * LEASE, &state);
        assert_eq!(passed, Passed { changed: true, expired_clients: Vec::new() });
        assert_eq!(shown(&state, &soft, server), Reachability::Offline);
        let passed = tick_to(&mut soft, &state, 3 * LEASE, LEASES_UNTIL_REMOVED * LEASE);
        assert_eq!(passed, [Passed { changed: false, expired_clients: vec![client] }]);
        let now = LEASES_UNTIL_REMOVED * LEASE;
        assert!(soft.heard(now, server));
        assert_eq!(shown(&state, &soft, server), Reachability::Online);
        assert!(!soft.heard(now, server));
    }

    #[test]
    fn a_server_that_leaves_is_offline_at_once_and_stays_so() {
        let (state, mut soft, server, _) = heard();
        assert!(soft.left(server));
        assert!(!soft.left(server));
        assert!(!soft.tick(1_000, &state).changed);
        assert_eq!(shown(&state, &soft, server), Reachability::Offline);
    }

    #[test]
    fn time_in_which_management_itself_was_stopped_does_not_count() {
        let (state, mut soft, server, _) = heard();
        assert_eq!(soft.tick(100 * LEASE, &state), Passed::default());
        assert_eq!(shown(&state, &soft, server), Reachability::Online);
        tick_to(&mut soft, &state, 100 * LEASE, 103 * LEASE);
        assert_eq!(shown(&state, &soft, server), Reachability::Offline);
    }

    /// Everybody was offline for a moment when a lease became shorter than the time between two
    /// heartbeats of before.
    #[test]
    fn a_lease_that_becomes_shorter_begins_anew_for_those_who_were_on_time() {
        let (mut state, mut soft, server, client) = heard();
        soft.tick(LEASE / 2, &state);
        let policy = Policy { lease_ms: 200, heartbeat_ms: 20, ..Policy::default() };
        state.apply(&Command::SetPolicy(policy)).unwrap();
        assert_eq!(soft.tick(LEASE / 2 + 50, &state), Passed::default());
        assert_eq!(soft.tick(LEASE / 2 + 249, &state), Passed::default());
        assert_eq!(shown(&state, &soft, server), Reachability::Online);
        assert!(soft.tick(LEASE / 2 + 250, &state).changed, "and no longer");
        let end = 50 + LEASES_UNTIL_REMOVED * 200;
        let ends = (300..=end)
            .step_by(50)
            .flat_map(|ms| soft.tick(LEASE / 2 + ms, &state).expired_clients);
        assert_eq!(ends.take(1).collect::<Vec<_>>(), [client]);
    }

    #[test]
    fn after_a_restart_nodes_are_suspicious_until_they_are_heard() {
        let (state, _, server, _) = heard();
        let mut soft = SoftState::new(7, &state);
        assert_eq!(shown(&state, &soft, server), Reachability::ProbablyOffline);
        assert!(soft.heard(8, server));
        assert_eq!(shown(&state, &soft, server), Reachability::Online);
    }

    #[test]
    fn only_notable_changes_of_room_are_shown() {
        let (state, mut soft, ..) = heard();
        let target = state.map().targets[0].id;
        let total_capacity =
            |free_bytes| Capacity { total_bytes: 1_000, free_bytes, ..Capacity::default() };
        assert!(soft.report(target, total_capacity(500)));
        assert!(!soft.report(target, total_capacity(490)));
        assert!(soft.report(target, total_capacity(489)));
        assert!(soft.report(target, Capacity { total_bytes: 999, ..total_capacity(489) }));
        assert!(
            soft.report(
                target,
                Capacity { total_bytes: 999, file_system: 7, ..total_capacity(489) }
            )
        );
        let mut map = state.map().clone();
        soft.overlay(&mut map);
        assert_eq!(map.targets[0].capacity.free_bytes, 489);
    }

    #[test]
    fn the_whole_room_is_the_newest_once_all_are_heard_or_a_lease_has_passed() {
        let (state, mut soft, ..) = heard();
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
        assert!(!soft.report(second, total_capacity(299)), "too little for a new map");
        let whole = soft.total_capacity(state.map()).unwrap();
        assert_eq!((whole.total_bytes, whole.free_bytes), (2_000, 799));
    }

    #[test]
    fn capacity_pools_follow_bytes_and_inodes() {
        let check = |total_bytes, free_bytes, total_inodes, free_inodes, expected| {
            let total_capacity = Capacity { total_bytes, free_bytes, ..Capacity::default() };
            let capacity = Capacity { total_inodes, free_inodes, ..total_capacity };
            assert_eq!(capacity_pool(&capacity), expected, "{capacity:?}");
        };
        check(0, 0, 0, 0, CapacityPool::Normal);
        check(1_000, 100, 0, 0, CapacityPool::Normal);
        check(1_000, 99, 0, 0, CapacityPool::Low);
        check(1_000, 19, 0, 0, CapacityPool::Emergency);
        check(1_000, 900, 1_000, 50, CapacityPool::Low);
        check(1_000, 900, 1_000, 0, CapacityPool::Emergency);
        check(1 << 50, LOW_CAP_BYTES, 0, 0, CapacityPool::Normal);
        check(1 << 50, EMERGENCY_CAP_BYTES, 0, 0, CapacityPool::Low);
    }
}
