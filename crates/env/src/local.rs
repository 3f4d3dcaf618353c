//! Synchronisation between futures of one thread. Across threads, use [`crate::SharedNotify`].

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Wakes futures of one thread. A notification is lost for a future that calls [`Self::wait`] only
/// afterwards.
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

/// Limits the number of futures that run a certain step at the same time.
///
/// # Invariants
/// The number of `free` permits plus the number of existing [`Permit`]s is always `permits`.
#[derive(Debug)]
pub struct Semaphore {
    permits: usize,
    free: Cell<usize>,
    released: Notify,
}

/// A permit of a [`Semaphore`]. Dropping it releases the permit.
#[derive(Debug)]
pub struct Permit(Rc<Semaphore>);

impl Semaphore {
    /// Creates a semaphore with `permits` free permits.
    pub fn new(permits: usize) -> Rc<Self> {
        Rc::new(Self { permits, free: Cell::new(permits), released: Notify::default() })
    }

    /// Waits for a permit. Cancel-safe.
    pub async fn acquire(self: &Rc<Self>) -> Permit {
        loop {
            let free = self.free.get();
            if free > 0 {
                self.free.set(free - 1);
                return Permit(Rc::clone(self));
            }
            self.released.wait().await;
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.free.set(self.0.free.get() + 1);
        assert!(self.0.free.get() <= self.0.permits, "a permit is released once");
        self.0.released.notify();
    }
}
