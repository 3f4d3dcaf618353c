//! Limits of benchmarks, each with its reason.

use std::time::Duration;

/// Hosts of a run: each is a child process with two threads at the controller.
pub const MAX_HOSTS: usize = 1024;
/// Processes of a run, over all hosts: the controller reads a line of each at every heartbeat.
pub const MAX_PROCESSES: u32 = 8192;
/// Processes on one host: each has three threads, and a pipe to its agent.
pub const MAX_PROCESSES_PER_HOST: u32 = 1024;
/// Repetitions of a plan.
pub const MAX_REPETITIONS: u32 = 10_000;
/// Longest transfer: a worker holds a buffer of it.
pub const MAX_TRANSFER_BYTES: u64 = 1 << 30;
/// Directories of a tree: each process holds their paths in memory.
pub const MAX_DIRECTORIES: u64 = 1 << 20;
/// Default time that a run waits for processes that make no progress.
pub const DEFAULT_PATIENCE_S: u32 = 300;

/// Longest line between controller, agents and workers. The longest is a plan.
pub(crate) const MAX_LINE_BYTES: usize = 1 << 20;
/// Unread answers that the controller queues; a sender waits when the queue is full.
pub(crate) const MAX_WAITING: usize = 1024;
/// Time for an agent to start and to answer: a login over ssh is slow.
pub(crate) const START_PATIENCE: Duration = Duration::from_secs(30);
/// Time for dropping caches: the host first writes all dirty pages.
pub(crate) const CACHES_PATIENCE: Duration = Duration::from_secs(120);
/// Time for processes to give up after one of them has failed, and to remove their files.
pub(crate) const END_PATIENCE: Duration = Duration::from_secs(10);
/// Time for a killed process to disappear.
pub(crate) const LAST_PATIENCE: Duration = Duration::from_secs(2);
/// Attempts of a process to remove a tree in which others may still work, and the pause between
/// them.
pub(crate) const CLEAN_TRIES: u32 = 50;
pub(crate) const CLEAN_PAUSE: Duration = Duration::from_millis(100);
/// Interval at which the controller asks targets for their progress: short enough for a progress
/// display, and it shows targets that the controller is alive.
pub(crate) const ASK_INTERVAL: Duration = Duration::from_millis(100);
/// Time for a target to answer that question; it answers between two blocks.
pub(crate) const ASK_PATIENCE: Duration = Duration::from_secs(20);
/// Time for a target to remove the files of a benchmark.
pub(crate) const STOP_PATIENCE: Duration = Duration::from_secs(60);
/// Interval at which a worker reports its progress and the controller checks for signals.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(500);
/// Round trips by which the difference of two clocks is measured; the shortest one counts.
pub(crate) const CLOCK_TRIPS: usize = 16;
/// Bytes that are kept of an agent's error output.
pub(crate) const KEPT_ERRORS_BYTES: u64 = 2048;
/// Time that a process which measures the network spins for an answer before it sleeps: the same as
/// in the threads of a mount.
pub(crate) const NET_SPIN: Duration = Duration::from_micros(50);
/// Interval at which a run that waits for a service checks for an interrupt.
pub(crate) const INTERRUPT_LOOK: Duration = Duration::from_millis(100);
/// Bytes that are kept of a program's output: the longest is that of fio, some 20 KiB for a job.
pub(crate) const MAX_OUTPUT_BYTES: usize = 16 << 20;
/// Interval at which a run that waits for a program checks for an interrupt.
pub(crate) const TOOL_LOOK: Duration = Duration::from_millis(50);
/// Time for a program to end after a request to end.
pub(crate) const TOOL_END_PATIENCE: Duration = Duration::from_secs(3);
