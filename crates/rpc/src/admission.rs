//! Limits the handshakes of a process that accepts connections. A peer that has not authenticated
//! must not be able to exhaust memory or descriptors.
//!
//! This module is responsible for the table of handshakes under way, and the limit on the number of
//! connections. If few connections are left, the process first ends idle connections of clients
//! ([`crate::idle_peers`]). At the limit, the process refuses new connections with an error that
//! names the limit. This module is not responsible for the handshake itself ([`crate::handshake`]),
//! for connections of admitted peers, or for the log of refusals ([`crate::refusal_log`]).
//!
//! # Invariants
//! The table never has more than `MAX_HANDSHAKES` entries, nor more than
//! `MAX_HANDSHAKES_PER_ADDRESS` with the same address.

use crate::idle_peers;
use crate::limits::{
    CONNECTIONS_SHARE, FEW_CONNECTIONS_LEFT_TENTHS, FEW_CONNECTIONS_LOG_INTERVAL, HANDSHAKE_GRACE,
    IDLE_PEER_INTERVAL, MAX_HANDSHAKES, MAX_HANDSHAKES_PER_ADDRESS,
};
use crate::refusal_log::RefusalLog;
use skep_env::TcpStream;
use skep_types::{Error, ErrorCode, Result};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
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
    /// The handshakes under way, in the order in which they began. The key is the id of the
    /// ticket.
    under_way: RefCell<BTreeMap<u64, Entry>>,
    next: Cell<u64>,
    refusals: Rc<RefusalLog>,
    /// Time of the last request to this process's threads to end idle connections.
    asked_at: Cell<Option<Duration>>,
    /// Time of the last log line about a request to end idle connections.
    logged_at: Cell<Option<Duration>>,
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

impl Ticket {
    /// Checks that the process has at most its maximum number of connections, including the new
    /// connection. The accepting side calls this function in the handshake, so that the peer
    /// receives the error.
    ///
    /// # Errors
    /// `NotReady` if the process has too many connections.
    pub fn check_connections(&self) -> Result<()> {
        let most = self.admission.max_connections;
        match skep_env::open_streams() <= most {
            true => Ok(()),
            false => Err(Error::new(ErrorCode::NotReady, too_many(most))),
        }
    }
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

fn too_many(most: u64) -> String {
    format!(
        "cannot accept the connection: this process has its maximum of {most} connections; raise \
         its limit of open files (`ulimit -n`, or `LimitNOFILE` in its unit) to twice the number \
         of connections that it needs"
    )
}

/// Whether an event may happen again at `now`: at least `interval` has passed since `last`, the
/// time of the last such event. `None` means that there was no such event.
fn is_due(last: Option<Duration>, interval: Duration, now: Duration) -> bool {
    last.is_none_or(|last| now.saturating_sub(last) >= interval)
}

impl Admission {
    /// Creates an empty table. `refusals` logs the connections that get no ticket. Raises the
    /// process's limit of descriptors as far as the system allows.
    pub fn new(refusals: Rc<RefusalLog>) -> Rc<Self> {
        Self::with_limit(skep_env::raise_file_limit() / CONNECTIONS_SHARE, refusals)
    }

    fn with_limit(max_connections: u64, refusals: Rc<RefusalLog>) -> Rc<Self> {
        Rc::new(Self {
            max_connections,
            under_way: RefCell::default(),
            next: Cell::new(1),
            refusals,
            asked_at: Cell::new(None),
            logged_at: Cell::new(None),
        })
    }

    /// Returns the number of handshakes under way.
    pub fn under_way(&self) -> usize {
        self.under_way.borrow().len()
    }

    /// Returns a ticket for a new connection, or `None` if the caller must close the connection. If
    /// too many handshakes are under way, shuts down the connection of the oldest handshake,
    /// provided that this handshake has run for `HANDSHAKE_GRACE`.
    pub fn admit(self: &Rc<Self>, stream: &TcpStream) -> Option<Ticket> {
        let refused = |problem: &str| {
            self.refusals.note(stream.peer(), problem);
            None
        };
        let open = skep_env::open_streams();
        self.end_idle_if_few_left(open, skep_env::now());
        // Above `max_connections`, the handshake refuses the peer with an error. Until this
        // refusal, the connection needs a descriptor, so the number of connections that wait for a
        // refusal also has a limit.
        if open > self.max_connections + MAX_HANDSHAKES as u64 {
            return refused(&too_many(self.max_connections));
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

    /// Ends idle connections of clients if `open`, the number of the process's connections at
    /// `now`, is near the limit. Returns whether this call has asked the threads of the process to
    /// end idle connections.
    fn end_idle_if_few_left(&self, open: u64, now: Duration) -> bool {
        let is_near = open >= self.max_connections / 10 * FEW_CONNECTIONS_LEFT_TENTHS;
        if !is_near || !is_due(self.asked_at.get(), IDLE_PEER_INTERVAL, now) {
            return false;
        }
        self.asked_at.set(Some(now));
        idle_peers::need_connections();
        if is_due(self.logged_at.get(), FEW_CONNECTIONS_LOG_INTERVAL, now) {
            self.logged_at.set(Some(now));
            tracing::warn!(
                "{} has {open} of at most {} connections, and ends idle connections of clients, \
                 which open new connections for their next requests; raise its limit of open files \
                 (`ulimit -n`, or `LimitNOFILE` in its unit)",
                self.refusals.this(),
                self.max_connections
            );
        }
        true
    }

    /// Ends the oldest handshake (the oldest handshake with `network`, if `network` is given),
    /// provided that this handshake has run for at least `HANDSHAKE_GRACE`. Returns whether a
    /// handshake was ended.
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
            assert!(
                *count <= MAX_HANDSHAKES_PER_ADDRESS,
                "the number of handshakes of each address is bounded"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::authenticate;
    use crate::{Channel, Connection, Identity, Secrets};
    use skep_env::{TcpListener, block_on, spawn};
    use skep_types::{ClusterId, NodeId, NodeKind, TargetId};

    #[test]
    fn process_near_its_connection_limit_ends_idle_connections() {
        let admission = Admission::with_limit(1000, RefusalLog::new("the test"));
        let asks = |open, ms| admission.end_idle_if_few_left(open, Duration::from_millis(ms));
        assert!(!asks(899, 1_000));
        assert!(asks(900, 1_000));
        assert!(!asks(1_000, 1_999));
        assert!(asks(1_000, 2_000));
        assert!(!asks(500, 4_000));
    }

    #[test]
    fn error_above_the_connection_limit_names_a_remedy() {
        block_on(async {
            let identity = Identity {
                cluster: ClusterId::default(),
                secrets: Secrets::generate(),
                node: NodeId::new(5),
                kind: NodeKind::Client,
            };
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_address().unwrap().to_string();
            let server = identity.clone();
            spawn(async move {
                let stream = listener.accept().await.unwrap();
                // The process has at least the two ends of this connection.
                let admission = Admission::with_limit(1, RefusalLog::new("the test"));
                let ticket = admission.admit(&stream).unwrap();
                let refused =
                    authenticate(&stream, &server, 1, |_| ticket.check_connections()).await;
                refused.unwrap_err();
            })
            .detach();
            let target = TargetId::default();
            let refused = Connection::connect(&address, &identity, target, Channel::NONE).await;
            let error = refused.unwrap_err();
            assert_eq!(error.code(), ErrorCode::NotReady);
            assert!(error.context().contains("maximum of 1 connections; raise"), "{error}");
        })
        .unwrap();
    }
}
