//! The move of a file's inline bytes to storage (`data::move_inline`), and the end of the inline
//! component of a new file (`data::inline_end`). Decides when the move or the end is due, and which
//! pattern the handles use afterwards. Also records the generation of the pattern in the reply to
//! the newest open. Here, the end of the component is an event, not an offset: from then on,
//! storage stores the first bytes of the file. Pure.

use super::{FileEnd, InodeState, Parts};
use crate::limits::MOVE_AFTER_SYNCS;
use skep_types::StripePattern;
use skep_wire::inline::InlineMark;
use std::sync::atomic::Ordering;

/// The end of an inline component that a power loss of metadata may still revert.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnconfirmedMove {
    /// Generation of the pattern whose inline component has ended.
    pub(crate) generation: u32,
    /// Position of this end in the log of metadata. The pattern alone does not show whether the end
    /// was reverted, because another client may have moved inline bytes of the file since.
    pub(crate) mark: InlineMark,
}

/// How far this mount has moved the inline bytes of one file.
#[derive(Debug, Default)]
pub(super) struct InlineMove {
    /// Number of syncs at which the file had unsynced bytes both at metadata and at storage, since
    /// the last attempt to move its inline bytes.
    syncs_of_both: u32,
    /// Whether this mount has tried to move the inline bytes.
    has_tried: bool,
    /// Set if this mount has sent a request that ended the inline component of an empty file. A
    /// power loss of metadata may still revert this end.
    pub(super) unconfirmed: Option<UnconfirmedMove>,
    /// Whether this mount has created the file, and has written nothing to it yet. So no client has
    /// written inline bytes.
    is_new: bool,
    /// Generation of the pattern whose inline component this mount has ended without a request.
    /// Reports and closes of the file contain this generation until metadata has durably recorded
    /// the end. So until metadata has recorded the end, metadata counts the file as open in a
    /// session of this mount.
    pub(super) ending: Option<u32>,
    /// Whether metadata has acknowledged a report that contains the generation in `ending`.
    is_end_reported: bool,
}

impl InlineMove {
    /// Records that the close of a handle begins.
    pub(super) fn closing(&mut self) {
        self.is_new = false;
    }

    /// Returns whether `ending` is set and metadata has not acknowledged a report that contains it.
    pub(super) fn must_report(&self) -> bool {
        self.ending.is_some() && !self.is_end_reported
    }

    /// Forgets `ending`, an end that metadata has not recorded. After an eviction, metadata itself
    /// ends the inline component.
    pub(super) fn forget_end(&mut self) {
        self.is_new = false;
        self.ending = None;
    }

    /// Records that metadata has executed a report that contains the end of the inline component.
    pub(super) fn end_reported(&mut self, generation: u32, is_durable: bool) {
        if self.ending != Some(generation) {
            return;
        }
        self.is_end_reported = true;
        if is_durable {
            self.end_found_durable();
        }
    }

    /// Records that a power loss of metadata has reverted the reports of the file.
    pub(super) fn end_report_lost(&mut self) {
        self.is_end_reported = false;
    }

    /// Records that metadata has durably recorded the end of the inline component.
    pub(super) fn end_found_durable(&mut self) {
        if self.is_end_reported {
            self.ending = None;
        }
    }
}

impl InodeState {
    /// Counts a sync that begins now. Returns whether the sync should move the inline bytes of the
    /// file to storage. A move is due after several syncs that had to sync both the metadata target
    /// and storage. One such sync is enough if the file was larger than its inline bytes when it
    /// was opened (`was_grown`). `inline` is the number of inline bytes.
    pub(crate) fn count_sync_of_both(&self, inline: u64, was_grown: bool) -> bool {
        self.with(|parts| {
            let has_both = parts.unsynced.has_both_places();
            if !has_both || parts.size.size() <= inline || parts.handles.is_shared() {
                return false;
            }
            parts.moves.syncs_of_both += 1;
            let is_first = was_grown && !parts.moves.has_tried;
            let is_due = is_first || parts.moves.syncs_of_both > MOVE_AFTER_SYNCS;
            if is_due {
                // If metadata or storage refuses this move, the next attempt follows after some
                // more syncs.
                parts.moves.syncs_of_both = 0;
                parts.moves.has_tried = true;
            }
            is_due
        })
    }

