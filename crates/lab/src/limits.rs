//! The limits of labs, each with the reason for its value.

use std::time::Duration;

/// Maximum number of servers, and maximum number of clients. Each of these hosts needs a network
/// namespace, a pair of interfaces, and one or two processes. A bridge accepts at most 1023
/// interfaces.
pub(crate) const MAX_HOSTS: u16 = 250;
/// Maximum number of storage targets of one server. Each target needs a thread.
pub(crate) const MAX_TARGETS: u16 = 64;
/// Maximum number of metadata hosts. Like a server, each metadata host needs a network namespace, a
/// link and a process.
pub(crate) const MAX_METADATA_SERVERS: u16 = 64;
/// Maximum number of metadata targets of one metadata host. Each target needs a thread.
pub(crate) const MAX_METADATA_TARGETS: u16 = 64;
/// Maximum length in bytes of a lab's name. The name is part of the names of network namespaces and
/// directories.
pub(crate) const MAX_NAME: usize = 16;
/// Minimum rate of a link or a storage target, in bytes per second. At lower rates, protocol
/// messages would take a notable share of the rate, and requests of 1 MiB would exceed the timeouts
/// of clients.
pub(crate) const MIN_RATE: u64 = 125_000;
/// Maximum rate of a link or a storage target, in bytes per second. The limit comes from the token
/// bucket of the kernel.
pub(crate) const MAX_RATE: u64 = 12_500_000_000;
/// Maximum delay of a packet. With this delay, a round trip is still shorter than the timeout of
/// heartbeats.
pub(crate) const MAX_DELAY: Duration = Duration::from_millis(500);
/// Maximum size in bytes of a network frame. Large frames need less CPU time for each byte, and
/// leave 99.3 % of a link's rate to data.
pub(crate) const MTU: u32 = 9000;
/// Burst of a link, which is the amount of data that the link may send without a delay after a
/// pause. The constant states the burst as the time that the link needs for this data at its rate.
/// The burst is longer than the usual delay of a timer, which is a few milliseconds. So a late
/// timer does not lower the rate. The burst is too short to change the duration of a transfer.
pub(crate) const BURST: Duration = Duration::from_millis(5);
/// Minimum burst of a link, in frames. With a smaller burst, the link would never send a frame.
pub(crate) const MIN_BURST_FRAMES: u32 = 2;
/// Maximum number of bytes in the queue in front of a link. The length exceeds the sum of the TCP
/// windows of all connections. So the queue never drops a packet, as in a network with flow
/// control, and retransmissions take no part of the rate.
pub(crate) const QUEUE_BYTES: u32 = 64 << 20;
/// Maximum number of packets in the queue of a link with a delay.
pub(crate) const DELAYED_PACKETS: u32 = 100_000;
/// Time limit for a service or a mount to become ready.
pub(crate) const START_PATIENCE: Duration = Duration::from_secs(60);
/// Time limit for killed processes to end.
pub(crate) const END_PATIENCE: Duration = Duration::from_secs(20);
/// Interval between two checks of processes.
pub(crate) const TICK: Duration = Duration::from_millis(20);
/// Minimum memory in bytes for each storage target in memory. This size suffices for the internal
/// files of the target and for small tests.
pub(crate) const MIN_TARGET_MEMORY: u64 = 64 << 20;
/// The storage targets in memory may use at most the available memory divided by this number.
pub(crate) const MEMORY_SHARE: u64 = 2;
