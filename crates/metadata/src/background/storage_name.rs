//! Names of storage groups for the log.

use skep_types::{ClusterMap, GroupId};

/// Returns the name of the target that serves a storage group, with its node. If no target serves
/// the group, returns the name of the group.
pub(super) fn storage_name(map: &ClusterMap, group: GroupId) -> String {
    let Some(target) = map.primary(group) else { return format!("storage group {group}") };
    let node = map.node(target.node).map_or("unknown node", |node| &node.name);
    format!("storage target {} ({node})", target.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{ClusterId, Group, Node, NodeId, NodeKind, Target, TargetId, TargetKind};

    #[test]
    fn storage_group_is_named_by_its_target_and_node() {
        let mut map = ClusterMap::empty(ClusterId::default());
        let (group, kind, target) = (GroupId::new(8), TargetKind::Storage, TargetId::new(5));
        assert_eq!(storage_name(&map, group), "storage group g8");
        map.groups = vec![Group::of_one(group, kind, target)];
        map.targets = vec![Target::new(target, kind, NodeId::new(4), "/d")];
        assert_eq!(storage_name(&map, group), "storage target t5 (unknown node)");
        map.nodes = vec![Node::online(NodeId::new(4), NodeKind::Storage, "storage-2")];
        assert_eq!(storage_name(&map, group), "storage target t5 (storage-2)");
    }
}
