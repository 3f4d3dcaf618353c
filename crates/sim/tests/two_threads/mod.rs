//! Runs the seeds of a simulation on two threads.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Runs seeds on two threads until `is_last` is true for a report. Returns the reports of all runs.
pub(crate) fn reports_until<R: Send>(
    seeds: Range<u64>,
    run: impl Fn(u64) -> R + Sync,
    is_last: impl Fn(&R) -> bool + Sync,
) -> Vec<R> {
    let has_ended = AtomicBool::new(false);
    let half = |parity: u64| {
        let mut reports = Vec::new();
        for seed in seeds.clone().filter(|seed| seed % 2 == parity) {
            if has_ended.load(Ordering::Relaxed) {
                break;
            }
            let report = run(seed);
            if is_last(&report) {
                has_ended.store(true, Ordering::Relaxed);
            }
            reports.push(report);
        }
        reports
    };
    thread::scope(|scope| {
        let (even, odd) = (scope.spawn(|| half(0)), scope.spawn(|| half(1)));
        let mut all = even.join().expect("the even seeds ran");
        all.extend(odd.join().expect("the odd seeds ran"));
        all
    })
}
