//! Limits of management, each with its reason.

use std::time::Duration;

/// Maximum number of waiting `GetMap` requests. To requests beyond this limit, management replies
/// immediately that there is no newer map.
pub(crate) const MAX_WAITING: usize = 200_000;
/// Silence of a server after which an administrator may mark its targets as lost. A restart of a
/// host, or of a switch, takes less time.
pub(crate) const SILENCE_OF_LOST: Duration = Duration::from_secs(300);
/// Interval between checks of reachability and leases. A lease is many times longer than this
/// interval.
pub(crate) const TICK: Duration = Duration::from_millis(50);
/// Time between the reply to a waiting request and the deadline of the request, so that the reply
/// arrives before the deadline.
pub(crate) const ANSWER_BEFORE_DEADLINE: Duration = Duration::from_millis(500);
/// Longest wait of a request that has no deadline.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// After a change of the map, management pauses before it replies to the waiting nodes: for this
/// time, multiplied by the number of waiting nodes. Management needs about this time to send a map
/// to one node. With ten thousand waiting clients, each client gets at most five maps a second.
pub(crate) const PAUSE_PER_WAITING: Duration = Duration::from_micros(20);
/// Longest pause between a change of the map and the replies to the waiting nodes. After this time,
/// a node gets the new map in the reply to its heartbeat anyway.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Interval at which a leader asks the majority whether it is still the leader. This interval
/// equals the interval of the heartbeats between members.
pub(crate) const CONFIRM_INTERVAL: Duration = Duration::from_millis(150);
/// Longest wait of a leader for the confirmation of the majority. This time is shorter than
/// [`CONFIRMED_FOR`], so that one lost reply does not end a leadership.
pub(crate) const CONFIRM_LIMIT: Duration = Duration::from_millis(500);
/// Time for which a leader serves nodes after a confirmation of the majority. This time equals the
/// longest silence before an election. If a deposed leader still serves for a moment, nodes ignore
/// its maps, because the maps of its successor have higher versions.
pub(crate) const CONFIRMED_FOR: Duration = Duration::from_millis(1_200);
/// Time for which a new leader without a map collects heartbeats, in addition to one heartbeat
/// interval. A node whose heartbeat the previous leader did not receive sends its next heartbeat
/// after one interval.
pub(crate) const COLLECT_MARGIN: Duration = Duration::from_millis(500);
/// Longest wait for a majority to store a command. Two elections take less time.
pub(crate) const COMMAND_LIMIT: Duration = Duration::from_secs(4);
/// Longest wait for a new member to store the log, if the request has no deadline.
pub(crate) const ADD_MEMBER_LIMIT: Duration = Duration::from_secs(60);
/// Silence of another member after which management opens a new connection to this member. This
/// time equals the longest time before an election. With a shorter time, one slow sync would close
/// connections.
pub(crate) const MEMBER_SILENCE: Duration = Duration::from_millis(1_200);
/// Maximum number of members of management to which one member keeps connections. The connection
/// that was used least recently is closed.
pub(crate) const MAX_MEMBER_LINKS: usize = 16;
/// Maximum number of unconfirmed changes of clients' log levels. For each of these changes, a
/// request waits.
pub(crate) const MAX_LOG_ORDERS: usize = 1000;
/// Pause after which an elected leader tries again to store its `Start` command on a full disk.
pub(crate) const FULL_DISK_PAUSE: Duration = Duration::from_secs(1);
/// Pause after which a member tries again to write the addresses of the other members into its
/// token file.
pub(crate) const TOKEN_FILE_PAUSE: Duration = Duration::from_secs(1);
/// Time without a leader after which a member logs that there is no leader. Two elections take less
/// time.
pub(crate) const NO_LEADER_AFTER: Duration = Duration::from_secs(4);
