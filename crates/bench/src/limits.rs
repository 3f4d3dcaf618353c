//! The limits of benchmarks, each with its reason.

use std::time::Duration;

/// Maximum number of hosts of a run. For each host, the controller has a child process and two
/// threads.
pub const MAX_HOSTS: usize = 1024;
/// Maximum number of processes of a run, over all hosts. The controller reads a line from each
/// process at every heartbeat.
pub const MAX_PROCESSES: u32 = 8192;
/// Maximum number of processes on one host. Each process has three threads, and a pipe to its
/// agent.
pub const MAX_PROCESSES_PER_HOST: u32 = 1024;
/// Maximum number of repetitions in a plan.
pub const MAX_REPETITIONS: u32 = 10_000;
/// Maximum size of a transfer in bytes. Each worker holds a buffer of this size.
pub const MAX_TRANSFER_BYTES: u64 = 1 << 30;
/// Maximum number of directories in a tree. Each process holds the paths of all directories in
/// memory.
pub const MAX_DIRECTORIES: u64 = 1 << 20;
/// Default number of seconds without progress of any process after which a run fails.
pub const DEFAULT_PATIENCE_S: u32 = 300;

/// Maximum length in bytes of a line between controller, agents and workers. The longest line is a
/// plan.
pub(crate) const MAX_LINE_BYTES: usize = 1 << 20;
/// Maximum number of unread answers that the controller queues. A thread that has read a further
/// answer waits until the queue has space.
pub(crate) const MAX_WAITING: usize = 1024;
/// Time limit for an agent to start and to answer. A login over ssh is slow.
pub(crate) const START_PATIENCE: Duration = Duration::from_secs(30);
/// Time limit for dropping caches. The host first writes back all dirty pages.
pub(crate) const CACHES_PATIENCE: Duration = Duration::from_secs(120);
/// Time limit for processes to give up after one of them has failed, and to remove their files.
pub(crate) const END_PATIENCE: Duration = Duration::from_secs(10);
/// Time limit for a killed process to exit.
pub(crate) const LAST_PATIENCE: Duration = Duration::from_secs(2);
/// Maximum number of attempts of a process to remove a tree in which other processes may still
/// create items. The process pauses between attempts.
pub(crate) const CLEAN_TRIES: u32 = 50;
pub(crate) const CLEAN_PAUSE: Duration = Duration::from_millis(100);
/// Interval at which the controller asks targets for their progress. The interval is short enough
/// for a progress display. The requests also show targets that the controller is alive.
pub(crate) const ASK_INTERVAL: Duration = Duration::from_millis(100);
/// Time limit for a target to answer a request for progress. A target answers between two blocks.
pub(crate) const ASK_PATIENCE: Duration = Duration::from_secs(20);
/// Time limit for a target to remove the files of a benchmark.
pub(crate) const STOP_PATIENCE: Duration = Duration::from_secs(60);
/// Interval at which a worker reports its progress and the controller checks for signals.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(500);
/// Number of round trips that measure the difference of two clocks. The shortest round trip counts.
pub(crate) const CLOCK_TRIPS: usize = 16;
/// Number of bytes at the end of an agent's error output that the controller stores.
pub(crate) const KEPT_ERRORS_BYTES: u64 = 2048;
/// Time for which a process that measures the network spins while it waits for an answer, before it
/// sleeps. The threads of a mount spin for the same time.
pub(crate) const NET_SPIN: Duration = Duration::from_micros(50);
/// Interval at which a run that waits for a service checks whether the user has interrupted it.
pub(crate) const INTERRUPT_LOOK: Duration = Duration::from_millis(100);
/// Maximum number of bytes of a program's output that a worker stores. fio has the longest output,
/// about 20 KiB per job.
pub(crate) const MAX_OUTPUT_BYTES: usize = 16 << 20;
/// Interval at which a run that waits for a program checks whether the user has interrupted it.
pub(crate) const TOOL_LOOK: Duration = Duration::from_millis(50);
/// Time limit for a program to exit after SIGTERM. After this time, the worker kills the program.
pub(crate) const TOOL_END_PATIENCE: Duration = Duration::from_secs(3);
