//! Size limits and time limits of the replicated log, each with its reason.

use std::time::Duration;

/// Interval between the leader's heartbeats to other members.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(150);
/// Shortest time that a member waits, after the leader's lease has ended, before it starts an
/// election. The Raft library uses [`MAX_ELECTION`] as the lease. So an election begins 0.9 to 1.2
/// s (six to eight heartbeats) after the leader's last message.
pub(crate) const MIN_ELECTION: Duration = Duration::from_millis(300);
/// Longest time that a member waits, after the leader's lease has ended, before it starts an
/// election. Members draw a random time between [`MIN_ELECTION`] and this limit, so that two
/// members seldom begin an election at the same time. Two elections take less than 3 s.
pub(crate) const MAX_ELECTION: Duration = Duration::from_millis(600);
/// Number of entries after which a member writes a snapshot. Bounds the length of the log that a
/// member reads at its start.
pub(crate) const ENTRIES_PER_SNAPSHOT: u64 = 1_024;
/// Number of entries that stay in the log although the snapshot contains their effects. Members
/// that were unreachable for a short time need these entries.
pub(crate) const ENTRIES_KEPT: u64 = 256;
/// Maximum number of entries in one message.
pub(crate) const MAX_ENTRIES: u64 = 64;
/// Maximum length of one part of a snapshot. The limit for the message that contains the part is
/// [`MAX_MESSAGE_BYTES`].
pub(crate) const SNAPSHOT_PART_BYTES: usize = 1 << 20;
/// Maximum length of a snapshot. This limit is 1 MiB below `skep_format::sealed::MAX_BODY_BYTES`,
/// because the snapshot file also contains the position and the members.
pub(crate) const MAX_SNAPSHOT_BYTES: u64 = 63 << 20;
/// Time limit for sending one part of a snapshot, including the installation after the last part.
pub(crate) const SNAPSHOT_PART_LIMIT: Duration = Duration::from_secs(10);
/// Maximum length of a command. The file format permits log records of up to 15 MiB.
pub(crate) const MAX_COMMAND_BYTES: usize = 1 << 20;
/// Maximum total length of the entries in one message, unless the message has only one entry. A
/// follower must receive and sync a message within one heartbeat interval: 2 MiB take 20 ms at 1
/// Gbit/s.
pub(crate) const MAX_APPEND_BYTES: usize = 2 << 20;
/// Maximum length of a message between members. Entries and snapshot parts have lower limits of
/// their own.
pub const MAX_MESSAGE_BYTES: usize = 4 << 20;
/// Disk space that a log reserves beyond its end.
pub(crate) const RESERVE_BYTES: u64 = 8 << 20;
/// A member that has less reserved space than this limit reserves more space. Reserved space of
/// this size suffices for the longest command, and for the records of elections and of membership
/// changes.
pub(crate) const MIN_RESERVE_BYTES: u64 = 4 << 20;
/// Maximum number of members. Five members survive the loss of two. The limit is higher than the
/// usual number of members, so that an administrator can replace all members one after the other.
pub(crate) const MAX_MEMBERS: usize = 9;
/// Maximum number of addresses of a member.
pub(crate) const MAX_ADDRESSES: usize = 16;
/// Maximum length of an address or of the name of a snapshot.
pub(crate) const MAX_NAME_BYTES: usize = 255;
