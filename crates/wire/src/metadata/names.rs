//! Messages about the names of the namespace: lookup, directories, links, renames.

use skep_types::codec::{Bytes, record};
use skep_types::{Attributes, FileKind, InodeId};

record! {
    /// Owner and permissions of a new inode.
    #[derive(Copy)]
    pub struct NewInode {
        /// Permission bits.
        pub permissions: u32,
        /// Bits that the target clears in `permissions`, unless the directory has a default access
        /// control list.
        pub umask: u32,
        /// Owner.
        pub uid: u32,
        /// Group, unless the directory has the set-group-id bit and gives its own group.
        pub gid: u32,
    }
}

record! {
    /// The inode of an entry. If another target stores its attributes, the client asks that target
    /// by [`GetAttributes`](super::GetAttributes).
    pub struct EntryReply {
        /// The inode.
        pub inode: InodeId,
        /// Its kind.
        pub kind: FileKind,
        /// Its attributes. `None` means that another target stores them.
        pub attributes: Option<Attributes>,
    }
}

record! {
    /// Reply with bytes: the target of a symbolic link, or the value of an extended attribute.
    pub struct BytesReply {
        /// The bytes.
        pub bytes: Bytes,
    }
}

record! {
    /// Finds an entry by its name. The target returns `NotFound` if there is none.
    pub struct Lookup {
        /// The directory.
        pub directory: InodeId,
        /// The name.
        pub name: Bytes,
    }
}

record! {
    /// Creates a directory. The inode may be stored on another target than the entry.
    pub struct MakeDirectory {
        /// The parent directory.
        pub directory: InodeId,
        /// Its name.
        pub name: Bytes,
        /// Permissions and owner.
        pub new: NewInode,
    }
}

record! {
    /// Creates a symbolic link.
    pub struct MakeSymlink {
        /// The directory.
        pub directory: InodeId,
        /// The name.
        pub name: Bytes,
        /// The path that the link holds.
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
    /// Adds another name to an inode (a hard link).
    pub struct Link {
        /// The inode. It must not be a directory.
        pub inode: InodeId,
        /// The directory of the new name.
        pub directory: InodeId,
        /// The new name.
        pub name: Bytes,
    }
}

record! {
    /// Removes a name of an inode that is not a directory. With its last name the inode is deleted,
    /// or, if a session has it open, at the last close.
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
        /// The parent directory.
        pub directory: InodeId,
        /// Its name.
        pub name: Bytes,
    }
}

record! {
    /// Renames an entry. The client sends it to the group that serves the new directory.
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
        /// If set, the target leaves a character device with the number 0 at the old name. Overlay
        /// file systems take it for the mark that a lower name is deleted.
        pub whiteout: Option<NewInode>,
    }
}

record! {
    /// Exchanges the inodes of two names. Both names must exist. The client sends it to the group
    /// that serves the second directory.
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
    /// Reads the entries of a directory after a cursor.
    pub struct ReadDirectory {
        /// The directory.
        pub directory: InodeId,
        /// Cursor of the last entry that the client got. Zero starts at the beginning.
        pub cursor: u64,
        /// Upper bound of the size of the reply.
        pub max_bytes: u32,
        /// Return the attributes too, where the same target stores them.
        pub with_attributes: bool,
    }
}

record! {
    /// One entry of a directory.
    pub struct DirectoryEntry {
        /// Cursor of the entry, at least 256. It rises from entry to entry and stays valid while
        /// the directory changes.
        pub cursor: u64,
        /// Name.
        pub name: Bytes,
        /// Inode and kind, and the attributes if the client asked for them.
        pub entry: EntryReply,
    }
}

record! {
    /// Reply to [`ReadDirectory`]. `.` and `..` are not among the entries.
    pub struct DirectoryEntries {
        /// The directory's parent (the root's is the root).
        pub parent: InodeId,
        /// The entries in the order of their cursors.
        pub entries: Vec<DirectoryEntry>,
        /// Whether these are the last entries.
        pub end: bool,
    }
}
