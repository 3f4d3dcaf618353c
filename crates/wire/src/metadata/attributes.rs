//! Messages about attributes, extended attributes and stripe patterns of an inode.

use skep_types::codec::{Bytes, record};
use skep_types::{Attributes, InodeId, PatternRequest, StripePattern, Timestamp, byte_enum};

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
    /// A time that a request sets.
    #[derive(Copy)]
    pub struct SetTime {
        /// Use the current time of the target.
        pub now: bool,
        /// The time, if `now` is not set.
        pub at: Timestamp,
    }
}

record! {
    /// Changes attributes. `None` leaves an attribute as it is. If the new size is smaller, the
    /// target truncates the chunk files too.
    pub struct SetAttributes {
        /// The inode.
        pub inode: InodeId,
        /// New permission bits.
        pub permissions: Option<u32>,
        /// New owner.
        pub uid: Option<u32>,
        /// New group.
        pub gid: Option<u32>,
        /// New project.
        pub project: Option<u32>,
        /// Whether new entries of a directory inherit its project.
        pub hands_down_project: Option<bool>,
        /// New size.
        pub size: Option<u64>,
        /// New time of last access.
        pub accessed: Option<SetTime>,
        /// New time of last change of data.
        pub modified: Option<SetTime>,
    }
}

record! {
    /// Reads an extended attribute.
    pub struct GetXattr {
        /// The inode.
        pub inode: InodeId,
        /// Name with namespace: `user.colour`.
        pub name: Bytes,
    }
}

byte_enum! {
    /// Whether the attribute of a `SetXattr` may exist already.
    pub enum XattrMode {
        /// It may exist or not.
        Any = 0,
        /// It must not exist.
        Create = 1,
        /// It must exist.
        Replace = 2,
    }
}

record! {
    /// Sets an extended attribute.
    pub struct SetXattr {
        /// The inode.
        pub inode: InodeId,
        /// Name with namespace.
        pub name: Bytes,
        /// Value.
        pub value: Bytes,
        /// Whether the attribute may exist already.
        pub mode: XattrMode,
        /// If the attribute is an access control list: clear the set-group-id bit, because the
        /// caller is not in the file's group.
        pub clear_set_group_id: bool,
    }
}

record! {
    /// Lists extended attributes.
    pub struct ListXattrs {
        /// The inode.
        pub inode: InodeId,
    }
}

record! {
    /// Reply to [`ListXattrs`].
    pub struct XattrNames {
        /// The names, in byte order.
        pub names: Vec<Bytes>,
    }
}

record! {
    /// Removes an extended attribute.
    pub struct RemoveXattr {
        /// The inode.
        pub inode: InodeId,
        /// Name with namespace.
        pub name: Bytes,
    }
}

record! {
    /// Sets the default pattern that new files and directories of a directory inherit, or the
    /// pattern of a file. The target returns `InUse` for a file that is open or was ever written.
    pub struct SetPattern {
        /// The directory, or the file.
        pub inode: InodeId,
        /// A directory's new default, whose unset fields the cluster's settings fill; or the
        /// request for a file, whose unset fields keep their values. `None` removes a directory's
        /// default.
        pub pattern: Option<PatternRequest>,
        /// The user who asks: root, or the owner within the cluster's limits for users.
        pub uid: u32,
    }
}

record! {
    /// Reads the attributes, the pattern and the use of an inode, for commands.
    pub struct GetEntryInfo {
        /// The inode.
        pub inode: InodeId,
    }
}

record! {
    /// Reply to [`GetEntryInfo`].
    pub struct EntryInfo {
        /// Its attributes.
        pub attributes: Attributes,
        /// A directory's parent. For other kinds the directory in which the inode was created or
        /// to which it was last moved.
        pub parent: InodeId,
        /// A file's pattern, or the default pattern of a directory (the bytes of a
        /// `PatternRequest`).
        pub pattern: Option<StripePattern>,
        /// Number of sessions that have it open.
        pub open_sessions: u32,
    }
}
