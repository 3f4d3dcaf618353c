//! The state of the hosts of services: memory, page cache and clock, computed from two replies of
//! each service. The module does not judge the state (`host_causes` does).

use super::median::median;
use crate::change::{seconds, series_with};
use crate::{Round, ServiceFigures};
use skep_types::Node;
use std::collections::BTreeMap;

/// Prefix of the names of all host metrics.
const PREFIX: &str = "skep_host_";

/// The state of the host of one service in a time span.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostEvidence {
    /// Length of the time span.
    pub span_ns: u64,
    /// Time in which all running programs of the host waited for memory.
    pub memory_stalled_ns: u64,
    /// Lowest size of the dirty page cache in the time span, in percent of the kernel's limit.
    pub dirty_percent: Option<u64>,
    /// Smallest difference of the host's clock from the median of the clocks that all services
    /// report. Negative if the clock is behind.
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
pub(super) fn smallest(offsets: impl Iterator<Item = i64>) -> Option<i64> {
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
        for series in series_with(figures, PREFIX) {
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
                // The value of this metric is in millionths, so 10,000 are one percent.
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
    let middle = median(readings.iter().filter_map(|(_, it)| it.clock_ns).collect());
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

/// Returns the host in the first address of a service: `10.0.0.3`.
pub fn host_address(node: &Node) -> Option<&str> {
    let (host, _) = node.addresses.first()?.rsplit_once(':')?;
    Some(host.trim_start_matches('[').trim_end_matches(']'))
}

/// Returns the host in the first address of a service, as the object of a finding: `host 10.0.0.3`.
pub fn host_of(node: &Node) -> Option<String> {
    host_address(node).map(|host| format!("host {host}"))
}
