//! Limits of connections, each with its reason.

use std::time::Duration;

/// Time limit for a handshake. A slower peer is dead or not a node of the cluster.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time until a host accepts a connection. A slower host counts as dead, and the caller
/// begins a new attempt. A lost packet makes one attempt fail, because the kernel resends the
/// packet only after 1 s.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time after which the caller also tries the next address of a host, while the attempt at the
/// first address continues.
pub(crate) const ADDRESS_STAGGER: Duration = Duration::from_millis(100);
/// Time after which a node also tries the next address of management. A handshake with a busy
/// process takes less time.
pub(crate) const MANAGEMENT_STAGGER: Duration = Duration::from_millis(300);
/// Pause before a node sends a request to the next member of management, if no member names the
/// leader, or if members name different leaders. An election takes more than 600 ms.
pub(crate) const LEADER_PAUSE: Duration = Duration::from_millis(100);
/// Longest wait for the reply to a heartbeat. Management needs only memory accesses for the reply,
/// so a process that needs more time is stopped or unreachable. The sender then tries the other
/// addresses.
pub(crate) const HEARTBEAT_DEADLINE: Duration = Duration::from_secs(1);
/// Minimum time between two heartbeats that targets request in addition to the regular heartbeats.
/// This limit bounds the load on management if programs continue to write to full targets.
pub(crate) const EARLY_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum length of a handshake body. An unauthenticated peer must not cause larger allocations.
pub(crate) const MAX_HANDSHAKE_BODY_BYTES: u32 = 4096;
/// Size of the read-ahead buffer of a connection whose peer has not authenticated yet. A whole
/// handshake body fits into this buffer.
pub(crate) const HANDSHAKE_BUFFER_BYTES: usize = 4096;
/// Maximum number of handshakes that a process runs concurrently. Each handshake needs a file
/// descriptor and about 8 KiB of memory.
pub(crate) const MAX_HANDSHAKES: usize = 1024;
/// Maximum number of handshakes that a process runs concurrently with peers at one address. If
/// hundreds of threads of a host connect to the same service at the same time, some of these
/// threads have to retry.
pub(crate) const MAX_HANDSHAKES_PER_ADDRESS: usize = 256;
/// Time after which a process may end a handshake so that a new handshake can begin. A node of the
/// cluster needs a few milliseconds for a handshake.
pub(crate) const HANDSHAKE_GRACE: Duration = Duration::from_millis(250);
/// Divisor of the process's limit of file descriptors. Connections use at most this limit divided
/// by `CONNECTIONS_SHARE`. The rest stays free for files.
pub(crate) const CONNECTIONS_SHARE: u64 = 2;
/// A process ends idle connections of its clients if it has more than this number of tenths of its
/// maximum number of connections.
pub(crate) const FEW_CONNECTIONS_LEFT_TENTHS: u64 = 9;
/// Minimum interval between two requests to the threads of a process to end idle connections. A
/// thread needs a few milliseconds to search tens of thousands of connections for idle connections.
pub(crate) const IDLE_PEER_INTERVAL: Duration = Duration::from_secs(1);
/// Time without a request before a process that needs connections may end the connection of a
/// client. This time is longer than the usual intervals between heartbeats, so that clients do not
/// have to connect again for each heartbeat.
pub(crate) const IDLE_PEER_AGE: Duration = Duration::from_secs(30);
/// A thread ends at most one in `IDLE_PEER_SHARE` of its connections at a time. The end of an
/// eighth brings the process well below [`FEW_CONNECTIONS_LEFT_TENTHS`] of its limit. An eighth is
/// also so few that the clients do not all connect again at the same time.
pub(crate) const IDLE_PEER_SHARE: usize = 8;
/// Minimum interval between two log lines of a process that ends idle connections.
pub(crate) const FEW_CONNECTIONS_LOG_INTERVAL: Duration = Duration::from_secs(600);
/// Minimum interval between two log lines about refused connections of one host. A mount with a
/// wrong token connects again each second.
pub(crate) const REFUSAL_LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of hosts whose refused connections have lines of their own. All further hosts
/// share one line.
pub(crate) const MAX_REFUSED_HOSTS: usize = 64;
/// Minimum interval between two log lines of a member about peers that refuse its handshake.
pub(crate) const COMPLAINT_INTERVAL: Duration = Duration::from_secs(5);
/// Time after which a connection ends if it still receives the bulk data of a reply whose call was
/// dropped. The peer may be stopped in the middle of the reply, and a killed program waits for its
/// buffer until the connection ends.
pub(crate) const ABANDONED_PATIENCE: Duration = Duration::from_secs(1);
/// Maximum length, in characters, of a peer's text in an error.
pub(crate) const MAX_PEER_TEXT: usize = 1000;
/// Size of the read-ahead buffer of a connection on which many frames arrive together. The buffer
/// holds hundreds of metadata requests.
pub(crate) const READ_AHEAD_BYTES: usize = 64 << 10;
/// Size of the read-ahead buffer of every other connection. One receive into this buffer can read a
/// whole frame with 4 KiB of data.
pub(crate) const SHORT_READ_AHEAD_BYTES: usize = 8 << 10;
/// Maximum number of buffers of [`READ_AHEAD_BYTES`] that a thread has: 64 MiB. Above this limit, a
/// connection on which many frames arrive together needs more receives.
pub(crate) const MAX_LONG_BUFFERS: usize = 1024;
/// Number of receives in a row with at most [`SHORT_READ_AHEAD_BYTES`] after which a connection
/// gets the smaller buffer again. With a higher number, unused long buffers cost memory; with a
/// lower number, each burst of frames costs an additional receive.
pub(crate) const SHORT_RECEIVES: u32 = 16;
/// After a frame with at least this number of bytes of bulk data, the receiver reads only
/// [`BULK_READ_AHEAD_BYTES`] ahead. Copying a full read-ahead buffer would be expensive compared
/// with the receive of such a frame.
pub(crate) const BULK_BYTES: u32 = 64 << 10;
/// Bytes that the receiver reads ahead after a frame with much bulk data. The next header and the
/// checksums of 1 MiB fit into this length, so that one receive reads both.
pub(crate) const BULK_READ_AHEAD_BYTES: usize = 4096;
/// Time without a request after which a client ends a connection to a target. The time is long
/// enough that the next request seldom needs a new connection, which takes three round trips. The
/// time is short enough that the connections of a job end soon after the job.
pub(crate) const IDLE_CONNECTION_LIFETIME: Duration = Duration::from_secs(300);
/// Longest interval at which a client's thread checks for idle connections. The interval is random,
/// and at least half of this time, so that the connections of many threads end at different times.
/// A connection ends at most this time after its lifetime.
pub(crate) const IDLE_LOOK_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum bytes of replies that wait to be sent to one peer. Above this limit, the server reads no
/// further request of the peer.
pub(crate) const MAX_OUTBOX_BYTES: usize = 64 << 20;
/// Pause before the first retry. The pause doubles with each further retry.
pub(crate) const FIRST_BACKOFF: Duration = Duration::from_millis(2);
/// Longest pause before a retry to a target, and so the longest delay until a restarted server gets
/// its next request.
pub(crate) const LONGEST_BACKOFF: Duration = Duration::from_millis(100);
/// Longest pause before a retry to management, which may be down for a long time while many nodes
/// retry.
pub(crate) const LONGEST_MANAGEMENT_BACKOFF: Duration = Duration::from_secs(1);
/// Pause of a client before its first retry to register. Hundreds of clients may wait for one
/// management process.
pub(crate) const CLIENT_JOIN_PAUSE: Duration = Duration::from_millis(250);
/// Least time between two registrations of a removed client under a new id. Management keeps each
/// id for at least one lease, so a client that is removed repeatedly must not exhaust the ids.
pub(crate) const LEAST_TIME_OF_AN_ID: Duration = Duration::from_secs(1);
/// Longest wait for a reply of management before the sender retries the request. A reply needs only
/// memory accesses and one small sync.
pub(crate) const MANAGEMENT_DEADLINE: Duration = Duration::from_secs(5);
/// A process sends no request to management if less than this time is left for the reply. Otherwise
/// the error would report that management has not replied within this short time, and would not
/// report that connecting took too long.
pub(crate) const SHORTEST_REPLY: Duration = Duration::from_millis(50);
/// Pause between two reports of a lost target that management has not marked as lost. In this time,
/// management gets several heartbeats of the server with the target.
pub(crate) const LOSS_REPORT_INTERVAL: Duration = Duration::from_secs(5);
/// Duration of a long poll. If management has no newer map, it delays its reply to a node's request
/// for almost this time.
pub(crate) const LONG_POLL: Duration = Duration::from_secs(30);
/// Time for which a starting service waits for management before it uses its cached map. A running
/// management process replies with a newer map within milliseconds.
pub(crate) const TIMEOUT_WITH_CACHED_MAP: Duration = Duration::from_secs(1);
/// Maximum number of connections of a link measurement. Each connection has one message in memory
/// at both ends.
pub(crate) const MAX_LINK_STREAMS: u16 = 64;
/// Maximum bytes of one link measurement: enough for more than a minute on the fastest networks.
pub(crate) const MAX_LINK_BYTES: u64 = 1 << 40;
/// Maximum number of round trips in a link measurement. The measurement stores the time of each
/// round trip.
pub(crate) const MAX_ROUND_TRIPS: u64 = 10_000;
/// Longest wait for the reply to one message of a link measurement.
pub(crate) const LINK_PATIENCE: Duration = Duration::from_secs(60);
/// Interval at which a link measurement asks its caller whether to continue.
pub(crate) const LINK_LOOK: Duration = Duration::from_millis(100);
