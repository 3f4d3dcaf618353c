//! Flags of `INIT`; those from bit 32 on travel in `flags2`.

/// Several reads of one file at once.
pub(crate) const ASYNC_READ: u64 = 1 << 0;
/// `GETLK`, `SETLK` and `SETLKW` exist.
pub(crate) const POSIX_LOCKS: u64 = 1 << 1;
/// `OPEN` cuts the file on `O_TRUNC` itself.
pub(crate) const ATOMIC_O_TRUNC: u64 = 1 << 3;
/// `.` and `..` can be looked up, for file handles of inodes that the kernel has forgotten.
pub(crate) const EXPORT_SUPPORT: u64 = 1 << 4;
/// Writes larger than a page.
pub(crate) const BIG_WRITES: u64 = 1 << 5;
/// `flock` comes by the same requests.
pub(crate) const FLOCK_LOCKS: u64 = 1 << 10;
/// The umask is left to the daemon.
pub(crate) const DONT_MASK: u64 = 1 << 6;
/// Cached pages are dropped when size or time of modification have changed.
pub(crate) const AUTO_INVAL_DATA: u64 = 1 << 12;
/// `READDIRPLUS` exists.
pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
/// The kernel chooses between `READDIR` and `READDIRPLUS`.
pub(crate) const READDIRPLUS_AUTO: u64 = 1 << 14;
/// Direct I/O in several requests at once.
pub(crate) const ASYNC_DIO: u64 = 1 << 15;
/// Lookups and listings of one directory at once.
pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
/// The kernel checks and remembers access control lists.
pub(crate) const POSIX_ACL: u64 = 1 << 20;
/// `max_pages` of the answer counts.
pub(crate) const MAX_PAGES: u64 = 1 << 22;
/// The daemon clears set-user-id and set-group-id bits when asked with a request.
pub(crate) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
/// `SETXATTR` has the long form.
pub(crate) const SETXATTR_EXT: u64 = 1 << 29;
/// `flags2` counts.
pub(crate) const INIT_EXT: u64 = 1 << 30;
/// Files whose I/O goes around the page cache can be mapped shared all the same.
pub(crate) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
/// Requests go through io_uring.
pub(crate) const OVER_IO_URING: u64 = 1 << 41;
