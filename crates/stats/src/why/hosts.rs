//! The state of the hosts of services: memory, page cache and clock. Also the rules about them.
//!
//! A host that lacks memory, or whose page cache is full, makes its services slow, so these rules
//! find causes of slowness. A wrong clock makes nothing slow, so [`clock_findings`] is separate.
//!
//! # Clocks of different hosts
//! All services of a round reply at about the same time, so the rule compares the clocks in their
//! replies with the median. A late reply makes a clock seem to differ. Therefore a clock counts as
//! different only if it differs in every round of the time span, and by more than a reply may take.

use super::cause::Cause;
use super::comparison::median;
use super::evidence::Evidence;
use super::names;
use crate::change::seconds;
use crate::{Round, ServiceFigures};
use skep_cluster::problems::Severity;
use skep_types::text::escape_controls;
use skep_types::{ClusterMap, Node, NodeKind};
use std::collections::BTreeMap;

/// Minimum share of the dirty page cache in the kernel's limit, in percent, at which the cache
/// counts as full. The kernel begins to delay programs that write at three quarters of the limit,
/// and holds them at about seven eighths (`mm/page-writeback.c` of Linux).
const DIRTY_PERCENT: u64 = 80;
/// Minimum share of the time, in percent, in which all running programs of a host waited for memory
/// before the host counts as short of memory.
const STALLED_PERCENT: u64 = 10;
/// Minimum difference of a clock from those of the other hosts. It is the longest time that
/// `skep health check` and the monitor wait for a reply.
const CLOCK_OFFSET_NS: u64 = 2_000_000_000;

/// Prefix of the names of metrics of hosts.
const PREFIX: &str = "skep_host_";

/// The state of the host of one service in a time span.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostEvidence {
    /// Length of the time span.
    pub span_ns: u64,
    /// Time in which all running programs of the host waited for memory.
    pub memory_stalled_ns: u64,
    /// Lowest share of the dirty page cache in the kernel's limit, in percent.
    pub dirty_percent: Option<u64>,
    /// Smallest difference of the host's clock from the median of all clocks. Negative if the clock
    /// is behind.
    pub clock_offset_ns: Option<i64>,
    /// Whether a time service adjusts the clock, according to the newest reply.
    pub is_synchronised: Option<bool>,
}

impl HostEvidence {
    /// Adds the evidence of a later time span.
    pub(super) fn add(&mut self, later: &Self) {
        let both = |one: Option<u64>, other: Option<u64>| match (one, other) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        self.span_ns = self.span_ns.saturating_add(later.span_ns);
        self.memory_stalled_ns = self.memory_stalled_ns.saturating_add(later.memory_stalled_ns);
        self.dirty_percent = both(self.dirty_percent, later.dirty_percent);
        let offsets = [self.clock_offset_ns, later.clock_offset_ns];
        self.clock_offset_ns = smallest(offsets.into_iter().flatten());
        self.is_synchronised = later.is_synchronised.or(self.is_synchronised);
    }
}

/// Returns the offset with the smallest absolute value.
fn smallest(offsets: impl Iterator<Item = i64>) -> Option<i64> {
    offsets.min_by_key(|offset| offset.unsigned_abs())
}

/// The values about the host in one reply.
#[derive(Debug, Default)]
struct Reading {
    memory_stalled_ns: Option<u64>,
    dirty_percent: Option<u64>,
    clock_ns: Option<u64>,
    is_synchronised: Option<bool>,
}

impl Reading {
    fn of(figures: &ServiceFigures) -> Self {
        let mut reading = Self::default();
        // A reply has its series in the order of their names, and thousands of them.
        let all = &figures.statistics.series;
        let first = all.partition_point(|series| series.metric.as_str() < PREFIX);
        let of_host = all[first..].iter().take_while(|series| series.metric.starts_with(PREFIX));
        for series in of_host {
            let value = u64::try_from(series.value).ok();
            match series.metric.as_str() {
                "skep_host_pressure_seconds" => {
                    let is = |name: &str, value: &str| {
                        series.labels.iter().any(|label| label.0 == name && label.1 == value)
                    };
                    if is("resource", "memory") && is("stalled", "all") {
                        reading.memory_stalled_ns = value;
                    }
                }
                // The value is in millionths.
                "skep_host_memory_dirty_ratio" => {
                    reading.dirty_percent = value.map(|it| it / 10_000);
                }
                "skep_host_clock_seconds" => reading.clock_ns = value,
                "skep_host_clock_synchronised" => {
                    reading.is_synchronised = value.map(|it| it == 1);
                }
                _ => {}
            }
        }
        reading
    }
}

