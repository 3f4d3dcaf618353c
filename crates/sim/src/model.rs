//! The reference model: a whole namespace in memory. The witness applies one operation after
//! another to the model. The model is the only definition of the effect of each operation. The
//! model does not contain targets, transactions or messages in flight.

mod inline;
mod locks;
mod outcomes;

use crate::inodes::Inodes;
use crate::operation::{Op, Summary};
use locks::lock;
use skep_cluster::lock_ranges::LockRanges;
use skep_types::codec::Codec;
use skep_types::{
    ACCESS_ACL, ClusterMap, DEFAULT_ACL, ErrorCode, FileKind, GroupId, InodeId, SessionId,
    StripePattern,
};
use skep_wire::file_locks::{LockKind, LockMode, SetLockReply};
use skep_wire::inline::WriteInlineReply;
use skep_wire::metadata as md;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

type Outcome = Result<Summary, ErrorCode>;

/// An inode of the reference model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Inode {
    /// Kind of the inode.
    pub(crate) kind: FileKind,
    /// Link count, which is the number of names. Always 1 for a directory.
    pub(crate) links: u32,
    /// Size of the file in bytes.
    pub(crate) size: u64,
    /// Truncate generation of the last truncation. Zero if the file was never truncated.
    pub(crate) truncate_generation: u64,
    /// Permission bits.
    pub(crate) permissions: u32,
    /// The project of the inode, and whether new entries of the directory inherit this project.
    pub(crate) project: u32,
    pub(crate) hands_down_project: bool,
    /// Parent of a directory.
    pub(crate) parent: InodeId,
    /// Entries of a directory.
    pub(crate) entries: BTreeMap<Vec<u8>, InodeId>,
    /// Extended attributes.
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Target path of a symbolic link.
    pub(crate) link_target: Vec<u8>,
    /// Number of opens of each session: opens for reading, and opens for writing.
    pub(crate) opens: BTreeMap<SessionId, (u32, u32)>,
    /// Locked ranges of each lock owner.
    pub(crate) locks: BTreeMap<Owner, LockRanges<LockMode>>,
    /// Whether the inode can still get a name. True if the inode was created without a name, and
    /// has had no name since then.
    pub(crate) may_be_named: bool,
    /// The stripe pattern of a file, without the groups that a placement policy has chosen. For a
    /// directory, its default pattern.
    pub(crate) pattern: Option<Arc<StripePattern>>,
    /// The inline bytes of the file, up to the last byte that is not zero.
    pub(crate) inline: Vec<u8>,
    /// The highest end offset of an inline write, or of a write that a client has reported,
    /// including failed writes.
    pub(crate) high_water: u64,
    /// Whether the session of a writer ended while the file was open. If true, the end offset of
    /// this session's writes is not known.
    pub(crate) was_left_open: bool,
}

/// The owner of a lock: session, kind of the lock, and id of the owner in the session.
pub(crate) type Owner = (SessionId, LockKind, u64);

/// A wait for a lock: file, owner, first byte of the range, and end of the range (exclusive).
pub(crate) type LockWait = (InodeId, Owner, u64, u64);

/// The reference namespace: its inodes, and the waits for locks.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    /// All inodes.
    pub(crate) inodes: Inodes,
    /// All waits for locks that clients have requested so far.
    pub(crate) waits: Arc<BTreeSet<LockWait>>,
    map: Arc<ClusterMap>,
}

impl Model {
    /// Creates a namespace with only a root directory.
    pub(crate) fn new(map: Arc<ClusterMap>) -> Self {
        let mut inodes = Inodes::default();
        inodes.insert(InodeId::ROOT, Inode::new(FileKind::Directory, InodeId::ROOT, 0o755));
        Self { inodes, waits: Arc::default(), map }
    }

    /// Returns the group that serves an inode.
    pub(crate) fn group(&self, inode: InodeId) -> Option<GroupId> {
        self.map.shard_group(inode.shard())
    }

