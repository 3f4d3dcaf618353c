//! Ends idle connections of clients at a process that is close to its limit on connections. A new
//! client needs a connection more than a client that sends no requests.
//!
//! This module records when each peer has used its connection. For each thread, the module has the
//! list of the clients' connections that the thread serves. Other modules are responsible for the
//! requests and replies ([`crate::server`]) and for the limit on the number of connections
//! ([`crate::admission`]). Connections of services do not end, because they carry log records,
//! leases and heartbeats.
//!
//! A client may send a request at the moment at which its connection ends. The process executes no
//! request of an ended connection. The client sends such a request again on a new connection, as
//! after any loss of a connection.
//!
//! # Invariants
//! - A connection ends only if the process waits for its next request and has sent the replies to
//!   all its requests, and if the connection has been idle for [`IDLE_PEER_AGE`].
//! - Of the idle connections of a thread, the connections that have been idle for the longest time
//!   end first.
//!
//! The invariants concern the moment at which a connection ends, which no later state shows.
//!
//! Held by the tests `connection_with_an_unanswered_request_does_not_end` and
//! `oldest_idle_connections_of_clients_end_first`.

use crate::limits::{IDLE_PEER_AGE, IDLE_PEER_SHARE};
use skep_env::{SharedNotify, TcpStream};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Wakes the threads that serve connections when the process must end idle connections.
static NEEDED: LazyLock<SharedNotify> = LazyLock::new(SharedNotify::default);

/// Number of connections that this process has ended because they were idle.
static ENDED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static SERVED: RefCell<ServedClients> = RefCell::default();
}

/// The record of how a peer uses its connection. From this record, the process decides whether it
/// may end the connection.
#[derive(Debug)]
pub(crate) struct PeerUse {
    stream: TcpStream,
    /// Whether the process waits for the header of the peer's next request. False while the process
    /// reads no request because too many replies wait to be sent.
    awaits_request: Cell<bool>,
    /// Number of received requests without a reply.
    unanswered: Cell<u64>,
    /// Whether replies are being sent.
    is_sending: Cell<bool>,
    /// The last time at which a request arrived, or at which all waiting replies were sent.
    used_at: Cell<Duration>,
    /// Whether this process has ended the connection because it was idle.
    has_ended: Cell<bool>,
}

impl PeerUse {
    /// Creates the record of how the peer uses a connection, which begins at `now`.
    pub(crate) fn new(stream: TcpStream, now: Duration) -> Rc<Self> {
        Rc::new(Self {
            stream,
            awaits_request: Cell::new(false),
            unanswered: Cell::new(0),
            is_sending: Cell::new(false),
            used_at: Cell::new(now),
            has_ended: Cell::new(false),
        })
    }

    /// Sets whether the process waits for the next request.
    pub(crate) fn set_awaits_request(&self, awaits_request: bool) {
        self.awaits_request.set(awaits_request);
    }

    /// Counts a request that has arrived at `now`. Returns `false` if this process has ended the
    /// connection, and so must not execute the request.
    pub(crate) fn arrived(&self, now: Duration) -> bool {
        self.unanswered.set(self.unanswered.get() + 1);
        self.used_at.set(now);
        !self.has_ended.get()
    }

    /// Counts a reply that waits to be sent.
    pub(crate) fn replied(&self) {
        self.unanswered.set(self.unanswered.get().saturating_sub(1));
        self.is_sending.set(true);
    }

    /// Records that all waiting replies were sent by `now`.
    pub(crate) fn sent(&self, now: Duration) {
        self.is_sending.set(false);
        self.used_at.set(now);
    }

    /// Returns the time at which the process began to wait for the next request, with all replies
    /// sent. `None` means that a request has no reply yet or is not read yet, that a reply is being
    /// sent, or that the connection has ended.
    fn idle_since(&self) -> Option<Duration> {
        let is_busy = self.unanswered.get() > 0 || self.is_sending.get() || self.has_ended.get();
        (self.awaits_request.get() && !is_busy).then(|| self.used_at.get())
    }

    /// Ends the connection. The service does not execute a request that has not arrived completely.
    fn end(&self) {
        self.has_ended.set(true);
        self.stream.shutdown();
    }
}

/// The connections of clients that one thread serves.
#[derive(Default)]
struct ServedClients {
    /// The open connections, and some that have ended. The length is at most the larger of [`FEW`]
    /// and twice the largest number of open connections.
    all: Vec<Weak<PeerUse>>,
    /// Length of `all` at which ended connections are removed.
    longest: usize,
    /// Whether the task that ends connections runs.
    is_listening: bool,
}

/// Length of the list below which ended connections are not removed.
const FEW: usize = 64;

impl ServedClients {
    fn add(&mut self, connection: &Rc<PeerUse>) {
        if self.all.len() >= self.longest.max(FEW) {
            self.all.retain(|it| it.strong_count() > 0);
            self.longest = self.all.len() * 2;
        }
        self.all.push(Rc::downgrade(connection));
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
        idle.iter().for_each(|(_, connection)| connection.end());
        idle.len()
    }
}

/// Adds a connection of a client to the list of this thread.
pub(crate) fn add(connection: &Rc<PeerUse>) {
    let is_listening = SERVED.with_borrow_mut(|served| {
        served.add(connection);
        std::mem::replace(&mut served.is_listening, true)
    });
    if !is_listening {
        skep_env::spawn(end_when_needed()).detach();
    }
}

/// Ends connections of this thread after each call of [`need_connections`].
async fn end_when_needed() {
    loop {
        // A notification that arrives before this call is lost, but the process repeats the
        // notification as long as it needs connections.
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
