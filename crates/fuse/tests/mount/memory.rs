//! An in-memory file system to mount, as simple as possible, with one lock for all its state.
//!
//! Operations on some names wait, as on a dead server. A lookup of `never...` waits for ever. A
//! creation of `slow` waits until a file `go` exists in the root directory. Just before a program
//! opens the file of a name `replaced...`, another file gets this name, as if another host renamed
//! it there. The reply to the first lookup of `late` arrives late, and another file gets this name
//! meanwhile. In the directory `flaps`, another host creates each file before a program does, and
//! removes all files when the kernel looks up the directory.

mod attributes;
mod data;
mod locks;

use skep_client::{
    Directories, DirectoryEntries, DirectoryEntry, EntryReply, FileLock, HandleId, LockKind, Names,
    NewInode, OpenedFile, StatFs,
};
use skep_types::{Attributes, Error, ErrorCode, FileKind, InodeId, Result};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

struct Node {
    attributes: Attributes,
    data: Vec<u8>,
    parent: InodeId,
    /// Cursor and inode of each entry, by name.
    entries: HashMap<Vec<u8>, (u64, InodeId)>,
    names: BTreeMap<u64, Vec<u8>>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    opens: u32,
    /// Number of the opens that belong to the mount itself and not to a program.
    holds: u32,
    syncs: u32,
    reads: u32,
    locks: Vec<(Owner, FileLock)>,
}

/// Extended attribute that marks a file as shared with other mounts. Each read of a shared file
/// stores the number of reads in the first four bytes of the file, as if another mount had written
/// there.
pub(crate) const SHARED: &str = "user.shared";

/// Extended attribute of a file whose permissions another host sets to 4600. The other host does
/// this right after the mount has read the attributes to clear the set-user-id bit.
pub(crate) const CHMOD: &str = "user.chmod";

impl Node {
    fn is_shared(&self) -> bool {
        self.xattrs.contains_key(SHARED.as_bytes())
    }
}

/// Owner of a lock: the kind of the lock, and the id that the kernel has given to the owner.
type Owner = (LockKind, u64);

#[derive(Default)]
struct Tree {
    nodes: HashMap<InodeId, Node>,
    handles: HashMap<u64, InodeId>,
    synced: HashSet<HandleId>,
    next: u64,
    /// Number of waiting creations of `slow`.
    waiting: u64,
    /// Number of files that have got a name `replaced...`.
    replacements: u64,
    /// The handles that the mount itself uses.
    holds: HashSet<u64>,
}

/// The file system. Clones share its state, and may be sent to other threads.
#[derive(Clone)]
pub(crate) struct Memory(Arc<Mutex<Tree>>);

fn fail<T>(code: ErrorCode) -> Result<T> {
    Err(Error::from(code))
}

fn is_directory(node: &Node) -> bool {
    node.attributes.kind == FileKind::Directory
}

impl Tree {
    fn node(&mut self, inode: InodeId) -> Result<&mut Node> {
        self.nodes.get_mut(&inode).ok_or_else(|| Error::from(ErrorCode::Stale))
    }

    fn find(&mut self, directory: InodeId, name: &[u8]) -> Result<InodeId> {
        let node = self.node(directory)?;
        node.entries.get(name).map(|(_, inode)| *inode).ok_or_else(|| ErrorCode::NotFound.into())
    }

    fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn add_node(&mut self, parent: InodeId, kind: FileKind, new: NewInode) -> InodeId {
        let inode = InodeId::new(self.next());
        let attributes = Attributes {
            links: if kind == FileKind::Directory { 2 } else { 1 },
            uid: new.uid,
            gid: new.gid,
            ..Attributes::new(inode, kind, new.permissions & !new.umask, skep_env::wall_time())
        };
        let node = Node {
            attributes,
            data: Vec::new(),
            parent,
            entries: HashMap::new(),
            names: BTreeMap::new(),
            xattrs: BTreeMap::new(),
            opens: 0,
            holds: 0,
            syncs: 0,
            reads: 0,
            locks: Vec::new(),
        };
        self.nodes.insert(inode, node);
        inode
    }

