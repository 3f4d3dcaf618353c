//! Selects the metadata groups that may get new directories.
//!
//! The metadata target that creates a directory chooses one of the fittest groups
//! (`metadata/src/handlers/make_directory.rs`).

use super::fitness;
use skep_types::{ClusterMap, GroupId, TargetKind};

/// Returns the metadata groups that serve a shard and have the fittest primaries: trusted, serving,
/// online and in the best capacity pool. The result has the order of the map. It is empty only if
/// no metadata group serves a shard.
pub fn fittest_metadata_groups(map: &ClusterMap) -> Vec<GroupId> {
    let serving_a_shard = map.groups.iter().filter(|group| {
        group.kind == TargetKind::Metadata && map.shards.iter().any(|range| range.group == group.id)
    });
    let all: Vec<_> = serving_a_shard
        .filter_map(|group| Some((group.id, fitness(map.target(group.primary)?))))
        .collect();
    let best = all.iter().map(|(_, fitness)| *fitness).min();
    all.iter().filter(|(_, fitness)| Some(*fitness) == best).map(|(group, _)| *group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::map::{CapacityPool, Consistency, Group, Reachability, ShardRange, Target};
    use skep_types::{ClusterId, NodeId, ShardId, TargetId};

    /// Returns a map with three metadata groups of one online target each.
    fn map() -> ClusterMap {
        let mut map = ClusterMap::empty(ClusterId::default());
        for raw in 1..=3 {
            let (target, kind) = (TargetId::new(raw), TargetKind::Metadata);
            map.targets.push(Target {
                reachability: Reachability::Online,
                ..Target::new(target, kind, NodeId::new(raw), "")
            });
            map.groups.push(Group::of_one(GroupId::new(raw), kind, target));
            let shard = ShardId::new(raw as u16);
            map.shards.push(ShardRange { first: shard, last: shard, group: GroupId::new(raw) });
        }
        map
    }

    #[track_caller]
    fn assert_fittest(map: &ClusterMap, expected: &[u32]) {
        let expected: Vec<GroupId> = expected.iter().map(|raw| GroupId::new(*raw)).collect();
        assert_eq!(fittest_metadata_groups(map), expected);
    }

    #[test]
    fn new_directories_get_the_groups_with_the_most_space() {
        let mut map = map();
        assert_fittest(&map, &[1, 2, 3]);
        map.targets[1].capacity_pool = CapacityPool::Low;
        assert_fittest(&map, &[1, 3]);
        map.targets[0].capacity_pool = CapacityPool::Emergency;
        map.targets[2].capacity_pool = CapacityPool::Low;
        assert_fittest(&map, &[2, 3]);
    }

    #[test]
    fn lost_and_unreachable_groups_get_no_new_directories() {
        let mut map = map();
        map.targets[0].consistency = Consistency::Bad;
        map.targets[1].reachability = Reachability::Offline;
        assert_fittest(&map, &[3]);
        map.targets[2].reachability = Reachability::Offline;
        assert_fittest(&map, &[2, 3]);
    }

    #[test]
    fn a_group_without_a_shard_gets_no_new_directories() {
        let mut map = map();
        map.shards.truncate(2);
        assert_fittest(&map, &[1, 2]);
    }
}
