//! Limits of a metadata target, each with its reason.

use skep_cluster::lease_times::LeaseTimes;
use skep_types::ClusterMap;
use std::time::Duration;

/// Maximum time from a change until it is on the device, under `metadata.sync = interval`. This
/// maximum holds if each sync of the device takes at most [`SYNC_AFTER`].
pub const SYNC_INTERVAL: Duration = Duration::from_millis(10);
/// Age of the oldest unsynced change at which the target begins a sync. If the change arrives just
/// after the beginning of another sync, the change waits for that sync and for a second sync. If
/// each sync takes at most half of [`SYNC_INTERVAL`], the change is on the device within
/// [`SYNC_INTERVAL`]. On a slower device, a change may wait for the duration of two syncs.
pub const SYNC_AFTER: Duration = Duration::from_millis(5);
/// Number of inode and transaction numbers that one reservation covers. A reservation
/// costs one log record. A crash wastes at most this number of the 2^48 numbers.
pub const NUMBER_RANGE: u64 = 65_536;
/// Maximum number of values that one run of an operation remembers, so that it reads each of them
/// only once. A change of names reads some 10 different keys.
pub(crate) const MAX_REMEMBERED_READS: usize = 16;
/// Maximum number of chunk files that one message asks a storage target to remove.
pub const REMOVALS_PER_MESSAGE: usize = 256;
/// Time for which a target collects chunk files before it asks a storage target to remove them. A
/// request costs several syncs of directories, for one chunk file as for hundreds. A storage target
/// with little free space gets its requests without this delay.
pub const REMOVAL_DELAY: Duration = Duration::from_millis(200);
/// Maximum number of pending removals of chunk files that a target keeps in memory, about 24 bytes
/// each. Further removals are only in the store, and the target reads them later.
pub const QUEUED_REMOVALS: usize = 1 << 18;
/// Maximum number of open files that one transaction closes when a session ends, so that the
/// transaction stays small.
pub const CLOSES_PER_BATCH: usize = 256;
/// Size of a transaction, in bytes of changes, from which it closes no further file of an ended
/// session. A single removed file can add a thousand work items for chunk files and delete
/// thousands of extended attributes.
pub const CLOSE_BYTES: usize = 256 << 10;
/// Maximum number of files whose size the target recovers at the same time.
pub const SIZE_RECOVERIES_AT_ONCE: usize = 16;
/// Time after which the target asks storage to sync the chunk files of a truncation that is not
/// durable yet. Within this time, storage has normally synced the chunk files in the background, so
/// the requests cost no I/O.
pub const SETTLE_AFTER: Duration = Duration::from_secs(40);
/// Maximum number of truncations whose chunk files the target syncs at the same time. Truncations
/// for which a size recovery waits do not count.
pub const SETTLES_AT_ONCE: usize = 64;
/// First pause of an operation before it asks a busy participant again. The pauses grow
/// exponentially.
pub const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// Longest pause of an operation before it asks a busy participant again.
pub const LONGEST_PAUSE: Duration = Duration::from_millis(64);
/// Maximum time for which an operation with a prepared transaction waits for a lock of another
/// group's transaction. After this time, the operation aborts its own transaction, and waits
/// without locks. The other transaction normally ends after a message or after two syncs of a log.
pub const TRANSACTION_WAIT: Duration = Duration::from_secs(1);
/// Maximum number of times that an operation restarts because a name led to an inode that does not
/// exist. Normally, another request has changed the name since the operation read it. If the inode
/// is still missing after this number of restarts, the store is damaged.
pub const MAX_REVALIDATIONS: u32 = 16;
/// Maximum time that a target waits for an event.
pub const LONGEST_WAIT: Duration = Duration::from_millis(250);
/// Age of a prepared transaction at which the participant asks the transaction's coordinator for
/// the decision.
pub const ASK_AFTER: Duration = Duration::from_secs(1);
/// Maximum time for which requests for the attributes of a directory wait for the decision about a
/// prepared change of its names, counted from the preparation. The decision normally arrives after
/// two syncs of a log. If the decision takes this long, the coordinator has failed, and programs
/// must be able to use other names in the directory.
pub const DECISION_PATIENCE: Duration = Duration::from_secs(5);
/// Pause before a background job repeats a call that another group has refused. Such calls are
/// removals of chunk files, requests for the size of a chunk file, truncations and decisions.
pub const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Time for which a coordinator must have left a request for its decision unanswered, before an
/// administrator may decide the prepared transaction in its place.
pub const RESOLVABLE_AFTER: Duration = Duration::from_secs(10);
/// Pause of a participant that could not carry out a decision, before it asks the coordinator
/// again.
pub const STUCK_PAUSE: Duration = Duration::from_secs(60);
/// Maximum number of prepared transactions of other groups. Each prepared transaction holds locks
/// until the target has received the decision from its coordinator.
pub const MAX_PREPARED: usize = 4096;
/// Largest accepted step of the host's clock between two batches. The step is the difference
/// between the host's clock and the time that the target expects from the clock since boot. Time
/// servers correct a running clock in much smaller steps.
pub const MAX_CLOCK_STEP: Duration = Duration::from_secs(300);
/// Seconds for which a target keeps the record that a session, or a transaction of another group,
/// has ended. After this time, no message of the session or transaction can be in flight any more.
pub const END_KEPT_SECONDS: i64 = 600;
/// Interval between two searches for records of ended sessions and transactions that are old enough
/// to be deleted.
pub const FORGET_EVERY: Duration = Duration::from_secs(60);
/// Maximum number of records of ended sessions or transactions that the search reads in one batch.
/// A target may have hundreds of thousands of these records.
pub const ENDS_PER_BATCH: usize = 1000;

