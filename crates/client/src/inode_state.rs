//! The state of one inode that this mount has open or has written to. All handles on all threads
//! share it. No I/O: callers pass the current time as an argument.
//!
//! - `size`: the size of the file, and the writes that this mount has not reported to metadata yet.
//! - `unsynced`, `inline_marks`: acknowledged writes that may not be durable yet.
//! - `opens`: the handles of the file.
//! - `kernel_view`: the attributes and pages of the file that the kernel has cached.
//! - `known_attributes`: the attributes in the newest reply of metadata.
//! - `inline_move`: the move of the inline bytes to storage, and the end of the inline component.
//! - `times_report`: the report of the file's times after an `fsync`.
//! - `sync_order`: the steps of a sync of the file, and their order.
//! - `guards`, `guard_count`, `append_parts`: operations in progress.

mod append_parts;
mod guard_count;
pub(crate) mod guards;
mod inline_marks;
mod inline_move;
mod kernel_view;
mod known_attributes;
mod opens;
pub(crate) mod size;
mod sync_order;
mod times_report;
mod unsynced;

pub(crate) use append_parts::AppendPart;
pub(crate) use inline_move::UnconfirmedMove;
pub(crate) use size::{FileEnd, ReportLoss, ReportedExtent, SizeReport};
use skep_cluster::striping;
use skep_env::SharedNotify;
use skep_types::{Attributes, ChunkFileKey, HostIncarnation, InodeId, StripePattern};
use skep_wire::inline::InlineMark;
use skep_wire::metadata::TruncatedChunk;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
pub(crate) use sync_order::{ChangeCount, SyncOrder};
pub(crate) use unsynced::UnsyncedChunkFile;

#[derive(Debug, Default)]
struct Parts {
    size: size::FileSize,
    unsynced: unsynced::UnsyncedWrites,
    handles: opens::OpenHandles,
    kernel: kernel_view::KernelView,
    known: known_attributes::KnownAttributes,
    settled: sync_order::Settled,
    guards: guard_count::GuardCount,
    appends: append_parts::AppendParts,
    /// Whether the inode is in the queue of closed inodes with unsynced writes.
    is_queued: bool,
    times: times_report::TimesReport,
    moves: inline_move::InlineMove,
}

impl Parts {
    fn forget_unreported(&mut self) {
        self.size.forget_unreported();
        self.moves.forget_end();
    }
}

/// The state of one inode.
#[derive(Debug)]
pub struct InodeState {
    pub(crate) id: InodeId,
    /// The mutex protects only the fields of [`Parts`]. No task takes another lock or awaits while
    /// it holds this mutex.
    parts: Mutex<Parts>,
    /// Notifies tasks on all threads that an operation on the inode has ended.
    ended: SharedNotify,
    /// Generation of the stripe pattern whose inline bytes were moved to storage, plus one. Zero
    /// means that no inline bytes were moved since this mount opened the file.
    moved_inline: AtomicU64,
    /// Generation of the stripe pattern in the reply to the newest open, plus one. Zero means that
    /// this mount has not opened the file.
    opened_generation: AtomicU64,
}

impl InodeState {
    /// Returns the state of an inode that this mount has not used yet.
    pub fn new(id: InodeId) -> Arc<Self> {
        Arc::new(Self {
            id,
            parts: Mutex::default(),
            ended: SharedNotify::default(),
            moved_inline: AtomicU64::new(0),
            opened_generation: AtomicU64::new(0),
        })
    }

    fn with<T>(&self, f: impl FnOnce(&mut Parts) -> T) -> T {
        f(&mut self.parts.lock().unwrap_or_else(PoisonError::into_inner))
    }

    // ---- the size

    /// Records attributes from metadata, unless newer attributes are already recorded. `at` is the
    /// time from which the age of the size counts. For attributes in the reply to a request, this
    /// is the time at which the client sent the request.
    pub fn observe(&self, attributes: &Attributes, at: Duration) {
        self.with(|parts| parts.size.observe(attributes, at));
    }

