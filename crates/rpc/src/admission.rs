//! Limits the handshakes of a process that accepts connections, and writes one log line for many
//! refusals. A peer that has not authenticated must not be able to use up memory, descriptors or
//! the log.
//!
//! Owns the table of handshakes under way. Does not own the handshake itself
//! ([`crate::handshake`]), nor connections of admitted peers, except for the limit on their number.
//!
//! # Invariants
//! The table never has more than `MAX_HANDSHAKES` entries, nor more than
//! `MAX_HANDSHAKES_PER_ADDRESS` with the same address.

use crate::limits::{
    CONNECTIONS_SHARE, HANDSHAKE_GRACE, MAX_HANDSHAKES, MAX_HANDSHAKES_PER_ADDRESS,
    REFUSAL_LOG_INTERVAL,
};
use skep_env::TcpStream;
use skep_types::{Error, ErrorCode};
use std::cell::{Cell, RefCell, RefMut};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;
use std::time::Duration;

/// A handshake under way.
struct Entry {
    stream: TcpStream,
    network: IpAddr,
    began: Duration,
}

/// Decides which new connections may begin a handshake.
pub struct Admission {
    /// Maximum number of connections of the process, in both directions.
    max_connections: u64,
    /// The handshakes under way, in the order in which they began. The key is the number of the
    /// ticket.
    under_way: RefCell<BTreeMap<u64, Entry>>,
    next: Cell<u64>,
    refusals: Rc<RefusalLog>,
}

impl std::fmt::Debug for Admission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Admission({} handshakes)", self.under_way.borrow().len())
    }
}

/// The permission to run one handshake. The handshake counts as under way until the ticket is
/// dropped.
#[derive(Debug)]
pub struct Ticket {
    admission: Rc<Admission>,
    number: u64,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.admission.under_way.borrow_mut().remove(&self.number);
    }
}

