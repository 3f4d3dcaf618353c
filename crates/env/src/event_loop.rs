//! One event loop per thread: an io_uring, timers, and a local executor for the thread's futures.
//!
//! A turn: run all futures that can run, submit what they asked for and wait for the first
//! completion (one system call), wake whoever waited. Nothing here is shared between threads.
//!
//! # Spinning
//! Waking a thread that sleeps on another CPU costs more than most requests. So a loop that was
//! allowed to ([`set_spin`]) looks at its completion queue for a moment before it sleeps, if it
//! just talked to somebody: the last thing that happened on its sockets, a moment ago, was
//! something sent, or replies are outstanding ([`expect_reply`]). A loop that waits for a disk, a
//! timer or the next request after a pause sleeps at once, so an idle process costs nothing. While
//! it spins it calls nothing but `sched_yield`, which gives the CPU to whoever wants it (the peer,
//! perhaps). The figures are in docs/design/0001-threads-and-store.md.

use crate::clock;
use crate::event::Event;
use async_executor::LocalExecutor;
use async_task::Task;
use io_uring::{IoUring, cqueue, squeue, types};
use std::any::Any;
use std::cell::RefCell;
use std::collections::{BinaryHeap, HashMap};
use std::future::Future;
use std::io;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Submissions that fit before a turn has to hand them over early.
const SUBMISSION_ENTRIES: u32 = 256;
/// Completions that fit before the kernel has to keep them aside.
const COMPLETION_ENTRIES: u32 = 4096;
/// Futures run in a row before completions are looked at again, so that I/O isn't starved.
const RUNS_PER_TURN: usize = 256;

/// The flag of `io_uring_enter(2)`: also take completions.
const IORING_ENTER_GETEVENTS: u32 = 1;
/// After so much time without anything on its sockets, a loop no longer takes itself to be in a
/// conversation.
const CONVERSATION_PAUSE: Duration = Duration::from_micros(500);

/// User data of the cancellation of an operation, whose completion says nothing.
const CANCEL_ID: u64 = u64::MAX;
/// User data of the poll of the wake-up event. Operations are numbered from zero.
const WAKE_UP_ID: u64 = u64::MAX - 1;

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

/// What an operation says about the conversation with a peer when it completes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// Not on a socket.
    None,
    /// Something was sent: an answer or the next request may come soon.
    Sent,
    /// Something arrived: it is for us to act.
    Received,
}

enum OpState {
    Waiting {
        waker: Option<Waker>,
        keep: Box<dyn Any>,
        traffic: Traffic,
    },
    /// Its future is gone; what the kernel uses stays until the completion.
    Dropped {
        _keep: Box<dyn Any>,
    },
    Done {
        result: i32,
        keep: Box<dyn Any>,
    },
}

struct Loop {
    ring: Ring,
    ops: HashMap<u64, OpState>,
    next_op: u64,
    timers: BinaryHeap<std::cmp::Reverse<(Duration, u64)>>,
    timer_wakers: HashMap<u64, Waker>,
    next_timer: u64,
    /// Raised by other threads to end this loop's sleep.
    wake_up: Arc<Event>,
    /// Whether a future of this thread ever waited for another thread.
    listens_for_wake_up: bool,
    /// Whether the kernel watches the event.
    is_wake_up_armed: bool,
    spin: Duration,
    /// The last completion on a socket.
    last_traffic: Traffic,
    last_traffic_time: Duration,
    expected_replies: usize,
    /// How often it looked for completions without sleeping.
    #[cfg(test)]
    spun: u64,
}

thread_local! {
    static LOOP: RefCell<Option<Loop>> = const { RefCell::new(None) };
    static EXECUTOR: Rc<LocalExecutor<'static>> = Rc::new(LocalExecutor::new());
}

fn with_loop<T>(f: impl FnOnce(&mut Loop) -> T) -> T {
    LOOP.with_borrow_mut(|slot| f(slot.as_mut().expect("called inside `block_on`")))
}

fn new_ring() -> io::Result<Ring> {
    let mut builder = IoUring::<squeue::Entry128, cqueue::Entry>::builder();
    builder.setup_cqsize(COMPLETION_ENTRIES);
    // One thread submits and reaps: the kernel then runs completions when we ask for them, which
    // saves interrupts (6.1 and later). A flag in shared memory then says that there are some, so
    // that spinning needn't ask. Older kernels refuse these settings.
    builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
    if let Ok(ring) = builder.build(SUBMISSION_ENTRIES) {
        return Ok(ring);
    }
    let mut builder = IoUring::<squeue::Entry128, cqueue::Entry>::builder();
    builder.setup_cqsize(COMPLETION_ENTRIES).build(SUBMISSION_ENTRIES)
}

