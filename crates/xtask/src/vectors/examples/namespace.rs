//! Examples of messages to metadata targets about names, directories, links and extended
//! attributes.

use super::{a_directory, a_file, a_name, attributes};
use crate::vectors::{Example, example};
use skep_types::codec::Bytes;
use skep_types::{FileKind, InodeId};
use skep_wire::management::EmptyReply;
use skep_wire::metadata::{
    AttributesReply, BytesReply, DirectoryEntries, DirectoryEntry, EntryReply, Exchange,
    GetAttributes, GetXattr, Link, ListXattrs, Lookup, MakeDirectory, MakeSymlink, NamesReply,
    NewEntryReply, NewInode, ReadDirectory, ReadLink, RemoveDirectory, RemoveXattr, Rename,
    SetXattr, Unlink, XattrMode, XattrNames,
};

fn new_inode() -> NewInode {
    NewInode { permissions: 0o1777, umask: 0o22, uid: 0, gid: 4 }
}

fn entry(inode: InodeId, kind: FileKind) -> EntryReply {
    EntryReply { inode, kind, attributes: Some(attributes(inode, kind)) }
}

/// Returns the reply to the creation of an entry in the root directory.
fn new_entry(inode: InodeId, kind: FileKind) -> NewEntryReply {
    let directory = Some(attributes(InodeId::ROOT, FileKind::Directory));
    NewEntryReply { entry: entry(inode, kind), directory }
}

/// Returns a directory entry whose inode is stored on a different target than the entry.
fn entry_on_other_target() -> EntryReply {
    EntryReply { inode: a_directory(), kind: FileKind::Directory, attributes: None }
}

fn entries() -> Vec<Example> {
    let directory = InodeId::ROOT;
    let lookup = Lookup { directory, name: a_name() };
    let stat = GetAttributes { inode: directory };
    let root = AttributesReply { attributes: attributes(directory, FileKind::Directory) };
    let make = MakeDirectory { directory, name: a_name(), new: new_inode() };
    let link_target = Bytes::from(&b"../some where/else"[..]);
    let symlink = MakeSymlink {
        directory,
        name: a_name(),
        link_target: link_target.clone(),
        new: new_inode(),
    };
    let link = Link { inode: a_file(), directory, name: a_name() };
    let rename = Rename {
        from_directory: a_directory(),
        from_name: Bytes::from(&b"draft~"[..]),
        to_directory: directory,
        to_name: a_name(),
        no_replace: true,
        whiteout: Some(new_inode()),
    };
    let exchange = Exchange {
        from_directory: directory,
        from_name: a_name(),
        to_directory: a_directory(),
        to_name: Bytes::from(&b"staging"[..]),
    };
    let changed = NamesReply { directory: Some(attributes(directory, FileKind::Directory)) };
    vec![
        example(&lookup, &entry(a_file(), FileKind::Regular))
            .reply::<Lookup>(&entry_on_other_target()),
        example(&stat, &root),
        example(&make, &new_entry(a_directory(), FileKind::Directory)),
        example(&symlink, &new_entry(a_file(), FileKind::Symlink)),
        example(&ReadLink { inode: a_file() }, &BytesReply { bytes: link_target }),
        example(&link, &new_entry(a_file(), FileKind::Socket)),
        example(&Unlink { directory, name: a_name() }, &changed),
        example(&RemoveDirectory { directory, name: Bytes::from(vec![b'x'; 255]) }, &changed),
        example(&rename, &changed),
        example(&exchange, &NamesReply { directory: None }),
    ]
}

fn listing() -> Example {
    let request = ReadDirectory {
        directory: a_directory(),
        cursor: 256,
        max_bytes: 65_536,
        with_attributes: true,
    };
    let listed = |cursor, name: &[u8], entry| DirectoryEntry { cursor, name: name.into(), entry };
    let page = DirectoryEntries {
        parent: InodeId::ROOT,
        entries: vec![
            listed(257, b"plain", entry(a_file(), FileKind::Regular)),
            listed(u64::MAX, b"\xff\\not text\x01", entry_on_other_target()),
        ],
        end: false,
    };
    let last = DirectoryEntries { parent: InodeId::ROOT, entries: Vec::new(), end: true };
    example(&request, &page).reply::<ReadDirectory>(&last)
}

fn xattrs() -> Vec<Example> {
    let inode = a_file();
    let name = Bytes::from(&b"user.colour"[..]);
    let value = Bytes::from(&b"\x00binary\xff"[..]);
    let set = SetXattr {
        inode,
        name: name.clone(),
        value: value.clone(),
        mode: XattrMode::Replace,
        clear_set_group_id: true,
    };
    let create = SetXattr { value: Bytes::default(), mode: XattrMode::Create, ..set.clone() };
    let names = XattrNames { names: vec![name.clone(), Bytes::from(&b"user.x"[..])] };
    vec![
        example(&GetXattr { inode, name: name.clone() }, &BytesReply { bytes: value }),
        example(&set, &EmptyReply {}).request(&create),
        example(&ListXattrs { inode }, &names),
        example(&RemoveXattr { inode, name }, &EmptyReply {}),
    ]
}

pub(super) fn examples() -> Vec<Example> {
    let mut all = entries();
    all.push(listing());
    all.extend(xattrs());
    all
}
