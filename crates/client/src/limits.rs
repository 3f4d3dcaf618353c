//! Limits and durations of the client, each with its reason.

use std::time::Duration;

/// Maximum number of requests for changes that one thread has in flight at one metadata group;
/// further requests wait. The limit is larger than a thread's share of the kernel's request queue.
pub(crate) const SLOTS_PER_WORKER: u32 = 64;
/// Maximum number of chunk pieces that one thread has in flight. Limits the memory for buffers of
/// the thread and of the servers.
pub(crate) const MAX_PIECES: usize = 128;
/// Maximum length of the piece in one message; a multiple of the granule size. With this limit, the
/// pieces of a large range are transferred in parallel, and the cost of each message is still
/// negligible.
pub(crate) const MAX_PIECE_BYTES: u64 = 1 << 20;
/// Maximum number of bytes that one copy request copies; the caller sends another request for the
/// rest. The limit is large enough that the cost of a request is negligible, and small enough that
/// a killed program ends soon.
pub(crate) const MAX_COPIED_BYTES: u64 = 64 << 20;
/// Maximum number of open handles of a mount. A program that leaks handles gets an error before the
/// host runs out of memory.
pub(crate) const MAX_HANDLES: usize = 1 << 20;
/// Largest size of a file whose bytes an open requests in its reply. A larger reply would take
/// longer than the request that it saves.
pub(crate) const MAX_OPENED_FILE_BYTES: u32 = 16 << 10;
/// Maximum number of bytes from replies to opens that a mount keeps for handles that have not read
/// them yet. Most programs read a file as soon as they have opened it, so this limit is enough for
/// thousands of programs.
pub(crate) const MAX_OPENED_BYTES: usize = 32 << 20;
/// Maximum number of closed inodes with unsynced writes. A close beyond this limit syncs the inode
/// that was closed first. Each inode takes about 300 bytes.
pub(crate) const MAX_CLOSED_UNSYNCED: usize = 1 << 16;
/// Maximum number of inodes whose cached version the mount records. Each inode takes 16 bytes.
pub(crate) const MAX_REMEMBERED_VERSIONS: usize = 1 << 18;
/// Maximum number of directories and special files whose attributes the mount records. The mount
/// needs the attributes if a program still has a removed directory or special file open. Each inode
/// takes 140 bytes.
pub(crate) const MAX_REMEMBERED_SPECIAL: usize = 1 << 14;
/// Maximum number of names whose inode the mount remembers because the inode is at another metadata
/// group than the directory. Without such a hint, a lookup takes two requests one after the other.
/// Each name takes 32 bytes.
pub(crate) const MAX_NAME_HINTS: usize = 1 << 16;
/// Maximum number of inodes in the table of inodes without extended attributes. Each inode takes 32
/// bytes.
pub(crate) const MAX_REMEMBERED_XATTR_ABSENCE: usize = 1 << 16;
/// Number of parts of each shared table. Each part has its own mutex, so that threads seldom
/// contend.
pub(crate) const TABLE_PARTS: usize = 64;
/// Maximum number of handles that the mount opens again in parallel after a session was lost.
pub(crate) const REOPENS_AT_ONCE: usize = 16;

/// Maximum number of inodes that `syncfs` syncs in parallel.
pub(crate) const INODES_AT_ONCE: usize = 32;

