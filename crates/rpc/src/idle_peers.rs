//! The end of idle connections of clients at a process that has almost as many connections as it
//! may have. A new client needs a connection more than a client that sends no requests.
//!
//! Owns, for each thread, the list of the clients' connections that the thread serves. Does not own
//! the limit on their number ([`crate::admission`]). Connections of services stay, because they
//! carry log records, leases and heartbeats.
//!
//! A client may send a request at the moment at which its connection ends. No request is executed
//! after the end, and the client sends it again on a new connection, as after any loss of a
//! connection.
//!
//! # Invariants
//! - A connection ends only if the process waits for its next request, all its requests have been
//!   answered and their replies sent, and it has been idle for [`IDLE_PEER_AGE`].
//! - Of the idle connections of a thread, those end first that have been idle for the longest time.

use crate::limits::{IDLE_PEER_AGE, IDLE_PEER_SHARE};
use crate::server::Outbox;
use skep_env::SharedNotify;
use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Notifies the threads of the process that serve connections, when the process needs free ones.
static NEEDED: LazyLock<SharedNotify> = LazyLock::new(SharedNotify::default);

/// Number of connections that this process has ended because they were idle.
static ENDED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static SERVED: RefCell<ServedClients> = RefCell::default();
}

/// The connections of clients that one thread serves.
#[derive(Default)]
struct ServedClients {
    /// The connections, and some that have ended. Their number is at most twice the largest number
    /// of open connections, apart from [`FEW`].
    all: Vec<Weak<Outbox>>,
    /// Length of `all` at which ended connections are removed.
    longest: usize,
    /// Whether the task that ends connections runs.
    is_listening: bool,
}

/// Length of the list below which ended connections are not removed.
const FEW: usize = 64;

impl ServedClients {
    fn add(&mut self, outbox: &Rc<Outbox>) {
        if self.all.len() >= self.longest.max(FEW) {
            self.all.retain(|it| it.strong_count() > 0);
            self.longest = self.all.len() * 2;
        }
        self.all.push(Rc::downgrade(outbox));
    }

    /// Ends the connections that have been idle for the longest time at `now`, at most one in
    /// [`IDLE_PEER_SHARE`] of all connections. Returns their number.
    fn end_oldest(&mut self, now: Duration) -> usize {
        self.all.retain(|it| it.strong_count() > 0);
        let most = self.all.len().div_ceil(IDLE_PEER_SHARE);
        let open = self.all.iter().filter_map(Weak::upgrade);
        let mut idle: Vec<_> = open.filter_map(|it| Some((it.idle_since()?, it))).collect();
        idle.retain(|(since, _)| now.saturating_sub(*since) >= IDLE_PEER_AGE);
        idle.sort_unstable_by_key(|(since, _)| *since);
        idle.truncate(most);
        idle.iter().for_each(|(_, outbox)| outbox.end());
        idle.len()
    }
}

/// Adds a connection of a client to the list of this thread.
pub(crate) fn add(outbox: &Rc<Outbox>) {
    let is_listening = SERVED.with_borrow_mut(|served| {
        served.add(outbox);
        std::mem::replace(&mut served.is_listening, true)
    });
    if !is_listening {
        skep_env::spawn(end_when_needed()).detach();
    }
}

/// Ends connections of this thread after each call of [`need_connections`].
async fn end_when_needed() {
    loop {
        // A notification before this call is missed. The process notifies again while it needs
        // connections.
        NEEDED.wait().await;
        let count = SERVED.with_borrow_mut(|served| served.end_oldest(skep_env::now()));
        ENDED.fetch_add(count as u64, Ordering::Relaxed);
    }
}

/// Makes each thread of the process end its oldest idle connections of clients.
pub(crate) fn need_connections() {
    NEEDED.notify();
}

/// Returns the number of connections that this process has ended because they were idle.
pub(crate) fn ended() -> u64 {
    ENDED.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests;
