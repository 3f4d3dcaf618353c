//! Requests that open, sync and close files.
//!
//! Owns the kernel's argument structs of these requests and their parsing. `data` parses reads and
//! writes, and `locks` parses requests on locks. `ops::files` performs the operations.

use super::{RawRequest, has_flag, open_mode};
use crate::abi::Opcode;
use crate::following::EntryNames;
use skep_client::{CreateRequest, HandleId, NewInode, OpenMode};
use skep_types::codec::record;
use skep_types::{FileKind, InodeId};

/// Flag in [`OpenIn::open_flags`]: the daemon must clear the set-user-id and set-group-id bits.
pub(crate) const OPEN_KILL_SUIDGID: u32 = 1 << 0;

record! {
    /// `fuse_open_in`.
    pub struct OpenIn {
        pub flags: u32,
        pub open_flags: u32,
    }
}

record! {
    /// `fuse_create_in`.
    pub struct CreateIn {
        pub flags: u32,
        pub mode: u32,
        pub umask: u32,
        pub open_flags: u32,
    }
}

record! {
    /// `fuse_release_in`.
    pub struct ReleaseIn {
        pub handle: u64,
        pub flags: u32,
        pub release_flags: u32,
        pub lock_owner: u64,
    }
}

record! {
    /// `fuse_flush_in`.
    pub struct FlushIn {
        pub handle: u64,
        pub unused: u32,
        pub padding: u32,
        pub lock_owner: u64,
    }
}

record! {
    /// `fuse_fsync_in`.
    pub struct FsyncIn {
        pub handle: u64,
        pub fsync_flags: u32,
        pub padding: u32,
    }
}

/// A request that creates, opens, syncs or closes a file, or that syncs a directory or the whole
/// file system.
#[derive(Debug)]
pub(crate) enum FileRequest {
    Open(Open),
    Create { request: CreateRequest, is_exclusive: bool, appends: bool, is_synced: bool },
    CreateUnnamed { directory: InodeId, new: NewInode, mode: OpenMode, is_synced: bool },
    Flush { handle: HandleId, owner: u64 },
    Close { handle: HandleId },
    Fsync { handle: HandleId },
    SyncNames { directory: InodeId },
    SyncAll,
}

/// The arguments of an open.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) inode: InodeId,
    pub(crate) mode: OpenMode,
    pub(crate) truncate: bool,
    /// Whether the flags of the open contain `O_APPEND`.
    pub(crate) appends: bool,
    /// Whether the flags of the open contain `O_SYNC` or `O_DSYNC`.
    pub(crate) is_synced: bool,
    pub(crate) kill_privileges: bool,
}

impl FileRequest {
    pub(super) fn parse(opcode: Opcode, raw: &RawRequest) -> Result<Self, i32> {
        Ok(match opcode {
            Opcode::Open => {
                let arguments: OpenIn = raw.arguments()?;
                Self::Open(Open {
                    inode: raw.node(),
                    mode: open_mode(arguments.flags),
                    truncate: has_flag(arguments.flags, libc::O_TRUNC),
                    appends: has_flag(arguments.flags, libc::O_APPEND),
                    is_synced: has_flag(arguments.flags, libc::O_DSYNC),
                    kill_privileges: arguments.open_flags & OPEN_KILL_SUIDGID != 0,
                })
            }
            Opcode::Create => parse_create(raw)?,
            // The kernel sends an invented name, which the parser ignores.
            Opcode::TmpFile => {
                let arguments: CreateIn = raw.arguments()?;
                let new = raw.new_inode(arguments.mode, arguments.umask);
                let mode = open_mode(arguments.flags);
                let is_synced = has_flag(arguments.flags, libc::O_DSYNC);
                Self::CreateUnnamed { directory: raw.node(), new, mode, is_synced }
            }
            Opcode::Flush => {
                let arguments: FlushIn = raw.arguments()?;
                let handle = HandleId::new(arguments.handle);
                Self::Flush { handle, owner: arguments.lock_owner }
            }
            Opcode::Release => {
                let arguments: ReleaseIn = raw.arguments()?;
                Self::Close { handle: HandleId::new(arguments.handle) }
            }
            Opcode::Fsync => {
                let arguments: FsyncIn = raw.arguments()?;
                Self::Fsync { handle: HandleId::new(arguments.handle) }
            }
            Opcode::FsyncDir => Self::SyncNames { directory: raw.node() },
            Opcode::SyncFs => Self::SyncAll,
            other => other.is_of_another_family(),
        })
    }

    pub(super) fn names(&self) -> EntryNames {
        match self {
            Self::Create { request, .. } => {
                EntryNames { name: request.name.to_vec(), ..EntryNames::default() }
            }
            _ => EntryNames::default(),
        }
    }

    /// Whether the worker may drop the operation's future when the caller is killed. Never true,
    /// since each of these operations changes the session's opens or waits for a sync.
    pub(super) fn may_be_dropped(&self) -> bool {
        false
    }
}

fn parse_create(raw: &RawRequest) -> Result<FileRequest, i32> {
    let arguments: CreateIn = raw.arguments()?;
    Ok(FileRequest::Create {
        request: CreateRequest {
            directory: raw.node(),
            name: raw.name()?.into(),
            kind: FileKind::Regular,
            new: raw.new_inode(arguments.mode, arguments.umask),
            device: 0,
            exclusive: true,
            open: open_mode(arguments.flags),
            pattern: None,
        },
        is_exclusive: has_flag(arguments.flags, libc::O_EXCL),
        appends: has_flag(arguments.flags, libc::O_APPEND),
        is_synced: has_flag(arguments.flags, libc::O_DSYNC),
    })
}
