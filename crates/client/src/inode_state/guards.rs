//! Writes, truncations and lone appends under way: each is a guard that ends when it is dropped.

use crate::inode_state::InodeState;
use skep_types::{Attributes, ChunkFileKey, GroupId, HostIncarnation};
use skep_wire::inline::InlineMark;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

impl InodeState {
    /// Begins a write; `None` while a truncation runs or waits.
    pub(crate) fn try_write(self: &Arc<Self>) -> Option<WriteGuard> {
        self.with(|parts| parts.guards.try_write()).then(|| WriteGuard(Arc::clone(self)))
    }

    /// Claims the inode for a truncation; `None` while another one has it. The truncation may begin
    /// once [`TruncationClaim::is_alone`].
    pub(crate) fn try_truncate(self: &Arc<Self>) -> Option<TruncationClaim> {
        self.with(|parts| parts.guards.try_truncate()).then(|| TruncationClaim(Arc::clone(self)))
    }

    /// Begins an append at the end that this mount has noted; `None` if other clients may move it.
    pub(crate) fn try_append_alone(self: &Arc<Self>) -> Option<LoneAppend> {
        let is_begun = self.with(|parts| {
            let is_alone = !parts.handles.is_shared();
            if is_alone {
                parts.guards.begin_lone_append();
            }
            is_alone
        });
        is_begun.then(|| LoneAppend(Arc::clone(self)))
    }

    /// Whether such appends are under way.
    pub(crate) fn has_lone_appends(&self) -> bool {
        self.with(|parts| parts.guards.has_lone_appends())
    }
}

/// An append under way at the end that this mount has noted.
#[derive(Debug)]
pub(crate) struct LoneAppend(Arc<InodeState>);

impl Drop for LoneAppend {
    fn drop(&mut self) {
        self.0.with(|parts| parts.guards.end_lone_append());
    }
}

/// A write under way: truncations of this mount wait for it.
#[derive(Debug)]
pub(crate) struct WriteGuard(Arc<InodeState>);

impl WriteGuard {
    /// A storage host of this incarnation acknowledged a piece.
    pub(crate) fn piece_written(
        &self,
        key: ChunkFileKey,
        group: GroupId,
        incarnation: HostIncarnation,
    ) {
        self.0.with(|parts| {
            let number = parts.size.count_write();
            parts.unsynced.chunk_written(key, group, incarnation, number);
        });
    }

    /// Metadata acknowledged the inline part of a larger write. The new size is reported once all
    /// parts are acknowledged.
    pub(crate) fn inline_written(&self, mark: InlineMark) {
        self.0.with(|parts| parts.unsynced.inline_written(mark));
    }

    /// Metadata acknowledged a write that lies there as a whole: it has the new end and times.
    pub(crate) fn note_inline_write(
        &self,
        end: u64,
        mark: InlineMark,
        attributes: &Attributes,
        now: Duration,
    ) {
        self.0.with(|parts| {
            parts.unsynced.inline_written(mark);
            parts.size.note_inline_write(end, attributes, now);
        });
    }

    /// All pieces of a range are written: the file reaches at least to its end. Not called when a
    /// piece failed: then the size doesn't move.
    pub(crate) fn note_write(&self, range: Range<u64>) {
        self.0.with(|parts| parts.size.note_write(&range));
    }

    /// Chunk files may reach up to `end` now, even if the file does not.
    pub(crate) fn note_reach(&self, end: u64) {
        self.0.with(|parts| parts.size.note_reach(end));
    }

    /// A part of the file may be a hole now; its size stays.
    pub(crate) fn note_holes(&self) {
        self.0.with(|parts| parts.size.note_holes());
    }
}

impl Drop for WriteGuard {
    fn drop(&mut self) {
        self.0.with(|parts| parts.guards.end_write());
    }
}

/// A claim to truncate: writes of this mount wait until it is dropped.
#[derive(Debug)]
pub(crate) struct TruncationClaim(Arc<InodeState>);

impl TruncationClaim {
    /// Whether the writes that had begun before have ended.
    pub(crate) fn is_alone(&self) -> bool {
        self.0.with(|parts| !parts.guards.has_writers())
    }

    /// Notes that the truncation is done; writes of this mount before it no longer count.
    pub(crate) fn done(&self, attributes: &Attributes, now: Duration) {
        self.0.with(|parts| parts.size.truncated(attributes, now));
    }
}

impl Drop for TruncationClaim {
    fn drop(&mut self) {
        self.0.with(|parts| parts.guards.end_truncation());
    }
}
