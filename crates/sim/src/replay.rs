//! The replay of a simulated client. The client keeps the changes that targets have acknowledged.
//! After a comparison of slots (`comparison`), the client sends the lost changes again, before the
//! target executes new changes. The simulated client does what
//! `crates/client/src/session/replay.rs` does, with two exceptions:
//! - The client never drops a durable change from its list. Such a change is never lost, so the
//!   client never replays it.
//! - The client does not replay opens that have truncated the file. So no replay restores the
//!   truncate generation of an empty file.
//!
//! The witness checks the replays (`witness::replays`).

use crate::client::is_lost;
use crate::knobs::PlantedBug;
use crate::network::{Node, Purpose};
use crate::operation::Op;
use crate::witness::{InstanceId, ReplayedChange};
use crate::world::{World, message};
use skep_types::codec::Codec;
use skep_types::{InodeId, Result, SessionId, StripePattern};
use skep_wire::Request;
use skep_wire::frame::Header;
use skep_wire::limits::REPLAY_SLOT;
use skep_wire::metadata as md;
use std::collections::{BTreeMap, VecDeque};

/// A change that a target has acknowledged.
#[derive(Debug, Clone)]
pub(crate) struct KeptChange {
    /// Place of the first execution of the change: the start number of the target, and the number
    /// that the target gave to the change after this start.
    place: (u64, u64),
    /// The last request that executed the change: the original request or a replay.
    id: InstanceId,
    /// Id of the program's operation.
    operation: u64,
    op: Op,
    /// The reply to the original request.
    reply: Vec<u8>,
}

/// The acknowledged changes that a client keeps for a session, and the replay of these changes.
#[derive(Debug, Default)]
pub(crate) struct SessionReplay {
    kept: Vec<KeptChange>,
    /// Lost changes that are not replayed yet, in the order of `place`.
    lost: VecDeque<KeptChange>,
    /// Sequence number of the last finished request in the replay slot.
    ended: u64,
}

impl SessionReplay {
    /// Moves to `lost` the changes that the target has lost, according to the sequences of its
    /// slots. Returns the change whose replay the target has executed although the client has
    /// received no reply.
    fn take_lost(&mut self, slots: &[md::SlotSequence]) -> Option<KeptChange> {
        let stored: BTreeMap<u32, u64> = slots.iter().map(|it| (it.slot, it.sequence)).collect();
        let sequence = |slot: u32| stored.get(&slot).copied().unwrap_or(0);
        let mut replayed = None;
        if sequence(REPLAY_SLOT) > self.ended {
            self.ended = sequence(REPLAY_SLOT);
            replayed = self.lost.pop_front();
        }
        let is_lost = |it: &KeptChange| it.id.2 > sequence(it.id.1);
        let all = std::mem::take(&mut self.kept).into_iter();
        let (lost, kept): (Vec<_>, Vec<_>) = all.partition(is_lost);
        self.kept = kept;
        self.lost.extend(lost);
        self.lost.make_contiguous().sort_by_key(|it| it.place);
        replayed
    }
}

/// Whether a simulated client replays an operation after a power loss.
pub(crate) fn is_replayed(op: &Op) -> bool {
    match op {
        Op::SetAttributes(it) => it.size.is_none(),
        Op::Open(it) => !it.truncate,
        Op::SetPattern(_) | Op::RemoveInline(_) | Op::SetLock(_) => false,
        _ => op.modifies(),
    }
}

/// Returns the request that replays a change.
fn request_of(change: &KeptChange) -> md::Replay {
    let (inode, created, pattern) = first_reply(&change.op, &change.reply);
    md::Replay {
        start: change.place.0,
        change: change.place.1,
        message: change.op.message(),
        request: change.op.body().into(),
        inode,
        created,
        pattern,
        truncate_generation: 0,
    }
}

