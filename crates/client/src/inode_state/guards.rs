//! Guards of operations in progress: writes, truncations, and operations that are allowed only
//! while no other client uses the file. An operation ends when its guard is dropped.
//!
//! # Order of guards
//! An operation that has a guard may wait only for a guard further down, or for servers:
//!
//! | guard or turn | taken by | waits for |
//! |---|---|---|
//! | turn of an append (`append_parts`) | `data::write::append` | the appends before it |
//! | | `InodeState::await_appends` (writes, unlocks) | the appends before it |
//! | | `data::locked::drive_change` (locked files) | does not wait, and has a [`WriteGuard`] |
//! | | `data::write::clear_if_alone` | does not wait, and has a [`WriteGuard`] |
//! | append lock at metadata | `data::append::append_under_lock` | appends of other mounts |
//! | [`TruncationClaim`] | `attributes::stat::claim_truncation` | the writes in progress |
//! | | `data::move_inline::move_inline` | does not wait to get it; then the writes in progress |
//! | [`MoveGuard`] | `data::move_inline::move_inline`, with the claim | servers |
//! | [`WriteGuard`] | `data::write::begin_write` | the claim |
//! | [`AloneGuard`] | an operation with a [`WriteGuard`] or the claim | never waits |
//!
//! A close of the file waits for the [`MoveGuard`] before it sends a request, and has none of these
//! guards. The close of the last handle also waits for each [`WriteGuard`]. No operation with one
//! of these guards waits for a close.
//!
//! The guards of the times (`times_report`) are not part of this order: no operation with a guard
//! of the table waits for them. A change of the times waits only for a report to metadata, and the
//! report of a `stat` only for changes of the times and closes.
//!
//! Metadata delays two kinds of requests until a client has acknowledged that a file becomes
//! shared: an open, and a truncation by a client that does not have the file open. The
//! acknowledgement (`sharing::follow::begin_to_share`) waits for each [`AloneGuard`] of the file.
//! So no operation with an [`AloneGuard`] may wait for the claim: an open that truncates the file
//! has the claim, and may wait for the acknowledgement of its own mount. An operation with an
//! [`AloneGuard`] may send other requests to metadata. A request may wait for the renewal of the
//! session, and the renewal waits for opens of files (`session::renewal::try_renewal`). The renewal
//! opens files for writing first, so that none of its opens waits for an acknowledgement of its own
//! mount while an [`AloneGuard`] is held.

use crate::inode_state::{InodeState, Parts, SizeReport};
use skep_types::{Attributes, ChunkFileKey, GroupId, HostIncarnation};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The state of an inode when the client sends a write request to storage.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestStart {
    /// Sequence number of this mount's last write to the file.
    pub(crate) last_write: u64,
    pub(crate) truncate_generation: u64,
}

impl InodeState {
    /// Changes the state, and then wakes the tasks that wait for the end of an operation on the
    /// inode, if `f` returns `true`. Returns the result of `f`. The woken tasks check the state
    /// again, and some of them may have to wait further.
    pub(super) fn end_with(&self, f: impl FnOnce(&mut Parts) -> bool) -> bool {
        let has_ended = self.with(f);
        if has_ended {
            self.ended.notify();
        }
        has_ended
    }

    /// Wakes all tasks that wait in [`Self::wait_until`], for a change outside of this state.
    pub(crate) fn wake_waiting(&self) {
        self.ended.notify();
    }

    /// Waits until `check` returns a value, and returns that value. Calls `check` immediately, and
    /// then whenever an operation on the inode has ended, also on another thread. Cancel-safe.
    pub(crate) async fn wait_until<T>(&self, check: impl FnMut() -> Option<T>) -> T {
        self.ended.wait_until(check).await
    }

    /// Begins a write. Returns `None` while a truncation is claimed.
    pub fn try_write(self: &Arc<Self>) -> Option<WriteGuard> {
        let is_begun = self.with(|parts| {
            let is_begun = parts.guards.try_write();
            if is_begun {
                parts.kernel.note_write();
            }
            is_begun
        });
        is_begun.then(|| WriteGuard(Arc::clone(self)))
    }

