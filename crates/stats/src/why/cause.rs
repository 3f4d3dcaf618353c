//! The type of a cause, and the thresholds of the rules that find causes (`causes`).

use skep_cluster::problems::Severity;

/// Thresholds above which a target counts as slow. The settings of the monitor contain these
/// thresholds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thresholds {
    /// A target is slow if its requests take at least this many times as long as requests to its
    /// peers.
    pub slow_factor: u64,
    /// Minimum mean request time of a slow target. Differences between shorter times are random.
    pub slow_from_ns: u64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self { slow_factor: 4, slow_from_ns: 5_000_000 }
    }
}

/// A cause of slowness.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// Name of the rule, such as `target-slow`.
    pub rule: &'static str,
    /// How much the cause hurts users.
    pub severity: Severity,
    /// The object that causes the slowness: `t7` for a target, `n2` for a node, `host 10.0.0.3`,
    /// `user 1000`, a directory, or `management`.
    pub object: String,
    /// The targets whose requests are slow because of the cause. An empty list means all targets.
    pub targets: Vec<u32>,
    /// The client that is the cause, or the only client whose requests are slow because of the
    /// cause.
    pub client: Option<u32>,
    /// Whether the cause ended within the time span of the evidence. Such a cause explains why
    /// operations were slow, but it is not a problem any more.
    pub is_over: bool,
    /// A description of the object and of the fact, with numbers.
    pub what: String,
    /// The effect that lasts until the cause is repaired, and the remedy for an administrator.
    pub remedy: String,
}