/// Returns the network against whose limit a handshake counts: an IPv4 address, or the first 64
/// bits of an IPv6 address. A host usually has all IPv6 addresses that begin with the same 64 bits.
fn network(stream: &TcpStream) -> IpAddr {
    let address = stream.peer_address().map(|it| it.ip().to_canonical());
    match address {
        Some(IpAddr::V6(v6)) => {
            let kept = u128::from(v6) >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from(kept))
        }
        Some(v4) => v4,
        None => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

impl Admission {
    /// Creates an empty table. `refusals` logs the connections that get no ticket. Raises the
    /// process's limit of descriptors as far as the system allows.
    pub fn new(refusals: Rc<RefusalLog>) -> Rc<Self> {
        Rc::new(Self {
            max_connections: skep_env::raise_file_limit() / CONNECTIONS_SHARE,
            under_way: RefCell::default(),
            next: Cell::new(1),
            refusals,
        })
    }

    /// Returns the number of handshakes under way.
    pub fn under_way(&self) -> usize {
        self.under_way.borrow().len()
    }

    /// Returns a ticket for a new connection, or `None` if the caller must close it. If too many
    /// handshakes are under way, shuts down the connection of the oldest handshake, provided that
    /// it has run for `HANDSHAKE_GRACE`.
    pub fn admit(self: &Rc<Self>, stream: &TcpStream) -> Option<Ticket> {
        let refused = |problem: &str| {
            self.refusals.note(stream.peer(), problem);
            None
        };
        if skep_env::open_streams() > self.max_connections {
            return refused(
                "this process has too many connections; raise its limit of open files (`ulimit \
                 -n`)",
            );
        }
        let network = network(stream);
        let from_there =
            self.under_way.borrow().values().filter(|it| it.network == network).count();
        if from_there >= MAX_HANDSHAKES_PER_ADDRESS && !self.end_oldest(Some(network)) {
            return refused("too many handshakes with this address are in progress");
        }
        if self.under_way() >= MAX_HANDSHAKES && !self.end_oldest(None) {
            return refused("too many handshakes are in progress");
        }
        let number = self.next.get();
        self.next.set(number + 1);
        let entry = Entry { stream: stream.clone(), network, began: skep_env::now() };
        self.under_way.borrow_mut().insert(number, entry);
        Some(Ticket { admission: Rc::clone(self), number })
    }

    /// Ends the oldest handshake (the oldest one with `network`, if `network` is given), provided
    /// that it has run for at least `HANDSHAKE_GRACE`. Returns whether a handshake was ended.
    fn end_oldest(&self, network: Option<IpAddr>) -> bool {
        let mut under_way = self.under_way.borrow_mut();
        let oldest =
            under_way.iter().find(|(_, it)| network.is_none_or(|network| it.network == network));
        let Some((number, entry)) = oldest else { return false };
        if skep_env::now() < entry.began + HANDSHAKE_GRACE {
            return false;
        }
        entry.stream.shutdown();
        let number = *number;
        under_way.remove(&number);
        true
    }

    /// Checks the table.
    ///
    /// # Panics
    /// Panics if one of the invariants in the documentation of this module does not hold.
    pub fn check_invariants(&self) {
        let under_way = self.under_way.borrow();
        assert!(under_way.len() <= MAX_HANDSHAKES, "the number of handshakes is bounded");
        let mut counts = HashMap::<_, usize>::new();
        for entry in under_way.values() {
            let count = counts.entry(entry.network).or_default();
            *count += 1;
            assert!(*count <= MAX_HANDSHAKES_PER_ADDRESS, "each address has its bound");
        }
    }
}

#[derive(Debug, Default)]
struct RefusalState {
    last_logged: Option<Duration>,
    /// Number of refused connections since the last log line; `last` describes the latest refused
    /// connection.
    waiting: u64,
    last: String,
    /// Number of connections since the last log line that their peer closed during the handshake;
    /// `last_closed` is the address of the latest one.
    closed: u64,
    last_closed: String,
    is_flush_due: bool,
}

/// Logs refused connections: at most one line per second, with the number of refused connections.
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

    /// Counts a connection from `address` that this process refused. Logs the refusal now or within
    /// a second.
    pub fn note(self: &Rc<Self>, address: impl Display, problem: impl Display) {
        let mut state = self.state.borrow_mut();
        state.waiting += 1;
        state.last = format!("{address}: {problem}");
        self.write_when_due(state);
    }

    /// Counts a connection from `address` whose handshake failed. If the peer has closed the
    /// connection, the process did not refuse it, and the line is a normal event.
    pub fn note_handshake(self: &Rc<Self>, address: impl Display, error: &Error) {
        if error.code() != ErrorCode::Disconnected {
            return self.note(address, error);
        }
        let mut state = self.state.borrow_mut();
        state.closed += 1;
        state.last_closed = address.to_string();
        self.write_when_due(state);
    }

    fn write_when_due(self: &Rc<Self>, mut state: RefMut<'_, RefusalState>) {
        let now = skep_env::now();
        let due = state.last_logged.map_or(now, |last| last + REFUSAL_LOG_INTERVAL);
        if due <= now {
            drop(state);
            return self.write();
        }
        if !std::mem::replace(&mut state.is_flush_due, true) {
            let log = Rc::clone(self);
            skep_env::spawn(async move {
                skep_env::sleep(due.saturating_sub(now)).await;
                log.state.borrow_mut().is_flush_due = false;
                log.write();
            })
            .detach();
        }
    }

    fn write(&self) {
        let mut state = self.state.borrow_mut();
        let (count, last) = (std::mem::take(&mut state.waiting), std::mem::take(&mut state.last));
        let closed = std::mem::take(&mut state.closed);
        let last_closed = std::mem::take(&mut state.last_closed);
        state.last_logged = Some(skep_env::now());
        match count {
            0 => {}
            1 => tracing::warn!("{} refused a connection from {last}", self.this),
            _ => tracing::warn!(
                "{} refused {count} connections, the last one from {last}",
                self.this
            ),
        }
        if closed > 0 {
            tracing::info!(
                "peers closed their connections to {} before the handshake was complete; number: \
                 {closed}; the last one: {last_closed}",
                self.this
            );
        }
    }
}
