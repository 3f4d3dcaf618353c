//! The role of a member whose store is an incomplete copy of the primary's store. The member adds
//! the parts of the copy that the primary sends, and handles no other requests.
//!
//! A pure state machine with the events and actions of [`crate::target::MetadataTarget`]. The store
//! itself contains the progress of the copy, under [`Key::StoreCopy`]. The member writes the pairs
//! of a part and the new progress in one atomic step. So after a restart or a power loss, the copy
//! continues from an earlier part. A member with an incomplete copy has no log. The member never
//! serves and never takes over, and the primary never waits for it. The member reports to the
//! primary that it needs a copy, and that its log is empty.
//!
//! [`crate::service`] owns the mark in the target's directory that makes each start choose this
//! role, and removes the previous store. The primary chooses the parts ([`super::copy_sender`]).
//!
//! # Invariants
//! - For all keys up to `after`, the store equals the primary's store as of record `applied`. The
//!   store has no later key.
//! - The copy counts as complete only after all key-value pairs are durable.
//!
//! `check_invariants` checks the state of the receiver, which has no access to the primary's store.
//!
//! Held by the tests `copy_continues_after_a_restart_of_either_side` and
//! `copy_ends_only_when_its_last_part_is_on_the_device`, and by the checker `check_store` of the
//! simulator.

use super::copy_sender::{checksum_after, malformed, pair_bytes};
use super::own_group::OwnGroup;
use super::silence::Silence;
use super::{following, preceding};
use crate::engine::{Engine, Mutations};
use crate::limits::Limits;
use crate::target::{Action, Event, Start};
use crate::tx::operation::ConnectionId;
use skep_cluster::groups::has_skipped;
use skep_format::metadata::{Batch, Key, StoreCopyRecord, decode_value};
use skep_types::codec::{Bytes, Codec};
use skep_types::{ClusterMap, Epoch, Error, ErrorCode, GroupRecord, Lsn, Result};
use skep_wire::Request;
use skep_wire::frame::Header;
use skep_wire::log_shipping::{CopyStep, CopyStore, LogHeld, StoreCopied};
use skep_wire::management::AskTakeOver;
use std::sync::Arc;
use std::time::Duration;

/// Whether a [`CopyReceiver`] continues, and the reason if it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyOutcome {
    /// The copy is not complete, so the role continues.
    Running,
    /// The copy is complete and durable, so the member becomes a backup member.
    Complete,
    /// The primary cannot continue this copy, so the member removes its store, and a new copy
    /// begins.
    Discard,
}

/// A checkpoint in progress.
#[derive(Debug, Clone, Copy)]
struct Checkpoint {
    /// Whether the store had all key-value pairs when the checkpoint began.
    covers_all: bool,
}

/// A member with an incomplete store.
#[derive(Debug)]
pub struct CopyReceiver<E> {
    engine: E,
    own: OwnGroup,
    /// The progress of the copy. The progress is empty until the first part has arrived.
    copy: StoreCopyRecord,
    /// Last log record whose changes the copy has. `None` means that no part has arrived.
    applied: Option<Lsn>,
    is_whole: bool,
    outcome: CopyOutcome,
    checkpoint: Option<Checkpoint>,
    /// Bytes of keys and values added since the last checkpoint began.
    added_bytes: u64,
    /// Error message for parts that do not fit on the disk. `None` means that there is space.
    shortage: Option<String>,
    silence: Silence,
    limits: Limits,
    now: Duration,
    actions: Vec<Action>,
}

