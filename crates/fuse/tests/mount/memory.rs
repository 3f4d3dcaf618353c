//! An in-memory file system to mount, as simple as possible, with one lock for all its state.
//!
//! Some names are special: they wait, as on a dead server. Looking up `never...` waits for ever.
//! Creating `slow` waits until a file `go` exists in the root directory.
use skep_client::{
    Allocates, Allocation, Closes, Copies, CreateRequest, Created, Directories, DirectoryEntries,
    DirectoryEntry, EntryReply, FileLock, HandleId, HeldLock, InodeAttributes, LockKind, LockMode,
    LockOutcome, Locks, Names, NewInode, OpenMode, OpenedFile, Opens, Patterns, Queries, Reads,
    SeekTarget, SetAttributes, SetTime, Stat, StatFs, Syncs, Writes, XattrMode, Xattrs,
};
use skep_env::Buf;
use skep_types::{
    Attributes, Error, ErrorCode, FileKind, InodeId, PatternRequest, Result, SessionId, Timestamp,
};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
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
    syncs: u32,
    locks: Vec<(Owner, FileLock)>,
}

/// Kind of the lock, and the kernel's number of the lock's owner.
type Owner = (LockKind, u64);

#[derive(Default)]
struct Tree {
    nodes: HashMap<InodeId, Node>,
    handles: HashMap<u64, InodeId>,
    synced: HashSet<HandleId>,
    next: u64,
    /// Number of creations of `slow` that wait.
    waiting: u64,
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
            syncs: 0,
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

    fn open(&mut self, inode: InodeId) -> Result<HandleId> {
        self.node(inode)?.opens += 1;
        let handle = self.next();
        self.handles.insert(handle, inode);
        Ok(HandleId::new(handle))
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

fn owner_of(handle: HandleId, lock: &FileLock) -> Owner {
    match lock.kind {
        LockKind::Posix | LockKind::Append => (lock.kind, lock.owner),
        LockKind::Flock => (lock.kind, handle.raw()),
    }
}

fn conflicts(held: &(Owner, FileLock), owner: Owner, lock: &FileLock) -> bool {
    let (by, held) = held;
    *by != owner && by.0 == owner.0 && (held.mode, lock.mode) != (SHARED, SHARED)
}

const SHARED: Option<LockMode> = Some(LockMode::Shared);

fn chosen(time: SetTime) -> Timestamp {
    if time.now { skep_env::wall_time() } else { time.at }
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
        self.with(|tree| {
            let inode = tree.find(directory, name)?;
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

    async fn open_directory(&self, _: InodeId) -> Result<bool> {
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
                // Tests read the numbers of open handles and of waiting creations from these
                // fields.
                files: tree.handles.len() as u64,
                free_files: tree.waiting,
                name_max: 255,
            })
        })
    }
}

impl InodeAttributes for Memory {
    async fn attributes(&self, inode: InodeId) -> Result<Attributes> {
        self.with(|tree| Ok(tree.node(inode)?.attributes.clone()))
    }

    async fn stat(&self, inode: InodeId) -> Result<Stat> {
        let attributes = self.attributes(inode).await?;
        let allocated_bytes = if attributes.is_sparse {
            // Pages that contain only zeros count as holes.
            let is_full = |page: &&[u8]| page.iter().any(|byte| *byte != 0);
            let full = |data: &[u8]| data.chunks(4096).filter(is_full).map(<[u8]>::len).sum();
            self.with(|tree| Ok::<usize, Error>(full(&tree.node(inode)?.data)))? as u64
        } else {
            attributes.size
        };
        Ok(Stat { attributes, allocated_bytes })
    }

    fn check_handle(&self, handle: HandleId) -> Result<()> {
        self.with(|tree| match tree.handles.contains_key(&handle.raw()) {
            true => Ok(()),
            false => Err(ErrorCode::Stale.into()),
        })
    }

    async fn set_attributes(&self, change: SetAttributes) -> Result<Attributes> {
        self.with(|tree| {
            let node = tree.node(change.inode)?;
            if let Some(size) = change.size {
                node.attributes.is_sparse |= size > node.attributes.size;
                Tree::resize(node, size);
            }
            let it = &mut node.attributes;
            it.permissions = change.permissions.unwrap_or(it.permissions);
            it.uid = change.uid.unwrap_or(it.uid);
            it.gid = change.gid.unwrap_or(it.gid);
            it.accessed = change.accessed.map_or(it.accessed, chosen);
            it.modified = change.modified.map_or(it.modified, chosen);
            it.changed = skep_env::wall_time();
            Ok(it.clone())
        })
    }

    fn note_shown(&self, _attributes: &Attributes) -> bool {
        false
    }

    fn set_forget(&self, _forget: skep_client::Forget) {}
}

impl Xattrs for Memory {
    async fn get_xattr(&self, inode: InodeId, name: &[u8]) -> Result<Vec<u8>> {
        self.with(|tree| {
            let node = tree.node(inode)?;
            if name == b"user.syncs" {
                return Ok(node.syncs.to_string().into_bytes());
            }
            let value = node.xattrs.get(name).cloned();
            value.ok_or_else(|| ErrorCode::NoAttribute.into())
        })
    }

