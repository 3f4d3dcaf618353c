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
/// Slowest rate of a link or target: below it the protocols' own messages count, and requests of
/// 1 MiB take longer than clients wait.
pub(crate) const MIN_RATE: u64 = 125_000;
/// Fastest rate that the kernel's token bucket is asked for.
pub(crate) const MAX_RATE: u64 = 12_500_000_000;
/// Longest delay of a link: a round trip stays within what heartbeats bear.
pub(crate) const MAX_DELAY: Duration = Duration::from_millis(500);
/// Largest frame on the links. Large frames cost fewer cycles for each byte, and leave 99.3 % of
/// the rate to data.
pub(crate) const MTU: u32 = 9000;
/// What a link may send at once after a pause, as time at its rate. Long enough that timers which
/// are late by a few milliseconds cost nothing, short enough that it doesn't show in a transfer.
pub(crate) const BURST: Duration = Duration::from_millis(5);
/// A burst holds at least so many frames, or a link would never send.
pub(crate) const MIN_BURST_FRAMES: u32 = 2;
/// Bytes that wait in front of a link. More than the windows of all connections: nothing is ever
/// dropped, as on a network with flow control, and no rate is lost to repetitions.
pub(crate) const QUEUE_BYTES: u32 = 64 << 20;
/// Packets that a delayed link holds.
pub(crate) const DELAYED_PACKETS: u32 = 100_000;
/// How long one service, or one mount, may take to start.
pub(crate) const START_PATIENCE: Duration = Duration::from_secs(60);
/// How long processes may take to end once they are killed.
pub(crate) const END_PATIENCE: Duration = Duration::from_secs(20);
/// How often processes are looked at.
pub(crate) const TICK: Duration = Duration::from_millis(20);
/// Least room in memory for each target: a target needs some for itself, and tests some more.
pub(crate) const MIN_TARGET_MEMORY: u64 = 64 << 20;
/// Of the memory that is available, what targets in memory may take at most, one part in so many.
pub(crate) const MEMORY_SHARE: u64 = 2;
