//! Requests that wait for another program, perhaps for ever: requests for locks, and requests that
//! wait for the kernel to drop cached pages.
//!
//! Owns the waiting requests of each worker ([`Waits`]). Owns, for the whole mount, the routing of
//! an interrupt to the worker of the interrupted request ([`Interrupts`]). `worker` ends requests
//! whose callers are killed. `ops::locks` sets and releases the locks.
//!
//! # Hazard: when the kernel reports a signal
//! Any signal to the caller ends a request that waits by [`Waits::begin`]. Other requests end only
//! at a signal that kills the caller (`worker`). The kernel reports a signal by the message
//! `INTERRUPT`, through `/dev/fuse`. Three facts about Linux 6.18 complicate this:
//! - Any thread may read the `INTERRUPT`, not only the worker that has the request. So
//!   [`Interrupts`] maps the request to its worker.
//! - A thread may read the `INTERRUPT` before a worker reads the request. So [`Interrupts`] stores,
//!   for some time, the interrupts of requests that do not wait.
//! - Under io_uring the kernel sends no `INTERRUPT` for a signal that arrived before the daemon
//!   took the request. But this signal is still pending for the caller when the wait begins. So
//!   each wait begins with a check of the caller's pending signals.
//!
//! # Hazard: slots of the queue
//! A waiting request occupies a slot of the queue between kernel and daemon. If waiting requests
//! occupied all slots, the unlock for which they wait could not arrive. So a request may only wait
//! after [`Waits::begin`], and `worker` then adds a slot that replaces its slot.
//!
//! # Hazard: the kernel may need a worker to drop pages
//! A new lock holder must see the bytes that other mounts wrote under the lock. A reader of the
//! page cache must get bytes that direct writes stored (`ops::data`). So the mount makes the kernel
//! drop its cached pages. The kernel blocks the calling thread meanwhile, perhaps until a worker of
//! this mount has read or written one of these pages. So [`Waits::drop_pages`] calls the kernel on
//! a separate thread.

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

/// An event that another thread reports to a worker.
#[derive(Debug)]
pub(crate) enum WaitEvent {
    /// The caller of the request with this id received a signal.
    Interrupted(u64),
    /// The kernel has completed the page-cache invalidation with this number.
    PagesDropped(u64),
}

#[derive(Debug, Default)]
struct InterruptTable {
    /// The worker of each waiting request, by request id.
    waiting: HashMap<u64, MailboxSender<WaitEvent>>,
    /// The ids (`unique`) of interrupted requests that do not wait, or do not wait yet. The newest
    /// id is the last one.
    early: VecDeque<u64>,
}

impl InterruptTable {
    /// Panics if the invariant of the table is violated.
    fn check_invariants(&self) {
        assert!(
            self.early.len() <= limits::MAX_EARLY_INTERRUPTS,
            "the table stores at most {} interrupts of requests that do not wait",
            limits::MAX_EARLY_INTERRUPTS
        );
    }
}

/// Routes interrupts to the worker of the interrupted request, for a whole mount.
///
/// # Invariants
/// The table stores at most [`limits::MAX_EARLY_INTERRUPTS`] interrupts of requests that do not
/// wait (`InterruptTable::check_invariants`).
#[derive(Debug, Default)]
pub(crate) struct Interrupts {
    /// The mutex protects only the table. A thread that holds this mutex takes no other lock and
    /// does not wait.
    table: Mutex<InterruptTable>,
}

