//! Measures how long each chooser (a placement policy, which chooses the targets of a new file)
//! takes for one choice, without the rest of the metadata service.
//!
//! For each of several cluster maps, `choose [FILES]` prints the time that a metadata target needs
//! to prepare the map. A metadata target repeats this step whenever the map changes. For each
//! chooser, one more line shows the nanoseconds for one choice, by the number of targets per file.
//! A last line shows the default chooser for servers in failure domains. This program is not a
//! test, because it asserts nothing.

use skep_cluster::placement::{Candidates, Cursor};
use skep_types::map::{Capacity, CapacityPool, Consistency, Reachability};
use skep_types::{
    Chooser, ClusterId, ClusterMap, Group, GroupId, Node, NodeId, NodeKind, Target, TargetId,
    TargetKind,
};
use std::hint::black_box;
use std::time::Duration;

/// Returns a cluster map with `servers` equal storage servers of `targets` targets each, spread
/// over `domains` failure domains. Zero means that the servers are in no failure domain.
fn map(servers: u32, targets: u32, domains: u32) -> ClusterMap {
    let mut map = ClusterMap::empty(ClusterId::new([1; 16]));
    map.nodes.extend((1..=servers).map(|number| Node {
        id: NodeId::new(number),
        kind: NodeKind::Storage,
        name: format!("storage-{number}"),
        addresses: Vec::new(),
        domain: number.checked_rem(domains).map_or_else(String::new, |rack| format!("rack-{rack}")),
        reachability: Reachability::Online,
        version: String::new(),
    }));
    for number in 1..=servers * targets {
        let id = TargetId::new(number);
        map.targets.push(Target {
            id,
            kind: TargetKind::Storage,
            node: NodeId::new(1 + (number - 1) / targets),
            path: String::new(),
            reachability: Reachability::Online,
            consistency: Consistency::Good,
            health: skep_types::map::TargetHealth::default(),
            capacity: Capacity { free_bytes: 1 << 40, ..Capacity::default() },
            capacity_pool: CapacityPool::Normal,
        });
        map.groups.push(Group::of_one(GroupId::new(number), TargetKind::Storage, id));
    }
    map
}

fn nanoseconds(taken: Duration, times: u64) -> u64 {
    taken.as_nanos() as u64 / times.max(1)
}

/// Returns a text with the nanoseconds that a chooser takes for one choice, for several numbers of
/// targets per file. Each number is the mean of `files` choices.
fn measured(candidates: &Candidates, chooser: Chooser, files: u64) -> String {
    let per_count = [1, 4, 8, 64].map(|count| {
        let mut cursor = Cursor::default();
        let start = skep_env::now();
        for file in 0..files {
            black_box(candidates.choose(chooser, count, black_box(file), &mut cursor));
        }
        format!("{count}: {} ns", nanoseconds(skep_env::now() - start, files))
    });
    per_count.join(", ")
}

fn main() {
    let files = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1_000_000);
    for (servers, targets, domains) in [(2, 4, 1), (4, 2, 2), (10, 12, 3), (1_000, 8, 40)] {
        let map_without = map(servers, targets, 0);
        let start = skep_env::now();
        let candidates = Candidates::new(&map_without);
        let prepared = nanoseconds(skep_env::now() - start, 1);
        println!("{servers} servers x {targets} targets: map prepared in {prepared} ns");
        for (chooser, word) in Chooser::ALL {
            println!("  {word:16} {}", measured(&candidates, chooser, files));
        }
        let candidates = Candidates::new(&map(servers, targets, domains));
        let shown = measured(&candidates, Chooser::Balanced, files);
        println!("  {:16} {shown}", format!("in {domains} domains"));
    }
}
