//! File attributes as returned by `stat`, and file kinds.

use crate::byte_enum;
use crate::codec::record;
use crate::{InodeId, Timestamp};

byte_enum! {
    /// The file types of POSIX.
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
    /// Returns the `S_IF...` bits of the kind, as in `st_mode`.
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

    /// Returns the kind that the `S_IF...` bits of `mode` stand for. `None` if they stand for no
    /// kind.
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
    /// The attributes of an inode, as returned by `stat`.
    pub struct Attributes {
        /// The inode.
        pub inode: InodeId,
        /// Kind of file.
        pub kind: FileKind,
        /// Permission bits including set-user-id, set-group-id and sticky (12 bits).
        pub permissions: u32,
        /// Number of hard links. For a directory: 2 plus the number of its subdirectories.
        pub links: u32,
        /// User id of the owner.
        pub uid: u32,
        /// Id of the owning group.
        pub gid: u32,
        /// Project id for quota. Zero means no project.
        pub project: u32,
        /// Device number of a device file, as `major << 32 | minor`.
        pub device: u64,
        /// Size in bytes. For a directory, the number of entries.
        pub size: u64,
        /// Time of the last access.
        pub accessed: Timestamp,
        /// Time of the last change of the data.
        pub modified: Timestamp,
        /// Time of the last change of the attributes.
        pub changed: Timestamp,
        /// Time of creation.
        pub created: Timestamp,
        /// Change counter, the version of the inode. The metadata target raises the change counter
        /// with each change of data or attributes. At each start, the target raises the change
        /// counters of all inodes above all values that it has returned, because a power loss may
        /// have reverted changes.
        pub change_counter: u64,
        /// Truncate generation. The metadata target raises the truncate generation with each
        /// truncation, and ignores sizes that writers report for an older generation. Within one
        /// generation the file size is the largest reported size.
        pub truncate_generation: u64,
        /// Whether a regular file may have holes. The allocated size of a sparse file must be
        /// computed from its chunk files.
        pub is_sparse: bool,
        /// Whether the inode has the extended attribute `security.capability`. The kernel asks for
        /// that attribute before writes.
        pub has_capability: bool,
        /// Whether the inode has an access control list or a default access control list.
        pub has_acl: bool,
        /// For a directory: whether new entries inherit its project. New subdirectories also
        /// inherit this flag.
        pub hands_down_project: bool,
    }
}

impl Attributes {
    /// Returns the attributes of an empty inode with one hard link, owned by root and created at
    /// `time`.
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

    /// Returns the project that new entries of this directory inherit. `None` if the directory does
    /// not hand down its project. Otherwise only inodes with the same project may be linked or
    /// moved into the directory.
    pub fn handed_down_project(&self) -> Option<u32> {
        self.hands_down_project.then_some(self.project)
    }
}
