//! What is bounded, and why there.

use std::time::Duration;

/// Hosts of a run: each is a child process with two threads at the controller.
pub const MAX_HOSTS: usize = 1024;
/// Processes of a run, over all hosts: what a controller can still hear.
pub const MAX_PROCESSES: u32 = 8192;
/// Processes on one host: each has three threads, and a pipe to its agent.
pub const MAX_PROCESSES_PER_HOST: u32 = 1024;
/// Repetitions of a plan.
pub const MAX_REPETITIONS: u32 = 10_000;
/// Longest transfer: a worker holds a buffer of it.
pub const MAX_TRANSFER_BYTES: u64 = 1 << 30;
/// Directories of a tree: each process holds their paths.
pub const MAX_DIRECTORIES: u64 = 1 << 20;
/// How long a run waits for processes that don't move, unless told otherwise.
pub const DEFAULT_PATIENCE_S: u32 = 300;

/// Longest line between controller, agents and workers. The longest is a plan.
pub(crate) const MAX_LINE_BYTES: usize = 1 << 20;
/// Answers that wait to be looked at; senders wait when it is full.
pub(crate) const MAX_WAITING: usize = 1024;
/// Time for an agent to be started and to answer: a login over ssh may take some.
pub(crate) const START_PATIENCE: Duration = Duration::from_secs(30);
/// Time for dropping caches: everything that is dirty on a host is written first.
pub(crate) const CACHES_PATIENCE: Duration = Duration::from_secs(120);
/// Time for processes to give up after one of them has failed, and to remove their files.
pub(crate) const END_PATIENCE: Duration = Duration::from_secs(10);
/// Time for a process to be gone once it was killed.
pub(crate) const LAST_PATIENCE: Duration = Duration::from_secs(2);
/// How often a process tries to remove a tree in which others may still work, and its rest between.
pub(crate) const CLEAN_TRIES: u32 = 50;
pub(crate) const CLEAN_PAUSE: Duration = Duration::from_millis(100);
/// How often targets are asked how far they are: often enough for progress, and for them to know
/// that somebody waits.
pub(crate) const ASK_INTERVAL: Duration = Duration::from_millis(100);
/// Time for a target to answer that; it answers between its blocks.
pub(crate) const ASK_PATIENCE: Duration = Duration::from_secs(20);
/// Time for a target to remove the files of a benchmark.
pub(crate) const STOP_PATIENCE: Duration = Duration::from_secs(60);
/// How often a worker tells how far it is, and how often the controller looks around.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(500);
/// Round trips by which the difference of two clocks is measured; the quickest counts.
pub(crate) const CLOCK_TRIPS: usize = 16;
/// What is kept of an agent's error output.
pub(crate) const KEPT_ERRORS_BYTES: u64 = 2048;
/// How long a process that measures the network looks for an answer before it sleeps: as long as
/// the threads of a mount.
pub(crate) const NET_SPIN: Duration = Duration::from_micros(50);
/// How often a run that waits for a service looks whether it is to end.
pub(crate) const INTERRUPT_LOOK: Duration = Duration::from_millis(100);
/// What is kept of a program's output: the longest is that of fio, some 20 KiB for a job.
pub(crate) const MAX_OUTPUT_BYTES: usize = 16 << 20;
/// How often it is looked whether a program is to be ended.
pub(crate) const TOOL_LOOK: Duration = Duration::from_millis(50);
/// Time for a program to end in order.
pub(crate) const TOOL_END_PATIENCE: Duration = Duration::from_secs(3);
