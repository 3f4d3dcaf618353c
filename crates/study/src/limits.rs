//! Limits, each with its reason.

use std::time::Duration;

/// Runs of one plan: at a minute each, more than two months; more is a mistake in a plan.
pub const MAX_RUNS: usize = 100_000;
/// Applications at the same time: each needs a client host of its own.
pub const MAX_APPLICATIONS: u32 = 64;
/// Processes on one host.
pub const MAX_PROCESSES: u32 = 1024;
/// Targets of one file: what a stripe pattern can hold.
pub const MAX_COUNT: u32 = 256;
/// Runs of a block, unless a plan says otherwise: what the study behind this protocol had.
pub const BLOCK_RUNS: u32 = 10;
/// Wait between blocks on a system that others use too, unless a plan says otherwise: noise that
/// comes and goes then meets all conditions alike.
pub const SHARED_WAIT: (Duration, Duration) =
    (Duration::from_secs(60), Duration::from_secs(30 * 60));
/// Shortest group of results of which a distribution is judged.
pub const MIN_JUDGED: usize = 5;
