//! What it costs to choose the targets of a file, in isolation.
//!
//! `choose [FILES]` prints a line for each chooser, shape of cluster and count: nanoseconds for one
//! choice, and for preparing a map, which happens when the map changes. Not a test: it asserts
//! nothing.

use skep_cluster::placement::{Candidates, Cursor};
use skep_types::map::{Capacity, CapacityPool, Consistency, Reachability};
use skep_types::{
    Chooser, ClusterId, ClusterMap, Epoch, Group, GroupId, GroupMember, MemberState, NodeId,
    Target, TargetId, TargetKind,
};
use std::hint::black_box;
use std::time::Duration;

/// So many servers with so many targets each, all alike.
fn map(servers: u32, targets: u32) -> ClusterMap {
    let mut map = ClusterMap::empty(ClusterId::new([1; 16]));
    for number in 1..=servers * targets {
        let id = TargetId::new(number);
        map.targets.push(Target {
            id,
            kind: TargetKind::Storage,
            node: NodeId::new(1 + (number - 1) / targets),
            path: String::new(),
            reachability: Reachability::Online,
            consistency: Consistency::Good,
            capacity: Capacity { free_bytes: 1 << 40, ..Capacity::default() },
            capacity_pool: CapacityPool::Normal,
        });
        map.groups.push(Group {
            id: GroupId::new(number),
            kind: TargetKind::Storage,
            epoch: Epoch::new(1),
            members: vec![GroupMember { target: id, state: MemberState::Serving }],
        });
    }
    map
}

fn nanoseconds(taken: Duration, times: u64) -> u64 {
    taken.as_nanos() as u64 / times.max(1)
}

fn main() {
    let files = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1_000_000);
    for (servers, targets) in [(2, 4), (10, 12), (1_000, 8)] {
        let map = map(servers, targets);
        let start = skep_env::now();
        let candidates = Candidates::new(&map);
        let prepared = nanoseconds(skep_env::now() - start, 1);
        println!("{servers} servers x {targets} targets: map prepared in {prepared} ns");
        for (chooser, word) in Chooser::ALL {
            let per_count = [1, 4, 8, 64].map(|count| {
                let mut cursor = Cursor::default();
                let start = skep_env::now();
                for file in 0..files {
                    black_box(candidates.choose(chooser, count, black_box(file), &mut cursor));
                }
                format!("{count}: {} ns", nanoseconds(skep_env::now() - start, files))
            });
            println!("  {word:16} {}", per_count.join(", "));
        }
    }
}
