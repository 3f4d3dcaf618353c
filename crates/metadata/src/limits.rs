//! Limits of a metadata target, each with its reason.

use std::time::Duration;

/// How old a change gets at most before it is on the device under `metadata.sync = interval`, on a
/// device that takes at most [`SYNC_AFTER`] for a sync.
pub const SYNC_INTERVAL: Duration = Duration::from_millis(10);
/// How old a change gets before a sync begins. It may find one under way that has just begun, and
/// then takes one as long: half the interval for each. On a slower device changes get as old as two
/// syncs take.
pub const SYNC_AFTER: Duration = Duration::from_millis(5);
/// Numbers (inodes, transactions) reserved at once. What a crash wastes of 2^48 is nothing; the
/// reservation costs one log record for so many creates.
pub const NUMBER_RANGE: u64 = 65_536;
/// Chunk files that one message asks a storage target to remove.
pub const REMOVALS_PER_MESSAGE: usize = 256;
/// Open files closed in one transaction when a session ends, so that the batch stays small.
pub const CLOSES_PER_BATCH: usize = 256;
/// Bytes of changes after which such a transaction ends early: a file has up to a thousand chunk
/// files and thousands of extended attributes that go with it.
pub const CLOSE_BYTES: usize = 256 << 10;
/// Files whose size is being found out at the same time.
pub const SIZE_RECOVERIES_AT_ONCE: usize = 16;
/// First pause of an operation that another transaction is in the way of.
pub const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// How often an operation looks again when what a name led to is gone. Each time somebody must have
/// changed the name in between, so a few times are enough unless the store is damaged.
pub const MAX_DOUBTS: u32 = 16;
/// Longest such pause.
pub const LONGEST_PAUSE: Duration = Duration::from_millis(64);
/// Longest time that a target waits for something to happen.
pub const LONGEST_WAIT: Duration = Duration::from_millis(250);
/// A prepared transaction older than this makes the participant ask the coordinator.
pub const ASK_AFTER: Duration = Duration::from_secs(1);
/// Pause after which what another group has refused (a removal, a question, a decision) is tried
/// again.
pub const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// How long it is remembered that another group's transaction or a session has ended: longer than
/// any message can be under way.
pub const END_KEPT_SECONDS: i64 = 600;
/// Between two searches for such ends that may be forgotten.
pub const FORGET_EVERY: Duration = Duration::from_secs(60);
/// Ends that such a search looks at in one batch: hundreds of thousands may be remembered.
pub const ENDS_PER_BATCH: usize = 1000;
/// Operations that wait for something at the same time; above it changes that clients ask for are
/// refused with `LimitReached`.
pub const MAX_PARKED: usize = 100_000;
/// So many more may wait before other requests are refused too: those of transactions between
/// targets, for which some of the waiting may be waiting.
pub const PARKED_RESERVE: usize = 100_000;
/// Connections that get the answer of one request. A client gives a connection up before it repeats
/// a request on the next one, so only the last few can still be in use.
pub const MAX_REPETITIONS: usize = 8;
/// Slots that a session gets at most.
pub const MAX_SLOTS: u32 = skep_wire::limits::MAX_SLOTS;
/// Bytes at which a log record is ended and the operations of the batch go on in the next one. Far
/// below what a reader takes for damage, and enough for hundreds of operations.
pub const RECORD_BYTES: usize = 4 << 20;
/// Bytes that one operation may change. All of it is in one log record, so that it happens as a
/// whole or not at all; a larger one is refused before anything of it is done. Ten times what the
/// removal of a file with as many chunk files and extended attributes as there can be takes.
pub const OPERATION_BYTES: usize = 32 << 20;
const _: () = assert!(OPERATION_BYTES < skep_format::log::MAX_PAYLOAD_BYTES);
/// Steps that one promise may have: a rename needs three at one group. What is promised must fit
/// into one log record when it is kept, since then it is too late to refuse it.
pub const MAX_STEPS: usize = 8;
/// Bytes of log after which a checkpoint is made.
pub const CHECKPOINT_LOG_BYTES: u64 = 64 << 20;
/// Bytes that the key-value store's journal takes until it begins another: the records of one table
/// in memory.
pub const JOURNAL_BYTES: u64 = 64 << 20;
/// Room that a target keeps on its disk for what frees and ends things: what adds something is
/// refused when less is left. Log up to two checkpoints ([`CHECKPOINT_LOG_BYTES`]) with the
/// segments begun, two journals and two tables of the key-value store, and what that rewrites to
/// get rid of what was removed.
pub const RESERVE_BYTES: u64 = 512 << 20;
/// Of a small file system no more than one part in so many is kept.
pub const RESERVE_DIVISOR: u64 = 8;
/// Files that can still be made on a file system that has enough of them: segments and tables.
pub const RESERVE_INODES: u64 = 256;
/// How long a look at the space is good for.
pub const FREE_SPACE_VALID: Duration = LONGEST_WAIT;
/// Bytes of log after which it isn't any more.
pub const FREE_SPACE_LOG_BYTES: u64 = 4 << 20;
/// With less than this free, a failure of log or store is put down to the full disk.
pub const FULL_BYTES: u64 = 64 << 20;
/// Locked ranges that a target keeps: about 100 bytes each in memory.
pub const MAX_FILE_LOCKS: usize = 1 << 20;
/// Requests for locks that wait on a target.
pub const MAX_LOCK_WAITS: usize = 100_000;
/// How long a request that waits for a lock is kept: it is asked again then, so that one whose
/// connection was lost without a sign isn't waited for.
pub const WAIT_ANSWER: Duration = Duration::from_secs(5);
/// How long nobody else gets what somebody was called for, and how long somebody who is to ask
/// again keeps his place: many times what a message takes.
pub const WAKE_RESERVATION: Duration = Duration::from_secs(1);
/// How many later ones may get a lock while somebody waits whom it keeps waiting, before nobody
/// may for a time.
pub const MAX_OVERTAKEN: u32 = 64;
/// How long nobody may the first time; each next time twice as long. Then those may whom it held
/// up: who waits for them may be the one whose lock is waited for.
pub const BARRIER: Duration = Duration::from_secs(1);
/// How long nobody may at most.
pub const LONGEST_BARRIER: Duration = Duration::from_secs(600);
/// Waits of a file that are looked at when something is released: those behind them ask again by
/// themselves.
pub const WAITERS_EXAMINED: usize = 1000;
/// Owners that a search for a cycle of waiting ones looks at.
pub const MAX_DEADLOCK_STEPS: usize = 10_000;
/// Opens that one `ListLocks` looks at.
pub const USES_LOOKED_AT: usize = 10_000;
/// Deepest directory that a rename may move something into.
pub const MAX_DEPTH: usize = 4096;
/// A directory with so many directories in it spreads new ones over all metadata groups.
pub const SPREAD_SUBDIRECTORIES: u32 = 1000;

/// The limits that a simulation draws small, so that it crosses them often.
#[derive(Debug, Clone)]
pub struct Limits {
    /// See [`NUMBER_RANGE`].
    pub number_range: u64,
    /// See [`REMOVALS_PER_MESSAGE`].
    pub removals_per_message: usize,
    /// See [`CLOSES_PER_BATCH`].
    pub closes_per_batch: usize,
    /// See [`MAX_PARKED`].
    pub parked: usize,
    /// See [`ENDS_PER_BATCH`].
    pub ends_per_batch: usize,
    /// See [`RECORD_BYTES`].
    pub record_bytes: usize,
    /// See [`OPERATION_BYTES`].
    pub operation_bytes: usize,
    /// See [`CHECKPOINT_LOG_BYTES`].
    pub checkpoint_log_bytes: u64,
    /// See [`SPREAD_SUBDIRECTORIES`].
    pub spread_subdirectories: u32,
    /// See [`MAX_FILE_LOCKS`].
    pub file_locks: usize,
    /// See [`MAX_LOCK_WAITS`].
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

/// Open files counted for one page of sessions: it must not hold up requests.
pub const OPENS_COUNTED: usize = 8192;
