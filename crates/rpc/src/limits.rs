//! Limits of connections, each with its reason.

use std::time::Duration;

/// Time for a handshake: a slower peer is not a node of the cluster, or it is dead.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time in which a host accepts a connection; a slower host counts as dead.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest body in a handshake: an unauthenticated peer must not cause larger allocations.
pub(crate) const MAX_HANDSHAKE_BODY_BYTES: u32 = 4096;
/// Bytes that are read ahead of a connection at once: hundreds of metadata requests.
pub(crate) const READ_AHEAD_BYTES: usize = 64 << 10;
/// Bytes of replies that wait to be sent; above it, no more requests are read from the peer.
pub(crate) const MAX_OUTBOX_BYTES: usize = 64 << 20;
/// First pause before a retry.
pub(crate) const FIRST_BACKOFF: Duration = Duration::from_millis(2);
/// Longest pause before a retry: a restarted server gets its next request this soon.
pub(crate) const LONGEST_BACKOFF: Duration = Duration::from_millis(100);
/// Longest pause before a retry at management: it may be away for long, and many nodes ask.
pub(crate) const LONGEST_MANAGEMENT_BACKOFF: Duration = Duration::from_secs(1);
/// Pause of a client before it tries again to register, at first: hundreds of clients may wait for
/// one management.
pub(crate) const CLIENT_JOIN_PAUSE: Duration = Duration::from_millis(250);
/// Time for management's reply, which needs memory and one small sync; then the request is
/// repeated.
pub(crate) const MANAGEMENT_DEADLINE: Duration = Duration::from_secs(5);
/// Time for which management holds a node's request for a newer map.
pub(crate) const LONG_POLL: Duration = Duration::from_secs(30);
/// Time for which a service with a cached map waits for management at its start: a running
/// management replies within milliseconds, with a newer map.
pub(crate) const TIMEOUT_WITH_CACHED_MAP: Duration = Duration::from_secs(1);
/// Connections of a link measurement: each has a message in memory at both ends.
pub(crate) const MAX_LINK_STREAMS: u16 = 64;
/// Bytes of one link measurement: more than a minute on the fastest networks.
pub(crate) const MAX_LINK_BYTES: u64 = 1 << 40;
/// Round trips whose times are stored one by one.
pub(crate) const MAX_ROUND_TRIPS: u64 = 10_000;
/// Time for the reply to one message of a measurement.
pub(crate) const LINK_PATIENCE: Duration = Duration::from_secs(60);
/// Interval of the check whether a measurement shall continue.
pub(crate) const LINK_LOOK: Duration = Duration::from_millis(100);