/// Number of keys above which one transaction deletes no further old records. The deletion of a
/// session has one key, and one for each slot that the session has used, at most [`MAX_SLOTS`].
pub const KEYS_FORGOTTEN: usize = 10_000;
/// Number of waiting operations at which the target refuses further changes with `LimitReached`.
pub const MAX_PARKED: usize = 100_000;
/// Number of waiting operations that the target accepts in addition to [`MAX_PARKED`], if these
/// operations are no changes of clients. This reserve is for the requests of transactions between
/// targets, because waiting operations may wait for these transactions.
pub const PARKED_RESERVE: usize = 100_000;
/// Maximum number of connections on which the target sends the reply to one request. A client
/// abandons a connection before it repeats a request on the next connection, so only the most
/// recent connections can still be in use.
pub const MAX_REPETITIONS: usize = 8;
/// Maximum number of slots of a session.
pub const MAX_SLOTS: u32 = skep_wire::limits::MAX_SLOTS;
/// Maximum number of bytes in a log record with several operations: if the next operation does not
/// fit, it begins another record. The limit is far below the maximum length of a record, and a
/// record of this length has the changes of hundreds of operations.
pub const RECORD_BYTES: usize = 4 << 20;
/// Maximum number of bytes that one operation may change. All changes of an operation must be in
/// one log record, because an operation is atomic. A record must fit into the body of one frame.
/// The target refuses a larger operation before it changes anything. The largest operation on one
/// file, the removal of a file with all possible chunk files and extended attributes, needs less
/// than half of this limit.
pub const OPERATION_BYTES: usize = 8 << 20;
/// Length of the head of a log payload, which contains the number of changes, in bytes.
pub(crate) const BATCH_HEAD_BYTES: usize = 4;
const _: () = {
    let longest = if OPERATION_BYTES > RECORD_BYTES { OPERATION_BYTES } else { RECORD_BYTES };
    assert!(longest + BATCH_HEAD_BYTES <= skep_format::log::MAX_PAYLOAD_BYTES);
    // A frame that carries a log record to another member also has the other fields of the message.
    let record = skep_format::log::RECORD_HEADER_BYTES + skep_format::log::MAX_PAYLOAD_BYTES;
    assert!(record + (64 << 10) <= skep_wire::limits::MAX_BODY_BYTES);
};
/// Maximum number of steps of one prepared transaction. A rename needs three steps at one group.
/// The changes of the commit must fit into one log record, because a participant cannot refuse a
/// commit.
pub const MAX_STEPS: usize = 8;
/// Growth of the log in bytes after which the target begins a checkpoint.
pub const CHECKPOINT_LOG_BYTES: u64 = 64 << 20;
/// Size in bytes at which the key-value store ends a journal and begins another one. A journal has
/// the records of one in-memory table.
pub const JOURNAL_BYTES: u64 = 64 << 20;
/// Number of free bytes that a target reserves on its disk for requests that free space or end
/// something, such as unlink and close. If fewer bytes are free, the target refuses requests that
/// need space, such as create.
///
/// The reserve has space for the log of up to two checkpoints ([`CHECKPOINT_LOG_BYTES`]), including
/// the segments in use. The reserve also has space for two journals and two tables of the key-value
/// store, and the tables that the store rewrites to drop removed keys.
pub const RESERVE_BYTES: u64 = 512 << 20;
/// The reserve is at most the size of the file system divided by this number.
pub const RESERVE_DIVISOR: u64 = 8;
/// Minimum number of free inodes on the disk of a target. Below it, the target refuses changes that
/// need space, because the log segments and the tables of its store need the last inodes.
pub const RESERVE_INODES: u64 = 256;
/// Time for which a measurement of the free space is valid.
pub const FREE_SPACE_VALID: Duration = LONGEST_WAIT;
/// Growth of the log in bytes after which a measurement of the free space is invalid, even if it is
/// younger than [`FREE_SPACE_VALID`].
pub const FREE_SPACE_LOG_BYTES: u64 = 4 << 20;
/// Maximum time for which a primary with an almost full disk tries to hand its group over to
/// another member. After this time, the primary refuses new data. The time is longer than an
/// election among the management members.
pub const HAND_OVER_LIMIT: Duration = Duration::from_secs(5);
/// Number of free bytes below which the target attributes a failure of the log or the store to a
/// full disk.
pub const FULL_BYTES: u64 = 64 << 20;
/// Maximum number of locked ranges on a target. Each takes about 100 bytes of memory.
pub const MAX_FILE_LOCKS: usize = 1 << 20;
/// Maximum number of requests that wait for locks on a target.
pub const MAX_LOCK_WAITS: usize = 100_000;
/// Maximum time for which the target parks a poll of a client (`WaitLock` or `WaitNotifications`).
/// After this time, the target asks the client to poll again. So a client does not wait forever if
/// its connection is lost without an error.
pub const WAIT_ANSWER: Duration = Duration::from_secs(5);
/// Time for which a lock stays reserved for a woken waiter, and for which a waiter that must poll
/// again keeps its queue position. The value is many times the latency of a message.
pub const WAKE_RESERVATION: Duration = Duration::from_secs(1);
/// Number of later conflicting requests that the target grants before a waiter gets a starvation
/// barrier (see `locks::queue`).
pub const MAX_OVERTAKEN: u32 = 64;
/// Length of the first starvation barrier of a waiter. Each further barrier is twice as long. When
/// a barrier expires, the target wakes the waiters that the barrier has blocked, because the lock
/// holder may itself wait for one of them.
pub const BARRIER: Duration = Duration::from_secs(1);
/// Maximum length of a starvation barrier.
pub const LONGEST_BARRIER: Duration = Duration::from_secs(600);
/// Maximum number of waiters of a file that the target examines when a lock is released. Later
/// waiters in the queue find the free lock when they poll again.
pub const WAITERS_EXAMINED: usize = 1000;
/// Maximum number of lock owners and waiters that one search for silent clients examines. The
/// target's thread runs this search four times a second, and it takes less than a millisecond.
pub const MAX_HOLDERS_EXAMINED: usize = 4096;
/// Maximum number of lock holders that a search for a deadlock cycle examines.
pub const MAX_DEADLOCK_STEPS: usize = 10_000;
/// Maximum number of inodes and shards that one `ListGroupFiles` examines, so that it delays other
/// requests only by some milliseconds.
pub const INODES_EXAMINED: usize = 10_000;
/// Maximum number of chunk files to remove, and of prepared transactions, that one `ListGroupFiles`
/// counts.
pub const REMOVALS_EXAMINED: usize = 10_000;
/// Maximum number of opens that one `ListLocks` examines.
pub const USES_EXAMINED: usize = 10_000;
/// Number of counted open files at which a page of the session list ends, so that the count does
/// not delay requests.
pub const OPENS_COUNTED: usize = 8192;
/// Maximum depth below the root of a directory into which a rename moves another directory.
pub const MAX_DEPTH: usize = 4096;
/// Maximum number of bytes of records in one `ShipLog` request. A longer record gets a request of
/// its own.
pub const SHIP_BYTES: usize = 1 << 20;
/// Maximum number of bytes of records that the primary has sent to a member and that the member has
/// not acknowledged.
pub const SHIPPED_BYTES: usize = 16 << 20;
/// Maximum number of records that the primary has sent to a member and that the member has not
/// acknowledged. Also the maximum number in one request.
pub const SHIPPED_RECORDS: usize = 4096;
/// Maximum number of `ShipLog` requests that the primary has sent to a member and that have no
/// reply yet.
pub const SHIPPED_REQUESTS: usize = 64;
/// Time without a reply to `ShipLog` after which the primary treats all requests to the member as
/// lost, and sends them again.
pub const SHIP_AGAIN_AFTER: Duration = Duration::from_millis(500);
/// Pause of the primary after a failed request to a serving member, before it sends the member
/// another request.
pub const MEMBER_PAUSE: Duration = Duration::from_millis(20);
/// Time without a request to a member after which the primary sends a new value of *safe* in a
/// request without records. *Safe* is the last record that every serving member has synced.
pub const SAFE_NOTICE_PAUSE: Duration = Duration::from_millis(100);
/// Maximum time for which a member delays its reply to `AwaitLogSync`.
pub const AWAIT_SYNC: Duration = Duration::from_millis(250);
/// Time without a reply after which the primary treats an `AwaitLogSync` as lost. This time is four
/// times [`AWAIT_SYNC`].
pub const AWAIT_LOST_AFTER: Duration = Duration::from_secs(1);
/// Maximum number of `AwaitLogSync` requests that wait at a member. If another request arrives, the
/// member replies to the oldest request.
pub const MAX_SYNC_WAITS: usize = 8;
/// Size in bytes of the records in memory at which the primary accepts no more requests. The
/// primary keeps all records that are not *safe* in memory, and more records are not *safe* while a
/// serving member is slow or silent.
pub const KEPT_BYTES: usize = 64 << 20;
/// Maximum number of bytes of records that a backup member has in its log and not yet in its store.
/// This limit must be higher than [`KEPT_BYTES`], at which the primary accepts no more requests:
/// the difference has space for the log records of one more batch.
pub const MAX_BACKUP_BYTES: usize = 2 * KEPT_BYTES;
/// Maximum number of bytes of records that a primary keeps in memory for members that do not serve.
/// For a member that lacks older records, the primary reads its log on disk.
pub const KEPT_FOR_ABSENT_BYTES: usize = KEPT_BYTES / 2;
/// Number of bytes of records that the primary reads back from its log on disk in one read, for a
/// member that lacks them. The primary ships these records before it begins the next read for the
/// member.
pub const LOG_READ_BYTES: usize = 2 * SHIP_BYTES;
/// Number of bytes of keys and values in one part of a copy of the store. The primary's thread
/// reads a part from its store between two batches, which delays requests by a few milliseconds.
pub const COPY_PART_BYTES: usize = 256 << 10;
/// Number of key-value pairs that the primary reads from its store in one call, for a message of a
/// copy. A pair has at most about 64 KiB.
pub const COPY_SCAN: usize = 64;
/// Total size in bytes of the log records that a copy lacks. At this size, the primary sends the
/// records immediately, without a wait for the next key-value pairs. This size is far below
/// [`KEPT_FOR_ABSENT_BYTES`], so the primary sends the records before it drops them from memory.
pub const COPY_RECORD_BYTES: usize = SHIP_BYTES / 4;
/// Time without a reply after which the primary treats a part of a copy as lost. A member takes
/// less than this time to reply.
pub const COPY_LOST_AFTER: Duration = Duration::from_secs(3);
/// Pause of the primary before it asks a member again that is removing its store or making its copy
/// durable.
pub const COPY_PAUSE: Duration = Duration::from_millis(100);
/// Number of missing records up to which the primary begins to count an absent member: replies then
/// wait for this member too. The member gets the missing records within milliseconds.
pub const JOIN_LAG: u64 = 1000;
/// Time without a request to a member after which the primary sends the member a request, so that
/// the primary's lease does not end.
pub const LEASE_RENEWAL: Duration = Duration::from_millis(500);
/// Age of a request to drop a member. After this age, the log and the health of the primary report
/// that replies also wait for the primary's own disk. Replies wait because management has not
/// carried out the request. Management normally carries out a request to drop a member within some
/// milliseconds.
pub const UNDECIDED_DROP: Duration = Duration::from_secs(10);
/// Time for which a sync of one member's log may take longer than that of another member. After
/// this time, the disk of the member counts as hanging. The primary then has the member dropped. If
/// the disk of the primary itself hangs, the primary hands its group over. Most stalls of a disk
/// are shorter than this time, and a drop or a hand-over costs more than the rest of a short stall.
/// Durable replies wait for this time and for the change of the group, and shall not wait for more
/// than 5 s.
pub const SYNC_PATIENCE: Duration = Duration::from_secs(3);
/// Time for which a member must confirm records after its disk hung, before the primary counts it
/// again. A disk that hung once often hangs again soon. The time doubles with each failure of the
/// member, up to [`LONGEST_DAMPING`].
pub const HANG_DAMPING: Duration = Duration::from_secs(10);
/// Time for which a member that did not answer must confirm records, before the primary counts it
/// again. Applies from the second failure of the member on. After the first failure, the primary
/// counts the member as soon as the member has caught up.
pub const SILENCE_DAMPING: Duration = Duration::from_secs(2);
/// Maximum of [`HANG_DAMPING`] and [`SILENCE_DAMPING`] after several failures. During this time the
/// group has one member less. So a much longer time would do more harm than the drops that it
/// prevents.
pub const LONGEST_DAMPING: Duration = Duration::from_secs(60);
/// Time after the newest failure of a member after which the primary forgets the earlier failures.
pub const FAILURES_FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
/// Time between two confirmations of a member above which the member does not count as steady. The
/// primary sends a request to each member that follows its log, at least every [`LEASE_RENEWAL`].
pub const STEADY_GAP: Duration = Duration::from_secs(2);
/// Pause of the primary after a failed request to a member that does not serve, before it sends the
/// member another request. Also the pause between two requests to management for the same change of
/// a group.
pub const ABSENT_PAUSE: Duration = Duration::from_secs(1);
/// Time between two batches above which a member concludes that its own process was stopped. The
/// member then gives the other members their full time again before it treats them as silent.
pub const OWN_PAUSE: Duration = Duration::from_secs(1);
/// Number of subdirectories of a directory above which the target spreads its new subdirectories
/// over all metadata groups. Creating or removing a directory on another group takes three to six
/// times as long, because it needs a sync of the other group. So the limit is far above the size of
/// most directories.
pub const SPREAD_SUBDIRECTORIES: u32 = 20_000;