    /// Returns the size of the file: the last size from metadata, or the end offset of this mount's
    /// furthest write, whichever is larger.
    pub(crate) fn size(&self) -> u64 {
        self.with(|parts| parts.size.size())
    }

    /// Returns the size of the file, and the truncate generation in which the file has this size.
    pub fn end(&self) -> FileEnd {
        self.with(|parts| parts.size.end())
    }

    /// Returns the newest version of the file that this mount has seen.
    pub(crate) fn version(&self) -> u64 {
        self.with(|parts| parts.size.version())
    }

    /// Returns the age of the last size from metadata.
    pub(crate) fn age(&self, now: Duration) -> Duration {
        self.with(|parts| parts.size.age(now))
    }

    /// Raises the size in `attributes` to the end offset of this mount's furthest write, if this
    /// offset is larger than the size.
    pub(crate) fn merge_into(&self, attributes: &mut Attributes) {
        self.with(|parts| parts.size.merge_into(attributes));
    }

    /// Returns the report about the file's size and times that this mount must send to metadata.
    /// `None` means that metadata has received all of them.
    pub fn unreported(&self) -> Option<SizeReport> {
        self.with(|parts| {
            let report = parts.size.unreported()?;
            Some(report.with_end_of_inline(parts.moves.ending))
        })
    }

    /// Returns whether this mount has acknowledged writes whose end metadata may not have recorded.
    pub(crate) fn has_unconfirmed_writes(&self) -> bool {
        self.with(|parts| parts.size.has_unconfirmed_writes())
    }

    /// Records metadata's reply to a report of sizes and times. `is_durable` means that metadata
    /// made the report durable before it replied.
    pub fn reported(
        &self,
        report: &SizeReport,
        attributes: &Attributes,
        is_durable: bool,
        now: Duration,
    ) {
        self.with(|parts| {
            parts.size.reported(report, attributes, is_durable, now);
            if let Some(generation) = report.extent.ends_inline {
                parts.moves.end_reported(generation, is_durable);
            }
        });
    }

    /// Returns whether metadata has acknowledged a size of the file that may not be durable yet.
    pub(crate) fn is_reported_undurably(&self) -> bool {
        self.with(|parts| parts.size.is_reported_undurably())
    }

    /// Returns the size of the file that metadata has acknowledged so far.
    pub(crate) fn reported_extent(&self) -> ReportedExtent {
        self.with(|parts| parts.size.reported_extent())
    }

    /// Compares an acknowledged size of the file with the attributes that are durable at metadata.
    /// Returns the change that metadata lost in a power loss. A lost change counts as unreported
    /// again.
    pub(crate) fn compare(&self, sent: &ReportedExtent, durable: &Attributes) -> ReportLoss {
        self.with(|parts| {
            let loss = parts.size.compare(sent, durable);
            if loss == ReportLoss::End {
                parts.moves.end_report_lost();
            } else if sent.is_shown_by(durable) || durable.truncate_generation > 0 {
                // Before this mount ended the inline component, the file was empty and never
                // truncated. Each later report of this mount contains the end of the component.
                // Before metadata has recorded this end, it lets no other client write to the file
                // or truncate it. So the durable size or the durable truncation shows that this end
                // is durable too.
                parts.moves.end_found_durable();
            }
            loss
        })
    }

    /// Discards unreported sizes after an eviction, since another client may have changed the file.
    pub(crate) fn forget_unreported(&self) {
        self.with(Parts::forget_unreported);
    }

    // ---- unsynced writes

    /// Records the chunk files that storage has truncated for a truncation of this mount. The next
    /// sync includes these chunk files.
    pub(crate) fn chunks_truncated(&self, truncated: &[TruncatedChunk]) {
        self.with(|parts| {
            for chunk in truncated {
                let number = parts.size.count_reported();
                parts.unsynced.chunk_changed(chunk.key, chunk.group, chunk.incarnation, number);
            }
        });
    }

