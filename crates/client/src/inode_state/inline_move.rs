//! The move of a file's inline bytes to storage (`data::move_inline`): when it is due, and which
//! pattern the handles use since then. Pure.

use super::InodeState;
use crate::limits::MOVE_AFTER_SYNCS;
use skep_types::StripePattern;
use std::sync::atomic::Ordering;

/// The state of the move of the inline bytes of one file.
#[derive(Debug, Default)]
pub(super) struct InlineMove {
    /// Number of syncs at which the file had unsynced bytes both at metadata and at storage, since
    /// the last attempt to move its inline bytes.
    syncs_of_both: u32,
    /// Whether this mount has tried to move the inline bytes.
    has_tried: bool,
    /// Generation of the pattern whose inline component has ended, if a power loss of metadata may
    /// still revert this. Either this mount has ended the component of an empty file, or the reply
    /// to an open has shown the end, which may have been a moment old.
    pub(super) unconfirmed: Option<u32>,
    /// Generation of the pattern whose inline component has ended durably.
    durable: Option<u32>,
}

impl InodeState {
    /// Counts a sync that begins now. Returns whether the sync should move the inline bytes of the
    /// file to storage, because several syncs have had to sync the metadata target and storage. One
    /// such sync is enough if the file was larger than its inline bytes when it was opened
    /// (`was_grown`). `inline` is the number of inline bytes.
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
        self.with(|parts| parts.moves.durable = Some(generation));
        self.use_moved(generation);
    }

    fn use_moved(&self, generation: u32) {
        self.moved_inline.store(u64::from(generation) + 1, Ordering::Release);
    }

    /// Returns whether the mount may try to end the inline component of the empty file. Returns
    /// `true` only once.
    pub(crate) fn begin_first_move(&self) -> bool {
        self.with(|parts| !std::mem::replace(&mut parts.moves.has_tried, true))
    }

    /// Records that the inline component of the empty file has ended. A power loss of metadata may
    /// still revert this.
    pub(crate) fn empty_inline_ended(&self, generation: u32) {
        self.with(|parts| parts.moves.unconfirmed = Some(generation));
        self.use_moved(generation);
    }

    /// Returns the generation of the pattern whose inline component has ended, if this may not be
    /// durable yet.
    pub(crate) fn unconfirmed_move(&self) -> Option<u32> {
        self.with(|parts| parts.moves.unconfirmed)
    }

    /// Records that the end of the inline component is durable.
    pub(crate) fn move_confirmed(&self, generation: u32) {
        self.with(|parts| parts.moves.unconfirmed = None);
        self.inline_moved(generation);
    }

    /// Records that a power loss has reverted the end of the inline component. The next `fsync` of
    /// each handle fails once.
    pub(crate) fn move_reverted(&self) {
        self.with(|parts| {
            parts.moves.unconfirmed = None;
            parts.unsynced.note_loss();
            self.use_inline_again();
        });
    }

    /// Makes the handles use the inline component again. If its end was not reverted, a request for
    /// inline bytes is refused, and the mount follows the move again. The caller counts the loss
    /// while it holds the same lock. So a write that is acknowledged after an `fsync` has returned
    /// the loss is a write to the inline component.
    pub(super) fn use_inline_again(&self) {
        self.moved_inline.store(0, Ordering::Release);
    }

    /// Records the pattern in the reply to an open.
    /// - If its inline bytes were moved, a power loss may revert the move together with the open.
    ///   The next sync confirms the move, unless the mount knows that it is durable.
    /// - If it has inline bytes, a power loss may have reverted the end of an empty inline
    ///   component. The mount then uses the inline component again, and the next sync finds out
    ///   whether bytes are lost.
    pub(crate) fn pattern_opened(&self, pattern: &StripePattern) {
        // Most files have neither, and need no lock.
        let may_be_back = pattern.inline_bytes() > 0 && self.has_moved_inline(pattern.generation);
        if !pattern.has_moved_inline() && !may_be_back {
            return;
        }
        let generation = Some(pattern.generation);
        self.with(|parts| {
            let moves = &mut parts.moves;
            if pattern.has_moved_inline() && moves.durable != generation {
                moves.unconfirmed = generation;
            }
            if pattern.inline_bytes() > 0 && moves.unconfirmed == generation {
                self.use_inline_again();
            }
        });
    }

    /// Returns whether the inline bytes of the pattern with this generation were moved to storage.
    pub(crate) fn has_moved_inline(&self, generation: u32) -> bool {
        self.moved_inline.load(Ordering::Acquire) == u64::from(generation) + 1
    }
}
