//! Limits and times of the replicated log, each with its reason.

use std::time::Duration;

/// Interval between the leader's heartbeats to other members.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(150);
/// Shortest additional silence of the leader after which a member starts an election. The library
/// first waits for the leader's lease, which is [`MAX_ELECTION`]. So an election begins after a
/// silence of 0.9 to 1.2 s: six to eight heartbeats.
pub(crate) const MIN_ELECTION: Duration = Duration::from_millis(300);
/// Longest additional silence of the leader before an election. Members draw a time between both,
/// so that two of them seldom begin an election at the same time. Two elections take less than 3 s.
pub(crate) const MAX_ELECTION: Duration = Duration::from_millis(600);
/// Number of entries after which a member writes a snapshot. Bounds the log that a start reads.
pub(crate) const ENTRIES_PER_SNAPSHOT: u64 = 1_024;
/// Number of entries before the snapshot that stay in the log, for members that were away briefly.
pub(crate) const ENTRIES_KEPT: u64 = 256;
/// Maximum number of entries in one message.
pub(crate) const MAX_ENTRIES: u64 = 64;
/// Maximum length of a part of a snapshot in one message. A message may have 16 MiB.
pub(crate) const SNAPSHOT_PART_BYTES: usize = 1 << 20;
/// Maximum length of a snapshot, that of the file (`skep_format::sealed::MAX_BODY_BYTES`).
pub(crate) const MAX_SNAPSHOT_BYTES: u64 = 63 << 20;
/// Time for one part of a snapshot, with the installation after the last part.
pub(crate) const SNAPSHOT_PART_LIMIT: Duration = Duration::from_secs(10);
/// Maximum length of a command. A log record may have 15 MiB.
pub(crate) const MAX_COMMAND_BYTES: usize = 1 << 20;
/// Maximum length of the entries in one message, unless it has only one entry. A follower must
/// receive and sync a message within one heartbeat interval: 2 MiB take 20 ms at 1 Gbit/s.
pub(crate) const MAX_APPEND_BYTES: usize = 2 << 20;
/// Maximum length of a message between members. Each part of it has a lower limit of its own.
pub const MAX_MESSAGE_BYTES: usize = 4 << 20;
/// Space that a log reserves on the disk ahead of its end.
pub(crate) const RESERVE_BYTES: u64 = 8 << 20;
/// Reserved space below which a member reserves more: the longest command, and the records of
/// elections and of changes of the members.
pub(crate) const MIN_RESERVE_BYTES: u64 = 4 << 20;
/// Maximum number of members. Five survive the loss of two. The others are for a change of all
/// members, one after the other.
pub(crate) const MAX_MEMBERS: usize = 9;
/// Maximum number of addresses of a member.
pub(crate) const MAX_ADDRESSES: usize = 16;
/// Maximum length of an address or of the name of a snapshot.
pub(crate) const MAX_NAME_BYTES: usize = 255;