    /// Records that the inline bytes of the file were moved to storage. `generation` is the
    /// generation of the file's pattern. Metadata has confirmed that the move is durable.
    pub(crate) fn inline_moved(&self, generation: u32) {
        self.moved_inline.store(u64::from(generation) + 1, Ordering::Release);
    }

    /// Returns whether the mount may try to end the inline component of the empty file. Returns
    /// `true` only once.
    pub(crate) fn begin_first_move(&self) -> bool {
        self.with(|parts| !std::mem::replace(&mut parts.moves.has_tried, true))
    }

    /// Records that this mount has created the file, and has it open for writing. If the mount has
    /// another handle of the file already, a write through that handle may have begun.
    pub(crate) fn created(&self) {
        self.with(|parts| parts.moves.is_new = !parts.handles.has_several());
    }

    /// Decides whether metadata or storage stores the first bytes of a new file, before the first
    /// write to these bytes. `ending` is the generation of the pattern if this write should end the
    /// inline component, and `end` is the end offset of the write. Returns whether the component
    /// ends: this mount has created the file and written nothing to it, and no other client has it
    /// open.
    ///
    /// Each write of this mount to the inline bytes calls this function before it reads the
    /// pattern. So no such write uses the inline component after another thread has ended it.
    pub(crate) fn place_first_bytes(&self, ending: Option<u32>, end: u64) -> bool {
        self.with(|parts| {
            let FileEnd { size, truncate_generation } = parts.size.end();
            let is_unused = std::mem::take(&mut parts.moves.is_new)
                && size == 0
                && truncate_generation == 0
                && !parts.handles.is_shared();
            let Some(generation) = ending.filter(|_| is_unused) else { return false };
            let moves = &mut parts.moves;
            (moves.ending, moves.is_end_reported) = (ending, false);
            moves.has_tried = true;
            // Metadata needs a report of the end even if the write fails.
            parts.size.note_reach(end);
            self.inline_moved(generation);
            true
        })
    }

    /// Returns the generation of the pattern whose inline component this mount has ended, if
    /// metadata may not have recorded the end durably.
    pub(crate) fn ending_inline(&self) -> Option<u32> {
        self.with(|parts| parts.moves.ending)
    }

    /// Compares the end of the inline component with the durable pattern of the file. `has_ended`
    /// is whether this pattern shows the end. `None` means that the pattern was replaced or the
    /// file was removed, so the mount has nothing to report. Returns whether a power loss of
    /// metadata has reverted the report, so that the mount must report the end again.
    pub(crate) fn compare_end(&self, has_ended: Option<bool>) -> bool {
        self.with(|parts| {
            match has_ended {
                None => parts.moves.forget_end(),
                Some(true) => parts.moves.ending = None,
                Some(false) if parts.moves.ending.is_some() => {
                    parts.moves.end_report_lost();
                    parts.size.note_reach(0);
                    return true;
                }
                Some(false) => {}
            }
            false
        })
    }

    /// Returns whether this mount has ended the inline component, and metadata has not acknowledged
    /// a report of the end.
    pub(crate) fn has_unreported_end(&self) -> bool {
        self.with(|parts| parts.moves.must_report())
    }

    /// Records that metadata had lost an open of this mount, and that the mount has opened the file
    /// again. `is_shared` means that other clients have the file open, so they may have written
    /// inline bytes. If this mount had ended the inline component, and this end may not be durable,
    /// the mount uses the component again. The next `fsync` of each handle then fails once.
    pub(crate) fn opened_again(&self, is_shared: bool) {
        self.with(|parts| {
            parts.moves.is_new = false;
            if is_shared && parts.moves.ending.is_some() {
                self.lose_end(parts);
            }
        });
    }

    /// Records that metadata has refused to end the inline component of the pattern with this
    /// generation, since another client has used the file. The mount uses the component again, and
    /// the next `fsync` of each handle fails once. Returns `false` if the reports of the file do
    /// not contain this end any more.
    pub(crate) fn end_refused(&self, generation: u32) -> bool {
        self.with(|parts| {
            let is_ending = parts.moves.ending == Some(generation);
            if is_ending {
                self.lose_end(parts);
            }
            is_ending
        })
    }

