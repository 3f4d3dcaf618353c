//! The events that wait for the thread of a metadata target.
//!
//! While at most [`MAX_BATCH`] requests of clients wait, the thread takes all events in the order
//! of their arrival. It sends the replies of a batch together, so the order within a batch hardly
//! matters. Further requests of clients wait in a queue that divides the target between the clients
//! (docs/design/0027-fair-queues.md). So a client with many requests in flight delays a request of
//! another client by a batch or two, and not by all its requests.
//!
//! # Invariants
//! - Requests of one client leave in the order in which they were added.
//! - The next batch has at most [`MAX_BATCH`] requests of clients.
//! - While requests wait in the queue, new requests of clients go to the queue too.

use crate::target::Event;
use skep_rpc::Peer;
use skep_service::fair_queue::FairQueue;
use skep_types::NodeKind;

/// Maximum number of requests of clients in one batch: a few milliseconds of work, and enough for
/// one write of the log.
const MAX_BATCH: usize = 512;
/// Maximum number of events in the inbox. While the inbox is full, the service reads from no
/// connection, except for the first waiting request of a client.
const MAX_INBOX: usize = 10_000;
/// Maximum number of requests of one client that wait in the queue.
const MAX_OF_CLIENT: usize = 1024;
/// Total length of the request bodies in the inbox at which the service stops reading from
/// connections of clients. Each connection may then still add one more request. For the first
/// waiting request of a client, the limit is twice as high. The requests of services have the same
/// limit, which counts only their own bodies. So clients cannot keep the service from reading a
/// request of an operation that holds locks.
const MAX_INBOX_BYTES: usize = 32 << 20;
/// Number of requests that a client may have in a batch before the next client has its turn.
const QUANTUM: u64 = 4;

/// The inbox of a metadata target.
#[derive(Debug)]
pub(super) struct Inbox {
    /// The events of the next batch.
    next: Vec<Event>,
    /// Number of requests of clients in `next`.
    next_of_clients: usize,
    /// The requests of clients that are not in the next batch.
    waiting: FairQueue<Event>,
    /// Total length of the request bodies in the inbox.
    bytes: usize,
    /// The part of `bytes` that belongs to requests of services. All of them are in `next`.
    bytes_of_services: usize,
}

impl Default for Inbox {
    fn default() -> Self {
        let waiting = FairQueue::new(QUANTUM);
        Self { next: Vec::new(), next_of_clients: 0, waiting, bytes: 0, bytes_of_services: 0 }
    }
}

fn body_bytes(event: &Event) -> usize {
    match event {
        Event::Request { body, .. } => body.len(),
        _ => 0,
    }
}

impl Inbox {
    /// Adds an event that is not a request.
    pub(super) fn put(&mut self, event: Event) {
        self.next.push(event);
    }

    /// Adds a request of a peer. Requests of services come in the next batch, because they belong
    /// to operations that are in progress and hold locks.
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

    /// Removes and returns the events of the next batch.
    pub(super) fn take_batch(&mut self) -> Vec<Event> {
        let mut batch = std::mem::take(&mut self.next);
        for _ in std::mem::take(&mut self.next_of_clients)..MAX_BATCH {
            let Some((_, request)) = self.waiting.take(|_| true) else { break };
            batch.push(request);
        }
        self.bytes_of_services = 0;
        self.bytes -= batch.iter().map(body_bytes).sum::<usize>();
        batch
    }
}

#[cfg(test)]
mod tests;
