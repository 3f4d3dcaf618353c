//! Limits and thresholds of cluster decisions, each with its reason.

use std::time::Duration;

/// Number of leases without a heartbeat after which a node is `Offline`; after one lease it is
/// `ProbablyOffline`. The two leases between these states leave time for a service to restart,
/// which is the usual reason for silence.
pub const LEASES_UNTIL_OFFLINE: u64 = 3;

/// Number of leases without a heartbeat after which management removes a client, so that all
/// servers refuse its requests. If a client has a session, a metadata target asks management after
/// a single lease to remove this client. So the limit is for clients without a session. A client
/// that cannot reach management, but does reach the metadata targets, works until this limit.
pub const LEASES_UNTIL_REMOVED: u64 = 60;

/// Maximum number of evictions of clients that management remembers. Administrators who look for
/// the evictions after a network failure need no more entries. The list takes less than 80 KiB.
pub const MAX_EVICTIONS: usize = 64;

/// Maximum number of nodes other than clients. [`MAX_MAP_BYTES`] may be reached earlier.
pub const MAX_SERVERS: usize = 4_096;
/// Maximum number of clients at a time: ten times the number that Skep is designed for.
/// [`MAX_MAP_BYTES`] may be reached earlier, if the names of clients are long.
pub const MAX_CLIENTS: usize = 100_000;
/// Management refuses a registration that would make the encoded map longer than this number of
/// bytes. Management refuses no other change because of the length of the map, so the map may
/// become a little longer than this limit.
/// Nodes get the map in one message, and a message has at most 16 MiB.
pub const MAX_MAP_BYTES: usize = 14 << 20;
/// Maximum number of targets of one node. Each target has its own thread.
pub const MAX_TARGETS_PER_NODE: usize = 256;
/// Maximum number of members of a group: three members, and a fourth while it replaces another
/// member.
pub const MAX_MEMBERS: usize = 4;
/// Maximum value of the setting `metadata-copies`.
pub const MAX_METADATA_COPIES: u16 = 3;
/// Minimum value of the setting `metadata-copy-rate`. A store of 1 GiB takes five hours at this
/// rate.
pub const MIN_COPY_RATE: u64 = 64 << 10;
/// Maximum value of the setting `metadata-copy-rate`. No network link is that fast.
pub const MAX_COPY_RATE: u64 = 1 << 40;
/// Maximum value of the setting `metadata-log-kept`. If a member lacks more bytes of the log than
/// this number, a copy of the store is faster.
pub const MAX_LOG_KEPT: u64 = 1 << 40;
/// Minimum value of the setting `metadata-lease`. A primary renews its lease twice in this time.
pub const MIN_METADATA_LEASE_MS: u32 = 1_000;
/// Maximum value of the setting `metadata-lease`. If a primary fails, more than one lease passes
/// before its group serves requests again.
pub const MAX_METADATA_LEASE_MS: u32 = 60_000;
/// Minimum value of the setting `metadata-take-over-after`. With this value, a member grants leases
/// of at least [`MIN_METADATA_LEASE_MS`].
pub const MIN_TAKE_OVER_AFTER_MS: u32 = 1_250;
/// Maximum value of the setting `metadata-take-over-after`. With this value, a member grants leases
/// of at least [`MAX_METADATA_LEASE_MS`].
pub const MAX_TAKE_OVER_AFTER_MS: u32 = 75_000;
/// Time that a member of a metadata group waits after the end of the lease that it grants, before
/// it takes over. The member adds the lease divided by [`CLOCK_DRIFT`] to this time. During this
/// wait, the primary completes a batch of requests that it began while the lease was valid.
pub const LEASE_MARGIN: Duration = Duration::from_millis(200);
/// The clock rates of two hosts differ by less than one part in this number, because each clock
/// rate is within 1 % of the true rate.
pub const CLOCK_DRIFT: u32 = 40;
/// Maximum number of addresses of one node.
pub const MAX_ADDRESSES: usize = 16;
/// Maximum length of a name, address, path or version of a node or target, in bytes.
pub const MAX_TEXT_BYTES: usize = 1_024;

/// Number of requests whose outcomes management stores, so that it executes no request a second
/// time. A retry arrives some seconds after the first attempt. In these seconds management executes
/// fewer changes than this number, because each change waits for a sync.
pub const MAX_OUTCOMES: usize = 4_096;

/// Minimum lease. Within a shorter lease, a busy but healthy host might not send a heartbeat.
pub const MIN_LEASE_MS: u32 = 200;
/// Maximum lease. A dead client blocks other clients for one lease.
pub const MAX_LEASE_MS: u32 = 600_000;
/// Maximum value of the setting `stripe-from`.
pub const MAX_STRIPE_FROM: u64 = 1 << 40;
/// Minimum interval between heartbeats.
pub const MIN_HEARTBEAT_MS: u32 = 20;
/// Minimum interval between searches for chunk files without an inode.
pub const MIN_CLEANUP_INTERVAL_MS: u32 = 100;
/// Maximum interval between searches for chunk files without an inode: 30 days. Until a search
/// finds such a file, the file takes up space.
pub const MAX_CLEANUP_INTERVAL_MS: u32 = 2_592_000_000;

/// Maximum value of the settings `low-percent` and `emergency-percent`. With 100, a target would
/// never be `Normal`.
pub const MAX_FREE_PERCENT: u8 = 99;
/// Maximum value of the settings `low-free` and `emergency-free`. Few targets have this size.
pub const MAX_FREE_BYTES: u64 = 1 << 50;
/// Number of free inodes at or above which a target is never `Low`.
pub const LOW_FREE_INODES: u64 = 10_000_000;
/// Number of free inodes at or above which a target is never `Emergency`.
pub const EMERGENCY_FREE_INODES: u64 = 1_000_000;

/// Management publishes a new map if size or free space of a target changes by more than this
/// percentage of its size. Smaller changes affect no decision, and management sends each new map to
/// every client.
pub const NOTABLE_CHANGE_PERCENT: u64 = 1;
