//! Whether a backup is complete. A backup is incomplete if its host may have lost records that the
//! backup has confirmed. It is also incomplete if it must remove its store, because a copy of the
//! primary's store begins.
//!
//! Does not own the records ([`super::backup`]) or the copy ([`super::copy_receiver`]).

use super::following;
use skep_types::codec::Bytes;
use skep_types::{Epoch, Lsn};
use skep_wire::log_shipping::{CopyStep, CopyStore, StoreCopied};

/// The completeness of a backup.
#[derive(Debug, Default)]
pub(super) struct Completeness {
    /// Whether the host may have lost records that the backup has confirmed.
    pub(super) lacks_records: bool,
    /// The primary's last record, as named in its first request of this epoch to this process.
    goal: Option<Lsn>,
    /// Whether the primary has asked this member to remove its store and to begin a copy.
    pub(super) discards: bool,
}

impl Completeness {
    /// Begins a new epoch, whose primary may have other records. `is_doubtful` means that this
    /// backup may lack records of its group.
    pub(super) fn begin_epoch(&mut self, is_doubtful: bool) {
        self.lacks_records |= is_doubtful;
        self.goal = None;
    }

    /// Stores the primary's last record from its first request of the epoch. `last` is the
    /// primary's last record in the current request. Returns the stored record.
    pub(super) fn note_goal(&mut self, last: Lsn) -> Lsn {
        *self.goal.get_or_insert(last)
    }

    /// Handles a request that names `last` as the last record of the primary. The backup now has
    /// all records of the primary up to `matched`.
    pub(super) fn matched(&mut self, matched: Lsn, last: Lsn) {
        if matched >= self.note_goal(last) {
            self.lacks_records = false;
        }
    }

    /// Returns the reply to a request about a copy of the store. The backup agrees to a copy only
    /// if the primary no longer has the record after `matched` in memory. A serving member never
    /// removes its store.
    pub(super) fn answer_copy(
        &mut self,
        part: &CopyStore,
        matched: Lsn,
        (epoch, serves): (Epoch, bool),
    ) -> StoreCopied {
        let is_asked = part.step == CopyStep::Begin && following(matched) < part.first;
        self.discards |= is_asked && !serves;
        StoreCopied {
            epoch,
            is_copying: false,
            is_whole: false,
            applied: matched,
            after: Bytes(Vec::new()),
            pair_count: 0,
            pair_bytes: 0,
            checksum: 0,
        }
    }
}
