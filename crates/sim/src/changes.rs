//! Decodes the changes of a batch from its log record, and compares these changes with the
//! reference model.

use crate::model::{Inode, Model};
use skep_format::metadata::{
    Batch, DentryRecord, FileLocksRecord, InlineRecord, InodeRecord, Key, LockOwner,
    PreparedRecord, SlotRecord, StagedRecord, directory_of_dentry, inline_of, inode_of, last_u64,
    lock_owner_of, name_cursor, transaction_of, xattr_of,
};
use skep_types::codec::Codec;
use skep_types::{ACCESS_ACL, ClusterMap, DEFAULT_ACL, FileKind, InodeId, SessionId, Timestamp};
use skep_wire::metadata::{Step, TransactionId};
use std::collections::{BTreeMap, BTreeSet};

/// The changes in a batch of a target, as far as the reference model covers them.
#[derive(Default)]
pub(crate) struct Changes {
    pub(crate) slots: Vec<(SessionId, u32, SlotRecord)>,
    pub(crate) slots_gone: Vec<(SessionId, u32)>,
    pub(crate) sessions_ended: Vec<SessionId>,
    /// For each close in the batch: the session, and the file that the session closed.
    pub(crate) closed: Vec<(SessionId, InodeId)>,
    pub(crate) recovered_sizes: Vec<InodeId>,
    pub(crate) inodes: BTreeMap<InodeId, Option<InodeRecord>>,
    /// Changed extended attributes: inode, name and new value. If the value is `None`, the
    /// attribute was removed.
    pub(crate) xattrs: Vec<(InodeId, Vec<u8>, Option<Vec<u8>>)>,
    /// Changed parts of inline bytes: the inode, the index of the part and the stored bytes.
    pub(crate) inline: Vec<(InodeId, u16, Vec<u8>)>,
    pub(crate) dentries: Vec<(InodeId, u64, Option<DentryRecord>)>,
    pub(crate) locks: Vec<(LockOwner, Option<FileLocksRecord>)>,
    /// New directories that this target has prepared in a transaction with another target, each
    /// with the transaction step that creates it.
    pub(crate) prepared: Vec<(InodeId, Step)>,
    /// Transactions of other targets that this target has prepared, each with the time at which it
    /// was prepared.
    pub(crate) prepared_transactions: Vec<(TransactionId, Timestamp)>,
    /// Transactions of this target that the batch has staged, by number.
    pub(crate) staged: Vec<(u64, StagedRecord)>,
    /// Staged transactions that the batch has committed or undone.
    pub(crate) staged_ends: Vec<u64>,
    /// Transactions of this target that the batch has decided to commit.
    pub(crate) decided: BTreeSet<u64>,
    /// Requests that the target has undone: session, slot and sequence number.
    pub(crate) undone: Vec<(SessionId, u32, u64)>,
    /// Lock owners whose locks were released because their sessions ended.
    pub(crate) freed_by_end: BTreeSet<LockOwner>,
}

