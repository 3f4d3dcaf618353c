//! The parts of requests that have many.

use skep_client::{Allocation, FileLock, HandleId, NewInode, OpenMode, XattrMode};
use skep_env::Buf;
use skep_types::InodeId;
use std::ops::Range;

/// How a program wants an inode's flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlagsForm {
    /// As one number.
    Number,
    /// As a `struct fsxattr`, with the project.
    FsXattr,
}

/// The parts of a rename.
#[derive(Debug)]
pub(crate) struct Rename {
    pub(crate) from_directory: InodeId,
    pub(crate) from_name: Vec<u8>,
    pub(crate) to_directory: InodeId,
    pub(crate) to_name: Vec<u8>,
    pub(crate) kind: RenameKind,
    /// What is left at the old name.
    pub(crate) whiteout: Option<NewInode>,
}

/// What becomes of what has the new name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RenameKind {
    /// It is replaced.
    Replace,
    /// It makes the rename fail.
    OnlyIfFree,
    /// It gets the old name.
    Exchange,
}

/// The parts of an open.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) inode: InodeId,
    pub(crate) mode: OpenMode,
    pub(crate) truncate: bool,
    /// With `O_APPEND`.
    pub(crate) appends: bool,
    /// With `O_SYNC` or `O_DSYNC`.
    pub(crate) is_synced: bool,
    pub(crate) kill_privileges: bool,
}

/// The parts of a read.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) handle: HandleId,
    pub(crate) offset: u64,
    pub(crate) into: Buf,
    /// With `O_DIRECT`: the kernel keeps none of it.
    pub(crate) is_direct: bool,
}

/// The parts of a write.
#[derive(Debug)]
pub(crate) struct Write {
    pub(crate) inode: InodeId,
    pub(crate) handle: HandleId,
    pub(crate) offset: u64,
    pub(crate) data: Buf,
    /// The descriptor was opened with `O_APPEND`: the kernel's idea of the end may be old.
    pub(crate) appends: bool,
    /// With `O_DIRECT`, and not what the page cache writes back.
    pub(crate) is_direct: bool,
    /// The descriptor was opened with `O_SYNC` or `O_DSYNC`.
    pub(crate) is_synced: bool,
    pub(crate) kill_privileges: bool,
}

/// The parts of an allocation, whether of space or of a hole.
#[derive(Debug)]
pub(crate) struct Allocate {
    pub(crate) inode: InodeId,
    pub(crate) handle: HandleId,
    pub(crate) range: Range<u64>,
    pub(crate) what: Allocation,
    pub(crate) keeps_size: bool,
    pub(crate) uid: u32,
}

/// The parts of a copy.
#[derive(Debug)]
pub(crate) struct Copy {
    pub(crate) from: (HandleId, u64),
    pub(crate) inode: InodeId,
    pub(crate) to: (HandleId, u64),
    pub(crate) length: u64,
    pub(crate) uid: u32,
    /// How many bytes were copied is told as a number of 64 bits.
    pub(crate) is_long: bool,
}

/// A lock, and the handle through which it is set or tested.
#[derive(Debug)]
pub(crate) struct Lock {
    pub(crate) inode: InodeId,
    pub(crate) handle: HandleId,
    pub(crate) lock: FileLock,
}

/// The parts of the setting of an extended attribute.
#[derive(Debug)]
pub(crate) struct XattrChange {
    pub(crate) inode: InodeId,
    pub(crate) name: Vec<u8>,
    pub(crate) value: Vec<u8>,
    pub(crate) mode: Option<XattrMode>,
    pub(crate) clear_set_group_id: bool,
    pub(crate) uid: u32,
}