    fn add_entry(&mut self, directory: InodeId, name: &[u8], inode: InodeId) -> Result<()> {
        let cursor = self.next();
        let node = self.node(directory)?;
        node.entries.insert(name.to_vec(), (cursor, inode));
        node.names.insert(cursor, name.to_vec());
        node.attributes.size = node.entries.len() as u64;
        node.attributes.modified = skep_env::wall_time();
        node.attributes.changed = node.attributes.modified;
        Ok(())
    }

    fn remove_entry(&mut self, directory: InodeId, name: &[u8]) -> Result<()> {
        let node = self.node(directory)?;
        if let Some((cursor, _)) = node.entries.remove(name) {
            node.names.remove(&cursor);
        }
        node.attributes.size = node.entries.len() as u64;
        node.attributes.modified = skep_env::wall_time();
        node.attributes.changed = node.attributes.modified;
        Ok(())
    }

    fn drop_link(&mut self, inode: InodeId) -> Result<()> {
        let node = self.node(inode)?;
        node.attributes.links = node.attributes.links.saturating_sub(1);
        node.attributes.changed = skep_env::wall_time();
        self.dispose(inode)
    }

    fn dispose(&mut self, inode: InodeId) -> Result<()> {
        let node = self.node(inode)?;
        if node.attributes.links == 0 && node.opens == 0 {
            self.nodes.remove(&inode);
        }
        Ok(())
    }

    fn make(
        &mut self,
        directory: InodeId,
        name: &[u8],
        kind: FileKind,
        new: NewInode,
    ) -> Result<InodeId> {
        match self.find(directory, name) {
            Ok(_) => return fail(ErrorCode::Exists),
            Err(error) if error.code() != ErrorCode::NotFound => return Err(error),
            Err(_) => {}
        }
        let inode = self.add_node(directory, kind, new);
        self.add_entry(directory, name, inode)?;
        if kind == FileKind::Directory {
            self.node(directory)?.attributes.links += 1;
        }
        Ok(inode)
    }

    /// If the name of the inode is `replaced...`, replaces its file by a new file.
    fn replace_name_of(&mut self, inode: InodeId) -> Result<()> {
        let entries = &self.node(InodeId::ROOT)?.entries;
        let is_found = |(name, (_, of)): &(&Vec<u8>, &(u64, InodeId))| {
            *of == inode && name.starts_with(b"replaced")
        };
        let Some(name) = entries.iter().find(is_found).map(|(name, _)| name.clone()) else {
            return Ok(());
        };
        self.replacements += 1;
        let text = format!("file {}", self.replacements);
        let new = NewInode { permissions: 0o644, umask: 0, uid: 0, gid: 0 };
        self.remove_entry(InodeId::ROOT, &name)?;
        self.drop_link(inode)?;
        let newest = self.make(InodeId::ROOT, &name, FileKind::Regular, new)?;
        let node = self.node(newest)?;
        node.data = text.into_bytes();
        node.attributes.size = node.data.len() as u64;
        Ok(())
    }

    /// Creates a file with a new name, and then replaces it by another file. Returns the attributes
    /// that the first file had before. The first file stays, as if another host had it open.
    fn make_and_replace(&mut self, name: &[u8]) -> Result<Attributes> {
        let new = NewInode { permissions: 0o644, umask: 0, uid: 0, gid: 0 };
        let first = self.make(InodeId::ROOT, name, FileKind::Regular, new)?;
        self.node(first)?.opens += 1;
        let before = self.node(first)?.attributes.clone();
        self.remove_entry(InodeId::ROOT, name)?;
        self.drop_link(first)?;
        self.make(InodeId::ROOT, name, FileKind::Regular, new)?;
        Ok(before)
    }

    /// Removes all files in a directory, as another host would do.
    fn remove_files_of(&mut self, directory: InodeId) -> Result<()> {
        let entries = self.node(directory)?.entries.iter();
        let files: Vec<_> = entries.map(|(name, (_, inode))| (name.clone(), *inode)).collect();
        for (name, inode) in files {
            self.remove_entry(directory, &name)?;
            self.drop_link(inode)?;
        }
        Ok(())
    }

