//! The comparison of slots after a start of the target (`CompareSlots`). Each request of a client
//! for a change contains the newest start number that the client has received from the target.
//! After a start, the client compares its acknowledged changes with the slots of the target. Until
//! then, the target executes no change of the session.
//!
//! A power loss may have reverted acknowledged changes. The transaction of a change also stores the
//! sequence number of its request in the slot. So a client finds the lost requests of a slot: their
//! sequence numbers are higher than the number that the target has stored.
//!
//! # Invariants
//! - The target executes no change whose start number differs from the current start number. A
//!   client sends a start number only after it has opened the session or compared the slots during
//!   that start.
//! - The target sends a start number to clients only when the log record of the start is
//!   *safe*, so no two starts have the same number.
//! - A power loss never reverts the session itself, because it is synced before its client uses it.
//!
//! The invariants relate the target to its clients, so no function here can check them.
//!
//! Held by the tests `changes_are_refused_until_the_client_has_compared_its_slots`,
//! `start_number_is_not_sent_before_its_record_is_safe` and
//! `reply_to_open_session_waits_for_a_sync`, and by the checkers `note_reply` and `check_slots` of
//! the simulator.

use crate::engine::Engine;
use crate::target::MetadataTarget;
use skep_format::metadata::{Key, SlotRecord, decode_value, expect_parsed, slot_of};
use skep_types::{Error, ErrorCode, Result, SessionId};
use skep_wire::frame::Header;
use skep_wire::metadata::{CompareSlotsReply, SlotSequence};

impl<E: Engine> MetadataTarget<E> {
    /// Checks that a request for a change, or a sync, has the current start number of the target.
    ///
    /// # Errors
    /// `StaleStart` if it has another start number.
    pub(super) fn check_start(&self, header: &Header) -> Result<()> {
        let start = self.shared.starts.last().map_or(0, |(number, _)| number);
        if header.start() == start {
            return Ok(());
        }
        let what = format!(
            "cannot execute a request of session {}: the request names the start number {} of the \
             target, but the current start number is {start}; the client must first compare its \
             changes with those of the target",
            header.session,
            header.start()
        );
        Err(Error::new(ErrorCode::StaleStart, what))
    }

    /// Returns the slots of a session with their sequence numbers. The inner error is a refusal of
    /// the request, the outer error is a failure of the target.
    pub(super) fn compare_slots(&self, session: SessionId) -> Result<Result<CompareSlotsReply>> {
        let Some(start) = self.shared.starts.current() else {
            let what = "cannot compare the slots of a session: the start number of the target is \
                        not durable yet";
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
