//! Writes, truncations and lone appends under way: each is a guard that ends when it is dropped.

use super::InodeState;
use skep_types::{Attributes, ChunkFileKey, GroupId, HostIncarnation};
use skep_wire::inline::InlineMark;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// How many guards of each kind there are.
///
/// A truncation may be claimed while writes are under way; it begins when they have ended. No write
/// begins while a truncation is claimed.
#[derive(Debug, Default)]
pub(super) struct GuardCount {
    writers: u32,
    is_truncating: bool,
    /// Appends under way that rely on no other client moving the end.
    lone_appends: u32,
}

impl GuardCount {
    pub(super) fn try_write(&mut self) -> bool {
        self.writers += u32::from(!self.is_truncating);
        !self.is_truncating
    }

    pub(super) fn try_truncate(&mut self) -> bool {
        !std::mem::replace(&mut self.is_truncating, true)
    }

    pub(super) fn begin_lone_append(&mut self) {
        self.lone_appends += 1;
    }

    pub(super) fn has_lone_appends(&self) -> bool {
        self.lone_appends > 0
    }
}

/// An append under way at the end that this mount has noted.
#[derive(Debug)]
pub(crate) struct LoneAppend(pub(super) Arc<InodeState>);

impl Drop for LoneAppend {
    fn drop(&mut self) {
        self.0.with(|parts| parts.guards.lone_appends -= 1);
    }
}

/// A write under way: truncations of this mount wait for it.
#[derive(Debug)]
pub(crate) struct WriteGuard(pub(super) Arc<InodeState>);

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
    pub(crate) fn wrote_inline(
        &self,
        end: u64,
        mark: InlineMark,
        attributes: &Attributes,
        now: Duration,
    ) {
        self.0.with(|parts| {
            parts.unsynced.inline_written(mark);
            parts.size.wrote_inline(end, attributes, now);
        });
    }

    /// All pieces of a range are written: the file reaches at least to its end. Not called when a
    /// piece failed: then the size doesn't move.
    pub(crate) fn wrote(&self, range: Range<u64>) {
        self.0.with(|parts| parts.size.wrote(&range));
    }

    /// Chunk files may reach up to `end` now, even if the file does not.
    pub(crate) fn reached(&self, end: u64) {
        self.0.with(|parts| parts.size.reached(end));
    }

    /// A part of the file may be a hole now; its size stays.
    pub(crate) fn made_holes(&self) {
        self.0.with(|parts| parts.size.made_holes());
    }
}

impl Drop for WriteGuard {
    fn drop(&mut self) {
        self.0.with(|parts| parts.guards.writers -= 1);
    }
}

/// A claim to truncate: writes of this mount wait until it is dropped.
#[derive(Debug)]
pub(crate) struct TruncationClaim(pub(super) Arc<InodeState>);

impl TruncationClaim {
    /// Whether the writes that had begun before have ended.
    pub(crate) fn is_alone(&self) -> bool {
        self.0.with(|parts| parts.guards.writers == 0)
    }

    /// Notes that the truncation is done; writes of this mount before it no longer count.
    pub(crate) fn done(&self, attributes: &Attributes, now: Duration) {
        self.0.with(|parts| parts.size.truncated(attributes, now));
    }
}

impl Drop for TruncationClaim {
    fn drop(&mut self) {
        self.0.with(|parts| parts.guards.is_truncating = false);
    }
}