    fn open(&mut self, inode: InodeId) -> Result<HandleId> {
        self.node(inode)?.opens += 1;
        let handle = self.next();
        self.handles.insert(handle, inode);
        Ok(HandleId::new(handle))
    }

    fn opened_file(&mut self, inode: InodeId, truncate: bool) -> Result<OpenedFile> {
        if truncate {
            Self::resize(self.node(inode)?, 0);
        }
        let handle = self.open(inode)?;
        let (keep_cache, are_attributes_shown, is_shared) = (false, false, false);
        Ok(OpenedFile { handle, keep_cache, are_attributes_shown, is_shared })
    }

    fn opened(&mut self, handle: HandleId) -> Result<&mut Node> {
        let inode =
            *self.handles.get(&handle.raw()).ok_or_else(|| Error::from(ErrorCode::Stale))?;
        self.node(inode)
    }

    fn resize(node: &mut Node, size: u64) {
        node.data.resize(size as usize, 0);
        node.attributes.size = size;
        node.attributes.modified = skep_env::wall_time();
        node.attributes.changed = node.attributes.modified;
    }
}

impl Memory {
    pub(crate) fn new() -> Self {
        let mut tree = Tree::default();
        let new = NewInode { permissions: 0o755, umask: 0, uid: 0, gid: 0 };
        let root = tree.add_node(InodeId::ROOT, FileKind::Directory, new);
        assert_eq!(root, InodeId::ROOT);
        tree.next = 256;
        Self(Arc::new(Mutex::new(tree)))
    }

    fn with<T>(&self, f: impl FnOnce(&mut Tree) -> Result<T>) -> Result<T> {
        f(&mut self.0.lock().unwrap())
    }
}

impl Names for Memory {
    async fn lookup(&self, directory: InodeId, name: &[u8]) -> Result<Attributes> {
        if name.starts_with(b"never") {
            std::future::pending::<()>().await;
        }
        if name == b"late" && self.with(|tree| Ok(tree.find(directory, name).is_err()))? {
            let found = self.with(|tree| tree.make_and_replace(name));
            skep_env::sleep(skep_fuse::VALIDITY).await;
            return found;
        }
        self.with(|tree| {
            let inode = tree.find(directory, name)?;
            if name == b"flaps" {
                tree.remove_files_of(inode)?;
            }
            Ok(tree.node(inode)?.attributes.clone())
        })
    }

    async fn make_directory(
        &self,
        directory: InodeId,
        name: &[u8],
        new: NewInode,
    ) -> Result<Attributes> {
        self.with(|tree| {
            let inode = tree.make(directory, name, FileKind::Directory, new)?;
            Ok(tree.node(inode)?.attributes.clone())
        })
    }

    async fn make_symlink(
        &self,
        directory: InodeId,
        name: &[u8],
        link_target: &[u8],
        new: NewInode,
    ) -> Result<Attributes> {
        self.with(|tree| {
            let inode = tree.make(directory, name, FileKind::Symlink, new)?;
            let node = tree.node(inode)?;
            node.data = link_target.to_vec();
            node.attributes.size = link_target.len() as u64;
            Ok(node.attributes.clone())
        })
    }

    async fn read_link(&self, inode: InodeId) -> Result<Vec<u8>> {
        self.with(|tree| Ok(tree.node(inode)?.data.clone()))
    }

    async fn link(&self, inode: InodeId, directory: InodeId, name: &[u8]) -> Result<Attributes> {
        self.with(|tree| {
            if tree.find(directory, name).is_ok() {
                return fail(ErrorCode::Exists);
            }
            tree.add_entry(directory, name, inode)?;
            let node = tree.node(inode)?;
            node.attributes.links += 1;
            Ok(node.attributes.clone())
        })
    }

    async fn unlink(&self, directory: InodeId, name: &[u8]) -> Result<()> {
        self.with(|tree| {
            let inode = tree.find(directory, name)?;
            if is_directory(tree.node(inode)?) {
                return fail(ErrorCode::IsDirectory);
            }
            tree.remove_entry(directory, name)?;
            tree.drop_link(inode)
        })
    }