impl<E: Engine> CopyReceiver<E> {
    /// Opens the role. The store of `engine` is empty or has the first parts of a copy.
    ///
    /// # Errors
    /// The error of the engine, if it fails.
    pub fn open(engine: E, start: Start) -> Result<Self> {
        let applied = engine.applied()?;
        let key = Key::StoreCopy.to_bytes();
        let found = engine.get(&key)?.map(|value| decode_value(&key, &value)).transpose()?;
        let is_whole = applied.is_some() && found.is_none();
        let none = StoreCopyRecord {
            after: Bytes(vec![]),
            epoch: Epoch::default(),
            applied_epoch: Epoch::default(),
            pair_count: 0,
            pair_bytes: 0,
            checksum: 0,
        };
        let copy: StoreCopyRecord = found.unwrap_or(none);
        let mut receiver = Self {
            engine,
            own: OwnGroup::new(start.group, start.target, start.map, Epoch::default()),
            copy,
            applied,
            is_whole,
            outcome: CopyOutcome::Running,
            checkpoint: None,
            added_bytes: 0,
            shortage: None,
            // This member grants no lease, and so makes no promise.
            silence: Silence::new(start.now, Duration::ZERO),
            limits: start.limits,
            now: start.now,
            actions: Vec::new(),
        };
        receiver.check_epoch();
        Ok(receiver)
    }

    /// Handles events as one batch. Returns the actions, which the caller must perform in order.
    ///
    /// # Errors
    /// The error of the engine, if it fails. The caller must not use this `CopyReceiver` again.
    pub fn handle(
        &mut self,
        events: impl IntoIterator<Item = Event>,
        now: Duration,
    ) -> Result<Vec<Action>> {
        self.silence.begin_batch(self.now, now);
        self.now = now;
        for event in events {
            match event {
                Event::Request { connection, header, body } => {
                    self.on_request(connection, header, &body)?;
                }
                Event::Map(map) => {
                    if self.own.set_map(map).is_some() {
                        self.silence.begin_epoch(now);
                        self.check_epoch();
                    }
                }
                Event::Checkpointed { .. } => {
                    if self.checkpoint.take().is_some_and(|it| it.covers_all) {
                        self.outcome = CopyOutcome::Complete;
                    }
                }
                Event::FreeSpace { shortage } => self.shortage = shortage,
                // A member with an incomplete store has no log and sends no requests.
                Event::Synced { .. }
                | Event::Answer { .. }
                | Event::MemberReply { .. }
                | Event::CopyReply { .. }
                | Event::LogRead { .. }
                | Event::Tick => {}
            }
        }
        self.begin_checkpoint();
        self.report_loss();
        Ok(std::mem::take(&mut self.actions))
    }

    /// Returns the time at which the caller must send [`Event::Tick`] at the latest.
    pub fn next_tick(&self) -> Duration {
        self.now + crate::limits::LONGEST_WAIT
    }

    /// Returns [`CopyOutcome::Running`] while the role continues. For any other result, the caller
    /// must end the role.
    pub fn outcome(&self) -> CopyOutcome {
        self.outcome
    }

    /// Returns the LSN and the epoch of the last log record whose changes the copy has. Epoch zero
    /// means that the epoch is not known.
    pub fn last_record(&self) -> (Lsn, Epoch) {
        (self.applied.unwrap_or_default(), self.copy.applied_epoch)
    }

    /// Returns the newest cluster map that the member has received.
    pub fn map(&self) -> &Arc<ClusterMap> {
        self.own.map()
    }

    /// Returns the engine. Checkpoints and checks of invariants use it.
    pub fn engine(&self) -> &E {
        &self.engine
    }

    /// Returns the engine, for example for a checkpoint.
    pub fn engine_mut(&mut self) -> &mut E {
        &mut self.engine
    }

    fn on_request(&mut self, connection: ConnectionId, header: Header, body: &[u8]) -> Result<()> {
        let result = match self.own.admit(&header) {
            Err(refusal) => Err(refusal),
            Ok(()) => {
                self.silence.received(self.own.entry(), self.now);
                match header.message {
                    CopyStore::ID => match CopyStore::from_bytes(body) {
                        Ok(part) => self.receive(part)?.map(|copied| copied.to_bytes()),
                        Err(error) => Err(Error::new(ErrorCode::Protocol, error.context())),
                    },
                    _ => Ok(self.lacks_all().to_bytes()),
                }
            }
        };
        self.actions.push(Action::Reply { connection, request: header, result });
        Ok(())
    }

