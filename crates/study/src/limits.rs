//! The limits of studies. Each limit has a reason.

use std::time::Duration;

/// Maximum number of runs in a plan. With one minute for each run, this number of runs takes more
/// than two months, so a larger number is a mistake in the plan.
pub const MAX_RUNS: usize = 100_000;
/// Maximum number of applications that run at the same time. Each application needs its own client
/// hosts.
pub const MAX_APPLICATIONS: u32 = 64;
/// Maximum number of processes on one host.
pub const MAX_PROCESSES: u32 = 1024;
/// Maximum number of files of one process in operations on names. A run with more files takes
/// hours, so a larger number is a mistake in the plan.
pub const MAX_FILES: u32 = 1_000_000;
/// Default number of files of one process in operations on names.
pub const DEFAULT_FILES: u32 = 1000;
/// Maximum number of studies that one comparison reads. A figure with more series is unreadable.
pub const MAX_COMPARED: usize = 32;
/// Maximum number of targets of one file. Stripe patterns have the same limit.
pub const MAX_COUNT: u32 = 256;
/// Default number of runs in a block. The published study used the same number.
pub const BLOCK_RUNS: u32 = 10;
/// Default range of the wait between two blocks on a system with other users. With these waits, a
/// temporary load of other users affects all conditions alike.
pub const SHARED_WAIT: (Duration, Duration) =
    (Duration::from_secs(60), Duration::from_secs(30 * 60));
/// Minimum number of results that a group must have for a test of their distribution.
pub const MIN_JUDGED: usize = 5;
