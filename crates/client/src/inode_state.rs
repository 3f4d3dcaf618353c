//! The state of one inode that this mount has open or has written to, shared by all its handles on
//! all threads. Pure: times come as arguments.
//!
//! - `size`: how far the file reaches, and what of that metadata must still get in a report.
//! - `unsynced`: acknowledged writes that may not be on the devices yet.
//! - `opens`: the handles of the file.
//! - `guards`, `guard_count`: writes, truncations and appends under way.

mod guard_count;
pub(crate) mod guards;
mod opens;
mod size;
mod unsynced;

pub(crate) use size::{ReportLoss, ReportedExtent, SizeReport};
use skep_types::{Attributes, HostIncarnation, InodeId};
use skep_wire::inline::InlineMark;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
pub(crate) use unsynced::UnsyncedChunkFile;

#[derive(Debug, Default)]
struct Parts {
    size: size::FileSize,
    unsynced: unsynced::UnsyncedWrites,
    handles: opens::OpenHandles,
    guards: guard_count::GuardCount,
    /// The inode stands in the queue of closed ones.
    is_queued: bool,
}

/// The state of one inode.
#[derive(Debug)]
pub(crate) struct InodeState {
    pub(crate) id: InodeId,
    /// Protects the parts alone; nothing is awaited under it, and it is the innermost lock.
    parts: Mutex<Parts>,
}

impl InodeState {
    pub(crate) fn new(id: InodeId) -> Arc<Self> {
        Arc::new(Self { id, parts: Mutex::default() })
    }

    fn with<T>(&self, f: impl FnOnce(&mut Parts) -> T) -> T {
        f(&mut self.parts.lock().unwrap_or_else(PoisonError::into_inner))
    }

    // ---- the size

    /// Takes attributes from metadata, unless newer ones were seen.
    pub(crate) fn observe(&self, attributes: &Attributes, now: Duration) {
        self.with(|parts| parts.size.observe(attributes, now));
    }

    /// The size: as metadata replied it, or as far as this mount wrote.
    pub(crate) fn size(&self) -> u64 {
        self.with(|parts| parts.size.size())
    }

    /// How long ago metadata replied the size.
    pub(crate) fn age(&self, now: Duration) -> Duration {
        self.with(|parts| parts.size.age(now))
    }

    /// Raises the size in attributes to what this mount wrote.
    pub(crate) fn merge_into(&self, attributes: &mut Attributes) {
        self.with(|parts| parts.size.merge_into(attributes));
    }

    /// The report that metadata must get now, if any.
    pub(crate) fn unreported(&self) -> Option<SizeReport> {
        self.with(|parts| parts.size.unreported())
    }

    /// Metadata replied to a report. `is_durable`: the reply came when the report was on its
    /// device.
    pub(crate) fn reported(
        &self,
        report: &SizeReport,
        attributes: &Attributes,
        is_durable: bool,
        now: Duration,
    ) {
        self.with(|parts| parts.size.reported(report, attributes, is_durable, now));
    }

    /// Whether metadata acknowledged a report that may not be on its device yet.
    pub(crate) fn is_reported_undurably(&self) -> bool {
        self.with(|parts| parts.size.is_reported_undurably())
    }

    /// What metadata has been sent so far.
    pub(crate) fn reported_extent(&self) -> ReportedExtent {
        self.with(|parts| parts.size.reported_extent())
    }

    /// Compares what was reported with what metadata has on its device. What metadata lost, because
    /// its host lost power, is unreported again.
    pub(crate) fn compare(&self, sent: &ReportedExtent, durable: &Attributes) -> ReportLoss {
        self.with(|parts| parts.size.compare(sent, durable))
    }

    /// Discards unreported sizes after an eviction: another client may have changed the file.
    pub(crate) fn forget_unreported(&self) {
        self.with(|parts| parts.size.forget_unreported());
    }

    /// Whether metadata must get the new size now, since other clients rely on it.
    pub(crate) fn must_report_size(&self) -> bool {
        self.with(|parts| parts.handles.is_shared() && parts.size.is_beyond_metadata())
    }

