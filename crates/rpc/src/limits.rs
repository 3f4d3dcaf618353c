//! Limits of connections, each with its reason.

use std::time::Duration;

/// A peer that doesn't finish its handshake by then is not one of ours.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// A host that doesn't accept a connection by then is taken for dead.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest body in a handshake: a stranger must not make us allocate more.
pub(crate) const MAX_HANDSHAKE_BODY_BYTES: u32 = 4096;
/// What is read ahead of a connection at once. Holds hundreds of metadata requests.
pub(crate) const READ_AHEAD_BYTES: usize = 64 << 10;
/// Replies that wait to be sent; above it no more requests are read from the peer.
pub(crate) const MAX_OUTBOX_BYTES: usize = 64 << 20;
/// First pause before a retry.
pub(crate) const FIRST_BACKOFF: Duration = Duration::from_millis(2);
/// Longest pause before a retry: a restarted server is found again this soon.
pub(crate) const LONGEST_BACKOFF: Duration = Duration::from_millis(100);
/// Longest pause before a retry at management: it may be away for long, and many nodes ask.
pub(crate) const LONGEST_MANAGEMENT_BACKOFF: Duration = Duration::from_secs(1);
/// Pause of a client before it tries again to register, at first: hundreds of clients may wait for
/// one management.
pub(crate) const CLIENT_JOIN_PAUSE: Duration = Duration::from_millis(250);
/// Management answers from memory and one small sync; what takes longer is repeated.
pub(crate) const MANAGEMENT_DEADLINE: Duration = Duration::from_secs(5);
/// How long a node waits at management for a newer map before it asks again.
pub(crate) const LONG_POLL: Duration = Duration::from_secs(30);
/// How long a service that could begin with the map of before waits for management first: one that
/// runs answers within milliseconds, and what it says is newer.
pub(crate) const TIMEOUT_WITH_CACHED_MAP: Duration = Duration::from_secs(1);
/// Connections by which a link is measured: each holds a message at both ends.
pub(crate) const MAX_LINK_STREAMS: u16 = 64;
/// Bytes that go over a link in one measurement: more than a minute of the quickest networks.
pub(crate) const MAX_LINK_BYTES: u64 = 1 << 40;
/// Round trips that are timed one by one, and kept.
pub(crate) const MAX_ROUND_TRIPS: u64 = 10_000;
/// Time for the answer to one message of a measurement.
pub(crate) const LINK_PATIENCE: Duration = Duration::from_secs(60);
/// How often it is looked whether a measurement is to go on.
pub(crate) const LINK_LOOK: Duration = Duration::from_millis(100);
