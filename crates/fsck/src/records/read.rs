//! Reads the store and the log of one metadata target.
//!
//! The module owns the conversion of stored keys and values to [`Records`]. For a damaged record,
//! it adds a finding and continues without the record.

use super::{Entry, Inode, Records, SessionOpen};
use crate::finding::{Finding, Findings};
use skep_format::log::LogOwner;
use skep_format::metadata::{
    Batch, DentryRecord, InlineRecord, InodeRecord, Key, OpenCounts, PreparedRecord, StagedRecord,
    decode_value, directory_of_dentry, inline_of, inode_of, last_u64, lock_owner_of, removal,
    session_open_of, transaction_of, truncation_of, xattr_of,
};
use skep_metadata::engine::Engine;
use skep_metadata::engine::fjall_engine::FjallEngine;
use skep_store::failed_sync;
use skep_store::identity::Directory;
use skep_store::log::Segments;
use skep_types::codec::Codec;
use skep_types::{
    ClusterMap, Error, ErrorCode, FileKind, GroupId, InodeId, Lsn, Result, SessionId, ShardId,
    TargetId,
};
use skep_wire::metadata::Step;
use std::collections::BTreeMap;

/// Size in bytes of the cache of the key-value store. The cache is small, since the check reads
/// each record only once.
const CACHE_BYTES: u64 = 16 << 20;
/// Maximum number of records that one call reads from the store.
const PAGE: usize = 4096;
/// First byte of the key of each record that belongs to a shard.
const OF_SHARD: u8 = 1;

/// The changes in log records that are not yet in the store: new values by key. `None` means that
/// the record is removed.
type Changes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// Reads the store and the log of one metadata target, and adds the records to `records`.
pub(super) fn read_target(
    records: &mut Records,
    target: TargetId,
    directory: &Directory,
    map: &ClusterMap,
    findings: &mut Findings,
) -> Result<()> {
    let Some(group) = map.group_led_by(target).map(|group| group.id) else { return Ok(()) };
    let path = directory.path();
    if failed_sync::is_marked(path) {
        let what = format!(
            "cannot check {}: the device of target {target} failed, so its store may differ from \
             what is on the device; start and stop the cluster before the check",
            path.display()
        );
        return Err(Error::new(ErrorCode::Configuration, what));
    }
    let store = path.join("store");
    // A metadata target that has never been started as a primary has no store.
    if !store.exists() {
        return Ok(());
    }
    let engine = FjallEngine::open(&store, CACHE_BYTES)?;
    let applied = engine.applied()?.unwrap_or_default();
    let owner = LogOwner { cluster: map.cluster, target };
    let mut reader = Reader { records, findings, target, group, map };
    let changes = match Segments::read(&path.join("log"), owner, applied) {
        Ok(log) => reader.changes_of(log, applied),
        Err(error) if error.code() == ErrorCode::Corrupt => {
            reader.damaged(error.context());
            Changes::new()
        }
        Err(error) => return Err(error),
    };
    let mut after = Vec::new();
    loop {
        let page = engine.scan(&[], &after, PAGE)?;
        let Some((last, _)) = page.last() else { break };
        after.clone_from(last);
        for (key, value) in page.iter().filter(|(key, _)| !changes.contains_key(key)) {
            reader.add(key, value);
        }
    }
    for (key, value) in &changes {
        if let Some(value) = value {
            reader.add(key, value);
        }
    }
    Ok(())
}

/// Converts the records of one metadata target, and adds them to `records`.
struct Reader<'a> {
    records: &'a mut Records,
    findings: &'a mut Findings,
    target: TargetId,
    group: GroupId,
    map: &'a ClusterMap,
}

