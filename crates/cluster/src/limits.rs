//! Limits and thresholds of the cluster's decisions, each with its reason.

/// A silent node is `Offline` after this many leases; at one it is `ProbablyOffline`. Two leases
/// between them leave time for a service that restarts, which is the usual reason for silence.
pub const LEASES_UNTIL_OFFLINE: u64 = 3;

/// Management removes a client that sends no heartbeat for this many leases; then no server serves
/// it any more. Metadata has a dead client removed after a single lease, so this limit is for
/// clients without a session. A client that only cannot reach management continues until then.
pub const LEASES_UNTIL_REMOVED: u64 = 60;

/// Highest feature level of the records that this program writes.
pub const NEWEST_FEATURE_LEVEL: u32 = 1;

/// Most nodes other than clients: the map with all of their targets must fit into one message.
pub const MAX_SERVERS: usize = 4_096;
/// Most client nodes at a time: ten times the number that the project promises, to bound the map.
pub const MAX_CLIENTS: usize = 100_000;
/// Most targets of one node; each has a thread of its own.
pub const MAX_TARGETS_PER_NODE: usize = 256;
/// Most addresses of one node.
pub const MAX_ADDRESSES: usize = 16;
/// Longest name, address, path or version text of a node or target, in bytes.
pub const MAX_TEXT_BYTES: usize = 1_024;

/// Shortest lease: a busy host would miss a shorter one although it works.
pub const MIN_LEASE_MS: u32 = 200;
/// Longest lease: a dead client blocks others for this time.
pub const MAX_LEASE_MS: u32 = 600_000;
/// Largest setting of the number of first bytes of a new file that lie on one target.
pub const MAX_STRIPE_FROM: u64 = 1 << 40;
/// Shortest time between heartbeats.
pub const MIN_HEARTBEAT_MS: u32 = 20;
/// Shortest time between searches for chunk files without an inode.
pub const MIN_CLEANUP_INTERVAL_MS: u32 = 100;
/// Longest time between searches for chunk files without an inode, 30 days: such files take space
/// for this time.
pub const MAX_CLEANUP_INTERVAL_MS: u32 = 2_592_000_000;

/// A target is `Low` below this share of free bytes or inodes, in percent.
pub const LOW_PERCENT: u64 = 10;
/// A target is `Emergency` below this share of free bytes or inodes, in percent.
pub const EMERGENCY_PERCENT: u64 = 2;
/// With this many free bytes a target is not `Low`, however large it is: ten percent of a large
/// disk array is enough for months.
pub const LOW_CAP_BYTES: u64 = 512 << 30;
/// With this many free bytes a target is not in `Emergency`.
pub const EMERGENCY_CAP_BYTES: u64 = 20 << 30;
/// With this many free inodes a target is not `Low`.
pub const LOW_CAP_INODES: u64 = 10_000_000;
/// With this many free inodes a target is not in `Emergency`.
pub const EMERGENCY_CAP_INODES: u64 = 1_000_000;

/// Management publishes a new map if free space changes by more than this share of a target's size.
/// Smaller changes affect no decision, and each new map goes to every client.
pub const NOTABLE_CHANGE_PERCENT: u64 = 1;