impl Loop {
    fn new(ring: Ring) -> io::Result<Self> {
        Ok(Self {
            ring,
            ops: HashMap::new(),
            next_op: 0,
            timers: BinaryHeap::new(),
            timer_wakers: HashMap::new(),
            next_timer: 0,
            wake_up: Arc::new(Event::new_nonblocking()?),
            listens_for_wake_up: false,
            is_wake_up_armed: false,
            spin: Duration::ZERO,
            last_traffic: Traffic::None,
            last_traffic_time: Duration::ZERO,
            expected_replies: 0,
            #[cfg(test)]
            spun: 0,
        })
    }

    fn push(&mut self, entry: &squeue::Entry128) {
        loop {
            // SAFETY: whoever made the entry gave what keeps its memory alive (see `submit`).
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return;
            }
            // Full: hand over what there is. EBUSY and EINTR pass by reaping and trying again.
            let _ = self.ring.submit();
            self.reap();
        }
    }

    fn reap(&mut self) {
        let Self {
            ring,
            ops,
            last_traffic,
            last_traffic_time,
            spin,
            wake_up,
            is_wake_up_armed,
            ..
        } = self;
        let mut seen = Traffic::None;
        for completion in ring.completion() {
            let id = completion.user_data();
            if id == WAKE_UP_ID {
                // Reset before the futures run: a later notification raises the event again.
                wake_up.reset();
                *is_wake_up_armed = false;
                continue;
            }
            match ops.remove(&id) {
                Some(OpState::Waiting { waker, keep, traffic }) => {
                    if traffic != Traffic::None {
                        seen = traffic;
                    }
                    ops.insert(id, OpState::Done { result: completion.result(), keep });
                    if let Some(waker) = waker {
                        waker.wake();
                    }
                }
                Some(OpState::Dropped { .. } | OpState::Done { .. }) | None => {}
            }
        }
        if seen != Traffic::None && !spin.is_zero() {
            *last_traffic = seen;
            *last_traffic_time = clock::now();
        }
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

    /// Time until the next timer that somebody still waits for.
    fn until_next_timer(&mut self) -> Option<Duration> {
        while let Some(std::cmp::Reverse((due, id))) = self.timers.peek().copied() {
            if self.timer_wakers.contains_key(&id) {
                return Some(due.saturating_sub(clock::now()));
            }
            self.timers.pop();
        }
        None
    }

    /// Lets the kernel watch the wake-up event, if a future of this thread needs it.
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
            // With deferred completions the kernel must be entered for them to appear.
            self.enter()?;
        } else if !self.spin_for_completion(next_timer)? {
            self.sleep_for_completion(next_timer)?;
        }
        self.reap();
        self.fire_timers();
        Ok(())
    }

    /// Submits, and takes the completions that there are. Doesn't wait.
    fn enter(&mut self) -> io::Result<()> {
        let count = self.ring.submission().len() as u32;
        // SAFETY: no signal mask is passed, and whoever made the entries keeps their memory.
        let entered = unsafe {
            self.ring.submitter().enter::<libc::sigset_t>(count, 0, IORING_ENTER_GETEVENTS, None)
        };
        pass_over(entered)
    }

    /// Submits and blocks until something completes or a timer is due.
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

    /// Whether the peer is likely to say something within a moment.
    fn is_in_conversation(&self) -> bool {
        !self.spin.is_zero()
            && (self.last_traffic == Traffic::Sent || self.expected_replies > 0)
            && clock::now().saturating_sub(self.last_traffic_time) < CONVERSATION_PAUSE
    }

    /// Looks for completions without sleeping, while that is worth it; `false` if none came.
    fn spin_for_completion(&mut self, next_timer: Option<Duration>) -> io::Result<bool> {
        if !self.ring.submission().is_empty() && (!self.spin.is_zero()) {
            // What is submitted may complete at once: a send does, as a rule.
            self.enter()?;
            if !self.ring.completion().is_empty() {
                return Ok(true);
            }
        }
        if !self.is_in_conversation() {
            return Ok(false);
        }
        let start = clock::now();
        let limit = next_timer.map_or(self.spin, |left| left.min(self.spin));
        while clock::now().saturating_sub(start) < limit {
            #[cfg(test)]
            {
                self.spun += 1;
            }
            if self.ring.submission().taskrun() {
                self.enter()?;
            }
            if !self.ring.completion().is_empty() {
                return Ok(true);
            }
            // SAFETY: a plain system call without arguments.
            unsafe { libc::sched_yield() };
        }
        Ok(false)
    }
}

