//! Limits of a metadata target, each with its reason.

use std::time::Duration;

/// Age at which a change is on the device at the latest, under `metadata.sync = interval` and on a
/// device that syncs within [`SYNC_AFTER`].
pub const SYNC_INTERVAL: Duration = Duration::from_millis(10);
/// Age of the oldest unsynced change at which a sync begins. If another sync has just begun, the
/// change waits for it and for one more: half of [`SYNC_INTERVAL`] for each. On a slower device,
/// changes get as old as two syncs take.
pub const SYNC_AFTER: Duration = Duration::from_millis(5);
/// Numbers (for inodes and transactions) reserved at once. A reservation costs one log record, and
/// a crash wastes at most this many of 2^48 numbers.
pub const NUMBER_RANGE: u64 = 65_536;
/// Chunk files that one message asks a storage target to remove.
pub const REMOVALS_PER_MESSAGE: usize = 256;
/// Open files closed in one transaction when a session ends, so that the batch stays small.
pub const CLOSES_PER_BATCH: usize = 256;
/// Bytes of changes at which such a transaction ends early: one removed file can bring a thousand
/// work items for chunk files and thousands of extended attributes.
pub const CLOSE_BYTES: usize = 256 << 10;
/// Files whose size is recovered at the same time.
pub const SIZE_RECOVERIES_AT_ONCE: usize = 16;
/// First pause of an operation that found a participant busy.
pub const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// Longest such pause.
pub const LONGEST_PAUSE: Duration = Duration::from_millis(64);
/// How often an operation starts over because the inode that a name led to is gone. Each time
/// another request must have changed the name in between, so a few times are enough unless the
/// store is damaged.
pub const MAX_REVALIDATIONS: u32 = 16;
/// Longest time that a target waits without an event.
pub const LONGEST_WAIT: Duration = Duration::from_millis(250);
/// Age of a prepared transaction at which the participant asks the coordinator how it ended.
pub const ASK_AFTER: Duration = Duration::from_secs(1);
/// Pause before a target repeats a call that another group has refused (a removal, a question for a
/// size, a decision).
pub const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// How long a target remembers that a session or another group's transaction has ended: longer than
/// any message can be under way.
pub const END_KEPT_SECONDS: i64 = 600;
/// Time between two searches for ends that are old enough to be deleted.
pub const FORGET_EVERY: Duration = Duration::from_secs(60);
/// Ends that such a search reads in one batch: a target may remember hundreds of thousands.
pub const ENDS_PER_BATCH: usize = 1000;
/// Operations that can wait on a target; above it the target refuses changes with `LimitReached`.
pub const MAX_PARKED: usize = 100_000;
/// Operations that can wait in addition before the target refuses other requests too. Transactions
/// between targets need this reserve: waiting operations may wait for them.
pub const PARKED_RESERVE: usize = 100_000;
/// Connections that get the reply to one request. A client gives a connection up before it repeats
/// a request on the next one, so only the last few can still be in use.
pub const MAX_REPETITIONS: usize = 8;
/// Largest number of slots of a session.
pub const MAX_SLOTS: u32 = skep_wire::limits::MAX_SLOTS;
/// Bytes at which a log record ends and the next operation of the batch begins another. Far below
/// what a reader takes for damage, and enough for hundreds of operations.
pub const RECORD_BYTES: usize = 4 << 20;
/// Bytes that one operation may change. They are all in one log record, so that the operation
/// happens as a whole or not at all; a larger one is refused before it changes anything. Ten times
/// the changes of removing the largest possible file (chunk files and extended attributes).
pub const OPERATION_BYTES: usize = 32 << 20;
const _: () = assert!(OPERATION_BYTES < skep_format::log::MAX_PAYLOAD_BYTES);
/// Steps of one prepared transaction: a rename needs three at one group. The commit must fit into
/// one log record, because the participant can no longer refuse it.
pub const MAX_STEPS: usize = 8;
/// Bytes of log after which a checkpoint begins.
pub const CHECKPOINT_LOG_BYTES: u64 = 64 << 20;
/// Bytes of the key-value store's journal before it begins another: the records of one table in
/// memory.
pub const JOURNAL_BYTES: u64 = 64 << 20;
/// Free bytes that a target reserves on its disk for requests that free or end something: with
/// less, it refuses requests that add something. The reserve holds the log of up to two checkpoints
/// ([`CHECKPOINT_LOG_BYTES`]) with the segments begun, two journals and two tables of the key-value
/// store, and the tables that it rewrites to drop removed keys.
pub const RESERVE_BYTES: u64 = 512 << 20;
/// The reserve is at most the size of the file system divided by this.
pub const RESERVE_DIVISOR: u64 = 8;
/// Free inodes below which a target refuses to add something: it needs them for segments and
/// tables.
pub const RESERVE_INODES: u64 = 256;
/// How long a measurement of the free space is valid.
pub const FREE_SPACE_VALID: Duration = LONGEST_WAIT;
/// Bytes of log after which the measurement is repeated earlier.
pub const FREE_SPACE_LOG_BYTES: u64 = 4 << 20;
/// With fewer free bytes, the target attributes a failure of the log or the store to the full disk.
pub const FULL_BYTES: u64 = 64 << 20;
/// Locked ranges that a target keeps: about 100 bytes each in memory.
pub const MAX_FILE_LOCKS: usize = 1 << 20;
/// Requests that wait for locks on a target.
pub const MAX_LOCK_WAITS: usize = 100_000;
/// How long the target parks a request that waits (for a lock, for notifications) before it asks
/// the client to poll again, so that no wait outlives a connection that was lost unnoticed.
pub const WAIT_ANSWER: Duration = Duration::from_secs(5);
/// How long a lock stays reserved for the waiter that was woken, and how long a waiter that must
/// poll again keeps its queue position: many times the latency of a message.
pub const WAKE_RESERVATION: Duration = Duration::from_secs(1);
/// Later claims that may be granted ahead of a waiter with which they conflict, before the waiter
/// gets a starvation barrier.
pub const MAX_OVERTAKEN: u32 = 64;
/// Length of the first starvation barrier; each further one doubles. When it expires, the waiters
/// that it blocked are woken, because the lock holder may itself wait for one of them.
pub const BARRIER: Duration = Duration::from_secs(1);
/// Upper bound of a starvation barrier, which doubles each time.
pub const LONGEST_BARRIER: Duration = Duration::from_secs(600);
/// Waiters of a file that the target examines when a lock is released; those behind them poll again
/// by themselves.
pub const WAITERS_EXAMINED: usize = 1000;
/// Lock holders that a search for a deadlock cycle examines.
pub const MAX_DEADLOCK_STEPS: usize = 10_000;
/// Opens that one `ListLocks` examines.
pub const USES_EXAMINED: usize = 10_000;
/// Open files counted for one page of sessions: it must not delay requests.
pub const OPENS_COUNTED: usize = 8192;
/// Depth of the deepest directory that a rename may move a directory into.
pub const MAX_DEPTH: usize = 4096;
/// Subdirectories above which a directory spreads new ones over all metadata groups.
pub const SPREAD_SUBDIRECTORIES: u32 = 1000;