/// Returns the inode in a reply, whether the operation has created it, and its stripe pattern.
fn first_reply(op: &Op, reply: &[u8]) -> (InodeId, bool, Option<StripePattern>) {
    let none = (InodeId::default(), false, None);
    match op {
        Op::Create(_) | Op::CreateUnnamed(_) | Op::Open(_) => md::OpenReply::from_bytes(reply)
            .map_or(none, |it| {
                let pattern = it.pattern.filter(|_| it.created);
                (it.attributes.inode, it.created, pattern)
            }),
        Op::MakeDirectory(_) | Op::MakeSymlink(_) | Op::Link(_) => {
            let created = !matches!(op, Op::Link(_));
            md::NewEntryReply::from_bytes(reply).map_or(none, |it| (it.entry.inode, created, None))
        }
        _ => none,
    }
}

/// Returns the replay that a target with the planted bug executes instead of `body`.
pub(crate) fn planted(plant: Option<PlantedBug>, header: &Header, body: Vec<u8>) -> Vec<u8> {
    if header.message != md::Replay::ID {
        return body;
    }
    let Ok(mut replay) = md::Replay::from_bytes(&body) else { return body };
    match plant {
        Some(PlantedBug::ReplayByClient) => replay.start = header.session.raw(),
        Some(PlantedBug::ReplayWithNewId) if replay.created => {
            replay.inode = InodeId::new(replay.inode.raw() ^ (1 << 48));
        }
        _ => return body,
    }
    replay.to_bytes()
}

impl World {
    fn replay_of(&mut self, client: usize, id: SessionId) -> Option<&mut SessionReplay> {
        let mut sessions = self.clients[client].sessions.values_mut();
        sessions.find(|it| it.id == id).map(|it| &mut it.replay)
    }

    /// Records that a change is durable if the reply contains zero in place of the change's number.
    /// The client does not keep this change for a replay, so no power loss may revert it.
    pub(crate) fn note_durable(&mut self, client: usize, task: usize, number: u64) {
        let current = self.clients[client].tasks[task].current.as_ref();
        if let Some(id) = current.and_then(|it| it.instance).filter(|_| number == 0) {
            self.witness.note_durable(id);
        }
    }

    /// Keeps the change of a task that a target has acknowledged. `place` is the start number in
    /// the request, and the number of the change in the reply.
    pub(crate) fn keep_change(
        &mut self,
        client: usize,
        task: usize,
        place: (u64, u64),
        reply: &[u8],
    ) {
        if !self.knobs.replays || place.1 == 0 {
            return;
        }
        let process = &mut self.clients[client];
        let Some(current) = &process.tasks[task].current else { return };
        let Some(id) = current.instance.filter(|_| is_replayed(&current.op)) else { return };
        let (op, operation) = (current.op.clone(), current.number);
        let Some(session) = process.sessions.values_mut().find(|it| it.id == id.0) else { return };
        // Do not keep the change if the request names an earlier start of the target. The client
        // has compared its changes after it sent the request, so the client must not replay this
        // change.
        if session.start == place.0 {
            let reply = reply.to_vec();
            session.replay.kept.push(KeptChange { place, id, operation, op, reply });
            self.witness.kept(id);
        }
    }

    /// Begins or continues the replay of a session after a comparison of its slots.
    pub(crate) fn replay_lost(&mut self, client: usize, id: SessionId, slots: &[md::SlotSequence]) {
        if !self.knobs.replays {
            return;
        }
        // Remove replay requests in flight, because they name an earlier start of the target.
        self.network.calls.retain(|_, call| match &call.purpose {
            Purpose::Replay(session) | Purpose::EndReplay(session) => *session != id,
            _ => true,
        });
        let replayed = self.replay_of(client, id).and_then(|it| it.take_lost(slots));
        if let Some(change) = replayed {
            self.witness.replayed(change.id);
        }
        self.next_replay(client, id);
    }

    /// Sends the next lost change of a session, or the end of its replay.
    fn next_replay(&mut self, client: usize, id: SessionId) {
        let sessions = &self.clients[client].sessions;
        let Some((group, session)) = sessions.iter().find(|(_, it)| it.id == id) else { return };
        let group = *group;
        let Some(change) = session.replay.lost.front().cloned() else {
            let (header, body) = message(&md::EndReplay {});
            let header = Header { session: id, ..header };
            self.call(Node::Client(client), group, header, body, Purpose::EndReplay(id));
            return;
        };
        let sequence = session.replay.ended + 1;
        let instance = (id, REPLAY_SLOT, sequence);
        let created = change.op.created(&change.reply);
        let (.., pattern) = first_reply(&change.op, &change.reply);
        let replayed = ReplayedChange { place: change.place, created, pattern };
        self.witness.replay_sent(instance, change.operation, &change.op, replayed);
        let (header, body) = message(&request_of(&change));
        let header = Header { session: id, slot: REPLAY_SLOT, sequence, ..header };
        self.call(Node::Client(client), group, header, body, Purpose::Replay(id));
    }