    /// Returns the reply to shipped records, which this member cannot append.
    fn lacks_all(&self) -> LogHeld {
        let epoch = self.own.epoch();
        LogHeld { epoch, is_behind: true, needs_copy: true, ..LogHeld::default() }
    }

    fn position(&self) -> StoreCopied {
        let StoreCopyRecord { after, pair_count, pair_bytes, checksum, .. } = self.copy.clone();
        StoreCopied {
            epoch: self.own.epoch(),
            is_copying: true,
            is_whole: self.is_whole,
            applied: self.applied.unwrap_or_default(),
            after,
            pair_count,
            pair_bytes,
            checksum,
        }
    }

    /// Handles a request of the primary. The outer error ends the role, and the inner error is the
    /// reply.
    fn receive(&mut self, part: CopyStore) -> Result<Result<StoreCopied>> {
        if part.epoch != self.own.epoch() {
            let what = format!(
                "cannot copy the store: the request has group epoch {}, but this member has epoch \
                 {}",
                part.epoch,
                self.own.epoch()
            );
            return Ok(Err(Error::new(ErrorCode::StaleMap, what)));
        }
        match part.step {
            CopyStep::Ask => {}
            // The copy is complete, and its checkpoint will end this role. So the member does not
            // begin another copy.
            CopyStep::Begin if self.is_whole => {}
            CopyStep::Begin => {
                if self.applied.is_some_and(|applied| following(applied) < part.first) {
                    self.outcome = CopyOutcome::Discard;
                }
            }
            CopyStep::Extend => {
                if let Err(refusal) = self.extend(part)? {
                    return Ok(Err(refusal));
                }
            }
        }
        Ok(Ok(self.position()))
    }

    /// Whether the last record of the copy differs from the primary's record with the same LSN.
    /// `epoch` is the epoch of the primary's record; zero means that this epoch is not known.
    fn differs(&self, epoch: Epoch) -> bool {
        let own = self.copy.applied_epoch;
        own > Epoch::default() && epoch > Epoch::default() && own != epoch
    }

    /// Adds a part to the store. Ignores a part that does not begin where the copy ends. If the
    /// group lacks changes of the copy, the copy begins again. The outer error ends the role, and
    /// the inner error is the reply.
    fn extend(&mut self, part: CopyStore) -> Result<Result<()>> {
        let is_next = self.applied.is_none_or(|applied| part.first == following(applied));
        let is_running = !self.is_whole && self.outcome == CopyOutcome::Running;
        if is_running && is_next && self.differs(part.previous_epoch) {
            self.outcome = CopyOutcome::Discard;
            return Ok(Ok(()));
        }
        if !is_running || !is_next || part.after != self.copy.after {
            return Ok(Ok(()));
        }
        if let Some(shortage) = &self.shortage {
            return Ok(Err(Error::new(ErrorCode::NoSpace, shortage.clone())));
        }
        if let Err(error) = self.check(&part) {
            return Ok(Err(error));
        }
        let mut changes = Mutations::new();
        for record in &part.records {
            let batch = match Batch::from_bytes(&record.payload.0) {
                Ok(batch) => batch,
                Err(error) => return Ok(Err(malformed(error.context()))),
            };
            // Skip changes of keys that the copy has not reached. This part or a later part
            // contains the pairs of these keys, and the primary reads these pairs after the
            // changes.
            let known = batch.mutations.into_iter().filter(|it| it.key.0 <= part.after.0);
            changes.extend(known.map(|it| (it.key.0, it.value.map(|value| value.0))));
        }
        self.added_bytes += pair_bytes(&part.pairs);
        let applied = preceding(Lsn::new(part.first.raw() + part.records.len() as u64));
        changes.extend(part.pairs.into_iter().map(|it| (it.key.0, Some(it.value.0))));
        let applied_epoch = match part.records.last() {
            Some(record) => record.epoch,
            None => self.copy.applied_epoch.max(part.previous_epoch),
        };
        self.copy = StoreCopyRecord {
            after: part.through,
            epoch: part.epoch,
            applied_epoch,
            pair_count: part.pair_count,
            pair_bytes: part.pair_bytes,
            checksum: part.checksum,
        };
        let copy = (!part.is_last).then(|| self.copy.to_bytes());
        changes.insert(Key::StoreCopy.to_bytes(), copy);
        self.engine.apply(&changes, applied)?;
        self.applied = Some(applied);
        self.is_whole = part.is_last;
        Ok(Ok(()))
    }

