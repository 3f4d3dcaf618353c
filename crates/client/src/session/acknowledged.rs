//! Changes that metadata has acknowledged, and that may not be durable yet. A power loss of a
//! metadata host may revert such changes. After a start of the target, the client compares its list
//! of these changes with the slots in the target's store (`compare_slots`). The client replays the
//! lost changes (`replay`) before the target executes further changes of the session.
//!
//! Owns the list of the changes, the state of a replay, and the set of inodes with lost changes for
//! which no program has got an error yet. No I/O.
//!
//! # Invariants
//! - A change is removed from the list only if the target has synced it, or after a comparison. A
//!   lost change is removed only after its replay has succeeded or failed. After a success, it is
//!   in the list again.
//! - Each attempt to send a change contains the start number of the target that the client has
//!   received last. The client has compared the list with the slots that the target had after this
//!   start, and then checks whether the change concerns inodes with reverted changes.
//! - The list has only changes that were sent after the newest comparison, and replayed changes. If
//!   the reply to an earlier change arrives later, the comparison has shown whether it is lost.
//! - While a replay runs, the mount sends no other change to the group.
//! - The list of a group has at most [`MAX_ACKNOWLEDGED`] changes, and their bodies have at most
//!   [`MAX_ACKNOWLEDGED_BYTES`]. At half of a limit, the client lets the group sync in the
//!   background. At a limit, the client sends further changes with the durable flag. The reply to a
//!   durable request removes earlier changes from the list. Replies to changes in flight may still
//!   add changes beyond the limits.
//!
//! `check_invariants` checks the counted bytes and the order of lost changes. The other invariants
//! relate the mount to targets.
//!
//! Held by the tests `replayed_change_is_kept_until_it_is_durable`,
//! `durable_reply_makes_only_earlier_changes_durable`,
//! `change_with_a_late_reply_is_sent_again_if_it_was_lost`,
//! `list_of_undurable_changes_is_bounded_and_ends_with_session` and
//! `lost_changes_of_two_mounts_are_replayed_in_their_order`.

mod interrupted;
mod reverted;
mod unconfirmed;

use crate::limits::{MAX_ACKNOWLEDGED, MAX_ACKNOWLEDGED_BYTES};
use crate::session::ids::client_of;
use crate::session::kept_requests::KeptRequest;
use skep_env::{IdMap, SharedNotify};
use skep_types::{GroupId, InodeId, SessionId};
use skep_wire::inline::InlineMark;
use skep_wire::limits::REPLAY_SLOT;
use skep_wire::metadata::{CompareSlotsReply, Replay};
use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// An acknowledged change.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) slot: u32,
    pub(crate) sequence: u64,
    /// The place of the change among the changes of all clients: the start in which the target
    /// first executed the change, and the number of the change in this start.
    pub(crate) place: (u64, u64),
    /// Name of the request.
    pub(crate) request: &'static str,
    /// The inodes that the request names. A request that names only one inode has it in both
    /// elements. `None` means that the loss of the change is not reported by this module.
    pub(crate) inodes: Option<[InodeId; 2]>,
    /// The data to replay the change. `None` means that the client cannot replay it.
    pub(crate) kept: Option<KeptRequest>,
    /// The mark of an inline write in the state of its inode. `None` means that the change is no
    /// inline write, or that the state does not have its mark any more.
    pub(crate) mark: Option<InlineMark>,
}

impl Change {
    /// Returns the approximate length of the body, in bytes.
    fn body_bytes(&self) -> usize {
        self.kept.as_ref().map_or(0, KeptRequest::bytes)
    }
}

