//! Notifications between threads: futures of several event loops wait for a change that any thread
//! may make.
//!
//! This module is responsible for the list of waiting futures, but not for the state that changes.
//! The caller protects that state with a separate lock or atomic. For futures of one thread use
//! [`crate::local::Notify`], which costs no system call. To pass values between threads use
//! [`crate::Mailbox`].
//!
//! A notification carries no value. Each notification wakes every waiting future, and each woken
//! future checks the state itself. So notifications never queue up. The list has one entry for each
//! waiting future, and each thread has one file descriptor for all its waits.
//!
//! # Hazard: lost wake-ups
//! A notification has no effect on a later [`SharedNotify::wait`]. A future that calls `wait` only
//! after the check of the state sleeps for ever if the change happens between the check and the
//! call. So a future must register first and then check the state:
//!
//! ```
//! # use std::sync::atomic::{AtomicBool, Ordering};
//! # async fn example(renewed: &skep_env::SharedNotify, is_renewed: &AtomicBool) {
//! loop {
//!     let change = renewed.wait(); // Registers.
//!     if is_renewed.load(Ordering::Acquire) {
//!         break;
//!     }
//!     change.await;
//! }
//! # }
//! ```
//!
//! [`SharedNotify::wait_until`] registers and checks in this order. The notifying thread must
//! change the state first and call [`SharedNotify::notify`] afterwards.
//!
//! # Hazard: spurious wake-ups
//! A notification wakes all waiting futures, whatever change each of them waits for. Before a woken
//! future runs, another future may undo the change. So a future must check the state again after
//! each wake-up.
//!
//! # Hazard: locks
//! `notify` runs no code of the woken futures, so the caller may hold a lock. But woken threads
//! that need this lock have to wait for its release, so the caller should release the lock before
//! it calls `notify`. A caller must not await `wait` while it holds a lock that the notifying
//! thread needs.
//!
//! # Invariants
//! - The generation never decreases. Each notification increases this number by one.
//! - An entry of the list belongs to a future that exists and that was pending at its last poll.
//!
//! Each poll of a wait asserts the first invariant. The list has no references to its futures, so
//! no function of this module can check the second invariant.
//!
//! Held by the tests `dropped_wait_is_removed_from_the_list_of_waits` and
//! `a_notification_wakes_futures_of_several_threads`.

use crate::event::Event;
use crate::event_loop::wake_up_event;
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Wakes futures of several threads.
#[derive(Debug, Default)]
pub struct SharedNotify {
    /// The mutex protects the list and the generation. A thread holds the mutex for a few
    /// instructions, and never during a wake-up, a system call or an `.await`. While a thread holds
    /// the mutex, the thread takes no other lock.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    generation: u64,
    next_id: u64,
    waiting: HashMap<u64, Waiter>,
}

/// A waiting future, and the event that ends the sleep of its thread's loop.
#[derive(Debug)]
struct Waiter {
    waker: Waker,
    wake_up: Arc<Event>,
}

impl SharedNotify {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all futures that wait now, on all threads. Any thread may call this method, including
    /// a thread without an event loop. The method never blocks.
    pub fn notify(&self) {
        let waiting = {
            let mut state = self.state();
            state.generation += 1;
            std::mem::take(&mut state.waiting)
        };
        for Waiter { waker, wake_up } in waiting.into_values() {
            // Wake the future first. When the event ends the loop's sleep, the future must already
            // be ready to run.
            waker.wake();
            wake_up.raise();
        }
    }

    /// Waits for the next [`Self::notify`] after this call (not after the first poll). The returned
    /// future must be awaited inside [`crate::block_on`]. Cancel-safe.
    pub fn wait(&self) -> SharedWait<'_> {
        SharedWait { notify: self, seen: self.state().generation, id: None }
    }

    /// Waits until `check` returns a value, and returns that value. Calls `check` immediately, and
    /// then after each notification. Cancel-safe.
    pub async fn wait_until<T>(&self, mut check: impl FnMut() -> Option<T>) -> T {
        loop {
            let change = self.wait();
            if let Some(value) = check() {
                return value;
            }
            change.await;
        }
    }
}

/// The future of [`SharedNotify::wait`].
#[derive(Debug)]
#[must_use = "a wait does nothing until it is awaited"]
pub struct SharedWait<'a> {
    notify: &'a SharedNotify,
    /// The generation when `wait` was called.
    seen: u64,
    /// Key of this future's entry in the list. `None` before the first poll.
    id: Option<u64>,
}

