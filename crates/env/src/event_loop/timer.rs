//! Timers: futures that wait for a span of time.

use super::{LOOP, with_loop};
use crate::clock;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// Waits for `span`.
pub fn sleep(span: Duration) -> Sleep {
    Sleep { due: clock::now() + span, id: None }
}

/// The future of [`sleep`].
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

/// Runs a future for at most `span`. `None` means that the future was not ready after this time,
/// and that `timeout` has dropped the future.
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

/// Waits until all other futures that are ready have run.
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
