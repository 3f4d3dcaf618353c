//! Messages about the names of the namespace: lookup, directories, links, renames.

use skep_types::codec::{Bytes, record};
use skep_types::{Attributes, FileKind, InodeId};

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
    /// Bytes: a link's target, an attribute's value.
    pub struct BytesReply {
        /// The bytes.
        pub bytes: Bytes,
    }
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
