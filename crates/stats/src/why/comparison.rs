//! Compares a target with its peers. Peers are other targets of the same kind that handled the same
//! kinds of requests in the same time span.
//!
//! Load that slows all targets alike, such as many writers, does not affect a comparison. Each kind
//! of request is compared separately, because a sync takes longer than a read. A request with more
//! data may take longer in proportion. So if a target gets larger requests than a peer, the
//! comparison uses the time that the peer would take for the same amount of data.

use super::evidence::{Evidence, TargetEvidence, Times};
use super::median::median;
use skep_metrics::Stage;
use skep_types::{ClusterMap, TargetKind};
use std::collections::BTreeMap;

/// Minimum number of requests of one kind that a target must have handled to count as a peer.
const FEWEST_OF_PEER: u64 = 3;
/// A request of this kind writes the data of earlier requests of the kind [`WRITE`] to the disk.
const SYNC: &str = "sync_chunk";
const WRITE: &str = "write_chunk";

/// Mean times of one target and of its peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Comparison {
    /// Mean time of the target's requests.
    pub(super) own_ns: u64,
    /// Median, over the peers, of the mean time that the same requests would take at a peer.
    pub(super) peers_ns: u64,
    /// Number of requests of the target that were compared.
    pub(super) requests: u64,
    /// Largest number of peers that were compared for one kind of request.
    pub(super) peers: usize,
}

/// Returns the evidence of all targets of one kind.
pub(super) fn of_kind<'a>(
    evidence: &'a Evidence,
    map: &ClusterMap,
    kind: TargetKind,
) -> BTreeMap<u32, &'a TargetEvidence> {
    let targets = map.targets.iter().filter(|target| target.kind == kind);
    let ids = targets.map(|target| target.id.raw());
    ids.filter_map(|id| Some((id, evidence.targets.get(&id)?))).collect()
}

/// Returns the number of bytes that the requests of one kind have moved. For syncs, these are the
/// bytes that were written in the time span.
fn amount(target: &TargetEvidence, kind: &str) -> u64 {
    let moved_by = if kind == SYNC { WRITE } else { kind };
    target.kinds.get(moved_by).map_or(0, |times| times.bytes)
}

/// Returns the time that a request at a peer would take if it had as much data as a request at the
/// target under examination. A small request may take as long as a large request, so the result is
/// never shorter than `peer_ns`.
fn for_amount(peer_ns: u64, own: (u64, u64), peer: (u64, u64)) -> u64 {
    let ((own_bytes, own_requests), (peer_bytes, peer_requests)) = (own, peer);
    let own_share = u128::from(own_bytes) * u128::from(peer_requests);
    let peer_share = u128::from(peer_bytes) * u128::from(own_requests);
    if peer_share == 0 || own_share <= peer_share {
        return peer_ns;
    }
    u64::try_from(u128::from(peer_ns).saturating_mul(own_share) / peer_share).unwrap_or(u64::MAX)
}

/// Compares the time that the requests of a target spent in one stage. `None` means that no peer
/// handled requests of the same kinds.
pub(super) fn stage(
    targets: &BTreeMap<u32, &TargetEvidence>,
    id: u32,
    stage: Stage,
) -> Option<Comparison> {
    let (mut own_ns, mut peers_ns, mut requests, mut peers) = (0_u64, 0_u64, 0_u64, 0);
    let own = targets.get(&id)?;
    for (kind, times) in own.kinds.iter().filter(|(_, times)| times.of(stage) > 0) {
        let of_kind = |other: &TargetEvidence| -> Option<u64> {
            let of_peer: &Times = other.kinds.get(kind)?;
            let is_peer = of_peer.requests >= FEWEST_OF_PEER;
            let amounts =
                ((amount(own, kind), times.requests), (amount(other, kind), of_peer.requests));
            is_peer.then(|| for_amount(of_peer.of(stage) / of_peer.requests, amounts.0, amounts.1))
        };
        let others = targets.iter().filter(|(other, _)| **other != id);
        let means: Vec<u64> = others.filter_map(|(_, other)| of_kind(other)).collect();
        let count = means.len();
        let Some(median) = median(means) else { continue };
        peers = peers.max(count);
        own_ns = own_ns.saturating_add(times.of(stage));
        peers_ns = peers_ns.saturating_add(median.saturating_mul(times.requests));
        requests = requests.saturating_add(times.requests);
    }
    let mean = |sum: u64| sum.checked_div(requests);
    Some(Comparison { own_ns: mean(own_ns)?, peers_ns: mean(peers_ns)?, requests, peers })
}

/// Compares the log syncs of a metadata target. `None` means that the target has synced nothing, or
/// that no peer has synced its log often enough.
pub(super) fn log_syncs(targets: &BTreeMap<u32, &TargetEvidence>, id: u32) -> Option<Comparison> {
    let (requests, own_ns) = targets.get(&id)?.log_syncs;
    let others = targets.iter().filter(|(other, _)| **other != id);
    let means: Vec<u64> = others
        .filter(|(_, other)| other.log_syncs.0 >= FEWEST_OF_PEER)
        .map(|(_, other)| other.log_syncs.1 / other.log_syncs.0)
        .collect();
    let peers = means.len();
    Some(Comparison {
        own_ns: own_ns.checked_div(requests)?,
        peers_ns: median(means)?,
        requests,
        peers,
    })
}