    /// Claims the inode for a truncation. Returns `None` while another truncation is claimed. The
    /// truncation may begin as soon as [`TruncationClaim::is_alone`] returns `true`.
    pub fn try_truncate(self: &Arc<Self>) -> Option<TruncationClaim> {
        self.with(|parts| parts.guards.try_truncate()).then(|| TruncationClaim(Arc::clone(self)))
    }

    /// Begins an operation that is allowed only while no other client uses the file: an append at
    /// the recorded end of the file, or the removal of bytes beyond that end. Returns `None` if the
    /// file is shared.
    pub(crate) fn try_alone(self: &Arc<Self>) -> Option<AloneGuard> {
        let is_begun = self.with(|parts| {
            let is_alone = !parts.handles.is_shared();
            if is_alone {
                parts.guards.begin_alone();
            }
            is_alone
        });
        is_begun.then(|| AloneGuard(Arc::clone(self)))
    }

    /// Returns the number of times that a write or a truncation of this mount has begun or ended.
    pub fn data_changes(&self) -> u64 {
        self.with(|parts| parts.guards.changes())
    }

    /// Returns whether writes or appends are in progress although all handles of the file are being
    /// closed. The callers of these writes and appends have dropped the futures.
    pub(crate) fn has_abandoned_writes(&self) -> bool {
        self.with(|parts| {
            let is_writing = parts.guards.has_writers() || !parts.appends.is_empty();
            is_writing && parts.handles.is_being_closed()
        })
    }

    /// Returns whether a move of the inline bytes to storage is in progress.
    pub(crate) fn is_moving_inline(&self) -> bool {
        self.with(|parts| parts.guards.is_moving())
    }

    /// Returns whether operations are in progress that are allowed only while no other client uses
    /// the file.
    pub(crate) fn is_used_alone(&self) -> bool {
        self.with(|parts| parts.guards.is_used_alone())
    }

    // ---- the times

    /// Plans a report of the file's times. Returns `false` if a report is planned already.
    pub(crate) fn plan_times_report(&self) -> bool {
        self.with(|parts| parts.times.plan())
    }

    /// Begins the planned report. Returns `None` while a program changes the times or closes the
    /// file.
    pub(crate) fn begin_times_report(self: &Arc<Self>) -> Option<TimesReportGuard> {
        self.with(|parts| parts.times.begin()).then(|| TimesReportGuard(Arc::clone(self)))
    }

    /// Returns whether metadata has acknowledged a report of all writes up to the sequence number
    /// `upto`.
    pub(crate) fn has_reported(&self, upto: u64) -> bool {
        self.with(|parts| parts.size.has_reported(upto))
    }

    /// Begins a report that no task has planned. Returns `None` while a program changes the times
    /// or closes the file.
    pub(crate) fn try_report_times(self: &Arc<Self>) -> Option<TimesReportGuard> {
        self.with(|parts| parts.times.try_begin()).then(|| TimesReportGuard(Arc::clone(self)))
    }

    /// Begins a change of the times, or a close. No report of the times begins until the caller
    /// drops the guard. Before the caller sends a request, it must wait until
    /// [`Self::is_reporting_times`] returns `false`.
    pub(crate) fn change_times(self: &Arc<Self>) -> TimesChangeGuard {
        self.with(|parts| parts.times.begin_change());
        TimesChangeGuard(Arc::clone(self))
    }

    /// Returns whether a report of the times is in progress.
    pub(crate) fn is_reporting_times(&self) -> bool {
        self.with(|parts| parts.times.is_sending())
    }

    /// Records that a program releases a lock of the file.
    pub(crate) fn note_release(&self) {
        self.with(|parts| parts.times.note_release());
    }

    /// Returns whether a program has released a lock of the file since the last `fsync`. The caller
    /// begins an `fsync`.
    pub(crate) fn take_release(&self) -> bool {
        self.with(|parts| parts.times.take_release())
    }
}

