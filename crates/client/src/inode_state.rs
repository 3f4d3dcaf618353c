//! What a mount knows of an inode that it has open or has written to: the size as metadata last
//! told it, how far this mount wrote beyond it, and which chunk files have writes that nobody
//! synced. Shared by all handles of the inode, on all threads. Pure: times come as arguments.

use skep_types::{Attributes, ChunkFileKey, GroupId, HostIncarnation, InodeId};
use skep_wire::inline::InlineMark;
use skep_wire::limits::MAX_EPOCHS;
use skep_wire::metadata::WrittenExtent;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

#[derive(Debug, Clone, Copy)]
struct ChunkFileState {
    group: GroupId,
    /// Of the storage host when the first write since the last sync was acknowledged.
    incarnation: HostIncarnation,
    /// Number of the last write to it.
    last_write: u64,
}

#[derive(Debug, Default)]
struct Inner {
    /// As in the newest attributes seen.
    size: u64,
    truncate_generation: u64,
    change_counter: u64,
    seen_at: Duration,
    /// End of the furthest write of this mount under `truncate_generation`.
    written_end: u64,
    /// One of those writes began beyond the end, or a part of the file was made a hole.
    may_leave_holes: bool,
    /// Up to where this mount may have left something in chunk files, whatever the end is.
    reach: u64,
    /// Writes so far, and how many of them metadata was told of.
    writes: u64,
    reported: u64,
    /// Up to which of them it has on its device, and the furthest end that it was told of under
    /// `truncate_generation`.
    safe: u64,
    told_end: u64,
    /// Another client truncated the file between writes of ours that metadata wasn't told of: which
    /// of them came later only the chunk files know.
    must_measure: bool,
    writers: u32,
    is_truncating: bool,
    unsynced: HashMap<ChunkFileKey, ChunkFileState>,
    /// The newest write of bytes in metadata of each epoch, by rising epoch, that nobody synced.
    unsynced_inline: Vec<InlineMark>,
    losses: u64,
    opens: u32,
    /// How often it was opened when it wasn't open.
    lives: u64,
    /// Handles among them whose close has begun.
    closing: u32,
    /// Other clients have it open too, and one of all may write.
    is_shared: bool,
    /// Appends under way that rely on nobody else moving the end.
    lone_appends: u32,
    is_queued: bool,
    /// Somebody has locked something of it since it was opened.
    is_locked: bool,
    /// Bytes of it were read for a cache of the caller's since it was opened.
    is_cached: bool,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct InodeState {
    pub(crate) id: InodeId,
    /// Protects the fields alone; nothing is awaited under it, and it is the innermost lock.
    inner: Mutex<Inner>,
}

/// What metadata has to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) extent: WrittenExtent,
    /// The end has to be asked from the chunk files first.
    pub(crate) must_measure: bool,
    upto: u64,
}

/// What metadata was told of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Told {
    end: u64,
    truncate_generation: u64,
    upto: u64,
}

/// What metadata still knows of what it was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    All,
    /// Not how far the file was written.
    Shorter,
    /// Not that the file was truncated.
    Untruncated,
}

/// A chunk file with writes that nobody synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unsynced {
    pub(crate) key: ChunkFileKey,
    pub(crate) group: GroupId,
    upto: u64,
}

impl InodeState {
    pub(crate) fn new(id: InodeId) -> Arc<Self> {
        Arc::new(Self { id, inner: Mutex::default() })
    }

    fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        f(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes attributes that metadata gave, unless newer ones were seen.
    pub(crate) fn observe(&self, attributes: &Attributes, now: Duration) {
        self.with(|inner| inner.observe(attributes, now));
    }

    /// The size: what metadata said, or what this mount wrote.
    pub(crate) fn size(&self) -> u64 {
        self.with(|inner| inner.size.max(inner.written_end))
    }

    /// How long ago metadata gave the size.
    pub(crate) fn age(&self, now: Duration) -> Duration {
        self.with(|inner| now.saturating_sub(inner.seen_at))
    }

    /// Raises the size in attributes to what this mount wrote.
    pub(crate) fn merge_into(&self, attributes: &mut Attributes) {
        self.with(|inner| {
            if attributes.truncate_generation <= inner.truncate_generation {
                attributes.size = attributes.size.max(inner.written_end);
            }
        });
    }

    /// Begins a write; `None` while a truncation runs or waits.
    pub(crate) fn try_write(self: &Arc<Self>) -> Option<Writing> {
        self.with(|inner| {
            (!inner.is_truncating).then(|| {
                inner.writers += 1;
                Writing(Arc::clone(self))
            })
        })
    }

    /// Claims the inode for a truncation; `None` while another has it. It may begin once
    /// [`Truncating::is_alone`].
    pub(crate) fn try_truncate(self: &Arc<Self>) -> Option<Truncating> {
        let claimed = self.with(|inner| !std::mem::replace(&mut inner.is_truncating, true));
        claimed.then(|| Truncating(Arc::clone(self)))
    }

    /// What metadata wasn't told yet.
    pub(crate) fn unreported(&self) -> Option<Report> {
        self.with(|inner| {
            (inner.reported < inner.writes).then_some(Report {
                extent: WrittenExtent {
                    end: inner.written_end,
                    truncate_generation: inner.truncate_generation,
                    may_leave_holes: inner.may_leave_holes,
                    reach: if inner.reach > inner.written_end { inner.reach } else { 0 },
                },
                must_measure: inner.must_measure,
                upto: inner.writes,
            })
        })
    }

    /// Metadata was told, and answered with attributes; `is_durable`: when they were on its device.
    pub(crate) fn reported(
        &self,
        report: &Report,
        attributes: &Attributes,
        is_durable: bool,
        now: Duration,
    ) {
        self.with(|inner| {
            let is_current = attributes.truncate_generation == report.extent.truncate_generation;
            if is_current {
                // All that was told before is in the log before it.
                if is_durable {
                    inner.safe = inner.safe.max(report.upto);
                }
                inner.told_end = inner.told_end.max(report.extent.end);
                inner.reported = inner.reported.max(report.upto);
                if report.must_measure
                    && inner.truncate_generation == attributes.truncate_generation
                {
                    inner.must_measure = false;
                }
            }
            inner.observe(attributes, now);
        });
    }

    /// Whether metadata was told of something that may not be on its device yet.
    pub(crate) fn is_told_undurably(&self) -> bool {
        self.with(|inner| inner.safe < inner.reported)
    }

    /// What metadata was told so far.
    pub(crate) fn told(&self) -> Told {
        self.with(|inner| Told {
            end: inner.told_end,
            truncate_generation: inner.truncate_generation,
            upto: inner.reported,
        })
    }

    /// Compares what metadata was told with what it has on its device. What it doesn't know any
    /// more, since its host has lost its power, is unreported again.
    pub(crate) fn compare(&self, told: &Told, durable: &Attributes) -> Kept {
        self.with(|inner| {
            inner.safe = inner.safe.max(told.upto);
            let is_as_told = inner.truncate_generation == told.truncate_generation;
            match durable.truncate_generation.cmp(&told.truncate_generation) {
                Ordering::Equal if durable.size < told.end => {
                    inner.writes += u64::from(is_as_told);
                    Kept::Shorter
                }
                Ordering::Less => {
                    if is_as_told {
                        // How far it reaches now only the chunk files know.
                        inner.truncate_generation = durable.truncate_generation;
                        inner.size = durable.size;
                        inner.must_measure = true;
                        inner.writes += 1;
                    }
                    Kept::Untruncated
                }
                _ => Kept::All,
            }
        })
    }

    /// What metadata wasn't told is not to be told any more: others may have had the file since.
    pub(crate) fn forget_unreported(&self) {
        self.with(|inner| {
            inner.reported = inner.writes;
            inner.must_measure = false;
            inner.written_end = 0;
            inner.may_leave_holes = false;
        });
    }

    /// Chunk files to be synced now.
    pub(crate) fn unsynced(&self) -> Vec<Unsynced> {
        self.with(|inner| {
            let of = |(key, state): (&ChunkFileKey, &ChunkFileState)| Unsynced {
                key: *key,
                group: state.group,
                upto: state.last_write,
            };
            inner.unsynced.iter().map(of).collect()
        })
    }

    /// A chunk file was synced by a storage host of this incarnation. If it is another than when
    /// the writes were acknowledged, they may be lost.
    pub(crate) fn synced(&self, what: &Unsynced, incarnation: HostIncarnation) {
        self.with(|inner| {
            let Some(state) = inner.unsynced.get_mut(&what.key) else { return };
            let is_lost = state.incarnation != incarnation;
            if state.last_write <= what.upto {
                inner.unsynced.remove(&what.key);
            } else {
                // What was written meanwhile went to the host as it is now, or its own answer
                // tells.
                state.incarnation = incarnation;
            }
            inner.losses += u64::from(is_lost);
        });
    }

    /// Marks of writes of bytes in metadata to be synced now.
    pub(crate) fn unsynced_inline(&self) -> Vec<InlineMark> {
        self.with(|inner| inner.unsynced_inline.clone())
    }

    /// Metadata has these on its device, or has lost some of them.
    pub(crate) fn inline_synced(&self, marks: &[InlineMark], is_lost: bool) {
        self.with(|inner| {
            let is_new = |it: &InlineMark| {
                !marks.iter().any(|mark| mark.epoch == it.epoch && mark.record >= it.record)
            };
            inner.unsynced_inline.retain(is_new);
            inner.losses += u64::from(is_lost);
        });
    }

    /// How often acknowledged writes may have been lost; each handle tells its user once.
    pub(crate) fn losses(&self) -> u64 {
        self.with(|inner| inner.losses)
    }

    pub(crate) fn opened(&self) {
        self.with(|inner| {
            if inner.opens == 0 {
                inner.is_shared = false;
                inner.is_cached = false;
                inner.lives += 1;
            }
            inner.opens += 1;
        });
    }

    /// The close of a handle has begun.
    pub(crate) fn closing(&self) {
        self.with(|inner| inner.closing += 1);
    }

    /// One handle less, whose close had begun; whether it was the last.
    pub(crate) fn closed(&self) -> bool {
        self.with(|inner| {
            inner.opens = inner.opens.saturating_sub(1);
            inner.closing = inner.closing.saturating_sub(1);
            inner.opens == 0
        })
    }

    /// How often it was opened when it wasn't open; `None` if it isn't open.
    pub(crate) fn life(&self) -> Option<u64> {
        self.with(|inner| (inner.opens > 0).then_some(inner.lives))
    }

    /// Whether it has a handle that isn't being closed.
    pub(crate) fn has_live_handles(&self) -> bool {
        self.with(|inner| inner.opens > inner.closing)
    }

    /// Whether it is open, but all its handles are being closed.
    pub(crate) fn is_being_closed(&self) -> bool {
        self.with(|inner| inner.opens > 0 && inner.opens == inner.closing)
    }

    // ---- shared with other clients

    /// Other clients have it open too, until the last handle of this mount is closed.
    pub(crate) fn set_shared(&self) {
        self.with(|inner| inner.is_shared = true);
    }

    /// Whether other clients have it open too, and one of all may write.
    pub(crate) fn is_shared(&self) -> bool {
        self.with(|inner| inner.is_shared)
    }

    /// Whether other clients must be told now how far it reaches.
    pub(crate) fn must_tell_size(&self) -> bool {
        self.with(|inner| inner.is_shared && inner.written_end > inner.size)
    }

    /// Begins an append at the end that this mount knows; `None` if others may move it.
    pub(crate) fn try_append_alone(self: &Arc<Self>) -> Option<LoneAppend> {
        self.with(|inner| {
            (!inner.is_shared).then(|| {
                inner.lone_appends += 1;
                LoneAppend(Arc::clone(self))
            })
        })
    }

    /// Whether such appends are under way.
    pub(crate) fn has_lone_appends(&self) -> bool {
        self.with(|inner| inner.lone_appends > 0)
    }

    /// Whether nothing has to be remembered of it.
    pub(crate) fn is_idle(&self) -> bool {
        self.with(|inner| inner.opens == 0 && !inner.has_unsynced())
    }

    /// Whether it is closed but has writes that nobody synced.
    pub(crate) fn is_closed_unsynced(&self) -> bool {
        self.with(|inner| inner.opens == 0 && inner.has_unsynced())
    }

    /// Notes that a program locks something of it.
    pub(crate) fn set_locked(&self) {
        self.with(|inner| inner.is_locked = true);
    }

    /// Whether a program has ever locked something of it while it was open.
    pub(crate) fn is_locked(&self) -> bool {
        self.with(|inner| inner.is_locked)
    }

    /// Notes that bytes of it are read for a cache of the caller's.
    pub(crate) fn set_cached(&self) {
        self.with(|inner| inner.is_cached = true);
    }

    /// Whether such a cache may hold bytes that were read since the file was opened.
    pub(crate) fn is_cached(&self) -> bool {
        self.with(|inner| inner.is_cached)
    }

    /// Notes whether it stands in the queue of closed ones; gives what was noted before.
    pub(crate) fn set_queued(&self, is_queued: bool) -> bool {
        self.with(|inner| std::mem::replace(&mut inner.is_queued, is_queued))
    }
}

impl Inner {
    fn has_unsynced(&self) -> bool {
        !self.unsynced.is_empty() || !self.unsynced_inline.is_empty()
    }

