//! The permits of a target. The permits limit the number of requests that the target executes at
//! the same time, and determine which waiting request comes next. Requests of one client get their
//! permits in the order in which they began to wait. Clients share the target by the cost of their
//! requests ([`skep_service::fair_queue`]).
//!
//! # Hazard: checks before the wait
//! While a request waits, the cluster map may change, and requests of other clients overtake it. So
//! the caller must check the sender of a request after the request has got its permit.
//!
//! # Invariants
//! - The number of free permits plus the number of held permits is always the number of permits.
//! - No client holds more than `most_of_one` permits.
//! - If a permit is free, each client with waiting requests holds `most_of_one` permits.

use crate::limits::{CLIENT_QUANTUM, MAX_REQUEST_COST, REQUEST_COST, REQUEST_COST_UNIT};
use skep_env::NumberMap;
use skep_env::local::Notify;
use skep_rpc::Incoming;
use skep_service::fair_queue::FairQueue;
use skep_types::NodeId;
use skep_types::codec::Codec;
use skep_wire::Request;
use skep_wire::storage::ReadChunk;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Poll, Waker};

/// The permits of one target.
#[derive(Debug)]
pub(crate) struct FairPermits {
    permits: usize,
    /// Maximum number of permits that one client holds. The other permits let a request of another
    /// client begin immediately.
    most_of_one: usize,
    state: RefCell<State>,
    released: Notify,
}

#[derive(Debug)]
struct State {
    free: usize,
    /// The number of permits that each client holds, by node id. Clients without permits are left
    /// out.
    held: NumberMap<usize>,
    waiting: FairQueue<Rc<Waiter>>,
}

/// A request that waits for a permit.
#[derive(Debug, Default)]
struct Waiter {
    turn: Cell<Turn>,
    waker: RefCell<Option<Waker>>,
}

/// The progress of a request that has to wait for a permit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Turn {
    /// The request is in the queue.
    #[default]
    Waits,
    /// The request has left the queue, and a permit is counted for it. [`FairPermits::acquire`] has
    /// not returned the permit yet.
    Granted,
    /// [`FairPermits::acquire`] returns the permit to its caller.
    Taken,
}

/// A permit. The drop of this value releases the permit.
#[derive(Debug)]
pub(crate) struct Permit {
    permits: Rc<FairPermits>,
    client: NodeId,
}

/// The position of a waiting request in the queue. The drop of this value removes the request from
/// the queue. If the request already has a permit, the drop grants the permit to the next request.
struct Place<'a> {
    permits: &'a FairPermits,
    client: NodeId,
    waiter: Rc<Waiter>,
}

/// Returns the cost of a request, by the number of bytes that it writes or reads.
pub(crate) fn cost(incoming: &Incoming) -> u64 {
    let written = incoming.data.as_ref().map_or(0, |data| data.len() as u64);
    let read = match incoming.header.message {
        ReadChunk::ID => ReadChunk::from_bytes(&incoming.body).map_or(0, |it| u64::from(it.length)),
        _ => 0,
    };
    (REQUEST_COST + written.max(read) / REQUEST_COST_UNIT).min(MAX_REQUEST_COST)
}

impl State {
    fn held_by(&self, client: NodeId) -> usize {
        self.held.get(&u64::from(client.raw())).copied().unwrap_or(0)
    }

    /// Counts a permit that a client gets.
    fn grant(&mut self, client: NodeId) {
        self.free = self.free.checked_sub(1).expect("only free permits are granted");
        *self.held.entry(u64::from(client.raw())).or_default() += 1;
    }

    /// Counts a permit that a client returns.
    fn take_back(&mut self, client: NodeId) {
        self.free += 1;
        let key = u64::from(client.raw());
        let held = self.held.get_mut(&key).expect("the client holds a permit");
        *held -= 1;
        if *held == 0 {
            self.held.remove(&key);
        }
    }
}