    async fn set_xattr(
        &self,
        inode: InodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        _clear_set_group_id: bool,
    ) -> Result<()> {
        self.with(|tree| {
            let xattrs = &mut tree.node(inode)?.xattrs;
            match (mode, xattrs.contains_key(name)) {
                (XattrMode::Create, true) => return fail(ErrorCode::Exists),
                (XattrMode::Replace, false) => return fail(ErrorCode::NoAttribute),
                _ => {}
            }
            xattrs.insert(name.to_vec(), value.to_vec());
            Ok(())
        })
    }

    async fn list_xattrs(&self, inode: InodeId) -> Result<Vec<Vec<u8>>> {
        self.with(|tree| Ok(tree.node(inode)?.xattrs.keys().cloned().collect()))
    }

    async fn remove_xattr(&self, inode: InodeId, name: &[u8]) -> Result<()> {
        self.with(|tree| {
            let removed = tree.node(inode)?.xattrs.remove(name);
            removed.map(|_| ()).ok_or_else(|| ErrorCode::NoAttribute.into())
        })
    }
}

impl Patterns for Memory {
    async fn pattern(&self, _inode: InodeId) -> Result<Vec<u8>> {
        Err(ErrorCode::NoAttribute.into())
    }

    async fn entry_info(&self, _inode: InodeId) -> Result<Vec<u8>> {
        Err(ErrorCode::NoAttribute.into())
    }

    fn cluster_map(&self) -> std::sync::Arc<skep_types::ClusterMap> {
        skep_types::ClusterMap::empty(skep_types::ClusterId::new([0; 16])).into()
    }

    async fn pattern_map(&self, _inode: InodeId) -> Result<Vec<u8>> {
        Err(ErrorCode::NoAttribute.into())
    }

    fn read_pattern(&self, _text: &[u8]) -> Result<PatternRequest> {
        Err(ErrorCode::Unsupported.into())
    }

    async fn set_pattern(&self, _inode: InodeId, _text: Option<&[u8]>, _uid: u32) -> Result<()> {
        Err(ErrorCode::Unsupported.into())
    }
}

impl Queries for Memory {
    async fn file_users(&self, _inode: InodeId, _after: (SessionId, InodeId)) -> Result<Vec<u8>> {
        Err(ErrorCode::NoAttribute.into())
    }

    async fn ancestors(&self, _inode: InodeId) -> Result<Vec<u8>> {
        Err(ErrorCode::NoAttribute.into())
    }
}

impl Opens for Memory {
    async fn create(&self, request: CreateRequest) -> Result<Created> {
        if *request.name == *b"slow" {
            self.0.lock().unwrap().waiting += 1;
            while self.with(|tree| tree.find(InodeId::ROOT, b"go")).is_err() {
                skep_env::sleep(Duration::from_millis(5)).await;
            }
            self.0.lock().unwrap().waiting -= 1;
        }
        self.with(|tree| {
            let inode = tree.make(request.directory, &request.name, request.kind, request.new)?;
            tree.node(inode)?.attributes.device = request.device;
            let handle = match request.open {
                OpenMode::No => None,
                OpenMode::Read | OpenMode::Write => Some(tree.open(inode)?),
            };
            let attributes = tree.node(inode)?.attributes.clone();
            Ok(Created { attributes, handle, created: true })
        })
    }

    async fn create_unnamed(
        &self,
        directory: InodeId,
        new: NewInode,
        _mode: OpenMode,
        _pattern: Option<PatternRequest>,
    ) -> Result<Created> {
        self.with(|tree| {
            let inode = tree.add_node(directory, FileKind::Regular, new);
            let handle = Some(tree.open(inode)?);
            let of = &mut tree.node(inode)?.attributes;
            of.links = 0;
            Ok(Created { attributes: of.clone(), handle, created: true })
        })
    }

    async fn open(&self, inode: InodeId, _mode: OpenMode, truncate: bool) -> Result<OpenedFile> {
        self.with(|tree| {
            if truncate {
                Tree::resize(tree.node(inode)?, 0);
            }
            let handle = tree.open(inode)?;
            let (keep_cache, are_attributes_shown, is_shared) = (false, false, false);
            Ok(OpenedFile { handle, keep_cache, are_attributes_shown, is_shared })
        })
    }
}

impl Closes for Memory {
    async fn flush(&self, handle: HandleId) -> Result<()> {
        self.with(|tree| tree.opened(handle).map(|_| ()))
    }

    async fn close(&self, handle: HandleId) -> Result<()> {
        self.with(|tree| {
            let node = tree.opened(handle)?;
            node.opens -= 1;
            node.locks.retain(|(held, _)| *held != (LockKind::Flock, handle.raw()));
            let inode = tree.handles.remove(&handle.raw());
            inode.map_or(Ok(()), |inode| tree.dispose(inode))
        })
    }
}

