//! Synchronisation between futures of one thread. For futures of several threads, use
//! [`crate::SharedNotify`].

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Wakes futures of one thread. A notification wakes only futures that have called [`Self::wait`]
/// before the notification.
///
/// # Hazard: lost wake-ups
/// A future must call `wait` before it checks the state that it waits for, unless no `.await` comes
/// between the check and the call.
#[derive(Debug, Default)]
pub struct Notify {
    generation: Cell<u64>,
    waiting: RefCell<Vec<Waker>>,
}

impl Notify {
    /// Wakes all futures that are waiting now.
    pub fn notify(&self) {
        self.generation.set(self.generation.get() + 1);
        self.waiting.take().into_iter().for_each(Waker::wake);
    }

    /// Waits for the next [`Self::notify`] after this call (not after the first poll).
    pub fn wait(&self) -> impl Future<Output = ()> + '_ {
        let seen = self.generation.get();
        std::future::poll_fn(move |context| {
            if self.generation.get() != seen {
                return Poll::Ready(());
            }
            let mut waiting = self.waiting.borrow_mut();
            if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                waiting.push(context.waker().clone());
            }
            Poll::Pending
        })
    }
}

#[derive(Debug)]
struct Slot<T> {
    value: Option<T>,
    waker: Option<Waker>,
    closed: bool,
}

/// Sends one value to a [`Receiver`].
#[derive(Debug)]
pub struct Sender<T>(Rc<RefCell<Slot<T>>>);

/// Receives the value of a [`Sender`]. `None` means that the sender was dropped without sending.
#[derive(Debug)]
pub struct Receiver<T>(Rc<RefCell<Slot<T>>>);

/// Creates a channel for one value.
pub fn oneshot<T>() -> (Sender<T>, Receiver<T>) {
    let slot = Rc::new(RefCell::new(Slot { value: None, waker: None, closed: false }));
    (Sender(Rc::clone(&slot)), Receiver(slot))
}

impl<T> Sender<T> {
    /// Sends the value.
    pub fn send(self, value: T) {
        self.0.borrow_mut().value = Some(value);
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut slot = self.0.borrow_mut();
        slot.closed = true;
        if let Some(waker) = slot.waker.take() {
            waker.wake();
        }
    }
}

impl<T> Future for Receiver<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut slot = self.0.borrow_mut();
        if let Some(value) = slot.value.take() {
            return Poll::Ready(Some(value));
        }
        if slot.closed {
            return Poll::Ready(None);
        }
        slot.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

/// Limits the number of futures that run a certain step at the same time. Futures get their permits
/// in the order in which they began to wait, and each released permit wakes only one future.
///
/// # Invariants
/// - The number of `free` permits plus the number of granted permits is always `permits`.
/// - If a permit is free, no future waits.
///
/// `check_invariants` checks the second invariant, and checks that the number of free permits is at
/// most `permits`. The semaphore does not count the granted permits, so this method cannot check
/// the first invariant.
///
/// Held by the test `dropped_waiter_passes_on_its_permit`: the first invariant.
#[derive(Debug)]
pub struct Semaphore {
    permits: usize,
    free: Cell<usize>,
    waiters: RefCell<VecDeque<Rc<Waiter>>>,
}

/// A future that waits for a permit.
#[derive(Debug, Default)]
struct Waiter {
    is_granted: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// A permit of a [`Semaphore`]. The drop of this value releases the permit.
#[derive(Debug)]
pub struct Permit(Rc<Semaphore>);

/// The position of a waiting future in the queue. The drop of this value removes the future from
/// the queue. If the future already has a permit, the permit goes to the next future in the queue.
struct Place<'a> {
    semaphore: &'a Rc<Semaphore>,
    waiter: Rc<Waiter>,
}

impl Semaphore {
    /// Creates a semaphore with `permits` free permits.
    pub fn new(permits: usize) -> Rc<Self> {
        Rc::new(Self { permits, free: Cell::new(permits), waiters: RefCell::default() })
    }