    fn directory(&self, inode: InodeId) -> Result<&Inode, ErrorCode> {
        match self.inodes.get(&inode) {
            None => Err(ErrorCode::NotFound),
            Some(found) if found.kind != FileKind::Directory => Err(ErrorCode::NotDirectory),
            Some(found) => Ok(found),
        }
    }

    fn inode(&self, inode: InodeId) -> Result<&Inode, ErrorCode> {
        self.inodes.get(&inode).ok_or(ErrorCode::Stale)
    }

    fn entry(&self, directory: InodeId, name: &[u8]) -> Result<Option<InodeId>, ErrorCode> {
        Ok(self.directory(directory)?.entries.get(name).copied())
    }

    fn kind(&self, inode: InodeId) -> Result<FileKind, ErrorCode> {
        Ok(self.inode(inode)?.kind)
    }

    /// Applies a modifying operation that a target has committed, and checks the target's reply.
    /// `first_pattern` is the stripe pattern in the reply to the first execution, if the operation
    /// replays the creation of a file.
    ///
    /// # Errors
    /// Describes the contradiction between the reply and the model.
    pub(crate) fn apply(
        &mut self,
        op: &Op,
        session: SessionId,
        reply: &[u8],
        first_pattern: Option<&StripePattern>,
    ) -> Result<(), String> {
        if let Err(code) = self.outcome(op).or_else(|code| self.accept_unlocked_exchange(op, code))
        {
            return Err(format!("was done, but the reference model refuses it with {code}"));
        }
        match op {
            Op::Create(it) => self.apply_create(it, session, reply, first_pattern),
            Op::CreateUnnamed(it) => {
                let reply = decode::<md::OpenReply>(reply)?;
                let (inode, requested) = (reply.attributes.inode, it.pattern.as_ref());
                self.add_inode(it.directory, inode, FileKind::Regular, &it.new, requested)?;
                let new = self.inode_mut(inode)?;
                (new.links, new.may_be_named) = (0, true);
                first_pattern.into_iter().for_each(|it| new.repeat_pattern(it));
                self.open(inode, session, it.open)?;
                self.check_opened(&reply)
            }
            Op::MakeDirectory(it) => {
                let reply = decode::<md::NewEntryReply>(reply)?.entry;
                self.add_inode(it.directory, reply.inode, FileKind::Directory, &it.new, None)?;
                self.inode_mut(it.directory)?.entries.insert(it.name.0.clone(), reply.inode);
                self.check(reply.attributes.as_ref())
            }
            Op::MakeSymlink(it) => {
                let reply = decode::<md::NewEntryReply>(reply)?.entry;
                self.add_inode(it.directory, reply.inode, FileKind::Symlink, &it.new, None)?;
                self.inode_mut(it.directory)?.entries.insert(it.name.0.clone(), reply.inode);
                let inode = self.inode_mut(reply.inode)?;
                inode.link_target = it.link_target.0.clone();
                inode.size = it.link_target.len() as u64;
                self.check(reply.attributes.as_ref())
            }
            Op::Link(it) => {
                let inode = self.inode_mut(it.inode)?;
                inode.links += 1;
                inode.may_be_named = false;
                self.inode_mut(it.directory)?.entries.insert(it.name.0.clone(), it.inode);
                let reply = decode::<md::NewEntryReply>(reply)?.entry;
                self.check(reply.attributes.as_ref())
            }
            Op::Unlink(md::Unlink { directory, name })
            | Op::RemoveDirectory(md::RemoveDirectory { directory, name }) => {
                let inode = self.inode_mut(*directory)?.entries.remove(&name.0);
                self.drop_link(inode.ok_or("no such entry")?)
            }
            Op::Rename(it) => self.apply_rename(it),
            Op::Exchange(it) => self.apply_exchange(it),
            Op::CloseMany(it) => {
                for file in &it.files {
                    let is_writer = file.open == md::OpenMode::Write;
                    // Ignore errors, because the target skips files that are removed or not open.
                    let _ = self.close(file.inode, session, (!is_writer).into(), is_writer.into());
                }
                Ok(())
            }
            _ => self.apply_to_inode(op, session, reply),
        }
    }

