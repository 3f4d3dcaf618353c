//! One event loop per thread: an io_uring, timers, and a local executor for the thread's futures.
//!
//! In each turn the loop first runs all futures that are ready. Then the loop submits the
//! operations of these futures and waits for the first completion, with one system call for both.
//! Last, the loop wakes the futures whose operations have completed. Other threads end the loop's
//! sleep with the loop's event ([`wake_up_event`]) or with the event of a [`crate::Mailbox`], which
//! the loop reads.
//!
//! # Spinning
//! Waking a thread that sleeps on another CPU costs more than most requests. So a loop with
//! [`set_spin`] polls its completion queue for a moment before the loop sleeps. The module `spin`
//! decides when a loop polls. The measurements are in docs/design/0001-threads-and-store.md.

mod ending;
mod op;
mod spin;
mod timer;
mod workers;

use crate::clock;
use crate::event::Event;
use crate::number_map::NumberMap;
use crate::task_context::{task_context, with_task_context};
use async_executor::LocalExecutor;
use async_task::Task;
use ending::end_operations;
use io_uring::{IoUring, cqueue, squeue, types};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BinaryHeap;
use std::future::Future;
use std::io;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

pub(crate) use op::submit_traffic;
pub use op::{Op, submit};
pub use spin::ReplyTime;
use spin::Spin;
pub use timer::{sleep, timeout, yield_now};
pub use workers::limit_kernel_workers;

/// Number of entries in the submission queue. If the queue fills up within a turn, the loop submits
/// early.
const SUBMISSION_ENTRIES: u32 = 256;
/// Number of entries in the completion queue. If this queue is full, the kernel stores further
/// completions in kernel memory.
const COMPLETION_ENTRIES: u32 = 4096;
/// Maximum number of futures that run in a row before the loop reaps completions again, so that
/// ready futures do not delay the completions of I/O.
const RUNS_PER_TURN: usize = 256;

/// Size of a future above which one more allocation costs less than moving the future into a task.
const LARGE_FUTURE_BYTES: usize = 512;

/// Flag of `io_uring_enter(2)` that makes finished completions appear in the completion queue.
const IORING_ENTER_GETEVENTS: u32 = 1;

/// User data of requests that cancel an operation. The loop ignores their completions.
const CANCEL_ID: u64 = u64::MAX;
/// User data of the poll of the wake-up event. The ids of operations are ascending numbers from
/// zero.
const WAKE_UP_ID: u64 = u64::MAX - 1;

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

/// The kind of a completed operation: whether this loop has sent data to a peer, or has received
/// data from a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// The operation was not on a socket.
    None,
    /// The loop sent data, so a reply or the next request may arrive soon.
    Sent,
    /// The loop received data, so this loop, and not its peer, acts next.
    Received,
}

/// An operation in the kernel.
struct PendingOp {
    phase: OpPhase,
    /// Owns the memory that the kernel uses until the completion arrives.
    keep: Box<dyn Any>,
}

enum OpPhase {
    Waiting {
        waker: Option<Waker>,
        traffic: Traffic,
    },
    /// The future of the operation was dropped, and the completion has not arrived.
    Dropped,
    /// The completion has arrived, with this result.
    Done(i32),
}

struct Loop {
    ring: Ring,
    ops: NumberMap<PendingOp>,
    next_op: u64,
    timers: BinaryHeap<std::cmp::Reverse<(Duration, u64)>>,
    timer_wakers: NumberMap<Waker>,
    next_timer: u64,
    /// The event that other threads raise to end this loop's sleep.
    wake_up: Arc<Event>,
    /// Whether a future of this thread has ever waited for another thread.
    listens_for_wake_up: bool,
    /// Whether the ring has a poll of the wake-up event in flight.
    is_wake_up_armed: bool,
    spin: Spin,
}

thread_local! {
    /// The ids of the next operation and timer of this thread. A task of an earlier loop of the
    /// thread may still exist and hold an id, so the thread never reuses an id.
    static NEXT_NUMBERS: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    static LOOP: RefCell<Option<Loop>> = const { RefCell::new(None) };
    /// Time for which the loops of this thread have waited for completions and timers.
    static IDLE: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    static EXECUTOR: Rc<LocalExecutor<'static>> = Rc::new(LocalExecutor::new());
}

