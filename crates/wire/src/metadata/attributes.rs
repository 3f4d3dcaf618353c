//! Messages about the attributes, extended attributes and stripe pattern of an inode.

use skep_types::codec::{Bytes, record};
use skep_types::{
    Attributes, ChunkFileKey, GroupId, HostIncarnation, InodeId, PatternRequest, StripePattern,
    Timestamp, byte_enum,
};

const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;

record! {
    /// Reads the attributes of an inode.
    pub struct GetAttributes {
        /// The inode.
        pub inode: InodeId,
    }
}

record! {
    /// Reply with the attributes of an inode.
    pub struct AttributesReply {
        /// The attributes.
        pub attributes: Attributes,
    }
}

record! {
    /// The new value of one timestamp of an inode.
    #[derive(Copy)]
    pub struct SetTime {
        /// Whether the target sets the timestamp to its current time.
        pub now: bool,
        /// The value to set if `now` is not set.
        pub at: Timestamp,
    }
}

record! {
    /// Changes attributes of an inode. A field with the value `None` does not change its attribute.
    /// If the new size is smaller than the old size, the target also truncates the chunk files.
    pub struct SetAttributes {
        /// The inode.
        pub inode: InodeId,
        /// New permission bits.
        pub permissions: Option<u32>,
        /// Permission bits that the target clears. The target does not change any other bit, so the
        /// request never reverts a change of permissions by another client. If bit 31 is also set,
        /// the target keeps the set-group-id bit of an inode whose group has no execute permission.
        pub cleared_permissions: u32,
        /// New user id of the owner.
        pub uid: Option<u32>,
        /// New id of the owning group.
        pub gid: Option<u32>,
        /// New project id.
        pub project: Option<u32>,
        /// For a directory: whether new entries inherit its project.
        pub hands_down_project: Option<bool>,
        /// New size in bytes.
        pub size: Option<u64>,
        /// New time of the last access.
        pub accessed: Option<SetTime>,
        /// New time of the last change of the data.
        pub modified: Option<SetTime>,
    }
}

impl SetAttributes {
    /// Bit 31 of `cleared_permissions`. A client without the current permissions sets this bit if
    /// the calling program may keep the set-group-id bit of a file whose group has no execute
    /// permission.
    pub const KEEP_SET_GROUP_ID_WITHOUT_EXECUTE: u32 = 1 << 31;

    /// Returns the permissions of the inode after this request. `present` are the permissions of
    /// the inode before the request.
    pub fn permissions_after(&self, present: u32) -> u32 {
        let new = self.permissions.unwrap_or(present);
        let mut cleared = self.cleared_permissions;
        if cleared & Self::KEEP_SET_GROUP_ID_WITHOUT_EXECUTE != 0 && new & GROUP_EXECUTE == 0 {
            cleared &= !SET_GROUP_ID;
        }
        new & !cleared
    }
}

record! {
    /// A chunk file that storage has truncated, perhaps not durably yet.
    #[derive(Copy)]
    pub struct TruncatedChunk {
        /// The chunk file.
        pub key: ChunkFileKey,
        /// Storage group of the chunk file.
        pub group: GroupId,
        /// Incarnation of the host that truncated the chunk file. If a later sync returns a
        /// different incarnation, the truncation may have been lost.
        pub incarnation: HostIncarnation,
    }
}

record! {
    /// Reply to [`SetAttributes`].
    pub struct SetAttributesReply {
        /// The attributes.
        pub attributes: Attributes,
        /// The truncated chunk files, if the request set a size. The next `fsync` of the client
        /// syncs them.
        pub truncated: Vec<TruncatedChunk>,
    }
}

record! {
    /// Reads an extended attribute.
    pub struct GetXattr {
        /// The inode.
        pub inode: InodeId,
        /// Name with its namespace prefix, such as `user.colour`.
        pub name: Bytes,
    }
}

byte_enum! {
    /// Whether the extended attribute that a `SetXattr` sets may or must already exist.
    pub enum XattrMode {
        /// The attribute may exist already.
        Any = 0,
        /// The attribute must not exist.
        Create = 1,
        /// The attribute must exist.
        Replace = 2,
    }
}

record! {
    /// Sets an extended attribute.
    pub struct SetXattr {
        /// The inode.
        pub inode: InodeId,
        /// Name with its namespace prefix.
        pub name: Bytes,
        /// New value.
        pub value: Bytes,
        /// Whether the attribute may or must already exist.
        pub mode: XattrMode,
        /// If the attribute is an access control list: whether the target clears the set-group-id
        /// bit. Clients set this field if the caller is not in the file's group.
        pub clear_set_group_id: bool,
    }
}

record! {
    /// Lists the names of the extended attributes of an inode.
    pub struct ListXattrs {
        /// The inode.
        pub inode: InodeId,
    }
}

record! {
    /// Reply to [`ListXattrs`].
    pub struct XattrNames {
        /// The names in ascending byte order.
        pub names: Vec<Bytes>,
    }
}

record! {
    /// Removes an extended attribute.
    pub struct RemoveXattr {
        /// The inode.
        pub inode: InodeId,
        /// Name with its namespace prefix.
        pub name: Bytes,
    }
}

record! {
    /// Sets the pattern of a file, or the default pattern of a directory, which its new files and
    /// subdirectories inherit. The target returns `InUse` for a file that is open or has ever been
    /// written.
    pub struct SetPattern {
        /// The file or directory.
        pub inode: InodeId,
        /// The new pattern. For a directory, the cluster's settings fill the unset fields at the
        /// creation of a file. For a file, unset fields keep their values. `None` removes the
        /// default pattern of a directory.
        pub pattern: Option<PatternRequest>,
        /// User id of the caller. Only root and the owner may set a pattern, and the owner only
        /// within the cluster's limits for users.
        pub uid: u32,
    }
}

record! {
    /// Reads the attributes, the pattern and the open count of an inode, for administrative
    /// commands.
    pub struct GetEntryInfo {
        /// The inode.
        pub inode: InodeId,
    }
}

record! {
    /// Reply to [`GetEntryInfo`].
    pub struct EntryInfo {
        /// Attributes of the inode.
        pub attributes: Attributes,
        /// Parent of a directory. For other kinds, the directory in which the inode was created or
        /// to which it was last moved.
        pub parent: InodeId,
        /// Pattern of a file, or default pattern of a directory. A default pattern is encoded like
        /// a `PatternRequest`.
        pub pattern: Option<StripePattern>,
        /// Number of sessions that have the inode open.
        pub open_sessions: u32,
    }
}