    /// Records that the inline component of the empty file has ended. A power loss of metadata may
    /// still revert this end. `mark` is the position of the change in the log of metadata.
    pub(crate) fn empty_inline_ended(&self, generation: u32, mark: InlineMark) {
        self.with(|parts| parts.moves.unconfirmed = Some(UnconfirmedMove { generation, mark }));
        self.inline_moved(generation);
    }

    /// Returns the end of the inline component, if it may not be durable yet.
    pub(crate) fn unconfirmed_move(&self) -> Option<UnconfirmedMove> {
        self.with(|parts| parts.moves.unconfirmed)
    }

    /// Records that the end of the inline component is durable.
    pub(crate) fn move_confirmed(&self, generation: u32) {
        self.with(|parts| {
            (parts.moves.unconfirmed, parts.moves.ending) = (None, None);
        });
        self.inline_moved(generation);
    }

    /// Records that a power loss has reverted the end of the inline component. The next `fsync` of
    /// each handle fails once.
    pub(crate) fn move_reverted(&self) {
        self.with(|parts| {
            parts.moves.unconfirmed = None;
            self.lose_end(parts);
        });
    }

    /// Records that the bytes that this mount has written since the end of the inline component are
    /// lost. The handles then use the component again.
    fn lose_end(&self, parts: &mut Parts) {
        parts.moves.ending = None;
        parts.unsynced.note_loss();
        self.use_inline_again();
    }

    /// Makes the handles use the inline component again. If the end was not reverted, metadata
    /// refuses the next request for inline bytes, and the mount adopts the moved pattern again
    /// (`Client::follow_move`). The caller counts the loss while it holds the mutex of the inode's
    /// state. So all writes that begin after an `fsync` has reported the loss go to the inline
    /// component.
    pub(super) fn use_inline_again(&self) {
        self.moved_inline.store(0, Ordering::Release);
    }

    /// Records the pattern in the reply to an open. If the pattern has inline bytes although this
    /// mount has ended the inline component, a power loss has reverted the end. The mount then uses
    /// the inline component again, and the next sync finds out that bytes may be lost. If the
    /// reports of this mount contain the end, the mount keeps using storage, since the next report
    /// repeats the end. If the reply shows moved inline bytes, the move is durable, because
    /// metadata delays the open until then.
    pub(crate) fn pattern_opened(&self, pattern: &StripePattern) {
        // Most files have no inline bytes, or no end of their component: for these files, do not
        // lock the mutex.
        if pattern.inline_bytes() == 0 || !self.has_moved_inline(pattern.generation) {
            return;
        }
        self.with(|parts| {
            let unconfirmed = parts.moves.unconfirmed;
            if unconfirmed.is_some_and(|it| it.generation == pattern.generation) {
                self.use_inline_again();
            }
        });
    }

    /// Records the generation of the stripe pattern in the reply to an open. If the previous open
    /// had another generation, discards the unreported sizes, and returns the previous generation.
    pub(crate) fn generation_opened(&self, generation: u32) -> Option<u32> {
        if self.opened_generation() == Some(generation) {
            return None;
        }
        // Discard and store under one lock. With two locks, another thread could open the file with
        // the new pattern and write in between. This thread would then discard the size of these
        // writes too.
        self.with(|parts| {
            let before = self.opened_generation().filter(|it| *it != generation);
            if before.is_some() {
                parts.forget_unreported();
            }
            self.opened_generation.store(u64::from(generation) + 1, Ordering::Release);
            before
        })
    }

    /// Records that the file has another stripe pattern now. Discards the unreported sizes, unless
    /// this mount has opened the file with the new pattern already. `generation` is the generation
    /// of the replaced pattern.
    pub(crate) fn pattern_expired(&self, generation: u32) {
        self.with(|parts| {
            if self.opened_generation() == Some(generation) {
                parts.forget_unreported();
            }
        });
    }

    /// Returns the generation of the stripe pattern in the reply to the newest open. `None` means
    /// that this mount has not opened the file.
    pub(crate) fn opened_generation(&self) -> Option<u32> {
        let stored = self.opened_generation.load(Ordering::Acquire);
        stored.checked_sub(1).and_then(|it| u32::try_from(it).ok())
    }

    /// Returns whether the inline bytes of the pattern with this generation were moved to storage.
    pub(crate) fn has_moved_inline(&self, generation: u32) -> bool {
        self.moved_inline.load(Ordering::Acquire) == u64::from(generation) + 1
    }
}
