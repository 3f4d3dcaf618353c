//! The threads of a walk over a tree, and their queue of work.
//!
//! Threads take the newest unit of work first. So the threads complete a directory before they open
//! the next directory beside it. Few directories are open at the same time, and the queue stays
//! short.

use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// Time between two reports of the progress.
const REPORT: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct State<W> {
    work: Vec<W>,
    /// Number of threads that are doing a unit of work, and may add further units.
    busy: usize,
    has_ended: bool,
}

/// Units of work that wait for a thread.
#[derive(Debug)]
struct Queue<W> {
    /// The units that wait, and the number of busy threads. No thread holds the lock during a
    /// system call on a file.
    state: Mutex<State<W>>,
    changed: Condvar,
}

/// Does all units of `work`, and the units that follow from them, with `threads` threads.
/// `perform` does one unit, and returns the units that follow from it. Calls `report` once per
/// second. Returns when no unit is left and all threads are idle.
pub(crate) fn work_off<W: Send>(
    work: Vec<W>,
    threads: usize,
    perform: impl Fn(W) -> Vec<W> + Sync,
    report: impl Fn(),
) {
    let state = State { work, busy: 0, has_ended: false };
    let queue = Queue { state: Mutex::new(state), changed: Condvar::new() };
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| queue.work(&perform));
        }
        let mut reported = Instant::now();
        loop {
            let state = queue.state.lock().expect("no thread panics while it has the lock");
            if state.has_ended {
                break;
            }
            drop(queue.changed.wait_timeout(state, REPORT));
            if reported.elapsed() >= REPORT {
                report();
                reported = Instant::now();
            }
        }
    });
}

impl<W> Queue<W> {
    /// Does units of work until the queue is empty and all other threads are idle.
    fn work(&self, perform: &impl Fn(W) -> Vec<W>) {
        loop {
            let mut state = self.state.lock().expect("no thread panics while it has the lock");
            let unit = loop {
                if let Some(unit) = state.work.pop() {
                    break unit;
                }
                if state.busy == 0 {
                    state.has_ended = true;
                    self.changed.notify_all();
                    return;
                }
                state = self.changed.wait(state).expect("no thread panics while it has the lock");
            };
            state.busy += 1;
            drop(state);
            let more = perform(unit);
            let mut state = self.state.lock().expect("no thread panics while it has the lock");
            state.busy -= 1;
            let is_idle = state.busy == 0;
            let count = more.len();
            state.work.extend(more);
            drop(state);
            if count > 1 || is_idle {
                self.changed.notify_all();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn each_unit_of_work_and_each_follow_up_unit_runs_once() {
        for threads in [1, 8] {
            let sum = AtomicU64::new(0);
            // Each unit `n` above zero leads to two units `n - 1`, so 1 + 2 + ... + 2^10 are done.
            let perform = |unit: u64| {
                sum.fetch_add(1, Ordering::Relaxed);
                if unit == 0 { Vec::new() } else { vec![unit - 1; 2] }
            };
            work_off(vec![10], threads, perform, || ());
            assert_eq!(sum.into_inner(), (1 << 11) - 1);
        }
    }

    #[test]
    fn walk_without_work_ends_immediately() {
        work_off(Vec::<u64>::new(), 4, |_| Vec::new(), || ());
    }
}
