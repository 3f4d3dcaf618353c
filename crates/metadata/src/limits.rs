//! Limits of a metadata target, each with its reason.

use std::time::Duration;

/// Maximum time until a change is on the device, under `metadata.sync = interval`, if each sync of
/// the device takes at most [`SYNC_AFTER`].
pub const SYNC_INTERVAL: Duration = Duration::from_millis(10);
/// Age of the oldest unsynced change at which the target begins a sync. If another sync has just
/// begun, the change waits for that sync and for one more. So each of the two syncs may take half
/// of [`SYNC_INTERVAL`]. On a slower device, a change may become as old as two syncs take.
pub const SYNC_AFTER: Duration = Duration::from_millis(5);
/// How many numbers (for inodes and transactions) one reservation covers. A reservation costs one
/// log record; a crash wastes at most this many of the 2^48 numbers.
pub const NUMBER_RANGE: u64 = 65_536;
/// Maximum number of chunk files that one message asks a storage target to remove.
pub const REMOVALS_PER_MESSAGE: usize = 256;
/// Maximum number of pending removals of chunk files that a target keeps in memory, about 24 bytes
/// each. The target reads further removals from its store later.
pub const QUEUED_REMOVALS: usize = 1 << 18;
/// Maximum number of open files that one transaction closes when a session ends, so that the
/// transaction stays small.
pub const CLOSES_PER_BATCH: usize = 256;
/// Bytes of changes at which a transaction that closes files of an ended session stops early. One
/// removed file can add a thousand work items for chunk files and delete thousands of extended
/// attributes.
pub const CLOSE_BYTES: usize = 256 << 10;
/// Maximum number of files whose size the target recovers at the same time.
pub const SIZE_RECOVERIES_AT_ONCE: usize = 16;
/// Time after which the target syncs the chunk files of a truncation that is not durable yet. The
/// time is longer than the interval of storage's cleaner, so the syncs normally cost no I/O.
pub const SETTLE_AFTER: Duration = Duration::from_secs(40);
/// Maximum number of truncations that the target settles at the same time, apart from those for
/// which a size recovery waits.
pub const SETTLES_AT_ONCE: usize = 64;
/// First pause of the exponential back-off of an operation that found a participant busy.
pub const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// Maximum pause of the exponential back-off of an operation that found a participant busy.
pub const LONGEST_PAUSE: Duration = Duration::from_millis(64);
/// Maximum number of times that an operation restarts because the inode that a name pointed to no
/// longer exists. Each restart means that another request has changed the name since the operation
/// read it. So a few restarts are enough, unless the store is damaged.
pub const MAX_REVALIDATIONS: u32 = 16;
/// Maximum time that a target waits for an event.
pub const LONGEST_WAIT: Duration = Duration::from_millis(250);
/// Age of a prepared transaction at which the participant asks the coordinator for its decision.
pub const ASK_AFTER: Duration = Duration::from_secs(1);
/// Pause before a target repeats a call that another group has refused. The call is a removal of
/// chunk files, a request for the size of a chunk file, or a decision.
pub const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Age of an unanswered question to a coordinator at which an administrator may decide on the
/// transaction.
pub const RESOLVABLE_AFTER: Duration = Duration::from_secs(10);
/// Pause before a participant asks again about a transaction whose decision it could not carry out.
pub const STUCK_PAUSE: Duration = Duration::from_secs(60);
/// Maximum number of prepared transactions of other groups. Each of them keeps locks, and the
/// target asks its coordinator for the decision.
pub const MAX_PREPARED: usize = 4096;
/// Largest difference between the host's clock and the time that has passed since boot that a
/// target accepts between two batches. Time servers correct a running clock in much smaller steps.
pub const MAX_CLOCK_STEP: Duration = Duration::from_secs(300);
/// Seconds for which a target remembers that a session, or a transaction of another group, has
/// ended. No message can be in flight for that long.
pub const END_KEPT_SECONDS: i64 = 600;
/// Interval between two searches for records of ended sessions and transactions that are old enough
/// to be deleted.
pub const FORGET_EVERY: Duration = Duration::from_secs(60);
/// Maximum number of records of ended sessions or transactions that the search reads in one batch.
/// A target may have hundreds of thousands of these records.
pub const ENDS_PER_BATCH: usize = 1000;

