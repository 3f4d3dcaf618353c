//! Bits of [`super::attributes::SetAttrIn::valid`].

/// `mode` is set.
pub(crate) const MODE: u32 = 1 << 0;
/// `uid` is set.
pub(crate) const UID: u32 = 1 << 1;
/// `gid` is set.
pub(crate) const GID: u32 = 1 << 2;
/// `size` is set.
pub(crate) const SIZE: u32 = 1 << 3;
/// `atime` is set.
pub(crate) const ATIME: u32 = 1 << 4;
/// `mtime` is set.
pub(crate) const MTIME: u32 = 1 << 5;
/// `handle` is set.
pub(crate) const HANDLE: u32 = 1 << 6;
/// `atime` is the present.
pub(crate) const ATIME_NOW: u32 = 1 << 7;
/// `mtime` is the present.
pub(crate) const MTIME_NOW: u32 = 1 << 8;
/// Clear set-user-id and set-group-id.
pub(crate) const KILL_SUIDGID: u32 = 1 << 11;
/// The bits for which the struct has a value.
pub(crate) const ALL_VALUES: u32 = MODE | UID | GID | SIZE | ATIME | MTIME;