/// An operation in progress that is allowed only while no other client uses the file. If metadata
/// notifies this mount that the file becomes shared, the mount acknowledges the notification only
/// after all these guards are dropped.
#[derive(Debug)]
pub(crate) struct AloneGuard(Arc<InodeState>);

impl Drop for AloneGuard {
    fn drop(&mut self) {
        self.0.end_with(|parts| parts.guards.end_alone());
    }
}

/// A write in progress. Truncations of this mount wait until this guard is dropped.
#[derive(Debug)]
pub struct WriteGuard(Arc<InodeState>);

impl WriteGuard {
    /// Begins another write while this write is in progress. The new guard may outlive this guard.
    pub(crate) fn begin_another(&self) -> Self {
        self.0.with(|parts| parts.guards.begin_another_write());
        Self(Arc::clone(&self.0))
    }

    /// Records that a storage host acknowledged a piece of the write. `incarnation` is the
    /// incarnation of the host that acknowledged the piece.
    pub fn piece_written(&self, key: ChunkFileKey, group: GroupId, incarnation: HostIncarnation) {
        self.0.with(|parts| {
            let number = parts.size.count_write();
            parts.unsynced.chunk_written(key, group, incarnation, number);
        });
    }

    /// Records that a storage host with the incarnation `incarnation` acknowledged a change after
    /// which the chunk file may still not exist, such as the clearing of a range.
    pub(crate) fn piece_changed(
        &self,
        key: ChunkFileKey,
        group: GroupId,
        incarnation: HostIncarnation,
    ) {
        self.0.with(|parts| {
            let number = parts.size.count_write();
            parts.unsynced.chunk_changed(key, group, incarnation, number);
        });
    }

    /// Records that a storage host with the incarnation `incarnation` synced the chunk file and
    /// then acknowledged a piece. `start` is the state of the inode when the client sent the
    /// request.
    pub(crate) fn durable_piece_written(
        &self,
        key: ChunkFileKey,
        group: GroupId,
        incarnation: HostIncarnation,
        start: RequestStart,
    ) {
        let RequestStart { last_write, truncate_generation } = start;
        self.0.with(|parts| {
            let number = parts.size.count_write();
            parts.unsynced.durable_chunk_written(key, group, incarnation, number, last_write);
        });
        self.0.chunk_exists(key, truncate_generation);
    }

    /// Records that metadata acknowledged a write of inline bytes only. So metadata already has the
    /// new size and times.
    pub fn note_inline_write(&self, end: u64, attributes: &Attributes, now: Duration) {
        self.0.with(|parts| parts.size.note_inline_write(end, attributes, now));
    }

    /// Records that servers have acknowledged all pieces of a write, so the file ends at or beyond
    /// the end of `range`. `truncate_generation` is the generation when the write began. If the
    /// file is shared, records nothing and returns `false`, because metadata must first confirm the
    /// write.
    ///
    /// The caller must not call this function if a piece failed, since the size then stays
    /// unchanged.
    pub fn note_write_unless_shared(&self, range: &Range<u64>, truncate_generation: u64) -> bool {
        self.0.with(|parts| {
            let is_alone = !parts.handles.is_shared();
            if is_alone {
                parts.size.note_write(range, truncate_generation);
            }
            is_alone
        })
    }

    /// Returns a report of a write of `range` to a shared file and of all earlier unreported
    /// writes.
    pub fn report_with(&self, range: &Range<u64>) -> SizeReport {
        self.0.with(|parts| {
            let report = parts.size.report_with(range);
            report.with_end_of_inline(parts.moves.ending)
        })
    }

    /// Records that metadata confirmed a write within the size of a shared file. Metadata does not
    /// have the new times yet.
    pub fn note_confirmed_write(&self, end: u64) {
        self.0.with(|parts| parts.size.note_confirmed_write(end));
    }