/// Returns the states of the hosts between an earlier reply of each service and the later round
/// `now`, by node id of the service. Omits a service that has no earlier reply or has restarted.
pub(super) fn of_round<'a>(
    before: impl Fn(u32) -> Option<&'a ServiceFigures>,
    now: &Round,
) -> BTreeMap<u32, HostEvidence> {
    let readings: Vec<_> = now.iter().map(|figures| (figures, Reading::of(figures))).collect();
    let middle = median(readings.iter().filter_map(|(_, reading)| reading.clock_ns).collect());
    let mut hosts = BTreeMap::new();
    for (figures, reading) in readings {
        let earlier = before(figures.node);
        let Some(seconds) = seconds(earlier, figures) else { continue };
        let stalled_before = earlier.and_then(|it| Reading::of(it).memory_stalled_ns);
        let stalled = reading.memory_stalled_ns.zip(stalled_before);
        let offset = reading.clock_ns.zip(middle).map(|(own, middle)| own as i64 - middle as i64);
        let evidence = HostEvidence {
            span_ns: (seconds * 1e9) as u64,
            memory_stalled_ns: stalled.map_or(0, |(now, before)| now.saturating_sub(before)),
            dirty_percent: reading.dirty_percent,
            clock_offset_ns: offset,
            is_synchronised: reading.is_synchronised,
        };
        hosts.insert(figures.node, evidence);
    }
    hosts
}

/// Returns the host in the first address of a service, as the object of a finding: `host 10.0.0.3`.
pub fn host_of(node: &Node) -> Option<String> {
    let (host, _) = node.addresses.first()?.rsplit_once(':')?;
    Some(format!("host {}", host.trim_start_matches('[').trim_end_matches(']')))
}

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

    fn finding(&self, map: &ClusterMap, rule: &'static str, what: String, remedy: &str) -> Cause {
        let is_here = |node| self.services.iter().any(|service| service.id == node);
        let targets = map.targets.iter().filter(|target| is_here(target.node));
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
/// host report the same state, so the evidence of the first one counts. For the clock, the smallest
/// difference counts, because the replies of the other services may be late.
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
    hosts(evidence, map)
        .iter()
        .flat_map(|host| [page_cache(host, map), memory(host, map)])
        .flatten()
        .collect()
}

fn page_cache(host: &Host<'_>, map: &ClusterMap) -> Option<Cause> {
    let dirty = host.evidence.dirty_percent.filter(|dirty| *dirty >= DIRTY_PERCENT)?;
    let what = format!(
        "the page cache of {} has {dirty} % of the unwritten data that its kernel allows",
        host.described()
    );
    let remedy = "all programs on this host that write files wait for its disks, services of Skep \
                  included: look for a slow disk and for programs that write much (`iostat -x 1`, \
                  `pidstat -d 1`), and move such programs to other hosts. A higher limit \
                  (`vm.dirty_bytes`) only delays the wait";
    Some(host.finding(map, "page-cache-full", what, remedy))
}

fn memory(host: &Host<'_>, map: &ClusterMap) -> Option<Cause> {
    let stalled = names::percent(host.evidence.memory_stalled_ns, host.evidence.span_ns);
    let is_short = host.evidence.span_ns > 0 && stalled >= STALLED_PERCENT;
    let what = format!(
        "{} lacks memory: all its running programs waited for memory for {stalled} % of the time",
        host.described()
    );
    let remedy = "requests to the services on this host wait until the kernel has reclaimed \
                  memory: `top -o %MEM` shows the programs with most memory; end or move them, or \
                  add memory";
    is_short.then(|| host.finding(map, "memory-pressure", what, remedy))
}

/// Returns the hosts whose clocks differ from those of the other hosts, and the hosts without a
/// time service in a cluster whose other hosts have one.
pub fn clock_findings(evidence: &Evidence, map: &ClusterMap) -> Vec<Cause> {
    let hosts = hosts(evidence, map);
    let others = match hosts.len() {
        2 => "that of the other host",
        _ => "those of most other hosts",
    };
    let kept = hosts.iter().filter(|host| host.evidence.is_synchronised == Some(true)).count();
    let mut found = Vec::new();
    for host in &hosts {
        let offset = host.evidence.clock_offset_ns.unwrap_or(0);
        if offset.unsigned_abs() >= CLOCK_OFFSET_NS {
            let what = format!(
                "the clock of {} is {} {} {others}",
                host.described(),
                names::time(offset.unsigned_abs()),
                if offset < 0 { "behind" } else { "ahead of" }
            );
            found.push(host.finding(map, "clock-differs", what, CLOCK_REMEDY));
        } else if host.evidence.is_synchronised == Some(false) && kept > 0 {
            let what = format!(
                "no time service adjusts the clock of {}, as its kernel reports, but one adjusts \
                 the clocks of {kept} of {} hosts",
                host.described(),
                hosts.len()
            );
            found.push(host.finding(map, "clock-unsynchronised", what, CLOCK_REMEDY));
        }
    }
    found
}

const CLOCK_REMEDY: &str = "run a time service such as `chronyd` on all hosts; `chronyc tracking` \
                            shows its state. Metadata targets set the times of files by the clocks \
                            of their hosts, so programs such as `make` and backups may take old \
                            files for new ones, and log lines of several hosts are in a wrong \
                            order. Leases and locks do not use this clock";

#[cfg(test)]
mod tests;
