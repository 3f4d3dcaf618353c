//! Limits of management, each with its reason.

use std::time::Duration;

/// Number of logged commands at which management replaces the log by a snapshot. Bounds the log
/// that the next start has to read.
pub(crate) const COMMANDS_PER_SNAPSHOT: usize = 1024;
/// Maximum number of waiting `GetMap` requests. If more requests arrive, management replies to them
/// at once that there is no newer map.
pub(crate) const MAX_WAITING: usize = 200_000;
/// Silence of a server after which an administrator may give up its targets as lost. A restart of a
/// host, or of a switch, takes less.
pub(crate) const SILENCE_OF_LOST: Duration = Duration::from_secs(300);
/// Interval between checks of reachability and leases. A lease is many times longer.
pub(crate) const TICK: Duration = Duration::from_millis(50);
/// Management replies to a waiting request this long before the request's deadline, so that the
/// reply arrives in time.
pub(crate) const ANSWER_BEFORE_DEADLINE: Duration = Duration::from_millis(500);
/// Longest wait of a request that has no deadline.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Pause between a change and the replies to waiting nodes, per waiting node. It corresponds to the
/// cost of sending a map to one node. With ten thousand waiting clients, each client gets at most
/// five maps a second.
pub(crate) const PAUSE_PER_WAITING: Duration = Duration::from_micros(20);
/// Upper bound of that pause. A heartbeat's reply brings the new map after this time anyway.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Silence of another member after which management opens a new connection to it: the longest time
/// before an election. A shorter one would close connections because of one slow sync.
pub(crate) const MEMBER_SILENCE: Duration = Duration::from_millis(1_200);
/// Maximum number of members of management to which one member keeps connections. The connection
/// that was used least recently is closed.
pub(crate) const MAX_MEMBER_LINKS: usize = 16;
/// Maximum number of unconfirmed changes of clients' log levels. A request waits for each of them.
pub(crate) const MAX_LOG_ORDERS: usize = 1000;