fn with_loop<T>(f: impl FnOnce(&mut Loop) -> T) -> T {
    LOOP.with_borrow_mut(|slot| f(slot.as_mut().expect("called inside `block_on`")))
}

fn new_ring() -> io::Result<Ring> {
    let mut builder = IoUring::<squeue::Entry128, cqueue::Entry>::builder();
    builder.setup_cqsize(COMPLETION_ENTRIES);
    // One thread both submits operations and reaps completions. So the kernel may defer the work
    // for a completion until the loop enters the kernel, which saves interrupts (Linux 6.1 and
    // later). A flag in shared memory shows that deferred completions are due, so that spinning
    // needs no system call. Kernels before 6.1 refuse these settings.
    builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
    if let Ok(ring) = builder.build(SUBMISSION_ENTRIES) {
        return Ok(ring);
    }
    let mut builder = IoUring::<squeue::Entry128, cqueue::Entry>::builder();
    builder.setup_cqsize(COMPLETION_ENTRIES).build(SUBMISSION_ENTRIES)
}

impl Loop {
    fn new(ring: Ring) -> io::Result<Self> {
        let (next_op, next_timer) = NEXT_NUMBERS.get();
        Ok(Self {
            ring,
            ops: NumberMap::default(),
            next_op,
            timers: BinaryHeap::new(),
            timer_wakers: NumberMap::default(),
            next_timer,
            wake_up: Arc::new(Event::new_nonblocking()?),
            listens_for_wake_up: false,
            is_wake_up_armed: false,
            spin: Spin::default(),
        })
    }

