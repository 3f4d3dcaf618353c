//! Acknowledged writes and truncations that may not be durable yet: the chunk files and the inline
//! writes that the mount must sync. Also counts the possible losses of acknowledged changes.

use super::inline_marks::InlineMarks;
use skep_types::{ChunkFileKey, GroupId, HostIncarnation};
use skep_wire::inline::InlineMark;
use std::collections::{HashMap, HashSet};

/// A chunk file with unsynced writes or truncations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnsyncedChunkFile {
    pub(crate) key: ChunkFileKey,
    pub(crate) group: GroupId,
    /// Sequence number of the last write to the chunk file before the sync. If the sync succeeds,
    /// all writes up to this number are durable.
    upto: u64,
}

#[derive(Debug, Clone, Copy)]
struct ChunkFileState {
    group: GroupId,
    /// Incarnation of the storage host that acknowledged the first write since the last sync.
    incarnation: HostIncarnation,
    /// Sequence number of the last write to the chunk file.
    last_write: u64,
    /// Whether storage has acknowledged bytes since the last sync. The chunk file then exists. A
    /// truncation, or a clearing of a range, creates no chunk file.
    has_bytes: bool,
}

/// Unsynced writes of this mount to one file.
#[derive(Debug, Default)]
pub(super) struct UnsyncedWrites {
    chunk_files: HashMap<ChunkFileKey, ChunkFileState>,
    inline: InlineMarks,
    /// Number of lost inline writes that metadata has executed again.
    repeated: u64,
    losses: u64,
    /// Synced chunk files that metadata has not recorded as synced.
    unrecorded: HashSet<ChunkFileKey>,
    /// Synced chunk files that metadata has recorded as synced.
    recorded: HashSet<ChunkFileKey>,
    /// Truncate generation of the file in which `unrecorded` and `recorded` are valid. A truncation
    /// may have removed all bytes of a chunk file, and the loss of a chunk file without bytes is
    /// not an error.
    generation: u64,
}

impl UnsyncedWrites {
    pub(super) fn is_empty(&self) -> bool {
        self.chunk_files.is_empty() && self.inline.is_empty()
    }

    /// Returns whether writes are unsynced both at metadata and at storage.
    pub(super) fn has_both_places(&self) -> bool {
        !self.chunk_files.is_empty() && !self.inline.is_empty()
    }

    /// Returns the number of events in which acknowledged writes may have been lost.
    pub(super) fn losses(&self) -> u64 {
        self.losses
    }

    /// Counts a loss of acknowledged changes that are not writes, such as a change of attributes.
    pub(super) fn note_loss(&mut self) {
        self.losses += 1;
    }

    /// Records that a storage host of this incarnation acknowledged the write with the sequence
    /// number `number`.
    pub(super) fn chunk_written(
        &mut self,
        key: ChunkFileKey,
        group: GroupId,
        incarnation: HostIncarnation,
        number: u64,
    ) {
        self.changed(key, group, incarnation, number).has_bytes = true;
    }

    /// Like [`Self::chunk_written`], for a change after which the chunk file may still not exist.
    pub(super) fn chunk_changed(
        &mut self,
        key: ChunkFileKey,
        group: GroupId,
        incarnation: HostIncarnation,
        number: u64,
    ) {
        self.changed(key, group, incarnation, number);
    }

    fn changed(
        &mut self,
        key: ChunkFileKey,
        group: GroupId,
        incarnation: HostIncarnation,
        number: u64,
    ) -> &mut ChunkFileState {
        let new = ChunkFileState { group, incarnation, last_write: number, has_bytes: false };
        let state = self.chunk_files.entry(key).or_insert(new);
        state.last_write = number;
        if state.incarnation != incarnation {
            state.incarnation = incarnation;
            self.losses += 1;
        }
        state
    }

    /// Records that a storage host of this incarnation acknowledged the write with the sequence
    /// number `number` after it had synced the chunk file. That sync made all writes up to the
    /// sequence number `before` durable.
    pub(super) fn durable_chunk_written(
        &mut self,
        key: ChunkFileKey,
        group: GroupId,
        incarnation: HostIncarnation,
        number: u64,
        before: u64,
    ) {
        let is_covered = self.chunk_files.get(&key).is_none_or(|known| known.last_write <= before);
        self.chunk_written(key, group, incarnation, number);
        if is_covered {
            self.chunk_files.remove(&key);
        }
    }

