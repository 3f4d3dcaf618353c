//! On which groups a new file lies.
//!
//! [`Candidates`] is the storage groups of a map, sorted by how fit they are: groups with little
//! room are chosen only when there are no others, and unreachable or bad ones only when there is
//! nothing else at all. Which of them a file gets is up to its [`Chooser`]: [`balanced`] is the
//! default and ours; those in [`established`] are what an established system has, for comparison.
//!
//! Deterministic in (map, seed, cursor). A seed is any number that differs from file to file;
//! consecutive ones (such as inode numbers) are as good as any.
//!
//! Does not own: how many groups a file wants, nor what happens when a group fails later.

mod balanced;
mod domains;
mod established;

use balanced::Tier;
pub use established::Cursor;
use skep_types::map::{CapacityPool, Consistency, Reachability};
use skep_types::pattern::{Chooser, MAX_STRIPE_WIDTH};
use skep_types::random::finish as mix;
use skep_types::{ClusterMap, GroupId, NodeId, Target, TargetKind};
use std::collections::{BTreeMap, HashMap};

/// The storage groups of a map, prepared so that a choice is cheap: no allocation but its result.
#[derive(Debug, Clone, Default)]
pub struct Candidates {
    /// Groups that may be chosen together, in the order in which they are used up.
    tiers: Vec<Tier>,
    /// The groups of the first tier, by id.
    ring: Vec<GroupId>,
}

impl Candidates {
    /// Prepares the storage groups of a map.
    pub fn new(map: &ClusterMap) -> Self {
        let mut by_fitness: BTreeMap<Fitness, BTreeMap<NodeId, Vec<(GroupId, u64)>>> =
            BTreeMap::new();
        let shares = sharing(map);
        for group in map.groups.iter().filter(|group| group.kind == TargetKind::Storage) {
            let Some(target) = map.primary(group.id) else { continue };
            let servers = by_fitness.entry(fitness(target)).or_default();
            let sharing = shares.get(&target.capacity.file_system).copied().unwrap_or(1);
            let weight = weight(target.capacity.free_bytes / sharing);
            servers.entry(target.node).or_default().push((group.id, weight));
        }
        let best = by_fitness.keys().next().copied();
        // Groups with little space join those with enough; anything worse is used only if it is the
        // best there is: a file on fewer groups beats a file that can't be written.
        let usable = |fitness: &Fitness| *fitness <= Fitness::Low || Some(*fitness) == best;
        let tiers = by_fitness.into_iter().filter(|(fitness, _)| usable(fitness));
        let domain_of = |node| map.node(node).map_or("", |node| node.domain.as_str());
        let tiers: Vec<_> = tiers.map(|(_, servers)| Tier::new(servers, domain_of)).collect();
        let mut ring: Vec<_> = tiers.first().into_iter().flat_map(Tier::groups).collect();
        ring.sort_unstable();
        Self { tiers, ring }
    }

    /// How many groups can be chosen at most.
    pub fn len(&self) -> usize {
        self.tiers.iter().map(|tier| tier.len).sum()
    }

    /// Whether there is no storage group at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Chooses `count` groups for a file, in the order of its stripe; fewer if the chooser doesn't
    /// find so many. No group occurs twice. Only [`Chooser::RoundRobin`] and
    /// [`Chooser::RandomRobin`] use and move the cursor, all others only the seed.
    ///
    /// What doesn't choose ([`Chooser::Cluster`], [`Chooser::Listed`]) is taken for balanced.
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

/// How fit a target is to get new files; less is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fitness {
    Normal,
    Low,
    Emergency,
    ProbablyOffline,
    Offline,
    Untrusted,
}

fn fitness(target: &Target) -> Fitness {
    match (target.consistency, target.reachability, target.capacity_pool) {
        (Consistency::Bad | Consistency::NeedsResync, ..) => Fitness::Untrusted,
        (_, Reachability::Offline, _) => Fitness::Offline,
        (_, Reachability::ProbablyOffline, _) => Fitness::ProbablyOffline,
        (.., CapacityPool::Emergency) => Fitness::Emergency,
        (.., CapacityPool::Low) => Fitness::Low,
        (.., CapacityPool::Normal) => Fitness::Normal,
    }
}

/// On how many storage targets the space of a file system is divided, by its number.
fn sharing(map: &ClusterMap) -> HashMap<u128, u64> {
    let mut shares = HashMap::new();
    let storage = map.targets.iter().filter(|target| target.kind == TargetKind::Storage);
    for target in storage.filter(|target| target.capacity.file_system != 0) {
        *shares.entry(target.capacity.file_system).or_default() += 1;
    }
    shares
}

/// Free space in MiB, at least one: sums over all targets of a cluster stay far below 2^64.
fn weight(free_bytes: u64) -> u64 {
    (free_bytes >> 20).clamp(1, 1 << 40)
}

/// `fraction` (of 2^64) of `total`: below `total`.
fn scale(fraction: u64, total: u64) -> u64 {
    ((u128::from(fraction) * u128::from(total)) >> 64) as u64
}

#[cfg(test)]
mod tests;
