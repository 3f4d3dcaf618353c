//! Finds hosts that lack memory, hosts with a full page cache, and hosts with a wrong clock.
//!
//! A host that lacks memory, or whose page cache is full, makes its services slow, so these rules
//! find causes of slowness. A wrong clock makes nothing slow, so [`clock_findings`] is separate.
//!
//! # Clocks of different hosts
//! All services of a round reply at about the same time, so the rule compares the clocks in their
//! replies with the median of the hosts. A late reply makes a clock seem to differ. Therefore a
//! clock counts as different only if it differs in every round of the time span, and by more than a
//! reply may take. If there are only two hosts, the finding names both.

use super::cause::Cause;
use super::evidence::Evidence;
use super::hosts::{HostEvidence, host_of, smallest};
use super::median::median;
use super::names;
use skep_cluster::problems::Severity;
use skep_types::text::escape_controls;
use skep_types::{ClusterMap, Node, NodeKind, Target};
use std::collections::BTreeMap;

/// The page cache of a host counts as full if its dirty part reaches this share of the kernel's
/// limit, in percent. The kernel begins to delay programs that write at three quarters of the
/// limit, and holds them at about seven eighths (`mm/page-writeback.c` of Linux).
const DIRTY_PERCENT: u64 = 80;
/// The page cache of a host counts as fuller than at its peers if its dirty share is at least this
/// many times the median of its peers.
const DIRTY_FACTOR: u64 = 2;
/// A host counts as short of memory if all its running programs waited for memory for at least this
/// share of the time, in percent.
const STALLED_PERCENT: u64 = 10;
/// Minimum difference between the clock of a host and the clocks of the other hosts. A smaller
/// difference may only be the delay of a reply, since `skep health check` and the monitor wait for
/// a reply for this time.
const CLOCK_OFFSET_NS: u64 = 2_000_000_000;

/// A host with the services on it.
struct Host<'a> {
    name: String,
    services: Vec<&'a Node>,
    evidence: HostEvidence,
}

impl Host<'_> {
    /// Returns the name of the host with the names of its services.
    fn described(&self) -> String {
        let names: Vec<_> =
            self.services.iter().map(|node| escape_controls(&node.name).into_owned()).collect();
        format!("{} ({})", self.name, names.join(", "))
    }

    /// Whether a storage service runs on the host. Only hosts of one kind are peers.
    fn has_storage(&self) -> bool {
        self.services.iter().any(|node| node.kind == NodeKind::Storage)
    }

    /// Whether a management service runs on the host.
    fn has_management(&self) -> bool {
        self.services.iter().any(|node| node.kind == NodeKind::Management)
    }

    fn finding(&self, map: &ClusterMap, rule: &'static str, what: String, remedy: &str) -> Cause {
        let is_here =
            |target: &&Target| self.services.iter().any(|service| service.id == target.node);
        let targets = map.targets.iter().filter(is_here);
        Cause {
            rule,
            severity: Severity::Warning,
            object: self.name.clone(),
            targets: targets.map(|target| target.id.raw()).collect(),
            client: None,
            is_over: false,
            what,
            remedy: remedy.into(),
        }
    }
}

/// Returns the hosts of the services with evidence, in the order of their names. All services of a
/// host report the same state, so the evidence of the first service counts. For the clock, the
/// smallest difference counts, because the replies of the other services may be late.
fn hosts<'a>(evidence: &Evidence, map: &'a ClusterMap) -> Vec<Host<'a>> {
    let mut found: BTreeMap<String, Host<'a>> = BTreeMap::new();
    for node in map.nodes.iter().filter(|node| node.kind != NodeKind::Client) {
        let Some(own) = evidence.hosts.get(&node.id.raw()) else { continue };
        let Some(name) = host_of(node) else { continue };
        let host = found.entry(name.clone()).or_insert_with(|| Host {
            name: escape_controls(&name).into_owned(),
            services: Vec::new(),
            evidence: *own,
        });
        host.services.push(node);
        let offsets = [host.evidence.clock_offset_ns, own.clock_offset_ns];
        host.evidence.clock_offset_ns = smallest(offsets.into_iter().flatten());
    }
    found.into_values().collect()
}

/// Returns the hosts that lack memory, or whose page cache is full.
pub(super) fn slow_hosts(evidence: &Evidence, map: &ClusterMap) -> Vec<Cause> {
    let hosts = hosts(evidence, map);
    let full = hosts.iter().filter_map(|host| page_cache(host, &hosts, map));
    full.chain(hosts.iter().filter_map(|host| memory(host, map))).collect()
}

/// Returns a finding if the page cache of a host is full, unlike the page caches of its peers. Load
/// that exceeds the speed of the disks fills the page caches of all storage hosts alike, so a host
/// without peers has no finding.
fn page_cache(host: &Host<'_>, all: &[Host<'_>], map: &ClusterMap) -> Option<Cause> {
    let dirty = host.evidence.dirty_percent.filter(|dirty| *dirty >= DIRTY_PERCENT)?;
    let is_peer =
        |other: &&Host<'_>| other.name != host.name && other.has_storage() == host.has_storage();
    let peers = all.iter().filter(is_peer).filter_map(|peer| peer.evidence.dirty_percent);
    let peers = median(peers.collect())?;
    let what = format!(
        "the page cache of {} has {dirty} % of the unwritten data that its kernel allows, but \
         {peers} % on its peers",
        host.described()
    );
    let remedy = "all programs on this host that write files wait for its disks, services of Skep \
                  included: look for a slow disk and for programs that write much (`iostat -x 1`, \
                  `pidstat -d 1`), and move such programs to other hosts. A higher limit \
                  (`vm.dirty_bytes`) only delays the wait";
    (dirty >= peers.saturating_mul(DIRTY_FACTOR))
        .then(|| host.finding(map, "page-cache-full", what, remedy))
}

