//! Requests on names: look up, create, remove, rename, link.
//!
//! Owns the kernel's argument structs of these requests and their parsing. `files` parses requests
//! that also open a file. `ops::names` performs the operations.

use super::{RawRequest, checked_name, inode, split_name};
use crate::abi::{Opcode, unpack_device};
use crate::following::EntryNames;
use skep_client::{CreateRequest, NewInode, OpenMode};
use skep_types::codec::record;
use skep_types::{FileKind, InodeId};

record! {
    /// `fuse_mknod_in`.
    pub struct MkNodIn {
        pub mode: u32,
        pub device: u32,
        pub umask: u32,
        pub padding: u32,
    }
}

record! {
    /// `fuse_mkdir_in`.
    pub struct MkDirIn {
        pub mode: u32,
        pub umask: u32,
    }
}

record! {
    /// `fuse_rename_in`.
    pub struct RenameIn {
        pub new_directory: u64,
    }
}

record! {
    /// `fuse_rename2_in`.
    pub struct Rename2In {
        pub new_directory: u64,
        pub flags: u32,
        pub padding: u32,
    }
}

record! {
    /// `fuse_link_in`.
    pub struct LinkIn {
        pub old_nodeid: u64,
    }
}

/// A request on names.
#[derive(Debug)]
pub(crate) enum NameRequest {
    Lookup { directory: InodeId, name: Vec<u8> },
    ReadLink { inode: InodeId },
    MakeSymlink { directory: InodeId, name: Vec<u8>, link_target: Vec<u8>, new: NewInode },
    MakeDirectory { directory: InodeId, name: Vec<u8>, new: NewInode },
    MakeNode { request: CreateRequest },
    Unlink { directory: InodeId, name: Vec<u8> },
    RemoveDirectory { directory: InodeId, name: Vec<u8> },
    Rename(Rename),
    Link { inode: InodeId, directory: InodeId, name: Vec<u8> },
}

/// The arguments of a rename.
#[derive(Debug)]
pub(crate) struct Rename {
    pub(crate) from_directory: InodeId,
    pub(crate) from_name: Vec<u8>,
    pub(crate) to_directory: InodeId,
    pub(crate) to_name: Vec<u8>,
    pub(crate) kind: RenameKind,
    /// The inode to create under the old name (`RENAME_WHITEOUT`), if any.
    pub(crate) whiteout: Option<NewInode>,
}

/// How a rename treats an existing entry with the new name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RenameKind {
    /// The renamed entry replaces the existing entry.
    Replace,
    /// The rename fails if there is an existing entry.
    OnlyIfFree,
    /// The existing entry gets the old name of the renamed entry.
    Exchange,
}

impl NameRequest {
    pub(super) fn parse(opcode: Opcode, raw: &RawRequest) -> Result<Self, i32> {
        let directory = raw.node();
        Ok(match opcode {
            Opcode::Lookup => Self::Lookup { directory, name: raw.name()? },
            Opcode::ReadLink => Self::ReadLink { inode: raw.node() },
            Opcode::Symlink => {
                let payload = raw.payload.bytes();
                let (name, rest) = split_name(&payload)?;
                let (name, link_target) = (checked_name(name)?, split_name(rest)?.0.to_vec());
                Self::MakeSymlink { directory, name, link_target, new: raw.new_inode(0o777, 0) }
            }
            Opcode::MkDir => {
                let arguments: MkDirIn = raw.arguments()?;
                let new = raw.new_inode(arguments.mode, arguments.umask);
                Self::MakeDirectory { directory, name: raw.name()?, new }
            }
            Opcode::MkNod => parse_make_node(raw)?,
            Opcode::Unlink => Self::Unlink { directory, name: raw.name()? },
            Opcode::RmDir => Self::RemoveDirectory { directory, name: raw.name()? },
            Opcode::Rename => {
                let arguments: RenameIn = raw.arguments()?;
                parse_rename(raw, arguments.new_directory, 0)?
            }
            Opcode::Rename2 => {
                let arguments: Rename2In = raw.arguments()?;
                parse_rename(raw, arguments.new_directory, arguments.flags)?
            }
            Opcode::Link => {
                let arguments: LinkIn = raw.arguments()?;
                Self::Link { inode: inode(arguments.old_nodeid), directory, name: raw.name()? }
            }
            other => other.is_of_another_family(),
        })
    }

    pub(super) fn names(&self) -> EntryNames {
        let one = |name: &[u8]| EntryNames { name: name.to_vec(), ..EntryNames::default() };
        match self {
            Self::Lookup { name, .. }
            | Self::MakeSymlink { name, .. }
            | Self::MakeDirectory { name, .. }
            | Self::Unlink { name, .. }
            | Self::RemoveDirectory { name, .. }
            | Self::Link { name, .. } => one(name),
            Self::MakeNode { request } => one(&request.name),
            Self::Rename(rename) => EntryNames {
                name: rename.from_name.clone(),
                other_inode: rename.to_directory,
                new_name: rename.to_name.clone(),
            },
            Self::ReadLink { .. } => EntryNames::default(),
        }
    }

    /// Whether the worker may drop the operation's future when the caller is killed. False for
    /// changes of names.
    pub(super) fn may_be_dropped(&self) -> bool {
        matches!(self, Self::Lookup { .. } | Self::ReadLink { .. })
    }
}

fn parse_make_node(raw: &RawRequest) -> Result<NameRequest, i32> {
    let arguments: MkNodIn = raw.arguments()?;
    let kind = FileKind::from_mode(arguments.mode).ok_or(libc::EINVAL)?;
    if matches!(kind, FileKind::Directory | FileKind::Symlink) {
        return Err(libc::EINVAL);
    }
    Ok(NameRequest::MakeNode {
        request: CreateRequest {
            directory: raw.node(),
            name: raw.name()?.into(),
            kind,
            new: raw.new_inode(arguments.mode, arguments.umask),
            device: unpack_device(arguments.device),
            exclusive: true,
            open: OpenMode::No,
            pattern: None,
        },
    })
}

fn parse_rename(raw: &RawRequest, new_directory: u64, flags: u32) -> Result<NameRequest, i32> {
    let has_whiteout = flags & libc::RENAME_WHITEOUT != 0;
    let kind = match flags & !libc::RENAME_WHITEOUT {
        0 => RenameKind::Replace,
        libc::RENAME_NOREPLACE => RenameKind::OnlyIfFree,
        libc::RENAME_EXCHANGE if !has_whiteout => RenameKind::Exchange,
        _ => return Err(libc::EINVAL),
    };
    let (from_name, to_name) = raw.two_names()?;
    Ok(NameRequest::Rename(Rename {
        from_directory: raw.node(),
        from_name,
        to_directory: inode(new_directory),
        to_name,
        kind,
        whiteout: has_whiteout.then(|| raw.new_inode(0, 0)),
    }))
}
