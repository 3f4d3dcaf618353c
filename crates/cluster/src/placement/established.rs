//! Policies with the semantics of an established system (BeeGFS 7 and 8), so that the two systems
//! can be compared on one cluster. docs/operations/patterns.md describes when to use these
//! policies.
//!
//! All these policies choose only from the groups of the best fitness, in the order of their ids,
//! and ignore free space. If there are too few of these groups, a file gets fewer groups than
//! requested.

use super::{Candidates, mix, scale};
use skep_types::GroupId;
use skep_types::pattern::Chooser;
use skep_types::random::SplitMix64;

/// The position of the round-robin policy: the group that it chose last. Each metadata target has
/// its own position, and stores it only in memory. So the position is common to the whole cluster
/// only if the cluster has a single metadata target, and each restart of the target resets the
/// position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cursor(Option<GroupId>);

/// A generator of random numbers.
struct Random(SplitMix64);

impl Random {
    /// Returns a random number below `end`. `end` must not be zero.
    fn below(&mut self, end: usize) -> usize {
        scale(self.0.number(), end as u64) as usize
    }
}

impl Candidates {
    /// Appends up to `count` groups to `chosen`. `chooser` is any policy except the balanced one.
    pub(super) fn as_established(
        &self,
        chooser: Chooser,
        count: usize,
        seed: u64,
        cursor: &mut Cursor,
        chosen: &mut Vec<GroupId>,
    ) {
        if count == 0 {
            return;
        }
        // Mixes the seed, so that consecutive seeds do not give correlated numbers.
        let mut random = Random(SplitMix64::new(mix(seed ^ 0x6A09_E667_F3BC_C908)));
        match chooser {
            Chooser::Randomized => self.randomized(count, &mut random, chosen),
            Chooser::RandomInterNode => self.one_of_each_server(count, &mut random, chosen),
            Chooser::RandomIntraNode => self.of_one_server(count, &mut random, chosen),
            _ => self.next_in_turn(count, cursor, chosen),
        }
        if chooser == Chooser::RandomRobin {
            for end in (2..=chosen.len()).rev() {
                chosen.swap(end - 1, random.below(end));
            }
        }
    }

    /// Divides the ring of groups into `count` equal parts, starting at a random group, and chooses
    /// a random group from each part. The last part also contains the remainder.
    fn randomized(&self, count: usize, random: &mut Random, chosen: &mut Vec<GroupId>) {
        let len = self.ring.len();
        let count = count.min(len);
        let (start, part) = (random.below(len), len / count);
        for index in 0..count {
            let begin = index * part;
            let end = if index + 1 == count { len } else { begin + part };
            let at = start + begin + random.below(end - begin);
            chosen.push(self.ring[at % len]);
        }
    }

    /// Chooses the groups that follow the last chosen one. The cursor starts at the first group, so
    /// the first file begins with the second group. On two servers with four targets each, every
    /// file of four targets therefore gets one target from one server and three targets from the
    /// other server.
    fn next_in_turn(&self, count: usize, cursor: &mut Cursor, chosen: &mut Vec<GroupId>) {
        let len = self.ring.len();
        let last = cursor.0.unwrap_or(self.ring[0]);
        let first = self.ring.partition_point(|group| *group <= last);
        chosen.extend((first..first + count.min(len)).map(|at| self.ring[at % len]));
        *cursor = Cursor(chosen.last().copied());
    }

    /// Chooses a random group from each of `count` consecutive servers, starting at a random
    /// server. Never chooses two groups from one server.
    fn one_of_each_server(&self, count: usize, random: &mut Random, chosen: &mut Vec<GroupId>) {
        let servers = &self.tiers[0].servers;
        let start = random.below(servers.len());
        for index in 0..count.min(servers.len()) {
            let groups = &servers[(start + index) % servers.len()].groups;
            chosen.push(groups[random.below(groups.len())]);
        }
    }

    /// Chooses up to `count` groups of one random server, in random order.
    fn of_one_server(&self, count: usize, random: &mut Random, chosen: &mut Vec<GroupId>) {
        let servers = &self.tiers[0].servers;
        chosen.extend(&servers[random.below(servers.len())].groups);
        for taken in 0..count.min(chosen.len()) {
            let other = taken + random.below(chosen.len() - taken);
            chosen.swap(taken, other);
        }
        chosen.truncate(count);
    }
}
