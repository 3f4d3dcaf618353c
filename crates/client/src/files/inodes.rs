//! The table of the inodes that this mount has open, and of closed inodes with unsynced writes of
//! this mount.
//!
//! # Hazard: an operation that overtakes the reply to an open
//! Metadata may send the reply to an open again after a restart, with the attributes from before
//! the restart. Meanwhile, this mount may have truncated the file, or may have opened, written and
//! closed it. While the file is in the table, its state records these changes, and ignores the
//! attributes in the late reply. But the table may have no state of the file at that time. Then the
//! late reply would create a state with the old size, and an append would overwrite acknowledged
//! bytes. So `changed` records such changes, and the open then treats the file as shared: the mount
//! requests the size before each use.

use crate::files::handles::part_of;
use crate::files::opened_bytes::DataChanges;
use crate::files::recent_files::RecentFiles;
use crate::inode_state::InodeState;
use crate::limits::{MAX_CLOSED_UNSYNCED, TABLE_PARTS};
use skep_types::InodeId;
use skep_wire::metadata::TruncatedChunk;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The states of inodes that are open, and of closed inodes with unsynced writes.
#[derive(Debug)]
pub(crate) struct Inodes {
    /// Each mutex protects one part of the table. Lock order: the mutex of a part, then `closed`,
    /// then the mutex in an [`InodeState`] or in `changed`.
    parts: Vec<Mutex<HashMap<InodeId, Arc<InodeState>>>>,
    /// Closed inodes with unsynced writes, oldest first.
    closed: Mutex<VecDeque<Arc<InodeState>>>,
    /// Number of this mount's changes to names whose inode id the mount does not have, because
    /// metadata's reply to the change did not contain the id.
    changes: AtomicU64,
    /// For each part of the table, the number of data changes of files that have no state in the
    /// table. A thread holds the mutex of the part while it reads or changes this number.
    uncounted: Vec<AtomicU64>,
    /// The files with the newest data changes among the files that have no state in the table.
    pub(crate) changed: RecentFiles,
}

impl Inodes {
    pub(crate) fn new() -> Self {
        let parts = (0..TABLE_PARTS).map(|_| Mutex::default()).collect();
        let uncounted = (0..TABLE_PARTS).map(|_| AtomicU64::new(0)).collect();
        let (changes, changed) = (AtomicU64::new(0), RecentFiles::default());
        Self { parts, closed: Mutex::default(), changes, uncounted, changed }
    }

