//! Limits of the FUSE layer, each with its reason.

use std::time::Duration;

/// Most bytes of one read or write: what the kernel sends at most, and what the largest chunk of a
/// default stripe pattern is split into anyway.
pub(crate) const MAX_IO_BYTES: usize = 1 << 20;
/// The same in pages, as `INIT` wants it.
pub(crate) const MAX_IO_PAGES: u16 = (MAX_IO_BYTES / 4096) as u16;
/// Bytes of the smallest page of a kernel; multiples of it do for larger ones too.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// Unless an option says otherwise, how long the kernel may answer from its memory: names and
/// attributes are no staler than this.
pub const VALIDITY: Duration = Duration::from_secs(1);
/// What programs are told to read and write at once (`st_blksize`): one request of the kernel.
pub(crate) const PREFERRED_IO_BYTES: u32 = MAX_IO_BYTES as u32;
/// Most bytes that a program gets from an `ioctl`: a `struct fsxattr` has 28.
pub(crate) const MAX_IOCTL_BYTES: usize = 64;
/// Requests of the kernel's own (read-ahead, asynchronous direct I/O) that may be under way.
pub(crate) const MAX_BACKGROUND: u16 = 128;
/// From so many on the kernel holds its read-ahead back.
pub(crate) const CONGESTION_THRESHOLD: u16 = 96;
/// Requests under way on one worker. Beyond it they wait in the kernel. Each has space for
/// [`MAX_IO_BYTES`], of which only what was used takes memory.
pub(crate) const SLOTS_PER_WORKER: usize = 16;
/// Most threads for `/dev/fuse`: more contend for the one queue that they share.
pub(crate) const MAX_DEVICE_WORKERS: usize = 8;
/// Read-ahead of the mount in KiB: four requests, enough for all targets of a default pattern.
pub(crate) const READ_AHEAD_KIB: u32 = 4096;
/// `FORGET` needs no answer and no haste; after one, the thread that takes them waits so long for
/// more, so that they come in batches instead of waking it one by one.
pub(crate) const FORGET_PAUSE: Duration = Duration::from_millis(5);
/// How long a worker looks for a server's answer before it sleeps; measured in
/// docs/design/0001-threads-and-store.md.
pub(crate) const SPIN: Duration = Duration::from_micros(50);
/// How often a worker looks at requests that take long: are their callers being killed? They go
/// after one to two such spans.
pub(crate) const CALLER_CHECK: Duration = Duration::from_millis(250);
/// Requests of one worker that wait for locks; more get ENOLCK. (Those that wait for the kernel to
/// drop pages count too, and don't wait beyond it.) Each keeps a place in the queue
/// between kernel and daemon, for which another one is made.
pub(crate) const MAX_LOCK_WAITS: usize = 256;
/// How long after a request has begun to wait for a lock its queue is looked at, and how long it is
/// left alone at most while something may be stuck in it.
pub(crate) const FIRST_STIR: Duration = Duration::from_millis(1);
/// See [`FIRST_STIR`].
pub(crate) const LONGEST_STIR_PAUSE: Duration = Duration::from_millis(100);
/// Interrupts that are remembered in case that their request is yet to come: many times what can be
/// under way.
pub(crate) const MAX_EARLY_INTERRUPTS: usize = 1024;
/// News for one worker from other threads: an interrupt for each request that waits, and pages
/// dropped for each that has a lock.
pub(crate) const MAX_NEWS: usize = 100_000;
/// Files whose set-user-id bits are known to be clear, for each worker; forgotten together when
/// full.
pub(crate) const MAX_CHECKED_FILES: usize = 1024;
/// How long a write past the page cache waits for the kernel to drop its pages of the range.
pub(crate) const DROP_PATIENCE: Duration = Duration::from_secs(1);
/// How long an unmount that was asked for by a signal waits for the last open file.
pub(crate) const DETACH_GRACE: Duration = Duration::from_secs(10);
/// How long requests under way have to end when the kernel has ended the mount (`umount -f`).
pub(crate) const END_GRACE: Duration = Duration::from_secs(2);
/// Longest pause between looks at memory that a dropped operation still holds.
pub(crate) const LONGEST_MEMORY_PAUSE: Duration = Duration::from_millis(50);