    fn push(&mut self, entry: &squeue::Entry128) {
        loop {
            // SAFETY: the caller of `submit` keeps all memory of the entry alive.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return;
            }
            // The queue is full, so submit its entries. If the submission fails with EBUSY or
            // EINTR, reap completions and repeat the submission.
            let _ = self.ring.submit();
            self.reap();
        }
    }

    fn reap(&mut self) {
        let Self { ring, ops, spin, wake_up, is_wake_up_armed, .. } = self;
        let mut seen = Traffic::None;
        for completion in ring.completion() {
            let id = completion.user_data();
            if id == WAKE_UP_ID {
                // Reset the event before the futures run, so that each notification after the reset
                // raises the event.
                wake_up.reset();
                *is_wake_up_armed = false;
                continue;
            }
            let Some(op) = ops.get_mut(&id) else { continue };
            match std::mem::replace(&mut op.phase, OpPhase::Done(completion.result())) {
                OpPhase::Waiting { waker, traffic } => {
                    if traffic != Traffic::None {
                        seen = traffic;
                    }
                    if let Some(waker) = waker {
                        waker.wake();
                    }
                }
                OpPhase::Dropped | OpPhase::Done(_) => {
                    ops.remove(&id);
                }
            }
        }
        spin.note_traffic(seen);
    }

    fn fire_timers(&mut self) {
        let now = clock::now();
        while let Some(std::cmp::Reverse((due, id))) = self.timers.peek().copied() {
            if due > now {
                break;
            }
            self.timers.pop();
            if let Some(waker) = self.timer_wakers.remove(&id) {
                waker.wake();
            }
        }
    }

    /// Returns the time until the next timer for which a future still waits.
    fn until_next_timer(&mut self) -> Option<Duration> {
        while let Some(std::cmp::Reverse((due, id))) = self.timers.peek().copied() {
            if self.timer_wakers.contains_key(&id) {
                return Some(due.saturating_sub(clock::now()));
            }
            self.timers.pop();
        }
        None
    }

    /// Submits a poll of the wake-up event, if a future of this thread needs the event and no poll
    /// is in flight.
    fn arm_wake_up(&mut self) {
        if self.listens_for_wake_up && !self.is_wake_up_armed {
            let fd = types::Fd(self.wake_up.fd().as_raw_fd());
            let poll = io_uring::opcode::PollAdd::new(fd, libc::POLLIN as u32).build();
            self.is_wake_up_armed = true;
            self.push(&squeue::Entry128::from(poll).user_data(WAKE_UP_ID));
        }
    }

    fn wait(&mut self, block: bool) -> io::Result<()> {
        self.arm_wake_up();
        let next_timer = self.until_next_timer();
        let must_wait = block && next_timer != Some(Duration::ZERO);
        if !must_wait {
            // Deferred completions appear only when the loop enters the kernel.
            self.enter()?;
        } else if !self.submit_before_spin()? {
            let idle_from = clock::now();
            if !self.spin_for_completion(idle_from, next_timer)? {
                self.sleep_for_completion(next_timer)?;
            }
            IDLE.set(IDLE.get() + clock::now().saturating_sub(idle_from));
        }
        self.reap();
        self.fire_timers();
        Ok(())
    }

    /// Submits the queued entries, and makes finished completions appear in the completion queue.
    /// Does not wait.
    fn enter(&mut self) -> io::Result<()> {
        let count = self.ring.submission().len() as u32;
        // SAFETY: no signal mask is passed; the callers of `submit` keep all memory of the entries
        // alive.
        let entered = unsafe {
            self.ring.submitter().enter::<libc::sigset_t>(count, 0, IORING_ENTER_GETEVENTS, None)
        };
        pass_over(entered)
    }

    /// Submits the queued entries and blocks until an operation completes or a timer is due.
    fn sleep_for_completion(&mut self, next_timer: Option<Duration>) -> io::Result<()> {
        pass_over(match next_timer {
            Some(left) => {
                let time = types::Timespec::new().sec(left.as_secs()).nsec(left.subsec_nanos());
                let args = types::SubmitArgs::new().timespec(&time);
                self.ring.submitter().submit_with_args(1, &args)
            }
            None => self.ring.submit_and_wait(1),
        })
    }

    /// Submits the queued entries, if the loop polls before it sleeps. Returns whether a completion
    /// has arrived.
    fn submit_before_spin(&mut self) -> io::Result<bool> {
        if self.ring.submission().is_empty() || !self.spin.is_enabled() {
            return Ok(false);
        }
        // A submitted operation, such as a send, often completes immediately. So look for
        // completions before the polling begins.
        self.enter()?;
        Ok(!self.ring.completion().is_empty())
    }

    /// Polls for completions without sleeping, if the peer is likely to send a message soon.
    /// Returns `false` if no completion arrived while the loop polled.
    fn spin_for_completion(
        &mut self,
        now: Duration,
        next_timer: Option<Duration>,
    ) -> io::Result<bool> {
        let Some(mut round) = self.spin.begin(now, next_timer) else { return Ok(false) };
        loop {
            if self.ring.submission().taskrun() {
                self.enter()?;
            }
            let has_completion = !self.ring.completion().is_empty();
            if round.ends(clock::now(), has_completion) {
                self.spin.end(&round);
                return Ok(has_completion);
            }
            std::hint::spin_loop();
        }
    }
}

/// Returns success for `ETIME`, `EINTR`, `EBUSY` and `EAGAIN`: these errors end a wait, and the
/// event loop then begins another wait.
fn pass_over(result: io::Result<usize>) -> io::Result<()> {
    match result {
        Ok(_) => Ok(()),
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN)
            ) =>
        {
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Runs a future, and all futures that this future spawns, on this thread's event loop until the
/// future is ready. Then returns the output of the future.
///
/// # Errors
/// - The kernel refuses an io_uring. The message names the settings to check.
/// - The process is out of file descriptors.
///
/// # Panics
/// Panics if the thread is already in `block_on`.
pub fn block_on<T: 'static>(future: impl Future<Output = T> + 'static) -> io::Result<T> {
    let ring = new_ring().map_err(|error| {
        io::Error::new(
            error.kind(),
            format!(
                "io_uring is not available ({error}): Skep needs Linux 5.19 or later with \
                 /proc/sys/kernel/io_uring_disabled = 0 and, in containers, a seccomp profile \
                 that allows io_uring"
            ),
        )
    })?;
    workers::bind_kernel_workers(&ring);
    let new = Loop::new(ring)?;
    LOOP.with_borrow_mut(|slot| {
        assert!(slot.is_none(), "one event loop per thread");
        *slot = Some(new);
    });
    let executor = EXECUTOR.with(Rc::clone);
    let main = executor.spawn(future);
    let result = loop {
        let mut runs = 0;
        while runs < RUNS_PER_TURN && executor.try_tick() {
            runs += 1;
        }
        if main.is_finished() {
            break Ok(());
        }
        if let Err(error) = with_loop(|it| it.wait(runs < RUNS_PER_TURN)) {
            break Err(error);
        }
    };
    let value = result.map(|()| {
        let mut main = std::pin::pin!(main);
        match main.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => unreachable!("a finished task is ready"),
        }
    });
    // Futures that still hold operations stay in the thread-local executor, which drops them when
    // the thread ends.
    let ended = LOOP.with_borrow_mut(Option::take);
    if let Some(Loop { ring, ops, next_op, next_timer, .. }) = ended {
        NEXT_NUMBERS.set((next_op, next_timer));
        end_operations(ring, ops);
    }
    value
}

