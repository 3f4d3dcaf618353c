//! Measures how a future spends its time.

use crate::clock::now;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::time::Duration;

thread_local! {
    /// Time for which the system calls of this thread have waited for a disk since the thread
    /// began, added up over all futures.
    static BLOCKED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    /// Time for which futures of this thread have waited for other futures.
    static OBSTRUCTED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// The time that a future took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimeSpent {
    /// Time at which the future was polled first.
    pub begun_at: Duration,
    /// Time from the first poll to the result.
    pub total: Duration,
    /// Time in which the thread ran the future, without `blocked`.
    pub running: Duration,
    /// Time in which a system call of the future waited for a disk ([`note_blocked`]).
    pub blocked: Duration,
    /// Time in which the future waited for other futures ([`note_obstructed`]).
    pub obstructed: Duration,
}

/// Counts the time for which a system call of the running future has waited for a disk.
pub fn note_blocked(time: Duration) {
    BLOCKED.set(BLOCKED.get() + time);
}

/// Counts the time for which the running future has waited for other futures, such as for a lock
/// that another future held. Futures that the running future has spawned cannot count waits on its
/// behalf.
pub fn note_obstructed(time: Duration) {
    OBSTRUCTED.set(OBSTRUCTED.get() + time);
}

/// Runs a future, and returns its output and the time that the future took. In the part of `total`
/// that no other field contains, the future waited for other events.
pub async fn timed<F: Future>(future: F) -> (F::Output, TimeSpent) {
    let mut future = pin!(future);
    let mut spent = TimeSpent::default();
    let mut begun_at = None;
    let output = poll_fn(|waker| {
        let (started, blocked_before) = (now(), BLOCKED.get());
        let obstructed_before = OBSTRUCTED.get();
        spent.begun_at = *begun_at.get_or_insert(started);
        let result = future.as_mut().poll(waker);
        let ended = now();
        let blocked = BLOCKED.get() - blocked_before;
        spent.blocked += blocked;
        spent.obstructed += OBSTRUCTED.get() - obstructed_before;
        spent.running += (ended - started).saturating_sub(blocked);
        spent.total = ended - spent.begun_at;
        result
    })
    .await;
    (output, spent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{block_on, sleep};

    #[test]
    fn waiting_time_cpu_time_and_disk_time_are_counted_separately() {
        block_on(async {
            let (output, spent) = timed(async {
                sleep(Duration::from_millis(20)).await;
                let until = now() + Duration::from_millis(10);
                while now() < until {
                    std::hint::spin_loop();
                }
                note_blocked(Duration::from_millis(4));
                note_obstructed(Duration::from_millis(3));
                7
            })
            .await;
            assert_eq!((output, spent.blocked), (7, Duration::from_millis(4)));
            assert_eq!(spent.obstructed, Duration::from_millis(3));
            assert!(spent.running >= Duration::from_millis(6), "{spent:?}");
            let waited = spent.total - spent.running - spent.blocked;
            assert!(waited >= Duration::from_millis(19), "{spent:?}");
        })
        .unwrap();
    }
}