    fn note_inline(&mut self, mark: InlineMark) {
        let marks = &mut self.unsynced_inline;
        match marks.binary_search_by_key(&mark.epoch, |it| it.epoch) {
            Ok(at) => marks[at].record = marks[at].record.max(mark.record),
            Err(at) => marks.insert(at, mark),
        }
        if marks.len() > MAX_EPOCHS {
            // Metadata doesn't remember so many either.
            marks.remove(0);
            self.losses += 1;
        }
    }

    fn observe(&mut self, attributes: &Attributes, now: Duration) {
        if attributes.change_counter < self.change_counter {
            return;
        }
        if attributes.truncate_generation != self.truncate_generation {
            self.must_measure |= self.reported < self.writes;
            self.truncate_generation = attributes.truncate_generation;
            self.written_end = 0;
            self.told_end = 0;
            self.may_leave_holes &= self.must_measure;
        }
        self.size = attributes.size;
        self.change_counter = attributes.change_counter;
        self.seen_at = now;
    }
}

/// An append under way at the end that this mount knows.
#[derive(Debug)]
pub(crate) struct LoneAppend(Arc<InodeState>);

impl Drop for LoneAppend {
    fn drop(&mut self) {
        self.0.with(|inner| inner.lone_appends -= 1);
    }
}

/// A write under way: truncations of this mount wait for it.
#[derive(Debug)]
pub(crate) struct Writing(Arc<InodeState>);

impl Writing {
    /// A piece was acknowledged.
    pub(crate) fn piece_written(
        &self,
        key: ChunkFileKey,
        group: GroupId,
        incarnation: HostIncarnation,
    ) {
        self.0.with(|inner| {
            inner.writes += 1;
            let last_write = inner.writes;
            let new = ChunkFileState { group, incarnation, last_write };
            let state = inner.unsynced.entry(key).or_insert(new);
            state.last_write = last_write;
            if state.incarnation != incarnation {
                state.incarnation = incarnation;
                inner.losses += 1;
            }
        });
    }

