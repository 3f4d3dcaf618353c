//! Bits of [`super::attributes::SetAttrIn::valid`]: which values the struct contains.

/// The field `mode` has a value.
pub(crate) const MODE: u32 = 1 << 0;
/// `uid` has a value.
pub(crate) const UID: u32 = 1 << 1;
/// `gid` has a value.
pub(crate) const GID: u32 = 1 << 2;
/// `size` has a value.
pub(crate) const SIZE: u32 = 1 << 3;
/// `atime` has a value.
pub(crate) const ATIME: u32 = 1 << 4;
/// `mtime` has a value.
pub(crate) const MTIME: u32 = 1 << 5;
/// `handle` has a value.
pub(crate) const HANDLE: u32 = 1 << 6;
/// The daemon sets the access time to the current time.
pub(crate) const ATIME_NOW: u32 = 1 << 7;
/// The daemon sets the modification time to the current time.
pub(crate) const MTIME_NOW: u32 = 1 << 8;
/// The daemon clears the set-user-id and set-group-id bits.
pub(crate) const KILL_SUIDGID: u32 = 1 << 11;
/// All bits that stand for a value in the struct.
pub(crate) const ALL_VALUES: u32 = MODE | UID | GID | SIZE | ATIME | MTIME;