    fn with<T>(
        &self,
        inode: InodeId,
        f: impl FnOnce(&mut HashMap<InodeId, Arc<InodeState>>) -> T,
    ) -> T {
        let part = &self.parts[part_of(inode.raw())];
        f(&mut part.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counts a change to a name of a file without a known inode id. The client calls this function
    /// after metadata has acknowledged the change, and before the operation returns.
    pub(crate) fn count_name_change(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the number of changes that [`Self::count_name_change`] has counted.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Counts a change to a name or to attributes of an inode.
    pub(crate) fn count_change(&self, inode: InodeId) {
        if let Some(state) = self.get(inode) {
            state.count_change();
        }
    }

    /// Returns the number of changes of a file's data by this mount.
    pub(crate) fn data_changes(&self, inode: InodeId) -> DataChanges {
        self.with(inode, |part| DataChanges {
            elsewhere: self.uncounted[part_of(inode.raw())].load(Ordering::Relaxed),
            counted: part.get(&inode).map_or(0, |state| state.data_changes()),
        })
    }

    /// Counts a truncation of a file. The client calls this function after metadata has
    /// acknowledged the truncation, and before the operation returns.
    pub(crate) fn count_truncation(&self, inode: InodeId) {
        self.with(inode, |_| self.count_uncounted(inode));
    }

    fn count_uncounted(&self, inode: InodeId) {
        self.uncounted[part_of(inode.raw())].fetch_add(1, Ordering::Relaxed);
        self.changed.note(inode);
    }

    /// Removes the state of an inode from its part of the table. If the state has counted data
    /// changes, also adds one change to `uncounted` and `changed`. So an open in flight detects
    /// that data has changed.
    fn remove(&self, part: &mut HashMap<InodeId, Arc<InodeState>>, inode: InodeId) {
        if part.remove(&inode).is_some_and(|state| state.data_changes() > 0) {
            self.count_uncounted(inode);
        }
    }

    /// Returns the state of an inode, if it is in the table.
    pub(crate) fn get(&self, inode: InodeId) -> Option<Arc<InodeState>> {
        self.with(inode, |part| part.get(&inode).map(Arc::clone))
    }

    /// Counts a new handle of an inode, and returns the state of the inode.
    pub(crate) fn open(&self, inode: InodeId) -> Arc<InodeState> {
        self.with(inode, |part| {
            let state = part.entry(inode).or_insert_with(|| InodeState::new(inode));
            state.opened();
            Arc::clone(state)
        })
    }

    /// Counts a closed handle of an inode. If too many closed inodes have unsynced writes, returns
    /// the one that was closed first. The caller must sync this inode now.
    pub(crate) fn close(&self, state: &Arc<InodeState>) -> Option<Arc<InodeState>> {
        self.with(state.id, |part| {
            if !state.closed() {
                return None;
            }
            if state.is_idle() {
                self.remove(part, state.id);
                return None;
            }
            self.queue(state)
        })
    }

    /// Records truncated chunk files of an open or closed inode. If too many closed inodes have
    /// unsynced changes, returns the one that was closed first. The caller must sync this inode
    /// now.
    pub(crate) fn truncated(
        &self,
        inode: InodeId,
        truncated: &[TruncatedChunk],
    ) -> Option<Arc<InodeState>> {
        if truncated.is_empty() {
            return None;
        }
        self.with(inode, |part| {
            let state = part.entry(inode).or_insert_with(|| InodeState::new(inode));
            state.chunks_truncated(truncated);
            if state.is_closed_unsynced() { self.queue(state) } else { None }
        })
    }

    fn queue(&self, state: &Arc<InodeState>) -> Option<Arc<InodeState>> {
        if state.set_queued(true) {
            return None;
        }
        let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        closed.push_back(Arc::clone(state));
        if closed.len() <= MAX_CLOSED_UNSYNCED {
            return None;
        }
        let oldest = closed.pop_front()?;
        oldest.set_queued(false);
        oldest.is_closed_unsynced().then_some(oldest)
    }

    /// Removes an inode from the table if it is closed and has no unsynced writes. The client calls
    /// this function after a sync.
    pub(crate) fn forget_idle(&self, inode: InodeId) {
        self.with(inode, |part| {
            if part.get(&inode).is_some_and(|state| state.is_idle()) {
                self.remove(part, inode);
            }
        });
    }

    /// Returns the states of all inodes in the table.
    pub(crate) fn all(&self) -> Vec<Arc<InodeState>> {
        let mut all = Vec::new();
        for part in &self.parts {
            let part = part.lock().unwrap_or_else(PoisonError::into_inner);
            all.extend(part.values().map(Arc::clone));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::open_file::OpenFile;
    use skep_types::{ChunkFileKey, GroupId, HostIncarnation, StripePattern};
    use skep_wire::metadata::OpenMode;

    fn dirty(inodes: &Inodes, number: u64) -> Arc<InodeState> {
        let id = InodeId::new(number);
        let state = inodes.open(id);
        let key = ChunkFileKey { inode: id, generation: 1, component: 0, index: 0 };
        let writing = state.try_write().unwrap();
        writing.piece_written(key, GroupId::new(1), HostIncarnation::new(1));
        drop(writing);
        state
    }

    fn close(inodes: &Inodes, state: &Arc<InodeState>) -> Option<Arc<InodeState>> {
        state.closing(false, false);
        inodes.close(state)
    }

    /// A write, and the close and sync of its file, may end while the reply to an earlier open of
    /// the file is in flight.
    #[test]
    fn write_during_an_open_is_detected_even_after_its_close() {
        let inodes = Inodes::new();
        let sent = inodes.changed.position();
        let before = inodes.data_changes(InodeId::new(1));
        let state = dirty(&inodes, 1);
        let written = inodes.data_changes(state.id);
        assert_ne!(written, before);
        close(&inodes, &state);
        state.synced(&state.unsynced()[0], HostIncarnation::new(1));
        inodes.forget_idle(state.id);
        assert!(inodes.get(state.id).is_none());
        let closed = inodes.data_changes(state.id);
        assert!(closed != before && closed != written);
        assert!(inodes.changed.has_come_since(sent, state.id));
        assert!(!inodes.changed.has_come_since(sent, InodeId::new(2)));
        let sent = inodes.changed.position();
        inodes.count_truncation(state.id);
        assert_ne!(inodes.data_changes(state.id), closed);
        assert!(inodes.changed.has_come_since(sent, state.id));
    }

    #[test]
    fn closed_inode_leaves_the_table_after_its_sync() {
        let inodes = Inodes::new();
        let state = dirty(&inodes, 1);
        assert!(close(&inodes, &state).is_none());
        assert!(inodes.get(state.id).is_some());
        state.synced(&state.unsynced()[0], HostIncarnation::new(1));
        inodes.forget_idle(state.id);
        assert!(inodes.get(state.id).is_none());
        let clean = inodes.open(InodeId::new(2));
        assert!(close(&inodes, &clean).is_none());
        assert!(inodes.all().is_empty());
    }

    #[test]
    fn close_over_the_limit_requests_a_sync_of_the_oldest_inode() {
        let inodes = Inodes::new();
        for number in 1..=MAX_CLOSED_UNSYNCED as u64 {
            let state = dirty(&inodes, number);
            assert!(close(&inodes, &state).is_none());
        }
        // The inode is opened and closed again; the table must not queue it twice.
        let again = inodes.open(InodeId::new(2));
        assert!(close(&inodes, &again).is_none());
        let last = dirty(&inodes, 1 << 40);
        assert_eq!(close(&inodes, &last).unwrap().id, InodeId::new(1));
    }

    #[test]
    fn each_open_handle_reports_lost_writes_once() {
        let inodes = Inodes::new();
        let state = dirty(&inodes, 1);
        let pattern = StripePattern {
            generation: 1,
            origin: skep_types::PatternOrigin::Cluster,
            components: vec![],
        };
        let open = || OpenFile::new(Arc::clone(&state), OpenMode::Read, pattern.clone());
        let (first, second) = (open(), open());
        state.synced(&state.unsynced()[0], HostIncarnation::new(2));
        let third = open();
        assert!(first.take_loss() && !first.take_loss());
        assert!(second.take_loss());
        assert!(!third.take_loss(), "the third handle was opened after the loss");
    }
}
