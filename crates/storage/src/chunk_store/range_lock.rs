//! The lock that orders the operations on one chunk file. A reader excludes each writer whose range
//! overlaps with the range of the reader. Writes exclude each other only if they touch the same
//! region. All other changes, such as truncations, exclude all writers. Conflicting operations get
//! the lock in the order of their arrival.
//!
//! # Invariants
//! Tickets ascend along the queue, and each entry waits for all earlier entries that conflict with
//! it ([`RangeLock::check_invariants`]).

use skep_format::chunk::region_of;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::task::{Poll, Waker};

/// The kind of access that an operation needs to its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    /// Writes data and pages of the regions that the range touches. May extend the file, but makes
    /// no other change.
    Write,
    /// Makes any other change, such as a truncation.
    Exclusive,
}

#[derive(Debug)]
struct Entry {
    ticket: u64,
    range: Range<u64>,
    access: Access,
    /// Number of earlier entries of the queue that conflict with this entry, and that have not
    /// ended.
    obstacles: usize,
    waker: Option<Waker>,
}

impl Entry {
    fn conflicts(&self, other: &Self) -> bool {
        match (self.access, other.access) {
            (Access::Read, Access::Read) => false,
            (Access::Read, _) | (_, Access::Read) => {
                self.range.start < other.range.end && other.range.start < self.range.end
            }
            (Access::Write, Access::Write) => {
                let (first, last) = self.regions();
                let (other_first, other_last) = other.regions();
                first <= other_last && other_first <= last
            }
            _ => true,
        }
    }

    /// Returns the first and the last region that the range touches.
    fn regions(&self) -> (u64, u64) {
        (region_of(self.range.start), region_of(self.range.end.saturating_sub(1)))
    }
}

/// The range lock of one chunk file.
#[derive(Debug, Default)]
pub(crate) struct RangeLock {
    queue: RefCell<VecDeque<Entry>>,
    next_ticket: Cell<u64>,
}

/// An entry of the queue. The entry leaves the queue when the guard is dropped.
#[derive(Debug)]
pub(crate) struct RangeGuard<'a> {
    lock: &'a RangeLock,
    ticket: u64,
}

impl RangeLock {
    /// Waits until no earlier writer's range overlaps `range`. Cancel-safe.
    pub(crate) async fn read(&self, range: Range<u64>) -> RangeGuard<'_> {
        let guard = self.join(range, Access::Read);
        guard.admission().await;
        guard
    }

    /// Takes a place in the queue for a write. The write must wait for [`RangeGuard::admission`],
    /// must touch only the regions of `range`, and must not reduce the size of the file.
    pub(crate) fn write(&self, range: Range<u64>) -> RangeGuard<'_> {
        self.join(range, Access::Write)
    }

    /// Waits until there is no earlier writer, and no earlier reader whose range overlaps `range`.
    /// Cancel-safe.
    pub(crate) async fn exclusive(&self, range: Range<u64>) -> RangeGuard<'_> {
        let guard = self.join(range, Access::Exclusive);
        guard.admission().await;
        guard
    }

    fn join(&self, range: Range<u64>, access: Access) -> RangeGuard<'_> {
        let ticket = self.next_ticket.get();
        self.next_ticket.set(ticket + 1);
        let mut queue = self.queue.borrow_mut();
        let mut entry = Entry { ticket, range, access, obstacles: 0, waker: None };
        entry.obstacles = queue.iter().filter(|earlier| earlier.conflicts(&entry)).count();
        queue.push_back(entry);
        RangeGuard { lock: self, ticket }
    }

    /// Checks the invariants of this module. Because an entry waits only for earlier entries, no
    /// deadlock is possible.
    ///
    /// # Panics
    /// Panics if a checked value is wrong.
    pub(crate) fn check_invariants(&self) {
        let queue = self.queue.borrow();
        let tickets = queue.iter().map(|entry| entry.ticket);
        assert!(
            tickets.is_sorted_by(|first, second| first < second),
            "the queue is in the order of the tickets"
        );
        let last = queue.back().map(|entry| entry.ticket);
        assert!(last < Some(self.next_ticket.get()), "all tickets are below the next ticket");
        for (index, entry) in queue.iter().enumerate() {
            let obstacles = queue.iter().take(index).filter(|earlier| earlier.conflicts(entry));
            assert_eq!(entry.obstacles, obstacles.count(), "the obstacles of an entry");
        }
    }
}