/// The limits that a simulation replaces by small values, so that its runs reach them often.
#[derive(Debug, Clone)]
pub struct Limits {
    /// By default [`NUMBER_RANGE`].
    pub number_range: u64,
    /// The limits of the removal of chunk files.
    pub removals: RemovalLimits,
    /// By default [`CLOSES_PER_BATCH`].
    pub closes_per_batch: usize,
    /// By default [`MAX_PARKED`].
    pub parked: usize,
    /// By default [`ENDS_PER_BATCH`].
    pub ends_per_batch: usize,
    /// By default [`RECORD_BYTES`].
    pub record_bytes: usize,
    /// By default [`OPERATION_BYTES`].
    pub operation_bytes: usize,
    /// By default [`CHECKPOINT_LOG_BYTES`].
    pub checkpoint_log_bytes: u64,
    /// By default [`SPREAD_SUBDIRECTORIES`].
    pub spread_subdirectories: u32,
    /// By default [`MAX_FILE_LOCKS`].
    pub file_locks: usize,
    /// By default [`MAX_LOCK_WAITS`].
    pub lock_waits: usize,
    /// Number of key-value pairs that a scan reads from the store in one call.
    pub scan_page: usize,
    /// By default [`SETTLE_AFTER`].
    pub settle_after: Duration,
    /// The limits of the replication between the members of a group.
    pub members: MemberLimits,
}

