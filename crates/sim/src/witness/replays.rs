//! Checks the replays of changes that a power loss has reverted. While the client of a lost change
//! is alive, the change must be replayed or reported, and the target must not execute a new change
//! before.

use super::{Effect, Instance, InstanceId, Violation, Witness};
use crate::changes::Changes;
use crate::operation::Op;
use skep_format::metadata::Batch;
use skep_types::codec::Codec;
use skep_types::{Error, InodeId, Lsn, SessionId, StripePattern};
use skep_wire::limits::REPLAY_SLOT;
use skep_wire::metadata::ReplayReply;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A change that a client replays.
#[derive(Debug, Clone)]
pub(crate) struct ReplayedChange {
    /// Place of the first execution of the change: the start number of the target, and the number
    /// that the target gave to the change after this start.
    pub(crate) place: (u64, u64),
    /// The inode that the change created.
    pub(crate) created: Option<InodeId>,
    /// The stripe pattern of the file that the operation has created.
    pub(crate) pattern: Option<StripePattern>,
}

impl Instance {
    /// Returns the stripe pattern that the first execution of a replayed creation has chosen.
    pub(super) fn first_pattern(&self) -> Option<&StripePattern> {
        self.replays.as_ref()?.pattern.as_ref()
    }
}

/// The lost changes that clients must still replay or report.
#[derive(Default)]
pub(super) struct Replays {
    /// Whether the clients of the run replay changes.
    is_tracked: bool,
    /// Acknowledged changes that clients keep, to replay them after a power loss.
    kept: BTreeSet<InstanceId>,
    /// Lost changes whose clients are alive, each with the target that has lost it.
    owed: BTreeMap<InstanceId, usize>,
    /// For each target that has lost power: whether `owed` contains each change that the target
    /// lost. If so, each replay must succeed, because the target executes the changes in their
    /// original order.
    has_all: BTreeMap<usize, bool>,
    /// For each target that has lost power: the time of its last start after which it waits for
    /// replays.
    opened: BTreeMap<usize, Duration>,
    /// For each target in `opened`: the place of the last change that the target has replayed after
    /// the start in `opened`.
    last_place: BTreeMap<usize, (u64, u64)>,
}

impl Witness {
    /// Makes the witness check replays.
    pub(crate) fn track_replays(&mut self) {
        self.replays.is_tracked = true;
    }

    /// Records which changes a target has lost in a power loss. The caller has not reverted these
    /// changes yet.
    pub(super) fn note_losses(&mut self, target: usize, last: Lsn) {
        if !self.replays.is_tracked {
            return;
        }
        let was_finished = self.replays.owed.values().all(|at| *at != target);
        let mut has_all = true;
        for (id, instance) in &self.instances {
            let committed = instance.committed.as_ref();
            if committed.is_none_or(|(at, lsn, _)| *at != target || *lsn <= last) {
                continue;
            }
            if self.replays.kept.contains(id) {
                self.replays.owed.insert(*id, target);
            } else {
                has_all = false;
            }
        }
        let lost = self.history.iter().filter(|it| it.target == target && it.lsn > last);
        let mut effects = lost.flat_map(|it| &it.effects);
        has_all &= effects.all(|effect| matches!(effect, Effect::Client(..)));
        let before = self.replays.has_all.get(&target).copied().unwrap_or(true);
        self.replays.has_all.insert(target, has_all && (before || was_finished));
    }

    /// Records that a client keeps an acknowledged change.
    pub(crate) fn kept(&mut self, id: InstanceId) {
        self.replays.kept.insert(id);
    }

    /// Records that a target has started, and waits for the replays of its clients.
    pub(crate) fn replay_opened(&mut self, target: usize, now: Duration) {
        self.replays.opened.insert(target, now);
        self.replays.last_place.remove(&target);
    }

    /// Records that a client sends a request that replays an operation.
    pub(crate) fn replay_sent(
        &mut self,
        id: InstanceId,
        operation: u64,
        op: &Op,
        change: ReplayedChange,
    ) {
        self.request_sent(id, operation, op, false);
        if let Some(instance) = self.instances.get_mut(&id) {
            instance.replays = Some(change);
        }
    }

    /// Records that a lost change was replayed.
    pub(crate) fn replayed(&mut self, lost: InstanceId) {
        self.replays.owed.remove(&lost);
    }