    fn apply_create(
        &mut self,
        it: &md::Create,
        session: SessionId,
        reply: &[u8],
        first_pattern: Option<&StripePattern>,
    ) -> Result<(), String> {
        let reply = decode::<md::OpenReply>(reply)?;
        let inode = reply.attributes.inode;
        let existing = self.inode_mut(it.directory)?.entries.get(&it.name.0).copied();
        if reply.created != existing.is_none() || existing.is_some_and(|it| it != inode) {
            return Err(format!("answered {inode}, created: {}", reply.created));
        }
        if reply.created {
            self.add_inode(it.directory, inode, it.kind, &it.new, it.pattern.as_ref())?;
            self.inode_mut(it.directory)?.entries.insert(it.name.0.clone(), inode);
            let new = self.inode_mut(inode)?;
            first_pattern.into_iter().for_each(|it| new.repeat_pattern(it));
        }
        self.open(inode, session, it.open)?;
        self.check_opened(&reply)
    }

    fn apply_rename(&mut self, it: &md::Rename) -> Result<(), String> {
        let entries = &mut self.inode_mut(it.from_directory)?.entries;
        let moved = entries.get(&it.from_name.0).copied().ok_or("no such entry")?;
        let existing = self.inode_mut(it.to_directory)?.entries.get(&it.to_name.0).copied();
        if existing == Some(moved) {
            return Ok(());
        }
        self.inode_mut(it.from_directory)?.entries.remove(&it.from_name.0);
        self.inode_mut(it.to_directory)?.entries.insert(it.to_name.0.clone(), moved);
        let inode = self.inode_mut(moved)?;
        if inode.kind == FileKind::Directory {
            inode.parent = it.to_directory;
        }
        existing.map_or(Ok(()), |inode| self.drop_link(inode))
    }

    /// Truncates or extends a file to `size`. `generation` is the truncate generation in the reply.
    ///
    /// # Errors
    /// Describes a generation that cannot follow the last generation of the file.
    fn truncate(&mut self, inode: InodeId, size: u64, generation: u64) -> Result<(), String> {
        let inode = self.inode_mut(inode)?;
        let last = inode.truncate_generation;
        if !is_next_generation(last, generation) {
            return Err(format!("was done with truncate generation {generation} after {last}"));
        }
        inode.set_inline(|bytes| bytes.truncate(size as usize));
        inode.size = size;
        inode.truncate_generation = generation;
        Ok(())
    }

    fn apply_exchange(&mut self, it: &md::Exchange) -> Result<(), String> {
        let entry = |model: &mut Self, directory, name: &[u8]| {
            let found = model.inode_mut(directory)?.entries.get(name).copied();
            found.ok_or_else(|| "no such entry".to_owned())
        };
        let first = entry(self, it.from_directory, &it.from_name)?;
        let second = entry(self, it.to_directory, &it.to_name)?;
        self.inode_mut(it.from_directory)?.entries.insert(it.from_name.0.clone(), second);
        self.inode_mut(it.to_directory)?.entries.insert(it.to_name.0.clone(), first);
        for (inode, parent) in [(first, it.to_directory), (second, it.from_directory)] {
            let inode = self.inode_mut(inode)?;
            if inode.kind == FileKind::Directory {
                inode.parent = parent;
            }
        }
        Ok(())
    }

