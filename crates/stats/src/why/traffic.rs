//! The amount of data that clients and targets have moved, in short intervals.
//!
//! The speed of a link is the number of bytes per second *of the time in which data moved*. If a
//! client has several transfers at the same time, the service counts that time once
//! (`skep_load_moving_seconds`). So a link does not seem slow only because the client's own
//! transfers wait for each other. Intervals are stored separately, so that a rule can require that
//! a link is slow in several intervals.
//!
//! The module does not judge links (`links` does).

use std::collections::BTreeMap;

const MIB: u64 = 1 << 20;
/// Maximum number of intervals. If there are more intervals, adjacent intervals are merged in
/// pairs, so that the evidence of several minutes stays small.
pub(super) const MAX_INTERVALS: usize = 8;

/// The data that moved between a group of clients and a group of targets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes of file data that were written and read.
    pub bytes: u64,
    /// Time in which data moved. Simultaneous transfers count once.
    pub moving_ns: u64,
}

impl Traffic {
    /// Adds the traffic of a later interval.
    pub(super) fn add_later(&mut self, later: Self) {
        self.bytes = self.bytes.saturating_add(later.bytes);
        self.moving_ns = self.moving_ns.saturating_add(later.moving_ns);
    }

    /// Adds the traffic of another target or client in the same interval. The transfers of the two
    /// targets or clients may overlap or may follow each other. This function assumes that the
    /// transfers overlap, so the computed rate is never lower than the real rate.
    pub(super) fn add_beside(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.moving_ns = self.moving_ns.max(other.moving_ns);
    }

    pub(super) fn ns_per_mib(&self) -> u64 {
        let ns = u128::from(self.moving_ns) * u128::from(MIB) / u128::from(self.bytes.max(1));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    pub(super) fn bytes_per_second(&self) -> u64 {
        let rate = u128::from(self.bytes) * 1_000_000_000 / u128::from(self.moving_ns.max(1));
        u64::try_from(rate).unwrap_or(u64::MAX)
    }
}

/// The traffic of one interval, by target id and client id.
pub type Interval = BTreeMap<(u32, u32), Traffic>;

/// Merges adjacent intervals until at most [`MAX_INTERVALS`] remain.
pub(super) fn bound(intervals: &mut Vec<Interval>) {
    while intervals.len() > MAX_INTERVALS {
        let merge = |pair: &[Interval]| {
            let mut merged = pair[0].clone();
            for (key, traffic) in pair.iter().skip(1).flatten() {
                merged.entry(*key).or_default().add_later(*traffic);
            }
            merged
        };
        *intervals = intervals.chunks(2).map(merge).collect();
    }
}
