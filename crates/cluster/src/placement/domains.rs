//! Failure domains in the balanced policy: which servers provide one group more than the other
//! servers for a file.
//!
//! The number of groups per server is fixed to within one before failure domains are considered,
//! because the bandwidth of a file depends on this number. This module chooses the servers that
//! provide one more group. If a file has fewer groups than there are servers, each of these servers
//! provides one group, and all other servers provide none. The numbers of groups per domain become
//! as even as possible. To this end, each further group comes from the domain that provides the
//! fewest groups so far, among the domains that have a server left. Between domains with equal
//! numbers, and between servers of one domain, free space and the seed of the file decide, as they
//! do without domains.
//!
//! The module is not used if each server has its own domain, or if all servers share one domain.

use super::draw::{Draw, STEP_SERVER, Server, sample};
use skep_types::pattern::MAX_STRIPE_WIDTH;
use std::collections::BTreeMap;

/// Step of the draws of domains: the golden ratio, which is unrelated to the steps of the other
/// draws.
const STEP_DOMAIN: u64 = 0x9E37_79B9_7F4A_7C15;

/// The servers of a tier, grouped by failure domain.
#[derive(Debug, Clone)]
pub(super) struct Domains {
    list: Vec<Domain>,
    /// Running sums of the weights of the domains in `list`, in the same order.
    sums: Vec<u64>,
}

/// The servers of one failure domain.
#[derive(Debug, Clone, Default)]
struct Domain {
    /// Indices of the servers in the tier.
    servers: Vec<u32>,
    /// Running sums of the weights of `servers`, in the same order.
    sums: Vec<u64>,
}

/// The numbers of groups that one failure domain provides for a file.
#[derive(Debug, Clone, Copy, Default)]
struct Quota {
    /// Number of groups that the servers of the domain provide without any additional group.
    base: u16,
    /// Number of servers of the domain that could provide one additional group.
    slots: u16,
    /// Number of servers of the domain that do provide one additional group.
    gives: u16,
    /// Sum of the weights of the servers from which the file can still take one additional group.
    weight: u64,
}

impl Quota {
    /// Returns the number of groups that the domain provides so far. `None` means that none of its
    /// servers can provide an additional group.
    fn before_next(&self) -> Option<u16> {
        (self.gives < self.slots).then_some(self.base + self.gives)
    }
}

impl Domains {
    /// Creates the domains. `servers` contains the domain name and the weight of each server, in
    /// the order of the tier. A server with an empty domain name counts as a domain by itself.
    /// Returns `None` if domains make no difference.
    pub(super) fn new(servers: &[(&str, u64)]) -> Option<Self> {
        if servers.iter().all(|(name, _)| name.is_empty()) {
            return None;
        }
        let mut by_name: BTreeMap<(&str, u32), Domain> = BTreeMap::new();
        for (server, (name, weight)) in (0..).zip(servers) {
            let key = if name.is_empty() { ("", server) } else { (*name, 0) };
            let domain = by_name.entry(key).or_default();
            domain.servers.push(server);
            domain.sums.push(weight + domain.sums.last().unwrap_or(&0));
        }
        if by_name.len() < 2 || by_name.len() == servers.len() {
            return None;
        }
        let list: Vec<Domain> = by_name.into_values().collect();
        let mut total = 0;
        let sums = list.iter().map(|domain| {
            total += domain.sums.last().unwrap_or(&0);
            total
        });
        Some(Self { sums: sums.collect(), list })
    }

    /// Fills `picks` with different servers that have more than `level` groups. There must be more
    /// such servers than entries in `picks`, unless `picks` is empty.
    pub(super) fn pick(&self, servers: &[Server], level: usize, seed: u64, picks: &mut [u32]) {
        if picks.is_empty() {
            return;
        }
        let draw = Draw { seed, step: STEP_DOMAIN, salt: 0 };
        if level == 0 && picks.len() <= self.list.len() {
            // Each sampled domain provides one server.
            sample(&self.sums, draw, picks);
            for pick in picks {
                let domain = *pick as usize;
                self.pick_within(domain, servers, level, seed, std::slice::from_mut(pick));
            }
            return;
        }
        // The array has space for all domains, because a file has at most `MAX_STRIPE_WIDTH`
        // groups, and here at least one group for each domain. Either there are more picks than
        // domains, or all servers already provide at least one group.
        let mut quotas = [Quota::default(); MAX_STRIPE_WIDTH];
        let quotas = &mut quotas[..self.list.len()];
        for (quota, domain) in quotas.iter_mut().zip(&self.list) {
            *quota = domain.quota(servers, level, picks.len());
        }
        share_out(quotas, picks.len(), draw);
        let mut left = picks;
        for (domain, quota) in quotas.iter().enumerate() {
            let (own, others) = left.split_at_mut(usize::from(quota.gives));
            self.pick_within(domain, servers, level, seed, own);
            left = others;
        }
    }

