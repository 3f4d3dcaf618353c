//! The context of a task: a number that a caller attaches to a future. All futures that this future
//! spawns inherit the number. So a layer far below the caller can attribute its work to the
//! caller's operation.
//!
//! The module `skep_rpc::origin` defines the meaning of the number.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;

thread_local! {
    static CONTEXT: Cell<u128> = const { Cell::new(0) };
}

/// Restores the previous context when dropped.
struct Restore(u128);

impl Drop for Restore {
    fn drop(&mut self) {
        CONTEXT.set(self.0);
    }
}

/// Returns the context of the running future. Zero means that the future has no context.
pub fn task_context() -> u128 {
    CONTEXT.get()
}

/// Runs a future in a context. Futures that this future spawns inherit the context.
pub async fn with_task_context<F: Future>(context: u128, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|waker| {
        let _restore = Restore(CONTEXT.replace(context));
        future.as_mut().poll(waker)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{block_on, spawn, yield_now};

    #[test]
    fn spawned_future_inherits_the_task_context_of_its_parent() {
        block_on(async {
            let one = with_task_context(1, async {
                let inherited = spawn(async {
                    yield_now().await;
                    task_context()
                });
                yield_now().await;
                (task_context(), inherited.await)
            });
            let other = spawn(async {
                yield_now().await;
                task_context()
            });
            assert_eq!(one.await, (1, 1));
            assert_eq!((other.await, task_context()), (0, 0));
        })
        .unwrap();
    }
}
