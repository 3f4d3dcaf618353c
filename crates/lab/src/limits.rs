//! Limits of a lab, each with its reason.

use std::time::Duration;

/// Maximum number of servers, and also of clients. Each server and each client is a namespace with
/// a pair of interfaces and one or two processes. The bridge accepts 1023 interfaces.
pub(crate) const MAX_HOSTS: u16 = 250;
/// Maximum number of targets of one server. Each target is a thread.
pub(crate) const MAX_TARGETS: u16 = 64;
/// Maximum number of metadata targets. Each target is a thread on the metadata host.
pub(crate) const MAX_METADATA_TARGETS: u16 = 64;
/// Maximum length in bytes of a lab's name, which is part of the names of namespaces and
/// directories.
pub(crate) const MAX_NAME: usize = 16;
/// Minimum rate of a link or target in bytes per second. Below this rate, protocol messages take a
/// notable share of the rate, and requests of 1 MiB exceed the timeouts of clients.
pub(crate) const MIN_RATE: u64 = 125_000;
/// Maximum rate of a link or target in bytes per second, for the kernel's token bucket.
pub(crate) const MAX_RATE: u64 = 12_500_000_000;
/// Maximum delay of a link. It is chosen so that a round trip stays within the timeout of
/// heartbeats.
pub(crate) const MAX_DELAY: Duration = Duration::from_millis(500);
/// Maximum frame size on the links, in bytes. Large frames cost fewer CPU cycles for each byte, and
/// leave 99.3 % of the rate to data.
pub(crate) const MTU: u32 = 9000;
/// Burst of a link after a pause, as time at the link's rate. It is long enough that timers which
/// fire a few milliseconds late cost no rate. It is too short to affect the time of a transfer.
pub(crate) const BURST: Duration = Duration::from_millis(5);
/// Minimum burst in frames. With a smaller burst, a link would never send.
pub(crate) const MIN_BURST_FRAMES: u32 = 2;
/// Length in bytes of the queue in front of a link. It exceeds the sum of the windows of all
/// connections. So the queue drops no packet, like a network with flow control, and no rate is lost
/// to retransmissions.
pub(crate) const QUEUE_BYTES: u32 = 64 << 20;
/// Length of the queue of a delayed link, in packets.
pub(crate) const DELAYED_PACKETS: u32 = 100_000;
/// Time limit for one service or one mount to become ready.
pub(crate) const START_PATIENCE: Duration = Duration::from_secs(60);
/// Time limit for killed processes to exit.
pub(crate) const END_PATIENCE: Duration = Duration::from_secs(20);
/// Interval between checks of processes.
pub(crate) const TICK: Duration = Duration::from_millis(20);
/// Minimum memory in bytes for each target in memory. It is enough for the target's own files and
/// for small tests.
pub(crate) const MIN_TARGET_MEMORY: u64 = 64 << 20;
/// Targets in memory may use at most the available memory divided by this number.
pub(crate) const MEMORY_SHARE: u64 = 2;
