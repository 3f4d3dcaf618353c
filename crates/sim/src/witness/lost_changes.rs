//! Checks that a client learns of every acknowledged change that a power loss has reverted.

use super::{Violation, Witness};
use skep_types::SessionId;
use skep_wire::metadata::SlotSequence;
use std::collections::BTreeMap;

impl Witness {
    /// Checks the slots of a session that a target sends to a client. For the client, a change is
    /// lost if its sequence is higher than the sequence that the target has sent for its slot.
    ///
    /// # Errors
    /// Describes an acknowledged change whose state in the slots is wrong: the slots show a lost
    /// change as executed, or an executed change as lost.
    pub(crate) fn check_slots(
        &mut self,
        target: usize,
        session: SessionId,
        slots: &[SlotSequence],
    ) -> Result<(), Violation> {
        if self.is_blind {
            return Ok(());
        }
        let stored: BTreeMap<u32, u64> = slots.iter().map(|it| (it.slot, it.sequence)).collect();
        let of_session = (session, 0, 0)..=(session, u32::MAX, u64::MAX);
        for (id, instance) in self.instances.range_mut(of_session) {
            if instance.refused || instance.is_known_lost {
                continue;
            }
            let is_lost = instance.committed.is_none();
            let counts_as_lost = id.2 > stored.get(&id.1).copied().unwrap_or(0);
            if instance.answered && is_lost != counts_as_lost {
                return Err(format!(
                    "target {target}: {id:?} {:?} was acknowledged; lost: {is_lost}, but its \
                     client learns: {counts_as_lost}",
                    instance.op
                ));
            }
            // While the reply to a request is still in flight, the slots may show another state
            // than the log. So the client can conclude that the request is lost only if both the
            // slots and the log show the loss.
            instance.is_known_lost = is_lost && counts_as_lost;
        }
        Ok(())
    }

    /// Records the lost changes that a client can detect after it has received the slots of its
    /// session. The sender may be a previous primary, whose slots the witness has not checked.
    pub(crate) fn slots_received(&mut self, session: SessionId, slots: &[SlotSequence]) {
        let stored: BTreeMap<u32, u64> = slots.iter().map(|it| (it.slot, it.sequence)).collect();
        let of_session = (session, 0, 0)..=(session, u32::MAX, u64::MAX);
        for (id, instance) in self.instances.range_mut(of_session) {
            let counts_as_lost = id.2 > stored.get(&id.1).copied().unwrap_or(0);
            instance.is_known_lost |= instance.committed.is_none() && counts_as_lost;
        }
    }
}