impl RangeGuard<'_> {
    /// Waits until no earlier entry conflicts with this entry. Cancel-safe. Records the duration of
    /// the wait, so that this time does not count as time of the disk.
    pub(crate) async fn admission(&self) {
        let mut since = None;
        std::future::poll_fn(|context| {
            let mut queue = self.lock.queue.borrow_mut();
            let index = queue.partition_point(|entry| entry.ticket < self.ticket);
            let own = queue.get_mut(index).expect("an entry stays until its guard is dropped");
            if own.obstacles == 0 {
                if let Some(since) = since {
                    skep_env::note_obstructed(skep_env::now().saturating_sub(since));
                }
                return Poll::Ready(());
            }
            since.get_or_insert_with(skep_env::now);
            own.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
        if cfg!(debug_assertions) {
            self.lock.check_invariants();
        }
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        let mut queue = self.lock.queue.borrow_mut();
        let index = queue.partition_point(|entry| entry.ticket < self.ticket);
        let Some(own) = queue.remove(index) else { return };
        for later in queue.iter_mut().skip(index).filter(|later| own.conflicts(later)) {
            later.obstacles -= 1;
            if later.obstacles == 0
                && let Some(waker) = later.waker.take()
            {
                waker.wake();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Access::{Exclusive, Read, Write};
    use super::*;
    use skep_format::chunk::REGION_BYTES;
    use std::rc::Rc;

    /// Starts operations in order. The first `held` operations never release the lock. Returns for
    /// each operation whether it has acquired the lock.
    fn entered(held: usize, operations: &[(Access, Range<u64>)]) -> Vec<bool> {
        let operations = operations.to_vec();
        skep_env::block_on(async move {
            let lock = Rc::new(RangeLock::default());
            let inside = Rc::new(RefCell::new(vec![false; operations.len()]));
            let mut tasks = Vec::new();
            for (index, (access, range)) in operations.into_iter().enumerate() {
                let (lock, inside) = (Rc::clone(&lock), Rc::clone(&inside));
                tasks.push(skep_env::spawn(async move {
                    let guard = lock.join(range, access);
                    guard.admission().await;
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
            lock.check_invariants();
            inside.take()
        })
        .unwrap()
    }

    #[test]
    fn write_excludes_reads_of_the_same_range() {
        for access in [Write, Exclusive] {
            assert_eq!(entered(1, &[(access, 0..10), (Read, 5..6)]), [true, false]);
            assert_eq!(entered(1, &[(access, 0..10), (Read, 10..20)]), [true, true]);
            assert_eq!(entered(1, &[(Read, 0..10), (access, 10..20)]), [true, true]);
            assert_eq!(entered(1, &[(Read, 0..10), (access, 9..20)]), [true, false]);
        }
        assert_eq!(entered(1, &[(Read, 0..10), (Read, 0..10)]), [true, true]);
    }

    #[test]
    fn writes_of_different_regions_run_at_the_same_time() {
        let region = |index: u64| index * REGION_BYTES..(index + 1) * REGION_BYTES;
        assert_eq!(entered(1, &[(Write, region(0)), (Write, region(1))]), [true, true]);
        assert_eq!(
            entered(1, &[(Write, 0..10), (Write, 20..30)]),
            [true, false],
            "both writes change one region"
        );
        let both = REGION_BYTES - 1..REGION_BYTES + 1;
        assert_eq!(entered(1, &[(Write, both.clone()), (Write, region(1))]), [true, false]);
        assert_eq!(entered(1, &[(Write, region(0)), (Write, both)]), [true, false]);
    }

    #[test]
    fn an_exclusive_change_excludes_all_writers() {
        for (first, second) in [(Exclusive, Write), (Write, Exclusive), (Exclusive, Exclusive)] {
            let operations = [(first, 0..10), (second, 9 * REGION_BYTES..10 * REGION_BYTES)];
            assert_eq!(entered(1, &operations), [true, false]);
        }
    }

    #[test]
    fn later_operation_does_not_overtake_a_waiting_writer() {
        for access in [Write, Exclusive] {
            let operations = [(Read, 0..10), (access, 0..10), (Read, 0..10)];
            assert_eq!(entered(1, &operations), [true, false, false]);
            assert_eq!(entered(0, &operations), [true, true, true]);
        }
    }

    #[test]
    fn time_waiting_for_a_range_lock_is_measured() {
        let spent = skep_env::block_on(async {
            let lock = Rc::new(RangeLock::default());
            let first = lock.write(0..10);
            first.admission().await;
            let holder = skep_env::spawn(async move {
                skep_env::sleep(std::time::Duration::from_millis(20)).await;
            });
            let waiting = skep_env::timed(lock.exclusive(0..10));
            let release = async {
                holder.await;
                drop(first);
            };
            let ((_guard, spent), ()) = futures_lite::future::zip(waiting, release).await;
            spent
        })
        .unwrap();
        assert!(spent.obstructed >= std::time::Duration::from_millis(19), "{spent:?}");
        let rest = spent.total.saturating_sub(spent.obstructed + spent.running);
        assert!(rest < std::time::Duration::from_millis(10), "{spent:?}");
    }

    #[test]
    fn dropped_operation_does_not_block_the_queue_of_a_range_lock() {
        skep_env::block_on(async {
            let lock = Rc::new(RangeLock::default());
            let first = lock.write(0..10);
            first.admission().await;
            let gone = lock.write(0..10);
            let last = lock.write(0..10);
            drop(gone);
            lock.check_invariants();
            drop(first);
            last.admission().await;
        })
        .unwrap();
    }
}
