//! Limits of the protocol, each with its reason.

/// Longest body: a cluster map of 1,000 servers with 12 targets each takes about 3 MiB.
pub const MAX_BODY_BYTES: usize = 16 << 20;
/// Most bulk data in one frame: the largest chunk piece of one request.
pub const MAX_DATA_BYTES: usize = 4 << 20;
/// Longest symbolic link, as `PATH_MAX` without its zero byte.
pub const MAX_SYMLINK_BYTES: usize = 4095;
/// Longest value of an extended attribute, as in the kernel (`XATTR_SIZE_MAX`).
pub const MAX_XATTR_VALUE_BYTES: usize = 64 << 10;
/// Longest name of an extended attribute, as in the kernel (`XATTR_NAME_MAX`).
pub const MAX_XATTR_NAME_BYTES: usize = 255;
/// Most bytes of all names of one inode's extended attributes (`XATTR_LIST_MAX`).
pub const MAX_XATTR_LIST_BYTES: usize = 64 << 10;
/// Most hard links of an inode, so that the count never overflows.
pub const MAX_LINKS: u32 = 1 << 31;
/// Most bytes of entries in one reply to `ReadDirectory`.
pub const MAX_DIRECTORY_BYTES: u32 = 1 << 20;
/// Most slots of a session at one metadata target: bounds the replies that the target stores.
pub const MAX_SLOTS: u32 = 1024;
/// Most opens in one `CloseMany`: bounds a transaction, so that it does not delay others.
pub const MAX_CLOSES: usize = 256;
/// Most inodes in one `WhichExist`.
pub const MAX_INODES_ASKED: usize = 4096;
/// Number of its starts that a metadata target remembers, and most marks in one `SyncInline`. An
/// unsynced write of an older start counts as lost.
pub const MAX_EPOCHS: usize = 64;
/// Most locked ranges of one owner on one file: each change writes all of them.
pub const MAX_LOCK_RANGES: usize = 1024;
/// End of the lockable range: the last byte of the longest file is before it.
pub const LOCK_END: u64 = 1 << 63;
/// Most files in one `LockList`.
pub const MAX_LISTED_USES: usize = 256;
/// Most ranges, and most waits, of each file in one `LockList`.
pub const MAX_LISTED_LOCKS: usize = 256;
/// Approximate number of waits in one `WaitList`. All waits of an owner are in the same list.
pub const MAX_LISTED_WAITS: usize = 256;
/// Most waits of one owner, and most holders of each, in a `WaitList`.
pub const MAX_LISTED_HOLDERS: usize = 64;
/// Most clients in one `ClientList`.
pub const MAX_LISTED_CLIENTS: usize = 1024;
/// Most sessions in one `SessionList`.
pub const MAX_LISTED_SESSIONS: usize = 256;
/// Largest count of a session's open files in a `SessionList`.
pub const MAX_COUNTED_OPENS: usize = 4096;
/// Most notifications in one `Notifications`, and most that a client processes at a time.
pub const MAX_NOTIFICATIONS: usize = 1024;
/// Longest deadline that a request may carry.
pub const MAX_TIME_LEFT_MS: u32 = 3_600_000;