impl Interrupts {
    fn with<T>(&self, f: impl FnOnce(&mut InterruptTable) -> T) -> T {
        f(&mut self.table.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reports an interrupt to the worker on which the request waits. If the request does not wait,
    /// stores the interrupt.
    pub(crate) fn interrupt(&self, unique: u64) {
        self.with(|table| {
            if let Some(worker) = table.waiting.get(&unique) {
                // An error is not possible, because the mailbox has space for more events than a
                // worker can have requests.
                let _ = worker.send(WaitEvent::Interrupted(unique));
                return;
            }
            table.early.push_back(unique);
            if table.early.len() > limits::MAX_EARLY_INTERRUPTS {
                table.early.pop_front();
            }
            if cfg!(debug_assertions) {
                table.check_invariants();
            }
        });
    }

    /// Registers a waiting request. Returns whether an interrupt of the request arrived earlier.
    fn begin(&self, unique: u64, worker: MailboxSender<WaitEvent>) -> bool {
        self.with(|table| {
            table.waiting.insert(unique, worker);
            table.early.contains(&unique)
        })
    }

    fn end(&self, unique: u64) {
        self.with(|table| table.waiting.remove(&unique));
    }
}

/// The caller of a request, and the id of that request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    /// Id of the request, unique within the mount.
    pub(crate) unique: u64,
    /// Id of the thread that made the request. Zero means a thread of another container.
    pub(crate) pid: u32,
}

#[derive(Debug, Default)]
struct Interruption {
    is_raised: Cell<bool>,
    raised: Notify,
}

/// The waiting requests of one worker.
pub(crate) struct Waits {
    interrupts: Arc<Interrupts>,
    /// Sends events to this worker's mailbox.
    sender: MailboxSender<WaitEvent>,
    device: Arc<OwnedFd>,
    mount_point: PathBuf,
    waiting: RefCell<HashMap<u64, Rc<Interruption>>>,
    begun: Notify,
    /// Page-cache invalidations that the kernel has not completed, by number.
    dropping: RefCell<HashMap<u64, Sender<()>>>,
    /// Sequence number of the most recent page-cache invalidation.
    last_order: Cell<u64>,
}

impl std::fmt::Debug for Waits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Waits({})", self.waiting.borrow().len())
    }
}

