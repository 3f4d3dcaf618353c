//! Tests the evenness of placement over servers and targets, the preferences of placement, and
//! which targets placement never chooses.

mod allocations;
mod domains;

use super::*;
use crate::state::tests::{cluster, server};
use proptest::prelude::*;
use skep_types::NodeKind;
use skep_types::map::{Capacity, TargetHealth};
use std::collections::{BTreeSet, HashMap};

/// Creates a map. Each item of `shape` is the number of storage targets of one server. All targets
/// are online with 100 GiB free.
fn map(shape: &[usize]) -> ClusterMap {
    let mut state = cluster();
    let mut uuid = 0_u128;
    for targets in shape {
        let uuids: Vec<u128> = (1..=*targets as u128).map(|k| uuid + k).collect();
        uuid += 1_000;
        state.apply(&server(TargetKind::Storage, uuid, &uuids)).unwrap();
    }
    state.apply(&server(TargetKind::Metadata, 77_777_777, &[88_888_888])).unwrap();
    let mut map = state.map().clone();
    for target in &mut map.targets {
        target.reachability = Reachability::Online;
        target.capacity =
            Capacity { total_bytes: 200 << 30, free_bytes: 100 << 30, ..Capacity::default() };
    }
    map
}

fn balanced(candidates: &Candidates, count: usize, seed: u64) -> Vec<GroupId> {
    candidates.choose(Chooser::Balanced, count, seed, &mut Cursor::default())
}

fn node_of(map: &ClusterMap, group: GroupId) -> NodeId {
    map.primary(group).unwrap().node
}

fn per_server(map: &ClusterMap, chosen: &[GroupId]) -> HashMap<NodeId, usize> {
    let mut counts: HashMap<NodeId, usize> = HashMap::new();
    for group in chosen {
        *counts.entry(node_of(map, *group)).or_default() += 1;
    }
    counts
}

/// Returns two counts for each storage group: the files that use the group, and the files whose
/// first group it is.
fn uses(map: &ClusterMap, count: usize, seeds: impl Iterator<Item = u64>) -> [Vec<f64>; 2] {
    let candidates = Candidates::new(map);
    let ids: Vec<GroupId> = map.groups.iter().map(|group| group.id).collect();
    let mut uses = [vec![0.0; ids.len()], vec![0.0; ids.len()]];
    for seed in seeds {
        for (position, group) in balanced(&candidates, count, seed).into_iter().enumerate() {
            let index = ids.binary_search(&group).unwrap();
            uses[0][index] += 1.0;
            uses[1][index] += f64::from(u8::from(position == 0));
        }
    }
    // Drops the last group, which is the group of the metadata target.
    uses.map(|counts| counts[..counts.len() - 1].to_vec())
}

fn assert_even(counts: &[f64], within: f64, what: &str) {
    let mean = counts.iter().sum::<f64>() / counts.len() as f64;
    for count in counts {
        assert!((count - mean).abs() <= within * mean, "{what}: {counts:?}");
    }
}

#[test]
fn stripe_of_four_groups_alternates_between_two_servers() {
    let map = map(&[4, 4]);
    let candidates = Candidates::new(&map);
    for seed in 0..1_000 {
        let chosen = balanced(&candidates, 4, seed);
        let nodes: Vec<NodeId> = chosen.iter().map(|group| node_of(&map, *group)).collect();
        assert!(nodes[0] == nodes[2] && nodes[1] == nodes[3] && nodes[0] != nodes[1], "{nodes:?}");
    }
}

#[test]
fn consecutive_seeds_use_all_targets_evenly() {
    for (shape, count) in
        [(&[4, 4][..], 1), (&[4, 4], 2), (&[4, 4], 3), (&[4, 4], 4), (&[4, 4], 6), (&[4, 4], 8)]
            .into_iter()
            .chain([(&[2, 2, 2, 2][..], 3), (&[12; 10], 4), (&[12; 10], 16), (&[1; 7], 3)])
    {
        let map = map(shape);
        for (seeds, within) in [(0..64_u64, 0.6), (1 << 48..(1 << 48) + 4_000, 0.25)] {
            // With too few seeds for the number of targets, the use of targets cannot be even.
            if seeds.clone().count() * count < 8 * map.targets.len() {
                continue;
            }
            let what = format!("{shape:?} x {count}, {seeds:?}");
            let [all, first] = uses(&map, count, seeds);
            assert_even(&all, within, &what);
            let mean = first.iter().sum::<f64>() / first.len() as f64;
            if mean >= 8.0 {
                assert_even(&first, (4.0 / mean.sqrt()).clamp(0.1, 0.9), &what);
            }
        }
        let spread = (0..20_000_u64).map(|k| mix(k + 1));
        let [all, first] = uses(&map, count, spread);
        assert_even(&all, 0.2, &format!("{shape:?} x {count}, unrelated seeds"));
        assert_even(&first, 0.5, &format!("{shape:?} x {count}, unrelated seeds"));
    }
}