    /// Checks the form of a part, and compares its contents with the counts and the checksum that
    /// the primary sent.
    fn check(&self, part: &CopyStore) -> Result<()> {
        let is_first = self.applied.is_none();
        let keys = || part.pairs.iter().map(|pair| &pair.key.0);
        let reserved = [Key::Applied.to_bytes(), Key::StoreCopy.to_bytes()];
        let count = self.copy.pair_count + part.pairs.len() as u64;
        let bytes = self.copy.pair_bytes + pair_bytes(&part.pairs);
        let checksum = match part.pairs.is_empty() {
            true => self.copy.checksum,
            false => checksum_after(self.copy.checksum, &part.pairs),
        };
        let problem = if is_first && !part.records.is_empty() {
            "the first part of a copy must have no log records"
        } else if is_first && part.pairs.is_empty() && !part.is_last {
            "the first part of a copy must have pairs"
        } else if !keys().is_sorted_by(|one, next| one < next)
            || keys().next().is_some_and(|key| *key <= part.after.0)
            || keys().next_back().unwrap_or(&part.after.0) != &part.through.0
        {
            "the keys of the part are not in order"
        } else if keys().any(|key| reserved.contains(key)) {
            "the part has a key that each member writes by itself"
        } else if (count, bytes, checksum) != (part.pair_count, part.pair_bytes, part.checksum) {
            "the number, size or checksum of the received pairs differs from the values in the part"
        } else {
            return Ok(());
        };
        Err(malformed(problem))
    }

    /// Discards the copy if the group has skipped epochs, because management was restored from a
    /// backup. The group may then continue with another member, which may lack records that the
    /// sender of this copy has.
    fn check_epoch(&mut self) {
        if self.copy.epoch > Epoch::default() && has_skipped(self.copy.epoch, self.own.epoch()) {
            self.outcome = CopyOutcome::Discard;
        }
    }

    fn begin_checkpoint(&mut self) {
        let Some(lsn) = self.applied.filter(|_| self.checkpoint.is_none()) else { return };
        let is_open = self.outcome == CopyOutcome::Running;
        let is_due = self.is_whole || self.added_bytes >= self.limits.checkpoint_log_bytes;
        if is_open && is_due {
            self.added_bytes = 0;
            self.checkpoint = Some(Checkpoint { covers_all: self.is_whole });
            self.actions.push(Action::Checkpoint { lsn });
        }
    }

    /// Reports to management that the log of this member is empty, if the map makes this member
    /// serve. A map makes a member with an incomplete copy serve only if management was restored
    /// from a backup. The group then continues with the members that have records.
    fn report_loss(&mut self) {
        let after = self.limits.members.lease_times(self.own.map()).take_over_after;
        let is_wanted = self.own.serves() || self.own.is_primary();
        if !is_wanted || !self.silence.asks(after, self.now) {
            return;
        }
        let (group, epoch, target) = (self.own.group, self.own.epoch(), self.own.target);
        let (last_epoch, last) = (Epoch::default(), Lsn::default());
        let lacks_records = true;
        // The caller adds the state of the group, which is in the member mark of this target.
        let record = GroupRecord::default();
        let request = AskTakeOver { group, epoch, target, lacks_records, last_epoch, last, record };
        self.actions.push(Action::AskTakeOver(request));
    }

    /// Checks the invariants that need no comparison with another store.
    ///
    /// # Panics
    /// Panics if an invariant is violated. The message is the violated invariant.
    pub fn check_invariants(&self) {
        let is_complete = self.outcome == CopyOutcome::Complete;
        assert!(!is_complete || self.is_whole, "a complete copy has all pairs of the store");
        assert!(
            self.applied.is_some() || self.copy.after.0.is_empty(),
            "the copy has no position before its first part is applied"
        );
    }
}