    /// Records that a client has received the reply to a replayed change.
    pub(crate) fn replay_answered(&mut self, lost: InstanceId, id: InstanceId) {
        self.replayed(lost);
        if let Some(instance) = self.instances.get_mut(&id) {
            instance.answered = true;
        }
    }

    /// Records that a target has refused to replay a change, so that its client reports the loss.
    /// `refused` contains the lost change and the request that replays it. `until` contains the
    /// current time and the duration of a lease.
    ///
    /// # Errors
    /// Describes a refusal without a reason: no client is missing, and `owed` contained each lost
    /// change.
    pub(crate) fn replay_refused(
        &mut self,
        target: usize,
        refused: (InstanceId, InstanceId),
        until: (Duration, Duration),
        error: &Error,
    ) -> Result<(), Violation> {
        self.replayed(refused.0);
        let Some(instance) = self.instances.get_mut(&refused.1) else { return Ok(()) };
        instance.refused = true;
        let op = instance.op.clone();
        if self.is_blind || self.has_seen_full_disks {
            return Ok(());
        }
        let opened = self.replays.opened.get(&target).copied();
        // Later, the target may have dropped a client from the replay.
        let is_early = opened.is_some_and(|opened| until.0 < opened + until.1);
        let has_ended = |id: &InstanceId| self.ended.contains_key(&id.0);
        if is_early
            && !self.replays.owed.keys().any(has_ended)
            && self.replays.has_all.get(&target) == Some(&true)
        {
            return Err(format!("{op:?} was lost and could not be replayed: {error}"));
        }
        Ok(())
    }

    /// Records that the session of a client has ended, or that the client has died. The lost
    /// changes of the session stay lost, and changes of other clients may depend on these changes.
    pub(crate) fn session_lost(&mut self, session: SessionId) {
        self.replays.owed.retain(|id, _| id.0 != session);
        self.replays.kept.retain(|id| id.0 != session);
        self.replays.has_all.values_mut().for_each(|it| *it = false);
    }

    /// Checks that a target executes replayed changes in their original order, and no new change
    /// while a client still has to replay changes. `until` contains the current time and the
    /// duration of a lease. The target waits for clients until a lease after its start.
    ///
    /// # Errors
    /// Describes a change that was executed too early or in the wrong order.
    pub(crate) fn check_replay_order(
        &mut self,
        target: usize,
        payload: &[u8],
        until: (Duration, Duration),
    ) -> Result<(), Violation> {
        let Some(opened) = self.replays.opened.get(&target).copied() else { return Ok(()) };
        let Ok(batch) = Batch::from_bytes(payload) else { return Ok(()) };
        let Ok(changes) = Changes::of(&batch) else { return Ok(()) };
        if self.is_blind {
            return Ok(());
        }
        let ended = &self.ended;
        let mut owed = self.replays.owed.iter();
        let waits = owed.any(|(id, at)| *at == target && !ended.contains_key(&id.0))
            && until.0 <= opened + until.1;
        let mut places = Vec::new();
        for (session, slot, record) in &changes.slots {
            let id = (*session, *slot, record.sequence);
            let replays = self.instances.get(&id).and_then(|it| it.replays.as_ref());
            match replays {
                Some(change) => places.push(change.place),
                None if waits => {
                    return Err(format!(
                        "target {target} executed {id:?} before clients had replayed what it has \
                         lost"
                    ));
                }
                None => {}
            }
        }
        let last = self.replays.last_place.get(&target).copied();
        places.sort_unstable();
        if let (Some(first), Some(last)) = (places.first(), last)
            && *first < last
        {
            return Err(format!(
                "target {target} has replayed the change {first:?} after the change {last:?}"
            ));
        }
        if let Some(newest) = places.last() {
            self.replays.last_place.insert(target, *newest);
        }
        Ok(())
    }

    /// Returns a lost change that is neither replayed nor reported, although its client is alive.
    pub(crate) fn owed(&self) -> Option<InstanceId> {
        self.replays.owed.keys().next().copied().filter(|_| !self.is_blind)
    }
}

/// Extracts the reply to an operation from the reply in a slot record. The record of the replay
/// slot contains the reply inside a `ReplayReply`.
pub(super) fn logged_reply(slot: u32, reply: &[u8]) -> Result<Vec<u8>, String> {
    if slot != REPLAY_SLOT {
        return Ok(reply.to_vec());
    }
    let replayed = ReplayReply::from_bytes(reply).map_err(|error| error.to_string())?;
    Ok(replayed.reply.0)
}