    /// Records that metadata acknowledged an inline write.
    pub(super) fn inline_written(&mut self, mark: InlineMark) {
        self.losses += u64::from(self.inline.add(mark));
    }

    /// Records that metadata has executed a lost inline write again. The mark of the second
    /// execution takes the place of the mark `lost`. Returns `false`, and changes nothing, if no
    /// unsynced write has the mark `lost`.
    pub(super) fn inline_repeated(&mut self, lost: InlineMark, repeated: InlineMark) -> bool {
        let is_known = self.inline.remove_one(lost);
        if is_known {
            self.inline_written(repeated);
            self.repeated += 1;
        }
        is_known
    }

    /// Returns the number of lost inline writes that metadata has executed again.
    pub(super) fn repeated(&self) -> u64 {
        self.repeated
    }

    /// Returns the chunk files that must be synced now.
    pub(super) fn chunk_files(&self) -> Vec<UnsyncedChunkFile> {
        let files = self.chunk_files.iter();
        files
            .map(|(key, state)| UnsyncedChunkFile {
                key: *key,
                group: state.group,
                upto: state.last_write,
            })
            .collect()
    }

    /// Forgets the synced chunk files if the file was truncated since they were recorded.
    fn enter(&mut self, generation: u64) {
        if self.generation != generation {
            self.generation = generation;
            self.unrecorded.clear();
            self.recorded.clear();
        }
    }

    /// Returns whether a chunk file was synced since the last truncation of the file.
    pub(super) fn was_synced(&self, key: &ChunkFileKey, generation: u64) -> bool {
        self.generation == generation
            && (self.recorded.contains(key) || self.unrecorded.contains(key))
    }

    /// Records that a chunk file exists on the device of its target.
    pub(super) fn chunk_exists(&mut self, key: ChunkFileKey, generation: u64) {
        self.enter(generation);
        if !self.recorded.contains(&key) {
            self.unrecorded.insert(key);
        }
    }

    /// Returns whether a sync may have to report its synced chunk files to metadata. The sync may
    /// have to report them if inline bytes are unsynced, or if metadata has not recorded a chunk
    /// file as synced.
    pub(super) fn may_be_unrecorded(&self) -> bool {
        let is_unrecorded = |key: &ChunkFileKey| !self.recorded.contains(key);
        !self.unrecorded.is_empty()
            || !self.inline.is_empty()
            || self.chunk_files.keys().any(is_unrecorded)
    }

    /// Returns the synced chunk files that metadata has not recorded as synced.
    pub(super) fn unrecorded(&self) -> Vec<ChunkFileKey> {
        self.unrecorded.iter().copied().collect()
    }

    /// Records that metadata has recorded these chunk files as synced.
    pub(super) fn recorded(&mut self, keys: &[ChunkFileKey], generation: u64) {
        self.enter(generation);
        for key in keys {
            self.unrecorded.remove(key);
            self.recorded.insert(*key);
        }
    }

    /// Returns the marks (start number and LSN) of the inline writes that must be synced now.
    pub(super) fn inline(&self) -> Vec<InlineMark> {
        self.inline.highest()
    }

    /// Records that a storage host synced a chunk file. If the incarnation of the host has
    /// changed since it acknowledged the writes, the writes may be lost.
    pub(super) fn chunk_synced(
        &mut self,
        synced: &UnsyncedChunkFile,
        incarnation: HostIncarnation,
    ) {
        // The sync of another thread may already have removed the chunk file from this table.
        let Some(state) = self.chunk_files.get_mut(&synced.key) else { return };
        let is_lost = state.incarnation != incarnation;
        if state.last_write <= synced.upto {
            self.chunk_files.remove(&synced.key);
        } else {
            // Storage may have acknowledged writes during the sync. Assume that these writes belong
            // to the current incarnation. If a write belongs to another incarnation, its reply
            // contains the other incarnation, and `chunk_changed` then counts a loss.
            state.incarnation = incarnation;
        }
        self.losses += u64::from(is_lost);
    }

    /// Counts a loss if a sync has not found the chunk file although a storage host of the same
    /// incarnation acknowledged bytes before the sync. Returns whether it counted a loss. The
    /// caller calls this function before [`Self::chunk_synced`].
    pub(super) fn chunk_missing(
        &mut self,
        synced: &UnsyncedChunkFile,
        incarnation: HostIncarnation,
    ) -> bool {
        // If storage has acknowledged a write during the sync, the chunk file may have been created
        // after the sync.
        let is_lost = self.chunk_files.get(&synced.key).is_some_and(|state| {
            state.has_bytes && state.incarnation == incarnation && state.last_write <= synced.upto
        });
        self.losses += u64::from(is_lost);
        is_lost
    }

