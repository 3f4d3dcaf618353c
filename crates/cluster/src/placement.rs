//! Chooses the groups of a new file, and the metadata groups that may get new directories.
//!
//! [`Candidates`] holds the storage groups of a map, sorted by fitness. Groups with little free
//! space are chosen only if there are too few other groups. Groups that are almost full, faulty,
//! unreachable or untrusted are chosen only if there are no other groups at all. Groups that an
//! administrator has closed are never chosen. Among equally fit groups the [`Chooser`] decides:
//! [`balanced`] is the default, and [`established`] contains the policies of an established system
//! for comparison.
//!
//! The result depends only on map, seed and cursor. A seed is a number that differs from file to
//! file. Consecutive numbers, such as inode numbers, are good seeds.
//!
//! Does not own the number of groups of a file or the reaction to a later failure of a group.
//!
//! # Invariants
//! - No group is in two tiers. A tier is a list of groups of equal fitness.
//! - The weights of groups and servers are positive, so each running sum is larger than the sum
//!   before it.
//! - The ring contains the groups of the first tier in ascending order of id.
//!
//! [`Candidates::check_invariants`] asserts these invariants.

mod balanced;
mod domains;
mod draw;
mod established;
mod metadata_groups;

use crate::state::{ClosedGroup, closed_groups};
use balanced::Tier;
pub use established::Cursor;
pub use metadata_groups::fittest_metadata_groups;
use skep_types::map::{CapacityPool, Condition, Consistency, Reachability};
use skep_types::pattern::{Chooser, MAX_STRIPE_WIDTH};
use skep_types::random::finish as mix;
use skep_types::{ClusterMap, Group, GroupId, NodeId, Target, TargetKind};
use std::collections::{BTreeMap, HashMap};

/// The storage groups of a map, prepared so that each choice allocates memory only for its result.
#[derive(Debug, Clone, Default)]
pub struct Candidates {
    /// The tiers, the best one first. A tier contains groups of equal fitness, and `choose` uses a
    /// tier only if the better tiers have too few groups.
    tiers: Vec<Tier>,
    /// The groups of the first tier in ascending order of id.
    ring: Vec<GroupId>,
    /// The groups that are closed to new files, in ascending order of id. No tier contains them.
    closed: Vec<ClosedGroup>,
}

impl Candidates {
    /// Returns the candidates for new files in a cluster map: its storage groups, sorted into
    /// tiers.
    pub fn new(map: &ClusterMap) -> Self {
        let mut by_fitness: BTreeMap<Fitness, BTreeMap<NodeId, Vec<(GroupId, u64)>>> =
            BTreeMap::new();
        let shares = sharing(map);
        let closed = closed_groups(map);
        let is_open =
            |group: &&Group| closed.binary_search_by_key(&group.id, |it| it.group).is_err();
        let stored = map.groups.iter().filter(|group| group.kind == TargetKind::Storage);
        for group in stored.filter(is_open) {
            let Some(target) = map.primary(group.id) else { continue };
            let servers = by_fitness.entry(fitness(target)).or_default();
            let sharing = shares.get(&target.capacity.file_system).copied().unwrap_or(1);
            let weight = weight(target.capacity.free_bytes / sharing);
            servers.entry(target.node).or_default().push((group.id, weight));
        }
        let best = by_fitness.keys().next().copied();
        // Groups with enough free space precede groups with little free space. Groups that are
        // unfit for new files are used only if there are no other groups. A file on unfit groups is
        // better than no file.
        let usable = |fitness: &Fitness| *fitness <= Fitness::Low || Some(*fitness) == best;
        let tiers = by_fitness.into_iter().filter(|(fitness, _)| usable(fitness));
        let domain_of = |node| map.node(node).map_or("", |node| node.domain.as_str());
        let tiers: Vec<_> = tiers.map(|(_, servers)| Tier::new(servers, domain_of)).collect();
        let mut ring: Vec<_> = tiers.first().into_iter().flat_map(Tier::groups).collect();
        ring.sort_unstable();
        let candidates = Self { tiers, ring, closed };
        if cfg!(debug_assertions) {
            candidates.check_invariants();
        }
        candidates
    }

