//! Limits of management, each with its reason.

use std::time::Duration;

/// Commands after which the log is folded into a snapshot: bounds the log that a start reads.
pub(crate) const COMMANDS_PER_SNAPSHOT: usize = 1024;
/// Most waiting `GetMap` requests; more are answered at once with "nothing new".
pub(crate) const MAX_WAITING: usize = 200_000;
/// Interval in which reachability and leases are checked; a lease is many times longer.
pub(crate) const TICK: Duration = Duration::from_millis(50);
/// Time by which the reply to a waiting request precedes its deadline, so that it arrives in time.
pub(crate) const ANSWER_BEFORE_DEADLINE: Duration = Duration::from_millis(500);
/// Longest wait of a request without a deadline.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Pause between a change and the replies to waiting nodes, per waiting node: the cost of sending a
/// map to one. With ten thousand waiting clients, each gets at most five maps a second.
pub(crate) const PAUSE_PER_WAITING: Duration = Duration::from_micros(20);
/// Longest such pause: a heartbeat's reply brings the map then, at the latest.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Unconfirmed changes of clients' log levels: a request waits for each of them.
pub(crate) const MAX_LOG_ORDERS: usize = 1000;
