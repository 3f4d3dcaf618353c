//! The checkers that run at the end of a run, when no operation is in flight any more. The checkers
//! read all keys in the stores of all targets. The comment of each checker lists the properties
//! that it verifies, and the properties that it does not verify.

use crate::changes::inline_bytes;
use crate::judged::Judged;
use crate::model::Model;
use crate::storage::StorageProcess;
use crate::world::World;
use skep_format::metadata::{
    DentryRecord, FileLocksRecord, INLINE_PART_BYTES, InodeRecord, Key, LockOwner, LockedRange,
    OpenCounts, directory_of_dentry, inline_of, inode_of, last_u64, lock_owner_of, removal,
    truncation_of,
};
use skep_metadata::target::SyncPolicy;
use skep_types::codec::Codec;
use skep_types::{FileKind, InodeId, SessionId};
use skep_wire::file_locks::HeldLock;
use std::collections::{BTreeMap, BTreeSet};

/// The contents of all targets' stores.
#[derive(Debug, Default)]
pub(crate) struct StoredState {
    inodes: BTreeMap<InodeId, InodeRecord>,
    entries: BTreeMap<InodeId, Vec<DentryRecord>>,
    opens: BTreeMap<InodeId, OpenCounts>,
    session_opens: Vec<(SessionId, InodeId, OpenCounts)>,
    locks: BTreeMap<LockOwner, FileLocksRecord>,
    /// The locks in the memory of the targets. The locks in memory must equal the locks in the
    /// stores, which are in `locks`.
    held: BTreeMap<LockOwner, Vec<LockedRange>>,
    sessions: BTreeSet<SessionId>,
    slots: BTreeSet<SessionId>,
    /// Sessions whose end is recorded in a store.
    ends: BTreeSet<SessionId>,
    xattrs: BTreeMap<InodeId, BTreeMap<Vec<u8>, Vec<u8>>>,
    inline: BTreeMap<InodeId, Vec<u8>>,
    /// Files with a truncation that is not durable on storage targets yet. The value is the index
    /// of the file's metadata target.
    truncations: BTreeMap<InodeId, usize>,
    /// Unfinished work: prepared transactions, decisions, removals of chunk files, and sizes that a
    /// target must still recover.
    unfinished: Vec<String>,
}

fn decode<T: Codec>(key: &[u8], value: &[u8]) -> Result<T, String> {
    T::from_bytes(value).map_err(|error| format!("key {}: {error}", key.escape_ascii()))
}

impl StoredState {
    /// Reads the stores of all targets. Checks that each inode and entry is on the target that
    /// serves its shard.
    pub(crate) fn read(world: &World) -> Result<Self, String> {
        let mut stored = Self::default();
        for (index, process) in world.targets.iter().enumerate() {
            let Some(running) = &process.running else {
                return Err(format!("metadata target {index} does not run"));
            };
            for (inode, held) in running.file_locks() {
                let HeldLock { session, kind, owner, mode, start, end, .. } = held;
                let owner = LockOwner { inode, kind, session, owner };
                stored.held.entry(owner).or_default().push(LockedRange { start, end, mode });
            }
            for (key, value) in running.engine().pairs() {
                if key.first() == Some(&1) {
                    let shard = u16::from_be_bytes([key[1], key[2]]);
                    let group = world.map.shard_group(skep_types::ShardId::new(shard));
                    if group.map(|it| it.raw() as usize) != Some(index + 1) {
                        return Err(format!(
                            "target {index} stores shard {shard}, which it does not serve"
                        ));
                    }
                    stored.read_shard_record(key, value)?;
                } else {
                    stored.read_target_record(index, key, value)?;
                }
            }
        }
        Ok(stored)
    }

