//! The bounds of the state space: the number of members, of operations and of faults.

/// The bounds of one check.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Number of members of the group, 2 or 3.
    pub members: usize,
    /// Last epoch of the group. Each change of the group begins a new epoch.
    pub epochs: u8,
    /// Whether an administrator may make another member the primary.
    pub moves: bool,
    /// Whether the model has leases. Without leases, a deposed primary replies until it receives
    /// the new cluster map, and the checker checks only the properties of records. The model then
    /// has far fewer states.
    pub leases: bool,
    /// Maximum numbers of operations and faults.
    pub faults: Faults,
}

/// Numbers of operations and faults that may still happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Faults {
    /// Records that primaries append for clients. Each start of a primary appends one more record.
    pub writes: u8,
    /// Power losses, each of one host.
    pub power_losses: u8,
    /// Kills, each of one process.
    pub kills: u8,
    /// Kills after which the next process starts with an older cluster map.
    pub old_maps: u8,
    /// Messages between members that arrive late or never.
    pub late_messages: u8,
    /// Requests to take over or to drop a member that management carries out late, or never.
    pub late_changes: u8,
}
