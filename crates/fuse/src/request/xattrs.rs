//! Requests on extended attributes.
//!
//! Owns the kernel's argument structs of these requests and their parsing. `ops::xattrs` performs
//! the operations, and has the rules for names.

use super::{RawRequest, split_name};
use crate::abi::Opcode;
use crate::following::Follower;
use skep_client::XattrMode;
use skep_types::InodeId;
use skep_types::codec::{Codec, Reader, record};

/// Length in bytes of the short form of [`SetXattrIn`].
pub(crate) const SHORT_SET_XATTR_BYTES: usize = 8;
/// Flag in [`SetXattrIn::more_flags`]: the daemon must clear the set-group-id bit, since an access
/// control list changes.
pub(crate) const SET_XATTR_KILL_SGID: u32 = 1 << 0;

record! {
    /// `fuse_setxattr_in`. Kernels without the flag `SETXATTR_EXT` of `INIT` send only the first
    /// half of the struct.
    pub struct SetXattrIn {
        pub size: u32,
        pub flags: u32,
        pub more_flags: u32,
        pub padding: u32,
    }
}

record! {
    /// `fuse_getxattr_in`.
    pub struct GetXattrIn {
        pub size: u32,
        pub padding: u32,
    }
}

/// A request on extended attributes.
#[derive(Debug)]
pub(crate) enum XattrRequest {
    Get { inode: InodeId, name: Vec<u8>, max_bytes: u32, by: Follower },
    Set(XattrChange),
    List { inode: InodeId, uid: u32, max_bytes: u32 },
    Remove { inode: InodeId, name: Vec<u8>, uid: u32 },
}

/// The arguments of `setxattr`.
#[derive(Debug)]
pub(crate) struct XattrChange {
    pub(crate) inode: InodeId,
    pub(crate) name: Vec<u8>,
    pub(crate) value: Vec<u8>,
    /// Whether the attribute may or must exist already. `None` means that the caller set both
    /// `XATTR_CREATE` and `XATTR_REPLACE`, which can never succeed.
    pub(crate) mode: Option<XattrMode>,
    pub(crate) clear_set_group_id: bool,
    pub(crate) uid: u32,
}

impl XattrRequest {
    pub(super) fn parse(opcode: Opcode, raw: &RawRequest) -> Result<Self, i32> {
        let (inode, uid) = (raw.node(), raw.header.uid);
        Ok(match opcode {
            Opcode::GetXattr => {
                let arguments: GetXattrIn = raw.arguments()?;
                let by = Follower { uid, pid: raw.header.pid };
                Self::Get { inode, name: raw.name()?, max_bytes: arguments.size, by }
            }
            Opcode::ListXattr => {
                let arguments: GetXattrIn = raw.arguments()?;
                Self::List { inode, uid, max_bytes: arguments.size }
            }
            Opcode::SetXattr => Self::Set(parse_change(raw)?),
            Opcode::RemoveXattr => Self::Remove { inode, name: raw.name()?, uid },
            other => other.is_of_another_family(),
        })
    }

    /// Whether the worker may drop the operation's future when the caller is killed. False for
    /// changes of attributes.
    pub(super) fn may_be_dropped(&self) -> bool {
        matches!(self, Self::Get { .. } | Self::List { .. })
    }
}

fn parse_change(raw: &RawRequest) -> Result<XattrChange, i32> {
    // The short form of the request lacks the second half of the struct. Replace this half by
    // zeros.
    let mut fixed = raw.arguments.bytes().to_vec();
    fixed.resize(fixed.len().max(Opcode::SetXattr.argument_bytes()), 0);
    let arguments = SetXattrIn::decode(&mut Reader::new(&fixed)).map_err(|_| libc::EINVAL)?;
    let payload = raw.payload.bytes();
    let (name, value) = split_name(&payload)?;
    let value = value.get(..arguments.size as usize).ok_or(libc::EINVAL)?;
    const BOTH: i32 = libc::XATTR_CREATE | libc::XATTR_REPLACE;
    let mode = match arguments.flags as i32 {
        0 => Some(XattrMode::Any),
        libc::XATTR_CREATE => Some(XattrMode::Create),
        libc::XATTR_REPLACE => Some(XattrMode::Replace),
        BOTH => None,
        _ => return Err(libc::EINVAL),
    };
    Ok(XattrChange {
        inode: raw.node(),
        name: name.to_vec(),
        value: value.to_vec(),
        mode,
        clear_set_group_id: arguments.more_flags & SET_XATTR_KILL_SGID != 0,
        uid: raw.header.uid,
    })
}
