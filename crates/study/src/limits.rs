//! The limits of studies, each with its reason.

use std::time::Duration;

/// Maximum number of runs of one plan. At one minute for each run, this number takes more than two
/// months, so a larger number is a mistake in the plan.
pub const MAX_RUNS: usize = 100_000;
/// Maximum number of applications at the same time. Each application needs its own client host.
pub const MAX_APPLICATIONS: u32 = 64;
/// Maximum number of processes on one host.
pub const MAX_PROCESSES: u32 = 1024;
/// Maximum number of targets of one file, which is the limit of a stripe pattern.
pub const MAX_COUNT: u32 = 256;
/// Default number of runs in a block, as in the study that this protocol follows.
pub const BLOCK_RUNS: u32 = 10;
/// Default range of the wait between blocks on a system with other users. Temporary load of other
/// users then affects all conditions alike.
pub const SHARED_WAIT: (Duration, Duration) =
    (Duration::from_secs(60), Duration::from_secs(30 * 60));
/// Minimum number of results in a group for a test of their distribution.
pub const MIN_JUDGED: usize = 5;