    /// Records that chunk files may reach up to the offset `end`, even if the size of the file is
    /// smaller than `end`.
    pub fn note_reach(&self, end: u64) {
        self.0.with(|parts| parts.size.note_reach(end));
    }

    /// Records that a part of the file may now be a hole. The size does not change.
    pub(crate) fn note_holes(&self) {
        self.0.with(|parts| parts.size.note_holes());
    }
}

impl Drop for WriteGuard {
    fn drop(&mut self) {
        self.0.end_with(|parts| {
            let is_claimed = parts.guards.end_write();
            // The close of the last handle may also wait for this end (`has_abandoned_writes`).
            is_claimed || (!parts.guards.has_writers() && parts.handles.is_being_closed())
        });
    }
}

/// A claim for a truncation, or for the move of the inline bytes to storage. Writes and truncations
/// of this mount wait until this claim is dropped.
#[derive(Debug)]
pub struct TruncationClaim(Arc<InodeState>);

impl TruncationClaim {
    /// Returns whether all writes that began before the claim have ended.
    pub fn is_alone(&self) -> bool {
        self.0.with(|parts| !parts.guards.has_writers())
    }

    /// Waits until all writes that began before the claim have ended.
    pub(crate) async fn wait_until_alone(&self) {
        self.0.wait_until(|| self.is_alone().then_some(())).await;
    }

    /// Begins a move of the inline bytes. The move must end before the claim is dropped. Returns
    /// `None` if an earlier move of these bytes has not ended, because the event loop of its thread
    /// ended first.
    pub(crate) fn begin_move(&self) -> Option<MoveGuard> {
        let is_begun = self.0.with(|parts| parts.guards.begin_move());
        is_begun.then(|| MoveGuard(Arc::clone(&self.0)))
    }

    /// Records that a storage host with the incarnation `incarnation` synced the chunk file and
    /// then acknowledged a copy of the inline bytes. `start` is the state of the inode when the
    /// client sent the request.
    pub(crate) fn inline_copied(
        &self,
        key: ChunkFileKey,
        group: GroupId,
        incarnation: HostIncarnation,
        start: RequestStart,
    ) {
        self.0.with(|parts| {
            // Copying the inline bytes to storage does not change the contents of the file, so the
            // client need not report this write to metadata.
            let number = parts.size.count_reported();
            let before = start.last_write;
            parts.unsynced.durable_chunk_written(key, group, incarnation, number, before);
        });
        self.0.chunk_exists(key, start.truncate_generation);
    }

    /// Records that the truncation is complete, so that earlier writes of this mount no longer
    /// affect the size.
    pub fn done(&self, attributes: &Attributes, now: Duration) {
        self.0.with(|parts| parts.size.truncated(attributes, now));
    }
}

impl Drop for TruncationClaim {
    fn drop(&mut self) {
        self.0.end_with(|parts| parts.guards.end_truncation());
    }
}

/// A move of the inline bytes to storage in progress. The mount sends no close of the file to
/// metadata before [`Self::end`]. So no other client can use the file while a copy of the inline
/// bytes is on its way to storage, unless this client was evicted before.
///
/// A drop does not end the move. The end of a thread's event loop drops all futures, but a copy may
/// still be on its way. The unmount that follows must then not close the sessions.
#[derive(Debug)]
#[must_use = "a move must end when storage has replied to the copy"]
pub(crate) struct MoveGuard(Arc<InodeState>);

impl MoveGuard {
    /// Ends the move. The caller calls this function after storage has replied to the copy, or if
    /// the client has sent no copy.
    pub(crate) fn end(self) {
        self.0.end_with(|parts| parts.guards.end_move());
    }
}

/// A report of a file's times that a task is sending.
#[derive(Debug)]
pub(crate) struct TimesReportGuard(Arc<InodeState>);

impl Drop for TimesReportGuard {
    fn drop(&mut self) {
        self.0.end_with(|parts| parts.times.end());
    }
}

