//! Guards of writes, truncations and lone appends in progress. A lone append relies on no other
//! client moving the end of the file. Dropping a guard ends its operation.

use crate::inode_state::InodeState;
use skep_types::{Attributes, ChunkFileKey, GroupId, HostIncarnation};
use skep_wire::inline::InlineMark;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

impl InodeState {
    /// Begins a write. Returns `None` while a truncation is claimed.
    pub(crate) fn try_write(self: &Arc<Self>) -> Option<WriteGuard> {
        self.with(|parts| parts.guards.try_write()).then(|| WriteGuard(Arc::clone(self)))
    }

    /// Claims the inode for a truncation. Returns `None` while another truncation is claimed. The
    /// truncation may begin as soon as [`TruncationClaim::is_alone`] returns `true`.
    pub(crate) fn try_truncate(self: &Arc<Self>) -> Option<TruncationClaim> {
        self.with(|parts| parts.guards.try_truncate()).then(|| TruncationClaim(Arc::clone(self)))
    }

    /// Begins a lone append, at the end of the file that this mount has recorded. Returns `None` if
    /// the file is shared, so that other clients may move its end.
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

    /// Returns whether lone appends are in progress.
    pub(crate) fn has_lone_appends(&self) -> bool {
        self.with(|parts| parts.guards.has_lone_appends())
    }
}

/// A lone append in progress. Dropping it ends the append.
#[derive(Debug)]
pub(crate) struct LoneAppend(Arc<InodeState>);

impl Drop for LoneAppend {
    fn drop(&mut self) {
        self.0.with(|parts| parts.guards.end_lone_append());
    }
}

/// A write in progress. Truncations of this mount wait until it is dropped.
#[derive(Debug)]
pub(crate) struct WriteGuard(Arc<InodeState>);

impl WriteGuard {
    /// Records that a storage host of this incarnation acknowledged a piece.
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

    /// Records that metadata acknowledged the inline part of a larger write. The new size is
    /// reported only after all parts are acknowledged.
    pub(crate) fn inline_written(&self, mark: InlineMark) {
        self.0.with(|parts| parts.unsynced.inline_written(mark));
    }

    /// Records that metadata acknowledged a write that is inline as a whole, so metadata already
    /// has the new size and times.
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

    /// Records that all pieces of a write are acknowledged, so the file reaches at least to the end
    /// of `range`. Must not be called if a piece failed, since the size does not change then.
    pub(crate) fn note_write(&self, range: Range<u64>) {
        self.0.with(|parts| parts.size.note_write(&range));
    }

    /// Records that chunk files may now reach up to `end`, even if the file does not.
    pub(crate) fn note_reach(&self, end: u64) {
        self.0.with(|parts| parts.size.note_reach(end));
    }

    /// Records that a part of the file may now be a hole. The size does not change.
    pub(crate) fn note_holes(&self) {
        self.0.with(|parts| parts.size.note_holes());
    }
}

impl Drop for WriteGuard {
    fn drop(&mut self) {
        self.0.with(|parts| parts.guards.end_write());
    }
}

/// A claim for a truncation. Writes of this mount wait until it is dropped.
#[derive(Debug)]
pub(crate) struct TruncationClaim(Arc<InodeState>);

impl TruncationClaim {
    /// Returns whether all writes that began before the claim have ended.
    pub(crate) fn is_alone(&self) -> bool {
        self.0.with(|parts| !parts.guards.has_writers())
    }

    /// Records that the truncation is complete: earlier writes of this mount no longer affect the
    /// size.
    pub(crate) fn done(&self, attributes: &Attributes, now: Duration) {
        self.0.with(|parts| parts.size.truncated(attributes, now));
    }
}

impl Drop for TruncationClaim {
    fn drop(&mut self) {
        self.0.with(|parts| parts.guards.end_truncation());
    }
}
