//! Limits of a storage target, each with its reason.

use std::time::Duration;

/// Chunk files that a target keeps open: a descriptor, a path and the first page each, under 20
/// MiB.
pub(crate) const MAX_OPEN_FILES: usize = 4096;
/// Of the descriptors that a process may have, what is left to connections, one part in so many.
pub(crate) const CONNECTIONS_SHARE: u64 = 2;
/// Chunk files that a target keeps open at least, however few descriptors there are.
pub(crate) const MIN_OPEN_FILES: usize = 64;
/// Region pages that a target keeps in memory, 2 KiB of checksums each: 64 MiB describe 64 GiB.
pub(crate) const MAX_CACHED_PAGES: usize = 32_768;
/// Regions written since they were last known to be on the device. More start the cleaner at once:
/// bounds memory and what a restart has to look at.
pub(crate) const MAX_DIRTY_REGIONS: usize = 65_536;
/// How long a written region stays dirty: rewriting it within that time costs no further sync.
pub(crate) const CLEAN_INTERVAL: Duration = Duration::from_secs(30);
/// From so many files on, one sync of the file system is cheaper than one of each.
pub(crate) const SYNC_EACH_UP_TO: usize = 32;
/// Syncs and removals in flight at once: enough to share one commit of the file system's journal.
pub(crate) const PARALLEL_SYNCS: usize = 32;
/// How long a look at the free space is good for.
pub(crate) const SPACE_VALID: Duration = Duration::from_secs(1);
/// Kept free for the target's own records, as a part of the file system: one in so many bytes.
pub(crate) const RESERVE_DIVISOR: u64 = 64;
/// Most that is kept free: a rewritten dirty log, a state record, region pages of what is in
/// flight.
pub(crate) const MAX_RESERVE_BYTES: u64 = 64 << 20;
/// With less than this free, room is reserved before data is written, so that the file system can't
/// run out in the middle. With more it would only cost time.
pub(crate) const SCARCE_BYTES: u64 = 256 << 20;
/// Bytes reserved for one request: a file system takes some milliseconds for so many.
pub(crate) const MAX_RESERVED_BYTES: u64 = 1 << 30;
/// Regions and holes between them that one request clears: up to 1 GiB, and as many pages written.
pub(crate) const MAX_CLEARED_STEPS: usize = 512;
/// Pages passed in a search for data before others get their turn.
pub(crate) const SEEKS_AT_ONCE: usize = 256;
/// Most chunk files in one reply to `ListChunks`.
pub(crate) const MAX_LISTED: u32 = 4096;
/// Most chunk files in one `RemoveChunks`: bounds how long one request occupies the target.
pub(crate) const MAX_REMOVED: usize = 4096;
/// Writes up to this length go to the page cache at once. Handing them to a worker of the kernel,
/// as io_uring does with most file systems, costs a third more (docs/design/0003-chunk-store.md).
pub(crate) const INLINE_WRITE_BYTES: usize = 1 << 20;
/// A write that took longer than this had to wait: the kernel holds back who writes faster than the
/// disk takes it. A copy of so many bytes takes a tenth of it.
pub(crate) const SLOW_WRITE: Duration = Duration::from_millis(10);
/// For so long after a slow write others go to workers of the kernel, so that reads don't wait.
pub(crate) const SLOW_PAUSE: Duration = Duration::from_millis(100);
/// Requests of one connection in work at once. With more the peer waits in the socket.
pub(crate) const MAX_REQUESTS_PER_CONNECTION: usize = 64;
/// Requests in work at once on a target: bounds the memory of their data.
pub(crate) const MAX_REQUESTS_PER_TARGET: usize = 512;
/// Files that a benchmark writes or reads at the same time: as many buffers.
pub(crate) const MAX_BENCHMARK_STREAMS: u16 = 64;
/// Smallest block of a benchmark, and what each is a multiple of: what goes past the page cache.
pub(crate) const MIN_BENCHMARK_BLOCK_BYTES: u32 = 4096;
/// Largest block of a benchmark: bounds its memory to 256 MiB.
pub(crate) const MAX_BENCHMARK_BLOCK_BYTES: u32 = 4 << 20;
/// A benchmark that nobody asks about for so long is stopped.
pub(crate) const ABANDONED_AFTER: Duration = Duration::from_secs(30);
/// How long a target's thread looks for the next request in the middle of a conversation before it
/// sleeps; measured in docs/design/0001-threads-and-store.md.
pub(crate) const SPIN: Duration = Duration::from_micros(50);
