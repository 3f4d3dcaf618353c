//! Requests that wait for what another program does, which may take for ever: those for locks. How
//! they are interrupted, and how they are kept from using up the places of others.
//!
//! # Signals
//! Of all requests only these end at any signal (see `worker` for the others). The kernel says so
//! by `INTERRUPT`, through `/dev/fuse`, on whichever thread reads it: [`Interrupts`] leads to the
//! worker. It may be read before the request itself; so those that nobody waits for are remembered
//! for a while. Under io_uring it doesn't come at all if the signal came before the daemon took
//! the request (Linux 6.18); but then the signal is pending when the wait begins, and is looked
//! for once.
//!
//! # Pages
//! Who has got a lock has to see what others wrote under it, and who reads through the page cache
//! what was written past it (`ops::files`). [`Waits::drop_pages`] tells the kernel, on a thread of
//! its own: it may have to wait for pages that a worker has to read or write.

use crate::invalidation;
use crate::limits;
use crate::transport::kernel;
use skep_env::MailboxSender;
use skep_env::local::{Notify, Sender, oneshot};
use skep_types::InodeId;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

/// What other threads tell a worker.
#[derive(Debug)]
pub(crate) enum News {
    /// A request that waits is to end.
    Interrupted(u64),
    /// The kernel has dropped pages, by the number of the order.
    Dropped(u64),
}

#[derive(Debug, Default)]
struct Inner {
    waiting: HashMap<u64, MailboxSender<News>>,
    /// Interrupts of requests that don't wait, or don't yet; the newest last.
    early: VecDeque<u64>,
}

/// Which worker waits with which request, for a whole mount.
#[derive(Debug, Default)]
pub(crate) struct Interrupts {
    /// Protects the table alone; nothing waits under it.
    inner: Mutex<Inner>,
}

impl Interrupts {
    fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        f(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The kernel wants a request to end.
    pub(crate) fn interrupt(&self, unique: u64) {
        self.with(|inner| {
            if let Some(worker) = inner.waiting.get(&unique) {
                // A worker has space for more news than it has requests.
                let _ = worker.send(News::Interrupted(unique));
                return;
            }
            inner.early.push_back(unique);
            if inner.early.len() > limits::MAX_EARLY_INTERRUPTS {
                inner.early.pop_front();
            }
        });
    }

    /// Notes who waits; whether it was interrupted before.
    fn begin(&self, unique: u64, worker: MailboxSender<News>) -> bool {
        self.with(|inner| {
            inner.waiting.insert(unique, worker);
            inner.early.contains(&unique)
        })
    }

    fn end(&self, unique: u64) {
        self.with(|inner| inner.waiting.remove(&unique));
    }
}

/// Who made a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    /// Number of the request.
    pub(crate) unique: u64,
    /// The thread.
    pub(crate) pid: u32,
}

#[derive(Debug, Default)]
struct Signal {
    is_raised: Cell<bool>,
    raised: Notify,
}

/// The requests of one worker that wait.
pub(crate) struct Waits {
    interrupts: Arc<Interrupts>,
    /// Leads to this worker.
    sender: MailboxSender<News>,
    device: Arc<OwnedFd>,
    mount_point: PathBuf,
    waiting: RefCell<HashMap<u64, Rc<Signal>>>,
    begun: Notify,
    dropping: RefCell<HashMap<u64, Sender<()>>>,
    orders: Cell<u64>,
}

impl std::fmt::Debug for Waits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Waits({})", self.waiting.borrow().len())
    }
}

impl Waits {
    /// None yet. `sender` leads to where the worker takes its news from.
    pub(crate) fn new(
        interrupts: Arc<Interrupts>,
        sender: MailboxSender<News>,
        device: Arc<OwnedFd>,
        mount_point: PathBuf,
    ) -> Rc<Self> {
        Rc::new(Self {
            interrupts,
            sender,
            device,
            mount_point,
            waiting: RefCell::default(),
            begun: Notify::default(),
            dropping: RefCell::default(),
            orders: Cell::new(0),
        })
    }

    /// Begins a wait; `None` if as many wait as can.
    pub(crate) fn begin(self: &Rc<Self>, caller: Caller) -> Option<Waiting> {
        if self.waiting.borrow().len() >= limits::MAX_LOCK_WAITS {
            return None;
        }
        let signal = Rc::new(Signal::default());
        self.waiting.borrow_mut().insert(caller.unique, Rc::clone(&signal));
        let was_early = self.interrupts.begin(caller.unique, self.sender.clone());
        signal.is_raised.set(was_early || has_pending_signal(caller.pid));
        self.begun.notify();
        Some(Waiting { waits: Rc::clone(self), unique: caller.unique, signal })
    }

    /// Takes in what another thread told.
    pub(crate) fn take(&self, news: News) {
        match news {
            News::Interrupted(unique) => self.interrupt(unique),
            News::Dropped(order) => drop(self.dropping.borrow_mut().remove(&order)),
        }
    }

    /// Ends a request's wait, if it waits.
    pub(crate) fn interrupt(&self, unique: u64) {
        if let Some(signal) = self.waiting.borrow().get(&unique) {
            signal.is_raised.set(true);
            signal.raised.notify();
        }
    }