impl Syncs for Memory {
    fn set_synced(&self, handle: HandleId) {
        let _ = self.with(|tree| Ok(tree.synced.insert(handle)));
    }

    fn is_synced(&self, handle: HandleId) -> bool {
        self.with(|tree| Ok(tree.synced.contains(&handle))).unwrap()
    }

    async fn fsync(&self, handle: HandleId) -> Result<()> {
        self.with(|tree| tree.opened(handle).map(|node| node.syncs += 1))
    }

    async fn sync_names(&self) -> Result<()> {
        Ok(())
    }

    async fn sync_all(&self) -> Result<()> {
        Ok(())
    }
}

impl Reads for Memory {
    async fn read(&self, handle: HandleId, offset: u64, into: Buf) -> Result<usize> {
        self.with(|tree| {
            let node = tree.opened(handle)?;
            let start = node.data.len().min(offset as usize);
            let part = &node.data[start..node.data.len().min(start + into.len())];
            into.write(0, part);
            Ok(part.len())
        })
    }

    fn is_shared(&self, _inode: InodeId) -> bool {
        false
    }
}

impl Writes for Memory {
    async fn write(&self, handle: HandleId, offset: u64, data: Buf) -> Result<()> {
        self.with(|tree| {
            let node = tree.opened(handle)?;
            let end = offset as usize + data.len();
            let size = node.data.len().max(end) as u64;
            Tree::resize(node, size);
            node.data[offset as usize..end].copy_from_slice(data.bytes());
            Ok(())
        })
    }

    async fn append(&self, handle: HandleId, _expected: u64, data: Buf) -> Result<()> {
        let end = self.with(|tree| tree.opened(handle).map(|node| node.data.len()))?;
        self.write(handle, end as u64, data).await
    }
}

impl Allocates for Memory {
    async fn allocate(
        &self,
        handle: HandleId,
        range: Range<u64>,
        what: Allocation,
        keeps_size: bool,
    ) -> Result<()> {
        self.with(|tree| {
            let node = tree.opened(handle)?;
            let size = node.data.len() as u64;
            if what != Allocation::Reserve {
                let end = range.end.min(size);
                node.data[range.start.min(end) as usize..end as usize].fill(0);
                node.attributes.is_sparse = true;
            }
            let grows = !keeps_size && what != Allocation::Punch;
            Tree::resize(node, if grows { size.max(range.end) } else { size });
            Ok(())
        })
    }

    /// Pages that contain only zeros count as holes.
    async fn seek(&self, handle: HandleId, offset: u64, what: SeekTarget) -> Result<Option<u64>> {
        self.with(|tree| {
            let data = &tree.opened(handle)?.data;
            let found = (offset as usize..data.len()).find(|at| {
                let page = at / 4096 * 4096;
                let is_hole = data[page..data.len().min(page + 4096)].iter().all(|it| *it == 0);
                is_hole == (what == SeekTarget::Hole)
            });
            let end = what == SeekTarget::Hole && offset < data.len() as u64;
            Ok(found.or(end.then_some(data.len())).map(|at| at as u64))
        })
    }
}

impl Copies for Memory {
    async fn copy(
        &self,
        (from, from_offset): (HandleId, u64),
        (to, to_offset): (HandleId, u64),
        length: u64,
    ) -> Result<u64> {
        let bytes = Buf::new(length as usize);
        let count = self.read(from, from_offset, bytes.clone()).await?;
        self.write(to, to_offset, bytes.slice(0..count)).await?;
        Ok(count as u64)
    }
}

impl Locks for Memory {
    fn new_lock_wait(&self) -> u64 {
        0
    }

    /// Locks whole files only.
    async fn set_lock(&self, handle: HandleId, lock: FileLock, _: u64) -> Result<LockOutcome> {
        let owner = owner_of(handle, &lock);
        self.with(|tree| {
            let locks = &mut tree.opened(handle)?.locks;
            if lock.mode.is_some() && locks.iter().any(|held| conflicts(held, owner, &lock)) {
                return Ok(LockOutcome::Refused);
            }
            locks.retain(|(held, _)| *held != owner);
            if lock.mode.is_some() {
                locks.push((owner, lock));
            }
            Ok(LockOutcome::Granted { keep_cache: false })
        })
    }

    async fn wait_for_lock(&self, handle: HandleId, lock: &FileLock, _: u64) -> Result<()> {
        let owner = owner_of(handle, lock);
        while self.with(|tree| {
            let locks = &tree.opened(handle)?.locks;
            Ok(locks.iter().any(|held| conflicts(held, owner, lock)))
        })? {
            skep_env::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    async fn test_lock(&self, _: HandleId, _: &FileLock) -> Result<Option<HeldLock>> {
        Ok(None)
    }

    async fn unlock_process(&self, handle: HandleId, owner: u64) -> Result<()> {
        let own = (LockKind::Posix, owner);
        let unlock = |node: &mut Node| node.locks.retain(|(held, _)| *held != own);
        self.with(|tree| tree.opened(handle).map(unlock))
    }

    fn has_process_locks(&self) -> bool {
        true
    }
}
