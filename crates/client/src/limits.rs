//! Limits and spans of the client, each with its reason.

use std::time::Duration;

/// Modifying requests that one thread has under way at one metadata target; more wait. A thread's
/// share of the kernel's queue is smaller.
pub(crate) const SLOTS_PER_WORKER: u32 = 64;
/// Chunk pieces that one thread has under way: bounds its buffers and what it makes servers hold.
pub(crate) const MAX_PIECES: usize = 128;
/// Longest piece of one message. Small enough that the pieces of a large range overlap on their
/// way, large enough that the message's cost doesn't show; a multiple of the granule.
pub(crate) const MAX_PIECE_BYTES: u64 = 1 << 20;
/// Most bytes that one request to copy does; the caller asks again for the rest. Large enough that
/// asking doesn't show, small enough that one who was killed goes soon.
pub(crate) const MAX_COPIED_BYTES: u64 = 64 << 20;
/// Most open handles of a mount, so that a leak ends with an error and not with the host's memory.
pub(crate) const MAX_HANDLES: usize = 1 << 20;
/// Most inodes that are closed but still have writes that nobody synced; a close beyond it syncs
/// the oldest. About 300 bytes each.
pub(crate) const MAX_CLOSED_UNSYNCED: usize = 1 << 16;
/// Most inodes of whose caches is remembered which version they hold. 16 bytes each.
pub(crate) const MAX_REMEMBERED_VERSIONS: usize = 1 << 18;
/// Most directories and other special files whose attributes are remembered for when they are
/// removed. 140 bytes each.
pub(crate) const MAX_REMEMBERED_SPECIAL: usize = 1 << 14;
/// Most inodes of which is remembered that they have no `security.capability`. 32 bytes each.
pub(crate) const MAX_REMEMBERED_XATTR_ABSENCE: usize = 1 << 16;
/// For how long: as long as the kernel may keep attributes.
pub(crate) const XATTR_ABSENCE_VALID: Duration = Duration::from_secs(1);
/// Parts of the shared tables, each under its own mutex, so that threads seldom meet.
pub(crate) const TABLE_PARTS: usize = 64;
/// Handles that are opened again at once when a session was lost.
pub(crate) const REOPENS_AT_ONCE: usize = 16;

/// Inodes that `syncfs` works on at once.
pub(crate) const INODES_AT_ONCE: usize = 32;

/// How old a size may be when a read comes to the end of the file.
pub(crate) const SIZE_TRUSTED_FOR: Duration = Duration::from_secs(1);
/// How long a mount that begins waits for metadata before it serves all the same.
pub(crate) const FIRST_LOOK_PATIENCE: Duration = Duration::from_secs(10);
/// How long metadata may take to tell of the root before what was last seen is shown.
pub(crate) const ROOT_PATIENCE: Duration = Duration::from_secs(1);
/// How long a program waits for a lock until it is looked whether that is for itself in the end, on
/// another metadata target: few waits last so long.
pub(crate) const DEADLOCK_SEARCH_AFTER: Duration = Duration::from_secs(1);
/// How long it may take until all metadata targets were asked; then it is tried again later.
pub(crate) const DEADLOCK_SEARCH_TIMEOUT: Duration = Duration::from_secs(1);
/// What was found counts for other waits of the mount for so long.
pub(crate) const DEADLOCK_SEARCH_MAX_AGE: Duration = Duration::from_secs(3);
/// Among about so many waits a cycle is looked for.
pub(crate) const MAX_DEADLOCK_WAITS: usize = 100_000;
/// Pause while another thread finishes what must be finished first (a truncation, the renewal of a
/// session). Threads have no way to wake each other here, and this is rare.
pub(crate) const CONTENTION_PAUSE: Duration = Duration::from_millis(1);
/// How long a close that has nothing to tell waits for others to go with it. Short enough that the
/// space of a file that was unlinked while open comes back as if at once.
pub(crate) const CLOSE_DELAY: Duration = Duration::from_millis(5);
/// How long the setting of a stripe pattern waits for such closes of the file.
pub(crate) const DEFERRED_CLOSE_WAIT: Duration = Duration::from_secs(1);
/// How long somebody who wants to open a file, or to set its stripe pattern, waits for a close here
/// that is on its way: several times [`CLOSE_DELAY`].
pub(crate) const KERNEL_CLOSE_WAIT: Duration = Duration::from_millis(50);
/// Notifications that are noted for opens under way: one that takes longer than so many others counts as
/// notified. 16 bytes each.
pub(crate) const MAX_NOTED_NOTIFICATIONS: usize = 4096;
/// How long a write goes on whose caller was killed: servers that answer have done it by then, and
/// with others the caller must be able to go.
pub(crate) const WRITE_GRACE: Duration = Duration::from_secs(1);
/// How long management may hold a request for the map.
pub(crate) const MAP_POLL: Duration = Duration::from_secs(20);
/// Pause between looks for the space of which management has yet to hear.
pub(crate) const CAPACITY_POLL: Duration = Duration::from_millis(20);
/// Pause after management couldn't be reached.
pub(crate) const MANAGEMENT_PAUSE: Duration = Duration::from_millis(250);
/// Longest pause of a mount that begins, which doubles: management may be away for long, and all
/// hosts of a cluster may wait for it after a power loss.
pub(crate) const LONGEST_MANAGEMENT_PAUSE: Duration = Duration::from_secs(1);
/// Longest wait for management's answer to anything but a request for the map.
pub(crate) const MANAGEMENT_PATIENCE: Duration = Duration::from_secs(5);
/// Longest wait for servers at unmount; what they still hold ends with the lease.
pub(crate) const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(3);
