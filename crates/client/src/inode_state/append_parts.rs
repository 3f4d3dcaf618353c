//! The appends in progress on a file. For each append, the list has the range of the file in which
//! the caller expects the appended bytes. The kernel may send the parts of one large append at the
//! same time, each with the end of the previous part as its offset. Each part must wait until the
//! previous part is appended. Otherwise the parts could end up in another order.

use crate::inode_state::InodeState;
use skep_types::{Error, ErrorCode, Result};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

const IN_PROGRESS: u8 = 0;
const DONE: u8 = 1;
const FAILED: u8 = 2;

/// The appends in progress on one file.
#[derive(Debug, Default)]
pub(super) struct AppendParts(Vec<(Range<u64>, Arc<AtomicU8>)>);

impl AppendParts {
    /// Adds an append. Returns the outcome of this append, and the outcome of an earlier append if
    /// this append must wait for it.
    fn begin(&mut self, expected: Range<u64>) -> (Arc<AtomicU8>, Option<Arc<AtomicU8>>) {
        let before = self.0.iter().find(|(range, _)| range.end == expected.start);
        let before = before.map(|(_, outcome)| Arc::clone(outcome));
        let outcome = Arc::new(AtomicU8::new(IN_PROGRESS));
        self.0.push((expected, Arc::clone(&outcome)));
        (outcome, before)
    }

    fn end(&mut self, outcome: &Arc<AtomicU8>) {
        self.0.retain(|(_, other)| !Arc::ptr_eq(other, outcome));
    }
}

/// An append in progress. If the caller drops this value before [`Self::succeed`], the append of
/// the next part fails.
#[derive(Debug)]
pub(crate) struct AppendPart {
    inode: Arc<InodeState>,
    outcome: Arc<AtomicU8>,
    before: Option<Arc<AtomicU8>>,
}

impl AppendPart {
    /// Waits until the previous part of the same large append has ended.
    ///
    /// # Errors
    /// Returns `Io` if the append of the previous part failed. The kernel then reports to the
    /// program that only the parts before the failed part were written.
    pub(crate) async fn wait_for_turn(&self) -> Result<()> {
        let Some(before) = &self.before else { return Ok(()) };
        let outcome = || Some(before.load(Ordering::Acquire)).filter(|it| *it != IN_PROGRESS);
        if self.inode.wait_until(outcome).await == FAILED {
            let text = format!(
                "cannot append to file {}: the write has several parts, and an earlier part failed",
                self.inode.id
            );
            return Err(Error::new(ErrorCode::Io, text));
        }
        Ok(())
    }

    /// Records that the bytes of this append are in the file.
    pub(crate) fn succeed(&self) {
        self.outcome.store(DONE, Ordering::Release);
        self.inode.wake_waiting();
    }
}

impl Drop for AppendPart {
    fn drop(&mut self) {
        let failed =
            self.outcome.compare_exchange(IN_PROGRESS, FAILED, Ordering::AcqRel, Ordering::Acquire);
        self.inode.end_with(|parts| {
            parts.appends.end(&self.outcome);
            failed.is_ok()
        });
    }
}

impl InodeState {
    /// Begins an append whose caller expects that the bytes go to the range `expected`.
    pub(crate) fn begin_append(self: &Arc<Self>, expected: Range<u64>) -> AppendPart {
        let (outcome, before) = self.with(|parts| parts.appends.begin(expected));
        AppendPart { inode: Arc::clone(self), outcome, before }
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
        let end = |part: AppendPart| part.succeed();
        let wait = async |state: &Arc<InodeState>| {
            let next = state.begin_append(10..20);
            next.wait_for_turn().await.unwrap();
            next.succeed();
        };
        check_wake_ups(&InodeState::new(InodeId::new(7)), begin, end, wait);
    }

    #[test]
    fn failed_part_of_an_append_wakes_the_next_part() {
        let begin = |state: &Arc<InodeState>| state.begin_append(0..10);
        let wait = async |state: &Arc<InodeState>| {
            let next = state.begin_append(10..20);
            // If the earlier part ended before this one began, this part need not wait.
            let has_earlier = next.before.is_some();
            assert_eq!(next.wait_for_turn().await.is_err(), has_earlier);
        };
        check_wake_ups(&InodeState::new(InodeId::new(7)), begin, drop, wait);
    }
}
