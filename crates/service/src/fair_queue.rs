//! A queue that divides a target between its clients: deficit round robin over the clients that
//! have waiting entries (docs/design/0027-fair-queues.md). The turn of a client in the ring is
//! called a visit.
//!
//! The queue is a pure data structure without a clock and without a limit on its length. The
//! targets choose the costs of their requests, and limit the number of entries.
//!
//! # Invariants
//! - A client with entries is in the ring exactly once, and a client without entries is not in the
//!   ring.
//! - The entries of one client leave the queue in the order in which they were added.
//! - The deficit of a client that is not being visited is less than the cost of its first entry.
//!
//! Held by the test `entries_of_a_client_leave_the_queue_once_and_in_order`: the second invariant,
//! which `check_invariants` cannot check.

use skep_env::NumberMap;
use skep_types::NodeId;
use std::collections::VecDeque;

/// The waiting entries of all clients.
#[derive(Debug)]
pub struct FairQueue<T> {
    /// Number of entries of all clients.
    count: usize,
    /// Cost that a client may use in each visit. An entry with a higher cost leaves the queue in a
    /// later visit, since the deficits of the visits add up.
    quantum: u64,
    clients: NumberMap<Waiting<T>>,
    /// The clients with entries, in the order of their visits. The first client is the client of
    /// the current or next visit.
    ring: VecDeque<NodeId>,
    is_visiting: bool,
}

/// The waiting entries of one client.
#[derive(Debug)]
struct Waiting<T> {
    entries: VecDeque<(u64, T)>,
    /// Cost that the client may still use in its current visit.
    deficit: u64,
}

fn key(client: NodeId) -> u64 {
    u64::from(client.raw())
}

impl<T> FairQueue<T> {
    /// Creates an empty queue. A client may use the cost `quantum` before the next client has its
    /// turn.
    pub fn new(quantum: u64) -> Self {
        Self {
            count: 0,
            quantum,
            clients: NumberMap::default(),
            ring: VecDeque::new(),
            is_visiting: false,
        }
    }

    /// Adds an entry of a client. A cost of zero counts as one.
    pub fn push(&mut self, client: NodeId, cost: u64, entry: T) {
        let waiting = self.clients.entry(key(client)).or_insert_with(|| {
            self.ring.push_back(client);
            Waiting { entries: VecDeque::new(), deficit: 0 }
        });
        waiting.entries.push_back((cost.max(1), entry));
        self.count += 1;
    }

    /// Returns the number of entries.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the number of entries of a client.
    pub fn count_of(&self, client: NodeId) -> usize {
        self.clients.get(&key(client)).map_or(0, |waiting| waiting.entries.len())
    }

    /// Removes and returns the next entry, among the clients for which `may_take` is true. `None`
    /// means that these clients have no entry. On average, the number of visited clients is at most
    /// the cost of the entry divided by the quantum, plus one.
    pub fn take(&mut self, may_take: impl Fn(NodeId) -> bool) -> Option<(NodeId, T)> {
        let mut passed_over = 0;
        while passed_over < self.ring.len() {
            let client = *self.ring.front()?;
            let waiting = self.clients.get_mut(&key(client))?;
            if may_take(client) {
                passed_over = 0;
                if !std::mem::replace(&mut self.is_visiting, true) {
                    waiting.deficit += self.quantum;
                }
                let (cost, _) = waiting.entries.front()?;
                if let Some(left) = waiting.deficit.checked_sub(*cost) {
                    waiting.deficit = left;
                    return self.pop_first(client).map(|entry| (client, entry));
                }
            } else {
                passed_over += 1;
                // The client may not take an entry in this visit, so the client loses its deficit.
                waiting.deficit = 0;
            }
            self.ring.rotate_left(1);
            self.is_visiting = false;
        }
        None
    }

    /// Removes the first entry of the first client of the ring.
    fn pop_first(&mut self, client: NodeId) -> Option<T> {
        let waiting = self.clients.get_mut(&key(client))?;
        let (_, entry) = waiting.entries.pop_front()?;
        self.count -= 1;
        if waiting.entries.is_empty() {
            self.remove_client(client);
        }
        Some(entry)
    }

    /// Removes the entry of `client` for which `is_it` is true, if there is such an entry.
    pub fn remove(&mut self, client: NodeId, is_it: impl Fn(&T) -> bool) {
        let Some(waiting) = self.clients.get_mut(&key(client)) else { return };
        let before = waiting.entries.len();
        waiting.entries.retain(|(_, entry)| !is_it(entry));
        let removed = before - waiting.entries.len();
        self.count -= removed;
        if waiting.entries.is_empty() {
            self.remove_client(client);
        } else if removed > 0 {
            // The deficit was less than the cost of the removed entry, but the next entry may cost
            // less than the deficit. An invariant forbids such a deficit, so the client loses it.
            waiting.deficit = 0;
        }
    }

    /// Removes a client without entries.
    fn remove_client(&mut self, client: NodeId) {
        self.clients.remove(&key(client));
        if self.ring.front() == Some(&client) {
            self.ring.pop_front();
            self.is_visiting = false;
        } else {
            self.ring.retain(|it| *it != client);
        }
    }

    /// Checks the queue.
    ///
    /// # Panics
    /// Panics if one of the invariants in the documentation of this module does not hold.
    pub fn check_invariants(&self) {
        let mut ring: Vec<_> = self.ring.iter().map(|client| key(*client)).collect();
        ring.sort_unstable();
        let mut clients: Vec<_> = self.clients.keys().copied().collect();
        clients.sort_unstable();
        assert_eq!(ring, clients, "the ring has each client with entries once");
        let count: usize = self.clients.values().map(|it| it.entries.len()).sum();
        assert_eq!(count, self.count, "the queue knows the number of its entries");
        for (at, client) in self.ring.iter().enumerate() {
            let Waiting { entries, deficit } = &self.clients[&key(*client)];
            let (cost, _) = entries.front().expect("a client in the ring has entries");
            let is_visited = at == 0 && self.is_visiting;
            assert!(
                is_visited || deficit < cost,
                "outside its visit, client {client} has a deficit of {deficit}, which is not less \
                 than the cost {cost} of its first entry"
            );
        }
    }
}

#[cfg(test)]
mod tests;