/// Number of keys in one batch of deletions after which the batch takes no further old records. A
/// session has a key for each slot that it used, at most [`MAX_SLOTS`].
pub const KEYS_FORGOTTEN: usize = 10_000;
/// Number of waiting operations at which the target refuses changes with `LimitReached`.
pub const MAX_PARKED: usize = 100_000;
/// Number of waiting operations, in addition to [`MAX_PARKED`], at which the target refuses other
/// requests too. Waiting operations may wait for transactions between targets, so the requests of
/// these transactions need this reserve.
pub const PARKED_RESERVE: usize = 100_000;
/// Maximum number of connections on which the target sends the reply to one request. A client
/// abandons a connection before it repeats a request on the next one, so only the last few can
/// still be in use.
pub const MAX_REPETITIONS: usize = 8;
/// Maximum number of slots of a session.
pub const MAX_SLOTS: u32 = skep_wire::limits::MAX_SLOTS;
/// Bytes at which a log record ends and the next operation of the batch begins another record. The
/// limit is far below the record length that a reader takes for damage, and enough for hundreds of
/// operations.
pub const RECORD_BYTES: usize = 4 << 20;
/// Maximum number of bytes that one operation may change. All changes of an operation must fit into
/// one log record, so that the operation is atomic, and a record must fit into the body of one
/// frame. The target refuses a larger operation before it changes anything. The limit is more than
/// twice the changes of removing the largest possible file (chunk files and extended attributes).
pub const OPERATION_BYTES: usize = 8 << 20;
/// The bytes of a log payload that do not belong to an operation: the number of changes.
pub(crate) const BATCH_HEAD_BYTES: usize = 4;
const _: () = {
    let longest = if OPERATION_BYTES > RECORD_BYTES { OPERATION_BYTES } else { RECORD_BYTES };
    assert!(longest + BATCH_HEAD_BYTES <= skep_format::log::MAX_PAYLOAD_BYTES);
    // A frame also carries the fields of the message in which one member sends the record to
    // another one.
    let record = skep_format::log::RECORD_HEADER_BYTES + skep_format::log::MAX_PAYLOAD_BYTES;
    assert!(record + (64 << 10) <= skep_wire::limits::MAX_BODY_BYTES);
};
/// Maximum number of steps of one prepared transaction. A rename needs three steps at one group.
/// The commit must fit into one log record, because the participant can no longer refuse it.
pub const MAX_STEPS: usize = 8;
/// Bytes of log after which the target begins a checkpoint.
pub const CHECKPOINT_LOG_BYTES: u64 = 64 << 20;
/// Bytes of a journal of the key-value store after which the store begins another journal. A
/// journal holds the records of one in-memory table.
pub const JOURNAL_BYTES: u64 = 64 << 20;
/// Free bytes that a target reserves on its disk for requests that free or end something. Below
/// this value, the target refuses requests that add something.
///
/// The reserve holds the log of up to two checkpoints ([`CHECKPOINT_LOG_BYTES`]) with the segments
/// in use. It also holds two journals and two tables of the key-value store, and the tables that
/// the store rewrites to drop removed keys.
pub const RESERVE_BYTES: u64 = 512 << 20;
/// The reserve is at most the size of the file system divided by this number.
pub const RESERVE_DIVISOR: u64 = 8;
/// Number of free inodes below which a target refuses to add something, because log segments and
/// tables of the store need inodes.
pub const RESERVE_INODES: u64 = 256;
/// Time for which a measurement of the free space is valid.
pub const FREE_SPACE_VALID: Duration = LONGEST_WAIT;
/// Bytes of log after which the target measures the free space again before [`FREE_SPACE_VALID`]
/// has passed.
pub const FREE_SPACE_LOG_BYTES: u64 = 4 << 20;
/// Number of free bytes below which the target attributes a failure of the log or the store to a
/// full disk.
pub const FULL_BYTES: u64 = 64 << 20;
/// Maximum number of locked ranges on a target. Each takes about 100 bytes of memory.
pub const MAX_FILE_LOCKS: usize = 1 << 20;
/// Maximum number of requests that wait for locks on a target.
pub const MAX_LOCK_WAITS: usize = 100_000;
/// Maximum time for which the target parks a request that waits (for a lock, for notifications).
/// Then the target asks the client to poll again. So no wait outlives a connection that was lost
/// without an error.
pub const WAIT_ANSWER: Duration = Duration::from_secs(5);
/// Time for which a lock stays reserved for a woken waiter, and for which a waiter that must poll
/// again keeps its queue position. The value is many times the latency of a message.
pub const WAKE_RESERVATION: Duration = Duration::from_secs(1);
/// Number of later conflicting requests that may be granted ahead of a waiter before the waiter
/// gets a starvation barrier.
pub const MAX_OVERTAKEN: u32 = 64;
/// Length of the first starvation barrier of a waiter. Each further barrier is twice as long. When
/// a barrier expires, the target wakes the waiters that it blocked, because the lock holder may
/// itself wait for one of them.
pub const BARRIER: Duration = Duration::from_secs(1);
/// Maximum length of a starvation barrier.
pub const LONGEST_BARRIER: Duration = Duration::from_secs(600);
/// Maximum number of waiters of a file that the target examines when a lock is released. Waiters
/// behind them find the free lock when they poll again.
pub const WAITERS_EXAMINED: usize = 1000;
/// Maximum number of owners of locks and waits that a search for silent clients examines, four
/// times a second: it takes less than a millisecond of the target's thread.
pub const MAX_HOLDERS_EXAMINED: usize = 4096;
/// Maximum number of lock holders that a search for a deadlock cycle examines.
pub const MAX_DEADLOCK_STEPS: usize = 10_000;
/// Maximum number of inodes and shards that one `ListGroupFiles` examines, so that it holds up
/// other requests for some milliseconds only.
pub const INODES_EXAMINED: usize = 10_000;
/// Maximum number of chunk files to remove, and of prepared transactions, that one `ListGroupFiles`
/// counts.
pub const REMOVALS_EXAMINED: usize = 10_000;
/// Maximum number of opens that one `ListLocks` examines.
pub const USES_EXAMINED: usize = 10_000;
/// Number of open files after which a page of the session list ends, because counting must not
/// delay requests.
pub const OPENS_COUNTED: usize = 8192;
/// Maximum depth of a directory into which a rename may move another directory.
pub const MAX_DEPTH: usize = 4096;
/// Bytes of records in one `ShipLog`. A longer record has a request of its own.
pub const SHIP_BYTES: usize = 1 << 20;
/// Bytes of records under way to a member, without a reply, at which the primary ships no more.
pub const SHIPPED_BYTES: usize = 16 << 20;
/// Number of records under way to a member, and in one request, at which the primary ships no more.
pub const SHIPPED_RECORDS: usize = 4096;
/// Number of requests under way to a member at which the primary ships no more.
pub const SHIPPED_REQUESTS: usize = 64;
/// Time without a reply of a member after which the primary counts the requests under way as lost.
pub const SHIP_AGAIN_AFTER: Duration = Duration::from_millis(500);
/// Pause after a request to a member has failed.
pub const MEMBER_PAUSE: Duration = Duration::from_millis(20);
/// Age of a request at which the primary sends a new value of *safe* even if it ships no record.
pub const SAFE_NOTICE_PAUSE: Duration = Duration::from_millis(100);
/// Maximum time for which a member delays its reply to `AwaitLogSync`.
pub const AWAIT_SYNC: Duration = Duration::from_millis(250);
/// Age at which the primary counts an `AwaitLogSync` as lost: four times [`AWAIT_SYNC`].
pub const AWAIT_LOST_AFTER: Duration = Duration::from_secs(1);
/// Number of `AwaitLogSync` that wait at a member. If another one arrives, the oldest one gets its
/// reply.
pub const MAX_SYNC_WAITS: usize = 8;
/// Bytes of records that are not safe yet at which a primary accepts no more requests. A slow or
/// absent member delays *safe*, and the primary keeps these records in memory for it.
pub const KEPT_BYTES: usize = 64 << 20;
/// Bytes of records above its store at which a backup appends no more. The primary stops earlier.
/// The difference is more than one batch of requests changes.
pub const MAX_BACKUP_BYTES: usize = 2 * KEPT_BYTES;
/// Bytes of records that a primary keeps in memory for members that do not serve. A member that
/// lacks more needs a copy of the store.
pub const KEPT_FOR_ABSENT_BYTES: usize = KEPT_BYTES / 2;
/// Number of records that a member that does not serve may lack when the primary begins to count
/// it: replies then wait until the member has them, which takes milliseconds.
pub const JOIN_LAG: u64 = 1000;
/// Time for which a primary may answer after it has sent a request that a member has acknowledged.
pub const LEASE: Duration = Duration::from_secs(2);
/// Time after the last request of the primary at which a member asks to take over. It is longer
/// than [`LEASE`] by more than clocks of two hosts differ.
pub const TAKE_OVER_AFTER: Duration = Duration::from_millis(2500);
/// Time without a request after which the primary sends one to each member, so that its lease does
/// not end.
pub const LEASE_RENEWAL: Duration = Duration::from_millis(500);
/// Pause after a request to a member that does not serve has failed, and between two requests to
/// management for one change of a group.
pub const ABSENT_PAUSE: Duration = Duration::from_secs(1);
/// Time between two batches after which a member concludes that its process was stopped. It then
/// gives the other members time for their messages before it calls them silent.
pub const OWN_PAUSE: Duration = Duration::from_secs(1);
/// Number of subdirectories above which a directory spreads new subdirectories over all metadata
/// groups.
pub const SPREAD_SUBDIRECTORIES: u32 = 1000;

