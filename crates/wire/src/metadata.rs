//! Messages to metadata targets: the namespace, sessions, and (in `transactions`) what targets ask
//! of each other.

mod transactions;

pub use transactions::{
    AskDecision, Decide, Decision, DecisionReply, Prepare, PrepareReply, Step, TransactionId,
};

use skep_types::codec::{Bytes, record};
use skep_types::{
    Attributes, FileKind, InodeId, NodeId, PatternRequest, SessionId, StripePattern, Timestamp,
    byte_enum,
};

record! {
    /// Opens the session in the header, or confirms it. Other requests of an unknown session get
    /// `StaleSession`.
    pub struct OpenSession {
        /// The client.
        pub client: NodeId,
        /// Slots wanted.
        pub slots: u32,
    }
}

record! {
    /// Answer to [`OpenSession`].
    pub struct OpenSessionReply {
        /// Slots granted: numbers 0 to `slots` - 1 may be used.
        pub slots: u32,
        /// The session ends when nothing was heard of it for so long.
        pub lease_ms: u32,
    }
}

record! {
    /// Renews the session's lease.
    pub struct KeepAlive {
        /// The lease by which the sender renews: the session doesn't end before it, even if the
        /// cluster's leases have become shorter and the sender doesn't know yet.
        pub lease_ms: u32,
    }
}

record! {
    /// Answer to [`KeepAlive`].
    pub struct KeepAliveReply {
        /// The lease by which to renew from now on.
        pub lease_ms: u32,
    }
}

record! {
    /// Ends the session in the header: its open files are closed.
    pub struct CloseSession {}
}

record! {
    /// Finds an entry.
    pub struct Lookup {
        /// The directory.
        pub directory: InodeId,
        /// The name.
        pub name: Bytes,
    }
}

record! {
    /// The inode that a request was about. When its attributes live on another target, only the id
    /// and kind are given, and the asker asks there.
    pub struct EntryReply {
        /// The inode.
        pub inode: InodeId,
        /// Its kind.
        pub kind: FileKind,
        /// Its attributes, if they live on the same target as the entry.
        pub attributes: Option<Attributes>,
    }
}

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
    /// Who makes a new inode, and how.
    #[derive(Copy)]
    pub struct NewInode {
        /// Permission bits.
        pub permissions: u32,
        /// Bits that are taken away from them, unless the directory hands down an access control
        /// list.
        pub umask: u32,
        /// Owner.
        pub uid: u32,
        /// Group, unless the directory hands down its own.
        pub gid: u32,
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

record! {
    /// Makes a directory, perhaps on another target.
    pub struct MakeDirectory {
        /// The directory in which it is made.
        pub directory: InodeId,
        /// Its name.
        pub name: Bytes,
        /// Permissions and owner.
        pub new: NewInode,
    }
}

record! {
    /// Makes a symbolic link.
    pub struct MakeSymlink {
        /// The directory.
        pub directory: InodeId,
        /// The name.
        pub name: Bytes,
        /// What it points to.
        pub link_target: Bytes,
        /// Permissions and owner.
        pub new: NewInode,
    }
}

record! {
    /// Reads a symbolic link.
    pub struct ReadLink {
        /// The inode.
        pub inode: InodeId,
    }
}

record! {
    /// Bytes: a link's target, an attribute's value.
    pub struct BytesReply {
        /// The bytes.
        pub bytes: Bytes,
    }
}

record! {
    /// Gives an inode another name.
    pub struct Link {
        /// The inode: no directory.
        pub inode: InodeId,
        /// The directory of the new name.
        pub directory: InodeId,
        /// The new name.
        pub name: Bytes,
    }
}

record! {
    /// Removes a name that is not a directory's.
    pub struct Unlink {
        /// The directory.
        pub directory: InodeId,
        /// The name.
        pub name: Bytes,
    }
}

record! {
    /// Removes an empty directory.
    pub struct RemoveDirectory {
        /// The directory in which it lies.
        pub directory: InodeId,
        /// Its name.
        pub name: Bytes,
    }
}

record! {
    /// Renames an entry. Sent to the group that serves the new directory.
    pub struct Rename {
        /// The old directory.
        pub from_directory: InodeId,
        /// The old name.
        pub from_name: Bytes,
        /// The new directory.
        pub to_directory: InodeId,
        /// The new name.
        pub to_name: Bytes,
        /// Fail if the new name exists.
        pub no_replace: bool,
        /// What is left at the old name, if anything: a character device with the number 0, which
        /// overlay file systems take for the mark that a name below is gone.
        pub whiteout: Option<NewInode>,
    }
}

record! {
    /// Swaps what two names point to; both must exist. Sent to the group that serves the second
    /// directory.
    pub struct Exchange {
        /// The directory of the first name.
        pub from_directory: InodeId,
        /// The first name.
        pub from_name: Bytes,
        /// The directory of the second name.
        pub to_directory: InodeId,
        /// The second name.
        pub to_name: Bytes,
    }
}

record! {
    /// Reads entries after a cursor.
    pub struct ReadDirectory {
        /// The directory.
        pub directory: InodeId,
        /// Cursor of the last entry seen; zero: from the start.
        pub cursor: u64,
        /// Most bytes of reply.
        pub max_bytes: u32,
        /// Give attributes too, where they live on the same target.
        pub with_attributes: bool,
    }
}

record! {
    /// One entry of a directory.
    pub struct DirectoryEntry {
        /// Cursor of the entry: rises, stays right while the directory changes, at least 256.
        pub cursor: u64,
        /// Name.
        pub name: Bytes,
        /// Inode and kind, and attributes where asked for.
        pub entry: EntryReply,
    }
}

record! {
    /// Answer to [`ReadDirectory`]. `.` and `..` are not among the entries.
    pub struct DirectoryEntries {
        /// The directory's parent (the root's is the root).
        pub parent: InodeId,
        /// Entries in the order of their cursors.
        pub entries: Vec<DirectoryEntry>,
        /// Whether there are no more.
        pub end: bool,
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

record! {
    /// Waits until all that was acknowledged is on the device (`fsync` of a directory).
    pub struct SyncAll {}
}

record! {
    /// Lists the sessions that a target keeps.
    pub struct ListSessions {
        /// Only what comes after this session; zero: from the beginning.
        pub after: SessionId,
    }
}

record! {
    /// A client's session at one target.
    pub struct SessionEntry {
        /// The session.
        pub session: SessionId,
        /// The client that it belongs to.
        pub client: NodeId,
        /// Slots granted.
        pub slots: u32,
        /// It ends when nothing was heard of it for so long.
        pub lease_ms: u32,
        /// For how long it was silent.
        pub silent_ms: u64,
        /// How many files it has open here; counted up to a limit.
        pub open_files: u32,
    }
}

record! {
    /// Answer to [`ListSessions`].
    pub struct SessionList {
        /// By rising session.
        pub sessions: Vec<SessionEntry>,
        /// The next page's `after`; none: all is told.
        pub next: Option<SessionId>,
    }
}