    // ---- unsynced writes

    /// Chunk files to be synced now.
    pub(crate) fn unsynced(&self) -> Vec<UnsyncedChunkFile> {
        self.with(|parts| parts.unsynced.chunk_files())
    }

    /// A storage host of this incarnation synced a chunk file. Another incarnation than the one
    /// that acknowledged the writes may have lost them.
    pub(crate) fn synced(&self, synced: &UnsyncedChunkFile, incarnation: HostIncarnation) {
        self.with(|parts| parts.unsynced.chunk_synced(synced, incarnation));
    }

    /// Marks of writes of bytes in metadata to be synced now.
    pub(crate) fn unsynced_inline(&self) -> Vec<InlineMark> {
        self.with(|parts| parts.unsynced.inline())
    }

    /// Metadata has these writes on its device, or (`is_lost`) has lost some of them.
    pub(crate) fn inline_synced(&self, marks: &[InlineMark], is_lost: bool) {
        self.with(|parts| parts.unsynced.inline_synced(marks, is_lost));
    }

    /// How often acknowledged writes may have been lost; each handle reports that to its user once.
    pub(crate) fn losses(&self) -> u64 {
        self.with(|parts| parts.unsynced.losses())
    }

    // ---- handles

    /// Counts a new handle.
    pub(crate) fn opened(&self) {
        self.with(|parts| parts.handles.opened());
    }

    /// Notes that the close of a handle has begun.
    pub(crate) fn closing(&self) {
        self.with(|parts| parts.handles.closing());
    }

    /// Notes the end of a close that had begun; whether it was the last handle.
    pub(crate) fn closed(&self) -> bool {
        self.with(|parts| parts.handles.closed())
    }

    /// How often it was opened when it wasn't open; `None` if it isn't open.
    pub(crate) fn life(&self) -> Option<u64> {
        self.with(|parts| parts.handles.life())
    }

    /// Whether it has a handle that isn't being closed.
    pub(crate) fn has_live_handles(&self) -> bool {
        self.with(|parts| parts.handles.has_live_handles())
    }

    /// Whether it is open, but all its handles are being closed.
    pub(crate) fn is_being_closed(&self) -> bool {
        self.with(|parts| parts.handles.is_being_closed())
    }

    /// Notes that other clients have it open too; holds until the last handle of this mount is
    /// closed.
    pub(crate) fn set_shared(&self) {
        self.with(|parts| parts.handles.set_shared());
    }

    /// Whether other clients have it open too, and at least one client may write.
    pub(crate) fn is_shared(&self) -> bool {
        self.with(|parts| parts.handles.is_shared())
    }

    /// Notes that a program locks something of it.
    pub(crate) fn set_locked(&self) {
        self.with(|parts| parts.handles.set_locked());
    }

    /// Whether a program has ever locked something of it while it was open.
    pub(crate) fn is_locked(&self) -> bool {
        self.with(|parts| parts.handles.is_locked())
    }

    /// Notes that bytes of it are read for a cache of the caller's.
    pub(crate) fn set_cached(&self) {
        self.with(|parts| parts.handles.set_cached());
    }

    /// Whether such a cache may hold bytes that were read since the file was opened.
    pub(crate) fn is_cached(&self) -> bool {
        self.with(|parts| parts.handles.is_cached())
    }

    // ---- the table of inodes

    /// Whether nothing has to be remembered of it.
    pub(crate) fn is_idle(&self) -> bool {
        self.with(|parts| !parts.handles.is_open() && parts.unsynced.is_empty())
    }

    /// Whether it is closed but has unsynced writes.
    pub(crate) fn is_closed_unsynced(&self) -> bool {
        self.with(|parts| !parts.handles.is_open() && !parts.unsynced.is_empty())
    }

    /// Notes whether it stands in the queue of closed ones; returns what was noted before.
    pub(crate) fn set_queued(&self, is_queued: bool) -> bool {
        self.with(|parts| std::mem::replace(&mut parts.is_queued, is_queued))
    }
}

#[cfg(test)]
mod tests;
