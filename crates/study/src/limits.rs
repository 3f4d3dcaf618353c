//! Limits, each with its reason.

use std::time::Duration;

/// Runs of one plan: at a minute each, more than two months. More is a mistake in a plan.
pub const MAX_RUNS: usize = 100_000;
/// Applications at the same time: each needs its own client host.
pub const MAX_APPLICATIONS: u32 = 64;
/// Processes on one host.
pub const MAX_PROCESSES: u32 = 1024;
/// Targets of one file: the limit of a stripe pattern.
pub const MAX_COUNT: u32 = 256;
/// Default number of runs in a block: as in the study that this protocol follows.
pub const BLOCK_RUNS: u32 = 10;
/// Default wait between blocks on a system with other users: temporary noise then affects all
/// conditions alike.
pub const SHARED_WAIT: (Duration, Duration) =
    (Duration::from_secs(60), Duration::from_secs(30 * 60));
/// Smallest group of results whose distribution is judged.
pub const MIN_JUDGED: usize = 5;