    /// A piece in metadata was acknowledged, of a write whose end metadata is told of later.
    pub(crate) fn inline_written(&self, mark: InlineMark) {
        self.0.with(|inner| inner.note_inline(mark));
    }

    /// A write that lies in metadata as a whole was acknowledged: metadata knows its end and times.
    pub(crate) fn wrote_inline(
        &self,
        end: u64,
        mark: InlineMark,
        attributes: &Attributes,
        now: Duration,
    ) {
        self.0.with(|inner| {
            inner.note_inline(mark);
            let is_all_told = inner.reported == inner.writes;
            inner.observe(attributes, now);
            if attributes.truncate_generation == inner.truncate_generation {
                inner.written_end = inner.written_end.max(end);
                inner.told_end = inner.told_end.max(end);
            }
            if is_all_told {
                // As if it was written and then told.
                inner.writes += 1;
                inner.reported = inner.writes;
            }
        });
    }

    /// All pieces of a range are written: the file reaches at least to its end. Not called when a
    /// piece failed: then the size doesn't move.
    pub(crate) fn wrote(&self, range: Range<u64>) {
        self.0.with(|inner| {
            inner.writes += 1;
            inner.may_leave_holes |= range.start > inner.size.max(inner.written_end);
            inner.written_end = inner.written_end.max(range.end);
        });
    }
}

impl Writing {
    /// Chunk files may reach up to an end now, which the file may not.
    pub(crate) fn reached(&self, end: u64) {
        self.0.with(|inner| {
            inner.writes += 1;
            inner.reach = inner.reach.max(end);
        });
    }

    /// A part of the file may be a hole now; its size stays.
    pub(crate) fn made_holes(&self) {
        self.0.with(|inner| {
            inner.writes += 1;
            inner.may_leave_holes = true;
        });
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.0.with(|inner| inner.writers -= 1);
    }
}

/// A claim to truncate: writes of this mount wait until it is dropped.
#[derive(Debug)]
pub(crate) struct Truncating(Arc<InodeState>);

impl Truncating {
    /// Whether the writes that had begun before have ended.
    pub(crate) fn is_alone(&self) -> bool {
        self.0.with(|inner| inner.writers == 0)
    }

    /// The truncation is done; what this mount wrote before no longer counts.
    pub(crate) fn done(&self, attributes: &Attributes, now: Duration) {
        self.0.with(|inner| {
            inner.writes += 1;
            inner.reported = inner.writes;
            inner.must_measure = false;
            inner.written_end = 0;
            inner.told_end = 0;
            inner.may_leave_holes = false;
            inner.observe(attributes, now);
        });
    }
}

impl Drop for Truncating {
    fn drop(&mut self) {
        self.0.with(|inner| inner.is_truncating = false);
    }
}

#[cfg(test)]
mod tests;
