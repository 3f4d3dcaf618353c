//! The threads of a copy from or to an object store, and their queue of work.
//!
//! Threads take the newest unit of work first, so that few directories are open. The producer, such
//! as a listing, waits while the queue is full. Units that result from another unit are always
//! accepted, because one unit leads to a bounded number of them.

use crate::context::Context;
use crate::outcome::Progress;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// Time between two reports of the progress.
const REPORT: Duration = Duration::from_secs(1);
/// Maximum number of units in the queue when the producer adds one.
const MOST_WAITING: usize = 4096;

struct State<W> {
    work: Vec<W>,
    /// Number of threads and producers that may add units.
    busy: usize,
    has_ended: bool,
}

/// A queue of units of work.
pub(super) struct Pool<W> {
    /// The units that wait, and the number of busy threads. No thread holds the lock during a
    /// request or a system call on a file.
    state: Mutex<State<W>>,
    changed: Condvar,
}

impl<W: Send> Pool<W> {
    pub(super) fn new() -> Self {
        let state = State { work: Vec::new(), busy: 0, has_ended: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State<W>> {
        self.state.lock().expect("no thread panics while it has the lock")
    }

    /// Adds a unit of work that the producer has found. Waits while the queue is full.
    pub(super) fn add(&self, unit: W) {
        let mut state = self.lock();
        while state.work.len() >= MOST_WAITING {
            state = self.changed.wait(state).expect("no thread panics while it has the lock");
        }
        state.work.push(unit);
        drop(state);
        self.changed.notify_all();
    }

    /// Runs the producer in a thread of its own. Does all units that the producer adds, in as many
    /// threads as the options of the context permit. Calls `report` once per second. If the copy is
    /// stopped, the remaining units are dropped.
    pub(super) fn run(
        &self,
        context: &Context,
        report: &dyn Fn(&Progress),
        produce: impl FnOnce() + Send,
        perform: impl Fn(W) -> Vec<W> + Sync,
    ) {
        let begin = Instant::now();
        self.lock().busy = 1;
        std::thread::scope(|scope| {
            for _ in 0..context.options.threads.max(1) {
                scope.spawn(|| self.work(context, &perform));
            }
            scope.spawn(|| {
                produce();
                self.release(Vec::new());
            });
            let mut reported = begin;
            loop {
                let state = self.lock();
                if state.has_ended {
                    break;
                }
                drop(self.changed.wait_timeout(state, REPORT));
                if reported.elapsed() >= REPORT {
                    report(&context.counters.progress(begin.elapsed()));
                    reported = Instant::now();
                }
            }
        });
        report(&context.counters.progress(begin.elapsed()));
    }

    /// Adds the units that result from a finished unit, and records that the thread of this unit is
    /// idle.
    fn release(&self, more: Vec<W>) {
        let mut state = self.lock();
        state.busy -= 1;
        state.work.extend(more);
        state.has_ended = state.busy == 0 && state.work.is_empty();
        drop(state);
        self.changed.notify_all();
    }

    fn work(&self, context: &Context, perform: &impl Fn(W) -> Vec<W>) {
        loop {
            let mut state = self.lock();
            let unit = loop {
                if state.has_ended {
                    return;
                }
                if let Some(unit) = state.work.pop() {
                    break unit;
                }
                state = self.changed.wait(state).expect("no thread panics while it has the lock");
            };
            state.busy += 1;
            drop(state);
            // The producer may be waiting because the queue was full.
            self.changed.notify_all();
            let more = if context.is_stopped() { Vec::new() } else { perform(unit) };
            self.release(more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Options;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn each_unit_of_work_and_each_unit_that_it_returns_run_once() {
        let pool = Pool::new();
        let context = Context::new(&Options::default());
        let sum = AtomicU64::new(0);
        let produce = || (0..3 * MOST_WAITING as u64).for_each(|unit| pool.add((unit, true)));
        pool.run(&context, &|_| (), produce, |(unit, has_follower)| {
            sum.fetch_add(unit, Ordering::Relaxed);
            if has_follower { vec![(1, false)] } else { Vec::new() }
        });
        let count = 3 * MOST_WAITING as u64;
        assert_eq!(sum.into_inner(), count * (count - 1) / 2 + count);
    }

    #[test]
    fn stopped_copy_drops_the_remaining_units_of_work() {
        let pool = Pool::new();
        let context = Context::new(&Options { threads: 1, ..Options::default() });
        let done = AtomicU64::new(0);
        let produce = || (0..10).for_each(|unit| pool.add(unit));
        pool.run(&context, &|_| (), produce, |_: i32| {
            done.fetch_add(1, Ordering::Relaxed);
            context.stop();
            Vec::new()
        });
        assert_eq!(done.into_inner(), 1);
    }
}