    fn apply_to_inode(&mut self, op: &Op, session: SessionId, reply: &[u8]) -> Result<(), String> {
        let inode = self.inode_mut(op.home())?;
        match op {
            Op::Open(it) => {
                let reply = decode::<md::OpenReply>(reply)?;
                if it.truncate {
                    self.truncate(it.inode, 0, reply.attributes.truncate_generation)?;
                }
                self.open(it.inode, session, it.open)?;
                return self.check_opened(&reply);
            }
            Op::Close(it) => {
                if let Some(written) = &it.written {
                    write(inode, &written.extent);
                }
                // Check the reply before the close. The reply contains the attributes from before
                // the removal of the file.
                self.check(Some(&decode::<md::AttributesReply>(reply)?.attributes))?;
                let is_writer = it.open == md::OpenMode::Write;
                // Ignore errors, because a power loss may have reverted the open.
                let _ = self.close(it.inode, session, (!is_writer).into(), is_writer.into());
                return Ok(());
            }
            Op::ReportWritten(it) => {
                if let Some(written) = &it.written {
                    inode.end_inline_as_reported(written, session)?;
                    write(inode, written);
                }
            }
            Op::WriteInline(it) => {
                inode.write_inline(it);
                let written = decode::<WriteInlineReply>(reply)?;
                return self.check(Some(&written.attributes));
            }
            Op::RemoveInline(it) => {
                return inode.remove_inline(it, session, &decode(reply)?);
            }
            Op::SetAttributes(it) => {
                let attributes = decode::<md::SetAttributesReply>(reply)?.attributes;
                if let Some(size) = it.size {
                    self.truncate(it.inode, size, attributes.truncate_generation)?;
                }
                let inode = self.inode_mut(it.inode)?;
                inode.set_permissions(it.permissions_after(inode.permissions));
                inode.project = it.project.unwrap_or(inode.project);
                if inode.kind == FileKind::Directory {
                    let hands_down = it.hands_down_project;
                    inode.hands_down_project = hands_down.unwrap_or(inode.hands_down_project);
                }
                return self.check(Some(&attributes));
            }
            Op::SetXattr(it) => {
                inode.set_xattr(&it.name, &it.value, it.clear_set_group_id);
                return Ok(());
            }
            Op::SetPattern(it) => {
                let map = Arc::clone(&self.map);
                self.inode_mut(it.inode)?.set_pattern(it.pattern.as_ref(), &map);
                return Ok(());
            }
            Op::RemoveXattr(it) => {
                inode.xattrs.remove(&it.name.0);
                return Ok(());
            }
            Op::SetLock(it) => {
                let set = decode::<SetLockReply>(reply)?;
                lock(inode, session, &it.lock, &set)?;
                if let Some(conflict) = &set.conflict {
                    self.check_conflict(session, &it.lock, conflict)?;
                }
                return self.check(Some(&set.attributes));
            }
            _ => return Err("not a modifying operation".to_owned()),
        }
        self.check(Some(&decode::<md::AttributesReply>(reply)?.attributes))
    }

    fn inode_mut(&mut self, inode: InodeId) -> Result<&mut Inode, String> {
        self.inodes.get_mut(&inode).ok_or_else(|| format!("the model has no inode {inode}"))
    }

    fn check(&self, attributes: Option<&skep_types::Attributes>) -> Result<(), String> {
        let Some(attributes) = attributes else { return Ok(()) };
        let get = Op::GetAttributes(md::GetAttributes { inode: attributes.inode });
        let expected = self.outcome(&get);
        let answered = Summary::of(attributes);
        if expected.as_ref() == Ok(&answered) {
            return Ok(());
        }
        Err(format!("the reply has {answered:?}, but the model has {expected:?}"))
    }

    /// Checks the pattern and the attributes in the reply to an open.
    fn check_opened(&self, reply: &md::OpenReply) -> Result<(), String> {
        let inode = self.inodes.get(&reply.attributes.inode);
        if inode.is_some_and(|it| !it.has_pattern(reply.pattern.as_ref())) {
            let expected = inode.map(|it| &it.pattern);
            return Err(format!("has the pattern {:?}; expected {expected:?}", reply.pattern));
        }
        self.check(Some(&reply.attributes))
    }

