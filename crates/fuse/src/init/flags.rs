//! Flags of `INIT`. Bits from 32 on are sent in `flags2`.

/// The kernel may have several reads of one file in flight.
pub(crate) const ASYNC_READ: u64 = 1 << 0;
/// The daemon serves `GETLK`, `SETLK` and `SETLKW`.
pub(crate) const POSIX_LOCKS: u64 = 1 << 1;
/// The daemon truncates the file at `OPEN` with `O_TRUNC`.
pub(crate) const ATOMIC_O_TRUNC: u64 = 1 << 3;
/// The daemon serves lookups of `.` and `..`. The kernel sends these lookups when a program opens
/// an inode by a file handle (`open_by_handle_at(2)`) and the kernel no longer caches the inode.
pub(crate) const EXPORT_SUPPORT: u64 = 1 << 4;
/// Writes may be larger than a page.
pub(crate) const BIG_WRITES: u64 = 1 << 5;
/// The kernel sends `flock` locks in the requests of `POSIX_LOCKS` too.
pub(crate) const FLOCK_LOCKS: u64 = 1 << 10;
/// The daemon applies the umask.
pub(crate) const DONT_MASK: u64 = 1 << 6;
/// The kernel drops the cached pages of a file when its size or modification time has changed.
pub(crate) const AUTO_INVAL_DATA: u64 = 1 << 12;
/// The daemon serves `READDIRPLUS`.
pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
/// The kernel chooses between `READDIR` and `READDIRPLUS`.
pub(crate) const READDIRPLUS_AUTO: u64 = 1 << 14;
/// The kernel may have several requests of one direct read or write in flight.
pub(crate) const ASYNC_DIO: u64 = 1 << 15;
/// The kernel may have several lookups and listings of one directory in flight.
pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
/// The kernel checks and caches access control lists.
pub(crate) const POSIX_ACL: u64 = 1 << 20;
/// `max_pages` of the reply is valid.
pub(crate) const MAX_PAGES: u64 = 1 << 22;
/// The kernel caches the targets of symbolic links.
pub(crate) const CACHE_SYMLINKS: u64 = 1 << 23;
/// The daemon clears the set-user-id and set-group-id bits if the request has the flag for it.
pub(crate) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
/// The kernel sends the long form of `SETXATTR`.
pub(crate) const SETXATTR_EXT: u64 = 1 << 29;
/// `flags2` is valid.
pub(crate) const INIT_EXT: u64 = 1 << 30;
/// Programs may make shared mappings of files whose I/O bypasses the page cache.
pub(crate) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
/// The kernel sends requests through io_uring.
pub(crate) const OVER_IO_URING: u64 = 1 << 41;