/// The limits of the removal of chunk files.
#[derive(Debug, Clone, Copy)]
pub struct RemovalLimits {
    /// Maximum number of chunk files in a removal request. By default [`REMOVALS_PER_MESSAGE`].
    pub per_message: usize,
    /// Time for which removals wait, so that one request contains many removals. By default
    /// [`REMOVAL_DELAY`].
    pub delay: Duration,
    /// Maximum number of chunk files in all removal queues. By default [`QUEUED_REMOVALS`].
    pub queued: usize,
}

impl Default for RemovalLimits {
    fn default() -> Self {
        Self { per_message: REMOVALS_PER_MESSAGE, delay: REMOVAL_DELAY, queued: QUEUED_REMOVALS }
    }
}

/// The limits of the replication between the members of a group.
#[derive(Debug, Clone)]
pub struct MemberLimits {
    /// The times of the leases, which replace the times in the settings of the cluster. By default
    /// `None`, which means that the settings apply.
    pub leases: Option<LeaseTimes>,
    /// By default [`COPY_PART_BYTES`].
    pub copy_part_bytes: usize,
    /// By default [`KEPT_FOR_ABSENT_BYTES`].
    pub kept_for_absent_bytes: usize,
}

impl MemberLimits {
    /// Returns the times of the leases in a group of several members.
    pub fn lease_times(&self, map: &ClusterMap) -> LeaseTimes {
        self.leases.unwrap_or_else(|| LeaseTimes::of(&map.policy))
    }
}

impl Default for MemberLimits {
    fn default() -> Self {
        Self {
            leases: None,
            copy_part_bytes: COPY_PART_BYTES,
            kept_for_absent_bytes: KEPT_FOR_ABSENT_BYTES,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            number_range: NUMBER_RANGE,
            removals: RemovalLimits::default(),
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
            members: MemberLimits::default(),
        }
    }
}