    /// Handles the final reply to a replayed change. `number` is the number of the change in the
    /// reply.
    pub(crate) fn replay_received(
        &mut self,
        client: usize,
        id: SessionId,
        number: u64,
        result: &Result<Vec<u8>>,
    ) {
        let sessions = &mut self.clients[client].sessions;
        let Some((group, session)) = sessions.iter_mut().find(|(_, it)| it.id == id) else {
            return;
        };
        let group = *group;
        if let Err(error) = result
            && is_lost(error)
        {
            return self.replace_session(client, group, id, error);
        }
        let Some(change) = session.replay.lost.pop_front() else { return };
        session.replay.ended += 1;
        let instance = (id, REPLAY_SLOT, session.replay.ended);
        if result.is_ok() && number != 0 {
            session.replay.kept.push(KeptChange { id: instance, ..change.clone() });
            self.witness.kept(instance);
        }
        match result {
            Ok(body) => {
                self.witness.replay_answered(change.id, instance);
                self.note_shared(client, &change.op, body);
            }
            Err(error) => {
                let target = group.raw() as usize - 1;
                let refused = (change.id, instance);
                let until = (self.now, self.knobs.lease);
                let checked = self.witness.replay_refused(target, refused, until, error);
                self.check(checked);
            }
        }
        self.next_replay(client, id);
    }

    /// Marks the handles of a file as shared, if the reply to the replayed open marks the file as
    /// shared.
    fn note_shared(&mut self, client: usize, op: &Op, body: &[u8]) {
        let (Op::Create(_) | Op::CreateUnnamed(_) | Op::Open(_)) = op else { return };
        let reply = md::ReplayReply::from_bytes(body).map(|it| it.reply.0);
        let opened = reply.and_then(|reply| md::OpenReply::from_bytes(&reply));
        if let Ok(md::OpenReply { is_shared: true, attributes, .. }) = opened {
            let handles = self.clients[client].handles.iter_mut();
            let of_file = handles.filter(|it| it.inode == attributes.inode);
            of_file.for_each(|it| it.is_shared = true);
        }
    }

    /// Handles the reply to the end of a replay.
    pub(crate) fn replay_ended(&mut self, client: usize, id: SessionId, result: &Result<Vec<u8>>) {
        match result {
            Ok(_) => {}
            Err(error) if is_lost(error) => {
                let sessions = self.clients[client].sessions.iter();
                let group = sessions.filter(|(_, it)| it.id == id).map(|(group, _)| *group).next();
                if let Some(group) = group {
                    self.replace_session(client, group, id, error);
                }
            }
            Err(error) => self.fail(format!("session {id} cannot end its replay: {error}")),
        }
    }

    /// Compares the changes of a session if the target has restarted, even if the client has sent
    /// no change since the restart. `start` is the target's start number in the reply to the lease
    /// renewal.
    pub(crate) fn compare_after_renewal(&mut self, client: usize, id: SessionId, start: u64) {
        let sessions = &self.clients[client].sessions;
        let Some((group, session)) = sessions.iter().find(|(_, it)| it.id == id) else { return };
        if !self.knobs.replays || start == 0 || session.start == start {
            return;
        }
        let group = *group;
        let (header, body) = message(&md::CompareSlots {});
        let header = Header { session: id, ..header };
        self.call(Node::Client(client), group, header, body, Purpose::Slots(id));
    }

    /// With the planted bug `DropKeptChanges`, drops all kept changes of a session.
    pub(crate) fn plant_at_renewal(&mut self, client: usize, id: SessionId) {
        if self.knobs.plant == Some(PlantedBug::DropKeptChanges)
            && let Some(replay) = self.replay_of(client, id)
        {
            replay.kept.clear();
        }
    }
}
