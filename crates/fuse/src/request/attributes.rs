//! Requests on attributes, and on the file system as a whole.
//!
//! Owns the kernel's argument structs of these requests and their parsing. `xattrs` parses requests
//! on extended attributes, and `ioctl` parses requests on flags and projects. `ops::attributes`
//! performs the operations.

use super::{RawRequest, set_attr};
use crate::abi::Opcode;
use skep_client::{HandleId, SetAttributes, SetTime};
use skep_types::codec::record;
use skep_types::{InodeId, Timestamp};

/// Flag in [`GetAttrIn::flags`]: the kernel itself requests the attributes, before it reads from
/// its cached pages through a handle.
pub(crate) const GETATTR_HANDLE: u32 = 1 << 0;

record! {
    /// `fuse_getattr_in`.
    pub struct GetAttrIn {
        pub flags: u32,
        pub padding: u32,
        pub handle: u64,
    }
}

record! {
    /// `fuse_setattr_in`.
    pub struct SetAttrIn {
        pub valid: u32,
        pub padding: u32,
        pub handle: u64,
        pub size: u64,
        pub lock_owner: u64,
        pub atime: u64,
        pub mtime: u64,
        pub ctime: u64,
        pub atime_nanoseconds: u32,
        pub mtime_nanoseconds: u32,
        pub ctime_nanoseconds: u32,
        pub mode: u32,
        pub unused4: u32,
        pub uid: u32,
        pub gid: u32,
        pub unused5: u32,
    }
}

/// A request on attributes.
#[derive(Debug)]
pub(crate) enum AttributeRequest {
    /// If the kernel itself requests the attributes before it reads from its cached pages, `reader`
    /// is the handle of this read. `None` means that a program requests the attributes.
    Get {
        inode: InodeId,
        reader: Option<HandleId>,
    },
    Statx {
        inode: InodeId,
    },
    Set {
        change: SetAttributes,
        handle: Option<HandleId>,
        kill_privileges: bool,
    },
    StatFs,
}

impl AttributeRequest {
    pub(super) fn parse(opcode: Opcode, raw: &RawRequest) -> Result<Self, i32> {
        Ok(match opcode {
            Opcode::GetAttr => {
                let arguments: GetAttrIn = raw.arguments()?;
                let is_for_reading = arguments.flags & GETATTR_HANDLE != 0;
                let reader = is_for_reading.then_some(HandleId::new(arguments.handle));
                Self::Get { inode: raw.node(), reader }
            }
            Opcode::StatX => Self::Statx { inode: raw.node() },
            Opcode::SetAttr => parse_set(raw)?,
            Opcode::StatFs => Self::StatFs,
            other => other.is_of_another_family(),
        })
    }

    /// Whether the worker may drop the operation's future when the caller is killed. False for
    /// changes of attributes.
    pub(super) fn may_be_dropped(&self) -> bool {
        !matches!(self, Self::Set { .. })
    }
}

fn parse_set(raw: &RawRequest) -> Result<AttributeRequest, i32> {
    let arguments: SetAttrIn = raw.arguments()?;
    let has = |bit: u32| arguments.valid & bit != 0;
    let time = |set: u32, now: u32, seconds: u64, nanoseconds: u32| {
        let at = Timestamp { seconds: seconds as i64, nanoseconds };
        has(set).then(|| SetTime { now: has(now), at })
    };
    let change = SetAttributes {
        inode: raw.node(),
        permissions: has(set_attr::MODE).then_some(arguments.mode & 0o7777),
        cleared_permissions: 0,
        uid: has(set_attr::UID).then_some(arguments.uid),
        gid: has(set_attr::GID).then_some(arguments.gid),
        project: None,
        hands_down_project: None,
        size: has(set_attr::SIZE).then_some(arguments.size),
        accessed: time(
            set_attr::ATIME,
            set_attr::ATIME_NOW,
            arguments.atime,
            arguments.atime_nanoseconds,
        ),
        modified: time(
            set_attr::MTIME,
            set_attr::MTIME_NOW,
            arguments.mtime,
            arguments.mtime_nanoseconds,
        ),
    };
    // A change of owner clears the set-user-id and set-group-id bits, and the kernel leaves this to
    // the daemon. A chown(2) with neither user nor group also clears them; for this call, the
    // kernel sends a `SETATTR` without any values.
    let owner = has(set_attr::UID | set_attr::GID);
    let is_empty = !has(set_attr::ALL_VALUES);
    let kill_privileges =
        change.permissions.is_none() && (owner || is_empty || has(set_attr::KILL_SUIDGID));
    let handle = has(set_attr::HANDLE).then_some(HandleId::new(arguments.handle));
    Ok(AttributeRequest::Set { change, handle, kill_privileges })
}
