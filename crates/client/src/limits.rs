//! Limits and durations of the client, each with its reason.

use std::time::Duration;

/// Modifying requests that one thread has under way at one metadata target; further ones wait. A
/// thread's share of the kernel's queue is smaller.
pub(crate) const SLOTS_PER_WORKER: u32 = 64;
/// Chunk pieces that one thread has under way: bounds its own buffers and those of the servers.
pub(crate) const MAX_PIECES: usize = 128;
/// Longest piece of one message. Small enough that the pieces of a large range overlap on their
/// way, large enough that the message's cost doesn't show; a multiple of the granule.
pub(crate) const MAX_PIECE_BYTES: u64 = 1 << 20;
/// Most bytes that one copy request copies; the caller sends another for the rest. Large enough
/// that the number of requests doesn't show, small enough that a killed program ends soon.
pub(crate) const MAX_COPIED_BYTES: u64 = 64 << 20;
/// Most open handles of a mount, so that a leak ends with an error and not with the host's memory.
pub(crate) const MAX_HANDLES: usize = 1 << 20;
/// Most inodes that are closed but still have unsynced writes; a close beyond this limit syncs the
/// oldest. About 300 bytes each.
pub(crate) const MAX_CLOSED_UNSYNCED: usize = 1 << 16;
/// Most inodes whose cached version is remembered. 16 bytes each.
pub(crate) const MAX_REMEMBERED_VERSIONS: usize = 1 << 18;
/// Most directories and other special files whose attributes are remembered in case they are
/// removed while open. 140 bytes each.
pub(crate) const MAX_REMEMBERED_SPECIAL: usize = 1 << 14;
/// Most inodes whose lack of extended attributes is remembered. 32 bytes each.
pub(crate) const MAX_REMEMBERED_XATTR_ABSENCE: usize = 1 << 16;
/// How long that lack is relied on: as long as the kernel may keep attributes.
pub(crate) const XATTR_ABSENCE_VALID: Duration = Duration::from_secs(1);
/// Parts of the shared tables, each under its own mutex, so that threads seldom meet.
pub(crate) const TABLE_PARTS: usize = 64;
/// Handles that are opened again in parallel after a session was lost.
pub(crate) const REOPENS_AT_ONCE: usize = 16;

/// Inodes that `syncfs` syncs in parallel.
pub(crate) const INODES_AT_ONCE: usize = 32;

/// How old the size may be when a read reaches the end of the file.
pub(crate) const SIZE_TRUSTED_FOR: Duration = Duration::from_secs(1);
/// How long a starting mount waits for metadata before it serves without having seen the root.
pub(crate) const FIRST_LOOK_PATIENCE: Duration = Duration::from_secs(10);
/// How long metadata may take to reply about the root before the mount shows what it last saw.
pub(crate) const ROOT_PATIENCE: Duration = Duration::from_secs(1);
/// How long a program waits for a lock before the mount searches for a deadlock cycle over several
/// metadata targets: few waits last longer.
pub(crate) const DEADLOCK_SEARCH_AFTER: Duration = Duration::from_secs(1);
/// How long that search may take; a search that takes longer is repeated later.
pub(crate) const DEADLOCK_SEARCH_TIMEOUT: Duration = Duration::from_secs(1);
/// How long other waits of the mount use the result of a search.
pub(crate) const DEADLOCK_SEARCH_MAX_AGE: Duration = Duration::from_secs(3);
/// About how many lock waits one search takes into account.
pub(crate) const MAX_DEADLOCK_WAITS: usize = 100_000;
/// Pause between checks whether another thread has finished a truncation or the renewal of a
/// session. Threads have no way to wake each other here, and such waits are rare.
pub(crate) const CONTENTION_PAUSE: Duration = Duration::from_millis(1);
/// How long a close without a report waits for others to be sent with it. Short enough that users
/// see the space of a file that was unlinked while open become free at once.
pub(crate) const CLOSE_DELAY: Duration = Duration::from_millis(5);
/// How long the setting of a stripe pattern waits for such deferred closes of the file.
pub(crate) const DEFERRED_CLOSE_WAIT: Duration = Duration::from_secs(1);
/// How long the setting of a stripe pattern, and the handling of a sharing notification, wait for a
/// close that the kernel has not passed on or that is not sent yet: several times [`CLOSE_DELAY`].
pub(crate) const KERNEL_CLOSE_WAIT: Duration = Duration::from_millis(50);
/// Notifications that are noted for opens under way. An open during which more arrive counts as
/// notified. 16 bytes each.
pub(crate) const MAX_NOTED_NOTIFICATIONS: usize = 4096;
/// How long a write goes on after its caller was killed. Servers that reply have finished it by
/// then; while others are down, the killed program must be able to end.
pub(crate) const WRITE_GRACE: Duration = Duration::from_secs(1);
/// How long management may hold a request for the map.
pub(crate) const MAP_POLL: Duration = Duration::from_secs(20);
/// Pause between checks whether all storage targets have reported their capacity to management.
pub(crate) const CAPACITY_POLL: Duration = Duration::from_millis(20);
/// Pause after management couldn't be reached.
pub(crate) const MANAGEMENT_PAUSE: Duration = Duration::from_millis(250);
/// Longest pause between attempts of a starting mount; the pause doubles up to it. Management may
/// be down for long, and all hosts of a cluster may wait for it after a power loss.
pub(crate) const LONGEST_MANAGEMENT_PAUSE: Duration = Duration::from_secs(1);
/// Longest wait for management's reply to any request but one for the map.
pub(crate) const MANAGEMENT_PATIENCE: Duration = Duration::from_secs(5);
/// Longest wait for servers at unmount; sessions that are still open then end with their leases.
pub(crate) const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(3);