    fn read_shard_record(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        if let Some(inode) = inode_of(key) {
            self.inodes.insert(inode, decode(key, value)?);
        } else if let Some((inode, part)) = inline_of(key) {
            // The keys are in ascending order, so `self.inline` already contains the earlier parts
            // of the inline bytes.
            let start = usize::from(part) * INLINE_PART_BYTES as usize;
            let bytes = self.inline.entry(inode).or_default();
            if bytes.len() > start {
                return Err(format!("{inode}: inline bytes overlap part {part}"));
            }
            bytes.resize(start, 0);
            bytes.extend(inline_bytes(Some(value))?);
        } else if let Some(directory) = directory_of_dentry(key) {
            self.entries.entry(directory).or_default().push(decode(key, value)?);
        } else {
            let inode = last_u64(&key[..12]).map(InodeId::new).unwrap_or_default();
            if key == Key::Opens(inode).to_bytes() {
                self.opens.insert(inode, decode(key, value)?);
            } else {
                let name = key[12..].to_vec();
                self.xattrs.entry(inode).or_default().insert(name, value.to_vec());
            }
        }
        Ok(())
    }

    fn read_target_record(
        &mut self,
        target: usize,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), String> {
        let unfinished = [
            (Key::prepared(), "prepared transaction"),
            (Key::decisions(), "decision"),
            (Key::staged(), "staged transaction"),
            (Key::removals(), "removal"),
            (Key::size_recoveries(), "size recovery"),
        ];
        if let Some(inode) = truncation_of(key) {
            self.truncations.insert(inode, target);
        }
        let id = last_u64(key).unwrap_or_default();
        let session = |key: &[u8]| key.get(..10).and_then(last_u64).map(SessionId::new);
        if let Some((_, what)) = unfinished.iter().find(|(prefix, _)| key.starts_with(prefix)) {
            let chunk = removal(key).map(|(_, chunk)| chunk.to_string()).unwrap_or_default();
            self.unfinished.push(format!("target {target}: {what} {id:X} {chunk}"));
        } else if key.starts_with(&Key::sessions()) {
            self.sessions.insert(SessionId::new(id));
        } else if key.starts_with(&Key::session_ends()) {
            self.ends.insert(SessionId::new(id));
        } else if key.starts_with(&Key::slots_of(SessionId::default())[..2]) {
            self.slots.extend(session(key));
        } else if let Some(owner) = lock_owner_of(key) {
            self.locks.insert(owner, decode(key, value)?);
        } else if key.starts_with(&Key::session_opens()) {
            let session = session(key).unwrap_or_default();
            self.session_opens.push((session, InodeId::new(id), decode(key, value)?));
        }
        Ok(())
    }

    /// Verifies that the namespace is a tree. Each directory except the root must have exactly one
    /// entry. The entry must be in the directory that the inode names as its parent, and the root
    /// must be an ancestor. Does not verify files.
    pub(crate) fn check_tree(&self) -> Result<(), String> {
        let mut parents: BTreeMap<InodeId, Vec<InodeId>> = BTreeMap::new();
        for (directory, entries) in &self.entries {
            for entry in entries.iter().filter(|it| it.kind == FileKind::Directory) {
                parents.entry(entry.inode).or_default().push(*directory);
            }
        }
        let mut reached = BTreeSet::new();
        let mut next = vec![InodeId::ROOT];
        while let Some(directory) = next.pop() {
            if !reached.insert(directory) {
                return Err(format!("directory {directory} is reached twice"));
            }
            let entries = self.entries.get(&directory).into_iter().flatten();
            next.extend(entries.filter(|it| it.kind == FileKind::Directory).map(|it| it.inode));
        }
        for (inode, record) in &self.inodes {
            if record.attributes.kind != FileKind::Directory || *inode == InodeId::ROOT {
                continue;
            }
            let parents = parents.get(inode).cloned().unwrap_or_default();
            if parents != [record.parent] {
                let parent = record.parent;
                return Err(format!("directory {inode} of {parent} has entries in {parents:?}"));
            }
            if !reached.contains(inode) {
                return Err(format!("directory {inode} is not reached from the root"));
            }
        }
        Ok(())
    }