/// A client's session at a group, with the acknowledged changes that may not be durable.
#[derive(Debug, Default)]
struct Kept {
    session: SessionId,
    /// The start number of the target when the session was opened, or at the newest comparison.
    start: u64,
    /// For each slot, the sequence of the slot's last request that is durable at the target
    /// according to the newest comparison or a later sync. The client numbers its slots itself.
    executed: IdMap<u32, u64>,
    changes: VecDeque<Change>,
    /// Time at which the reply to the newest change arrived.
    newest_at: Duration,
    /// Length of the bodies of `changes`.
    bytes: usize,
    /// Sequence number of the first change in `changes`. Changes are numbered in the order in which
    /// their replies arrived.
    first: u64,
    /// Lost changes that are not replayed yet, in the order of their places.
    lost: VecDeque<Change>,
    is_replaying: bool,
    /// Whether the thread of the replay has ended, but not the replay itself. See `interrupted`.
    is_interrupted: bool,
    /// Changes that stay lost, if the replay was interrupted before it has reported them.
    stay_lost: Vec<Change>,
    /// Whether a task lets the group sync, because the list was half full.
    is_syncing: bool,
    /// The highest sequence in [`REPLAY_SLOT`] that is used or skipped. Each lost change takes one
    /// sequence, also a change that the client skips without a request. So the target may see gaps
    /// between the sequences. The target only requires that the sequences rise, as in all slots.
    replays: u64,
}

impl Kept {
    fn next(&self) -> u64 {
        self.first + self.changes.len() as u64
    }

    fn push(&mut self, change: Change, now: Duration) {
        self.newest_at = now;
        self.bytes += change.body_bytes();
        self.changes.push_back(change);
    }

    fn is_full(&self) -> bool {
        self.changes.len() >= MAX_ACKNOWLEDGED || self.bytes >= MAX_ACKNOWLEDGED_BYTES
    }

    fn is_half_full(&self) -> bool {
        2 * self.changes.len() >= MAX_ACKNOWLEDGED || 2 * self.bytes >= MAX_ACKNOWLEDGED_BYTES
    }

    /// Removes and returns the changes whose numbers are lower than `next`, because they are
    /// durable.
    fn take_synced(&mut self, next: u64) -> Vec<Change> {
        let count = next.saturating_sub(self.first).min(self.changes.len() as u64);
        let synced: Vec<_> = self.changes.drain(..count as usize).collect();
        for change in &synced {
            self.bytes -= change.body_bytes();
            let executed = self.executed.entry(change.slot).or_default();
            *executed = change.sequence.max(*executed);
        }
        self.first = self.first.max(next);
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
        synced
    }

    /// Returns whether the target had executed a request before the last comparison, or has
    /// executed it durably since.
    fn has_executed(&self, (slot, sequence): (u32, u64)) -> bool {
        self.executed.get(&slot).is_some_and(|executed| *executed >= sequence)
    }

    /// Implements [`AcknowledgedChanges::has_lost`] for this session.
    fn has_lost(&self, attempt: &Attempt, executed: (u32, u64)) -> bool {
        self.start != attempt.start && !self.has_executed(executed)
    }

    /// Moves the changes that the target has lost from the list to `lost`. All other changes are
    /// durable, because a target that starts serves only the changes that are on its device.
    ///
    /// Returns whether the target has executed the first lost change again. The reply was lost.
    fn take_lost(&mut self, reply: &CompareSlotsReply) -> bool {
        self.start = reply.start;
        let slots = reply.slots.iter().map(|it| (it.slot, it.sequence)).collect();
        let durable = std::mem::replace(&mut self.executed, slots);
        self.first = self.next();
        self.bytes = 0;
        let executed = |slot: u32| self.executed.get(&slot).copied().unwrap_or(0);
        let is_first_executed = executed(REPLAY_SLOT) > self.replays;
        if is_first_executed {
            self.replays = executed(REPLAY_SLOT);
            self.lost.pop_front();
        }
        let executed = &self.executed;
        let is_lost = |it: &Change| it.sequence > executed.get(&it.slot).copied().unwrap_or(0);
        self.lost.extend(self.changes.drain(..).filter(is_lost));
        self.lost.make_contiguous().sort_by_key(|it| it.place);
        let lacks = |slot: &u32, sequence: &u64| executed.get(slot).is_none_or(|it| it < sequence);
        if durable.iter().any(|(slot, sequence)| lacks(slot, sequence)) {
            // The directory of the target was restored from an old backup, which lacks durable
            // changes. The lost changes may depend on these durable changes.
            self.lost.iter_mut().for_each(|it| it.kept = None);
        }
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
        is_first_executed
    }

