//! Limits of a lab, each with its reason.

use std::time::Duration;

/// Most servers, and most clients: each is a namespace with a pair of interfaces and a process or
/// two. The bridge takes 1023 interfaces.
pub(crate) const MAX_HOSTS: u16 = 250;
/// Most targets of one server: each is a thread.
pub(crate) const MAX_TARGETS: u16 = 64;
/// Most metadata targets: one thread each on the metadata host.
pub(crate) const MAX_METADATA_TARGETS: u16 = 64;
/// Longest name of a lab. It is part of the names of namespaces and directories.
pub(crate) const MAX_NAME: usize = 16;
/// Slowest rate of a link or target. Below it, protocol messages take a notable share, and requests
/// of 1 MiB exceed the timeouts of clients.
pub(crate) const MIN_RATE: u64 = 125_000;
/// Fastest rate for the kernel's token bucket.
pub(crate) const MAX_RATE: u64 = 12_500_000_000;
/// Longest delay of a link: a round trip stays within the timeout of heartbeats.
pub(crate) const MAX_DELAY: Duration = Duration::from_millis(500);
/// Largest frame on the links. Large frames cost fewer cycles for each byte, and leave 99.3 % of
/// the rate to data.
pub(crate) const MTU: u32 = 9000;
/// Burst of a link after a pause, as time at its rate. Long enough that timers late by a few
/// milliseconds cost no rate, short enough to be invisible in a transfer.
pub(crate) const BURST: Duration = Duration::from_millis(5);
/// Smallest burst in frames: with less, a link would never send.
pub(crate) const MIN_BURST_FRAMES: u32 = 2;
/// Queue in front of a link. Larger than the windows of all connections, so that no packet is
/// dropped, as on a network with flow control, and no rate is lost to retransmissions.
pub(crate) const QUEUE_BYTES: u32 = 64 << 20;
/// Queue of a delayed link, in packets.
pub(crate) const DELAYED_PACKETS: u32 = 100_000;
/// How long one service, or one mount, may take to start.
pub(crate) const START_PATIENCE: Duration = Duration::from_secs(60);
/// How long processes may take to end once they are killed.
pub(crate) const END_PATIENCE: Duration = Duration::from_secs(20);
/// Interval between checks of processes.
pub(crate) const TICK: Duration = Duration::from_millis(20);
/// Least memory for each target in memory: for its own files, and for small tests.
pub(crate) const MIN_TARGET_MEMORY: u64 = 64 << 20;
/// Targets in memory may take the available memory divided by this.
pub(crate) const MEMORY_SHARE: u64 = 2;