    /// Returns the chunk files that must be synced now.
    pub(crate) fn unsynced(&self) -> Vec<UnsyncedChunkFile> {
        self.with(|parts| parts.unsynced.chunk_files())
    }

    /// Records that a storage host synced a chunk file. If the host's incarnation has changed since
    /// the host acknowledged the writes, the writes may be lost.
    pub(crate) fn synced(&self, synced: &UnsyncedChunkFile, incarnation: HostIncarnation) {
        self.with(|parts| parts.unsynced.chunk_synced(synced, incarnation));
    }

    /// Counts a loss if a sync has not found a chunk file to which storage had acknowledged bytes.
    /// Returns whether it counted a loss.
    pub(crate) fn chunk_missing(&self, synced: &UnsyncedChunkFile, by: HostIncarnation) -> bool {
        self.with(|parts| parts.unsynced.chunk_missing(synced, by))
    }

    /// Records that a sync found a chunk file on the device of its target. `generation` is the
    /// truncate generation of the file when the sync began. If the current generation is another
    /// one, a later truncation may have removed the chunk file, so nothing is recorded.
    pub(crate) fn chunk_exists(&self, key: ChunkFileKey, generation: u64) {
        self.with(|parts| {
            if generation == parts.size.end().truncate_generation {
                parts.unsynced.chunk_exists(key, generation);
            }
        });
    }

    /// Returns the synced chunk files that metadata has not recorded as synced.
    pub(crate) fn unrecorded(&self) -> Vec<ChunkFileKey> {
        self.with(|parts| parts.unsynced.unrecorded())
    }

    /// Records that metadata has recorded these chunk files as synced, in this truncate generation
    /// of the file.
    pub(crate) fn recorded(&self, keys: &[ChunkFileKey], generation: u64) {
        self.with(|parts| {
            if generation == parts.size.end().truncate_generation {
                parts.unsynced.recorded(keys, generation);
            }
        });
    }

    /// Returns whether a chunk file was synced since the last truncation of the file. If such a
    /// chunk file does not exist, it is lost.
    pub(crate) fn was_synced(&self, key: &ChunkFileKey) -> bool {
        self.with(|parts| {
            let generation = parts.size.end().truncate_generation;
            parts.unsynced.was_synced(key, generation)
        })
    }

    /// Records that metadata acknowledged an inline write. The client calls this function without
    /// an `await` after it has put the write into the list of acknowledged changes
    /// (`session::acknowledged`). So each write in this list has its mark here, even if the program
    /// was killed.
    pub(crate) fn inline_written(&self, mark: InlineMark) {
        self.with(|parts| parts.unsynced.inline_written(mark));
    }

    /// Records that metadata has executed a lost inline write again. The mark of the second
    /// execution takes the place of the mark `lost`. Returns `false`, and changes nothing, if no
    /// unsynced write has the mark `lost`.
    pub(crate) fn inline_repeated(&self, lost: InlineMark, repeated: InlineMark) -> bool {
        self.with(|parts| parts.unsynced.inline_repeated(lost, repeated))
    }

    /// Returns the number of lost inline writes that metadata has executed again.
    pub(crate) fn repeated_inline(&self) -> u64 {
        self.with(|parts| parts.unsynced.repeated())
    }

    /// Returns the marks (start number and LSN) of the inline writes that must be synced now.
    pub(crate) fn unsynced_inline(&self) -> Vec<InlineMark> {
        self.with(|parts| parts.unsynced.inline())
    }

    /// Records that these inline writes are durable at metadata, or that some of them are lost
    /// (`is_lost`).
    pub(crate) fn inline_synced(&self, marks: &[InlineMark], is_lost: bool) {
        self.with(|parts| parts.unsynced.inline_synced(marks, is_lost));
    }

