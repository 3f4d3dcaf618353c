//! Messages about attributes, extended attributes and stripe patterns of an inode.

use super::Create;
use skep_types::codec::{Bytes, record};
use skep_types::{Attributes, InodeId, PatternRequest, StripePattern, Timestamp, byte_enum};

record! {
    /// Asks for attributes.
    pub struct GetAttributes {
        /// The inode.
        pub inode: InodeId,
    }
}

record! {
    /// Attributes of an inode.
    pub struct AttributesReply {
        /// The attributes.
        pub attributes: Attributes,
    }
}

record! {
    /// A time to set.
    #[derive(Copy)]
    pub struct SetTime {
        /// Take the server's present time.
        pub now: bool,
        /// The time, unless `now`.
        pub at: Timestamp,
    }
}

record! {
    /// Changes attributes. A new size also cuts the chunk files.
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
        /// Whether a directory hands its project down.
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
    /// What `SetXattr` may find.
    pub enum XattrMode {
        /// Either.
        Any = 0,
        /// It must be new.
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
        /// What it may find.
        pub mode: XattrMode,
        /// With an access control list: clear the set-group-id bit, since who sets it isn't in the
        /// file's group.
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
    /// Names of extended attributes.
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
    /// Sets the pattern that new files and directories in a directory inherit, or that of a file
    /// that is empty, never was written, and isn't open.
    pub struct SetPattern {
        /// The directory, or the file.
        pub inode: InodeId,
        /// A directory's new default, whose unset fields the cluster's settings fill; or the request
        /// for a file, whose unset fields keep their values. `None` removes a directory's default.
        pub pattern: Option<PatternRequest>,
        /// Who asks: its owner within the limits for users, or root.
        pub uid: u32,
    }
}

record! {
    /// Asks for everything that metadata knows of an inode.
    pub struct GetEntryInfo {
        /// The inode.
        pub inode: InodeId,
    }
}

record! {
    /// Everything that metadata knows of an inode.
    pub struct EntryInfo {
        /// Its attributes.
        pub attributes: Attributes,
        /// A directory that has (or had, when it was made) a name of it; a directory's one parent.
        pub parent: InodeId,
        /// A file's pattern, or the default pattern of a directory (the bytes of a
        /// `PatternRequest`).
        pub pattern: Option<StripePattern>,
        /// Sessions that have it open.
        pub open_sessions: u32,
    }
}
