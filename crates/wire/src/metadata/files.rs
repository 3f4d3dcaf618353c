//! Messages about regular files that are created, opened, written and closed.

use super::NewInode;
use skep_types::codec::{Bytes, record};
use skep_types::{Attributes, FileKind, InodeId, PatternRequest, StripePattern, byte_enum};

byte_enum! {
    /// How a file is opened.
    pub enum OpenMode {
        /// Not at all.
        No = 0,
        /// For reading.
        Read = 1,
        /// For writing, or both.
        Write = 2,
    }
}

record! {
    /// Makes a file that is not a directory, and opens it if asked.
    pub struct Create {
        /// The directory.
        pub directory: InodeId,
        /// The name.
        pub name: Bytes,
        /// Its kind: all but directories and symbolic links.
        pub kind: FileKind,
        /// Permissions and owner.
        pub new: NewInode,
        /// Device number, for device files.
        pub device: u64,
        /// Fail if the name exists; otherwise the existing regular file is opened.
        pub exclusive: bool,
        /// How to open it: see [`OpenMode`].
        pub open: OpenMode,
        /// The pattern that the client asks for. `None` is the same as a request with no field set.
        pub pattern: Option<PatternRequest>,
    }
}

record! {
    /// Makes a regular file that has no name, and opens it. It goes with its last close unless it
    /// was given a name.
    pub struct CreateUnnamed {
        /// The directory whose settings it gets.
        pub directory: InodeId,
        /// Permissions and owner.
        pub new: NewInode,
        /// How to open it; not `No`.
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
        /// How; not `No`.
        pub open: OpenMode,
        /// Cut it to nothing first.
        pub truncate: bool,
        /// `Stale`, and nothing is done, if it has lost its last name.
        pub must_have_name: bool,
    }
}

record! {
    /// An opened regular file.
    pub struct OpenReply {
        /// Whether the request made it.
        pub created: bool,
        /// Its attributes.
        pub attributes: Attributes,
        /// Where its bytes lie; none for other kinds than regular files.
        pub pattern: Option<StripePattern>,
        /// Whether other clients have it open too, and one of all of them may write.
        pub is_shared: bool,
    }
}

record! {
    /// How far a client has written.
    #[derive(Copy)]
    pub struct WrittenExtent {
        /// End of the furthest write; zero: none moved the end.
        pub end: u64,
        /// Truncate generation under which it was written: an older one doesn't move the end.
        pub truncate_generation: u64,
        /// Whether a write began beyond the end as its writer knew it.
        pub may_leave_holes: bool,
        /// Up to where chunk files may reach beyond the end, with room that is reserved or what a
        /// failed write has left; zero: not beyond.
        pub reach: u64,
    }
}

record! {
    /// Closes one open of the session. The last close of an unlinked file disposes of it.
    pub struct Close {
        /// The inode.
        pub inode: InodeId,
        /// How it was opened.
        pub open: OpenMode,
        /// What was written since the last report; none: nothing.
        pub written: Option<WrittenExtent>,
    }
}

record! {
    /// One open that has ended.
    #[derive(Copy)]
    pub struct ClosedFile {
        /// The inode.
        pub inode: InodeId,
        /// How it was opened.
        pub open: OpenMode,
    }
}

record! {
    /// Closes many opens of the session, nothing of which is left to be reported. Those that the
    /// session doesn't have are skipped. The last close of an unlinked file disposes of it.
    pub struct CloseMany {
        /// The opens, all of this group.
        pub files: Vec<ClosedFile>,
    }
}

record! {
    /// Reports what was written, while the file stays open (`fsync`, `stat` by the writer).
    pub struct ReportWritten {
        /// The inode.
        pub inode: InodeId,
        /// What was written since the last report.
        pub written: WrittenExtent,
    }
}