impl Reader<'_> {
    fn damaged(&mut self, what: impl Into<String>) {
        self.findings.add(Finding::Damaged { target: self.target, what: what.into() });
    }

    /// Returns the changes of all log records after `applied`, which is the last log record that
    /// the store contains.
    fn changes_of(&mut self, log: Segments, applied: Lsn) -> Changes {
        let mut changes = Changes::new();
        match log.records.first().map(|record| record.lsn) {
            Some(first) if first.raw() > applied.raw() + 1 => self.damaged(format!(
                "log records are missing: the log begins with record {first}, but the store ends \
                 with record {applied}"
            )),
            _ => {}
        }
        for record in log.records.iter().filter(|record| record.lsn > applied) {
            let lsn = record.lsn;
            match Batch::from_bytes(&record.payload) {
                Ok(batch) => {
                    let mutations = batch.mutations.into_iter();
                    changes.extend(mutations.map(|it| (it.key.0, it.value.map(|value| value.0))));
                    self.records.log_records += 1;
                }
                Err(error) => self.damaged(format!("cannot read log record {lsn}: {error}")),
            }
        }
        changes
    }

    /// Adds the record with this key and value. If the record cannot be decoded, adds a finding.
    fn add(&mut self, key: &[u8], value: &[u8]) {
        let added = match key.first() {
            Some(&OF_SHARD) => self.add_of_shard(key, value),
            _ => self.add_of_target(key, value),
        };
        if let Err(error) = added {
            self.damaged(error.context());
        }
    }

    fn add_of_shard(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let unknown = || corrupt(key, "its key is unknown");
        let raw = key.get(1..3).ok_or_else(unknown)?;
        let shard = ShardId::new(u16::from_be_bytes([raw[0], raw[1]]));
        if self.map.formatted && self.map.shard_group(shard) != Some(self.group) {
            self.findings.add(Finding::WrongTarget { target: self.target, shard });
        }
        let records = &mut *self.records;
        if let Some(inode) = inode_of(key) {
            let record: InodeRecord = decode_value(key, value)?;
            if record.attributes.inode != inode {
                let named = record.attributes.inode;
                return Err(corrupt(key, &format!("the record belongs to inode {named}")));
            }
            records.inodes.insert(inode, short(record));
        } else if let Some((inode, part)) = inline_of(key) {
            let record: InlineRecord = decode_value(key, value)?;
            records.attached.insert((inode, "inline bytes"));
            if part > 0 && record.has_all_parts() {
                return Err(corrupt(key, "the part of the inline bytes is too long"));
            }
            if record.checked().is_none() {
                return Err(corrupt(key, "the checksum of the inline bytes does not match"));
            }
        } else if let Some(directory) = directory_of_dentry(key) {
            let DentryRecord { name, inode, kind } = decode_value(key, value)?;
            let cursor = last_u64(key).ok_or_else(unknown)?;
            records.entries.push(Entry { directory, cursor, name: name.0, inode, kind });
        } else if let Some((inode, _)) = xattr_of(key) {
            records.attached.insert((inode, "extended attributes"));
        } else {
            let inode = last_u64(key).map(InodeId::new).ok_or_else(unknown)?;
            if key != Key::Opens(inode).to_bytes() {
                return Err(unknown());
            }
            records.opens.insert(inode, decode_value::<OpenCounts>(key, value)?);
        }
        Ok(())
    }

    fn add_of_target(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let (records, group) = (&mut *self.records, self.group);
        let id = || last_u64(key).ok_or_else(|| corrupt(key, "its key is unknown"));
        let slots = Key::slots_of(SessionId::default());
        if let Some((session, inode)) = session_open_of(key) {
            let counts = decode_value(key, value)?;
            records.session_opens.push(SessionOpen { group, session, inode, counts });
        } else if let Some(owner) = lock_owner_of(key) {
            records.locks.insert((group, owner));
        } else if let Some(removal) = removal(key) {
            records.removals.insert(removal);
        } else if let Some(inode) = truncation_of(key) {
            records.attached.insert((inode, "truncation"));
        } else if key.starts_with(&Key::size_recoveries()) {
            records.attached.insert((InodeId::new(id()?), "size recovery"));
        } else if key.starts_with(&Key::sessions()) {
            records.sessions.open.insert((group, SessionId::new(id()?)));
        } else if key.starts_with(&Key::session_ends()) {
            records.sessions.ended.insert((group, SessionId::new(id()?)));
        } else if key.starts_with(&slots[..2]) {
            let session = key.get(..slots.len()).and_then(last_u64);
            let session = session.ok_or_else(|| corrupt(key, "its key is unknown"))?;
            records.sessions.with_slots.insert((group, SessionId::new(session)));
        } else if key.starts_with(&Key::prepared()) {
            let transaction =
                transaction_of(key).ok_or_else(|| corrupt(key, "its key is unknown"))?;
            let record: PreparedRecord = decode_value(key, value)?;
            records.in_doubt.extend(inodes_of(&record));
            records.prepared.insert((group, transaction));
        } else if key.starts_with(&Key::staged()) {
            // The participant may have lost its part of the staged transaction, so the counts in
            // these inodes may be wrong.
            let StagedRecord { entry, .. } = decode_value(key, value)?;
            records.in_doubt.extend([entry.directory, entry.inode]);
        } else if key == Key::NumbersReserved.to_bytes() {
            records.reserved.insert(group, decode_value(key, value)?);
        }
        Ok(())
    }
}

fn corrupt(key: &[u8], problem: &str) -> Error {
    let what = format!("cannot read metadata record {}: {problem}", key.escape_ascii());
    Error::new(ErrorCode::Corrupt, what)
}

/// Returns the fields of an inode's record that the rules need.
fn short(record: InodeRecord) -> Inode {
    let InodeRecord { attributes, parent, pattern, has_xattrs, synced_chunk_files, .. } = record;
    let is_file = attributes.kind == FileKind::Regular;
    Inode {
        kind: attributes.kind,
        links: attributes.links,
        size: attributes.size,
        parent,
        has_xattrs,
        pattern: pattern.filter(|_| is_file),
        synced: synced_chunk_files,
    }
}

/// Returns all inodes that the steps of a prepared transaction change or mention.
fn inodes_of(record: &PreparedRecord) -> Vec<InodeId> {
    let mut inodes: Vec<_> = record.attributes.iter().map(|it| it.inode).collect();
    for step in &record.steps {
        match step {
            Step::MakeDirectoryInode { parent, .. } => inodes.push(*parent),
            Step::AddLink { inode }
            | Step::DropLink { inode }
            | Step::RemoveDirectoryInode { inode } => inodes.push(*inode),
            Step::SetParent { inode, parent, .. } => inodes.extend([*inode, *parent]),
            Step::RemoveEntry { directory, inode, .. } => inodes.extend([*directory, *inode]),
            Step::LockRename => {}
            Step::ReplaceEntry { directory, inode, new_inode, .. } => {
                inodes.extend([*directory, *inode, *new_inode]);
            }
        }
    }
    inodes
}
