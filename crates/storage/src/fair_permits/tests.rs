//! Tests the permits with all short sequences of waits, releases and cancellations.

use super::*;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::task::Context;

const PERMITS: usize = 2;
const CLIENTS: u32 = 3;

/// A wait for a permit.
type Acquire = Pin<Box<dyn Future<Output = Permit>>>;

/// An event of a target.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// A request of this client begins to wait.
    Arrive(u32),
    /// The oldest request that waits is dropped.
    Cancel,
    /// The newest request that waits is dropped.
    CancelNewest,
    /// The request that has had its permit for the longest time ends.
    Release,
}

const EVENTS: [Event; 6] = [
    Event::Arrive(0),
    Event::Arrive(1),
    Event::Arrive(2),
    Event::Cancel,
    Event::CancelNewest,
    Event::Release,
];

/// Permits, and the requests of their clients.
struct Target {
    permits: Rc<FairPermits>,
    waiting: VecDeque<(u32, usize, Acquire)>,
    held: VecDeque<(u32, Permit)>,
    /// For each client: the id of its newest request that has got a permit.
    granted: HashMap<u32, usize>,
    arrived: usize,
    /// Whether the futures are polled after each event. Without these polls, a request may have a
    /// permit before the next poll of its future.
    polls: bool,
}

impl Target {
    fn new(most_of_one: usize, polls: bool) -> Self {
        Self {
            permits: FairPermits::new(PERMITS, most_of_one),
            waiting: VecDeque::new(),
            held: VecDeque::new(),
            granted: HashMap::new(),
            arrived: 0,
            polls,
        }
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Arrive(client) => {
                self.arrived += 1;
                let permits = Rc::clone(&self.permits);
                let acquire =
                    async move { permits.acquire(NodeId::new(client), || REQUEST_COST).await };
                self.waiting.push_back((client, self.arrived, Box::pin(acquire)));
                // The first poll puts the request into the queue.
                self.poll(self.waiting.len() - 1);
            }
            Event::Cancel => drop(self.waiting.pop_front()),
            Event::CancelNewest => drop(self.waiting.pop_back()),
            Event::Release => drop(self.held.pop_front()),
        }
        if self.polls {
            self.poll(0);
        }
        self.check();
    }

    /// Polls the waiting requests from position `first` on.
    fn poll(&mut self, first: usize) {
        let mut at = first;
        while at < self.waiting.len() {
            let polled = self.waiting[at].2.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            let Poll::Ready(permit) = polled else {
                at += 1;
                continue;
            };
            let (client, number, _) = self.waiting.remove(at).expect("it was polled");
            let before = self.granted.insert(client, number);
            assert!(before < Some(number), "requests of client {client} keep their order");
            self.held.push_back((client, permit));
        }
    }

    fn check(&self) {
        let state = self.permits.state.borrow();
        state.waiting.check_invariants();
        let held: usize = state.held.values().sum();
        assert_eq!(state.free + held, PERMITS, "each permit is free or held");
        for client in (0..CLIENTS).map(NodeId::new) {
            assert!(state.held_by(client) <= self.permits.most_of_one);
        }
        if self.polls {
            assert_eq!(held, self.held.len());
            let may_start = |client: u32| {
                state.free > 0 && state.held_by(NodeId::new(client)) < self.permits.most_of_one
            };
            let idle = self.waiting.iter().find(|(client, ..)| may_start(*client));
            assert!(idle.is_none(), "no request waits for a permit that it may have");
        }
    }
}

#[test]
fn permit_invariants_hold_in_all_short_event_sequences() {
    const LENGTH: u32 = 6;
    for most_of_one in 1..=PERMITS {
        for polls in [true, false] {
            for number in 0..EVENTS.len().pow(LENGTH) {
                let mut target = Target::new(most_of_one, polls);
                let mut rest = number;
                for _ in 0..LENGTH {
                    target.apply(EVENTS[rest % EVENTS.len()]);
                    rest /= EVENTS.len();
                }
                // When all requests are gone, all permits are free, whatever events came before.
                target.waiting.clear();
                target.held.clear();
                assert_eq!(target.permits.state.borrow().free, PERMITS);
                assert_eq!(target.permits.waiting(), 0);
            }
        }
    }
}

/// The 1000 waiting requests of the busy client stand for many connections, because each connection
/// waits with only one request.
#[test]
fn single_request_overtakes_the_queue_of_a_busy_client() {
    let mut target = Target::new(PERMITS, true);
    for _ in 0..1000 {
        target.apply(Event::Arrive(0));
    }
    target.apply(Event::Arrive(1));
    let turn = usize::try_from(CLIENT_QUANTUM / REQUEST_COST).unwrap();
    let releases = (1..=turn + 1).find(|_| {
        target.apply(Event::Release);
        target.granted.contains_key(&1)
    });
    assert!(releases.is_some(), "the request waits for more than {turn} releases");
}

#[test]
fn wait_for_released_permits_ends_with_the_last_release() {
    skep_env::block_on(async {
        let permits = FairPermits::new(PERMITS, PERMITS);
        permits.all_released().await;
        let held = permits.acquire(NodeId::new(1), || 1).await;
        let mut all = Box::pin(permits.all_released());
        let mut poll = || all.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending());
        drop(held);
        assert!(poll().is_ready());
    })
    .unwrap();
}
