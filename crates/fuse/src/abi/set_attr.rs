//! Bits of [`super::SetAttrIn::valid`].

/// `mode` is set.
pub const MODE: u32 = 1 << 0;
/// `uid` is set.
pub const UID: u32 = 1 << 1;
/// `gid` is set.
pub const GID: u32 = 1 << 2;
/// `size` is set.
pub const SIZE: u32 = 1 << 3;
/// `atime` is set.
pub const ATIME: u32 = 1 << 4;
/// `mtime` is set.
pub const MTIME: u32 = 1 << 5;
/// `handle` is set.
pub const HANDLE: u32 = 1 << 6;
/// `atime` is the present.
pub const ATIME_NOW: u32 = 1 << 7;
/// `mtime` is the present.
pub const MTIME_NOW: u32 = 1 << 8;
/// Clear set-user-id and set-group-id.
pub const KILL_SUIDGID: u32 = 1 << 11;
/// Those that say that a value is set.
pub const ALL_VALUES: u32 = MODE | UID | GID | SIZE | ATIME | MTIME;