    /// Panics if an invariant of the lists is violated.
    fn check_invariants(&self) {
        let bytes: usize = self.changes.iter().map(Change::body_bytes).sum();
        assert_eq!(self.bytes, bytes, "the list counts the bytes of its bodies");
        assert!(
            self.lost.iter().is_sorted_by_key(|it| it.place),
            "lost changes are in the order of their places"
        );
    }

    /// Removes and returns the first lost change, and takes its sequence in [`REPLAY_SLOT`]. The
    /// client has replayed the change, or skips it.
    fn take_first(&mut self) -> Option<Change> {
        let change = self.lost.pop_front()?;
        self.replays += 1;
        Some(change)
    }
}

/// An attempt to send a change.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt {
    session: SessionId,
    /// The start number that the request must contain: the current start of the target. The target
    /// refuses the request if the target has started again since then. So the client always
    /// compares its changes before a target executes requests of a new start.
    pub(crate) start: u64,
    /// Sequence number of the change that will be added to the list next.
    next: u64,
    /// Whether the list is full. The client then sends the request with the durable flag, and the
    /// reply makes the list shorter.
    pub(crate) is_list_full: bool,
    /// Whether any inode has reverted changes for which no program has got an error yet.
    pub(crate) has_reverted: bool,
    /// Whether a replay of the session is running. The client then must not send the request yet.
    pub(crate) is_replaying: bool,
}

/// The next step of the caller of [`AcknowledgedChanges::acknowledged`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Acknowledged {
    /// Nothing.
    Done,
    /// The list is half full. The caller must let the group sync, and must call
    /// [`AcknowledgedChanges::sync_ended`] afterwards.
    MustSync,
    /// A power loss has reverted the change, which is not in the list. The caller must send the
    /// request again in its slot.
    Lost,
}

/// The result of a comparison of the changes with the slots of the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compared {
    /// Another thread has already compared the list after this start or a newer start, or is
    /// replaying changes.
    Before,
    /// This is the first comparison after the start. The caller must begin a replay.
    Now,
}

/// The next step of a replay.
#[derive(Debug)]
pub(crate) struct NextReplay {
    /// The request. `None` means that the change cannot be replayed.
    pub(crate) request: Option<Box<Replay>>,
    /// Sequence of the request in [`REPLAY_SLOT`].
    pub(crate) sequence: u64,
    /// The mark of the lost change. See [`Change::mark`].
    pub(crate) mark: Option<InlineMark>,
    /// The truncate generation of a truncation by the change. See [`KeptRequest::truncated`].
    pub(crate) truncated: Option<u64>,
}

#[derive(Debug, Default)]
struct Inner {
    groups: IdMap<GroupId, Kept>,
    /// Inodes with reverted changes, until a program has got an error for them.
    reverted: HashSet<InodeId>,
    /// Whether a power loss has reverted a change, and no `fsync` of a directory has returned an
    /// error for it yet.
    is_name_reverted: bool,
}

impl Inner {
    fn kept(&mut self, group: GroupId, session: SessionId) -> Option<&mut Kept> {
        self.groups.get_mut(&group).filter(|kept| kept.session == session)
    }
}

/// The acknowledged changes of a mount.
#[derive(Debug, Default)]
pub(crate) struct AcknowledgedChanges {
    /// The mutex protects only the lists. No task awaits anything while it holds the lock.
    inner: Mutex<Inner>,
    /// Notifies tasks on all threads that a replay has ended or was interrupted, or that a session
    /// was replaced.
    ended: SharedNotify,
}

