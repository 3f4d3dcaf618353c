//! Limits of the FUSE layer, and the reason for each limit.

use std::time::Duration;

/// Maximum length in bytes of one read or write request; the kernel splits larger reads and writes.
/// Larger requests would not be faster, since the chunks of the default stripe pattern are not
/// larger than this size.
pub(crate) const MAX_IO_BYTES: usize = 1 << 20;
/// [`MAX_IO_BYTES`] in pages, the unit in `INIT`.
pub(crate) const MAX_IO_PAGES: u16 = (MAX_IO_BYTES / 4096) as u16;
/// Size in bytes of the smallest memory page that any kernel uses. The kernel extends a range that
/// is aligned to this size to whole pages, if its pages are larger than this size.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// How long the kernel may cache names and attributes, unless an option changes it. After this time
/// at the latest, programs get changes that other hosts have made.
pub const VALIDITY: Duration = Duration::from_secs(1);
/// The size in bytes that `stat` recommends for reads and writes (`st_blksize`): one request of the
/// kernel.
pub(crate) const PREFERRED_IO_BYTES: u32 = MAX_IO_BYTES as u32;
/// Maximum number of bytes that an `ioctl` returns. A `struct fsxattr` has 28 bytes.
pub(crate) const MAX_IOCTL_BYTES: usize = 64;
/// Maximum number of background requests of the kernel (read-ahead, asynchronous direct I/O) in
/// flight.
pub(crate) const MAX_BACKGROUND: u16 = 128;
/// Number of background requests in flight at which the kernel reduces its read-ahead.
pub(crate) const CONGESTION_THRESHOLD: u16 = 96;
/// Maximum number of requests in flight on one worker. Further requests wait in the kernel. Each
/// slot has a buffer of [`MAX_IO_BYTES`], but only the pages in use take memory.
pub(crate) const SLOTS_PER_WORKER: usize = 16;
/// Maximum number of threads for `/dev/fuse`. More threads would contend for the queue that they
/// share.
pub(crate) const MAX_DEVICE_WORKERS: usize = 8;
/// Read-ahead of the mount in bytes, unless an option changes it: four requests, enough to use all
/// targets of a default pattern.
pub const READ_AHEAD_BYTES: u32 = 4 << 20;
/// The kernel's own limit for the read-ahead of a mount in bytes, which only root can raise (Linux
/// 6.18: `VM_READAHEAD_PAGES`).
pub(crate) const KERNEL_READ_AHEAD_BYTES: u32 = 128 << 10;
/// Maximum read-ahead of a mount in bytes. The kernel keeps at most `MAX_BACKGROUND` requests of
/// its read-ahead in flight, so a larger read-ahead would only use more memory.
pub const MAX_READ_AHEAD_BYTES: u32 = MAX_BACKGROUND as u32 * MAX_IO_BYTES as u32;
/// How long the control thread pauses after a `FORGET`, which has no reply. The pause lets the
/// thread read several messages in one call, so that the kernel does not wake the thread for each
/// message.
pub(crate) const FORGET_PAUSE: Duration = Duration::from_millis(5);
/// How long a worker polls for a server's reply before the worker sleeps. A reply takes 60 to 80 us
/// if the thread of the server was asleep. The reasons are in
/// docs/design/0001-threads-and-store.md.
pub(crate) const SPIN: Duration = Duration::from_micros(100);
/// Interval at which a worker checks whether callers are being killed. The worker only checks
/// requests that were already in flight at the previous check. So a killed caller waits for one to
/// two intervals until it can exit.
pub(crate) const CALLER_CHECK: Duration = Duration::from_millis(250);
/// Maximum number of requests of one worker that wait for locks. Further lock requests fail with
/// ENOLCK. Requests that wait for the kernel to drop pages count too, but beyond the limit they do
/// not fail, and continue without the wait. A waiting request occupies a slot of the queue between
/// kernel and daemon, and the worker adds another slot to replace it.
pub(crate) const MAX_LOCK_WAITS: usize = 256;
/// Time from the beginning of a lock wait to the first check whether the kernel's queue of requests
/// is stuck. By then the kernel has registered the slot that the worker added. If the queue is
/// stuck, the worker makes the kernel send a request that wakes the queue (a kick). The pause
/// before the next kick is twice as long each time.
pub(crate) const FIRST_KICK_PAUSE: Duration = Duration::from_millis(1);
/// Maximum pause between two kicks of a stuck queue ([`FIRST_KICK_PAUSE`]).
pub(crate) const LONGEST_KICK_PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of `INTERRUPT` messages that the mount stores because the interrupted request may
/// arrive later. The limit is many times the number of requests that can be in flight.
pub(crate) const MAX_EARLY_INTERRUPTS: usize = 1024;
/// Capacity of the mailbox in which other threads send events to a worker. The capacity is far more
/// than one interrupt for each waiting request plus one event for each page-cache invalidation.
pub(crate) const MAX_WAIT_EVENTS: usize = 100_000;
/// Maximum number of files in a worker's cache of files without set-user-id and set-group-id bits,
/// and in the cache that all workers share. When a cache is full, the worker empties it.
pub(crate) const MAX_CHECKED_FILES: usize = 1024;
/// Maximum number of failed operations, each of one file with one error, whose log lines the mount
/// limits. When the table is full, all further failures get one common line a minute, and after a
/// minute the mount empties the table. A full table takes about 100 KiB.
pub(crate) const MAX_LOGGED_FAILURES: usize = 1024;
/// How long a direct write waits until the kernel has dropped its cached pages of the written
/// range.
pub(crate) const DROP_PATIENCE: Duration = Duration::from_secs(1);
/// How long an unmount by a signal waits for programs to close their files.
pub(crate) const DETACH_GRACE: Duration = Duration::from_secs(10);
/// How long the mount waits for requests in flight after the kernel has ended the mount (`umount
/// -f`).
pub(crate) const END_GRACE: Duration = Duration::from_secs(2);
/// Maximum pause between two checks whether a cancelled operation has released the buffers of its
/// port.
pub(crate) const LONGEST_MEMORY_PAUSE: Duration = Duration::from_millis(50);
/// Maximum number of environment variables in which a mount looks for the id of a job. A site
/// usually has one batch system, and two while it changes to another one.
pub(crate) const MAX_JOB_VARIABLES: usize = 8;
/// Maximum length in bytes of the name of an environment variable with the id of a job. The
/// variable names of all batch systems are much shorter than this limit.
pub(crate) const MAX_JOB_VARIABLE_BYTES: usize = 64;
/// Time for which the mount uses the cached job of a process. The kernel rarely reuses a process id
/// within this time.
pub(crate) const JOB_VALIDITY: Duration = Duration::from_secs(10);
/// How long a request waits until the environment of its process has been read. The read takes much
/// longer only if the process itself waits for this mount.
pub(crate) const JOB_PATIENCE: Duration = Duration::from_millis(50);
/// Duration after which the read of an environment counts as slow. Further lookups then use another
/// thread. A read usually takes less than 0.1 ms.
pub(crate) const SLOW_JOB_READ: Duration = Duration::from_millis(5);
/// Maximum number of processes whose jobs a worker caches, and maximum number of processes whose
/// jobs the mount caches for all workers.
pub(crate) const MAX_KNOWN_JOBS: usize = 4096;
/// Maximum number of threads that read environments of processes for a mount. More than one thread
/// exists only while reads are slow.
pub(crate) const MAX_JOB_READERS: usize = 16;
/// Maximum number of processes of a mount whose environments wait to be read. Requests of further
/// processes are counted without a job. The limit is the number of requests in flight on 64
/// workers.
pub(crate) const MAX_QUEUED_JOBS: usize = 1024;
/// How long the mount expects that the kernel repeats an open that failed with `ESTALE`, and how
/// long it holds a file for this open. The kernel repeats the open immediately, but the thread may
/// have to wait for a processor or for a server.
pub(crate) const REPEATED_OPEN_TIME: Duration = Duration::from_secs(2);
/// Maximum number of threads whose opens the kernel repeats at the same time. Opens of further
/// threads may fail with `ESTALE`.
pub(crate) const MAX_REPEATED_OPENS: usize = 1024;
/// Maximum number of attempts to hold a looked-up file open until the kernel repeats the open. An
/// attempt fails only if another client replaces the file between the lookup and the hold.
pub(crate) const MAX_HOLD_ATTEMPTS: usize = 16;
