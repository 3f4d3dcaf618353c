//! Compares the stores of the members of each metadata group.
//!
//! All serving members of a group apply the same log records, and a store contains only records
//! that each serving member has in its log. So the check takes the newest store of a group. To each
//! other store, it adds the log records that this store lacks, in memory only. After this, the
//! check compares this store with the newest store.
//!
//! The check does not compare a member that does not serve. Such a member may have changes that its
//! group does not have, and removes them before it serves again. The cached cluster map may be
//! older than the last change of a group, so a member may no longer serve although the map shows
//! that it serves. The check recognises such a member by its log: the log lacks the last record of
//! the newest store, or has a record of another epoch with the same LSN. The report names each
//! member that was not compared.

use crate::directories::Directories;
use crate::finding::{Finding, Findings};
use skep_format::log::LogOwner;
use skep_format::metadata::{Batch, Key};
use skep_metadata::engine::Engine;
use skep_metadata::engine::fjall_engine::FjallEngine;
use skep_store::failed_sync;
use skep_store::log::Segments;
use skep_types::codec::Codec;
use skep_types::{ClusterId, ErrorCode, Group, Lsn, MemberState, Result, TargetId, TargetKind};
use std::cmp::Reverse;
use std::collections::{BTreeMap, btree_map};
use std::iter::Peekable;
use std::path::PathBuf;
use std::vec;

/// Size in bytes of the cache of each key-value store. The check reads each record only once.
const CACHE_BYTES: u64 = 16 << 20;
/// Maximum number of records that one call reads from a store.
const PAGE: usize = 4096;

/// A key with its value.
type Pair = (Vec<u8>, Vec<u8>);
/// The changes in log records that a store lacks: new values by key. `None` means that the key is
/// removed.
type Changes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// The store of a member, and the directory of its log.
struct Store {
    target: TargetId,
    engine: FjallEngine,
    /// The last log record that the store contains.
    applied: Lsn,
    log: PathBuf,
}

/// The key-value pairs of a store to which `changes` were applied, in the order of their keys.
/// Omits the pair with the LSN of the last log record in the store.
struct Pairs<'a> {
    engine: &'a FjallEngine,
    page: Peekable<vec::IntoIter<Pair>>,
    /// The last key that was read from the store.
    after: Vec<u8>,
    /// Whether the store has no more pairs.
    is_read: bool,
    changes: Peekable<btree_map::IntoIter<Vec<u8>, Option<Vec<u8>>>>,
}

impl<'a> Pairs<'a> {
    fn of(engine: &'a FjallEngine, changes: Changes) -> Self {
        let (page, changes) = (Vec::new().into_iter().peekable(), changes.into_iter().peekable());
        Self { engine, page, after: Vec::new(), is_read: false, changes }
    }

    fn read_page(&mut self) -> Result<()> {
        let page = self.engine.scan(&[], &self.after, PAGE)?;
        match page.last() {
            Some((last, _)) => self.after.clone_from(last),
            None => self.is_read = true,
        }
        self.page = page.into_iter().peekable();
        Ok(())
    }

    fn next(&mut self) -> Result<Option<Pair>> {
        let applied = Key::Applied.to_bytes();
        loop {
            if self.page.peek().is_none() && !self.is_read {
                self.read_page()?;
            }
            let is_changed = match (self.changes.peek(), self.page.peek()) {
                (Some((changed, _)), Some((stored, _))) => changed <= stored,
                (changed, _) => changed.is_some(),
            };
            if is_changed {
                let Some((key, value)) = self.changes.next() else { return Ok(None) };
                // Skip the stored value, which the change replaces.
                let _ = self.page.next_if(|(stored, _)| *stored == key);
                if let Some(value) = value {
                    return Ok(Some((key, value)));
                }
                continue;
            }
            let Some(pair) = self.page.next() else { return Ok(None) };
            if pair.0 != applied {
                return Ok(Some(pair));
            }
        }
    }
}

/// Returns the first key that has different values in the two stores, or that only one of them has.
/// `None` means that the stores are equal.
fn first_difference(mut one: Pairs<'_>, mut other: Pairs<'_>) -> Result<Option<Vec<u8>>> {
    loop {
        match (one.next()?, other.next()?) {
            (None, None) => return Ok(None),
            (Some((key, _)), None) | (None, Some((key, _))) => return Ok(Some(key)),
            (Some(pair), Some(twin)) if pair != twin => return Ok(Some(pair.0.min(twin.0))),
            _ => {}
        }
    }
}

/// The comparison of the members of one group.
struct Comparison<'a> {
    group: &'a Group,
    cluster: ClusterId,
    findings: &'a mut Findings,
    skipped: &'a mut Vec<String>,
}