/// The limits to which a simulation gives small values, so that it reaches them often.
#[derive(Debug, Clone)]
pub struct Limits {
    /// [`NUMBER_RANGE`].
    pub number_range: u64,
    /// [`REMOVALS_PER_MESSAGE`].
    pub removals_per_message: usize,
    /// [`QUEUED_REMOVALS`].
    pub queued_removals: usize,
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
    /// Number of pairs that a scan reads from the store at once.
    pub scan_page: usize,
    /// [`SETTLE_AFTER`].
    pub settle_after: Duration,
    /// The times of the members of a group.
    pub leases: LeaseTimes,
}

/// The times of leases. All members of a group use the same ones, so that one member answers.
#[derive(Debug, Clone, Copy)]
pub struct LeaseTimes {
    /// [`LEASE`].
    pub lease: Duration,
    /// [`TAKE_OVER_AFTER`].
    pub take_over_after: Duration,
}

impl Default for LeaseTimes {
    fn default() -> Self {
        Self { lease: LEASE, take_over_after: TAKE_OVER_AFTER }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            number_range: NUMBER_RANGE,
            removals_per_message: REMOVALS_PER_MESSAGE,
            queued_removals: QUEUED_REMOVALS,
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
            settle_after: SETTLE_AFTER,
            leases: LeaseTimes::default(),
        }
    }
}
