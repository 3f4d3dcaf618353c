//! Decides whether a backup member is complete. A backup member is incomplete if its host may have
//! lost records that the member has confirmed, or if a copy of the primary's store will replace its
//! store. Also decides whether the store of the member has changes that its group lacks.
//!
//! # Members that may lack records
//! A member whose host has lost power may lack records that it has confirmed. In each epoch, the
//! primary's first request to this process contains the LSN of the primary's last record. The
//! member does not take over before it has all records up to this last record. The primary replies
//! to a change after this record only when the member has the record of the change, so no
//! acknowledged record is missing. The same rule applies if the group has skipped epochs because
//! management was restored from a backup. After a restore of management, another member may have
//! been the primary in a skipped epoch.
//!
//! # Members whose stores diverge
//! A store has only *safe* records, and no later primary lacks a safe record. An administrator can
//! break this rule in two steps: restore the primary from a backup that is older than the last
//! changes, and drop the other members, which have these changes. When a dropped member with these
//! changes returns, its store diverges from the store of its group. The LSNs of its last records
//! belong to other changes in the group, and no later record would remove the difference. So the
//! member refuses all requests. The member detects the difference by the primary's last record, or
//! by the epoch of the last record in its store.
//!
//! This module does not own the records ([`super::backup`]) or the copy ([`super::copy_receiver`]).

use super::following;
use skep_types::codec::Bytes;
use skep_types::{Epoch, Lsn, Timestamp};
use skep_wire::log_shipping::{CopyStep, CopyStore, StoreCopied};
use std::time::Duration;

/// The completeness of a backup member.
#[derive(Debug)]
pub(super) struct Completeness {
    /// The id of this process in replies to the primary.
    pub(super) process: u64,
    /// Whether the host may have lost records that the backup member has confirmed.
    pub(super) lacks_records: bool,
    /// The primary's last record, from its first request of this epoch with the id of this process.
    /// A request that the primary sent before a power loss of this host has the id of the earlier
    /// process, and may contain an older last record.
    goal: Option<Lsn>,
    /// Whether the member has appended or compared records of the primary in this epoch.
    has_followed: bool,
    /// Whether the store has changes that the primary of this epoch lacks.
    pub(super) diverges: bool,
    /// Whether the member has agreed to remove its store and to receive a copy of the primary's
    /// store.
    pub(super) discards: bool,
}

/// Returns an id for a process that starts at `now` and at the time of day `wall`. The id is the
/// sum of `now` and `wall`. The id differs from the id of every earlier process, even after a boot,
/// unless the time of day was set back by exactly the elapsed time.
fn process_number(now: Duration, wall: Timestamp) -> u64 {
    let (seconds, nanoseconds) = (wall.seconds.unsigned_abs(), u64::from(wall.nanoseconds));
    let of_wall = seconds.wrapping_mul(1_000_000_000).wrapping_add(nanoseconds);
    // Zero means that a request has no process id.
    of_wall.wrapping_add(now.as_nanos() as u64).max(1)
}

impl Completeness {
    /// Creates the state of a complete backup member in a process that starts at `now` and at the
    /// time of day `wall`.
    pub(super) fn of_process(now: Duration, wall: Timestamp) -> Self {
        let process = process_number(now, wall);
        Self {
            process,
            lacks_records: false,
            goal: None,
            has_followed: false,
            diverges: false,
            discards: false,
        }
    }

    /// Begins a new epoch. Forgets the goal and the comparison with the primary, because the new
    /// primary may have other records. `is_doubtful` means that this backup member may lack records
    /// of its group.
    pub(super) fn begin_epoch(&mut self, is_doubtful: bool) {
        self.lacks_records |= is_doubtful;
        (self.goal, self.has_followed, self.diverges) = (None, false, false);
    }

    /// Handles a request of the primary. `process` is the process of a backup member to which the
    /// request is addressed. `last` is the LSN of the primary's last record, and `stored` is the
    /// last record in the store of the member. In the first request of the epoch to this process,
    /// `last` becomes the goal: the member lacks records until it has all records up to the goal.
    ///
    /// The primary has sent this request after it had received a reply of this process. So all
    /// records that were safe at the start of this process are in the primary's log. If the store
    /// has a later record although the member has followed no request of this epoch, the store
    /// diverges.
    pub(super) fn note_request(&mut self, process: u64, last: Lsn, stored: Lsn) {
        if process == self.process && self.goal.is_none() {
            self.goal = Some(last);
            self.diverges |= last < stored && !self.has_followed;
        }
    }

    /// Whether a request states that the primary's last record, `last`, is earlier than `stored`,
    /// the last record in the store, but the request may be an old request. Only the next request,
    /// which contains the id of this process, shows whether the store diverges.
    pub(super) fn is_inconclusive(&self, last: Lsn, stored: Lsn) -> bool {
        last < stored && self.goal.is_none() && !self.has_followed
    }

    /// Notes that the backup member now has all records of the primary up to `matched`.
    pub(super) fn matched(&mut self, matched: Lsn) {
        self.has_followed = true;
        if self.goal.is_some_and(|goal| matched >= goal) {
            self.lacks_records = false;
        }
    }

    /// Returns the reply to a request about a copy of the store. The backup member agrees to a copy
    /// only if the primary no longer has the record after `matched` in memory. A serving member
    /// never removes its store.
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
