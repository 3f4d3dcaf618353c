//! Limits of the FUSE layer, each with its reason.

use std::time::Duration;

/// Most bytes of one read or write: the largest that the kernel sends. Larger requests would gain
/// nothing, since the chunks of a default stripe pattern are not larger.
pub(crate) const MAX_IO_BYTES: usize = 1 << 20;
/// [`MAX_IO_BYTES`] in pages, the unit of `INIT`.
pub(crate) const MAX_IO_PAGES: u16 = (MAX_IO_BYTES / 4096) as u16;
/// Bytes of the smallest page of a kernel. Ranges in multiples of it are right for larger pages
/// too.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// How long the kernel may cache names and attributes, unless an option changes it. A program sees
/// changes by other hosts after at most this time.
pub const VALIDITY: Duration = Duration::from_secs(1);
/// The size that `stat` recommends for reads and writes (`st_blksize`): one request of the kernel.
pub(crate) const PREFERRED_IO_BYTES: u32 = MAX_IO_BYTES as u32;
/// Most bytes that an `ioctl` returns: a `struct fsxattr` has 28.
pub(crate) const MAX_IOCTL_BYTES: usize = 64;
/// Background requests of the kernel (read-ahead, asynchronous direct I/O) that may be under way.
pub(crate) const MAX_BACKGROUND: u16 = 128;
/// The kernel reduces its read-ahead while this number of background requests is under way.
pub(crate) const CONGESTION_THRESHOLD: u16 = 96;
/// Requests under way on one worker; further ones wait in the kernel. Each has a buffer of
/// [`MAX_IO_BYTES`], of which only the pages that were used take memory.
pub(crate) const SLOTS_PER_WORKER: usize = 16;
/// Most threads for `/dev/fuse`: more would contend for the one queue that they share.
pub(crate) const MAX_DEVICE_WORKERS: usize = 8;
/// Read-ahead of the mount in KiB: four requests, enough for all targets of a default pattern.
pub(crate) const READ_AHEAD_KIB: u32 = 4096;
/// The pause of the control thread after a `FORGET`, which has no reply. So it reads several at
/// once, and the kernel doesn't wake it for each.
pub(crate) const FORGET_PAUSE: Duration = Duration::from_millis(5);
/// How long a worker polls for a server's reply before it sleeps; measured in
/// docs/design/0001-threads-and-store.md.
pub(crate) const SPIN: Duration = Duration::from_micros(50);
/// The period in which a worker checks whether callers are being killed. It checks requests that
/// were under way at the last check too, so a killed caller waits for one to two periods.
pub(crate) const CALLER_CHECK: Duration = Duration::from_millis(250);
/// Requests of one worker that wait for locks; further ones get ENOLCK. Requests that wait for the
/// kernel to drop pages count too, but don't wait at all beyond the limit. Each takes a slot of the
/// queue between kernel and daemon, and the worker adds another slot for it.
pub(crate) const MAX_LOCK_WAITS: usize = 256;
/// The time from the begin of a lock wait to the first check whether the queue is stuck. It doubles
/// with each kick: by then the kernel has registered the slot that the worker added.
pub(crate) const FIRST_KICK_PAUSE: Duration = Duration::from_millis(1);
/// The longest pause between two kicks of a queue that is stuck.
pub(crate) const LONGEST_KICK_PAUSE: Duration = Duration::from_millis(100);
/// Interrupts that are stored in case that their request arrives later: many times the number of
/// requests that can be under way.
pub(crate) const MAX_EARLY_INTERRUPTS: usize = 1024;
/// Events of other threads in the mailbox of one worker: far more than one interrupt for each
/// request that waits and one reply for each order to drop pages.
pub(crate) const MAX_WAIT_EVENTS: usize = 100_000;
/// Files per worker that recently had no set-user-id bits; when full, the worker forgets all of
/// them.
pub(crate) const MAX_CHECKED_FILES: usize = 1024;
/// How long a direct write waits for the kernel to drop its pages of the range.
pub(crate) const DROP_PATIENCE: Duration = Duration::from_secs(1);
/// How long an unmount by a signal waits until programs have closed their files.
pub(crate) const DETACH_GRACE: Duration = Duration::from_secs(10);
/// How long requests may still be under way after the kernel has ended the mount (`umount -f`).
pub(crate) const END_GRACE: Duration = Duration::from_secs(2);
/// The longest pause between two checks whether a dropped operation has released its memory.
pub(crate) const LONGEST_MEMORY_PAUSE: Duration = Duration::from_millis(50);
