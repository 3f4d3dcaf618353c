//! The lock that orders the operations on one chunk file. It admits one writer at a time, and
//! concurrent readers if their ranges do not overlap with the writer's. The order is first come,
//! first served: no later operation overtakes a waiting writer if the two conflict.
//!
//! # Invariants
//! Tickets ascend along the queue, so an entry waits only for earlier entries: see
//! [`RangeLock::check_invariants`].

use skep_env::local::Notify;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;

#[derive(Debug)]
struct Entry {
    ticket: u64,
    range: Range<u64>,
    writes: bool,
}

impl Entry {
    fn conflicts(&self, other: &Self) -> bool {
        let meet = self.range.start < other.range.end && other.range.start < self.range.end;
        (self.writes && other.writes) || ((self.writes || other.writes) && meet)
    }
}

/// The range lock of one chunk file.
#[derive(Debug, Default)]
pub(crate) struct RangeLock {
    queue: RefCell<VecDeque<Entry>>,
    next_ticket: Cell<u64>,
    changed: Notify,
}

/// An entry of the queue. The entry leaves the queue when this is dropped.
#[derive(Debug)]
pub(crate) struct RangeGuard<'a> {
    lock: &'a RangeLock,
    ticket: u64,
}

impl RangeLock {
    /// Waits until no earlier writer's range overlaps `range`. Cancel-safe.
    pub(crate) async fn read(&self, range: Range<u64>) -> RangeGuard<'_> {
        self.enter(range, false).await
    }

    /// Waits until there is no earlier writer, and no earlier reader whose range overlaps `range`.
    /// Cancel-safe.
    pub(crate) async fn write(&self, range: Range<u64>) -> RangeGuard<'_> {
        self.enter(range, true).await
    }

    async fn enter(&self, range: Range<u64>, writes: bool) -> RangeGuard<'_> {
        let ticket = self.next_ticket.get();
        self.next_ticket.set(ticket + 1);
        self.queue.borrow_mut().push_back(Entry { ticket, range, writes });
        let guard = RangeGuard { lock: self, ticket };
        while self.is_blocked(ticket) {
            self.changed.wait().await;
        }
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
        guard
    }

    /// Checks that tickets ascend along the queue. Then an entry waits only for earlier entries, so
    /// there can be no deadlock.
    ///
    /// # Panics
    /// Panics if they do not.
    pub(crate) fn check_invariants(&self) {
        let queue = self.queue.borrow();
        let tickets = queue.iter().map(|entry| entry.ticket);
        assert!(tickets.is_sorted_by(|first, second| first < second), "tickets rise");
        let last = queue.back().map(|entry| entry.ticket);
        assert!(last < Some(self.next_ticket.get()), "tickets are below the next one");
    }

    fn is_blocked(&self, ticket: u64) -> bool {
        let queue = self.queue.borrow();
        let own = queue.iter().find(|entry| entry.ticket == ticket);
        let own = own.expect("an entry stays until its guard is dropped");
        queue.iter().take_while(|entry| entry.ticket < ticket).any(|entry| entry.conflicts(own))
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        self.lock.queue.borrow_mut().retain(|entry| entry.ticket != self.ticket);
        self.lock.changed.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    /// Starts operations in order, and lets the first `held` keep the lock. Returns for each
    /// operation whether it has acquired the lock.
    fn entered(held: usize, operations: &[(bool, Range<u64>)]) -> Vec<bool> {
        let operations = operations.to_vec();
        skep_env::block_on(async move {
            let lock = Rc::new(RangeLock::default());
            let inside = Rc::new(RefCell::new(vec![false; operations.len()]));
            let mut tasks = Vec::new();
            for (index, (writes, range)) in operations.into_iter().enumerate() {
                let (lock, inside) = (Rc::clone(&lock), Rc::clone(&inside));
                tasks.push(skep_env::spawn(async move {
                    let guard = lock.enter(range, writes).await;
                    inside.borrow_mut()[index] = true;
                    if index < held {
                        std::future::pending::<()>().await;
                    }
                    drop(guard);
                }));
            }
            for _ in 0..20 {
                skep_env::yield_now().await;
            }
            inside.take()
        })
        .unwrap()
    }

    #[test]
    fn writers_exclude_writers_and_overlapping_readers() {
        assert_eq!(entered(1, &[(true, 0..10), (true, 20..30)]), [true, false]);
        assert_eq!(entered(1, &[(true, 0..10), (false, 5..6)]), [true, false]);
        assert_eq!(entered(1, &[(true, 0..10), (false, 10..20)]), [true, true]);
        assert_eq!(entered(1, &[(false, 0..10), (false, 0..10)]), [true, true]);
        assert_eq!(entered(1, &[(false, 0..10), (true, 10..20)]), [true, true]);
        assert_eq!(entered(1, &[(false, 0..10), (true, 9..20)]), [true, false]);
    }

    #[test]
    fn a_waiting_writer_is_not_overtaken() {
        let operations = [(false, 0..10), (true, 0..10), (false, 0..10)];
        assert_eq!(entered(1, &operations), [true, false, false]);
        assert_eq!(entered(0, &operations), [true, true, true]);
    }
}