    /// Fills `picks` with different servers of one domain that have more than `level` groups.
    fn pick_within(
        &self,
        domain: usize,
        servers: &[Server],
        level: usize,
        seed: u64,
        picks: &mut [u32],
    ) {
        // The salts of all other draws are small numbers, so this salt differs from all of them.
        let draw = Draw { seed, step: STEP_SERVER, salt: !(domain as u64) };
        let Domain { servers: own, sums } = &self.list[domain];
        if picks.is_empty() {
            return;
        }
        if level == 0 {
            sample(sums, draw, picks);
            picks.iter_mut().for_each(|pick| *pick = own[*pick as usize]);
            return;
        }
        let (mut able, mut sums) = ([0_u32; MAX_STRIPE_WIDTH], [0_u64; MAX_STRIPE_WIDTH]);
        let (mut count, mut sum) = (0, 0);
        for (server, weight) in self.list[domain].able(servers, level) {
            sum += weight;
            (able[count], sums[count]) = (server, sum);
            count += 1;
        }
        sample(&sums[..count], draw, picks);
        picks.iter_mut().for_each(|pick| *pick = able[*pick as usize]);
    }
}

impl Domain {
    /// Returns the servers of the domain that have more than `level` groups, each with its weight.
    fn able<'a>(
        &'a self,
        servers: &'a [Server],
        level: usize,
    ) -> impl Iterator<Item = (u32, u64)> + 'a {
        let before = std::iter::once(&0).chain(&self.sums);
        let weights = self.sums.iter().zip(before).map(|(sum, before)| sum - before);
        let is_able =
            move |(server, _): &(u32, u64)| servers[*server as usize].groups.len() > level;
        self.servers.iter().copied().zip(weights).filter(is_able)
    }

    /// Returns the quota of the domain before any server provides an additional group. At this
    /// point each server provides `level` groups, or all its groups if it has fewer. `wanted` is
    /// the number of servers in all domains that will provide an additional group.
    fn quota(&self, servers: &[Server], level: usize, wanted: usize) -> Quota {
        let all = || self.servers.iter().map(move |server| servers[*server as usize].groups.len());
        let quota = |base: usize, slots: usize, weight| Quota {
            base: base as u16,
            slots: slots.min(wanted) as u16,
            gives: 0,
            weight,
        };
        if level == 0 {
            return quota(0, self.servers.len(), *self.sums.last().unwrap_or(&0));
        }
        let base = all().map(|groups| groups.min(level)).sum();
        let slots = all().filter(|groups| *groups > level).count();
        quota(base, slots, self.able(servers, level).map(|(_, weight)| weight).sum())
    }
}

/// Distributes `wanted` additional groups over the domains, so that the totals per domain are as
/// even as possible.
fn share_out(quotas: &mut [Quota], mut wanted: usize, draw: Draw) {
    while wanted > 0 {
        let least = quotas.iter().filter_map(Quota::before_next).min();
        let is_next = |quota: &Quota| least.is_some() && quota.before_next() == least;
        let count = quotas.iter().filter(|quota| is_next(quota)).count();
        assert!(count > 0, "the domains can give all wanted groups");
        if count > wanted {
            let (mut next, mut sums) = ([0_usize; MAX_STRIPE_WIDTH], [0_u64; MAX_STRIPE_WIDTH]);
            let (mut found, mut sum) = (0, 0);
            for (domain, quota) in quotas.iter().enumerate().filter(|(_, quota)| is_next(quota)) {
                sum += quota.weight;
                (next[found], sums[found]) = (domain, sum);
                found += 1;
            }
            let mut picks = [0_u32; MAX_STRIPE_WIDTH];
            sample(&sums[..count], draw, &mut picks[..wanted]);
            picks[..wanted].iter().for_each(|pick| quotas[next[*pick as usize]].gives += 1);
            return;
        }
        quotas.iter_mut().filter(|quota| is_next(quota)).for_each(|quota| quota.gives += 1);
        wanted -= count;
    }
}