fn memory(host: &Host<'_>, map: &ClusterMap) -> Option<Cause> {
    let stalled = names::percent(host.evidence.memory_stalled_ns, host.evidence.span_ns);
    let is_short = host.evidence.span_ns > 0 && stalled >= STALLED_PERCENT;
    let what = format!(
        "{} lacks memory: all its running programs waited for memory for {stalled} % of the time",
        host.described()
    );
    let remedy = "requests to the services on this host wait until the kernel has reclaimed \
                  memory: `top -o %MEM` shows the programs with most memory; end these programs, \
                  move them to other hosts, or add memory";
    is_short.then(|| host.finding(map, "memory-pressure", what, remedy))
}

/// Returns the hosts whose clocks differ from the clocks of most hosts. Also returns the hosts
/// without a time service if other hosts of the cluster have a time service.
pub fn clock_findings(evidence: &Evidence, map: &ClusterMap) -> Vec<Cause> {
    let hosts = hosts(evidence, map);
    let clocks: Vec<&Host<'_>> =
        hosts.iter().filter(|host| host.evidence.clock_offset_ns.is_some()).collect();
    if let [one, other] = clocks[..]
        && let Some(finding) = two_clocks(one, other, map)
    {
        return vec![finding];
    }
    let kept = hosts.iter().filter(|host| host.evidence.is_synchronised == Some(true)).count();
    // Count each host once, not each service. If one host had more services than all other hosts
    // together, its own clock would be the median, even if this clock is wrong.
    let middle = median(hosts.iter().filter_map(|it| it.evidence.clock_offset_ns).collect());
    let middle = middle.unwrap_or(0);
    let mut found = Vec::new();
    for host in &hosts {
        let offset = host.evidence.clock_offset_ns.map_or(0, |own| own.saturating_sub(middle));
        if offset.unsigned_abs() >= CLOCK_OFFSET_NS {
            let what = format!(
                "the clock of {} is {} {} the clocks of most other hosts",
                host.described(),
                names::time(offset.unsigned_abs()),
                if offset < 0 { "behind" } else { "ahead of" }
            );
            found.push(host.finding(map, "clock-differs", what, CLOCK_REMEDY));
        } else if host.evidence.is_synchronised == Some(false) && kept > 0 {
            let what = format!(
                "no time service adjusts the clock of {}, as the kernel of this host reports, but \
                 a time service adjusts the clocks of {kept} of {} hosts",
                host.described(),
                hosts.len()
            );
            found.push(host.finding(map, "clock-unsynchronised", what, CLOCK_REMEDY));
        }
    }
    found
}

/// Returns a finding if the clocks of the only two hosts differ. Two clocks do not show which clock
/// is wrong. Only if a time service adjusts just one of the two clocks, the other clock is probably
/// wrong.
fn two_clocks(one: &Host<'_>, other: &Host<'_>, map: &ClusterMap) -> Option<Cause> {
    let (first, second) = (one.evidence.clock_offset_ns?, other.evidence.clock_offset_ns?);
    let difference = first.saturating_sub(second);
    let (behind, ahead) = if difference < 0 { (one, other) } else { (other, one) };
    let suspect = match [behind, ahead].map(|host| host.evidence.is_synchronised) {
        [Some(true), Some(false)] => Some(ahead),
        [Some(false), Some(true)] => Some(behind),
        _ => None,
    };
    let conclusion = match suspect {
        Some(host) => format!(
            "no time service adjusts the clock of {}, so this clock is probably wrong",
            host.name
        ),
        None => "one of these two clocks is wrong".into(),
    };
    let what = format!(
        "the clock of {} is {} behind the clock of {}; {conclusion}",
        behind.described(),
        names::time(difference.unsigned_abs()),
        ahead.described()
    );
    let remedy = format!(
        "compare both clocks with a third clock: `date -u` and `timedatectl` on each of the two \
         hosts show the time, and whether a time service adjusts the clock. Then {CLOCK_REMEDY}"
    );
    // The finding needs one host as its object. If neither clock is suspect, the finding is about a
    // host without management.
    let object = suspect.unwrap_or(if behind.has_management() { ahead } else { behind });
    (difference.unsigned_abs() >= CLOCK_OFFSET_NS)
        .then(|| object.finding(map, "clock-differs", what, &remedy))
}

const CLOCK_REMEDY: &str = "run a time service such as `chronyd` on all hosts; `chronyc tracking` \
                            shows its state. Metadata targets set the times of files by the clocks \
                            of their hosts, so programs such as `make` and backups may take old \
                            files for new ones, and log lines of several hosts are in a wrong \
                            order. Leases and locks do not use this clock";

#[cfg(test)]
mod tests;