impl Future for SharedWait<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let wake_up = wake_up_event();
        let mut state = self.notify.state();
        assert!(state.generation >= self.seen, "the generation only grows");
        if state.generation != self.seen {
            return Poll::Ready(());
        }
        let id = self.id.unwrap_or_else(|| {
            state.next_id += 1;
            state.next_id
        });
        state.waiting.insert(id, Waiter { waker: context.waker().clone(), wake_up });
        drop(state);
        self.id = Some(id);
        Poll::Pending
    }
}

impl Drop for SharedWait<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let waiter = self.notify.state().waiting.remove(&id);
            // Drop the waiter outside of the lock, because the waker of the waiter may be the last
            // handle to its task.
            drop(waiter);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{block_on, spawn, timeout};
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    /// Time limit of a wait. The limit is far longer than the time that any of these tests takes on
    /// a busy machine.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn waiting(notify: &SharedNotify) -> usize {
        notify.state().waiting.len()
    }

    #[test]
    fn a_notification_wakes_futures_of_several_threads() {
        let notify = Arc::new(SharedNotify::default());
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let notify = Arc::clone(&notify);
                std::thread::spawn(move || {
                    block_on(async move {
                        let waits: Vec<_> = (0..4)
                            .map(|_| {
                                let notify = Arc::clone(&notify);
                                spawn(async move { notify.wait().await })
                            })
                            .collect();
                        let all = async {
                            for wait in waits {
                                wait.await;
                            }
                        };
                        timeout(PATIENCE, all).await
                    })
                })
            })
            .collect();
        while waiting(&notify) < 12 {
            std::thread::yield_now();
        }
        notify.notify();
        for thread in threads {
            assert_eq!(thread.join().unwrap().unwrap(), Some(()));
        }
        assert_eq!(waiting(&notify), 0);
    }

    /// Two threads take turns. In each round both threads sleep in the kernel, so a single lost
    /// wake-up would stop them for ever.
    #[test]
    fn no_wake_up_is_lost_between_two_threads() {
        const ROUNDS: u64 = 3000;
        let shared = Arc::new((SharedNotify::default(), AtomicU64::new(0)));
        let play = |parity: u64| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || {
                block_on(async move {
                    let (notify, turn) = &*shared;
                    for round in (0..ROUNDS).filter(|round| round % 2 == parity) {
                        let mine = || (turn.load(Ordering::Acquire) == round).then_some(());
                        timeout(PATIENCE, notify.wait_until(mine)).await?;
                        turn.store(round + 1, Ordering::Release);
                        notify.notify();
                    }
                    Some(())
                })
            })
        };
        let players = [play(0), play(1)];
        for player in players {
            assert_eq!(player.join().unwrap().unwrap(), Some(()));
        }
        assert_eq!(shared.1.load(Ordering::Relaxed), ROUNDS);
    }

    #[test]
    fn notification_before_the_first_poll_of_a_wait_wakes_the_wait() {
        block_on(async {
            let notify = SharedNotify::default();
            let wait = notify.wait();
            notify.notify();
            assert_eq!(timeout(PATIENCE, wait).await, Some(()));
        })
        .unwrap();
    }

    #[test]
    fn notification_before_a_wait_begins_does_not_end_the_wait() {
        block_on(async {
            let notify = SharedNotify::default();
            notify.notify();
            assert_eq!(timeout(Duration::from_millis(5), notify.wait()).await, None);
        })
        .unwrap();
    }

    #[test]
    fn dropped_wait_is_removed_from_the_list_of_waits() {
        block_on(async {
            let notify = SharedNotify::default();
            assert_eq!(timeout(Duration::from_millis(5), notify.wait()).await, None);
            assert_eq!(waiting(&notify), 0);
        })
        .unwrap();
    }

    #[test]
    fn wait_for_a_value_ends_only_when_the_value_is_reached() {
        let shared = Arc::new((SharedNotify::default(), AtomicU64::new(0)));
        let waiter = {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || {
                block_on(async move {
                    let (notify, value) = &*shared;
                    let enough =
                        || Some(value.load(Ordering::Acquire)).filter(|value| *value == 50);
                    timeout(PATIENCE, notify.wait_until(enough)).await
                })
            })
        };
        for _ in 0..50 {
            shared.1.fetch_add(1, Ordering::Release);
            shared.0.notify();
        }
        assert_eq!(waiter.join().unwrap().unwrap(), Some(50));
    }
}
