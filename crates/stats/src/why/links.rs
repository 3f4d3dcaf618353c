//! Finds slow links. A link is slow if the data of its client or storage server moves more slowly
//! than the data of other clients or storage servers.
//!
//! The rule judges a link separately in each interval of the evidence. The rule compares the data
//! rates of the links, each during the time in which its data moves. The rule reports a link that
//! is slow in several intervals, and in most of the intervals in which the rule has judged the
//! link. A client is slow only if it is also slower than the other clients of the same servers. A
//! server is slow only if most of its clients move data faster at other servers. So a server that
//! many clients use concurrently makes none of these clients look slow, and a slow client makes no
//! server look slow.
//!
//! `traffic` has the measured traffic.

use super::cause::Cause;
use super::evidence::Evidence;
use super::median::median;
use super::names;
use super::traffic::{Interval, Traffic};
use skep_cluster::problems::Severity;
use skep_types::{ClusterMap, NodeId, Target, TargetKind};
use std::collections::{BTreeMap, BTreeSet};

/// The rule judges a link only if the link has moved at least this number of bytes.
const FEWEST_BYTES: u64 = 256 << 10;
/// Minimum number of intervals in which a link must be slow. A single slow interval may be a short
/// disturbance.
const FEWEST_INTERVALS: usize = 2;
/// Minimum time per MiB of a slow link. This time corresponds to 52 MB/s.
const SLOW_FROM_NS: u64 = 20_000_000;
/// A link is slow if its data takes at least this many times as long as the data of the median
/// peer.
const FACTOR: u64 = 4;
/// Rate in bytes per second below which a link without peers is slow. This is the rate of Fast
/// Ethernet (100 Mbit/s).
const SLOW_ALONE: u64 = 12_500_000;

/// One end of a link: a client or a storage server, by node id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Client(u32),
    Server(u32),
}

/// The traffic of one interval or of all intervals, added up by pair, by client and by server.
#[derive(Debug, Default)]
struct Links {
    /// Traffic by client and server.
    pairs: BTreeMap<(u32, u32), Traffic>,
    clients: BTreeMap<u32, Traffic>,
    servers: BTreeMap<u32, Traffic>,
}

impl Links {
    /// Adds up the traffic of an interval. Omits the targets in `without`.
    fn of(interval: &Interval, map: &ClusterMap, without: &BTreeSet<u32>) -> Self {
        let mut links = Self::default();
        let judged = interval.iter().filter(|((target, _), _)| !without.contains(target));
        for ((target, client), traffic) in judged {
            // Omit metadata targets, because they do not measure the transfer time of small files.
            let is_judged = |it: &&Target| it.id.raw() == *target && it.kind == TargetKind::Storage;
            let found = map.targets.iter().find(is_judged);
            let Some(server) = found.map(|it| it.node.raw()) else { continue };
            links.pairs.entry((*client, server)).or_default().add_beside(*traffic);
            links.clients.entry(*client).or_default().add_beside(*traffic);
            links.servers.entry(server).or_default().add_beside(*traffic);
        }
        links
    }

    /// Returns the clients and servers whose links have moved enough bytes to judge their speed.
    fn judged(&self) -> impl Iterator<Item = End> {
        let clients = self.clients.iter().filter(|(_, it)| it.bytes >= FEWEST_BYTES);
        let servers = self.servers.iter().filter(|(_, it)| it.bytes >= FEWEST_BYTES);
        clients.map(|(id, _)| End::Client(*id)).chain(servers.map(|(id, _)| End::Server(*id)))
    }

    fn traffic(&self, end: End) -> Traffic {
        let found = match end {
            End::Client(id) => self.clients.get(&id),
            End::Server(id) => self.servers.get(&id),
        };
        found.copied().unwrap_or_default()
    }

    /// Returns the median time per MiB of all other links of the same kind that have enough data.
    /// `None` means that there is no such link.
    fn peers_ns(&self, end: End) -> Option<u64> {
        match end {
            End::Client(id) => median_of(self.clients.iter().filter(|(it, _)| **it != id)),
            End::Server(id) => median_of(self.servers.iter().filter(|(it, _)| **it != id)),
        }
    }

    /// Returns the factor between the time per MiB of a slow link and a reference time. The
    /// reference time is the median of the link's peers, or [`SLOW_FROM_NS`] for a link without
    /// peers. `None` means that the link is not slow.
    fn slowness(&self, end: End) -> Option<u64> {
        let own = self.traffic(end);
        if own.bytes < FEWEST_BYTES || own.ns_per_mib() < SLOW_FROM_NS {
            return None;
        }
        let peers = self.peers_ns(end);
        let is_slow = match (end, peers) {
            (End::Client(client), Some(usual)) => {
                is_slower(own, usual) && self.is_slow_at_each_server(client)
            }
            (End::Server(server), Some(usual)) => {
                is_slower(own, usual) && self.is_slow_for_most_clients(server)
            }
            (End::Client(_), None) => own.bytes_per_second() < SLOW_ALONE,
            // A slow server without peers cannot be distinguished from slow clients.
            (End::Server(_), None) => false,
        };
        is_slow.then(|| own.ns_per_mib() / peers.unwrap_or(SLOW_FROM_NS).max(1))
    }

