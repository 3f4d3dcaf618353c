//! Measures the time for which a connection has had no request.
//!
//! The measurement costs a request nothing: a periodic task reads the count of requests of each
//! connection, and compares this count with the count at the task's previous check. This module is
//! responsible for the comparison. The task itself and the end of idle connections are in
//! `routing/idle.rs`.
//!
//! # Invariants
//! - The idle time is never longer than the time since the last request was sent. The idle time is
//!   also never longer than the time since the last check that found the connection busy.
//! - The idle time is shorter than the time since the last use by at most the interval between two
//!   checks.
//!
//! The clock does not store the time of the last use, so no function of this module can check the
//! invariants.
//!
//! Held by the test `connection_ends_only_after_it_was_idle_for_the_limit`, which runs all
//! sequences of events of one length.

use std::cell::Cell;
use std::time::Duration;

/// Measures the idle time of one connection.
#[derive(Debug, Default)]
pub(crate) struct IdleClock {
    /// The last check that found a use of the connection. `None` before the first check.
    used: Cell<Option<Look>>,
}

/// A check of a connection.
#[derive(Debug, Clone, Copy)]
struct Look {
    /// Number of requests that the connection had sent before the check.
    requests: u64,
    at: Duration,
}

impl IdleClock {
    /// Checks the use of the connection at `now`, and returns its idle time. `requests` is the
    /// number of requests that the connection has sent so far. `is_busy` is whether one of these
    /// requests is being sent or has no complete reply.
    pub(crate) fn look(&self, requests: u64, is_busy: bool, now: Duration) -> Duration {
        match self.used.get().filter(|used| used.requests == requests && !is_busy) {
            Some(used) => now.saturating_sub(used.at),
            None => {
                self.used.set(Some(Look { requests, at: now }));
                Duration::ZERO
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time from one check to the next check.
    const STEP: Duration = Duration::from_secs(60);
    /// Idle time after which a connection ends.
    const LIMIT: Duration = Duration::from_secs(180);

    /// An event of a connection, or a check by the task that ends idle connections.
    #[derive(Debug, Clone, Copy)]
    enum Event {
        Request,
        /// The reply to the oldest request arrives. This event has no effect if the client has sent
        /// no request.
        Reply,
        /// A [`STEP`] passes, and the task checks the connection.
        Look,
        /// The peer ends the connection. The calls in flight fail.
        PeerEnds,
    }

    const EVENTS: [Event; 4] = [Event::Request, Event::Reply, Event::Look, Event::PeerEnds];

    /// A client with at most one open connection, as in a `TargetLink`. A request opens a
    /// connection if the client has no open connection. The end of a connection is one step of the
    /// client's thread.
    #[derive(Default)]
    struct Client {
        open: Option<Open>,
        now: Duration,
        /// Connections that the client has ended because they were idle.
        ended: usize,
    }

    #[derive(Default)]
    struct Open {
        clock: IdleClock,
        requests: u64,
        in_flight: u64,
        used_at: Duration,
    }

    impl Client {
        fn apply(&mut self, event: Event) {
            match event {
                Event::Request => {
                    let open = self.open.get_or_insert_default();
                    open.requests += 1;
                    open.in_flight += 1;
                    open.used_at = self.now;
                }
                Event::Reply => {
                    if let Some(open) = self.open.as_mut().filter(|open| open.in_flight > 0) {
                        open.in_flight -= 1;
                        open.used_at = self.now;
                    }
                }
                Event::Look => self.look(),
                Event::PeerEnds => self.open = None,
            }
        }

        /// Ends the connection if its clock permits the end, and compares the clock with the actual
        /// use: the time of the last use, and the requests in flight.
        fn look(&mut self) {
            self.now += STEP;
            let Some(open) = &self.open else { return };
            let is_busy = open.in_flight > 0;
            let idle = open.clock.look(open.requests, is_busy, self.now);
            let unused = self.now - open.used_at;
            if idle >= LIMIT {
                assert!(!is_busy, "a request in flight keeps its connection");
                assert!(unused >= LIMIT, "a connection stays for the limit after its last use");
                self.open = None;
                self.ended += 1;
                return;
            }
            let is_late = !is_busy && unused >= LIMIT + STEP;
            assert!(!is_late, "an idle connection ends at most one check after the limit");
        }
    }

    /// Runs all sequences of events of one length, so that each order of requests, replies, checks
    /// and ends of connections is tested.
    #[test]
    fn connection_ends_only_after_it_was_idle_for_the_limit() {
        const LENGTH: u32 = 9;
        let mut ended = 0;
        for number in 0..EVENTS.len().pow(LENGTH) {
            let mut client = Client::default();
            let mut rest = number;
            for _ in 0..LENGTH {
                client.apply(EVENTS[rest % EVENTS.len()]);
                rest /= EVENTS.len();
            }
            ended += client.ended;
        }
        assert!(ended > 500, "{ended} sequences end an idle connection");
    }
}
