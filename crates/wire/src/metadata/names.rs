//! Messages about the namespace: lookup, directories, links, renames.

use skep_types::codec::{Bytes, Codec, record};
use skep_types::{Attributes, FileKind, InodeId};

record! {
    /// Owner and permissions of a new inode.
    #[derive(Copy)]
    pub struct NewInode {
        /// Permission bits that the client requests.
        pub permissions: u32,
        /// Bits to clear in `permissions`. Ignored if the directory has a default access control
        /// list.
        pub umask: u32,
        /// User id of the owner.
        pub uid: u32,
        /// Group id. If the directory has the set-group-id bit, the inode gets the group of the
        /// directory instead.
        pub gid: u32,
    }
}

record! {
    /// The inode to which an entry points. If a different target stores the attributes, the client
    /// reads them from that target by [`GetAttributes`](super::GetAttributes).
    pub struct EntryReply {
        /// The inode.
        pub inode: InodeId,
        /// Kind of the inode.
        pub kind: FileKind,
        /// Attributes of the inode. `None` means that a different target stores the attributes.
        pub attributes: Option<Attributes>,
    }
}

record! {
    /// Reply to a request that creates a name.
    pub struct NewEntryReply {
        /// The inode to which the name refers.
        pub entry: EntryReply,
        /// Attributes of the directory after the change. `None` if the target replies to a retry of
        /// the request.
        pub directory: Option<Attributes>,
    }
}

record! {
    /// Reply to a request that removes or moves a name in a directory.
    pub struct NamesReply {
        /// Attributes of the directory after the change. For a rename, this is the directory of the
        /// new name. `None` if nothing has changed, if the target replies to a retry of the
        /// request, or if the target does not return the attributes.
        pub directory: Option<Attributes>,
    }
}

record! {
    /// A reply that consists of bytes: the target path of a symbolic link, or the value of an
    /// extended attribute.
    pub struct BytesReply {
        /// The bytes.
        pub bytes: Bytes,
    }
}

record! {
    /// Looks up an entry by name. The target returns `NotFound` if there is no such entry.
    pub struct Lookup {
        /// The directory.
        pub directory: InodeId,
        /// Name of the entry.
        pub name: Bytes,
    }
}

record! {
    /// Creates a directory. Entry and inode may be stored on different targets.
    pub struct MakeDirectory {
        /// The parent directory.
        pub directory: InodeId,
        /// Name of the new directory.
        pub name: Bytes,
        /// Permissions and owner of the new directory.
        pub new: NewInode,
    }
}

record! {
    /// Creates a symbolic link.
    pub struct MakeSymlink {
        /// The directory of the new entry.
        pub directory: InodeId,
        /// Name of the new entry.
        pub name: Bytes,
        /// Target path of the symbolic link.
        pub link_target: Bytes,
        /// Permissions and owner of the link.
        pub new: NewInode,
    }
}

record! {
    /// Reads the target path of a symbolic link.
    pub struct ReadLink {
        /// Inode of the symbolic link.
        pub inode: InodeId,
    }
}

record! {
    /// Creates a hard link: another name for an inode.
    pub struct Link {
        /// The inode, which must not be a directory.
        pub inode: InodeId,
        /// The directory of the new name.
        pub directory: InodeId,
        /// The new name.
        pub name: Bytes,
    }
}

record! {
    /// Removes a name of an inode that is not a directory. The target deletes the inode together
    /// with its last name. If a session has the inode open, the target deletes the inode only at
    /// its last close.
    pub struct Unlink {
        /// The directory of the name.
        pub directory: InodeId,
        /// The name to remove.
        pub name: Bytes,
    }
}

record! {
    /// Removes an empty directory.
    pub struct RemoveDirectory {
        /// The parent directory.
        pub directory: InodeId,
        /// Name of the directory to remove.
        pub name: Bytes,
    }
}

record! {
    /// Renames an entry. Clients must send this request to the group that serves the directory of
    /// the new name.
    pub struct Rename {
        /// Directory of the old name.
        pub from_directory: InodeId,
        /// The old name.
        pub from_name: Bytes,
        /// Directory of the new name.
        pub to_directory: InodeId,
        /// The new name.
        pub to_name: Bytes,
        /// Whether the request fails if the new name exists.
        pub no_replace: bool,
        /// If this field is set, the target creates a character device with device number 0 at the
        /// old name. Overlay file systems use such a device as a whiteout, which hides the name in
        /// a lower layer.
        pub whiteout: Option<NewInode>,
    }
}

record! {
    /// Exchanges the inodes of two names, which must both exist. Clients must send this request to
    /// the group that serves the directory of the second name.
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

/// Adds the attributes of the changed directory to an encoded reply. The last field of the reply
/// must be `directory`, with the value `None`.
///
/// A target stores each reply in its log without these attributes, so that log records stay short.
/// The target adds the attributes before it sends the reply.
///
/// # Panics
/// Panics if the reply does not end with `None`.
pub fn add_directory(reply: &mut Vec<u8>, directory: &Attributes) {
    assert_eq!(reply.pop(), Some(0), "the reply ends with an empty `directory`");
    reply.push(1);
    reply.extend(directory.to_bytes());
}

record! {
    /// Reads the entries of a directory that follow a cursor.
    pub struct ReadDirectory {
        /// The directory.
        pub directory: InodeId,
        /// Cursor of the last entry that the client has received. Zero starts at the beginning.
        pub cursor: u64,
        /// Maximum size of the entries in the reply, in bytes.
        pub max_bytes: u32,
        /// Whether the reply includes the attributes of the entries' inodes, as far as the target
        /// stores these inodes itself.
        pub with_attributes: bool,
    }
}

record! {
    /// One entry of a directory.
    pub struct DirectoryEntry {
        /// Cursor of the entry, at least 256. Cursors ascend in the order of the entries and stay
        /// valid while the directory changes.
        pub cursor: u64,
        /// Name of the entry.
        pub name: Bytes,
        /// The inode and its kind, with its attributes if the client asked for them.
        pub entry: EntryReply,
    }
}

record! {
    /// Reply to [`ReadDirectory`]. The entries do not include `.` and `..`.
    pub struct DirectoryEntries {
        /// Parent of the directory. The parent of the root is the root.
        pub parent: InodeId,
        /// The entries in ascending order of their cursors.
        pub entries: Vec<DirectoryEntry>,
        /// Whether the directory has no more entries after the entries of this reply.
        pub end: bool,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::Timestamp;

    #[test]
    fn directory_attributes_are_added_to_replies_about_names() {
        let (inode, kind) = (InodeId::new(9), FileKind::Directory);
        let attributes = Attributes::new(inode, kind, 0o755, Timestamp::default());
        let mut names = NamesReply { directory: None }.to_bytes();
        add_directory(&mut names, &attributes);
        let names = NamesReply::from_bytes(&names).unwrap();
        assert_eq!(names.directory.as_ref(), Some(&attributes));
        let entry = EntryReply { inode, kind, attributes: Some(attributes.clone()) };
        let mut made = NewEntryReply { entry: entry.clone(), directory: None }.to_bytes();
        add_directory(&mut made, &attributes);
        let expected = NewEntryReply { entry, directory: Some(attributes) };
        assert_eq!(NewEntryReply::from_bytes(&made).unwrap(), expected);
    }
}
