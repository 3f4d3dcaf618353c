//! A metadata target that is the primary of its group, as a pure state machine. The state machine
//! takes events and returns actions, and uses no clock, socket or file. The real service and the
//! simulator run the same code.
//!
//! A target handles all events that have arrived as one batch. In each batch, it runs the
//! transactions one after the other, logs their changes, and then sends the replies. The changes of
//! one transaction are always in the same log record. A batch may have several log records.
//!
//! # Invariants
//! - The target sends a reply only after every serving member of the group has appended all records
//!   whose changes the reply may show. In a group of one member, this is the case at the end of the
//!   batch.
//! - No log record is longer than a reader accepts ([`Limits::operation_bytes`]).
//! - Some messages make another process depend on a change: the reply about a prepared transaction,
//!   a commit, a removal or truncation of chunk files, and a reply about which inodes exist. The
//!   target sends a message on which another process depends only after every serving member has
//!   synced the log record of the change (docs/design/0014-metadata-groups.md). A staged
//!   transaction depends on the reply to `ConfirmPrepared`, and not on the reply to `BeginPrepare`.
//! - After an error of the engine, [`MetadataTarget::handle`] fails, and the caller must not use
//!   the target again.
//!
//! [`MetadataTarget::check_invariants`] checks the state of the target, which does not include sent
//! messages.
//!
//! Held by the checkers of the simulator: the test `checkers_find_all_planted_bugs` plants messages
//! that a target sends too early.
//!
//! [`Limits::operation_bytes`]: crate::limits::Limits::operation_bytes

mod background;
mod calls;
mod check;
mod copies;
mod events;
mod gates;
mod group_commit;
mod members;
mod open;
mod operations;
mod restored;
mod run;
mod staged;
pub(crate) mod start;
mod start_number;
mod sync_timer;
mod transactions;
mod truncations;
mod waits;
mod watermarks;

pub use events::{Action, Event};
pub(crate) use gates::{CheckpointTrigger, PendingReply};
pub use start::{Start, SyncPolicy};
pub(crate) use sync_timer::SyncTimer;
pub use waits::{RequestWait, WaitReason};

use crate::background::Background;
use crate::engine::Engine;
use crate::limits::LONGEST_WAIT;
use crate::sessions::table::Sessions;
use crate::shipping::shipper::Shipper;
use crate::tx::shared::Shared;
use crate::tx::table::Table;
use crate::tx::work::InternalWork;
use calls::Calls;
use gates::{BatchOutput, SyncGates};
use operations::Operations;
use skep_format::metadata::Key;
use skep_types::{
    ClusterMap, InodeId, Lsn, MapVersion, NodeId, Result, SessionId, TargetId, Timestamp,
};
use skep_wire::file_locks::HeldLock;
use skep_wire::senders::SenderEpochs;
use std::sync::Arc;
use std::time::Duration;
use truncations::TruncationReplies;
use watermarks::{absent, other_serving};

/// A metadata target, with its whole state and the batch in progress.
pub struct MetadataTarget<E> {
    pub(crate) table: Table<E>,
    pub(crate) shared: Shared,
    pub(crate) sessions: Sessions,
    pub(crate) operations: Operations,
    background: Background,
    calls: Calls,
    gates: SyncGates,
    shipper: Shipper,
    batch: BatchOutput,
    checkpoints: CheckpointTrigger,
    /// Version of the newest cluster map that removed a client with a session at this target.
    fence: MapVersion,
    truncation_replies: TruncationReplies,
    pub(crate) target: TargetId,
    /// The target has released all replies, calls and operations that waited until this record or
    /// an earlier record was *safe*.
    released: Lsn,
    pub(crate) senders: SenderEpochs,
}

impl<E> std::fmt::Debug for MetadataTarget<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (group, next) = (self.shared.group, self.gates.next_lsn());
        write!(f, "MetadataTarget(group {group}, next {next})")
    }
}

impl<E: Engine> MetadataTarget<E> {
    /// Handles events as one batch. Returns the actions, which the caller must perform in order.
    ///
    /// # Errors
    /// The error of the engine, if it fails. The caller must not use the target again.
    pub fn handle(
        &mut self,
        events: impl IntoIterator<Item = Event>,
        now: Duration,
        wall: Timestamp,
    ) -> Result<Vec<Action>> {
        self.restart_leases_after_pause(now);
        self.shared.now = now;
        self.shared.wall.read(now, wall);
        // Apply safe changes before the events, so that the background jobs find the work items of
        // these changes.
        self.store_safe()?;
        if self.shipper.begin_batch(now) {
            self.gates.restart_sync_wait(now);
        }
        self.gates.waits.begin_batch();
        for event in events {
            match event {
                Event::Request { connection, header, body } => {
                    self.on_request(connection, header, body)?;
                }
                Event::Answer { call, result } => self.on_answer(call, result)?,
                Event::Synced { lsn } => self.on_synced(lsn)?,
                Event::MemberReply { member, number, result } => {
                    self.on_member_reply(member, number, &result)?;
                }
                Event::CopyReply { member, number, result } => {
                    self.shipper.on_copy_reply(member, number, &result, now);
                }
                Event::LogRead { member, first, result } => {
                    self.shipper.on_log_read(member, first, result);
                }
                Event::Map(map) => self.set_map(map)?,
                Event::Checkpointed { .. } => self.checkpoints.end(),
                Event::FreeSpace { shortage } => self.shared.shortage = shortage,
                Event::Tick => {}
            }
            self.run_ready()?;
        }
        self.expire_sessions();
        self.drop_stalled_replays();
        self.settle_staged();
        self.work_in_background()?;
        self.operations.wake_paused(now);
        self.run_ready()?;
        self.wake_lock_waits();
        self.send_notifications();
        self.count_members()?;
        self.read_copies()?;
        let actions = self.end_batch();
        if cfg!(debug_assertions) {
            // Run only the cheap checks here, of structures that are small or nearly always empty.
            self.gates.check_invariants();
            self.table.check_invariants();
            self.shipper.check_invariants(self.gates.safe(), self.gates.last_logged());
            self.shared.numbers.check_invariants();
            self.shared.locks.check_invariants();
        }
        Ok(actions)
    }