    /// Returns the number of events in which acknowledged writes, or truncations that this mount
    /// has seen, may have been lost. Each handle reports such a loss once to its program.
    pub(crate) fn losses(&self) -> u64 {
        self.with(|parts| parts.unsynced.losses() + parts.size.reverted_truncations())
    }

    /// Records that a power loss of metadata has reverted a change of the file. The next `fsync` of
    /// each handle fails once. The reverted change may be the end of the inline component.
    pub(crate) fn change_reverted(&self) {
        self.with(|parts| {
            parts.unsynced.note_loss();
            if parts.moves.unconfirmed.is_some() {
                self.use_inline_again();
            }
        });
    }

    /// Returns the steps of a file sync that begins now, and the changes that the sync makes
    /// durable. `of_mount` is the number of changes of this mount to names of files without a known
    /// inode id.
    pub(crate) fn sync_order(&self, of_mount: u64) -> (SyncOrder, ChangeCount) {
        self.with(|parts| {
            let changes = parts.settled.changes(of_mount);
            (sync_order::order(parts, changes), changes)
        })
    }

    /// Counts a change of this mount to a name or to attributes of the file. The client calls this
    /// function after metadata has acknowledged the change, and before the operation returns.
    pub(crate) fn count_change(&self) {
        self.with(|parts| parts.settled.count_change());
    }

    /// Records that metadata has synced the changes that `changes` counts.
    pub(crate) fn note_settled(&self, changes: ChangeCount) {
        self.with(|parts| parts.settled.note(changes));
    }

    /// Returns the sequence number of this mount's last write to the file.
    pub(crate) fn last_write(&self) -> u64 {
        self.with(|parts| parts.size.last_write())
    }

    // ---- handles

    /// Counts a new handle.
    pub fn opened(&self) {
        self.end_with(|parts| {
            let was_being_closed = parts.handles.is_being_closed();
            if !parts.handles.is_open() {
                parts.kernel = kernel_view::KernelView::default();
            }
            // Count a change of the file's attributes, so that the next sync includes metadata.
            // While this mount had the file closed, another client may have changed the size of the
            // file, and the new size may not be durable.
            parts.settled.count_change();
            parts.handles.opened();
            was_being_closed
        });
    }

    /// Records the stripe pattern in the reply to the open of a counted handle.
    pub(crate) fn set_pattern(&self, pattern: Arc<StripePattern>) {
        self.with(|parts| parts.handles.set_pattern(pattern));
    }

    /// Returns the stripe pattern of the file. `None` means that this mount does not have the file
    /// open.
    pub(crate) fn pattern(&self) -> Option<Arc<StripePattern>> {
        let pattern = self.with(|parts| parts.handles.pattern())?;
        if pattern.inline_bytes() == 0 || !self.has_moved_inline(pattern.generation) {
            return Some(pattern);
        }
        Some(striping::without_inline(&pattern).map_or(pattern, Arc::new))
    }

    /// Counts a handle that is open for writing.
    pub fn opened_for_writing(&self) {
        self.with(|parts| parts.handles.opened_for_writing());
    }

    /// Records that one of the counted handles is a hold: the mount itself uses it, and no program
    /// (`Opens::hold`).
    pub(crate) fn held(&self) {
        self.with(|parts| parts.handles.held());
    }

    /// Records that the close of a handle has begun. `is_writer` means that the handle is open for
    /// writing, and `is_hold` that it is a hold.
    pub fn closing(&self, is_writer: bool, is_hold: bool) {
        self.with(|parts| {
            parts.handles.closing(is_writer, is_hold);
            parts.moves.closing();
        });
    }

    /// Records that a close has ended. Returns whether the file has no other handle.
    pub fn closed(&self) -> bool {
        self.end_with(|parts| parts.handles.closed())
    }

