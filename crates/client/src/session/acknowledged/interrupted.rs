//! Interrupted replays: the thread of such a replay has ended, and another thread must continue the
//! replay. An unmount ends the other threads of the mount before it makes the changes durable.
//!
//! An interrupted replay still counts as running, so the mount sends no other change of the session
//! before the end of the replay. The next replay sends the first lost change again with the same
//! sequence, so the target executes it once. No I/O.

use super::{AcknowledgedChanges, Change};
use skep_types::{GroupId, SessionId};

impl AcknowledgedChanges {
    /// Records that the thread of a replay has ended, but not the replay itself. `stay_lost` are
    /// the changes that the replay has skipped, or that the target has refused to repeat.
    pub(crate) fn replay_interrupted(
        &self,
        group: GroupId,
        session: SessionId,
        stay_lost: Vec<Change>,
    ) {
        self.of(group, session, |kept| {
            kept.is_interrupted = true;
            kept.stay_lost.extend(stay_lost);
        });
        self.ended.notify();
    }

    /// Returns whether the replay of the session was interrupted, and no thread continues it yet.
    fn is_interrupted(&self, group: GroupId, session: SessionId) -> bool {
        self.of(group, session, |kept| kept.is_interrupted).unwrap_or(false)
    }

    /// Waits until no replay of the session is running, or the replay was interrupted. Cancel-safe.
    pub(crate) async fn await_replay(&self, group: GroupId, session: SessionId) {
        let is_running =
            || self.is_replaying(group, session) && !self.is_interrupted(group, session);
        self.ended.wait_until(|| (!is_running()).then_some(())).await;
    }

    /// Takes over an interrupted replay. Returns the changes of [`Self::replay_interrupted`], which
    /// the caller must report after the replay. `None` means that no replay of the session was
    /// interrupted, or that another thread has taken it over.
    pub(crate) fn resume_replay(&self, group: GroupId, session: SessionId) -> Option<Vec<Change>> {
        let resumed = self.of(group, session, |kept| {
            let was_interrupted = std::mem::take(&mut kept.is_interrupted);
            was_interrupted.then(|| std::mem::take(&mut kept.stay_lost))
        });
        resumed.flatten()
    }
}
