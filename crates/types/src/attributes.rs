//! The attributes of an inode, as `stat` returns them, and the kinds of files.

use crate::byte_enum;
use crate::codec::record;
use crate::{InodeId, Timestamp};

byte_enum! {
    /// The kinds of files of POSIX.
    pub enum FileKind {
        /// Regular file.
        Regular = 1,
        /// Directory.
        Directory = 2,
        /// Symbolic link.
        Symlink = 3,
        /// Named pipe.
        Fifo = 4,
        /// Socket.
        Socket = 5,
        /// Character device.
        CharDevice = 6,
        /// Block device.
        BlockDevice = 7,
    }
}

impl FileKind {
    /// The kind as `S_IF...` bits of a mode.
    pub const fn mode_bits(self) -> u32 {
        match self {
            Self::Regular => 0o100_000,
            Self::Directory => 0o040_000,
            Self::Symlink => 0o120_000,
            Self::Fifo => 0o010_000,
            Self::Socket => 0o140_000,
            Self::CharDevice => 0o020_000,
            Self::BlockDevice => 0o060_000,
        }
    }

    /// The kind in the `S_IF...` bits of a mode; `None` for bits that name no kind.
    pub const fn from_mode(mode: u32) -> Option<Self> {
        Some(match mode & 0o170_000 {
            0o100_000 => Self::Regular,
            0o040_000 => Self::Directory,
            0o120_000 => Self::Symlink,
            0o010_000 => Self::Fifo,
            0o140_000 => Self::Socket,
            0o020_000 => Self::CharDevice,
            0o060_000 => Self::BlockDevice,
            _ => return None,
        })
    }
}

record! {
    /// The attributes of an inode, as `stat` returns them.
    pub struct Attributes {
        /// The inode.
        pub inode: InodeId,
        /// Kind of file.
        pub kind: FileKind,
        /// Permission bits with set-user-id, set-group-id and sticky (12 bits).
        pub permissions: u32,
        /// Number of names (for a directory: 2 and one for each directory in it).
        pub links: u32,
        /// Owner.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        /// Project, for quota. Zero means no project.
        pub project: u32,
        /// Device number of a device file, as `major << 32 | minor`.
        pub device: u64,
        /// Size in bytes; for a directory the number of entries.
        pub size: u64,
        /// Last access.
        pub accessed: Timestamp,
        /// Last change of the data.
        pub modified: Timestamp,
        /// Last change of the attributes.
        pub changed: Timestamp,
        /// Creation.
        pub created: Timestamp,
        /// The metadata target raises it with each change of data or attributes.
        pub change_counter: u64,
        /// The metadata target raises it with each truncation. It takes the largest size that
        /// writers report within one generation.
        pub truncate_generation: u64,
        /// Whether a regular file may have holes. Its allocated size is then that of its chunk
        /// files.
        pub is_sparse: bool,
        /// Whether it has `security.capability`. The kernel asks for that attribute before writes.
        pub has_capability: bool,
        /// Whether it has an access control list or a default access control list.
        pub has_acl: bool,
        /// Whether new entries of a directory inherit its project, and new directories this flag.
        pub hands_down_project: bool,
    }
}

impl Attributes {
    /// Returns the attributes of an empty inode with one name that root creates at `time`.
    pub const fn new(inode: InodeId, kind: FileKind, permissions: u32, time: Timestamp) -> Self {
        Self {
            inode,
            kind,
            permissions,
            links: 1,
            uid: 0,
            gid: 0,
            project: 0,
            device: 0,
            size: 0,
            accessed: time,
            modified: time,
            changed: time,
            created: time,
            change_counter: 0,
            truncate_generation: 0,
            is_sparse: false,
            has_capability: false,
            has_acl: false,
            hands_down_project: false,
        }
    }

    /// Returns the project of new entries of a directory. An inode must have the same project to
    /// get another name there. `None` means that the directory does not hand its project down.
    pub fn handed_down_project(&self) -> Option<u32> {
        self.hands_down_project.then_some(self.project)
    }
}