    /// Adds a new inode, with the settings that it inherits from its directory.
    fn add_inode(
        &mut self,
        directory: InodeId,
        inode: InodeId,
        kind: FileKind,
        new: &md::NewInode,
        requested: Option<&skep_types::PatternRequest>,
    ) -> Result<(), String> {
        if self.inodes.contains_key(&inode) {
            return Err(format!("inode id {inode} was assigned twice"));
        }
        let parent = self.inodes.get(&directory).ok_or("the model has no such directory")?;
        let child = parent.child(directory, kind, new, requested, &self.map);
        self.inodes.insert(inode, child);
        Ok(())
    }

    fn open(
        &mut self,
        inode: InodeId,
        session: SessionId,
        mode: md::OpenMode,
    ) -> Result<(), String> {
        let inode = self.inode_mut(inode)?;
        if inode.kind != FileKind::Regular || mode == md::OpenMode::No {
            return Ok(());
        }
        let opens = inode.opens.entry(session).or_default();
        match mode {
            md::OpenMode::Write => opens.1 += 1,
            _ => opens.0 += 1,
        }
        Ok(())
    }

    /// Removes opens of a session from a file. Removes the file if this close was the last close of
    /// an unlinked file.
    ///
    /// # Errors
    /// Fails if the session has fewer opens of the file than the call removes.
    pub(crate) fn close(
        &mut self,
        inode: InodeId,
        session: SessionId,
        readers: u32,
        writers: u32,
    ) -> Result<(), String> {
        let found = self.inode_mut(inode)?;
        let opens =
            found.opens.get_mut(&session).ok_or("the session does not have the file open")?;
        let less = |count: u32, by: u32| count.checked_sub(by).ok_or("closed too often");
        *opens = (less(opens.0, readers)?, less(opens.1, writers)?);
        if *opens == (0, 0) {
            found.opens.remove(&session);
            found.locks.retain(|(by, ..), _| *by != session);
        }
        if found.links == 0 && found.opens.is_empty() {
            self.inodes.remove(&inode);
        }
        Ok(())
    }

    fn drop_link(&mut self, inode: InodeId) -> Result<(), String> {
        let found = self.inode_mut(inode)?;
        found.links -= 1;
        if found.links == 0 && found.opens.is_empty() {
            self.inodes.remove(&inode);
        }
        Ok(())
    }
}

fn decode<T: Codec>(body: &[u8]) -> Result<T, String> {
    T::from_bytes(body).map_err(|error| format!("has a malformed reply: {error}"))
}

/// Whether an extended attribute is an access control list.
fn is_acl(name: &[u8]) -> bool {
    name == ACCESS_ACL || name == DEFAULT_ACL
}

/// Whether the next truncation of a file can have the truncate generation `generation`. `last` is
/// the generation of its last truncation. Until the target restarts, each generation is one more
/// than the generation before it. After a restart, the first generation has only zeros in its 40
/// low bits.
pub(crate) fn is_next_generation(last: u64, generation: u64) -> bool {
    generation == last + 1 || (generation > last && generation.trailing_zeros() >= 40)
}

fn write(inode: &mut Inode, written: &md::WrittenExtent) {
    inode.high_water = inode.high_water.max(written.end).max(written.reach);
    if written.truncate_generation == inode.truncate_generation {
        inode.size = inode.size.max(written.end);
    }
}

impl Inode {
    /// Creates an inode without inherited settings.
    pub(crate) fn new(kind: FileKind, parent: InodeId, permissions: u32) -> Self {
        let permissions = if kind == FileKind::Symlink { 0o777 } else { permissions };
        Self {
            kind,
            links: 1,
            size: 0,
            truncate_generation: 0,
            permissions,
            project: 0,
            hands_down_project: false,
            parent,
            entries: BTreeMap::new(),
            xattrs: BTreeMap::new(),
            link_target: Vec::new(),
            locks: BTreeMap::new(),
            opens: BTreeMap::new(),
            may_be_named: false,
            pattern: None,
            inline: Vec::new(),
            high_water: 0,
            was_left_open: false,
        }
    }
}
