//! The log lines about connections that a process refuses. A peer that has not authenticated must
//! not be able to exhaust memory or flood the log: the process writes one line a minute for each
//! host, for a bounded number of hosts.
//!
//! This module is not responsible for the decision to refuse ([`crate::admission`],
//! [`crate::handshake`]).

use crate::limits::{MAX_REFUSED_HOSTS, REFUSAL_LOG_INTERVAL};
use skep_types::{Error, ErrorCode, Timestamp, utc};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::rc::Rc;
use std::time::Duration;

/// Name of the entry of all hosts beyond the first [`MAX_REFUSED_HOSTS`].
const OTHER_HOSTS: &str = "other hosts";

/// Connections of one host since the last log line about connections of this host.
#[derive(Debug, Default)]
struct HostConnections {
    count: u64,
    /// Time of the first of these connections.
    since: Timestamp,
    /// Describes the last of these connections.
    last: String,
    last_logged: Option<Duration>,
}

impl HostConnections {
    fn add(&mut self, last: String, time: Timestamp) {
        if self.count == 0 {
            self.since = time;
        }
        self.count += 1;
        self.last = last;
    }

    /// Returns the time at which the next log line may appear.
    fn due(&self, now: Duration) -> Duration {
        self.last_logged.map_or(now, |last| last + REFUSAL_LOG_INTERVAL)
    }

    /// Returns the connections for a log line, and resets the count. `None` means that there are no
    /// connections, or that the last line is too recent.
    fn take_due(&mut self, now: Duration) -> Option<(u64, Timestamp, String)> {
        if self.count == 0 || self.due(now) > now {
            return None;
        }
        self.last_logged = Some(now);
        Some((std::mem::take(&mut self.count), self.since, std::mem::take(&mut self.last)))
    }
}

#[derive(Debug, Default)]
struct RefusalState {
    /// The refused connections, by host.
    hosts: BTreeMap<String, HostConnections>,
    /// The connections that their peers closed during the handshake.
    closed: HostConnections,
    is_flush_due: bool,
}

impl RefusalState {
    fn refuse(&mut self, address: &str, problem: &str, time: Timestamp) {
        let mut host = host_of(address);
        if !self.hosts.contains_key(host) && self.hosts.len() >= MAX_REFUSED_HOSTS {
            host = OTHER_HOSTS;
        }
        let refused = self.hosts.entry(host.to_owned()).or_default();
        refused.add(format!("{address}: {problem}"), time);
    }

    /// Returns the lines about refused connections that are due at `now`, and forgets hosts without
    /// a recent line.
    fn take_lines(&mut self, this: &str, now: Duration) -> Vec<String> {
        let mut lines = Vec::new();
        for (host, refused) in &mut self.hosts {
            match refused.take_due(now) {
                Some((1, _, last)) => {
                    lines.push(format!("{this} refused a connection from {last}"))
                }
                Some((count, since, last)) => lines.push(format!(
                    "{this} refused {count} connections from {host} since {}, the last connection \
                     from {last}",
                    utc(since)
                )),
                None => {}
            }
        }
        self.hosts.retain(|_, refused| refused.count > 0 || refused.due(now) > now);
        lines
    }

    /// Returns the time of the next line.
    fn next_due(&self, now: Duration) -> Option<Duration> {
        let all = self.hosts.values().chain([&self.closed]);
        all.filter(|it| it.count > 0).map(|it| it.due(now)).min()
    }
}

