//! The balanced policy.
//!
//! The numbers of groups that any two servers provide for a file differ by at most one, unless one
//! of the two servers has too few groups. A study of two servers with four targets each (Boito,
//! Pallez, Teylo, CLUSTER 2022) shows why. With random placement, a file on four targets may get
//! one target of one server and three targets of the other server. Such a file has only two thirds
//! of the bandwidth of a file with two targets on each server. The policy chooses the servers that
//! provide one more group than the other servers. If there are failure domains, the policy also
//! makes the numbers of groups per domain even ([`super::domains`]). Groups with more free space
//! are chosen more often. The stripe order alternates between servers. The first group differs from
//! file to file, because small files are stored on the first group only.
//!
//! The draws for consecutive seeds form low-discrepancy sequences. So even a short series of
//! consecutive seeds uses all groups about evenly.

use super::domains::Domains;
use super::draw::{Draw, STEP_FIRST_SERVER, STEP_GROUP, STEP_SERVER, Server, sample};
use super::{Candidates, scale};
use skep_types::pattern::MAX_STRIPE_WIDTH;
use skep_types::{GroupId, NodeId};
use std::collections::BTreeMap;

/// The groups of equal fitness, by server.
#[derive(Debug, Clone, Default)]
pub(super) struct Tier {
    pub(super) servers: Vec<Server>,
    /// Running sums of the weights of `servers`, in the same order.
    sums: Vec<u64>,
    /// The failure domains of `servers`. `None` if domains make no difference.
    domains: Option<Domains>,
    pub(super) len: usize,
}

impl Candidates {
    /// Appends `count` groups to `chosen`. All tiers together must have at least `count` groups.
    pub(super) fn balanced(&self, count: usize, seed: u64, chosen: &mut Vec<GroupId>) {
        for tier in &self.tiers {
            let wanted = count - chosen.len();
            if wanted == 0 {
                break;
            }
            tier.choose(wanted.min(tier.len), seed, chosen);
        }
    }
}

impl Tier {
    /// Creates a tier from the groups of each server, each with its weight. `domain_of` returns the
    /// failure domain of a server.
    pub(super) fn new<'a>(
        by_node: BTreeMap<NodeId, Vec<(GroupId, u64)>>,
        domain_of: impl Fn(NodeId) -> &'a str,
    ) -> Self {
        let mut tier = Self::default();
        let mut total = 0;
        let mut domains = Vec::new();
        for (node, groups) in by_node {
            let mut server = Server::default();
            let mut sum = 0;
            for (group, weight) in groups {
                sum += weight;
                server.groups.push(group);
                server.sums.push(sum);
            }
            total += sum;
            domains.push((domain_of(node), sum));
            tier.len += server.groups.len();
            tier.sums.push(total);
            tier.servers.push(server);
        }
        tier.domains = Domains::new(&domains);
        tier
    }

    /// Asserts that the number of groups and the running sums match the groups.
    pub(super) fn check_invariants(&self) {
        let rises = |sums: &[u64]| {
            sums.first().is_none_or(|sum| *sum > 0) && sums.is_sorted_by(|a, b| a < b)
        };
        assert_eq!(self.len, self.groups().count(), "the length counts the groups");
        assert!(self.sums.len() == self.servers.len() && rises(&self.sums), "servers have weight");
        for Server { groups, sums } in &self.servers {
            assert!(sums.len() == groups.len() && rises(sums), "groups have weight");
        }
    }

    /// Returns all groups of the tier.
    pub(super) fn groups(&self) -> impl Iterator<Item = GroupId> + '_ {
        self.servers.iter().flat_map(|server| server.groups.iter().copied())
    }

    /// Appends `count` groups to `chosen`. The tier must have at least `count` groups.
    fn choose(&self, count: usize, seed: u64, chosen: &mut Vec<GroupId>) {
        // One entry for each server that provides groups: the server, and the number of its groups
        // that the file gets. At most `count` servers provide a group.
        let mut shares = [(0_u32, 0_u16); MAX_STRIPE_WIDTH];
        let shares = self.shares(count, seed, &mut shares);
        // The picked groups of all servers, one server after another.
        let mut picks = [0_u32; MAX_STRIPE_WIDTH];
        let mut end = 0;
        for (server, share) in shares.iter() {
            let salt = 1 + u64::from(*server);
            let slots = &mut picks[end..end + usize::from(*share)];
            let sums = &self.servers[*server as usize].sums;
            sample(sums, Draw { seed, step: STEP_GROUP, salt }, slots);
            end += usize::from(*share);
        }
        // The stripe order takes one group from each server, then a second group from each server,
        // and so on. The first server differs from file to file.
        let turn = Draw { seed, step: STEP_FIRST_SERVER, salt: 0 }.point(0);
        let first = scale(turn, shares.len() as u64) as usize;
        let rounds = shares.iter().map(|(_, share)| *share).max().unwrap_or(0);
        for round in 0..rounds {
            let mut begin = 0;
            let before = chosen.len();
            let mut skipped = 0;
            for (position, (server, share)) in shares.iter().enumerate() {
                if round < *share {
                    let pick = picks[begin + usize::from(round)] as usize;
                    chosen.push(self.servers[*server as usize].groups[pick]);
                    skipped += usize::from(position < first);
                }
                begin += usize::from(*share);
            }
            chosen[before..].rotate_left(skipped);
        }
    }

    /// Divides `count` groups among the servers. All servers provide the same number of groups, or
    /// all their groups if they have fewer. If these are fewer than `count` groups, some of the
    /// servers that have further groups provide one more group each.
    fn shares<'a>(
        &self,
        count: usize,
        seed: u64,
        shares: &'a mut [(u32, u16); MAX_STRIPE_WIDTH],
    ) -> &'a [(u32, u16)] {
        let draw = Draw { seed, step: STEP_SERVER, salt: 0 };
        let mut picks = [0_u32; MAX_STRIPE_WIDTH];
        if count < self.servers.len() {
            match &self.domains {
                None => sample(&self.sums, draw, &mut picks[..count]),
                Some(domains) => domains.pick(&self.servers, 0, seed, &mut picks[..count]),
            }
            for (share, pick) in shares.iter_mut().zip(&picks[..count]) {
                *share = (*pick, 1);
            }
            return &shares[..count];
        }
        let filled = |level: usize| -> usize {
            self.servers.iter().map(|server| server.groups.len().min(level)).sum()
        };
        let mut level = count / self.servers.len();
        while level < count && filled(level + 1) <= count {
            level += 1;
        }
        for (index, (share, server)) in shares.iter_mut().zip(&self.servers).enumerate() {
            *share = (index as u32, server.groups.len().min(level) as u16);
        }
        let rest = count - filled(level);
        if let Some(domains) = &self.domains {
            domains.pick(&self.servers, level, seed, &mut picks[..rest]);
            picks[..rest].iter().for_each(|pick| shares[*pick as usize].1 += 1);
            return &shares[..self.servers.len()];
        }
        sample(&self.sums, draw, &mut picks[..rest]);
        for pick in &picks[..rest] {
            // If the drawn server has no group left, or already provides an additional group, the
            // next suitable server provides the group.
            let servers = self.servers.len();
            let takes = (0..servers).map(|i| (*pick as usize + i) % servers).find(|server| {
                let share = usize::from(shares[*server].1);
                share == level && self.servers[*server].groups.len() > share
            });
            shares[takes.expect("a server can provide each remaining group")].1 += 1;
        }
        &shares[..self.servers.len()]
    }
}