/// A change of a file's times by a program, or a close of the file, in progress.
#[derive(Debug)]
pub(crate) struct TimesChangeGuard(Arc<InodeState>);

impl Drop for TimesChangeGuard {
    fn drop(&mut self) {
        self.0.end_with(|parts| {
            parts.times.end_change();
            // A task may wait for the end of the change, or only for its report of the writes.
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wake_ups::check_wake_ups;
    use skep_types::InodeId;

    fn state() -> Arc<InodeState> {
        InodeState::new(InodeId::new(7))
    }

    #[test]
    fn truncation_waits_for_a_write_of_another_thread() {
        let begin = |state: &Arc<InodeState>| state.try_write().unwrap();
        let wait = async |state: &Arc<InodeState>| {
            let claim = state.wait_until(|| state.try_truncate()).await;
            claim.wait_until_alone().await;
        };
        check_wake_ups(&state(), begin, drop, wait);
    }

    #[test]
    fn write_waits_for_a_truncation_of_another_thread() {
        let begin = |state: &Arc<InodeState>| state.try_truncate().unwrap();
        let wait = async |state: &Arc<InodeState>| {
            drop(state.wait_until(|| state.try_write()).await);
        };
        check_wake_ups(&state(), begin, drop, wait);
    }

    #[test]
    fn close_of_the_last_handle_waits_for_a_write_of_another_thread() {
        let state = state();
        state.opened();
        state.closing(false, false);
        let begin = |state: &Arc<InodeState>| state.try_write().unwrap();
        let wait = async |state: &Arc<InodeState>| {
            state.wait_until(|| (!state.has_abandoned_writes()).then_some(())).await;
        };
        check_wake_ups(&state, begin, drop, wait);
    }

    #[test]
    fn end_of_exclusive_use_of_a_file_wakes_waiting_tasks() {
        let begin = |state: &Arc<InodeState>| state.try_alone().unwrap();
        let wait = async |state: &Arc<InodeState>| {
            state.wait_until(|| (!state.is_used_alone()).then_some(())).await;
        };
        check_wake_ups(&state(), begin, drop, wait);
    }

    #[test]
    fn end_of_a_move_of_inline_bytes_wakes_tasks() {
        let begin = |state: &Arc<InodeState>| {
            let claim = state.try_truncate().unwrap();
            let moving = claim.begin_move().unwrap();
            (moving, claim)
        };
        let end = |(moving, claim): (MoveGuard, TruncationClaim)| {
            moving.end();
            drop(claim);
        };
        let wait = async |state: &Arc<InodeState>| {
            state.wait_until(|| (!state.is_moving_inline()).then_some(())).await;
        };
        check_wake_ups(&state(), begin, end, wait);
    }

    #[test]
    fn end_of_a_report_of_times_wakes_a_change_of_the_times() {
        let begin = |state: &Arc<InodeState>| state.begin_times_report().unwrap();
        let wait = async |state: &Arc<InodeState>| {
            let _changing = state.change_times();
            state.wait_until(|| (!state.is_reporting_times()).then_some(())).await;
        };
        check_wake_ups(&state(), begin, drop, wait);
    }

    #[test]
    fn end_of_a_change_of_the_times_wakes_a_report_of_times() {
        let begin = |state: &Arc<InodeState>| state.change_times();
        let wait = async |state: &Arc<InodeState>| {
            drop(state.wait_until(|| state.try_report_times()).await);
        };
        check_wake_ups(&state(), begin, drop, wait);
    }

    #[test]
    fn end_of_the_last_close_of_a_file_wakes_tasks() {
        let begin = |state: &Arc<InodeState>| {
            state.opened();
            state.closing(false, false);
            Arc::clone(state)
        };
        let end = |state: Arc<InodeState>| assert!(state.closed(), "the file has one handle");
        let wait = async |state: &Arc<InodeState>| {
            state.wait_until(|| (!state.is_being_closed()).then_some(())).await;
        };
        check_wake_ups(&state(), begin, end, wait);
    }
}