    /// Waits for a permit. Cancel-safe.
    pub async fn acquire(self: &Rc<Self>) -> Permit {
        let free = self.free.get();
        if free > 0 {
            self.free.set(free - 1);
            return Permit(Rc::clone(self));
        }
        let place = Place { semaphore: self, waiter: Rc::default() };
        self.waiters.borrow_mut().push_back(Rc::clone(&place.waiter));
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
        std::future::poll_fn(|context| {
            if place.waiter.is_granted.get() {
                return Poll::Ready(());
            }
            *place.waiter.waker.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
        // After this point, the permit belongs to the returned value and not to the position in the
        // queue.
        place.waiter.is_granted.set(false);
        Permit(Rc::clone(self))
    }

    /// Returns the number of futures that wait for a permit.
    pub fn waiting(&self) -> usize {
        self.waiters.borrow().len()
    }

    /// Grants a released permit to the future that has waited longest.
    fn release(&self) {
        let next = self.waiters.borrow_mut().pop_front();
        let Some(next) = next else {
            self.free.set(self.free.get() + 1);
            assert!(self.free.get() <= self.permits, "a permit is released once");
            if cfg!(debug_assertions) {
                self.check_invariants();
            }
            return;
        };
        next.is_granted.set(true);
        if let Some(waker) = next.waker.take() {
            waker.wake();
        }
    }

    /// Panics if an invariant of the type is violated.
    fn check_invariants(&self) {
        let free = self.free.get();
        assert!(free <= self.permits, "not more permits are free than exist");
        assert!(free == 0 || self.waiting() == 0, "if a permit is free, no future waits");
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.waiter.is_granted.get() {
            self.semaphore.release();
            return;
        }
        self.semaphore.waiters.borrow_mut().retain(|other| !Rc::ptr_eq(other, &self.waiter));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_granted_in_the_order_of_waiting() {
        crate::block_on(async {
            let semaphore = Semaphore::new(1);
            let first = semaphore.acquire().await;
            let order = Rc::new(RefCell::new(Vec::new()));
            let spawn = |name: u32| {
                let (semaphore, order) = (Rc::clone(&semaphore), Rc::clone(&order));
                crate::spawn(async move {
                    let permit = semaphore.acquire().await;
                    order.borrow_mut().push(name);
                    permit
                })
            };
            let tasks: Vec<_> = (0..4).map(spawn).collect();
            while semaphore.waiting() < 4 {
                crate::yield_now().await;
            }
            drop(first);
            // A task that has just arrived must not overtake the tasks that already wait.
            let late = spawn(4);
            for task in tasks {
                drop(task.await);
            }
            drop(late.await);
            assert_eq!(*order.borrow(), [0, 1, 2, 3, 4]);
        })
        .unwrap();
    }

    #[test]
    #[should_panic(expected = "if a permit is free, no future waits")]
    fn future_that_waits_for_a_free_permit_violates_an_invariant() {
        let semaphore = Semaphore::new(1);
        semaphore.waiters.borrow_mut().push_back(Rc::default());
        semaphore.check_invariants();
    }

    #[test]
    fn dropped_waiter_passes_on_its_permit() {
        crate::block_on(async {
            let semaphore = Semaphore::new(1);
            let first = semaphore.acquire().await;
            let acquire = || {
                let semaphore = Rc::clone(&semaphore);
                crate::spawn(async move { semaphore.acquire().await })
            };
            let (gone, granted, last) = (acquire(), acquire(), acquire());
            while semaphore.waiting() < 3 {
                crate::yield_now().await;
            }
            drop(gone);
            while semaphore.waiting() > 2 {
                crate::yield_now().await;
            }
            drop(first);
            // The semaphore grants the permit to this task, which is dropped before it runs.
            drop(granted);
            drop(last.await);
            assert_eq!((semaphore.waiting(), semaphore.free.get()), (0, 1));
        })
        .unwrap();
    }
}