    /// Records that these inline writes are durable at metadata, or that some of them are lost
    /// (`is_lost`).
    pub(super) fn inline_synced(&mut self, marks: &[InlineMark], is_lost: bool) {
        self.inline.remove(marks);
        self.losses += u64::from(is_lost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::InodeId;

    const GROUP: GroupId = GroupId::new(1);

    fn key(index: u16) -> ChunkFileKey {
        ChunkFileKey { inode: InodeId::new(1), generation: 1, component: 0, index }
    }

    #[test]
    fn sync_makes_only_earlier_writes_durable() {
        let mut unsynced = UnsyncedWrites::default();
        let host = HostIncarnation::new(1);
        unsynced.chunk_written(key(0), GROUP, host, 1);
        let before = unsynced.chunk_files();
        unsynced.chunk_written(key(0), GROUP, host, 2);
        unsynced.chunk_synced(&before[0], host);
        assert!(!unsynced.is_empty(), "the sync does not include write 2");
        unsynced.chunk_synced(&unsynced.chunk_files()[0], host);
        assert!(unsynced.is_empty());
        unsynced.chunk_synced(&before[0], HostIncarnation::new(9));
        assert_eq!(unsynced.losses(), 0, "no write was unsynced");
    }

    #[test]
    fn chunk_file_missing_at_a_sync_is_a_loss_if_it_had_bytes() {
        let mut unsynced = UnsyncedWrites::default();
        let (host, next) = (HostIncarnation::new(1), HostIncarnation::new(2));
        unsynced.chunk_changed(key(0), GROUP, host, 1);
        let before = unsynced.chunk_files();
        assert!(!unsynced.chunk_missing(&before[0], host), "a clearing creates no chunk file");
        unsynced.chunk_written(key(0), GROUP, host, 2);
        assert!(!unsynced.chunk_missing(&before[0], host), "the write came after the sync");
        let after = unsynced.chunk_files();
        assert!(!unsynced.chunk_missing(&after[0], next), "`chunk_synced` counts this loss");
        assert!(unsynced.chunk_missing(&after[0], host));
        unsynced.chunk_synced(&after[0], host);
        assert!(!unsynced.chunk_missing(&after[0], host), "the loss counts once");
        assert_eq!(unsynced.losses(), 1);
    }

    #[test]
    fn durable_write_makes_only_earlier_writes_durable() {
        let mut unsynced = UnsyncedWrites::default();
        let (host, next) = (HostIncarnation::new(1), HostIncarnation::new(2));
        let durable = |unsynced: &mut UnsyncedWrites, host, number, before| {
            unsynced.durable_chunk_written(key(0), GROUP, host, number, before);
            unsynced.chunk_exists(key(0), 3);
        };
        durable(&mut unsynced, host, 1, 0);
        assert!(unsynced.is_empty() && unsynced.may_be_unrecorded());
        unsynced.recorded(&[key(0)], 3);
        unsynced.chunk_written(key(0), GROUP, host, 2);
        unsynced.chunk_written(key(0), GROUP, host, 3);
        durable(&mut unsynced, host, 4, 2);
        assert!(!unsynced.is_empty(), "the storage host may have synced before write 3");
        durable(&mut unsynced, next, 5, 4);
        assert!(unsynced.is_empty() && !unsynced.may_be_unrecorded());
        assert_eq!(unsynced.losses(), 1, "the host lost power before write 3 was durable");
    }

    #[test]
    fn mount_lists_chunk_files_synced_since_the_last_truncation() {
        let mut unsynced = UnsyncedWrites::default();
        unsynced.chunk_exists(key(0), 3);
        unsynced.recorded(&[key(1)], 3);
        assert!(unsynced.was_synced(&key(0), 3) && unsynced.was_synced(&key(1), 3));
        assert!(!unsynced.was_synced(&key(2), 3));
        assert!(!unsynced.was_synced(&key(1), 4), "the file was truncated");
        unsynced.chunk_exists(key(1), 4);
        assert!(unsynced.was_synced(&key(1), 4) && !unsynced.was_synced(&key(0), 4));
    }
}
