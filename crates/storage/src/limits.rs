//! Limits of a storage target, each with its reason.

use std::time::Duration;

/// Maximum number of targets that wait for their start in one event loop. The limit is above the
/// number of targets of any service, and a loop starts a waiting target immediately.
pub(crate) const MAX_WAITING_TARGETS: usize = 1024;
/// Pause of a loop after an error of the kernel. After the pause, the loop waits for further
/// targets.
pub(crate) const WAIT_AGAIN: Duration = Duration::from_secs(1);
/// Number of io_uring workers that a target may use for each processor. This number equals the
/// kernel's own limit for a loop. Workers sync files and write data back, and each worker waits for
/// the device.
pub(crate) const WORKERS_PER_PROCESSOR: usize = 4;
/// Maximum number of chunk files that a target keeps open. Each file needs a descriptor, a path and
/// the first page. All files together need less than 20 MiB.
pub(crate) const MAX_OPEN_FILES: usize = 4096;
/// Divisor of a process's limit of descriptors. The chunk files of all targets use at most one in
/// `CONNECTIONS_SHARE` descriptors, and the remaining descriptors are for connections.
pub(crate) const CONNECTIONS_SHARE: u64 = 2;
/// Minimum number of chunk files that a target may keep open, even if the process has few
/// descriptors.
pub(crate) const MIN_OPEN_FILES: usize = 64;
/// Number of spare descriptors that a target has for chunk files. Other parts of the process, such
/// as connections, cannot use these descriptors.
pub(crate) const SPARE_DESCRIPTORS: usize = 16;
/// Time for which a chunk file without an inode stays in quarantine before the clean-up removes it.
/// In this time, an administrator can notice that metadata was restored from an old backup.
pub(crate) const QUARANTINE_AGE: Duration = Duration::from_secs(7 * 24 * 3600);
/// Maximum number of region pages that a target has in memory. Each page has 2 KiB of checksums, so
/// 64 MiB of memory describe 64 GiB of data.
pub(crate) const MAX_CACHED_PAGES: usize = 32_768;
/// Number of dirty regions above which the cleaner starts immediately. This limit bounds the memory
/// for dirty regions, and the number of regions that the next start must check.
pub(crate) const MAX_DIRTY_REGIONS: usize = 65_536;
/// Interval of the cleaner. A region that is rewritten within this time costs no further sync.
pub(crate) const CLEAN_INTERVAL: Duration = Duration::from_secs(30);
/// Maximum number of files that the cleaner syncs separately. For more files, one sync of the whole
/// file system is cheaper.
pub(crate) const SYNC_EACH_UP_TO: usize = 32;
/// Maximum number of syncs or removals in flight. With this number, many syncs share one commit of
/// the file system's journal.
pub(crate) const PARALLEL_SYNCS: usize = 32;
/// Maximum age of the free-space value. The target queries the free space again if the value is
/// older than this time.
pub(crate) const SPACE_VALID: Duration = Duration::from_secs(1);
/// Divisor of the file system's size. One in `RESERVE_DIVISOR` bytes stays free for the target's
/// own records.
pub(crate) const RESERVE_DIVISOR: u64 = 64;
/// Maximum number of bytes that stay free for the target's own records. This number is enough for a
/// rewritten dirty log, a state record, and the region pages of writes in flight.
pub(crate) const MAX_RESERVE_BYTES: u64 = 64 << 20;
/// Free space below which each write reserves its space first, so that the file system cannot run
/// out of space during the write. With more free space, a reservation would only cost time.
pub(crate) const SCARCE_BYTES: u64 = 256 << 20;
/// Maximum number of bytes that one request reserves. A file system needs some milliseconds for
/// this amount.
pub(crate) const MAX_RESERVED_BYTES: u64 = 1 << 30;
/// Maximum number of regions and of holes between regions, counted together, that one request
/// clears. With this limit, a request clears up to 1 GiB of data, and the target writes one page
/// per region.
pub(crate) const MAX_CLEARED_STEPS: usize = 512;
/// Number of region pages that a search for data or holes examines before it yields to other
/// requests.
pub(crate) const SEEKS_AT_ONCE: usize = 256;
/// Maximum number of chunk files in one reply to `ListChunks`.
pub(crate) const MAX_LISTED: u32 = 4096;
/// Maximum number of chunk files in one `RemoveChunks` request. This limit bounds the time for
/// which one request occupies the target.
pub(crate) const MAX_REMOVED: usize = 4096;
/// Maximum length of a write that the target's thread copies to the page cache itself. Passing the
/// write to an io_uring worker, as the kernel does with most file systems, takes about 1.5 times
/// the CPU time (docs/design/0003-chunk-store.md).
pub(crate) const INLINE_WRITE_BYTES: usize = 1 << 20;
/// Duration above which a write counts as throttled, since the kernel delays writers that are
/// faster than the disk. Copying `INLINE_WRITE_BYTES` takes a tenth of this time.
pub(crate) const SLOW_WRITE: Duration = Duration::from_millis(10);
/// Time after a slow write for which writes go to io_uring workers, so that reads need not wait.
pub(crate) const SLOW_PAUSE: Duration = Duration::from_millis(100);
/// If a write of at least this length ends at the end of a region, the target writes the region
/// back immediately. A smaller write is likely to be repeated, since it may be a page of a
/// database.
pub(crate) const WRITE_BACK_BYTES: u64 = 64 << 10;
/// Maximum number of early write-backs of a target that wait for io_uring workers. While this limit
/// is reached, the target writes no further region back early, and the next sync writes the region.
/// There are few io_uring workers, about four for each processor, and syncs need a free worker.
pub(crate) const MAX_WRITE_BACKS: usize = 4;
/// Maximum number of requests from one connection that the target executes concurrently. Further
/// requests wait in the socket.
pub(crate) const MAX_REQUESTS_PER_CONNECTION: usize = 64;
/// Maximum number of requests that a target executes concurrently. This limit bounds the memory for
/// their data.
pub(crate) const MAX_REQUESTS_PER_TARGET: usize = 512;
/// Maximum number of requests of one client that a target executes concurrently. The other permits
/// are for the first requests of other clients, which need not wait. The requests of one client are
/// still enough to keep a device busy.
pub(crate) const MAX_REQUESTS_PER_CLIENT: usize = MAX_REQUESTS_PER_TARGET / 8 * 7;
/// Cost of a request without data. Clients share a target by the costs of their requests. This cost
/// equals the cost of eight times [`REQUEST_COST_UNIT`] of data.
pub(crate) const REQUEST_COST: u64 = 8;
/// Number of bytes that cost one unit in the shares of clients.
pub(crate) const REQUEST_COST_UNIT: u64 = 4096;
/// Maximum cost of a request: the cost of a request with 1 MiB of data. Clients send no more data
/// in one request.
pub(crate) const MAX_REQUEST_COST: u64 = REQUEST_COST + (1 << 20) / REQUEST_COST_UNIT;
/// Cost that a client may use before the next client has its turn: four requests without data. A
/// request with 1 MiB of data needs nine turns.
pub(crate) const CLIENT_QUANTUM: u64 = 4 * REQUEST_COST;
/// Maximum number of files that a benchmark writes or reads concurrently. Each file needs a buffer.
pub(crate) const MAX_BENCHMARK_STREAMS: u16 = 64;
/// Minimum block size of a benchmark. Direct I/O requires that each block size is a multiple of
/// this size.
pub(crate) const MIN_BENCHMARK_BLOCK_BYTES: u32 = 4096;
/// Maximum block size of a benchmark. This limit bounds the memory for the buffers to 256 MiB.
pub(crate) const MAX_BENCHMARK_BLOCK_BYTES: u32 = 4 << 20;
/// Time after which the target stops a benchmark if no client has asked for its progress.
pub(crate) const ABANDONED_AFTER: Duration = Duration::from_secs(30);
/// Time for which a target's thread polls for the next request of an active connection before it
/// sleeps. The value was measured in docs/design/0001-threads-and-store.md.
pub(crate) const SPIN: Duration = Duration::from_micros(100);

/// Number of truncated chunk files whose truncate generation a target remembers. After truncations
/// of more than this number of other chunk files, the target no longer recognises a late copy of a
/// truncation. Each remembered chunk file takes about 60 bytes of memory.
pub(crate) const MAX_GENERATIONS: usize = 1 << 16;