impl FairPermits {
    /// Creates `permits` free permits. One client holds at most `most_of_one` permits.
    pub(crate) fn new(permits: usize, most_of_one: usize) -> Rc<Self> {
        assert!((1..=permits).contains(&most_of_one), "a client may hold a permit");
        let waiting = FairQueue::new(CLIENT_QUANTUM);
        let state = State { free: permits, held: NumberMap::default(), waiting };
        Rc::new(Self {
            permits,
            most_of_one,
            state: RefCell::new(state),
            released: Notify::default(),
        })
    }

    /// Waits for a permit for a request of `client`. `cost` returns the cost of the request, and is
    /// called only if the request has to wait. Cancel-safe.
    pub(crate) async fn acquire(
        self: &Rc<Self>,
        client: NodeId,
        cost: impl FnOnce() -> u64,
    ) -> Permit {
        let permit = || Permit { permits: Rc::clone(self), client };
        let place = {
            let mut state = self.state.borrow_mut();
            if state.free > 0 && state.held_by(client) < self.most_of_one {
                state.grant(client);
                return permit();
            }
            let place = Place { permits: self, client, waiter: Rc::default() };
            state.waiting.push(client, cost(), Rc::clone(&place.waiter));
            place
        };
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
        std::future::poll_fn(|context| {
            if place.waiter.turn.get() == Turn::Granted {
                return Poll::Ready(());
            }
            *place.waiter.waker.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
        // After this line, the permit belongs to the returned value and not to the position in the
        // queue.
        place.waiter.turn.set(Turn::Taken);
        permit()
    }

    /// Waits until no request holds a permit. The caller must have dropped all waiting requests.
    pub(crate) async fn all_released(&self) {
        loop {
            let change = self.released.wait();
            if self.state.borrow().free == self.permits {
                return;
            }
            change.await;
        }
    }

    /// Returns the number of requests that wait.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.state.borrow().waiting.count()
    }

    /// Grants a free permit to the next waiting request. `None` means that no permit is free, or
    /// that the client of each waiting request already has its maximum number of permits.
    fn grant_next(&self) -> Option<Rc<Waiter>> {
        let mut state = self.state.borrow_mut();
        let State { free, held, waiting } = &mut *state;
        if *free == 0 {
            return None;
        }
        let holds = |client: NodeId| held.get(&u64::from(client.raw())).copied().unwrap_or(0);
        let (client, waiter) = waiting.take(|client| holds(client) < self.most_of_one)?;
        state.grant(client);
        Some(waiter)
    }

    /// Takes a permit back from a client, and grants it to the next request.
    fn release(&self, client: NodeId) {
        self.state.borrow_mut().take_back(client);
        while let Some(waiter) = self.grant_next() {
            waiter.turn.set(Turn::Granted);
            if let Some(waker) = waiter.waker.take() {
                waker.wake();
            }
        }
        self.released.notify();
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
    }

    /// Panics if an invariant of the type is violated.
    fn check_invariants(&self) {
        let state = self.state.borrow();
        let held: usize = state.held.values().sum();
        assert_eq!(state.free + held, self.permits, "each permit is free or held");
        assert!(
            state.held.values().all(|count| (1..=self.most_of_one).contains(count)),
            "a client holds at most {} permits",
            self.most_of_one
        );
        if state.free > 0 {
            let full = state.held.iter().filter(|(_, count)| **count == self.most_of_one);
            let waiting = full.map(|(client, _)| state.waiting.count_of(node_of(*client)));
            assert_eq!(
                waiting.sum::<usize>(),
                state.waiting.count(),
                "while a permit is free, only clients with their maximum wait"
            );
        }
    }
}

/// Returns the node whose id is a key of `State::held`.
fn node_of(key: u64) -> NodeId {
    NodeId::new(u32::try_from(key).expect("the key is the number of a node"))
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.permits.release(self.client);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        match self.waiter.turn.get() {
            Turn::Waits => {
                let is_own = |other: &Rc<Waiter>| Rc::ptr_eq(other, &self.waiter);
                self.permits.state.borrow_mut().waiting.remove(self.client, is_own);
            }
            Turn::Granted => self.permits.release(self.client),
            Turn::Taken => {}
        }
    }
}

#[cfg(test)]
mod tests;
