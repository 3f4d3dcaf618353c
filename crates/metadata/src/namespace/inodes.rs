//! What handlers have in common: names, entries, inodes and how they come and go.
//!
//! Each function is part of one transaction; none waits for other groups.

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::locks::{Owner, Resource};
use crate::tx::operation::Stop;
use skep_cluster::{patterns, striping};
use skep_format::metadata::{
    DentryRecord, InodeRecord, Key, ORDINALS, OpenCounts, decode_value, last_u64, name_cursor,
};
use skep_types::{
    Attributes, ChunkFileKey, Error, ErrorCode, FileKind, InodeId, MAX_FILE_BYTES, MAX_NAME_BYTES,
    Result, StripePattern,
};
use skep_wire::metadata::{EntryReply, NewInode, OpenMode, WrittenExtent};

/// Set-group-id bit.
pub(crate) const SET_GROUP_ID: u32 = 0o2000;
/// Bits of a mode that are kept.
pub(crate) const PERMISSION_BITS: u32 = 0o7777;

/// Checks a name that a client gives.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > MAX_NAME_BYTES {
        return Err(ErrorCode::NameTooLong.into());
    }
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0)
    {
        let shown = name.escape_ascii();
        return Err(Error::new(ErrorCode::InvalidArgument, format!("\"{shown}\" is no name")));
    }
    Ok(())
}

/// Checks how far a client says that it has written.
pub(crate) fn check_written(written: &WrittenExtent) -> Result<()> {
    let end = written.end.max(written.reach);
    if end > MAX_FILE_BYTES {
        let what = format!("no file can have been written up to byte {end}");
        return Err(Error::new(ErrorCode::FileTooLarge, what));
    }
    Ok(())
}