    /// Returns the waits of requests that began in the last batch, in order of time. A request
    /// that got its reply in this batch may be in the list too.
    pub fn waits(&self) -> &[RequestWait] {
        self.gates.waits.list()
    }

    /// Returns the time at which the caller must send [`Event::Tick`] at the latest.
    pub fn next_tick(&self) -> Duration {
        if self.background.is_ending_sessions() || self.has_to_store() {
            return self.shared.now;
        }
        let due = self.operations.next_due().into_iter().chain(self.gates.next_due());
        let due = due.chain(self.shipper.next_due(self.gates.safe()));
        let answers_from = self.shipper.answers_from();
        let due = due.chain((answers_from > self.shared.now).then_some(answers_from));
        due.fold(self.shared.now + LONGEST_WAIT, Duration::min)
    }

    /// Whether the target has no operation, no call in flight, no change that some serving member
    /// has not synced, and no *safe* change that the store lacks.
    pub fn is_idle(&self) -> bool {
        self.operations.is_empty()
            && self.calls.is_empty()
            && !self.gates.has_unsafe()
            && !self.has_to_store()
            && !self.background.is_ending_sessions()
    }

    /// Whether this target is the primary of its group in the newest map, in the same term as at
    /// its start. If not, the target refuses all requests, and the caller must not perform further
    /// actions.
    pub fn is_primary(&self) -> bool {
        let group = self.shared.map.group(self.shared.group);
        group.is_some_and(|it| it.primary_since == self.shared.primary_since)
    }

    /// Whether the records in memory that wait for other members have reached their maximum size.
    /// If so, the caller must pass no more requests to the target until some of the records are
    /// *safe*.
    pub fn is_backlogged(&self) -> bool {
        self.shipper.is_full()
    }

    /// Returns the engine. Checkpoints and checks of invariants use it.
    pub fn engine(&self) -> &E {
        self.table.engine()
    }

    /// Returns the engine, for example for a checkpoint.
    pub fn engine_mut(&mut self) -> &mut E {
        self.table.engine_mut()
    }

    /// Iterates over all file locks that applications hold. Only checks of invariants use it.
    pub fn file_locks(&self) -> impl Iterator<Item = (InodeId, HeldLock)> + '_ {
        self.shared.file_locks.all()
    }

    /// Returns the number of prepared transactions whose decision the target could not carry out.
    /// Checks use it.
    pub fn stuck_transactions(&self) -> usize {
        self.background.stuck_transactions()
    }

    /// Returns the number of queued chunk files that storage still has to remove.
    pub(crate) fn queued_removals(&self) -> usize {
        self.background.queued_removals()
    }

    /// Returns the number of waits for file locks. Checks use it.
    pub fn lock_waits(&self) -> usize {
        self.shared.file_locks.wait_count()
    }

    fn set_map(&mut self, map: Arc<ClusterMap>) -> Result<()> {
        let Some(group) = map.group(self.shared.group) else {
            self.shared.set_map(map);
            return Ok(());
        };
        if group.primary_since != self.shared.primary_since {
            // Another member is the primary now, or has been the primary meanwhile. This target
            // must not create records in the epoch of another primary, and must not take `LogHeld`
            // replies of that epoch as confirmations of its own records. The caller performs no
            // further actions.
            self.shared.set_map(map);
            return Ok(());
        }
        if group.epoch > self.gates.epoch() {
            // End the record of the batch, because its changes belong to the earlier epoch, and a
            // record has one epoch.
            self.end_record();
            self.gates.begin_epoch(group.epoch);
            self.shipper.begin_epoch(group.epoch);
        }
        let others = other_serving(&map, self.shared.group, self.target);
        self.shipper.set_members(&others, &absent(&map, self.shared.group, self.target));
        self.gates.set_others(self.shipper.counted());
        self.release_gated()?;
        self.shared.set_map(map);
        self.end_sessions_of_removed();
        let shared = &self.shared;
        let root = InodeId::ROOT;
        if shared.map.shard_group(root.shard()) == Some(shared.group)
            && self.table.get(&Key::Inode(root).to_bytes())?.is_none()
        {
            self.start_internal(InternalWork::MakeRoot);
        }
        Ok(())
    }

    /// Returns the version of the newest cluster map that removed a client with a session at this
    /// target. Each reply of this target contains this version. A client sends the version with its
    /// requests to storage, and a storage target with an older map must not serve these requests.
    pub fn fence(&self) -> MapVersion {
        self.fence
    }

    /// Raises the fence to the version of a cluster map that has removed a client. The sessions of
    /// this client end now.
    pub(crate) fn raise_fence(&mut self, version: MapVersion) {
        self.fence = self.fence.max(version);
    }

    /// Adds a session that had begun to end before this start of the target. The target has found
    /// its record in the store.
    pub(crate) fn add_ended_session(&mut self, session: SessionId) {
        self.background.add_ended_session(session);
    }

    /// Asks management to remove a client from the cluster map. If `unless_heard` is set,
    /// management keeps a client whose heartbeats it receives.
    pub(crate) fn evict(&mut self, client: NodeId, unless_heard: bool) {
        self.batch.actions.push(Action::Evict { client, unless_heard });
    }
}

#[cfg(test)]
mod tests;
