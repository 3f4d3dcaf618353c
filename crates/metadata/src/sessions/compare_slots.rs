//! The start that each change names, and the request `CompareSlots`. After a start of the target, a
//! client compares its acknowledged changes with the slots of the target. The target executes no
//! further change of the session before.
//!
//! A power loss may have reverted acknowledged changes. The store has the sequence number of the
//! last request of each slot, in the transaction of the change. So a client finds the requests
//! that are missing: those with a higher sequence number in their slot.
//!
//! # Invariants
//! - The target executes no change that names another start than the present one. A client names a
//!   start after it opened the session in it, or after the comparison.
//! - A start is named to clients only when it is safe, so no two starts have one number.
//! - The session itself is never missing, since it is synced before its client uses it.

use crate::engine::Engine;
use crate::target::MetadataTarget;
use skep_format::metadata::{Key, SlotRecord, decode_value, expect_parsed, slot_of};
use skep_types::{Error, ErrorCode, Result, SessionId};
use skep_wire::frame::Header;
use skep_wire::metadata::{CompareSlotsReply, SlotSequence};

impl<E: Engine> MetadataTarget<E> {
    /// Checks that a change names the present start of the target.
    ///
    /// # Errors
    /// `StaleStart` if it names another one.
    pub(super) fn check_start(&self, header: &Header) -> Result<()> {
        let start = self.shared.starts.last().map_or(0, |(number, _)| number);
        if header.start() == start {
            return Ok(());
        }
        let what = format!(
            "a change of session {} names start {} of the target, and this is start {start}: its \
             client must compare its changes with the target's first",
            header.session,
            header.start()
        );
        Err(Error::new(ErrorCode::StaleStart, what))
    }

    /// Returns the slots of a session. The inner error is a refusal.
    pub(super) fn compare_slots(&self, session: SessionId) -> Result<Result<CompareSlotsReply>> {
        let Some(start) = self.shared.starts.current() else {
            let what = "cannot compare the slots of a session: the start of the target is not \
                        durable yet";
            return Ok(Err(Error::new(ErrorCode::Busy, what)));
        };
        let mut slots = Vec::new();
        for (key, value) in self.table.scan(&Key::slots_of(session), &[], usize::MAX)? {
            let slot = expect_parsed(&key, slot_of(&key))?;
            let sequence = decode_value::<SlotRecord>(&key, &value)?.sequence;
            slots.push(SlotSequence { slot, sequence });
        }
        Ok(Ok(CompareSlotsReply { start, slots }))
    }
}
