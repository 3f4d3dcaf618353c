//! Implements the tasks, timers, channels and random numbers of the Raft library with the event
//! loop in `skep_env`.
//!
//! # Hazard: dropped tasks
//! A task of `skep_env` ends when its handle is dropped. The library drops handles and expects the
//! tasks to continue. So [`Running`] detaches its task when the handle is dropped.

use openraft::async_runtime::AsyncOneshotSendExt;
use openraft::{AsyncRuntime, OptionalSend};
use skep_env::local;
use std::fmt;
use std::future::Future;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// The event loop of the calling thread.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct EventLoop;

/// A time of the event loop's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(Duration);

impl openraft::Instant for Moment {
    fn now() -> Self {
        Self(skep_env::now())
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0 + span)
    }
}

impl AddAssign<Duration> for Moment {
    fn add_assign(&mut self, span: Duration) {
        self.0 += span;
    }
}

impl Sub<Duration> for Moment {
    type Output = Self;

    fn sub(self, span: Duration) -> Self {
        // The clock is zero when the host starts. The Raft library subtracts whole timeouts from
        // early times, so an exact difference could be negative.
        Self(self.0.saturating_sub(span))
    }
}

impl Sub for Moment {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl SubAssign<Duration> for Moment {
    fn sub_assign(&mut self, span: Duration) {
        *self = *self - span;
    }
}

/// The handle of a task that continues after the handle is dropped.
pub(crate) struct Running<T>(Option<skep_env::Task<T>>);

impl<T> Future for Running<T> {
    type Output = Result<T, Never>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T, Never>> {
        let task = self.0.as_mut().expect("only drop takes the task");
        Pin::new(task).poll(context).map(Ok)
    }
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.detach();
        }
    }
}

/// The error of a task. This error cannot occur, because a panic ends the whole process.
#[derive(Debug)]
pub(crate) enum Never {}

impl fmt::Display for Never {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}

/// The error of a [`Limited`] future that was not ready within its time limit.
#[derive(Debug)]
pub(crate) struct TooLate;

impl fmt::Display for TooLate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the call got no result within its time limit")
    }
}

type Sleeping = Pin<Box<dyn Future<Output = ()>>>;

/// A future with a time limit.
pub(crate) struct Limited<F> {
    future: Pin<Box<F>>,
    sleep: Sleeping,
}

impl<F: Future> Future for Limited<F> {
    type Output = Result<F::Output, TooLate>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(value) = self.future.as_mut().poll(context) {
            return Poll::Ready(Ok(value));
        }
        self.sleep.as_mut().poll(context).map(|()| Err(TooLate))
    }
}

/// Sends one value to another task of the same thread.
pub(crate) struct ValueSender<T>(local::Sender<T>);

impl<T> fmt::Debug for ValueSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ValueSender")
    }
}

impl<T: OptionalSend> AsyncOneshotSendExt<T> for ValueSender<T> {
    fn send(self, value: T) -> Result<(), T> {
        self.0.send(value);
        Ok(())
    }
}

/// Receives the value of a [`ValueSender`].
pub(crate) struct ValueReceiver<T>(local::Receiver<T>);

impl<T> Future for ValueReceiver<T> {
    type Output = Result<T, SenderGone>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|value| value.ok_or(SenderGone))
    }
}

/// The error of a [`ValueReceiver`] whose sender was dropped without a value.
#[derive(Debug)]
pub(crate) struct SenderGone;

impl fmt::Display for SenderGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the sender was dropped without a value")
    }
}

impl std::error::Error for SenderGone {}

/// The random number generator of `skep_env`.
pub(crate) struct RandomNumbers;

impl rand_core::RngCore for RandomNumbers {
    fn next_u32(&mut self) -> u32 {
        (skep_env::random_u64() >> 32) as u32
    }

    fn next_u64(&mut self) -> u64 {
        skep_env::random_u64()
    }

    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&skep_env::random_bytes::<8>()[..chunk.len()]);
        }
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), rand_core::Error> {
        self.fill_bytes(bytes);
        Ok(())
    }
}

impl AsyncRuntime for EventLoop {
    type JoinError = Never;
    type JoinHandle<T: OptionalSend + 'static> = Running<T>;
    type Sleep = Sleeping;
    type Instant = Moment;
    type TimeoutError = TooLate;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = Limited<T>;
    type ThreadLocalRng = RandomNumbers;
    type OneshotSender<T: OptionalSend> = ValueSender<T>;
    type OneshotReceiverError = SenderGone;
    type OneshotReceiver<T: OptionalSend> = ValueReceiver<T>;

    fn spawn<T>(future: T) -> Running<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        Running(Some(skep_env::spawn(future)))
    }

    fn sleep(span: Duration) -> Sleeping {
        Box::pin(skep_env::sleep(span))
    }

    fn sleep_until(deadline: Moment) -> Sleeping {
        Self::sleep(deadline.0.saturating_sub(skep_env::now()))
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(span: Duration, future: F) -> Limited<F> {
        Limited { future: Box::pin(future), sleep: Self::sleep(span) }
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(
        deadline: Moment,
        future: F,
    ) -> Limited<F> {
        Limited { future: Box::pin(future), sleep: Self::sleep_until(deadline) }
    }

    fn is_panic(error: &Never) -> bool {
        match *error {}
    }

    fn thread_rng() -> RandomNumbers {
        RandomNumbers
    }

    fn oneshot<T: OptionalSend>() -> (ValueSender<T>, ValueReceiver<T>) {
        let (sender, receiver) = local::oneshot();
        (ValueSender(sender), ValueReceiver(receiver))
    }
}
