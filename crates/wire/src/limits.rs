//! Limits of the protocol, each with its reason.

/// Longest body: a cluster map of 1,000 servers with 12 targets each takes about 3 MiB.
pub const MAX_BODY_BYTES: usize = 16 << 20;
/// Most bulk data in one frame: the largest chunk piece that a client sends or asks for at once.
pub const MAX_DATA_BYTES: usize = 4 << 20;
/// Longest symbolic link, as `PATH_MAX` without its zero byte.
pub const MAX_SYMLINK_BYTES: usize = 4095;
/// Longest value of an extended attribute, as in the kernel (`XATTR_SIZE_MAX`).
pub const MAX_XATTR_VALUE_BYTES: usize = 64 << 10;
/// Longest name of an extended attribute, as in the kernel (`XATTR_NAME_MAX`).
pub const MAX_XATTR_NAME_BYTES: usize = 255;
/// Most bytes of names that one inode's extended attributes have together (`XATTR_LIST_MAX`).
pub const MAX_XATTR_LIST_BYTES: usize = 64 << 10;
/// Most hard links of an inode, so that the count never overflows.
pub const MAX_LINKS: u32 = 1 << 31;
/// Most bytes of entries in one reply to `ReadDirectory`.
pub const MAX_DIRECTORY_BYTES: u32 = 1 << 20;
/// Most slots that a session gets on one metadata target: bounds what the target keeps for it.
pub const MAX_SLOTS: u32 = 1024;
/// Most opens ended by one `CloseMany`: a transaction that doesn't hold up the others.
pub const MAX_CLOSES: usize = 256;
/// Most inodes asked about in one `WhichExist`.
pub const MAX_INODES_ASKED: usize = 4096;
/// Starts of a metadata target that it remembers, and most marks in one `SyncInline`: a write of an
/// older start that nobody synced counts as lost.
pub const MAX_EPOCHS: usize = 64;
/// Locked ranges that one owner has on one file at most: each change writes all of them.
pub const MAX_LOCK_RANGES: usize = 1024;
/// End of what can be locked: the last byte that a file can have is before it.
pub const LOCK_END: u64 = 1 << 63;
/// Most files in one `LockList`, and most ranges and waits of each.
pub const MAX_LISTED_USES: usize = 256;
/// See [`MAX_LISTED_USES`].
pub const MAX_LISTED_LOCKS: usize = 256;
/// About as many waits are in one `WaitList`: all of an owner are in the same.
pub const MAX_LISTED_WAITS: usize = 256;
/// Most waits of one owner, and most holders of each, in a `WaitList`.
pub const MAX_LISTED_HOLDERS: usize = 64;
/// Most clients in one `ClientList`.
pub const MAX_LISTED_CLIENTS: usize = 1024;
/// Most sessions in one `SessionList`.
pub const MAX_LISTED_SESSIONS: usize = 256;
/// Up to here the open files of a session are counted in a `SessionList`.
pub const MAX_COUNTED_OPENS: usize = 4096;
/// Most notifications in one `Notifications`, and most that a client is at.
pub const MAX_NOTIFICATIONS: usize = 1024;
/// Longest deadline that a request may carry.
pub const MAX_TIME_LEFT_MS: u32 = 3_600_000;