/// The limits that a simulation draws small, so that it crosses them often.
#[derive(Debug, Clone)]
pub struct Limits {
    /// [`NUMBER_RANGE`].
    pub number_range: u64,
    /// [`REMOVALS_PER_MESSAGE`].
    pub removals_per_message: usize,
    /// [`CLOSES_PER_BATCH`].
    pub closes_per_batch: usize,
    /// [`MAX_PARKED`].
    pub parked: usize,
    /// [`ENDS_PER_BATCH`].
    pub ends_per_batch: usize,
    /// [`RECORD_BYTES`].
    pub record_bytes: usize,
    /// [`OPERATION_BYTES`].
    pub operation_bytes: usize,
    /// [`CHECKPOINT_LOG_BYTES`].
    pub checkpoint_log_bytes: u64,
    /// [`SPREAD_SUBDIRECTORIES`].
    pub spread_subdirectories: u32,
    /// [`MAX_FILE_LOCKS`].
    pub file_locks: usize,
    /// [`MAX_LOCK_WAITS`].
    pub lock_waits: usize,
    /// Entries read from the store at once in a scan.
    pub scan_page: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            number_range: NUMBER_RANGE,
            removals_per_message: REMOVALS_PER_MESSAGE,
            closes_per_batch: CLOSES_PER_BATCH,
            parked: MAX_PARKED,
            ends_per_batch: ENDS_PER_BATCH,
            record_bytes: RECORD_BYTES,
            operation_bytes: OPERATION_BYTES,
            checkpoint_log_bytes: CHECKPOINT_LOG_BYTES,
            spread_subdirectories: SPREAD_SUBDIRECTORIES,
            file_locks: MAX_FILE_LOCKS,
            lock_waits: MAX_LOCK_WAITS,
            scan_page: 256,
        }
    }
}