    /// Verifies that the kind of each entry equals the kind of its inode, and that link counts and
    /// directory sizes match the entries. The method also verifies that an inode without a name is
    /// open, and that no record of a removed inode is left.
    pub(crate) fn check_counts(&self) -> Result<(), String> {
        let mut names: BTreeMap<InodeId, u32> = BTreeMap::new();
        for (directory, entries) in &self.entries {
            if !self.inodes.contains_key(directory) {
                return Err(format!("a store has entries of {directory}, which does not exist"));
            }
            for entry in entries {
                let kind = self.inodes.get(&entry.inode).map(|it| it.attributes.kind);
                if kind != Some(entry.kind) {
                    return Err(format!("{directory} has {entry:?}, but the inode is {kind:?}"));
                }
                *names.entry(entry.inode).or_default() += 1;
            }
        }
        for (inode, record) in &self.inodes {
            let attributes = &record.attributes;
            let entries = self.entries.get(inode).map(Vec::as_slice).unwrap_or_default();
            let (links, size) = match attributes.kind {
                FileKind::Directory => {
                    let below = entries.iter().filter(|it| it.kind == FileKind::Directory);
                    (2 + below.count() as u32, Some(entries.len() as u64))
                }
                _ => (names.get(inode).copied().unwrap_or(0), None),
            };
            if attributes.links != links || size.is_some_and(|it| it != attributes.size) {
                let (has, counts) = (attributes.links, attributes.size);
                return Err(format!(
                    "inode {inode} has {has} links, size {counts}; expected {links}, {size:?}"
                ));
            }
            if links == 0 && !self.opens.contains_key(inode) {
                return Err(format!("inode {inode} has no name and is not open"));
            }
        }
        let gone = self.opens.keys().chain(self.xattrs.keys()).chain(self.inline.keys());
        match gone.clone().find(|it| !self.inodes.contains_key(it)) {
            Some(inode) => Err(format!("a store still has a record of the removed inode {inode}")),
            None => Ok(()),
        }
    }

    /// Verifies that no record leaks. No work may be unfinished, and every remaining session must
    /// be in `alive`. Each slot must belong to a session in `alive`, or to a session whose end is
    /// stored. The open counts must be the sums over the sessions, and each chunk file must have an
    /// inode. Ignores the records of ended transactions and sessions, because targets store these
    /// for ten minutes.
    pub(crate) fn check_leaks(
        &self,
        alive: &BTreeSet<SessionId>,
        storages: &[StorageProcess],
    ) -> Result<(), String> {
        if !self.unfinished.is_empty() {
            return Err(format!("unfinished work: {:?}", self.unfinished));
        }
        let is_written =
            |inode: &InodeId| self.opens.get(inode).is_some_and(|opens| opens.writers > 0);
        // Ignore a truncation that a power loss of storage has undone, because the target repeats
        // such a truncation only after the writers have closed the file.
        if let Some((inode, target)) = self.truncations.iter().find(|(it, _)| !is_written(it)) {
            return Err(format!("unfinished work: truncation of {inode} on target {target}"));
        }
        for (index, storage) in storages.iter().enumerate() {
            if let Some(key) = storage.old_tails.keys().find(|it| !is_written(&it.inode)) {
                return Err(format!(
                    "storage {index}: chunk file {key} again has bytes that a truncation removed"
                ));
            }
        }
        if let Some(session) = self.sessions.iter().find(|it| !alive.contains(it)) {
            return Err(format!("a store still has session {session}, whose client is dead"));
        }
        let is_kept = |it: &SessionId| alive.contains(it) || self.ends.contains(it);
        if let Some(session) = self.slots.iter().find(|it| !is_kept(it)) {
            return Err(format!("a store still has slots of the ended session {session}"));
        }
        let mut opens: BTreeMap<InodeId, OpenCounts> = BTreeMap::new();
        let stored: BTreeMap<_, _> =
            self.locks.iter().map(|(owner, record)| (*owner, record.ranges.clone())).collect();
        if stored != self.held {
            return Err(format!(
                "locks are {:?} in memory, but {stored:?} in the stores",
                self.held
            ));
        }
        if let Some(owner) = self.locks.keys().find(|it| !alive.contains(&it.session)) {
            return Err(format!("{owner:?} has locks although its session has ended"));
        }
        for (session, inode, counts) in &self.session_opens {
            if !alive.contains(session) {
                return Err(format!("the ended session {session} has {inode} open"));
            }
            let sum = opens.entry(*inode).or_default();
            sum.readers += counts.readers;
            sum.writers += counts.writers;
        }
        if opens != self.opens {
            return Err(format!(
                "open counts are {:?}, but the sum over sessions is {opens:?}",
                self.opens
            ));
        }
        for (index, storage) in storages.iter().enumerate() {
            let orphan = storage.chunks.keys().find(|it| !self.inodes.contains_key(&it.inode));
            if let Some(key) = orphan {
                return Err(format!("storage {index}: chunk file {key} has no inode"));
            }
        }
        Ok(())
    }

