//! Starts of the simulated target after a power loss, and the comparison of slots and opens and the
//! replay that follow.

use super::{Answer, FakeMetadata, code};
use skep_types::codec::Codec;
use skep_types::{ErrorCode, Lsn, Result, SessionId};
use skep_wire::frame::Header;
use skep_wire::inline::InlineMark;
use skep_wire::limits::REPLAY_SLOT;
use skep_wire::metadata::{
    CompareOpens, CompareOpensReply, CompareSlotsReply, OpenedFile, Replay, ReplayReply,
    SlotSequence,
};

impl FakeMetadata {
    pub(super) fn compare_slots(&self, session: SessionId) -> Result<Answer> {
        let Some(session) = self.sessions.open.get(&session) else {
            return code(ErrorCode::StaleSession);
        };
        let slots = session.slots.iter();
        let slots = slots.map(|(slot, (sequence, _))| (*slot, *sequence));
        let slots = slots.map(|(slot, sequence)| SlotSequence { slot, sequence }).collect();
        Ok(Answer::of(&CompareSlotsReply { start: self.start, slots }))
    }

    pub(super) fn compare_opens(
        &self,
        session: SessionId,
        request: &CompareOpens,
    ) -> CompareOpensReply {
        let count = |file: &OpenedFile| {
            let inode = self.inodes.get(&file.inode);
            let opens = inode.and_then(|inode| inode.opens.get(&session));
            opens.map_or(0, |count| *count as u32)
        };
        CompareOpensReply { counts: request.files.iter().map(count).collect() }
    }

    /// Refuses a change or a sync if its start number is not the current one. Accepts a sync
    /// without a start number.
    pub(super) fn check_start(&self, header: &Header, modifies: bool) -> Result<()> {
        let is_checked = modifies || header.is_durable() && header.start() != 0;
        let is_stale = is_checked && header.start() != self.start;
        if is_stale { code(ErrorCode::StaleStart) } else { Ok(()) }
    }

    /// Executes a lost change again, unless the target replays no more changes.
    pub(super) fn replay(&mut self, header: &Header, replay: &Replay) -> Result<Answer> {
        assert_eq!(header.slot, REPLAY_SLOT);
        if self.behaviour.replays == 0 {
            return code(ErrorCode::Stale);
        }
        self.behaviour.replays -= 1;
        let file = self.inodes.get_mut(&replay.inode).map(|it| &mut it.attributes);
        if let Some(file) = file.filter(|it| it.size == 0) {
            // The lost truncation of an empty file had removed no bytes. Restore its generation,
            // which later changes contain.
            file.truncate_generation = file.truncate_generation.max(replay.truncate_generation);
        }
        let first = Header { message: replay.message, ..header.clone() };
        let reply = ReplayReply { reply: self.execute(&first, &replay.request.0)?.into() };
        self.executed.push((replay.message, false));
        if let Some(session) = self.sessions.open.get_mut(&header.session) {
            session.slots.insert(REPLAY_SLOT, (header.sequence, Ok(reply.to_bytes())));
        }
        Ok(Answer::of(&reply))
    }

    /// Removes all opens but keeps the sessions, like a power loss that has reverted the opens.
    pub(crate) fn lose_opens(&mut self) {
        self.inodes.values_mut().for_each(|inode| inode.opens.clear());
        self.start += 1;
    }

    /// Simulates a power loss, after which the target starts again with the state `before`.
    pub(crate) fn lose_power(&mut self, before: &Self) {
        let start = self.start + 1;
        let mut starts = std::mem::take(&mut self.starts);
        starts.push((start, before.last_record + 1));
        *self = Self { start, starts, ..before.clone() };
    }

    /// Simulates a power loss that has reverted the last change of inline bytes. The client has not
    /// noticed the power loss yet, so requests with the number of the earlier start still succeed.
    pub(crate) fn lose_last_record(&mut self) {
        self.starts.push((self.newest_start() + 1, self.last_record));
        self.last_record -= 1;
    }

    fn newest_start(&self) -> u64 {
        self.starts.last().map_or(self.start, |(number, _)| self.start.max(*number))
    }

    /// Returns the position of a change of inline bytes that the target executes now.
    pub(super) fn next_mark(&mut self) -> InlineMark {
        self.last_record += 1;
        InlineMark { start: self.newest_start(), record: Lsn::new(self.last_record) }
    }

    /// Whether a power loss has reverted the change at this position.
    pub(super) fn is_lost(&self, mark: &InlineMark) -> bool {
        let has_reverted =
            |(number, first): &(u64, u64)| *number > mark.start && *first <= mark.record.raw();
        self.starts.iter().any(has_reverted)
    }
}
