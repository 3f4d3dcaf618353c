//! Starts of the simulated target after a power loss, and the comparison of slots that follows.

use super::{Answer, FakeMetadata, code};
use skep_types::{ErrorCode, Result, SessionId};
use skep_wire::metadata::{CompareSlotsReply, SlotSequence};

impl FakeMetadata {
    pub(super) fn compare_slots(&self, session: SessionId) -> Result<Answer> {
        let Some(session) = self.sessions.get(&session) else {
            return code(ErrorCode::StaleSession);
        };
        let slots = session.slots.iter();
        let slots = slots.map(|(slot, (sequence, _))| (*slot, *sequence));
        let slots = slots.map(|(slot, sequence)| SlotSequence { slot, sequence }).collect();
        Ok(Answer::of(&CompareSlotsReply { start: self.start, slots }))
    }

    /// Simulates a power loss, after which the target starts again with the state `before`.
    pub(crate) fn lose_power(&mut self, before: &Self) {
        let start = self.start + 1;
        *self = Self { start, ..before.clone() };
    }
}