#[test]
fn weight_of_a_file_system_is_divided_among_its_targets() {
    let mut map = map(&[1, 1, 1]);
    for (target, file_system) in map.targets.iter_mut().zip([7, 7, 8]) {
        target.capacity.file_system = file_system;
    }
    let [counts, _] = uses(&map, 1, 0..40_000);
    let shared = [counts[0], counts[1], counts[2] / 2.0];
    assert_even(&shared, 0.05, "the third has as much space as the other two together");
}

#[test]
fn groups_with_more_free_space_are_chosen_more_often() {
    let mut map = map(&[1, 1, 1]);
    map.targets[0].capacity.free_bytes = 25 << 30;
    map.targets[1].capacity.free_bytes = 50 << 30;
    let [all, _] = uses(&map, 1, 0..7_000);
    assert_even(&[all[0] * 4.0, all[1] * 2.0, all[2]], 0.1, "weighted");
}

#[test]
fn lower_capacity_pool_is_used_only_without_a_better_pool() {
    let mut map = map(&[2, 2]);
    map.targets[0].capacity_pool = CapacityPool::Low;
    map.targets[1].capacity_pool = CapacityPool::Emergency;
    let group = |map: &ClusterMap, index: usize| map.group_of(map.targets[index].id).unwrap().id;
    for seed in 0..100 {
        let chosen = balanced(&Candidates::new(&map), 2, seed);
        assert!(!chosen.contains(&group(&map, 0)) && !chosen.contains(&group(&map, 1)));
        let chosen = balanced(&Candidates::new(&map), 4, seed);
        assert_eq!((chosen.len(), chosen[2]), (3, group(&map, 0)));
    }
    map.targets[2].consistency = Consistency::NeedsResync;
    map.targets[3].reachability = Reachability::Offline;
    map.targets[0].reachability = Reachability::ProbablyOffline;
    assert_eq!(balanced(&Candidates::new(&map), 4, 1), [group(&map, 1)]);
    map.targets[1].reachability = Reachability::Offline;
    assert_eq!(balanced(&Candidates::new(&map), 4, 1), [group(&map, 0)]);
    map.targets[0].consistency = Consistency::NeedsResync;
    map.targets[1].consistency = Consistency::NeedsResync;
    assert_eq!(balanced(&Candidates::new(&map), 4, 1), [group(&map, 3)]);
}

#[test]
fn targets_that_refuse_writes_get_no_new_files() {
    let mut map = map(&[2, 2]);
    map.targets[1].health = TargetHealth::new(Condition::ReadOnly, "the disk failed");
    map.targets[2].health = TargetHealth::new(Condition::Hung, "no answer");
    let group = |map: &ClusterMap, index: usize| map.group_of(map.targets[index].id).unwrap().id;
    for seed in 0..100 {
        let mut chosen = balanced(&Candidates::new(&map), 4, seed);
        chosen.sort();
        assert_eq!(chosen, [group(&map, 0), group(&map, 3)]);
    }
    map.targets[0].reachability = Reachability::Offline;
    assert!(!balanced(&Candidates::new(&map), 4, 1).contains(&group(&map, 1)));
}

#[test]
fn closed_targets_get_no_new_files_even_if_all_are_closed() {
    let mut map = map(&[2]);
    let group = |map: &ClusterMap, index: usize| map.group_of(map.targets[index].id).unwrap().id;
    map.targets[0].health.condition = Condition::Closed;
    map.targets[1].reachability = Reachability::Offline;
    let candidates = Candidates::new(&map);
    assert_eq!(balanced(&candidates, 4, 1), [group(&map, 1)]);
    assert!(candidates.is_closed(group(&map, 0)) && !candidates.is_closed(group(&map, 1)));
    map.targets[1].health.condition = Condition::Closed;
    assert_eq!(balanced(&Candidates::new(&map), 4, 1), []);
}

#[test]
fn empty_cluster_has_no_candidate_targets_for_new_files() {
    let candidates = Candidates::new(&map(&[]));
    assert!(candidates.is_empty());
    assert_eq!(balanced(&candidates, 4, 1), []);
}

proptest! {
    #[test]
    fn balanced_chooser_takes_distinct_groups_evenly_from_servers(
        shape in prop::collection::vec(1_usize..9, 1..12), count in 0_usize..40, seed: u64,
    ) {
        let map = map(&shape);
        let candidates = Candidates::new(&map);
        let chosen = balanced(&candidates, count, seed);
        prop_assert_eq!(&chosen, &balanced(&candidates, count, seed));
        prop_assert_eq!(chosen.len(), count.min(shape.iter().sum()));
        prop_assert_eq!(chosen.iter().collect::<BTreeSet<_>>().len(), chosen.len());
        let counts = per_server(&map, &chosen);
        let most = counts.values().max().copied().unwrap_or(0);
        for node in map.nodes.iter().filter(|node| node.name.starts_with("storage")) {
            let has = map.targets.iter().filter(|target| target.node == node.id).count();
            let used = counts.get(&node.id).copied().unwrap_or(0);
            prop_assert!(used + 1 >= most || used == has, "{:?}", counts);
        }
    }
}