    /// The requests that wait.
    pub(crate) fn requests(&self) -> Vec<u64> {
        self.waiting.borrow().keys().copied().collect()
    }

    /// Waits until another request begins to wait.
    pub(crate) async fn next(&self) {
        self.begun.wait().await;
    }

    /// Sends a request through the queue of a CPU, on a thread of its own, since this one may have
    /// to serve it: `statfs`, which needs no other server. Where this process may not run on the
    /// CPU, nothing can be done.
    pub(crate) fn stir(&self, queue: u16) {
        let cpu = usize::from(queue);
        if !skep_env::available_cpus().contains(&cpu) {
            return;
        }
        let mount_point = self.mount_point.clone();
        let body = move || {
            if let Err(error) = kernel::stat_fs(&mount_point) {
                tracing::debug!("the queue of CPU {cpu} was not stirred: {error}");
            }
        };
        if let Err(error) = skep_env::spawn_thread("skep-fuse-stir".into(), Some(cpu), body) {
            tracing::warn!("no thread to stir the queue of CPU {cpu} with: {error}");
        }
    }

    /// Makes the kernel ask for a file's attributes anew. Never blocks.
    pub(crate) fn drop_attributes(&self, inode: InodeId) {
        invalidation::invalidate_attributes(&self.device, inode);
    }

    /// Makes the kernel drop a file's attributes and its pages of a range, and write back those
    /// that were changed; done when it has.
    pub(crate) async fn drop_pages(
        &self,
        inode: InodeId,
        pages: Range<u64>,
    ) -> std::io::Result<()> {
        let order = self.orders.get() + 1;
        self.orders.set(order);
        let (done, dropped) = oneshot();
        self.dropping.borrow_mut().insert(order, done);
        let (device, sender) = (Arc::clone(&self.device), self.sender.clone());
        let body = move || {
            invalidation::invalidate_pages(&device, inode, pages);
            let _ = sender.send(News::Dropped(order));
        };
        let started = skep_env::spawn_thread("skep-fuse-drop".into(), None, body);
        if started.is_err() {
            self.dropping.borrow_mut().remove(&order);
        }
        started?;
        dropped.await;
        Ok(())
    }
}

/// A request that waits, until this is dropped.
pub(crate) struct Waiting {
    waits: Rc<Waits>,
    unique: u64,
    signal: Rc<Signal>,
}

impl Waiting {
    /// What `future` gives; `None` if the caller was interrupted before.
    pub(crate) async fn unless_interrupted<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut raised = pin!(self.signal.raised.wait());
        let mut future = pin!(future);
        std::future::poll_fn(|context| {
            if self.signal.is_raised.get() || raised.as_mut().poll(context).is_ready() {
                return Poll::Ready(None);
            }
            future.as_mut().poll(context).map(Some)
        })
        .await
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.waits.waiting.borrow_mut().remove(&self.unique);
        self.waits.interrupts.end(self.unique);
    }
}

/// Whether a signal that isn't blocked waits for a thread. One that is for the whole process counts
/// only if no other thread could take it: answered with EINTR without a signal of its own, the
/// kernel would hand the program an error number that doesn't exist.
fn has_pending_signal(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    status.is_ok_and(|status| shows_pending_signal(&status))
}

fn shows_pending_signal(status: &str) -> bool {
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim).unwrap_or_default()
    };
    let mask = |name: &str| u64::from_str_radix(field(name), 16).unwrap_or(0);
    let of_process = if field("Threads:") == "1" { mask("ShdPnd:") } else { 0 };
    (mask("SigPnd:") | of_process) & !mask("SigBlk:") != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_signals_that_reach_the_thread_count() {
        let status = |threads: u32, own: u64, shared: u64, blocked: u64| {
            format!(
                "Name:\tx\nThreads:\t{threads}\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\n\
                 SigBlk:\t{blocked:016x}\n"
            )
        };
        assert!(!shows_pending_signal(&status(1, 0, 0, 0)));
        assert!(shows_pending_signal(&status(1, 0, 1 << 13, 0)));
        assert!(!shows_pending_signal(&status(1, 0, 1 << 13, 1 << 13)));
        assert!(!shows_pending_signal(&status(2, 0, 1 << 13, 0)), "the other may take it");
        assert!(shows_pending_signal(&status(2, 1 << 13, 0, 0)));
        assert!(!shows_pending_signal(""));
    }

    #[test]
    fn an_interrupt_that_comes_before_the_wait_ends_it_too() {
        let interrupts = Interrupts::default();
        let (sender, mailbox) = skep_env::Mailbox::new(9).unwrap();
        interrupts.interrupt(2);
        assert!(interrupts.begin(2, sender.clone()));
        assert!(!interrupts.begin(4, sender));
        interrupts.interrupt(4);
        assert!(matches!(mailbox.try_receive(), Some(News::Interrupted(4))));
        interrupts.end(4);
        for other in 0..limits::MAX_EARLY_INTERRUPTS as u64 {
            interrupts.interrupt(100 + other);
        }
        assert!(!interrupts.with(|inner| inner.early.contains(&2)), "there is an end to them");
    }
}