/// Interruptions and time-outs end a wait, they are no errors.
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

/// Runs a future, and all that it spawns, on this thread's event loop until it is ready.
///
/// # Errors
/// When the kernel refuses an io_uring; the message says what to look at.
///
/// # Panics
/// If called inside itself.
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
    // Closing the ring waits for or cancels what is in flight before memory that it uses goes away.
    // Futures that still hold operations are left to the executor's thread-local drop.
    LOOP.with_borrow_mut(|slot| {
        if let Some(Loop { ring, ops, .. }) = slot.take() {
            drop(ring);
            // The kernel cancels asynchronously; buffers of operations that were in flight are
            // leaked rather than freed under it. Threads end only when their process does.
            std::mem::forget(ops);
        }
    });
    value
}

/// The event by which other threads end the sleep of this thread's loop. A thread that raises it must
/// wake the future first.
///
/// # Panics
/// Outside [`block_on`].
pub(crate) fn wake_up_event() -> Arc<Event> {
    with_loop(|it| {
        it.listens_for_wake_up = true;
        Arc::clone(&it.wake_up)
    })
}

/// Starts a future on this thread's loop. Dropping the task cancels it; `detach` lets it run.
pub fn spawn<T: 'static>(future: impl Future<Output = T> + 'static) -> Task<T> {
    EXECUTOR.with(|executor| executor.spawn(future))
}

/// Whether this thread's loop runs. Not so in destructors that run as the thread ends: nothing can
/// be spawned there.
pub fn is_running() -> bool {
    LOOP.try_with(|slot| slot.try_borrow().is_ok_and(|it| it.is_some())).unwrap_or(false)
}

/// Lets this thread's loop look for completions for at most `limit` before it sleeps, whenever it
/// is in the middle of a conversation (see the module's page: [`expect_reply`] is a part of it).
/// Zero, the default, means to sleep at once. For threads whose answers somebody waits for.
///
/// # Panics
/// Outside [`block_on`].
pub fn set_spin(limit: Duration) {
    with_loop(|it| it.spin = limit);
}

/// Says that this loop waits for an answer from a socket until the value is dropped.
///
/// # Panics
/// Outside [`block_on`].
pub fn expect_reply() -> ExpectedReply {
    with_loop(|it| it.expected_replies += 1);
    ExpectedReply(std::marker::PhantomData)
}

/// See [`expect_reply`].
#[derive(Debug)]
pub struct ExpectedReply(std::marker::PhantomData<Rc<()>>);

impl Drop for ExpectedReply {
    fn drop(&mut self) {
        // At the end of the thread the loop is gone already.
        let _ = LOOP.try_with(|slot| {
            if let Ok(mut slot) = slot.try_borrow_mut()
                && let Some(it) = slot.as_mut()
            {
                it.expected_replies = it.expected_replies.saturating_sub(1);
            }
        });
    }
}

/// An operation that the kernel works on.
#[derive(Debug)]
pub struct Op {
    id: u64,
    finished: bool,
}

/// Hands an operation to the kernel. `keep` is whatever memory the entry points to; it is held
/// until the completion has arrived, and given back with the result.
///
/// # Safety
/// All memory that `entry` refers to must be owned by `keep` or live as long as the process.
pub unsafe fn submit(entry: squeue::Entry128, keep: Box<dyn Any>) -> Op {
    // SAFETY: the caller's promise is passed on.
    unsafe { submit_traffic(entry, keep, Traffic::None) }
}

/// As [`submit`], for an operation on a socket.
///
/// # Safety
/// As [`submit`].
pub(crate) unsafe fn submit_traffic(
    entry: squeue::Entry128,
    keep: Box<dyn Any>,
    traffic: Traffic,
) -> Op {
    with_loop(|it| {
        let id = it.next_op;
        it.next_op += 1;
        it.ops.insert(id, OpState::Waiting { waker: None, keep, traffic });
        it.push(&entry.user_data(id));
        Op { id, finished: false }
    })
}

impl Future for Op {
    /// The result as the kernel gives it (negative: an error number), and what was kept.
    type Output = (i32, Box<dyn Any>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let id = self.id;
        let polled = with_loop(|it| match it.ops.remove(&id) {
            Some(OpState::Done { result, keep }) => Poll::Ready((result, keep)),
            Some(OpState::Waiting { keep, traffic, .. }) => {
                let waker = Some(context.waker().clone());
                it.ops.insert(id, OpState::Waiting { waker, keep, traffic });
                Poll::Pending
            }
            Some(OpState::Dropped { .. }) | None => {
                unreachable!("an operation is awaited once")
            }
        });
        self.finished = polled.is_ready();
        polled
    }
}