impl Changes {
    pub(crate) fn of(batch: &Batch) -> Result<Self, String> {
        let slots = Key::slots_of(SessionId::default())[..2].to_vec();
        let (opens, sizes) = (Key::session_opens(), Key::size_recoveries());
        let (ends, prepared) = (Key::session_ends(), Key::prepared());
        let (staged, decisions) = (Key::staged(), Key::decisions());
        let mut changes = Self::default();
        for change in &batch.mutations {
            let key = change.key.0.as_slice();
            let value = change.value.as_ref().map(|it| it.0.as_slice());
            let id = last_u64(key).unwrap_or_default();
            if key.starts_with(&slots) {
                let session = SessionId::new(last_u64(&key[..10]).unwrap_or_default());
                match value.map(decode::<SlotRecord>).transpose()? {
                    Some(record) if record.is_undone() => {
                        changes.undone.push((session, id as u32, record.sequence));
                    }
                    Some(record) => changes.slots.push((session, id as u32, record)),
                    None => changes.slots_gone.push((session, id as u32)),
                }
            } else if key.starts_with(&opens) {
                let session = last_u64(&key[..10]).unwrap_or_default();
                if value.is_none() {
                    changes.closed.push((SessionId::new(session), InodeId::new(id)));
                }
            } else if key.starts_with(&ends) {
                if value.is_some() {
                    changes.sessions_ended.push(SessionId::new(id));
                }
            } else if key.starts_with(&sizes) {
                // The target has recovered the size of this file. If another writer of the file
                // died in this batch, the target must repeat the recovery.
                changes.recovered_sizes.push(InodeId::new(id));
            } else if key.starts_with(&prepared) {
                let record: Option<PreparedRecord> = value.map(decode).transpose()?;
                // A record without steps belongs to a transaction that has already been applied.
                let new = record.filter(|record| !record.steps.is_empty());
                let since = new.as_ref().map(|record| record.since);
                let prepared = transaction_of(key).zip(since);
                changes.prepared_transactions.extend(prepared);
                changes.prepared.extend(new.and_then(prepared_directory));
            } else if key.starts_with(&staged) {
                match value.map(decode::<StagedRecord>).transpose()? {
                    Some(record) => changes.staged.push((id, record)),
                    None => changes.staged_ends.push(id),
                }
            } else if key.starts_with(&decisions) {
                changes.decided.extend(value.map(|_| id));
            } else if let Some(owner) = lock_owner_of(key) {
                changes.locks.push((owner, value.map(decode).transpose()?));
            } else if let Some(inode) = inode_of(key) {
                changes.inodes.insert(inode, value.map(decode).transpose()?);
            } else if let Some((inode, part)) = inline_of(key) {
                changes.inline.push((inode, part, inline_bytes(value)?));
            } else if let Some((inode, name)) = xattr_of(key) {
                changes.xattrs.push((inode, name.to_vec(), value.map(<[u8]>::to_vec)));
            } else if let Some(directory) = directory_of_dentry(key) {
                changes.dentries.push((directory, id, value.map(decode).transpose()?));
            }
        }
        Ok(changes)
    }
}

fn decode<T: Codec>(value: &[u8]) -> Result<T, String> {
    T::from_bytes(value).map_err(|error| format!("a malformed value: {error}"))
}

/// Returns the bytes of an inline record. If there is no record, returns an empty list.
pub(crate) fn inline_bytes(value: Option<&[u8]>) -> Result<Vec<u8>, String> {
    let Some(value) = value else { return Ok(Vec::new()) };
    let record: InlineRecord = decode(value)?;
    record.checked().ok_or_else(|| "inline bytes do not match their checksum".to_owned())
}

fn prepared_directory(record: PreparedRecord) -> Option<(InodeId, Step)> {
    let is_directory = |it: &Step| matches!(it, Step::MakeDirectoryInode { .. });
    let step = record.steps.into_iter().find(is_directory)?;
    record.attributes.first().map(|attributes| (attributes.inode, step))
}

/// Checks that a new directory has the inherited settings that its prepared step contains. Does not
/// compare other values, because the same batch may also have changed the parent directory.
pub(crate) fn fits_prepared(new: &Inode, prepared: &Step) -> Result<(), String> {
    let Step::MakeDirectoryInode {
        pattern,
        project,
        hands_down_project,
        access_acl,
        default_acl,
        ..
    } = prepared
    else {
        return Ok(());
    };
    let acl = |name: &[u8]| new.xattrs.get(name).map_or(&[][..], Vec::as_slice);
    let is_right = new.has_pattern(pattern.as_ref())
        && (new.project, new.hands_down_project) == (*project, *hands_down_project)
        && acl(ACCESS_ACL) == access_acl.0
        && acl(DEFAULT_ACL) == default_acl.0;
    if is_right {
        Ok(())
    } else {
        Err(format!("the new directory was prepared as {prepared:?}; expected {new:?}"))
    }
}

/// Checks that the entries in a batch equal the entries of the reference model.
fn fits_names(model: &Model, changes: &Changes, map: &ClusterMap) -> Result<(), String> {
    for (directory, cursor, dentry) in &changes.dentries {
        let entries = model.inodes.get(directory).map(|it| &it.entries);
        match dentry {
            Some(dentry) => {
                let expected = entries.and_then(|it| it.get(&dentry.name.0));
                if expected != Some(&dentry.inode) {
                    return Err(format!("{directory} got {dentry:?}; expected {expected:?}"));
                }
            }
            None => {
                let at_cursor =
                    |name: &Vec<u8>| name_cursor(map.cluster, *directory, name) == *cursor;
                let name = entries.and_then(|it| it.keys().find(|name| at_cursor(name)));
                if let Some(name) = name {
                    let name = name.escape_ascii();
                    return Err(format!("{directory} lost \"{name}\""));
                }
            }
        }
    }
    Ok(())
}

