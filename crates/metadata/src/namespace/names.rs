//! Names: the entries of directories.

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::locks::Resource;
use crate::tx::operation::Stop;
use skep_format::metadata::{
    DentryRecord, InodeRecord, Key, ORDINALS, decode_value, last_u64, name_cursor,
};
use skep_types::{Error, ErrorCode, FileKind, InodeId, MAX_NAME_BYTES, Result};
use skep_wire::metadata::EntryReply;

/// Checks a name in a client's request.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > MAX_NAME_BYTES {
        return Err(ErrorCode::NameTooLong.into());
    }
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0)
    {
        let shown = name.escape_ascii();
        return Err(Error::new(
            ErrorCode::InvalidArgument,
            format!(
                "invalid name \"{shown}\": expected at least one byte, no '/' and no zero byte, \
                 and not '.' or '..'"
            ),
        ));
    }
    Ok(())
}

impl<E: Engine> Context<'_, E> {
    /// Returns the entry of a name, with its cursor: the hash of the name and an ordinal. `None`
    /// means that the directory has no such name.
    pub(crate) fn dentry(
        &self,
        directory: InodeId,
        name: &[u8],
    ) -> Result<Option<(u64, DentryRecord)>, Stop> {
        self.check_free(Resource::Dentry(directory, name.to_vec()))?;
        let first = name_cursor(self.shared.map.cluster, directory, name);
        // The ordinals of entries with the same hash have no gaps (see `remove_dentry`), so the
        // first unused ordinal ends the search.
        for ordinal in 0..ORDINALS {
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

    /// Adds an entry. The caller has checked that the directory does not have the name yet.
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
        let context = format!(
            "cannot add a name to directory {directory}: it has 256 names with the same hash, \
             which is the limit; use another name"
        );
        Err(Error::new(ErrorCode::NoSpace, context).into())
    }

    /// Makes the entry at a cursor point to another inode.
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

    /// Removes the entry at a cursor. If later entries have the same hash, the last of them moves
    /// to this cursor, so that the ordinals have no gaps. A client that has listed the directory up
    /// to a cursor between the two positions may miss the moved entry. A client can miss an entry
    /// only after a 55-bit hash collision within one directory.
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

    /// Whether a directory has no entries. The size of the directory is the number of its entries,
    /// and each transaction that adds or removes an entry updates this size. A scan for entries
    /// would be slow, because it would pass the tombstones of all removed entries in the key-value
    /// store. Debug builds scan nevertheless, and check that the result agrees with the size.
    pub(crate) fn is_empty_directory(&self, directory: &InodeRecord) -> Result<bool> {
        let is_empty = directory.attributes.size == 0;
        if cfg!(debug_assertions) {
            let prefix = Key::dentries_of(directory.attributes.inode);
            let found = self.scan_keys(&prefix, &[], 1)?;
            assert_eq!(found.is_empty(), is_empty, "the size is the count of entries");
        }
        Ok(is_empty)
    }

    /// Decodes an entry that a scan has found. Returns the cursor and the entry.
    pub(crate) fn scanned_dentry(key: &[u8], value: &[u8]) -> Result<(u64, DentryRecord)> {
        let cursor = last_u64(key).ok_or(ErrorCode::Corrupt)?;
        Ok((cursor, decode_value(key, value)?))
    }

    /// Returns the reply about a name that points to `inode`. The reply has the attributes if this
    /// group serves the inode, and no undecided transaction changes names in it.
    pub(crate) fn entry_reply(&self, inode: InodeId, kind: FileKind) -> Result<EntryReply, Stop> {
        let attributes = match self.is_local(inode)? && !self.has_undecided_names(inode) {
            true => Some(self.inode(inode)?.attributes),
            false => None,
        };
        Ok(EntryReply { inode, kind, attributes })
    }
}
