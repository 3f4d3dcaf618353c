//! The appends in progress on a file. For each append, the list has the range of the file in which
//! the caller expects the appended bytes.
//!
//! Each append waits until all earlier appends of this mount have ended. There are two reasons:
//! - The kernel may send the parts of one large append at the same time, each with the end of the
//!   previous part as its offset. Without the wait, the parts could end up in another order.
//! - An append of a killed program continues, although the kernel lets the next append begin.
//!   Without the wait, both would go to the same offset, and storage could execute them in any
//!   order.
//!
//! The list also has other changes of bytes in progress that must end before later appends. These
//! are changes of files that programs of this mount may have locked (`data::locked`), and the
//! clearing of bytes beyond the end after a failed operation. The other changes themselves do not
//! wait for appends in this module.
//!
//! A change is *orphaned* if its caller has dropped the future before the end of the change.

use crate::inode_state::InodeState;
use skep_types::{Error, ErrorCode, Result};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

const IN_PROGRESS: u8 = 0;
const DONE: u8 = 1;
const FAILED: u8 = 2;
/// The change is in progress, and its caller has dropped the future.
const ORPHANED: u8 = 3;

/// A range that follows no append, and that no append follows.
const NO_RANGE: Range<u64> = u64::MAX - 1..u64::MAX;

/// The appends in progress on one file, in the order in which they began.
#[derive(Debug, Default)]
pub(super) struct AppendParts(Vec<(Range<u64>, Arc<AtomicU8>)>);

impl AppendParts {
    /// Adds an append. Returns the outcome of this append, and the outcome of an earlier append if
    /// both are consecutive parts of one large append.
    fn begin(&mut self, expected: Range<u64>) -> (Arc<AtomicU8>, Option<Arc<AtomicU8>>) {
        let before = self.0.iter().find(|(range, _)| range.end == expected.start);
        let before = before.map(|(_, outcome)| Arc::clone(outcome));
        let outcome = Arc::new(AtomicU8::new(IN_PROGRESS));
        self.0.push((expected, Arc::clone(&outcome)));
        (outcome, before)
    }

    /// Whether all appends have ended that began before the append with this outcome.
    fn is_first(&self, outcome: &Arc<AtomicU8>) -> bool {
        self.0.first().is_some_and(|(_, first)| Arc::ptr_eq(first, outcome))
    }