    /// Verifies that the stores equal the reference model. Does not compare owners and times.
    pub(crate) fn check_model(&self, model: &Model) -> Result<(), String> {
        let expected = || model.inodes.iter().map(|(inode, _)| inode);
        if !self.inodes.keys().eq(expected()) {
            let stored: BTreeSet<_> = self.inodes.keys().collect();
            let right: BTreeSet<_> = expected().collect();
            let differ: Vec<_> = stored.symmetric_difference(&right).collect();
            return Err(format!(
                "inodes that are only in the stores or only in the model: {differ:?}"
            ));
        }
        for (inode, expected) in model.inodes.iter() {
            let record = &self.inodes[inode];
            let entries = self.entries.get(inode).into_iter().flatten();
            let entries: BTreeMap<_, _> = entries.map(|it| (it.name.0.clone(), it.inode)).collect();
            let xattrs = self.xattrs.get(inode).cloned().unwrap_or_default();
            let is_right = entries == expected.entries
                && xattrs == expected.xattrs
                && self.inline.get(inode).unwrap_or(&Vec::new()) == &expected.inline
                && record.link_target.0 == expected.link_target
                && record.attributes.permissions == expected.permissions
                && record.attributes.project == expected.project
                && record.attributes.hands_down_project == expected.hands_down_project
                && record.attributes.has_acl == expected.has_acl()
                && record.may_be_named == expected.may_be_named
                && expected.has_pattern(record.pattern.as_ref());
            let has_size =
                expected.kind == FileKind::Directory || record.attributes.size == expected.size;
            if !is_right || !has_size {
                return Err(format!(
                    "{inode}: stored {record:?} {entries:?}, expected {expected:?}"
                ));
            }
        }
        Ok(())
    }

    /// Verifies the sizes of files that were never truncated and that no client has open for
    /// writing. Such a file must be at least as long as its chunk files require. If a file is
    /// shorter than this size, size recovery has lost writes of an ended session. The method skips
    /// the files in `unsure`: a client has written these files after it lost its session, or has
    /// abandoned a truncation. The method also skips all files if a power loss may have lost the
    /// opens of writers.
    pub(crate) fn check_sizes(&self, world: &World) -> Result<(), String> {
        for (inode, record) in self.files().filter(|file| self.has_certain_size(world, *file)) {
            let end = World::chunk_size(&world.storages, world.targets.len(), record);
            if end > record.attributes.size {
                let size = record.attributes.size;
                return Err(format!("{inode} has size {size}, but its chunk files end at {end}"));
            }
        }
        Ok(())
    }

    /// Returns the number of files that [`Self::check_sizes`] checks, and the number of files that
    /// [`Self::check_sizes`] skips.
    pub(crate) fn judged_sizes(&self, world: &World) -> Judged {
        let mut judged = Judged::default();
        self.files().for_each(|file| judged.count(self.has_certain_size(world, file)));
        judged
    }

    fn files(&self) -> impl Iterator<Item = (&InodeId, &InodeRecord)> {
        self.inodes.iter().filter(|(_, record)| record.attributes.kind == FileKind::Regular)
    }

    fn has_certain_size(&self, world: &World, (inode, record): (&InodeId, &InodeRecord)) -> bool {
        let knobs = &world.knobs;
        let may_lose_opens = knobs.faults.power_losses && knobs.policy == SyncPolicy::Interval;
        let is_written = self.opens.get(inode).is_some_and(|it| it.writers > 0);
        let is_truncated = record.attributes.truncate_generation > 0;
        !may_lose_opens && !is_written && !is_truncated && !world.unsure.contains(inode)
    }
}