impl Comparison<'_> {
    fn run(&mut self, directories: &Directories) -> Result<()> {
        let mut stores = self.stores(directories)?;
        stores.sort_by_key(|it| (Reverse(it.applied), it.target != self.group.primary));
        let Some((newest, others)) = stores.split_first() else { return Ok(()) };
        for other in others {
            let Some(changes) = self.missing_changes(other, newest)? else { continue };
            let of_newest = Pairs::of(&newest.engine, Changes::new());
            if let Some(key) = first_difference(of_newest, Pairs::of(&other.engine, changes))? {
                self.findings.add(Finding::MembersDiffer {
                    group: self.group.id,
                    targets: [newest.target, other.target],
                    record: newest.applied,
                    key,
                });
            }
        }
        Ok(())
    }

    /// Opens the stores of the serving members that the check has found.
    fn stores(&mut self, directories: &Directories) -> Result<Vec<Store>> {
        let mut stores = Vec::new();
        for member in &self.group.members {
            let target = member.target;
            if member.state != MemberState::Serving {
                self.skip(target, "the target does not serve, and lacks changes");
                continue;
            }
            let Some(directory) = directories.metadata_of(target) else {
                self.skip(target, "its directory is not below the named directories");
                continue;
            };
            let path = directory.path();
            // After a failed sync, the store may differ from the bytes on the device.
            if failed_sync::is_marked(path) {
                self.skip(target, "its device failed");
                continue;
            }
            let store = path.join("store");
            if !store.exists() {
                self.skip(target, "the target has no store");
                continue;
            }
            let engine = FjallEngine::open(&store, CACHE_BYTES)?;
            if engine.get(&Key::StoreCopy.to_bytes())?.is_some() {
                self.skip(target, "its store is an incomplete copy");
                continue;
            }
            let applied = engine.applied()?.unwrap_or_default();
            stores.push(Store { target, engine, applied, log: path.join("log") });
        }
        Ok(stores)
    }

    /// Returns the changes of the log records that the store `store` lacks and the store `newest`
    /// has. `None` means that the stores cannot be compared. The function has then added the
    /// reason.
    fn missing_changes(&mut self, store: &Store, newest: &Store) -> Result<Option<Changes>> {
        let last = newest.applied;
        if store.applied == last {
            return Ok(Some(Changes::new()));
        }
        let epoch_of_last = |log: &Segments| {
            log.records.iter().find(|record| record.lsn == last).map(|record| record.epoch)
        };
        let (Some(log), Some(other)) = (self.log_of(store)?, self.log_of(newest)?) else {
            return Ok(None);
        };
        let reason = match (epoch_of_last(&log), epoch_of_last(&other)) {
            // Two logs that have a record of the same LSN and epoch are equal up to this record.
            (Some(epoch), Some(expected)) if epoch == expected => {
                return Ok(self.changes_of(&log, store, last));
            }
            (Some(epoch), Some(expected)) => format!(
                "record {last} in its log is of group epoch {epoch}, but in the log of target {} \
                 it is of epoch {expected}",
                newest.target
            ),
            (Some(_), None) => {
                format!("the log of target {} does not have record {last} any more", newest.target)
            }
            (None, _) => format!(
                "its log lacks record {last}, the last record in the store of target {}",
                newest.target
            ),
        };
        self.skip(store.target, &reason);
        Ok(None)
    }

    /// Returns the changes of all records in the log of `store` that the store lacks, up to the
    /// record `last`.
    fn changes_of(&mut self, log: &Segments, store: &Store, last: Lsn) -> Option<Changes> {
        if log.records.first().is_some_and(|it| it.lsn.raw() > store.applied.raw() + 1) {
            let what = format!(
                "log records are missing: the store ends with record {}, and the log begins after \
                 the next record",
                store.applied
            );
            self.damaged(store.target, &what);
            return None;
        }
        let mut changes = Changes::new();
        let missing = |lsn: Lsn| lsn > store.applied && lsn <= last;
        for record in log.records.iter().filter(|record| missing(record.lsn)) {
            match Batch::from_bytes(&record.payload) {
                Ok(batch) => {
                    let mutations = batch.mutations.into_iter();
                    changes.extend(mutations.map(|it| (it.key.0, it.value.map(|value| value.0))));
                }
                Err(error) => {
                    self.damaged(
                        store.target,
                        &format!("cannot read log record {}: {error}", record.lsn),
                    );
                    return None;
                }
            }
        }
        Some(changes)
    }

    /// Reads the log of a member. `None` means that the log is damaged. The function has then added
    /// a finding.
    fn log_of(&mut self, store: &Store) -> Result<Option<Segments>> {
        let owner = LogOwner { cluster: self.cluster, target: store.target };
        match Segments::read(&store.log, owner, store.applied) {
            Ok(log) => Ok(Some(log)),
            Err(error) if error.code() == ErrorCode::Corrupt => {
                self.damaged(store.target, error.context());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Adds a finding about a member, unless the member is the primary: the check of the primary's
    /// records adds the same finding.
    fn damaged(&mut self, target: TargetId, what: &str) {
        if target != self.group.primary {
            self.findings.add(Finding::Damaged { target, what: what.to_owned() });
        }
        self.skip(target, "its log is damaged");
    }

    fn skip(&mut self, target: TargetId, reason: &str) {
        let group = self.group.id;
        self.skipped.push(format!(
            "whether the store of metadata target {target} is equal to the others of group \
             {group}, because {reason}"
        ));
    }
}

/// Compares the stores of the serving members of each metadata group. Returns a line of text for
/// each member that was not compared, with the reason.
pub(crate) fn check(directories: &Directories, findings: &mut Findings) -> Result<Vec<String>> {
    let (mut skipped, cluster) = (Vec::new(), directories.map.cluster);
    let groups = directories.map.groups.iter();
    for group in groups.filter(|it| it.kind == TargetKind::Metadata && it.members.len() > 1) {
        let (findings, skipped) = (&mut *findings, &mut skipped);
        Comparison { group, cluster, findings, skipped }.run(directories)?;
    }
    Ok(skipped)
}