impl AcknowledgedChanges {
    fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        f(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs `f` on the list of a session. `None` means that another session has replaced this
    /// session.
    fn of<T>(
        &self,
        group: GroupId,
        session: SessionId,
        f: impl FnOnce(&mut Kept) -> T,
    ) -> Option<T> {
        self.with(|inner| inner.kept(group, session).map(f))
    }

    /// Creates the list of changes for a session that a group has opened. `start` is the start
    /// number of the group's target. Does nothing if another thread has already created the list of
    /// the session. Returns the lost changes of the former session that are not replayed yet. These
    /// changes stay lost, and the caller must report them.
    ///
    /// If the client was not evicted, the group has not ended the former session. So a target that
    /// has started again without this session was restored from an older backup, and all changes
    /// of the list are lost too.
    pub(crate) fn opened(&self, group: GroupId, session: SessionId, start: u64) -> Vec<Change> {
        let replaced = self.with(|inner| {
            if inner.kept(group, session).is_some() {
                return None;
            }
            inner.groups.insert(group, Kept { session, start, ..Kept::default() })
        });
        // A task that waits for the replay of the former session needs to wait no longer.
        self.ended.notify();
        let Some(kept) = replaced else { return Vec::new() };
        let mut lost: Vec<_> = kept.lost.into();
        lost.extend(kept.stay_lost);
        if client_of(kept.session) == client_of(session) && kept.start != start {
            lost.extend(kept.changes);
        }
        lost
    }

    /// Begins an attempt to send a request for a change. The caller then checks whether the request
    /// concerns reverted changes, and sends it with the start of the attempt.
    pub(crate) fn attempt(&self, group: GroupId, session: SessionId) -> Attempt {
        self.with(|inner| {
            let has_reverted = !inner.reverted.is_empty();
            let kept = inner.kept(group, session);
            Attempt {
                session,
                start: kept.as_ref().map_or(0, |kept| kept.start),
                next: kept.as_ref().map_or(0, |kept| kept.next()),
                is_list_full: kept.as_ref().is_some_and(|kept| kept.is_full()),
                has_reverted,
                is_replaying: kept.is_some_and(|kept| kept.is_replaying),
            }
        })
    }

    /// Adds a change that a group has acknowledged, unless another thread has compared the list
    /// since `attempt` began. The slots of this comparison show whether the change is durable or
    /// lost, so the change does not enter the list.
    pub(crate) fn acknowledged(
        &self,
        group: GroupId,
        attempt: Attempt,
        change: Change,
        now: Duration,
    ) -> Acknowledged {
        let next = self.of(group, attempt.session, |kept| {
            if kept.has_lost(&attempt, (change.slot, change.sequence)) {
                return Acknowledged::Lost;
            }
            if kept.start != attempt.start {
                return Acknowledged::Done;
            }
            kept.push(change, now);
            let must_sync = kept.is_half_full() && !kept.is_syncing;
            kept.is_syncing |= must_sync;
            if must_sync { Acknowledged::MustSync } else { Acknowledged::Done }
        });
        next.unwrap_or(Acknowledged::Done)
    }

    /// Returns whether the target has lost the change that it acknowledged in reply to `attempt`.
    /// Returns `true` only if another thread compared the changes before the caller read the reply.
    pub(crate) fn has_lost(&self, group: GroupId, attempt: Attempt, executed: (u32, u64)) -> bool {
        let has_lost = self.of(group, attempt.session, |kept| kept.has_lost(&attempt, executed));
        has_lost.unwrap_or(false)
    }

    /// Removes the changes that were acknowledged before `attempt` began. The group has synced
    /// these changes, since it has replied to a later request with the durable flag. Takes time in
    /// proportion to the removed changes.
    pub(crate) fn synced(&self, group: GroupId, attempt: Attempt) {
        let synced = self.of(group, attempt.session, |kept| kept.take_synced(attempt.next));
        // The mutex is free again, so no other thread waits while this thread frees the requests.
        drop(synced);
    }

    /// Records that a sync has ended or failed. [`Self::acknowledged`] has requested this sync.
    pub(crate) fn sync_ended(&self, group: GroupId, session: SessionId) {
        self.of(group, session, |kept| kept.is_syncing = false);
    }

    /// Compares the changes of a session with the last request of each slot in the target's store.
    /// `attempt` began before the caller requested the slots. The first comparison after the start
    /// in the reply begins a replay, and later attempts contain this start number. `None` means
    /// that the session was replaced.
    pub(crate) fn compare(
        &self,
        group: GroupId,
        attempt: Attempt,
        reply: &CompareSlotsReply,
    ) -> Option<Compared> {
        self.of(group, attempt.session, |kept| {
            // Another thread has already compared the list with the slots after this start of the
            // target, so do nothing. Changes that were acknowledged since then are missing in this
            // reply, but they are not lost. This thread also does nothing if the other thread has
            // compared the list after a newer start, before this thread has read the reply.
            if kept.is_replaying || kept.start == reply.start || kept.start != attempt.start {
                return Compared::Before;
            }
            kept.is_replaying = true;
            kept.take_lost(reply);
            Compared::Now
        })
    }

    /// Returns whether the target had executed a request before the last comparison. The caller has
    /// received no reply to the request.
    pub(crate) fn was_executed(
        &self,
        group: GroupId,
        session: SessionId,
        request: (u32, u64),
    ) -> bool {
        self.of(group, session, |kept| kept.has_executed(request)).unwrap_or(false)
    }

    // ---- the replay

    /// Returns whether a replay of the session is running.
    pub(crate) fn is_replaying(&self, group: GroupId, session: SessionId) -> bool {
        self.of(group, session, |kept| kept.is_replaying).unwrap_or(false)
    }

    /// Returns the next lost change. `None` means that no lost change is left.
    pub(crate) fn next_lost(&self, group: GroupId, session: SessionId) -> Option<NextReplay> {
        let next = self.of(group, session, |kept| {
            let lost = kept.lost.front()?;
            let request = lost.kept.as_ref().map(|it| it.replay(lost.place));
            let (sequence, mark) = (kept.replays + 1, lost.mark);
            let truncated = lost.kept.as_ref().and_then(|it| it.truncated);
            Some(NextReplay { request, sequence, mark, truncated })
        });
        next.flatten()
    }

    /// Records that the target has executed the change of [`Self::next_lost`]. If the change is not
    /// durable yet, adds it to the list of acknowledged changes again. `undurable` contains the
    /// mark that the state of the inode has for the change now, and the time of the reply. `None`
    /// means that the change is durable.
    pub(crate) fn replayed(
        &self,
        group: GroupId,
        session: SessionId,
        undurable: Option<(Option<InlineMark>, Duration)>,
    ) {
        self.of(group, session, |kept| {
            let Some(change) = kept.take_first() else { return };
            if let Some((mark, now)) = undurable {
                let (sequence, slot) = (kept.replays, REPLAY_SLOT);
                kept.push(Change { slot, sequence, mark, ..change }, now);
            }
        });
    }

    /// Records that the truncation by the change of [`Self::next_lost`] stays lost. The caller
    /// reports this loss. After another power loss, the change is replayed without this truncation.
    pub(crate) fn truncation_lost(&self, group: GroupId, session: SessionId) {
        self.of(group, session, |kept| {
            let change = kept.lost.front_mut().and_then(|it| it.kept.as_mut());
            change.into_iter().for_each(|it| it.truncated = None);
        });
    }

    /// Removes and returns the change of [`Self::next_lost`], because it stays lost.
    pub(crate) fn replay_failed(&self, group: GroupId, session: SessionId) -> Option<Change> {
        self.of(group, session, Kept::take_first).flatten()
    }

    /// Compares the changes again, because the target has started again during the replay. Returns
    /// whether the target had executed the change of [`Self::next_lost`]. `None` means that the
    /// session was replaced.
    pub(crate) fn compare_again(
        &self,
        group: GroupId,
        session: SessionId,
        reply: &CompareSlotsReply,
    ) -> Option<bool> {
        self.of(group, session, |kept| kept.start != reply.start && kept.take_lost(reply))
    }

    /// Ends the replay of a session. The caller has reported the changes that stay lost.
    pub(crate) fn replay_ended(&self, group: GroupId, session: SessionId) {
        self.of(group, session, |kept| kept.is_replaying = false);
        self.ended.notify();
    }
}

#[cfg(test)]
mod tests;
