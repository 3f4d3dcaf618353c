//! Finds the causes of slowness. Causes can be disks, logs, links, and the load of one user or one
//! directory. Hosts that lack memory or have a full page cache, silent clients that make other
//! clients wait, and requests without a reply are causes too.
//!
//! Each rule requires a fact that only its cause can explain. So the rules find no cause in a
//! cluster under heavy but even load. The module is pure: it does no I/O and reads no clock.

use super::cause::{Cause, Thresholds};
use super::comparison::{Comparison, log_syncs, of_kind, stage};
use super::evidence::{Evidence, Holder, TargetEvidence};
use super::host_causes::slow_hosts;
use super::links::slow_links;
use super::metadata_load::heavy_load;
use super::names;
use super::open_requests::long_open;
use skep_cluster::problems::Severity;
use skep_metrics::Stage;
use skep_types::{ClusterMap, TargetId, TargetKind};
use std::collections::{BTreeMap, BTreeSet};

/// Minimum number of requests before a rule judges a disk or a log.
const FEWEST: u64 = 3;
/// A disk with only one peer counts as slow only if it is slower by this additional factor, because
/// the peer may be an unusually fast disk.
const ONE_PEER_FACTOR: u64 = 2;
/// Mean time of a log sync at which a log without peers counts as slow. A log sync on a working
/// disk takes less time, even under load.
const SLOW_ALONE_NS: u64 = 200_000_000;

/// Returns the causes of slowness for which there is evidence.
pub fn causes(evidence: &Evidence, map: &ClusterMap, thresholds: &Thresholds) -> Vec<Cause> {
    let storage = of_kind(evidence, map, TargetKind::Storage);
    let metadata = of_kind(evidence, map, TargetKind::Metadata);
    let mut found = Vec::new();
    let mut slow = BTreeSet::new();
    for id in storage.keys() {
        let comparison = stage(&storage, *id, Stage::Disk);
        if let Some(comparison) = comparison.filter(|it| is_slow(it, thresholds)) {
            slow.insert(*id);
            found.push(slow_disk(map, *id, &comparison));
        }
    }
    for (id, target) in &metadata {
        found.extend(slow_log(map, &metadata, (*id, target), thresholds));
        found.extend(silent_clients(map, *id, target));
    }
    // While a target's thread waits for its disk, it receives no data of other requests, so its
    // links seem slow. So the rule for links ignores targets with a slow disk.
    found.extend(slow_links(evidence, map, &slow));
    found.extend(heavy_load(&metadata, map));
    let open = long_open(evidence, map, &found);
    found.extend(open);
    found.extend(slow_hosts(evidence, map));
    found
}

fn is_slow(comparison: &Comparison, thresholds: &Thresholds) -> bool {
    let more = if comparison.peers < 2 { ONE_PEER_FACTOR } else { 1 };
    let bound = comparison.peers_ns.saturating_mul(thresholds.slow_factor.saturating_mul(more));
    comparison.requests >= FEWEST
        && comparison.own_ns >= thresholds.slow_from_ns
        && comparison.own_ns >= bound
}

/// Returns the text that compares a target with its peers.
fn against_peers(comparison: &Comparison) -> String {
    let (own, peers) = (names::time(comparison.own_ns), names::time(comparison.peers_ns));
    match comparison.peers {
        1 => format!("takes {own}, but {peers} at its peer"),
        _ => format!("takes {own}, but {peers} at its peers"),
    }
}

fn slow_disk(map: &ClusterMap, id: u32, comparison: &Comparison) -> Cause {
    Cause {
        rule: "target-slow",
        severity: Severity::Warning,
        object: TargetId::new(id).to_string(),
        targets: vec![id],
        client: None,
        is_over: false,
        what: format!("the disk of {} {}", names::target(map, id), against_peers(comparison)),
        remedy: "check the disk and the load of its host; `skep bench slow-targets` measures the \
                 disk. Each file that has bytes on this target is slow"
            .into(),
    }
}

fn slow_log(
    map: &ClusterMap,
    metadata: &BTreeMap<u32, &TargetEvidence>,
    (id, target): (u32, &TargetEvidence),
    thresholds: &Thresholds,
) -> Option<Cause> {
    let (count, sum_ns) = target.log_syncs;
    let mean = sum_ns.checked_div(count)?;
    let what = match log_syncs(metadata, id) {
        Some(comparison) if is_slow(&comparison, thresholds) => {
            format!(
                "the sync of the log of {} {}",
                names::target(map, id),
                against_peers(&comparison)
            )
        }
        Some(_) => return None,
        None if count >= FEWEST && mean >= SLOW_ALONE_NS => {
            format!("the sync of the log of {} takes {}", names::target(map, id), names::time(mean))
        }
        None => return None,
    };
    Some(Cause {
        rule: "log-sync-slow",
        severity: Severity::Warning,
        object: TargetId::new(id).to_string(),
        targets: vec![id],
        client: None,
        is_over: false,
        what,
        remedy:
            "check the disk of this log, and other programs that use this disk. Each `fsync` after \
             a change of names waits for the sync of the log"
                .into(),
    })
}

fn silent_clients(map: &ClusterMap, target: u32, evidence: &TargetEvidence) -> Vec<Cause> {
    let holders = evidence.holders.iter().filter(|(_, holder)| holder.waits > 0);
    let to_cause = |(client, holder): (&u32, &Holder)| Cause {
        rule: "client-silent",
        severity: Severity::Warning,
        object: skep_types::NodeId::new(*client).to_string(),
        targets: vec![target],
        client: Some(*client),
        is_over: holder.is_over(),
        what: silence(&names::client(map, *client), holder),
        remedy: if holder.is_over() {
            "check the load and the log of the host of this client. The client has sent requests \
             again since it was silent, or was evicted"
        } else {
            "check whether the host of this client or the process of its mount is stopped, or \
             evict the client now with `skep client evict`. Without this command, management \
             evicts the client when its lease expires, which releases the locks and open files of \
             the client"
        }
        .into(),
    };
    holders.map(to_cause).collect()
}

/// Returns the text that describes the silence of a client.
fn silence(client: &str, holder: &Holder) -> String {
    if holder.is_over() {
        let began = names::time(holder.ago_ns.saturating_add(holder.silent_ns));
        let requests = match holder.waits {
            1 => "1 request of another client".to_owned(),
            waits => format!("up to {waits} requests of other clients"),
        };
        return format!(
            "{client} was silent from {began} to {} ago; {requests} waited for locks or open files \
             of this client",
            names::time(holder.ago_ns)
        );
    }
    let requests = match holder.waits {
        1 => "1 request of another client waits".to_owned(),
        waits => format!("{waits} requests of other clients wait"),
    };
    let silent = names::time(holder.silent_ns);
    format!(
        "{client} has sent nothing for {silent}; {requests} for locks or open files of this client"
    )
}