    async fn remove_directory(&self, directory: InodeId, name: &[u8]) -> Result<()> {
        self.with(|tree| {
            let inode = tree.find(directory, name)?;
            let node = tree.node(inode)?;
            if !is_directory(node) {
                return fail(ErrorCode::NotDirectory);
            }
            if !node.entries.is_empty() {
                return fail(ErrorCode::NotEmpty);
            }
            node.attributes.links = 0;
            tree.remove_entry(directory, name)?;
            tree.node(directory)?.attributes.links -= 1;
            tree.dispose(inode)
        })
    }

    async fn rename(
        &self,
        from_directory: InodeId,
        from_name: &[u8],
        to_directory: InodeId,
        to_name: &[u8],
        no_replace: bool,
        _whiteout: Option<NewInode>,
    ) -> Result<()> {
        self.with(|tree| {
            let inode = tree.find(from_directory, from_name)?;
            let replaced = tree.find(to_directory, to_name).ok();
            if replaced.is_some() && no_replace {
                return fail(ErrorCode::Exists);
            }
            if let Some(replaced) = replaced {
                if !tree.node(replaced)?.entries.is_empty() {
                    return fail(ErrorCode::NotEmpty);
                }
                tree.remove_entry(to_directory, to_name)?;
                tree.drop_link(replaced)?;
            }
            tree.remove_entry(from_directory, from_name)?;
            tree.add_entry(to_directory, to_name, inode)?;
            tree.node(inode)?.parent = to_directory;
            Ok(())
        })
    }

    async fn exchange(
        &self,
        from_directory: InodeId,
        from_name: &[u8],
        to_directory: InodeId,
        to_name: &[u8],
    ) -> Result<()> {
        self.with(|tree| {
            let first = tree.find(from_directory, from_name)?;
            let second = tree.find(to_directory, to_name)?;
            tree.remove_entry(from_directory, from_name)?;
            tree.remove_entry(to_directory, to_name)?;
            tree.add_entry(from_directory, from_name, second)?;
            tree.add_entry(to_directory, to_name, first)?;
            tree.node(first)?.parent = to_directory;
            tree.node(second)?.parent = from_directory;
            Ok(())
        })
    }
}

impl Directories for Memory {
    async fn parent(&self, directory: InodeId) -> Result<Attributes> {
        self.with(|tree| {
            let parent = tree.node(directory)?.parent;
            Ok(tree.node(parent)?.attributes.clone())
        })
    }

    async fn open_directory(&self, _: InodeId, _: Duration) -> Result<bool> {
        Ok(false)
    }

    async fn read_directory(
        &self,
        directory: InodeId,
        cursor: u64,
        max_bytes: u32,
        with_attributes: bool,
    ) -> Result<DirectoryEntries> {
        self.with(|tree| {
            let node = tree.node(directory)?;
            let parent = node.parent;
            let most = (max_bytes / 32).max(1) as usize;
            let after = node.names.range(cursor + 1..).take(most + 1);
            let mut found: Vec<_> = after.map(|(at, name)| (*at, name.clone())).collect();
            let end = found.len() <= most;
            found.truncate(most);
            let mut entries = Vec::new();
            for (cursor, name) in found {
                let inode = tree.find(directory, &name)?;
                let attributes = tree.node(inode)?.attributes.clone();
                let kind = attributes.kind;
                // Every third entry has no attributes, like an entry whose inode is on a different
                // target.
                let attributes = (with_attributes && cursor % 3 != 0).then_some(attributes);
                let entry = EntryReply { inode, kind, attributes };
                entries.push(DirectoryEntry { cursor, name: name.into(), entry });
            }
            Ok(DirectoryEntries { parent, entries, end })
        })
    }

    async fn statfs(&self) -> Result<StatFs> {
        self.with(|tree| {
            Ok(StatFs {
                total_bytes: 1 << 40,
                free_bytes: 1 << 39,
                // In these two fields, the tests read the number of open handles and the number of
                // waiting creations.
                files: tree.handles.len() as u64,
                free_files: tree.waiting,
                name_max: 255,
            })
        })
    }
}