    /// Returns the id of the current open period of the file. A period begins when this mount
    /// opens the file while it has no handle of it. `None` means that the file is not open now.
    pub(crate) fn life(&self) -> Option<u64> {
        self.with(|parts| parts.handles.life())
    }

    /// Returns whether the file has a handle that is neither being closed nor a hold.
    pub(crate) fn has_live_handles(&self) -> bool {
        self.with(|parts| parts.handles.has_live_handles())
    }

    /// Returns whether the file is open and all its handles are being closed.
    pub(crate) fn is_being_closed(&self) -> bool {
        self.with(|parts| parts.handles.is_being_closed())
    }

    /// Marks the file as shared with other clients. The mark stays until this mount closes its last
    /// handle of the file.
    pub fn set_shared(&self) {
        self.with(|parts| parts.handles.set_shared());
    }

    /// Returns whether the file is shared: other clients also have it open, and at least one client
    /// may write.
    pub fn is_shared(&self) -> bool {
        self.with(|parts| parts.handles.is_shared())
    }

    /// Records that a program locks the file or a range of it.
    pub(crate) fn set_locked(&self) {
        self.with(|parts| parts.handles.set_locked());
    }

    /// Returns whether a program has locked the file or a range of it since the file was opened.
    pub(crate) fn is_locked(&self) -> bool {
        self.with(|parts| parts.handles.is_locked())
    }

    /// Records that the kernel or another user of this library may have bytes of the file cached.
    pub(crate) fn set_cached(&self) {
        self.with(|parts| parts.handles.set_cached());
    }

    /// Returns whether the kernel, or another program that uses this library, may have cached bytes
    /// of the file since the mount opened it.
    pub(crate) fn is_cached(&self) -> bool {
        self.with(|parts| parts.handles.is_cached())
    }

    // ---- the kernel's pages

    /// Records that the mount sends these attributes to the kernel.
    pub(crate) fn note_shown(&self, attributes: &Attributes) {
        self.with(|parts| {
            let is_writing = parts.guards.has_writers();
            parts.kernel.note_shown(attributes, is_writing);
        });
    }

    /// Records that the kernel's cached pages of the file may be out of date. Before the kernel
    /// reads from these pages, the mount then sends it the current modification time.
    pub(crate) fn must_compare(&self) {
        self.with(|parts| parts.kernel.must_compare());
    }

    /// Returns the attributes that this mount last sent to the kernel, with the current size.
    /// Returns `None` unless this mount has written to the file and the kernel's pages are still
    /// valid. The pages are valid only while this mount has the file open for writing, because
    /// metadata then notifies this mount before another client changes the file.
    pub(crate) fn for_reading(&self) -> Option<Attributes> {
        self.with(|parts| {
            let is_alone = parts.handles.has_writers() && !parts.handles.is_shared();
            let shown = parts.kernel.shown().filter(|_| is_alone)?;
            Some(Attributes { size: parts.size.size(), ..shown.clone() })
        })
    }

    // ---- the table of inodes

    /// Returns whether the state is no longer needed, because the file is closed and has no
    /// unsynced writes. If this mount has ended the inline component, metadata must also have
    /// acknowledged the end. After a failed close, this acknowledgement may be missing, and
    /// metadata counts the file as open.
    pub fn is_idle(&self) -> bool {
        self.with(|parts| {
            !parts.handles.is_open() && parts.unsynced.is_empty() && !parts.moves.must_report()
        })
    }

    /// Returns whether the file is closed and has unsynced writes.
    pub(crate) fn is_closed_unsynced(&self) -> bool {
        self.with(|parts| !parts.handles.is_open() && !parts.unsynced.is_empty())
    }

    /// Records whether the inode is in the queue of closed inodes. Returns the previous value.
    pub(crate) fn set_queued(&self, is_queued: bool) -> bool {
        self.with(|parts| std::mem::replace(&mut parts.is_queued, is_queued))
    }
}

#[cfg(test)]
mod tests;