/// Checks that the locks in a batch equal the locks of the reference model. `early` means that the
/// model has not yet released the locks of ended sessions.
fn fits_locks(model: &Model, changes: &Changes, early: bool) -> Result<(), String> {
    for (owner, record) in &changes.locks {
        if early && changes.freed_by_end.contains(owner) {
            continue;
        }
        let inode = model.inodes.get(&owner.inode);
        if inode.is_none() && record.is_some() {
            // A lock that a client sets after it has closed the file may remain until the client's
            // session ends.
            continue;
        }
        let expected = inode.and_then(|it| it.locks.get(&(owner.session, owner.kind, owner.owner)));
        let expected: Vec<_> = expected.into_iter().flat_map(|it| it.iter()).collect();
        let ranges = record.iter().flat_map(|it| &it.ranges);
        let found: Vec<_> = ranges.map(|it| (it.start..it.end, it.mode)).collect();
        if found != expected {
            return Err(format!("{owner:?} has locked {found:?}; expected {expected:?}"));
        }
    }
    Ok(())
}

/// Compares the explicitly set and the inherited settings of an inode with the reference model.
fn fits_settings(record: &InodeRecord, expected: &Inode) -> Result<(), String> {
    let attributes = &record.attributes;
    let inode = attributes.inode;
    let project = (attributes.project, attributes.hands_down_project);
    let found = (attributes.permissions, attributes.has_acl, record.may_be_named, project);
    let project = (expected.project, expected.hands_down_project);
    let right = (expected.permissions, expected.has_acl(), expected.may_be_named, project);
    if found != right {
        let what = "permissions, has_acl, may_be_named, project";
        return Err(format!("inode {inode} has ({what}) {found:?}; expected {right:?}"));
    }
    if !expected.has_pattern(record.pattern.as_ref()) {
        let (found, right) = (&record.pattern, &expected.pattern);
        return Err(format!("inode {inode} has the pattern {found:?}; expected {right:?}"));
    }
    Ok(())
}

/// Checks that the entries and inodes in a batch equal the reference model. `early` means that
/// recovered sizes have not been applied to the model yet.
pub(crate) fn fits(
    model: &Model,
    changes: &Changes,
    map: &ClusterMap,
    early: bool,
) -> Result<(), String> {
    fits_names(model, changes, map)?;
    fits_locks(model, changes, early)?;
    for (inode, name, value) in &changes.xattrs {
        // A removed inode is not in the model. The attributes of a removed inode need no check,
        // because the target deletes the attributes together with the inode.
        let expected = model.inodes.get(inode).map(|it| it.xattrs.get(name));
        if expected.is_some_and(|it| it != value.as_ref()) {
            let name = name.escape_ascii();
            return Err(format!("{inode} got {name} = {value:?}; expected {expected:?}"));
        }
    }
    for (inode, part, bytes) in &changes.inline {
        // A removed inode is not in the model. The inline bytes of a removed inode need no check,
        // because the target deletes these bytes together with the inode.
        let expected = model.inodes.get(inode).map(|it| it.inline_part(*part));
        if expected.is_some_and(|it| it != bytes) {
            let (found, right) = (bytes.len(), expected.map(<[u8]>::len));
            return Err(format!(
                "{inode} has {found} wrong inline bytes in part {part}; expected {right:?} bytes"
            ));
        }
        if expected.is_none() && !bytes.is_empty() {
            return Err(format!("{inode} got inline bytes, but is not in the reference model"));
        }
    }
    for (inode, record) in &changes.inodes {
        if early && changes.recovered_sizes.contains(inode) {
            continue;
        }
        let Some(record) = record else {
            if model.inodes.contains_key(inode) {
                return Err(format!("inode {inode} was removed, but is in the reference model"));
            }
            continue;
        };
        let attributes = &record.attributes;
        let expected = model.inodes.get(inode);
        if let Some(expected) = expected {
            fits_settings(record, expected)?;
        }
        if attributes.kind == FileKind::Directory {
            continue;
        }
        let Some(expected) = expected else {
            return Err(format!("inode {inode} was written, but is not in the reference model"));
        };
        let found = (attributes.links, attributes.size, attributes.truncate_generation);
        let right = (expected.links, expected.size, expected.truncate_generation);
        if found != right {
            return Err(format!(
                "inode {inode} has (links, size, truncations) {found:?}; expected {right:?}"
            ));
        }
    }
    Ok(())
}