impl Drop for Op {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        // At the end of the thread the loop is gone already, and with it the operation.
        let _ = LOOP.try_with(|slot| {
            let Ok(mut slot) = slot.try_borrow_mut() else { return };
            let Some(it) = slot.as_mut() else { return };
            if let Some(OpState::Waiting { keep, .. }) = it.ops.remove(&self.id) {
                it.ops.insert(self.id, OpState::Dropped { _keep: keep });
                let cancel = io_uring::opcode::AsyncCancel::new(self.id).build();
                it.push(&squeue::Entry128::from(cancel).user_data(CANCEL_ID));
            }
        });
    }
}

/// Waits for a span of time.
pub fn sleep(span: Duration) -> Sleep {
    Sleep { due: clock::now() + span, id: None }
}

/// See [`sleep`].
#[derive(Debug)]
pub struct Sleep {
    due: Duration,
    id: Option<u64>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if clock::now() >= self.due {
            return Poll::Ready(());
        }
        let due = self.due;
        let id = self.id;
        let id = with_loop(|it| {
            let id = id.unwrap_or_else(|| {
                it.next_timer += 1;
                it.timers.push(std::cmp::Reverse((due, it.next_timer)));
                it.next_timer
            });
            it.timer_wakers.insert(id, context.waker().clone());
            id
        });
        self.id = Some(id);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        let _ = LOOP.try_with(|slot| {
            if let Ok(mut slot) = slot.try_borrow_mut()
                && let Some(it) = slot.as_mut()
            {
                it.timer_wakers.remove(&id);
            }
        });
    }
}

/// Runs a future for at most a span of time; `None` if it wasn't ready by then, and it is dropped.
pub async fn timeout<T>(span: Duration, future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    let mut sleep = std::pin::pin!(sleep(span));
    std::future::poll_fn(|context| {
        if let Poll::Ready(value) = future.as_mut().poll(context) {
            return Poll::Ready(Some(value));
        }
        sleep.as_mut().poll(context).map(|()| None)
    })
    .await
}

/// Lets all other futures that can run go first.
pub async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|context| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn futures_take_turns_and_timers_fire_in_order() {
        let order = block_on(async {
            let order = Rc::new(RefCell::new(Vec::new()));
            let tasks: Vec<_> = [300_u64, 100, 200]
                .into_iter()
                .map(|delay| {
                    let order = Rc::clone(&order);
                    spawn(async move {
                        sleep(Duration::from_millis(delay)).await;
                        order.borrow_mut().push(delay);
                    })
                })
                .collect();
            for task in tasks {
                task.await;
            }
            order.take()
        });
        assert_eq!(order.unwrap(), [100, 200, 300]);
    }

    #[test]
    fn a_timeout_drops_what_takes_too_long() {
        let result = block_on(async {
            timeout(Duration::from_millis(5), std::future::pending::<()>()).await
        });
        assert_eq!(result.unwrap(), None);
    }

    /// Whether a loop that may spin for ten seconds does so while it waits 20 ms for a timer.
    fn spins(last_traffic: Traffic, age: Duration, expects: bool) -> bool {
        block_on(async move {
            set_spin(Duration::from_secs(10));
            let _expected = expects.then(expect_reply);
            with_loop(|it| {
                it.last_traffic = last_traffic;
                it.last_traffic_time = clock::now() - age;
            });
            sleep(Duration::from_millis(20)).await;
            with_loop(|it| it.spun > 0)
        })
        .unwrap()
    }

    #[test]
    fn only_a_conversation_is_worth_spinning() {
        let check = |traffic, age, expects, expected| {
            // On a busy machine the thread may get its turn only when the conversation is over.
            let tries = if expected { 50 } else { 1 };
            let found = (0..tries).any(|_| spins(traffic, age, expects));
            assert_eq!(found, expected, "{traffic:?} {age:?}");
        };
        let (now, old) = (Duration::ZERO, CONVERSATION_PAUSE * 2);
        check(Traffic::Sent, now, false, true);
        check(Traffic::Received, now, true, true);
        check(Traffic::Received, now, false, false);
        check(Traffic::Sent, old, false, false);
        check(Traffic::Received, old, true, false);
    }
}