/// Maximum age of a cached file size when a read reaches beyond the end of the file. If the cached
/// size is older than this limit, the client requests the size again.
pub(crate) const SIZE_TRUSTED_FOR: Duration = Duration::from_secs(1);
/// Time from the reply to a change until a metadata target has surely synced the change. A target
/// begins a sync of its log at most 10 ms after a change. A disk whose sync takes longer than this
/// time has failed.
pub(crate) const SYNCED_AFTER: Duration = Duration::from_secs(30);
/// How long a starting mount waits for the attributes of the root. After that time, the mount
/// serves requests without these attributes.
pub(crate) const FIRST_LOOK_PATIENCE: Duration = Duration::from_secs(10);
/// How long the mount waits for metadata when a program reads the root's attributes. After that
/// time it returns the attributes that it saw last.
pub(crate) const ROOT_PATIENCE: Duration = Duration::from_secs(1);
/// How long a program waits for a lock before the mount searches for a deadlock cycle over several
/// metadata targets. Few lock waits last longer than this time.
pub(crate) const DEADLOCK_SEARCH_AFTER: Duration = Duration::from_secs(1);
/// Maximum duration of a search for a deadlock cycle. The client cancels a longer search, and
/// repeats it later.
pub(crate) const DEADLOCK_SEARCH_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for which all lock waiters of the mount use the result of one search for a deadlock cycle.
pub(crate) const DEADLOCK_SEARCH_MAX_AGE: Duration = Duration::from_secs(3);
/// Approximate maximum number of lock waits that a search for a deadlock cycle reads.
pub(crate) const MAX_DEADLOCK_WAITS: usize = 100_000;
/// Number of syncs of a new file that had unsynced bytes both at metadata and at storage. The next
/// such sync moves the inline bytes to storage. The move takes three requests more than a sync. The
/// inline bytes of a journal that is written, synced twice and removed must not move.
pub(crate) const MOVE_AFTER_SYNCS: u32 = 2;
/// How long a deferred close waits, so that it can be sent with other closes in one message. The
/// space of a removed file is freed after its last close, and this delay is too short for users to
/// notice.
pub(crate) const CLOSE_DELAY: Duration = Duration::from_millis(5);
/// Time from an `fsync` to the report of the times to metadata, if nothing else has changed.
/// Shorter than the time for which other mounts cache attributes. Long enough that a database with
/// many syncs causes few requests to metadata.
pub(crate) const TIMES_DELAY: Duration = Duration::from_millis(100);
/// A client that sets a stripe pattern first waits until metadata has acknowledged the deferred
/// closes of the file. This constant is the maximum duration of the wait.
pub(crate) const DEFERRED_CLOSE_WAIT: Duration = Duration::from_secs(1);
/// Before a client sets a stripe pattern, handles a sharing notification or compares its opens with
/// metadata, it waits for closes that the kernel or this mount has not sent yet. This constant is
/// the maximum duration of the wait, and several times [`CLOSE_DELAY`].
pub(crate) const KERNEL_CLOSE_WAIT: Duration = Duration::from_millis(50);
/// How long the acknowledgement of a sharing notification waits for the renewal of this mount's
/// session, if the file was shared before. Afterwards the acknowledgement waits for the report of
/// this mount's writes. If metadata already has the size of the file and lacks only the times, this
/// wait also takes at most this time. The renewal and the report take a few milliseconds each,
/// unless they wait for other mounts. For example, metadata executes no report after a power loss
/// before all mounts have replayed their changes. The open of the other mount, which waits for the
/// acknowledgement, may be one of these changes.
pub(crate) const SHARED_REPORT_WAIT: Duration = Duration::from_secs(2);
/// Maximum length of two lists of a mount: the newest sharing notifications, and its own newest
/// changes to files without a recorded state. If more elements than this limit arrive during an
/// open, the mount treats the opened file as shared. Each record takes 16 bytes.
pub(crate) const MAX_RECENT_FILES: usize = 4096;
/// Maximum number of acknowledged changes at a metadata group that a mount keeps because they may
/// not be durable. When the mount has reached half of this number, it lets the group sync in the
/// background. At this number, it sends further changes with the durable flag. Each change takes
/// about 400 bytes besides its body.
pub(crate) const MAX_ACKNOWLEDGED: usize = 4096;
/// Maximum total length of the bodies of the changes that [`MAX_ACKNOWLEDGED`] limits, in bytes.
/// This limit has the same effects as the limit of the number of changes. An inline write of 16 KiB
/// has a body of 16,422 bytes. So the background sync begins after 128 such writes, and the limit
/// is reached after 256. Computed, not measured: if a program writes such a file in 0.4 ms, it
/// fills the second half in 51 ms, and seldom waits for the background sync. Twenty such programs
/// fill it in 2.6 ms, and may wait.
pub(crate) const MAX_ACKNOWLEDGED_BYTES: usize = 4 << 20;
/// Maximum number of marks of unsynced inline writes that the mount keeps for each inode; more than
/// `MAX_STARTS`. Beyond this limit, the mount assigns the oldest writes to the next higher mark.
/// The limit is enough for the writes to one file in the 10 ms between two syncs of a metadata
/// target. Each mark takes 24 bytes.
pub(crate) const MAX_INLINE_MARKS: usize = 256;
/// Maximum number of inodes with changes that a power loss of metadata has reverted. The mount
/// remembers these inodes until a program has got an error. For further inodes, only the log and
/// `fsync` report the reverted changes.
pub(crate) const MAX_REVERTED_INODES: usize = 4096;
/// Maximum number of times that the client looks up a name in one operation because the inode of
/// the name was removed between two requests. Each further lookup is necessary only if other
/// clients replace the file again in less than the time of two requests.
pub(crate) const MAX_LOOKUPS: u32 = 16;
/// Maximum number of times that a client compares its opens with the opens of a target after a new
/// start of the target. The client stops when no open is missing.
pub(crate) const OPEN_COMPARISONS: usize = 4;
/// Time for which a write continues after its program was killed. If all servers reply, the write
/// completes within this time. If a server is down, the program ends after this time.
pub(crate) const WRITE_GRACE: Duration = Duration::from_secs(1);
/// Pause between two checks whether all storage targets have reported their capacity to management.
pub(crate) const CAPACITY_POLL: Duration = Duration::from_millis(20);
/// Pause after a failed attempt to wait for sharing notifications.
pub(crate) const NOTIFICATIONS_PAUSE: Duration = Duration::from_millis(250);
/// How long an unmount waits for servers. Sessions that are still open afterwards end when their
/// leases run out.
pub(crate) const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(3);