    /// Whether a client is slow at each server that it shares with other clients. A client is slow
    /// at a server if its data moves more slowly than the data of the other clients.
    fn is_slow_at_each_server(&self, client: u32) -> bool {
        let own = self.pairs.iter().filter(|((it, _), _)| *it == client);
        own.filter(|(_, traffic)| traffic.bytes >= FEWEST_BYTES).all(|((_, server), traffic)| {
            let others = self.pairs.iter().filter(|(key, _)| key.0 != client && key.1 == *server);
            median_of(others).is_none_or(|usual| is_slower(*traffic, usual))
        })
    }

    /// Whether a server is slow for most of its clients. Only clients that also use other servers
    /// count. The server is slow for a client that moves data faster at the other servers. If no
    /// client uses other servers, the result is true.
    fn is_slow_for_most_clients(&self, server: u32) -> bool {
        let own = self.pairs.iter().filter(|((_, it), _)| *it == server);
        let verdicts: Vec<bool> = own
            .filter(|(_, traffic)| traffic.bytes >= FEWEST_BYTES)
            .filter_map(|((client, _), traffic)| {
                let others =
                    self.pairs.iter().filter(|(key, _)| key.0 == *client && key.1 != server);
                median_of(others).map(|usual| is_slower(*traffic, usual))
            })
            .collect();
        let slow = verdicts.iter().filter(|is_slow| **is_slow).count();
        2 * slow > verdicts.len() || verdicts.is_empty()
    }

    /// Returns the slow links. If both clients and servers seem to be slow, returns only the kind
    /// that differs more from its peers. The reason is that the clients of a slow server also seem
    /// to be slow.
    fn slow(&self) -> Vec<End> {
        let all = self.judged().filter_map(|end| Some((end, self.slowness(end)?)));
        let (clients, servers): (Vec<_>, Vec<_>) =
            all.partition(|(end, _)| matches!(end, End::Client(_)));
        let worst = |all: &[(End, u64)]| all.iter().map(|(_, ratio)| *ratio).max().unwrap_or(0);
        let named = if worst(&servers) > worst(&clients) { servers } else { clients };
        named.into_iter().map(|(end, _)| end).collect()
    }
}

fn is_slower(own: Traffic, usual_ns: u64) -> bool {
    own.ns_per_mib() >= usual_ns.saturating_mul(FACTOR)
}

fn median_of<'a, K: 'a>(links: impl Iterator<Item = (&'a K, &'a Traffic)>) -> Option<u64> {
    let judged = links.filter(|(_, traffic)| traffic.bytes >= FEWEST_BYTES);
    median(judged.map(|(_, traffic)| traffic.ns_per_mib()).collect())
}

/// Returns the slow links. Does not judge links to the targets in `without`.
pub(super) fn slow_links(
    evidence: &Evidence,
    map: &ClusterMap,
    without: &BTreeSet<u32>,
) -> Vec<Cause> {
    let mut sum = Interval::new();
    // For each end of a link, the number of intervals with enough data for a judgement, and the
    // number of intervals in which the end was slow.
    let mut counts: BTreeMap<End, (usize, usize)> = BTreeMap::new();
    for interval in &evidence.intervals {
        let links = Links::of(interval, map, without);
        links.judged().for_each(|end| counts.entry(end).or_default().0 += 1);
        links.slow().into_iter().for_each(|end| counts.entry(end).or_default().1 += 1);
        for (key, traffic) in interval {
            sum.entry(*key).or_default().add_later(*traffic);
        }
    }
    let all = Links::of(&sum, map, without);
    let is_slow = |judged: usize, slow: usize| slow >= FEWEST_INTERVALS && 2 * slow > judged;
    let slow = counts.into_iter().filter(|(_, (judged, slow))| is_slow(*judged, *slow));
    slow.map(|(end, _)| cause(end, &all, map)).collect()
}

/// Returns the text that describes the data rate of a link.
fn rate(links: &Links, end: End, others: &str) -> String {
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    let own = megabytes(links.traffic(end).bytes_per_second());
    let mut text = format!("its data moves at {own:.1} MB/s");
    if let Some(peers_ns) = links.peers_ns(end) {
        let usual = Traffic { bytes: 1 << 20, moving_ns: peers_ns };
        text += &format!(", data of {others} at {:.0} MB/s", megabytes(usual.bytes_per_second()));
    }
    text
}

fn cause(end: End, links: &Links, map: &ClusterMap) -> Cause {
    const CHECK: &str = "check the network interface of its host (`ethtool`), the cable and the \
                         switch port; `skep bench net` measures the link";
    let (id, name, others, effect) = match end {
        End::Client(id) => {
            (id, names::client(map, id), "other clients", "only operations of this client are slow")
        }
        End::Server(id) => {
            let name = names::node(map, NodeId::new(id));
            (id, name, "other servers", "each file that has bytes on this server is slow")
        }
    };
    let node = NodeId::new(id);
    let of_server = map.targets.iter().filter(|it| it.node == node && end == End::Server(id));
    Cause {
        rule: "link-slow",
        severity: Severity::Warning,
        object: node.to_string(),
        targets: of_server.map(|target| target.id.raw()).collect(),
        client: matches!(end, End::Client(_)).then_some(id),
        is_over: false,
        what: format!("the network link of {name} is slow: {}", rate(links, end, others)),
        remedy: format!("{effect}; {CHECK}"),
    }
}
