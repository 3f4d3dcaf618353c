//! The table of truncations that are not durable at storage yet, by file. The table is a copy of
//! the `Truncation` records in the store. The target loads the table at its start, and updates it
//! when a transaction writes a `Truncation` record ([`TruncationTable::on_write`]).
//!
//! The module `background::truncations` sends the requests to storage.

use skep_format::metadata::TruncationRecord;
use skep_types::{Error, GroupId, InodeId};
use std::collections::{BTreeMap, BTreeSet};

/// A truncation that is not durable at storage yet.
#[derive(Debug)]
pub(crate) struct Truncation {
    pub(crate) record: TruncationRecord,
    /// The error of storage, if the most recent attempt to truncate the chunk files has failed.
    pub(crate) failure: Option<Error>,
    /// The storage group for which clients' requests have waited because of this truncation: the
    /// first group that has refused, otherwise the last group that has replied. `None` until all
    /// groups have replied.
    pub(crate) awaited: Option<GroupId>,
    /// Whether the storage hosts of all chunk files in `record` may have lost the applied
    /// truncation, and a writer had the file open at the last sync. In the other chunk files of the
    /// file, the truncation is durable. `false` if the target does not know of a loss, as after a
    /// start of the target.
    pub(crate) is_lost: bool,
}

/// The truncations, by file.
///
/// # Invariants
/// - Each file has at most one truncation (the map's key).
/// - `pending` has exactly the files whose truncation is not applied.
/// - Only a pending truncation has a failure.
#[derive(Debug, Default)]
pub(crate) struct TruncationTable {
    all: BTreeMap<InodeId, Truncation>,
    pending: BTreeSet<InodeId>,
    /// Files whose truncation was applied, or was removed, since the last call of
    /// [`Self::take_ended`].
    ended: Vec<InodeId>,
    /// Files with an applied truncation whose chunk files storage must sync immediately.
    urgent: BTreeSet<InodeId>,
}

impl TruncationTable {
    /// Updates the table with a `Truncation` record that a transaction has written or deleted.
    pub(crate) fn on_write(&mut self, inode: InodeId, record: Option<TruncationRecord>) {
        let is_pending = record.as_ref().is_some_and(|record| !record.is_applied);
        match record {
            Some(record) => {
                let known = self.all.get(&inode);
                let known = known.filter(|it| it.record.generation == record.generation);
                let awaited = known.and_then(|it| it.awaited);
                let (failure, is_lost) = (None, known.is_some_and(|it| it.is_lost));
                self.all.insert(inode, Truncation { record, failure, awaited, is_lost });
            }
            None => drop(self.all.remove(&inode)),
        }
        if is_pending {
            self.pending.insert(inode);
        } else if self.pending.remove(&inode) {
            self.ended.push(inode);
        }
    }

    /// Removes and returns the files whose truncation is no longer pending.
    pub(crate) fn take_ended(&mut self) -> Vec<InodeId> {
        std::mem::take(&mut self.ended)
    }

    /// Returns the truncation of a file, pending or applied.
    pub(crate) fn get(&self, inode: InodeId) -> Option<&Truncation> {
        // A fast path, because the table is nearly always empty.
        if self.all.is_empty() { None } else { self.all.get(&inode) }
    }

    /// Returns the truncation of a file if it is pending. A truncation is pending until storage has
    /// truncated all chunk files.
    pub(crate) fn pending(&self, inode: InodeId) -> Option<&Truncation> {
        if self.pending.is_empty() {
            None
        } else {
            self.get(inode).filter(|it| !it.record.is_applied)
        }
    }

    /// Iterates over the files whose truncation is pending.
    pub(crate) fn all_pending(&self) -> impl Iterator<Item = InodeId> + '_ {
        self.pending.iter().copied()
    }

    /// Iterates over the files whose truncation is applied.
    pub(crate) fn all_applied(&self) -> impl Iterator<Item = InodeId> + '_ {
        self.all.keys().copied().filter(|inode| !self.pending.contains(inode))
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Notes that storage has refused a pending truncation. Returns `false` if the file has no
    /// pending truncation of this generation any more.
    pub(crate) fn fail(&mut self, inode: InodeId, generation: u64, error: Error) -> bool {
        let truncation = self.all.get_mut(&inode).filter(|it| !it.record.is_applied);
        let Some(truncation) = truncation.filter(|it| it.record.generation == generation) else {
            return false;
        };
        truncation.failure = Some(error);
        true
    }

    /// Notes the storage group for which a truncation has waited.
    pub(crate) fn note_awaited(&mut self, inode: InodeId, generation: u64, group: GroupId) {
        let truncation = self.all.get_mut(&inode);
        if let Some(truncation) = truncation.filter(|it| it.record.generation == generation) {
            truncation.awaited = Some(group);
        }
    }

    /// Returns the storage group for which the truncation of a file has waited, if it is known.
    pub(crate) fn awaited(&self, inode: InodeId) -> Option<GroupId> {
        self.get(inode).and_then(|it| it.awaited)
    }

    /// Notes that the storage hosts of all chunk files in the record may have lost the truncation
    /// ([`Truncation::is_lost`]). The same transaction has removed all other chunk files from the
    /// record.
    pub(crate) fn note_lost(&mut self, inode: InodeId) {
        if let Some(truncation) = self.all.get_mut(&inode) {
            truncation.is_lost = true;
        }
    }

    /// Makes the truncation job immediately ask storage to sync the chunk files of an applied
    /// truncation.
    pub(crate) fn settle_soon(&mut self, inode: InodeId) {
        self.urgent.insert(inode);
    }

    /// Removes and returns the files with an applied truncation whose chunk files storage must sync
    /// immediately.
    pub(crate) fn take_urgent(&mut self) -> BTreeSet<InodeId> {
        std::mem::take(&mut self.urgent)
    }

    /// Panics if an invariant of the type is violated.
    pub(crate) fn check_invariants(&self) {
        let is_pending = |it: &Truncation| !it.record.is_applied;
        let pending = self.all.iter().filter(|(_, it)| is_pending(it)).map(|(inode, _)| *inode);
        assert!(pending.eq(self.pending.iter().copied()), "`pending` has the pending truncations");
        assert!(
            self.all.values().all(|it| is_pending(it) || it.failure.is_none()),
            "only a pending truncation has a failure"
        );
        assert!(self.ended.is_empty(), "the target has handled each truncation that has ended");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_truncation_counts_as_lost_until_the_next_truncation() {
        let (mut table, inode) = (TruncationTable::default(), InodeId::new(2));
        let applied = |generation| TruncationRecord {
            generation,
            had_writers: true,
            is_applied: true,
            chunk_files: Vec::new(),
        };
        let is_lost = |table: &TruncationTable| table.get(inode).unwrap().is_lost;
        table.on_write(inode, Some(applied(1)));
        assert!(!is_lost(&table));
        table.note_lost(inode);
        table.on_write(inode, Some(applied(1)));
        assert!(is_lost(&table), "the transaction has removed chunk files from the record");
        table.on_write(inode, Some(applied(2)));
        assert!(!is_lost(&table), "this is another truncation");
    }
}
