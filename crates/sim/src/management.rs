//! Management in the simulation: the cluster map, the registration and the removal of clients, and
//! restarts of management.
//!
//! The real state machine of management (`skep_cluster`) does not run in this simulation. The state
//! of the simulated management is durable, so a restart only delays its new maps.

use crate::knobs::Knobs;
use crate::network::Node;
use crate::world::{SimEvent, World, backup_of};
use skep_types::map::{
    Capacity, CapacityPool, Consistency, Policy, Reachability, ShardRange, UserPatterns,
};
use skep_types::{
    ClusterId, ClusterMap, Group, GroupId, GroupMember, MapVersion, MemberState, NodeId, NodeKind,
    STAGING_FEATURE_LEVEL, ShardId, Target, TargetId, TargetKind,
};
use std::sync::Arc;

impl World {
    /// Registers a client with a new node id.
    pub(crate) fn register_client(&mut self) -> NodeId {
        let id = NodeId::new(self.map.newest_node.raw() + 1);
        let mut map = ClusterMap::clone(&self.map);
        map.newest_node = id;
        map.nodes.push(node(id.raw(), NodeKind::Client));
        self.publish(map);
        id
    }

    pub(crate) fn remove_client(&mut self, client: NodeId) {
        let mut map = ClusterMap::clone(&self.map);
        map.nodes.retain(|node| node.id != client);
        if map != *self.map {
            self.trace.note(self.now, || format!("{client} is removed"));
            self.publish(map);
        }
    }

    /// Restarts management. Management continues with the same map, because its state is durable.
    pub(crate) fn restart_management(&mut self) {
        self.faults += 1;
        self.management_is_back = self.now + self.random.micros(10_000, 2_500_000);
    }

    /// Changes the capacity pool and the reachability of the storage targets in the map. All
    /// storage targets get the same values, because the reference model expects that new files use
    /// all targets. With equal values, placement avoids no target.
    pub(crate) fn change_map(&mut self) {
        self.faults += 1;
        let pools = [CapacityPool::Normal, CapacityPool::Low, CapacityPool::Emergency];
        let states = [Reachability::Online, Reachability::ProbablyOffline, Reachability::Offline];
        let pool = pools[self.random.index(pools.len())];
        let state = states[self.random.index(states.len())];
        let mut map = ClusterMap::clone(&self.map);
        for target in map.targets.iter_mut().filter(|it| it.kind == TargetKind::Storage) {
            (target.capacity_pool, target.reachability) = (pool, state);
        }
        self.publish(map);
    }

    /// Publishes a new cluster map. Each server receives the map after a separate random delay.
    pub(crate) fn publish(&mut self, mut map: ClusterMap) {
        map.version = MapVersion::new(map.version.raw() + 1);
        self.map = Arc::new(map);
        let targets = (0..self.targets.len()).map(Node::Target);
        let storages = (0..self.storages.len()).map(Node::Storage);
        for node in targets.chain(storages).collect::<Vec<_>>() {
            let pause = if self.random.percent(90) {
                self.random.micros(50, 5_000)
            } else {
                self.random.micros(50, 1_000_000)
            };
            self.after(pause, SimEvent::Map { node });
        }
        for target in (0..self.targets.len()).filter(|_| self.knobs.has_backups).collect::<Vec<_>>()
        {
            let most = if self.random.percent(90) { 5_000 } else { 1_000_000 };
            let pause = self.random.micros(50, most);
            self.after(pause, SimEvent::MapOfBackup { target });
        }
    }

    pub(crate) fn receive_map(&mut self, node: Node) {
        let map = Arc::clone(&self.map);
        match node {
            Node::Target(target) => self.deliver_map(target, map),
            Node::Storage(storage) => self.storages[storage].map = map,
            Node::Client(_) => {}
        }
    }
}

/// Returns a node that is online.
pub(crate) fn node(raw: u32, kind: NodeKind) -> skep_types::Node {
    skep_types::Node {
        id: NodeId::new(raw),
        kind,
        name: format!("node-{raw}"),
        addresses: Vec::new(),
        domain: String::new(),
        reachability: Reachability::Online,
        version: String::new(),
    }
}

/// Returns a target that is online, on the node with the same number.
pub(crate) fn target(raw: u32, kind: TargetKind) -> Target {
    Target {
        id: TargetId::new(raw),
        kind,
        node: NodeId::new(raw),
        path: String::new(),
        reachability: Reachability::Online,
        consistency: Consistency::Good,
        health: skep_types::map::TargetHealth::default(),
        capacity: Capacity { total_bytes: 1 << 40, free_bytes: 1 << 40, ..Capacity::default() },
        capacity_pool: CapacityPool::Normal,
    }
}

/// Returns the map of a formatted cluster. Each group has one member. If targets have backup
/// members, each metadata group has two members.
pub(crate) fn map(knobs: &Knobs) -> ClusterMap {
    let mut map = ClusterMap::empty(ClusterId::new(*b"simulated skep 1"));
    let all = knobs.targets + knobs.storages;
    for index in 0..all {
        let raw = index as u32 + 1;
        let (kind, node_kind) = if index < knobs.targets {
            (TargetKind::Metadata, NodeKind::Metadata)
        } else {
            (TargetKind::Storage, NodeKind::Storage)
        };
        map.nodes.push(node(raw, node_kind));
        map.targets.push(target(raw, kind));
        map.groups.push(Group::of_one(GroupId::new(raw), kind, TargetId::new(raw)));
    }
    for index in (0..knobs.targets).filter(|_| knobs.has_backups) {
        let raw = backup_of(knobs, index).raw();
        let of_primary = map.targets[index].clone();
        map.nodes.push(node(raw, NodeKind::Metadata));
        map.targets.push(Target { id: TargetId::new(raw), node: NodeId::new(raw), ..of_primary });
        let member = GroupMember { target: TargetId::new(raw), state: MemberState::Serving };
        map.groups[index].members.push(member);
    }
    let each = skep_types::SHARD_COUNT / knobs.targets as u32;
    for index in 0..knobs.targets as u32 {
        let is_last = index as usize == knobs.targets - 1;
        let last = if is_last { skep_types::SHARD_COUNT } else { (index + 1) * each };
        map.shards.push(ShardRange {
            first: ShardId::new((index * each) as u16),
            last: ShardId::new((last - 1) as u16),
            group: GroupId::new(index + 1),
        });
    }
    map.policy = Policy {
        lease_ms: knobs.lease.as_millis() as u32,
        default_chunk_bytes: 64 << 10,
        default_width: 2,
        stripe_from: 64 << 10,
        inline_bytes: knobs.inline_bytes,
        user_patterns: UserPatterns::Targets,
        ..Policy::default()
    };
    map.newest_node = map.nodes.last().map_or(NodeId::default(), |node| node.id);
    map.version = MapVersion::new(1);
    map.formatted = true;
    map.feature_level = STAGING_FEATURE_LEVEL - u32::from(!knobs.is_staging);
    map
}
