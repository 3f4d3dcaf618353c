//! Assertions for the invariants that the parent module lists.
//!
//! Does not change the state.

use super::Durable;
use crate::groups;
use skep_types::{MapVersion, Node, NodeId, NodeKind, SHARD_COUNT, TargetId, TargetKind};

/// Whether the keys are sorted in ascending order, without duplicates.
fn rises<K: Ord>(keys: impl IntoIterator<Item = K>) -> bool {
    keys.into_iter().is_sorted_by(|first, second| first < second)
}

impl Durable {
    pub(super) fn check_ids(&self) {
        let map = &self.map;
        assert_eq!(map.version, MapVersion::default(), "the state has no map version");
        assert!(rises(map.nodes.iter().map(|node| node.id)), "nodes are sorted");
        assert!(rises(map.targets.iter().map(|target| target.id)), "targets are sorted");
        assert!(rises(map.groups.iter().map(|group| group.id)), "groups are sorted");
        let next_node = NodeId::new(self.next_node);
        assert!(map.newest_node < next_node, "the next node id is above the newest one");
        assert!(
            map.nodes.iter().all(|node| node.id <= map.newest_node),
            "no node id is above the newest one"
        );
        assert!(
            map.targets.iter().all(|it| it.id.raw() < self.next_target),
            "each target id is below the next one"
        );
        assert!(
            map.groups.iter().all(|it| it.id.raw() < self.next_group),
            "each group id is below the next one"
        );
        let is_client = |node: &&Node| node.kind == NodeKind::Client;
        let servers = map.nodes.iter().filter(|node| !is_client(node)).map(|node| node.id);
        assert!(servers.eq(self.node_uuids.iter().map(|(id, _)| *id)), "each server has a uuid");
        let clients = map.nodes.iter().filter(is_client).map(|node| node.id);
        assert!(clients.eq(self.clients.iter().map(|it| it.node)), "each client has details");
        let targets = map.targets.iter().map(|target| target.id);
        assert!(targets.eq(self.target_uuids.iter().map(|(id, _)| *id)), "each target has a uuid");
        let uuids = |all: &mut dyn Iterator<Item = u128>| {
            let mut uuids: Vec<_> = all.collect();
            uuids.sort_unstable();
            uuids
        };
        let nodes = uuids(&mut self.node_uuids.iter().map(|(_, uuid)| *uuid));
        let targets = uuids(&mut self.target_uuids.iter().map(|(_, uuid)| *uuid));
        assert!(rises(nodes) && rises(targets), "no uuid has two ids");
    }

    pub(super) fn check_groups(&self) {
        let map = &self.map;
        let mut members = Vec::with_capacity(map.targets.len());
        for group in &map.groups {
            for member in &group.members {
                let kind = map.target(member.target).map(|target| target.kind);
                assert_eq!(kind, Some(group.kind), "group {} has targets of its kind", group.id);
                members.push(member.target);
            }
        }
        members.sort_unstable();
        assert!(rises(members.iter()), "each target belongs to at most one group");
        let is_known = |member: &TargetId| map.target(*member).is_some();
        assert!(members.iter().all(is_known), "each member is a target");
        map.groups.iter().for_each(groups::check_invariants);
        for target in &map.targets {
            assert!(map.node(target.node).is_some(), "target {} has a node", target.id);
        }
        let mut next_shard = 0;
        for range in &map.shards {
            assert_eq!(u32::from(range.first.raw()), next_shard, "shard ranges have no gaps");
            next_shard = u32::from(range.last.raw()) + 1;
            let kind = map.group(range.group).map(|group| group.kind);
            assert_eq!(kind, Some(TargetKind::Metadata), "metadata groups serve shards");
        }
        let expected = if map.formatted { SHARD_COUNT } else { 0 };
        assert_eq!(next_shard, expected, "a formatted map has all shards");
    }
}
