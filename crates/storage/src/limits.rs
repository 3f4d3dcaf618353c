//! Limits of a storage target, each with its reason.

use std::time::Duration;

/// Chunk files that a target keeps open: a descriptor, a path and the first page each, under 20
/// MiB.
pub(crate) const MAX_OPEN_FILES: usize = 4096;
/// The share of a process's descriptors that chunk files do not use: one in `CONNECTIONS_SHARE`
/// parts is left to connections.
pub(crate) const CONNECTIONS_SHARE: u64 = 2;
/// Chunk files that a target keeps open at least, however few descriptors there are.
pub(crate) const MIN_OPEN_FILES: usize = 64;
/// Region pages that a target keeps in memory, 2 KiB of checksums each: 64 MiB describe 64 GiB.
pub(crate) const MAX_CACHED_PAGES: usize = 32_768;
/// Regions written since the last sync. With more, the cleaner starts at once: bounds memory, and
/// the regions that a restart must check.
pub(crate) const MAX_DIRTY_REGIONS: usize = 65_536;
/// How long a written region stays dirty: rewriting it within that time costs no further sync.
pub(crate) const CLEAN_INTERVAL: Duration = Duration::from_secs(30);
/// Up to this number of files the cleaner syncs each; above it, one sync of the file system is
/// cheaper.
pub(crate) const SYNC_EACH_UP_TO: usize = 32;
/// Syncs and removals in flight at once: enough to share one commit of the file system's journal.
pub(crate) const PARALLEL_SYNCS: usize = 32;
/// Age of a free-space value at which it is read again.
pub(crate) const SPACE_VALID: Duration = Duration::from_secs(1);
/// One byte in `RESERVE_DIVISOR` of the file system is kept free for the target's own records.
pub(crate) const RESERVE_DIVISOR: u64 = 64;
/// Upper bound of the bytes kept free: for a rewritten dirty log, a state record, and region pages
/// of writes in flight.
pub(crate) const MAX_RESERVE_BYTES: u64 = 64 << 20;
/// With less free space than this, each write reserves its space first, so that the file system
/// cannot run out of it during the write. With more, reserving would only cost time.
pub(crate) const SCARCE_BYTES: u64 = 256 << 20;
/// Bytes reserved for one request: a file system needs some milliseconds for this many.
pub(crate) const MAX_RESERVED_BYTES: u64 = 1 << 30;
/// Regions and holes between them that one request clears: up to 1 GiB, and as many pages written.
pub(crate) const MAX_CLEARED_STEPS: usize = 512;
/// Pages that a search for data passes before it yields to other requests.
pub(crate) const SEEKS_AT_ONCE: usize = 256;
/// Most chunk files in one reply to `ListChunks`.
pub(crate) const MAX_LISTED: u32 = 4096;
/// Most chunk files in one `RemoveChunks`: bounds how long one request occupies the target.
pub(crate) const MAX_REMOVED: usize = 4096;
/// Writes up to this length go to the page cache at once. Handing them to a worker of the kernel,
/// as io_uring does with most file systems, costs a third more (docs/design/0003-chunk-store.md).
pub(crate) const INLINE_WRITE_BYTES: usize = 1 << 20;
/// A write that took longer than this was throttled: the kernel delays writers that are faster than
/// the disk. Copying `INLINE_WRITE_BYTES` takes a tenth of it.
pub(crate) const SLOW_WRITE: Duration = Duration::from_millis(10);
/// Time after a slow write in which writes go to the kernel's workers, so that reads do not wait.
pub(crate) const SLOW_PAUSE: Duration = Duration::from_millis(100);
/// Requests of one connection that are processed at once. Further requests wait in the socket.
pub(crate) const MAX_REQUESTS_PER_CONNECTION: usize = 64;
/// Requests that a target processes at once: bounds the memory of their data.
pub(crate) const MAX_REQUESTS_PER_TARGET: usize = 512;
/// Files that a benchmark writes or reads at the same time; each has a buffer.
pub(crate) const MAX_BENCHMARK_STREAMS: u16 = 64;
/// Smallest block of a benchmark; each block is a multiple of it, as direct I/O requires.
pub(crate) const MIN_BENCHMARK_BLOCK_BYTES: u32 = 4096;
/// Largest block of a benchmark: bounds its memory to 256 MiB.
pub(crate) const MAX_BENCHMARK_BLOCK_BYTES: u32 = 4 << 20;
/// A benchmark stops when no client has asked about it for this time.
pub(crate) const ABANDONED_AFTER: Duration = Duration::from_secs(30);
/// Time for which a target's thread polls for the next request of an active connection before it
/// sleeps; measured in docs/design/0001-threads-and-store.md.
pub(crate) const SPIN: Duration = Duration::from_micros(50);
