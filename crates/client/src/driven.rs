//! Runs operations to completion even if the caller drops the future.
//!
//! A modifying request occupies its slot until the reply arrives. A truncation waits until earlier
//! writes have ended. If a dropped future ended a write whose request is still under way, the write
//! could arrive at the server after the truncation. So if the caller is interrupted and drops the
//! future, the operation continues as a separate task.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// Runs `future` to completion. If the returned future is dropped after its first poll, `future`
/// continues as a task, which passes its result to `orphan`.
pub(crate) fn drive<F, O>(future: F, orphan: O) -> Driven<F, O>
where
    F: Future + 'static,
    O: FnOnce(F::Output) + 'static,
{
    Driven { future: Some(Box::pin(future)), orphan: Some(orphan), grace: None, is_started: false }
}

/// Like [`drive`], but if the returned future is dropped, cancels `future` unless it completes
/// within `grace`.
pub(crate) fn drive_for<F: Future + 'static>(
    grace: Duration,
    future: F,
) -> Driven<F, impl FnOnce(F::Output) + 'static> {
    let (future, orphan) = (Some(Box::pin(future)), Some(drop));
    Driven { future, orphan, grace: Some(grace), is_started: false }
}

/// The future that [`drive`] and [`drive_for`] return.
pub(crate) struct Driven<F: Future + 'static, O: FnOnce(F::Output) + 'static> {
    future: Option<Pin<Box<F>>>,
    orphan: Option<O>,
    grace: Option<Duration>,
    is_started: bool,
}

// The future is pinned on the heap, so a `Driven` may move.
impl<F: Future + 'static, O: FnOnce(F::Output) + 'static> Unpin for Driven<F, O> {}

impl<F: Future + 'static, O: FnOnce(F::Output) + 'static> Future for Driven<F, O> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.is_started = true;
        let future = self.future.as_mut().expect("a future is not polled after it was ready");
        let polled = future.as_mut().poll(context);
        if polled.is_ready() {
            self.future = None;
        }
        polled
    }
}

impl<F: Future + 'static, O: FnOnce(F::Output) + 'static> Drop for Driven<F, O> {
    fn drop(&mut self) {
        let (Some(future), Some(orphan)) = (self.future.take(), self.orphan.take()) else { return };
        // The dropped future does not continue if it was never polled, because it has sent no
        // request. It also does not continue if the thread's event loop has ended, because no task
        // can run. The server then ends the session with its opens and locks when the lease runs
        // out.
        if !self.is_started || !skep_env::is_running() {
            return;
        }
        let grace = self.grace;
        skep_env::spawn(async move {
            match grace {
                None => orphan(future.await),
                Some(grace) => {
                    if let Some(value) = skep_env::timeout(grace, future).await {
                        orphan(value);
                    }
                }
            }
        })
        .detach();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    fn operation(done: &Rc<Cell<bool>>) -> impl Future<Output = u32> + 'static {
        let done = Rc::clone(done);
        async move {
            skep_env::yield_now().await;
            skep_env::yield_now().await;
            done.set(true);
            7
        }
    }

    #[test]
    fn dropped_operation_completes_and_passes_on_its_result() {
        skep_env::block_on(async {
            let (done, orphaned) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
            let note = Rc::clone(&orphaned);
            let driven = drive(operation(&done), move |value| note.set(value));
            assert_eq!(skep_env::timeout(Duration::ZERO, driven).await, None);
            while orphaned.get() == 0 {
                skep_env::yield_now().await;
            }
            assert_eq!((done.get(), orphaned.get()), (true, 7));
        })
        .unwrap();
    }

    #[test]
    fn dropped_operation_is_cancelled_after_its_grace_period() {
        skep_env::block_on(async {
            let held = Rc::new(());
            let holding = Rc::clone(&held);
            let never = async move {
                let _holding = holding;
                std::future::pending::<()>().await;
            };
            let driven = drive_for(Duration::from_millis(2), never);
            assert_eq!(skep_env::timeout(Duration::ZERO, driven).await, None);
            assert_eq!(Rc::strong_count(&held), 2);
            while Rc::strong_count(&held) > 1 {
                skep_env::sleep(Duration::from_millis(1)).await;
            }
        })
        .unwrap();
    }

    #[test]
    fn operation_dropped_before_its_first_poll_never_runs() {
        skep_env::block_on(async {
            let done = Rc::new(Cell::new(false));
            drop(drive(operation(&done), |_| unreachable!("the operation never ran")));
            skep_env::sleep(Duration::from_millis(1)).await;
            assert!(!done.get());
            assert_eq!(
                drive(operation(&done), |_| unreachable!("the caller awaited the result")).await,
                7
            );
        })
        .unwrap();
    }
}
