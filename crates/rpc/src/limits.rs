//! Limits of connections, each with its reason.

use std::time::Duration;

/// Longest duration of a handshake: a slower peer is dead or not a node of the cluster.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time until a host accepts a connection; a slower host counts as dead.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum length of a handshake body: an unauthenticated peer must not cause larger allocations.
pub(crate) const MAX_HANDSHAKE_BODY_BYTES: u32 = 4096;
/// Size of the read-ahead buffer of a connection: it holds hundreds of metadata requests.
pub(crate) const READ_AHEAD_BYTES: usize = 64 << 10;
/// Maximum bytes of replies that wait to be sent to one peer. Above this limit, no further request
/// of the peer is read.
pub(crate) const MAX_OUTBOX_BYTES: usize = 64 << 20;
/// Pause before the first retry; it doubles with each further retry.
pub(crate) const FIRST_BACKOFF: Duration = Duration::from_millis(2);
/// Longest pause before a retry to a target, and so the longest delay until a restarted server gets
/// its next request.
pub(crate) const LONGEST_BACKOFF: Duration = Duration::from_millis(100);
/// Longest pause before a retry to management, which may be down for a long time while many nodes
/// retry.
pub(crate) const LONGEST_MANAGEMENT_BACKOFF: Duration = Duration::from_secs(1);
/// Pause of a client before its first retry to register: hundreds of clients may wait for one
/// management process.
pub(crate) const CLIENT_JOIN_PAUSE: Duration = Duration::from_millis(250);
/// Longest wait for a reply of management before the request is repeated. A reply needs only memory
/// accesses and one small sync.
pub(crate) const MANAGEMENT_DEADLINE: Duration = Duration::from_secs(5);
/// Duration of a long poll: management holds a node's request for a newer map for almost this time.
pub(crate) const LONG_POLL: Duration = Duration::from_secs(30);
/// Time for which a starting service with a cached map waits for management. A running management
/// process replies with a newer map within milliseconds.
pub(crate) const TIMEOUT_WITH_CACHED_MAP: Duration = Duration::from_secs(1);
/// Maximum connections of a link measurement: each has a message in memory at both ends.
pub(crate) const MAX_LINK_STREAMS: u16 = 64;
/// Maximum bytes of one link measurement: enough for more than a minute on the fastest networks.
pub(crate) const MAX_LINK_BYTES: u64 = 1 << 40;
/// Maximum round trips of a link measurement, whose times are stored one by one.
pub(crate) const MAX_ROUND_TRIPS: u64 = 10_000;
/// Longest wait for the reply to one message of a measurement.
pub(crate) const LINK_PATIENCE: Duration = Duration::from_secs(60);
/// Interval at which a measurement asks its caller whether to continue.
pub(crate) const LINK_LOOK: Duration = Duration::from_millis(100);