impl<E: Engine> Context<'_, E> {
    /// A directory that exists, perhaps to be changed.
    pub(crate) fn directory(&self, inode: InodeId) -> Result<InodeRecord, Stop> {
        let record = self.find_inode(inode)?.ok_or(ErrorCode::NotFound)?;
        match record.attributes.kind {
            FileKind::Directory => Ok(record),
            _ => Err(ErrorCode::NotDirectory.into()),
        }
    }

    /// The entry of a name, with its cursor.
    pub(crate) fn dentry(
        &self,
        directory: InodeId,
        name: &[u8],
    ) -> Result<Option<(u64, DentryRecord)>, Stop> {
        self.check_free(Resource::Dentry(directory, name.to_vec()))?;
        let first = name_cursor(self.shared.map.cluster, directory, name);
        // Nearly always the first ordinal is the name or free with nothing behind it. When an entry
        // with the same hash was removed, later ordinals may be taken though this one is free.
        if let Some(dentry) = self.get::<DentryRecord>(&Key::Dentry(directory, first))? {
            if dentry.name.0 == name {
                return Ok(Some((first, dentry)));
            }
        } else if self.get::<DentryRecord>(&Key::Dentry(directory, first + 1))?.is_none() {
            // Ordinals are kept dense (see `remove_dentry`).
            return Ok(None);
        }
        for ordinal in 1..ORDINALS {
            match self.get::<DentryRecord>(&Key::Dentry(directory, first + ordinal))? {
                Some(dentry) if dentry.name.0 == name => {
                    return Ok(Some((first + ordinal, dentry)));
                }
                Some(_) => {}
                None => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Adds an entry for a name that has none.
    pub(crate) fn insert_dentry(
        &mut self,
        directory: InodeId,
        name: &[u8],
        inode: InodeId,
        kind: FileKind,
    ) -> Result<(), Stop> {
        let first = name_cursor(self.shared.map.cluster, directory, name);
        for ordinal in 0..ORDINALS {
            let key = Key::Dentry(directory, first + ordinal);
            if self.get::<DentryRecord>(&key)?.is_none() {
                self.put(&key, &DentryRecord { name: name.into(), inode, kind });
                return Ok(());
            }
        }
        let context = format!("directory {directory} has 256 names with one hash");
        Err(Error::new(ErrorCode::NoSpace, context).into())
    }

    /// Points an entry, found at a cursor, to another inode.
    pub(crate) fn point_entry(
        &mut self,
        directory: &mut InodeRecord,
        (cursor, entry): (u64, DentryRecord),
        inode: InodeId,
        kind: FileKind,
    ) {
        let is_directory = |kind| i32::from(kind == FileKind::Directory);
        let links = is_directory(kind) - is_directory(entry.kind);
        let key = Key::Dentry(directory.attributes.inode, cursor);
        self.put(&key, &DentryRecord { name: entry.name, inode, kind });
        self.change_directory(directory, 0, links);
    }

    /// Removes the entry at a cursor. The last of the names with the same hash takes its ordinal,
    /// so that ordinals stay dense; a reader of the directory may then miss that name only if it
    /// was between the two, which takes a collision of 55 bits within one directory at that moment.
    pub(crate) fn remove_dentry(&mut self, directory: InodeId, cursor: u64) -> Result<(), Stop> {
        let first = cursor / ORDINALS * ORDINALS;
        let mut last = None;
        for at in cursor + 1..first + ORDINALS {
            match self.get::<DentryRecord>(&Key::Dentry(directory, at))? {
                Some(dentry) => last = Some((at, dentry)),
                None => break,
            }
        }
        if let Some((at, dentry)) = last {
            self.put(&Key::Dentry(directory, cursor), &dentry);
            self.delete(&Key::Dentry(directory, at));
        } else {
            self.delete(&Key::Dentry(directory, cursor));
        }
        Ok(())
    }

    /// Notes in a directory that an entry came (`entries` 1) or went (-1), and a subdirectory with
    /// it or not (`links`).
    pub(crate) fn change_directory(&mut self, record: &mut InodeRecord, entries: i64, links: i32) {
        let attributes = &mut record.attributes;
        attributes.size = attributes.size.saturating_add_signed(entries);
        attributes.links = attributes.links.saturating_add_signed(links);
        self.touch_modified(attributes);
        self.put_inode(record);
    }

    /// Sets the modification time to now, and the change time with it. A program may have set the
    /// former to a later time, which must not stay: kernels drop their pages of a file when they
    /// see that it has changed. The change time is always metadata's own, and never goes back.
    pub(crate) fn touch_modified(&self, attributes: &mut Attributes) {
        self.touch_changed(attributes);
        attributes.modified = attributes.changed;
    }

    /// Raises the change time.
    pub(crate) fn touch_changed(&self, attributes: &mut Attributes) {
        attributes.changed = attributes.changed.max(self.wall());
        attributes.change_counter += 1;
    }

    /// Attributes of a new inode in a directory.
    pub(crate) fn new_attributes(
        &self,
        inode: InodeId,
        kind: FileKind,
        new: &NewInode,
        directory: Option<&Attributes>,
    ) -> Attributes {
        let now = self.wall();
        let mut permissions = new.permissions & PERMISSION_BITS;
        let mut gid = new.gid;
        if let Some(directory) = directory.filter(|it| it.permissions & SET_GROUP_ID != 0) {
            gid = directory.gid;
            if kind == FileKind::Directory {
                permissions |= SET_GROUP_ID;
            }
        }
        let handing_down = directory.filter(|it| it.hands_down_project);
        Attributes {
            inode,
            kind,
            permissions,
            links: if kind == FileKind::Directory { 2 } else { 1 },
            uid: new.uid,
            gid,
            project: handing_down.map_or(0, |it| it.project),
            device: 0,
            size: 0,
            accessed: now,
            modified: now,
            changed: now,
            created: now,
            change_counter: 1,
            truncate_generation: 0,
            is_sparse: false,
            has_capability: false,
            has_acl: false,
            hands_down_project: handing_down.is_some() && kind == FileKind::Directory,
        }
    }

    /// The pattern of a new file in a directory: chooses its groups.
    ///
    /// # Errors
    /// `NoSpace` if there is no storage target to choose; as [`patterns::check_asked`] if somebody
    /// asks for what he may not have.
    pub(crate) fn new_pattern(
        &mut self,
        directory: &InodeRecord,
        asked: Option<&StripePattern>,
        uid: u32,
        file: InodeId,
    ) -> Result<StripePattern> {
        let shared = &mut *self.shared;
        if let Some(asked) = asked {
            patterns::check_asked(&shared.map, asked, uid)?;
        }
        let merged = patterns::merged(asked, directory.pattern.as_ref());
        let (policy, cursor) = (&shared.map.policy, &mut shared.cursor);
        patterns::with_groups(&merged, policy, &shared.candidates, file.raw(), cursor)
    }

    /// What a lookup or a create answers about an inode.
    pub(crate) fn entry_reply(&self, inode: InodeId, kind: FileKind) -> Result<EntryReply, Stop> {
        let attributes = match self.is_local(inode)? {
            true => Some(self.inode(inode)?.attributes),
            false => None,
        };
        Ok(EntryReply { inode, kind, attributes })
    }

    /// Whether a directory has no entries.
    pub(crate) fn is_empty_directory(&self, directory: InodeId) -> Result<bool> {
        Ok(self.scan(&Key::dentries_of(directory), &[], 1)?.is_empty())
    }

    /// Takes a name from an inode; disposes of it if that was the last and nobody has it open.
    pub(crate) fn drop_link(&mut self, mut record: InodeRecord) -> Result<(), Stop> {
        let inode = record.attributes.inode;
        record.attributes.links = record.attributes.links.saturating_sub(1);
        if record.attributes.links == 0 && self.opens(inode)?.is_zero() {
            return self.dispose(&record);
        }
        self.touch_changed(&mut record.attributes);
        self.put_inode(&record);
        Ok(())
    }

    /// Removes an inode for good, and notes which chunk files have to go.
    pub(crate) fn dispose(&mut self, record: &InodeRecord) -> Result<(), Stop> {
        let inode = record.attributes.inode;
        let reach = self.reach(record)?;
        if let Some(pattern) = &record.pattern
            && record.attributes.kind == FileKind::Regular
        {
            for chunk in striping::chunk_sizes(pattern, reach).filter(|chunk| chunk.size > 0) {
                let key = ChunkFileKey {
                    inode,
                    generation: pattern.generation,
                    component: chunk.component,
                    index: chunk.index,
                };
                self.put_raw(&Key::Removal(chunk.group, key), &[]);
            }
        }
        self.remove_inode(record)
    }

    /// Removes an inode with its extended attributes, and with its bytes as far as they are here.
    pub(crate) fn remove_inode(&mut self, record: &InodeRecord) -> Result<(), Stop> {
        let inode = record.attributes.inode;
        if record.has_xattrs {
            for (key, _) in self.scan(&Key::xattrs_of(inode), &[], usize::MAX)? {
                self.delete_raw(key);
            }
        }
        self.remove_inline(record)?;
        let recovery = Key::SizeRecovery(inode);
        if self.get_raw(&recovery)?.is_some() {
            self.delete(&recovery);
        }
        self.delete(&Key::Inode(inode));
        Ok(())
    }

    /// Up to where chunk files may hold bytes.
    pub(crate) fn reach(&self, record: &InodeRecord) -> Result<u64> {
        let inode = record.attributes.inode;
        let unknown =
            self.opens(inode)?.writers > 0 || self.get_raw(&Key::SizeRecovery(inode))?.is_some();
        Ok(if unknown { skep_types::MAX_FILE_BYTES } else { record.high_water })
    }

    /// Takes in how far a writer has come.
    pub(crate) fn merge_written(&mut self, record: &mut InodeRecord, written: &WrittenExtent) {
        record.high_water = record.high_water.max(written.end).max(written.reach);
        let attributes = &mut record.attributes;
        if written.truncate_generation == attributes.truncate_generation {
            attributes.size = attributes.size.max(written.end);
        }
        attributes.is_sparse |= written.may_leave_holes;
        self.touch_modified(attributes);
        // The kernel takes it away before it writes through its pages, but not before direct I/O.
        self.drop_capability(record);
    }

    /// Whether the file that the session is about to open is shared: others have it open too, and
    /// one of all of them may write. Stops until those know who must.
    pub(crate) fn check_shared(&mut self, inode: InodeId, mode: OpenMode) -> Result<bool, Stop> {
        let session = self.session()?;
        let holders = self.shared.sharing.holders(inode);
        if holders.iter().all(|it| *it == session) {
            return Ok(false);
        }
        let has_writers = self.opens(inode)?.writers > 0;
        if has_writers && holders.len() > 1 {
            return Ok(true);
        }
        if mode != OpenMode::Write && !has_writers {
            let is_being_shared = self.shared.sharing.is_being_shared(inode);
            // One who waits to write to it needn't wait for this session too; but for what it has
            // open already, whose answer may have said otherwise, and come before this one's.
            if !holders.contains(&session) {
                self.shared.sharing.informed_by_open(inode, session);
            }
            return Ok(is_being_shared);
        }
        // Also this session, if it has the file open already: what it opened before must not rely
        // on being alone from the moment on in which others are answered, and that may be before
        // the answer to this is there.
        let holders = holders.to_vec();
        let number = self.next_number()?;
        if self.shared.sharing.notify(inode, &holders, number) {
            return Ok(true);
        }
        self.shared.locks.try_take(&Resource::Sharing(inode), Owner::Holders(inode));
        Err(Stop::Held(Resource::Sharing(inode)))
    }

    /// Counts an open of a session.
    pub(crate) fn count_open(&mut self, inode: InodeId, mode: OpenMode) -> Result<(), Stop> {
        let session = self.session()?;
        for key in [Key::SessionOpen(session, inode), Key::Opens(inode)] {
            let mut counts = self.get::<OpenCounts>(&key)?.unwrap_or_default();
            match mode {
                OpenMode::No => {}
                OpenMode::Read => counts.readers += 1,
                OpenMode::Write => counts.writers += 1,
            }
            self.put(&key, &counts);
        }
        Ok(())
    }

    /// Frees what a session has locked of a file that it has no longer open. Its clients do that
    /// before they close; this makes sure of it.
    fn unlock_closed(&mut self, closed: &Key<'_>) {
        if let Key::SessionOpen(session, inode) = closed {
            for owner in self.shared.file_locks.owners(*session, *inode) {
                self.delete(&Key::FileLocks(owner));
            }
        }
    }

    /// Takes back opens of a session; `false` if it had none such.
    pub(crate) fn uncount_opens(
        &mut self,
        session: skep_types::SessionId,
        inode: InodeId,
        closed: OpenCounts,
    ) -> Result<bool, Stop> {
        for key in [Key::SessionOpen(session, inode), Key::Opens(inode)] {
            let mut counts = self.get::<OpenCounts>(&key)?.unwrap_or_default();
            let enough = counts.readers >= closed.readers && counts.writers >= closed.writers;
            if !enough {
                return Ok(false);
            }
            counts.readers -= closed.readers;
            counts.writers -= closed.writers;
            if counts.is_zero() {
                self.delete(&key);
                self.unlock_closed(&key);
            } else {
                self.put(&key, &counts);
            }
        }
        Ok(true)
    }

    /// The session of the request.
    pub(crate) fn session(&self) -> Result<skep_types::SessionId, Stop> {
        match self.op.header() {
            Some(header) if header.session.raw() != 0 => Ok(header.session),
            _ => Err(Error::new(ErrorCode::Protocol, "the request needs a session").into()),
        }
    }

    /// Decodes an entry found by a scan.
    pub(crate) fn scanned_dentry(key: &[u8], value: &[u8]) -> Result<(u64, DentryRecord)> {
        let cursor = last_u64(key).ok_or(ErrorCode::Corrupt)?;
        Ok((cursor, decode_value(key, value)?))
    }
}
