//! Messages about regular files that are created, opened, written and closed.

use super::NewInode;
use skep_types::codec::{Bytes, record};
use skep_types::{Attributes, FileKind, InodeId, PatternRequest, StripePattern, byte_enum};

byte_enum! {
    /// How a file is opened.
    pub enum OpenMode {
        /// The file is not opened.
        No = 0,
        /// For reading.
        Read = 1,
        /// For writing, or for reading and writing.
        Write = 2,
    }
}

record! {
    /// Creates an inode with a name, and opens it if `open` says so.
    pub struct Create {
        /// The directory.
        pub directory: InodeId,
        /// The name.
        pub name: Bytes,
        /// Its kind. Directories and symbolic links have requests of their own.
        pub kind: FileKind,
        /// Permissions and owner.
        pub new: NewInode,
        /// Device number, for device files.
        pub device: u64,
        /// Fail if the name exists. If not set, the target opens the existing regular file.
        pub exclusive: bool,
        /// How to open it.
        pub open: OpenMode,
        /// The pattern that the client asks for. `None` is the same as a request with no field set.
        pub pattern: Option<PatternRequest>,
    }
}

record! {
    /// Creates a regular file that has no name, and opens it (`O_TMPFILE`). The target deletes it
    /// at its last close, unless the client has given it a name by [`Link`](super::Link).
    pub struct CreateUnnamed {
        /// The directory from which the file inherits.
        pub directory: InodeId,
        /// Permissions and owner.
        pub new: NewInode,
        /// How to open it. `No` is invalid.
        pub open: OpenMode,
        /// The pattern that the client asks for, as in [`Create`].
        pub pattern: Option<PatternRequest>,
    }
}

record! {
    /// Opens a regular file.
    pub struct Open {
        /// The inode.
        pub inode: InodeId,
        /// How to open it. `No` is invalid.
        pub open: OpenMode,
        /// Truncate the file to size 0 first (`O_TRUNC`).
        pub truncate: bool,
        /// Return `Stale` and change nothing if the inode has no name any more.
        pub must_have_name: bool,
    }
}

record! {
    /// Reply to [`Open`], [`Create`] and [`CreateUnnamed`].
    pub struct OpenReply {
        /// Whether the request created the inode.
        pub created: bool,
        /// Its attributes.
        pub attributes: Attributes,
        /// The stripe pattern of a regular file. `None` for other kinds.
        pub pattern: Option<StripePattern>,
        /// Whether the file is shared: several clients have it open, at least one for writing.
        pub is_shared: bool,
    }
}

record! {
    /// How far a client has written a file since its last report.
    #[derive(Copy)]
    pub struct WrittenExtent {
        /// End of the furthest write. Zero means that no write moved the end of the file.
        pub end: u64,
        /// Truncate generation that the client knew when it wrote. The target ignores `end` if the
        /// file was truncated since.
        pub truncate_generation: u64,
        /// Whether a write began beyond the end of the file that the client knew.
        pub may_leave_holes: bool,
        /// Offset up to which chunk files may reach beyond the end of the file, because of reserved
        /// space or a failed write. Zero means that they do not reach beyond it.
        pub reach: u64,
    }
}

record! {
    /// Closes one open of the session. At the last close of an unlinked file the target deletes it.
    pub struct Close {
        /// The inode.
        pub inode: InodeId,
        /// How it was opened.
        pub open: OpenMode,
        /// The writes since the last report. `None` means that there were none.
        pub written: Option<WrittenExtent>,
    }
}

record! {
    /// One open that the client closes.
    #[derive(Copy)]
    pub struct ClosedFile {
        /// The inode.
        pub inode: InodeId,
        /// How it was opened.
        pub open: OpenMode,
    }
}

record! {
    /// Closes several opens of the session without a report of writes. The target skips opens that
    /// the session does not have. At the last close of an unlinked file the target deletes it.
    pub struct CloseMany {
        /// The opens, all of inodes that this group serves.
        pub files: Vec<ClosedFile>,
    }
}

record! {
    /// A client reports its writes while the file stays open (`fsync`, `stat` by the writer).
    pub struct ReportWritten {
        /// The inode.
        pub inode: InodeId,
        /// The writes since the last report.
        pub written: WrittenExtent,
    }
}
