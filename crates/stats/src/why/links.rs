//! Slow links: clients and storage servers whose data move slowly, against others.
//!
//! The measure is the time in which the data of writes arrive and the data of reads leave, for each
//! MiB. A fast link that is busy has a high time too, but moves much; so a slow link must also move
//! less than others.

use super::cause::Cause;
use super::comparison::median;
use super::evidence::TargetEvidence;
use super::names;
use crate::change::LEFT_OUT;
use skep_cluster::problems::Severity;
use skep_metrics::Stage;
use skep_types::{ClusterMap, NodeId};
use std::collections::BTreeMap;

const MIB: u64 = 1 << 20;
/// Fewest bytes for a judgement of a link.
const FEWEST_BYTES: u64 = 256 << 10;
/// Time for each MiB from which a link can be slow: 52 MB/s.
const SLOW_FROM_NS: u64 = 20_000_000;
/// A link is slow if its data take this many times as long as data of the median peer.
const FACTOR: u64 = 4;
/// A link that moves at least this part of the busiest peer's bytes is not slow, but busy.
const BUSY_PART: u64 = 2;
/// Rate below which a link without peers is slow: less than Fast Ethernet.
const SLOW_ALONE: u64 = 12_500_000;

/// The data that one link has moved.
#[derive(Debug, Clone, Copy, Default)]
struct Traffic {
    bytes: u64,
    moving_ns: u64,
    span_ns: u64,
}

impl Traffic {
    fn ns_per_mib(&self) -> u64 {
        let ns = u128::from(self.moving_ns) * u128::from(MIB) / u128::from(self.bytes.max(1));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    fn bytes_per_second(&self) -> u64 {
        let rate = u128::from(self.bytes) * 1_000_000_000 / u128::from(self.span_ns.max(1));
        u64::try_from(rate).unwrap_or(u64::MAX)
    }
}

/// A link that may be slow.
#[derive(Debug)]
struct Candidate {
    id: u32,
    traffic: Traffic,
    /// Time for each MiB of the median peer. `None` means that there is no peer.
    peers_ns: Option<u64>,
}

impl Candidate {
    /// Returns how many times as slow as its peers it is, or as the slowest link that is not slow.
    fn ratio(&self) -> u64 {
        let usual = self.peers_ns.unwrap_or(SLOW_FROM_NS).max(1);
        self.traffic.ns_per_mib() / usual
    }
}

/// Returns the slow links. If clients and servers differ from their peers, only the kind that
/// differs most is named: a client that uses a slow server only looks slow itself.
pub(super) fn slow_links(targets: &BTreeMap<u32, &TargetEvidence>, map: &ClusterMap) -> Vec<Cause> {
    let (clients, servers) = traffic(targets, map);
    let slow_clients = slow(&clients);
    let mut slow_servers = slow(&servers);
    // Without a peer, a slow server looks like slow clients.
    slow_servers.retain(|it| it.peers_ns.is_some());
    let worst = |all: &[Candidate]| all.iter().map(Candidate::ratio).max().unwrap_or(0);
    if worst(&slow_servers) > worst(&slow_clients) {
        return slow_servers.iter().map(|it| of_server(it, map)).collect();
    }
    slow_clients.iter().map(|it| of_client(it, map)).collect()
}

type Links = BTreeMap<u32, Traffic>;

/// Adds up the traffic by client and by server.
fn traffic(targets: &BTreeMap<u32, &TargetEvidence>, map: &ClusterMap) -> (Links, Links) {
    let (mut clients, mut servers) = (Links::new(), Links::new());
    for (id, target) in targets {
        let server = map.targets.iter().find(|it| it.id.raw() == *id).map(|it| it.node.raw());
        for (client, link) in target.clients.iter().filter(|(client, _)| *client != LEFT_OUT) {
            let sums = [
                client.parse().ok().map(|client| clients.entry(client).or_default()),
                server.map(|server| servers.entry(server).or_default()),
            ];
            for sum in sums.into_iter().flatten() {
                sum.bytes = sum.bytes.saturating_add(link.data_bytes);
                let moving = link.times.of(Stage::Network);
                sum.moving_ns = sum.moving_ns.saturating_add(moving);
                sum.span_ns = sum.span_ns.max(target.span_ns);
            }
        }
    }
    (clients, servers)
}

fn slow(links: &Links) -> Vec<Candidate> {
    let judged = || links.iter().filter(|(_, traffic)| traffic.bytes >= FEWEST_BYTES);
    let candidates = judged().filter(|(_, traffic)| traffic.ns_per_mib() >= SLOW_FROM_NS);
    let found = candidates.filter_map(|(id, traffic)| {
        let peers = || judged().filter(|(other, _)| *other != id).map(|(_, peer)| peer);
        let busiest = peers().map(Traffic::bytes_per_second).max();
        let peers_ns = median(peers().map(Traffic::ns_per_mib).collect());
        let rate = traffic.bytes_per_second();
        let is_slow = match (peers_ns, busiest) {
            (Some(usual), Some(busiest)) => {
                traffic.ns_per_mib() >= usual.saturating_mul(FACTOR)
                    && rate.saturating_mul(BUSY_PART) <= busiest
            }
            _ => rate < SLOW_ALONE,
        };
        is_slow.then_some(Candidate { id: *id, traffic: *traffic, peers_ns })
    });
    found.collect()
}

/// Returns the words for the rate of a link.
fn rate(candidate: &Candidate, others: &str) -> String {
    let own = names::time(candidate.traffic.ns_per_mib());
    let rate = candidate.traffic.bytes_per_second() as f64 / 1e6;
    let mut text = format!("each MiB takes {own}, at {rate:.1} MB/s");
    if let Some(peers) = candidate.peers_ns {
        text += &format!("; {others} take {}", names::time(peers));
    }
    text
}

fn of_client(candidate: &Candidate, map: &ClusterMap) -> Cause {
    Cause {
        rule: "link-slow",
        severity: Severity::Warning,
        object: NodeId::new(candidate.id).to_string(),
        targets: Vec::new(),
        client: Some(candidate.id),
        what: format!(
            "the network link of {} is slow: {}",
            names::client(map, candidate.id),
            rate(candidate, "other clients")
        ),
        remedy: "only its own files are slow; check the interface of its host (`ethtool`), its \
                 cable and its switch port; `skep bench net` measures the link"
            .into(),
    }
}

fn of_server(candidate: &Candidate, map: &ClusterMap) -> Cause {
    let node = NodeId::new(candidate.id);
    let targets = map.targets.iter().filter(|target| target.node == node);
    Cause {
        rule: "link-slow",
        severity: Severity::Warning,
        object: node.to_string(),
        targets: targets.map(|target| target.id.raw()).collect(),
        client: None,
        what: format!(
            "the network link of {} is slow: {}",
            names::node(map, node),
            rate(candidate, "other servers")
        ),
        remedy: "every file with a part on it is as slow; check the interface of its host \
                 (`ethtool`), its cable and its switch port; `skep bench net` measures the link"
            .into(),
    }
}