    /// Removes an append. Returns whether a later append may wait for its end.
    fn end(&mut self, outcome: &Arc<AtomicU8>) -> bool {
        self.0.retain(|(_, other)| !Arc::ptr_eq(other, outcome));
        !self.0.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn has_orphaned(&self) -> bool {
        self.0.iter().any(|(_, outcome)| outcome.load(Ordering::Acquire) == ORPHANED)
    }
}

/// The caller of a change. When this value is dropped, a change that is still in progress becomes
/// orphaned.
#[derive(Debug)]
#[must_use = "the change is orphaned when this value is dropped"]
pub(crate) struct ChangeCaller(Arc<AtomicU8>);

impl Drop for ChangeCaller {
    fn drop(&mut self) {
        // If the change has ended, this exchange fails, and the outcome stays.
        let (from, to) = (IN_PROGRESS, ORPHANED);
        let _ended = self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// An append in progress. If the caller drops this value before [`Self::complete`], the append has
/// failed.
///
/// If the caller drops the future of [`Self::complete`], the append does not end. The end of a
/// thread's event loop drops all futures, but a request may still be on its way. The unmount that
/// follows must then not close the sessions.
#[derive(Debug)]
#[must_use = "an append must end when all servers have replied"]
pub(crate) struct AppendPart {
    inode: Arc<InodeState>,
    outcome: Arc<AtomicU8>,
    before: Option<Arc<AtomicU8>>,
    has_requests: bool,
}

impl AppendPart {
    /// Returns the value that the caller of the change keeps until the end of the change.
    pub(crate) fn caller(&self) -> ChangeCaller {
        ChangeCaller(Arc::clone(&self.outcome))
    }

    /// Waits until all earlier appends of this mount have ended.
    ///
    /// # Errors
    /// Returns `Io` if this append is the next part of a large append, and the append of the
    /// previous part failed. The kernel then reports to the program that only the parts before the
    /// failed part were written.
    pub(crate) async fn wait_for_turn(&self) -> Result<()> {
        let is_first = || self.inode.with(|parts| parts.appends.is_first(&self.outcome));
        self.inode.wait_until(|| is_first().then_some(())).await;
        let has_failed = |before: &Arc<AtomicU8>| before.load(Ordering::Acquire) == FAILED;
        if self.before.as_ref().is_some_and(has_failed) {
            let text = format!(
                "cannot append to file {}: the write has several parts, and an earlier part failed",
                self.inode.id
            );
            return Err(Error::new(ErrorCode::Io, text));
        }
        Ok(())
    }

    /// Runs `requests`, which sends the requests of the append, and ends the append after all
    /// servers have replied.
    pub(crate) async fn complete<T>(
        mut self,
        requests: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.has_requests = true;
        let result = requests.await;
        self.end(result.is_ok());
        result
    }

    /// Ends the append after all its requests have ended. `is_done` means that the bytes of the
    /// append are in the file.
    pub(crate) fn end(self, is_done: bool) {
        self.outcome.store(if is_done { DONE } else { FAILED }, Ordering::Release);
    }
}

impl Drop for AppendPart {
    fn drop(&mut self) {
        if matches!(self.outcome.load(Ordering::Acquire), IN_PROGRESS | ORPHANED) {
            if self.has_requests {
                return;
            }
            self.outcome.store(FAILED, Ordering::Release);
        }
        self.inode.end_with(|parts| {
            let has_later = parts.appends.end(&self.outcome);
            // The close of the last handle may also wait for this end (`has_abandoned_writes`).
            has_later || parts.handles.is_being_closed()
        });
    }
}

impl InodeState {
    /// Begins an append whose caller expects that the bytes go to the range `expected`.
    pub(crate) fn begin_append(self: &Arc<Self>, expected: Range<u64>) -> AppendPart {
        let (outcome, before) = self.with(|parts| parts.appends.begin(expected));
        AppendPart { inode: Arc::clone(self), outcome, before, has_requests: false }
    }

    /// Returns whether an append of this mount is in progress.
    pub(crate) fn is_appending(&self) -> bool {
        self.with(|parts| !parts.appends.is_empty())
    }

    /// Begins a change of bytes that does not wait for appends. Tasks that later wait for appends
    /// wait for the end of this change too.
    pub(crate) fn begin_awaited_change(self: &Arc<Self>) -> AppendPart {
        self.begin_append(NO_RANGE)
    }

    /// If an orphaned change is in progress, waits until all changes in the list have ended that
    /// began before this call. Cancel-safe.
    pub(crate) async fn await_orphaned_changes(self: &Arc<Self>) {
        if self.with(|parts| parts.appends.has_orphaned()) {
            self.await_appends().await;
        }
    }

    /// Waits until all appends of this mount have ended that began before this call. Only an append
    /// of a killed program can be in progress during most other operations, because the kernel
    /// locks the file during an append. Cancel-safe.
    pub(crate) async fn await_appends(self: &Arc<Self>) {
        if !self.is_appending() {
            return;
        }
        let turn = self.begin_append(NO_RANGE);
        // An error would concern the previous part, which does not exist.
        let _no_part_before = turn.wait_for_turn().await;
        turn.end(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wake_ups::check_wake_ups;
    use skep_types::InodeId;

    #[test]
    fn part_of_an_append_waits_for_the_part_of_another_thread() {
        let begin = |state: &Arc<InodeState>| state.begin_append(0..10);
        let end = |part: AppendPart| part.end(true);
        let wait = async |state: &Arc<InodeState>| {
            let next = state.begin_append(10..20);
            next.wait_for_turn().await.unwrap();
            next.end(true);
        };
        check_wake_ups(&InodeState::new(InodeId::new(7)), begin, end, wait);
    }

    /// The kernel expects that both appends begin at the same offset, since the program of the
    /// first append was killed.
    #[test]
    fn append_waits_for_an_earlier_append_at_the_same_offset() {
        let begin = |state: &Arc<InodeState>| state.begin_append(0..10);
        let wait = async |state: &Arc<InodeState>| {
            let next = state.begin_append(0..20);
            next.wait_for_turn().await.unwrap();
            assert_eq!(state.with(|parts| parts.appends.0.len()), 1);
            next.end(true);
        };
        check_wake_ups(&InodeState::new(InodeId::new(7)), begin, drop, wait);
    }

    #[test]
    fn end_of_an_append_wakes_tasks_that_wait_for_appends() {
        let begin = |state: &Arc<InodeState>| state.begin_append(0..10);
        let wait = async |state: &Arc<InodeState>| state.await_appends().await;
        check_wake_ups(&InodeState::new(InodeId::new(7)), begin, drop, wait);
    }

    #[test]
    fn change_is_orphaned_only_while_it_is_in_progress() {
        let state = InodeState::new(InodeId::new(7));
        let is_orphaned = || state.with(|parts| parts.appends.has_orphaned());
        let part = state.begin_append(0..10);
        let caller = part.caller();
        assert!(!is_orphaned());
        drop(caller);
        assert!(is_orphaned() && state.is_appending());
        drop(part);
        assert!(!state.is_appending(), "the change has sent no request");
        let part = state.begin_append(0..10);
        let caller = part.caller();
        let outcome = Arc::clone(&part.outcome);
        part.end(true);
        drop(caller);
        assert_eq!(outcome.load(Ordering::Acquire), DONE);
    }

    #[test]
    fn failed_part_of_an_append_wakes_the_next_part() {
        let begin = |state: &Arc<InodeState>| state.begin_append(0..10);
        let wait = async |state: &Arc<InodeState>| {
            let next = state.begin_append(10..20);
            // If the earlier part ended before this part began, this part need not wait.
            let has_earlier = next.before.is_some();
            assert_eq!(next.wait_for_turn().await.is_err(), has_earlier);
        };
        check_wake_ups(&InodeState::new(InodeId::new(7)), begin, drop, wait);
    }
}