    /// Asserts the invariants of the module.
    ///
    /// # Panics
    /// Panics if an invariant does not hold.
    pub fn check_invariants(&self) {
        self.tiers.iter().for_each(Tier::check_invariants);
        let rises = |groups: &[GroupId]| groups.is_sorted_by(|first, second| first < second);
        let mut groups: Vec<_> = self.tiers.iter().flat_map(Tier::groups).collect();
        groups.sort_unstable();
        assert!(rises(&groups), "no group is in two tiers");
        let first = self.tiers.first().map_or(0, |tier| tier.len);
        assert!(rises(&self.ring) && self.ring.len() == first, "the ring is the first tier by id");
    }

    /// Returns the maximum number of groups that [`Self::choose`] can return.
    pub fn len(&self) -> usize {
        self.tiers.iter().map(|tier| tier.len).sum()
    }

    /// Whether a group gets no new files: its target is closed or lost.
    pub fn is_closed(&self, group: GroupId) -> bool {
        self.closed(group).is_some()
    }

    /// Returns the reason why a group gets no new files. `None` means that the group may get new
    /// files.
    pub fn closed(&self, group: GroupId) -> Option<ClosedGroup> {
        let at = self.closed.binary_search_by_key(&group, |it| it.group).ok()?;
        Some(self.closed[at])
    }

    /// Whether there is no storage group that may get new files.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Chooses `count` different groups for a file and returns them in stripe order. Returns fewer
    /// groups if the policy does not find `count`. [`Chooser::RoundRobin`] and
    /// [`Chooser::RandomRobin`] use and advance the cursor. All policies except
    /// [`Chooser::RoundRobin`] use the seed.
    ///
    /// [`Chooser::Cluster`] and [`Chooser::Listed`] are not policies. These two choosers have the
    /// same effect as [`Chooser::Balanced`].
    pub fn choose(
        &self,
        chooser: Chooser,
        count: usize,
        seed: u64,
        cursor: &mut Cursor,
    ) -> Vec<GroupId> {
        let count = count.min(MAX_STRIPE_WIDTH).min(self.len());
        let mut chosen = Vec::with_capacity(count);
        match chooser {
            Chooser::Balanced | Chooser::Cluster | Chooser::Listed => {
                self.balanced(count, seed, &mut chosen);
            }
            _ => self.as_established(chooser, count, seed, cursor, &mut chosen),
        }
        chosen
    }
}

/// The fitness of a group's primary target for new files, in descending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fitness {
    Normal,
    Low,
    Emergency,
    ProbablyOffline,
    Offline,
    /// The target does not accept writes.
    Faulty,
    Untrusted,
}

fn fitness(target: &Target) -> Fitness {
    match (target.consistency, target.reachability, target.capacity_pool) {
        (Consistency::Bad | Consistency::NeedsResync, ..) => Fitness::Untrusted,
        _ if target.health.condition != Condition::Serving => Fitness::Faulty,
        (_, Reachability::Offline, _) => Fitness::Offline,
        (_, Reachability::ProbablyOffline, _) => Fitness::ProbablyOffline,
        (.., CapacityPool::Emergency) => Fitness::Emergency,
        (.., CapacityPool::Low) => Fitness::Low,
        (.., CapacityPool::Normal) => Fitness::Normal,
    }
}

/// Returns the number of storage targets on each file system. The key is the file system's id.
fn sharing(map: &ClusterMap) -> HashMap<u128, u64> {
    let mut shares = HashMap::new();
    let storage = map.targets.iter().filter(|target| target.kind == TargetKind::Storage);
    for target in storage.filter(|target| target.capacity.file_system != 0) {
        *shares.entry(target.capacity.file_system).or_default() += 1;
    }
    shares
}

/// Returns the weight of a group: its free space in MiB, at least 1. The upper bound keeps the sum
/// over all targets of a cluster far below 2^64.
fn weight(free_bytes: u64) -> u64 {
    (free_bytes >> 20).clamp(1, 1 << 40)
}

/// Returns `total` * `fraction` / 2^64, rounded down. The result is below `total`.
fn scale(fraction: u64, total: u64) -> u64 {
    ((u128::from(fraction) * u128::from(total)) >> 64) as u64
}

#[cfg(test)]
mod tests;