/// Returns the host in an address with a port.
fn host_of(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

/// Logs refused connections: at most one line per minute for each host, with the number of refused
/// connections.
#[derive(Debug)]
pub struct RefusalLog {
    /// The part of a log line that names this process.
    this: &'static str,
    state: RefCell<RefusalState>,
}

impl RefusalLog {
    /// Creates a log. `this` names the process in its log lines, such as `management`.
    pub fn new(this: &'static str) -> Rc<Self> {
        Rc::new(Self { this, state: RefCell::default() })
    }

    /// Returns the name of the process in log lines.
    pub(crate) fn this(&self) -> &'static str {
        self.this
    }

    /// Counts a connection from `address` that this process refused. Logs the refusal immediately
    /// or within a minute.
    pub fn note(self: &Rc<Self>, address: impl Display, problem: impl Display) {
        let (address, problem) = (address.to_string(), problem.to_string());
        self.state.borrow_mut().refuse(&address, &problem, skep_env::wall_time());
        self.write_due();
    }

    /// Counts a connection from `address` whose handshake failed. If the peer has closed the
    /// connection, the process did not refuse the connection, and the log line reports a normal
    /// event.
    pub fn note_handshake(self: &Rc<Self>, address: impl Display, error: &Error) {
        match error.code() {
            ErrorCode::Disconnected => {
                let time = skep_env::wall_time();
                self.state.borrow_mut().closed.add(address.to_string(), time);
                self.write_due();
            }
            ErrorCode::AuthenticationFailed => self.note(
                address,
                format_args!(
                    "{error}; the mount, service or command at this address cannot use this \
                     process until it has the newest token"
                ),
            ),
            _ => self.note(address, error),
        }
    }

    /// Writes the lines that are due, and starts a task that writes the other lines when they are
    /// due.
    fn write_due(self: &Rc<Self>) {
        let now = skep_env::now();
        let mut state = self.state.borrow_mut();
        for line in state.take_lines(self.this, now) {
            tracing::warn!("{line}");
        }
        if let Some((count, _, last)) = state.closed.take_due(now) {
            tracing::info!(
                "peers closed their connections to {} before the handshake was complete; number: \
                 {count}; the last peer: {last}",
                self.this
            );
        }
        let Some(due) = state.next_due(now) else { return };
        if !std::mem::replace(&mut state.is_flush_due, true) {
            let log = Rc::clone(self);
            skep_env::spawn(async move {
                skep_env::sleep(due.saturating_sub(now)).await;
                log.state.borrow_mut().is_flush_due = false;
                log.write_due();
            })
            .detach();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: a mount with a wrong token caused one line each second.
    #[test]
    fn refused_host_gets_one_log_line_a_minute_with_a_count() {
        let mut state = RefusalState::default();
        let at = Duration::from_secs;
        let time = |seconds| Timestamp { seconds, nanoseconds: 0 };
        let mut lines = Vec::new();
        for second in 0..120 {
            let address = format!("10.77.0.6:{}", 50_000 + second);
            state.refuse(&address, "wrong token", time(second));
            lines.extend(state.take_lines("this node", at(1_000 + second as u64)));
        }
        let last = "this node refused 60 connections from 10.77.0.6 since 1970-01-01T00:00:01Z, \
                    the last connection from 10.77.0.6:50060: wrong token";
        let first = "this node refused a connection from 10.77.0.6:50000: wrong token";
        assert_eq!(lines, [first, last]);
        // Another host gets its own line immediately.
        state.refuse("[fd00::1]:9", "nonsense", time(120));
        assert_eq!(state.take_lines("this node", at(1_119)).len(), 1);
        // The log gets a line about the other connections, although no new connection arrives.
        assert_eq!(state.next_due(at(1_119)), Some(at(1_120)));
        assert!(state.take_lines("this node", at(1_120))[0].contains("refused 59 connections"));
        assert_eq!(state.next_due(at(1_120)), None);
        assert!(state.take_lines("this node", at(1_300)).is_empty());
        assert!(state.hosts.is_empty(), "hosts without a recent line are forgotten");
    }

    #[test]
    fn number_of_refused_hosts_in_memory_is_bounded() {
        let mut state = RefusalState::default();
        for host in 0..2 * MAX_REFUSED_HOSTS {
            state.refuse(&format!("host-{host}:1"), "nonsense", Timestamp::default());
        }
        assert_eq!(state.hosts.len(), MAX_REFUSED_HOSTS + 1);
        assert_eq!(state.hosts[OTHER_HOSTS].count, MAX_REFUSED_HOSTS as u64);
    }
}
