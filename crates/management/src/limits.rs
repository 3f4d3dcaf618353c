//! Limits of management, each with its reason.

use std::time::Duration;

/// The log is folded into a snapshot after so many commands: a start then reads little.
pub(crate) const COMMANDS_PER_SNAPSHOT: usize = 1024;
/// Most waiting `GetMap` requests; more are answered at once with "nothing new".
pub(crate) const MAX_WAITING: usize = 200_000;
/// How often time is let pass for reachability; a lease is many times longer.
pub(crate) const TICK: Duration = Duration::from_millis(50);
/// How long an answer to a waiting request stays below its deadline, so that it is there in time.
pub(crate) const ANSWER_BEFORE_DEADLINE: Duration = Duration::from_millis(500);
/// How long a request without a deadline waits at most.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Pause between a change and the answers to those who wait, for each of them: what it costs to
/// send one a map. Ten thousand waiting clients are told of changes at most five times a second.
pub(crate) const PAUSE_PER_WAITING: Duration = Duration::from_micros(20);
/// Longest such pause: a heartbeat tells it then, at the latest.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Orders about the logs of clients that wait: somebody waits for each of them.
pub(crate) const MAX_LOG_ORDERS: usize = 1000;
