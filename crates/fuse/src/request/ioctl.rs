//! Requests by `ioctl`: the project of an inode, and whether new entries in a directory inherit it.
//!
//! Owns the kernel's structs of these requests (from `include/uapi/linux/fs.h` and `fuse.h`) and
//! their parsing. The parsing refuses all other inode flags and commands. `ops::ioctl` performs the
//! operations.

use super::RawRequest;
use crate::abi::Opcode;
use skep_types::InodeId;
use skep_types::codec::{Codec, Reader, record};

/// `FS_IOC_GETFLAGS`.
pub(crate) const GET_FLAGS: u32 = 0x8008_6601;
/// `FS_IOC_SETFLAGS`.
pub(crate) const SET_FLAGS: u32 = 0x4008_6602;
/// `FS_IOC_FSGETXATTR`.
pub(crate) const GET_FS_XATTR: u32 = 0x801c_581f;
/// `FS_IOC_FSSETXATTR`.
pub(crate) const SET_FS_XATTR: u32 = 0x401c_5820;
/// `FS_PROJINHERIT_FL`, one of the inode flags.
pub(crate) const FLAG_PROJECT_INHERIT: u32 = 0x2000_0000;
/// `FS_XFLAG_PROJINHERIT` in [`FsXattr::flags`].
pub(crate) const XFLAG_PROJECT_INHERIT: u32 = 0x0200;

record! {
    /// `struct fsxattr` of `include/uapi/linux/fs.h`.
    #[derive(Copy)]
    pub struct FsXattr {
        pub flags: u32,
        pub extent_bytes: u32,
        pub extents: u32,
        pub project: u32,
        pub copy_extent_bytes: u32,
        pub padding: u64,
    }
}

record! {
    /// `fuse_ioctl_in`.
    pub struct IoctlIn {
        pub handle: u64,
        pub ioctl_flags: u32,
        pub command: u32,
        pub argument: u64,
        pub in_bytes: u32,
        pub out_bytes: u32,
    }
}

/// A request by `ioctl`.
#[derive(Debug)]
pub(crate) enum IoctlRequest {
    ReadFlags { inode: InodeId, form: FlagsForm, max_bytes: u32 },
    SetFlags { inode: InodeId, hands_down_project: bool, project: Option<u32> },
}

/// The form in which a program reads an inode's flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlagsForm {
    /// The flags as one number.
    Number,
    /// The flags and the project in a `struct fsxattr`.
    FsXattr,
}

impl IoctlRequest {
    pub(super) fn parse(opcode: Opcode, raw: &RawRequest) -> Result<Self, i32> {
        if opcode != Opcode::Ioctl {
            opcode.is_of_another_family();
        }
        let arguments: IoctlIn = raw.arguments()?;
        let (inode, max_bytes) = (raw.node(), arguments.out_bytes);
        let bytes = raw.payload.bytes();
        let mut payload = Reader::new(&bytes);
        Ok(match arguments.command {
            GET_FLAGS => Self::ReadFlags { inode, form: FlagsForm::Number, max_bytes },
            GET_FS_XATTR => Self::ReadFlags { inode, form: FlagsForm::FsXattr, max_bytes },
            SET_FLAGS => {
                let flags = u32::decode(&mut payload).map_err(|_| libc::EINVAL)?;
                let hands_down_project = has_only(flags, FLAG_PROJECT_INHERIT)?;
                Self::SetFlags { inode, hands_down_project, project: None }
            }
            SET_FS_XATTR => {
                let attributes = FsXattr::decode(&mut payload).map_err(|_| libc::EINVAL)?;
                if attributes.extent_bytes != 0 || attributes.copy_extent_bytes != 0 {
                    return Err(libc::EOPNOTSUPP);
                }
                let hands_down_project = has_only(attributes.flags, XFLAG_PROJECT_INHERIT)?;
                Self::SetFlags { inode, hands_down_project, project: Some(attributes.project) }
            }
            _ => return Err(libc::ENOTTY),
        })
    }

    /// Whether the worker may drop the operation's future when the caller is killed. False for
    /// changes of flags.
    pub(super) fn may_be_dropped(&self) -> bool {
        matches!(self, Self::ReadFlags { .. })
    }
}

/// Whether `flags` has the bit `supported`. Returns an error if `flags` has any other bit.
fn has_only(flags: u32, supported: u32) -> Result<bool, i32> {
    if flags & !supported != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    Ok(flags != 0)
}
