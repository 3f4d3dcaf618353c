//! The limits of benchmarks. Each limit has a reason.

use std::time::Duration;

/// Maximum number of hosts of a run. The controller has a child process and two threads for each
/// host.
pub const MAX_HOSTS: usize = 1024;
/// Maximum number of processes of a run on all hosts together. At every heartbeat, the controller
/// reads a line from each process.
pub const MAX_PROCESSES: u32 = 8192;
/// Maximum number of processes on one host. Each process has three threads, and a pipe to its
/// agent.
pub const MAX_PROCESSES_PER_HOST: u32 = 1024;
/// Maximum number of repetitions in a plan.
pub const MAX_REPETITIONS: u32 = 10_000;
/// Maximum size of a transfer in bytes. Each worker allocates a buffer of this size.
pub const MAX_TRANSFER_BYTES: u64 = 1 << 30;
/// Maximum number of samples that a process stores in one phase. A worker sends all samples in one
/// line. This number keeps the line much shorter than `MAX_LINE_BYTES`.
pub const MAX_SAMPLES: usize = 1024;
/// Maximum length of a sample in the JSON of a result, in bytes.
pub const SAMPLE_BYTES: u64 = 64;
/// Maximum number of directories in a tree. Each process has the paths of all directories in
/// memory.
pub const MAX_DIRECTORIES: u64 = 1 << 20;
/// Maximum number of disks, and of network interfaces, in the description of a host. The
/// description of the devices must fit into one line of the agent.
pub(crate) const MAX_DEVICES: usize = 128;
/// Default number of seconds without progress of any process after which a run fails.
pub const DEFAULT_PATIENCE_S: u32 = 300;

/// Maximum length in bytes of a line that the controller, agents and workers send. The longest line
/// contains a plan.
pub(crate) const MAX_LINE_BYTES: usize = 1 << 20;
/// Maximum number of answers in the controller's queue. If the queue is full, the thread that has
/// read a further answer waits.
pub(crate) const MAX_WAITING: usize = 1024;
/// Time limit for an agent to start and to answer. The limit allows for a slow login by ssh.
pub(crate) const START_PATIENCE: Duration = Duration::from_secs(30);
/// Time limit for a host to drop its caches. The limit covers the write-back of all dirty pages.
pub(crate) const CACHES_PATIENCE: Duration = Duration::from_secs(120);
/// Time limit for processes to stop after the failure of one process, and to remove their files.
pub(crate) const END_PATIENCE: Duration = Duration::from_secs(10);
/// Time limit for a killed process to exit.
pub(crate) const LAST_PATIENCE: Duration = Duration::from_secs(2);
/// Maximum number of attempts of a process to remove a tree. The removal fails while other
/// processes still create items in the tree, so the process pauses between attempts.
pub(crate) const CLEAN_TRIES: u32 = 50;
pub(crate) const CLEAN_PAUSE: Duration = Duration::from_millis(100);
/// Interval at which the controller asks targets for their progress. The interval is short enough
/// for a display of the progress. From these requests, the target also learns that the controller
/// is alive.
pub(crate) const ASK_INTERVAL: Duration = Duration::from_millis(100);
/// Time limit for a target to answer a request for its progress. A target answers between two
/// blocks.
pub(crate) const ASK_PATIENCE: Duration = Duration::from_secs(20);
/// Time limit for a target to remove the files that a benchmark has created.
pub(crate) const STOP_PATIENCE: Duration = Duration::from_secs(60);
/// Interval at which a worker reports its progress, and at which the controller checks whether the
/// user has interrupted the run.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(500);
/// Number of round trips that are made to measure the difference between two clocks. The controller
/// uses the shortest round trip.
pub(crate) const CLOCK_TRIPS: usize = 16;
/// Maximum number of bytes of an agent's error output that the controller stores. The controller
/// stores the last bytes.
pub(crate) const KEPT_ERRORS_BYTES: u64 = 2048;
/// Time for which a process that measures the network spins before it sleeps, while it waits for a
/// reply. The event loops of a mount's threads spin for the same time.
pub(crate) const NET_SPIN: Duration = Duration::from_micros(50);
/// Interval at which a run checks whether the user has interrupted it, while it waits for a
/// service.
pub(crate) const INTERRUPT_LOOK: Duration = Duration::from_millis(100);
/// Maximum number of bytes of an external program's output that a worker stores. fio prints the
/// longest output, about 20 KiB per job.
pub(crate) const MAX_OUTPUT_BYTES: usize = 16 << 20;
/// Interval at which a run checks whether the user has interrupted it, while it waits for an
/// external program.
pub(crate) const TOOL_LOOK: Duration = Duration::from_millis(50);
/// Time limit for an external program to exit after SIGTERM. After this time, the worker kills the
/// program.
pub(crate) const TOOL_END_PATIENCE: Duration = Duration::from_secs(3);
