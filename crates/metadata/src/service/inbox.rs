//! The events that wait for the thread of a metadata target.
//!
//! While at most [`MAX_BATCH`] requests of clients wait, the thread takes all events in the order
//! of their arrival. The thread sends the replies of a batch together, so the order within a batch
//! hardly matters. Further requests of clients wait in a fair queue, in which the clients take
//! turns (docs/design/0027-fair-queues.md). So a client with many requests in flight delays a
//! request of another client only by one or two batches.
//!
//! # Invariants
//! - The target handles the requests of one client in the order in which they were added.
//! - The next batch has at most [`MAX_BATCH`] requests of clients.
//! - While requests wait in the queue, new requests of clients go to the queue too.
//!
//! `Inbox::check_invariants` checks the counts.
//!
//! Held by the tests `small_batch_of_events_is_taken_in_the_order_of_arrival` and
//! `request_overtakes_the_queue_of_a_busy_client`: the order.
//!
//! # A target that takes no batch
//! A target whose role has ended may wait for its disk, and takes no batch meanwhile. The limits of
//! requests also apply during this time, and the inbox keeps only the newest cluster map.

use crate::target::Event;
use skep_rpc::Peer;
use skep_service::fair_queue::FairQueue;
use skep_types::NodeKind;
use skep_wire::Request;
use skep_wire::log_shipping::AskGroup;

/// Maximum number of requests of clients in one batch. A batch of this size takes a few
/// milliseconds, and one write to the log is efficient for it.
const MAX_BATCH: usize = 512;
/// Maximum number of events in each of the two queues of the inbox. While `waiting` is full, the
/// service reads from connections of a client only if the client has no request in this queue.
const MAX_INBOX: usize = 10_000;
/// Maximum number of requests of one client in the fair queue.
const MAX_OF_CLIENT: usize = 1024;
/// Total length in bytes of the request bodies in the inbox at which the service stops reading from
/// connections of clients. Each connection may exceed the limit by one request. For a client
/// without a request in the fair queue, the limit is twice as high. Connections of other services
/// have a limit of the same value, which counts only the bodies of services. So clients cannot
/// block a request of an operation that holds locks.
const MAX_INBOX_BYTES: usize = 32 << 20;
/// Number of requests that the fair queue takes from one client before it takes requests of the
/// next client.
const QUANTUM: u64 = 4;

/// The inbox of a metadata target.
#[derive(Debug)]
pub(super) struct Inbox {
    /// The events of the next batch.
    next: Vec<Event>,
    /// Number of requests of clients in `next`.
    next_of_clients: usize,
    /// The requests of clients that did not fit into `next`.
    waiting: FairQueue<Event>,
    /// Total length of the request bodies in the inbox.
    bytes: usize,
    /// Total length of the request bodies of other services, which are included in `bytes`. All
    /// these requests are in `next`.
    bytes_of_services: usize,
}

impl Default for Inbox {
    fn default() -> Self {
        let waiting = FairQueue::new(QUANTUM);
        Self { next: Vec::new(), next_of_clients: 0, waiting, bytes: 0, bytes_of_services: 0 }
    }
}

/// Decides which requests of one connection a backlogged target reads: requests of administrators
/// for the status of the group, which shows why the target is backlogged. The target reads these
/// requests from a connection with no other requests. On each other connection, at most one request
/// waits until the backlog ends.
#[derive(Debug, Default)]
pub(super) struct ReadGate {
    /// Whether the peer has sent a request other than `AskGroup`.
    has_other_requests: bool,
}

impl ReadGate {
    /// Notes the number of the message that has arrived.
    pub(super) fn note(&mut self, message: u16) {
        self.has_other_requests |= message != AskGroup::ID;
    }

    /// Whether a backlogged target reads the requests of the connection.
    pub(super) fn opens_in_backlog(&self) -> bool {
        !self.has_other_requests
    }
}

fn body_bytes(event: &Event) -> usize {
    match event {
        Event::Request { body, .. } => body.len(),
        _ => 0,
    }
}

impl Inbox {
    /// Adds an event that is not a request. A cluster map replaces the map that waits already,
    /// because the target needs only the newest map.
    pub(super) fn put(&mut self, event: Event) {
        if matches!(event, Event::Map(_)) {
            let is_map = |waiting: &&mut Event| matches!(waiting, Event::Map(_));
            if let Some(waiting) = self.next.iter_mut().rev().find(is_map) {
                *waiting = event;
                return;
            }
        }
        self.next.push(event);
    }

    /// Adds a request of a peer. Requests of other services are always in the next batch, because
    /// they may belong to operations that hold locks.
    pub(super) fn put_request(&mut self, peer: &Peer, request: Event) {
        let bytes = body_bytes(&request);
        self.bytes += bytes;
        if peer.kind != NodeKind::Client {
            self.bytes_of_services += bytes;
            self.next.push(request);
        } else if self.waiting.count() == 0 && self.next_of_clients < MAX_BATCH {
            self.next_of_clients += 1;
            self.next.push(request);
        } else {
            self.waiting.push(peer.node, 1, request);
        }
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
    }

    /// Whether the service may read another request of a peer.
    pub(super) fn has_space(&self, peer: &Peer) -> bool {
        if peer.kind != NodeKind::Client {
            return self.next.len() < MAX_INBOX && self.bytes_of_services < MAX_INBOX_BYTES;
        }
        match self.waiting.count_of(peer.node) {
            0 => self.bytes < 2 * MAX_INBOX_BYTES,
            MAX_OF_CLIENT.. => false,
            _ => self.waiting.count() < MAX_INBOX && self.bytes < MAX_INBOX_BYTES,
        }
    }

    /// Whether no event waits.
    pub(super) fn is_empty(&self) -> bool {
        self.next.is_empty() && self.waiting.count() == 0
    }

    /// Panics if an invariant of the counts is violated.
    fn check_invariants(&self) {
        assert!(self.next_of_clients <= MAX_BATCH, "a batch has at most {MAX_BATCH} requests");
        assert!(self.next_of_clients <= self.next.len(), "the counted requests are in the batch");
        assert!(
            self.bytes_of_services <= self.bytes,
            "the counted bytes include the bytes of services"
        );
    }

    /// Removes and returns the events of the next batch.
    pub(super) fn take_batch(&mut self) -> Vec<Event> {
        let mut batch = std::mem::take(&mut self.next);
        for _ in std::mem::take(&mut self.next_of_clients)..MAX_BATCH {
            let Some((_, request)) = self.waiting.take(|_| true) else { break };
            batch.push(request);
        }
        self.bytes_of_services = 0;
        self.bytes -= batch.iter().map(body_bytes).sum::<usize>();
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
        batch
    }
}

#[cfg(test)]
mod tests;