impl Waits {
    /// Creates an empty set of waiting requests. `sender` must send to the mailbox of this worker.
    pub(crate) fn new(
        interrupts: Arc<Interrupts>,
        sender: MailboxSender<WaitEvent>,
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
            last_order: Cell::new(0),
        })
    }

    /// Begins the wait of the caller's request. `None` means that [`limits::MAX_LOCK_WAITS`]
    /// requests of the worker wait already.
    pub(crate) fn begin(self: &Rc<Self>, caller: Caller) -> Option<WaitGuard> {
        if self.waiting.borrow().len() >= limits::MAX_LOCK_WAITS {
            return None;
        }
        let interruption = Rc::new(Interruption::default());
        self.waiting.borrow_mut().insert(caller.unique, Rc::clone(&interruption));
        let was_early = self.interrupts.begin(caller.unique, self.sender.clone());
        interruption.is_raised.set(was_early || has_pending_signal(caller.pid));
        self.begun.notify();
        Some(WaitGuard { waits: Rc::clone(self), unique: caller.unique, interruption })
    }

    /// Applies an event that another thread sent.
    pub(crate) fn apply(&self, event: WaitEvent) {
        match event {
            WaitEvent::Interrupted(unique) => self.interrupt(unique),
            WaitEvent::PagesDropped(order) => drop(self.dropping.borrow_mut().remove(&order)),
        }
    }

    /// Ends the wait of a request, if the request waits.
    pub(crate) fn interrupt(&self, unique: u64) {
        if let Some(interruption) = self.waiting.borrow().get(&unique) {
            interruption.is_raised.set(true);
            interruption.raised.notify();
        }
    }

    /// Returns the ids of the waiting requests.
    pub(crate) fn requests(&self) -> Vec<u64> {
        self.waiting.borrow().keys().copied().collect()
    }

    /// Waits until another request begins to wait. Cancel-safe.
    pub(crate) async fn next(&self) {
        self.begun.wait().await;
    }

    /// Makes the kernel send a request through the queue of a CPU. The request is `statfs`, for
    /// which the daemon needs no server of the cluster. A separate thread calls `statfs`, since
    /// this worker may have to serve the request. Does nothing if this process may not run on the
    /// CPU.
    pub(crate) fn kick_queue(&self, queue: u16) {
        let cpu = usize::from(queue);
        if !skep_env::available_cpus().contains(&cpu) {
            return;
        }
        let mount_point = self.mount_point.clone();
        let body = move || {
            if let Err(error) = kernel::stat_fs(&mount_point) {
                tracing::debug!("cannot wake the queue of CPU {cpu}: {error:#}");
            }
        };
        if let Err(error) = skep_env::spawn_thread("skep-fuse-kick".into(), Some(cpu), body) {
            tracing::warn!(
                "requests of programs on CPU {cpu} may wait behind requests for locks, since the \
                 mount cannot start a thread: {error}; the mount retries"
            );
        }
    }

    /// Makes the kernel drop its cached attributes of a file, so that it requests them again before
    /// the next use. Never blocks.
    pub(crate) fn drop_attributes(&self, inode: InodeId) {
        invalidation::invalidate_attributes(&self.device, inode);
    }

    /// Makes the kernel drop its cached attributes of a file and its cached pages of a range. The
    /// kernel writes back dirty pages of the range first. Waits until the kernel has dropped the
    /// pages. Cancel-safe. If the future is dropped, the kernel completes the invalidation
    /// nevertheless.
    pub(crate) async fn drop_pages(
        &self,
        inode: InodeId,
        pages: Range<u64>,
    ) -> std::io::Result<()> {
        let order = self.last_order.get() + 1;
        self.last_order.set(order);
        let (done, dropped) = oneshot();
        self.dropping.borrow_mut().insert(order, done);
        let (device, sender) = (Arc::clone(&self.device), self.sender.clone());
        let body = move || {
            invalidation::invalidate_pages(&device, inode, pages);
            let _ = sender.send(WaitEvent::PagesDropped(order));
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

/// A waiting request. The wait ends when the value is dropped.
pub(crate) struct WaitGuard {
    waits: Rc<Waits>,
    unique: u64,
    interruption: Rc<Interruption>,
}

impl WaitGuard {
    /// Returns the value of `future`. `None` means that a signal interrupted the caller first.
    pub(crate) async fn unless_interrupted<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut raised = pin!(self.interruption.raised.wait());
        let mut future = pin!(future);
        std::future::poll_fn(|context| {
            if self.interruption.is_raised.get() || raised.as_mut().poll(context).is_ready() {
                return Poll::Ready(None);
            }
            future.as_mut().poll(context).map(Some)
        })
        .await
    }
}

impl Drop for WaitGuard {
    fn drop(&mut self) {
        self.waits.waiting.borrow_mut().remove(&self.unique);
        self.waits.interrupts.end(self.unique);
    }
}

/// Whether a signal that is not blocked is pending for a thread. A signal for the whole process
/// counts only if the process has no other thread that could receive it.
///
/// # Hazard: EINTR without a signal
/// A request must end with EINTR only if its thread has received a signal. If it ends with EINTR
/// without a signal, the kernel may return one of its internal error numbers to the program.
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
    fn only_deliverable_signals_interrupt_a_wait() {
        let status = |threads: u32, own: u64, shared: u64, blocked: u64| {
            format!(
                "Name:\tx\nThreads:\t{threads}\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\n\
                 SigBlk:\t{blocked:016x}\n"
            )
        };
        assert!(!shows_pending_signal(&status(1, 0, 0, 0)));
        assert!(shows_pending_signal(&status(1, 0, 1 << 13, 0)));
        assert!(!shows_pending_signal(&status(1, 0, 1 << 13, 1 << 13)));
        assert!(
            !shows_pending_signal(&status(2, 0, 1 << 13, 0)),
            "the other thread may receive the signal"
        );
        assert!(shows_pending_signal(&status(2, 1 << 13, 0, 0)));
        assert!(!shows_pending_signal(""));
    }

    #[test]
    #[should_panic(expected = "interrupts of requests that do not wait")]
    fn table_with_too_many_interrupts_violates_its_invariant() {
        let early = (0..=limits::MAX_EARLY_INTERRUPTS as u64).collect();
        InterruptTable { early, ..InterruptTable::default() }.check_invariants();
    }

    #[test]
    fn interrupt_before_a_wait_ends_the_wait_immediately() {
        let interrupts = Interrupts::default();
        let (sender, mailbox) = skep_env::Mailbox::new(9).unwrap();
        interrupts.interrupt(2);
        assert!(interrupts.begin(2, sender.clone()));
        assert!(!interrupts.begin(4, sender));
        interrupts.interrupt(4);
        assert!(matches!(mailbox.try_receive(), Some(WaitEvent::Interrupted(4))));
        interrupts.end(4);
        for other in 0..limits::MAX_EARLY_INTERRUPTS as u64 {
            interrupts.interrupt(100 + other);
        }
        assert!(
            !interrupts.with(|table| table.early.contains(&2)),
            "the table drops the oldest interrupt"
        );
    }
}