/// Returns the event that other threads raise to end the sleep of this thread's loop. Another
/// thread must wake a future of this loop before it raises the event.
///
/// # Panics
/// Panics outside [`block_on`].
pub(crate) fn wake_up_event() -> Arc<Event> {
    with_loop(|it| {
        it.listens_for_wake_up = true;
        Arc::clone(&it.wake_up)
    })
}

/// Starts a future on this thread's loop. A drop of the returned task cancels the future. After
/// `detach`, the future continues without the task.
pub fn spawn<F: Future<Output: 'static> + 'static>(future: F) -> Task<F::Output> {
    let context = task_context();
    EXECUTOR.with(|executor| {
        if size_of::<F>() > LARGE_FUTURE_BYTES {
            // Each wrapper around a future moves all bytes of the future, even bytes that are not
            // in use yet. So a large future is boxed first.
            executor.spawn(with_task_context(context, Box::pin(future)))
        } else {
            executor.spawn(with_task_context(context, future))
        }
    })
}

/// Submits the operations that futures of this thread have begun. Usually the loop submits the
/// operations when no future is ready. Call this function before work that blocks the thread for a
/// long time, so that the operations run meanwhile.
///
/// # Panics
/// Panics outside [`block_on`].
pub fn submit_begun() {
    // If the kernel refuses the submission, the loop's next wait submits the operations, or ends
    // the loop with the error.
    with_loop(|it| drop(it.enter()));
}

/// Whether this thread's loop runs. Destructors that run while the thread ends may run after the
/// loop has ended. Such destructors must not spawn futures.
pub fn is_running() -> bool {
    LOOP.try_with(|slot| slot.try_borrow().is_ok_and(|it| it.is_some())).unwrap_or(false)
}

/// Returns the time for which this thread's loop has waited for completions and timers so far.
/// Polling counts as waiting. In the rest of the time, the thread has run futures or has waited for
/// a processor.
pub fn idle_time() -> Duration {
    IDLE.get()
}

/// Lets this thread's loop poll for completions for at most `limit` before it sleeps. The loop
/// polls only in a conversation with a peer, which means that the loop has just sent data or that
/// replies are outstanding ([`expect_reply`]). Zero, the default, means that the loop sleeps
/// immediately. Call this function in threads that send replies for which another thread waits.
///
/// # Panics
/// Panics outside [`block_on`].
pub fn set_spin(limit: Duration) {
    with_loop(|it| it.spin.set_limit(limit));
}

/// Counts this loop as waiting for a reply on a socket, until the returned value is dropped. `time`
/// is when the reply is likely to arrive.
///
/// # Panics
/// Panics outside [`block_on`].
pub fn expect_reply(time: ReplyTime) -> ExpectedReply {
    with_loop(|it| it.spin.expect(time));
    ExpectedReply { time, _thread: std::marker::PhantomData }
}

/// A reply for which this loop waits ([`expect_reply`]).
#[derive(Debug)]
pub struct ExpectedReply {
    time: ReplyTime,
    /// Makes the type `!Send`, so that the value stays on the thread of its loop.
    _thread: std::marker::PhantomData<Rc<()>>,
}

impl Drop for ExpectedReply {
    fn drop(&mut self) {
        // While a thread ends, its loop may have been dropped already.
        let _ = LOOP.try_with(|slot| {
            if let Ok(mut slot) = slot.try_borrow_mut()
                && let Some(it) = slot.as_mut()
            {
                it.spin.end_expected(self.time);
            }
        });
    }
}

#[cfg(test)]
mod tests;
