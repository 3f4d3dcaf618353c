//! The switch that turns the statistics of this process off. The switch exists only for
//! measurements of the cost of statistics (`cargo xtask bench-cost`).
//!
//! The switch affects the work for each operation: counters and histograms of operations, counters
//! of cache uses, accounts of load, tables of open requests, and records of operations. Gauges, and
//! metrics that are computed only for a reader, are not switched off.

use std::sync::atomic::{AtomicBool, Ordering};

/// The environment variable that turns the statistics off if its value is `off`. The main function
/// of the program reads this variable.
pub const STATISTICS_VARIABLE: &str = "SKEP_STATISTICS";

static IS_OFF: AtomicBool = AtomicBool::new(false);

/// Turns the statistics of this process off. The main function of a program calls this function
/// before it starts other threads.
pub fn switch_off() {
    IS_OFF.store(true, Ordering::Relaxed);
}

/// Whether the statistics of this process are off.
#[inline]
pub fn is_off() -> bool {
    IS_OFF.load(Ordering::Relaxed)
}
