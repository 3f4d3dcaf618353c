//! The role of a member that has a complete store and is not the primary. The member appends the
//! log records that the primary ships, syncs them, and writes the changes of *safe* records to its
//! store.
//!
//! A pure state machine with the events and actions of [`crate::target::MetadataTarget`]. In
//! memory, the backup member keeps only the log records that are not yet in its store. Sessions,
//! slots, opens, locks and transactions are keys in its store or in these records, and a new
//! primary reads them there ([`Backup::into_stopped`]). The backup member runs no operations. Two
//! other modules decide whether the primary is silent ([`super::silence`]) and whether the backup
//! member lacks records ([`super::completeness`]).
//!
//! The module `append` compares and appends the records that the primary ships.
//!
//! # Comparison
//! When a new epoch begins, an earlier primary may have shipped records that the new primary does
//! not have. Records of an earlier primary are in the log of the backup member, but not in its
//! store. Up to the record `matched`, the log equals the primary's log: in this epoch, the backup
//! member has compared these records or has received them. The backup member reports only records
//! up to `matched` as *appended*. If both logs have a record with the same LSN and epoch, all
//! earlier records are equal too, because a single primary creates all records of an epoch (the log
//! matching property of Raft).
//!
//! # Invariants
//! - `stored` <= `matched` <= last record. The store has the changes of safe records that this
//!   member has synced.
//! - The backup member removes only records after `matched`, and only while no sync is running. If
//!   it removed records during a sync, the end of the sync would mark new records with the same
//!   LSNs as synced.
//! - `synced` is the member's own progress, never the primary's.
//!
//! # Late requests to take over
//! If this member asks management to make it the primary, and its host then loses power, management
//! may still carry out the request while the epoch is the same. This member may then be the only
//! serving member, although the previous primary has more records. So the member asks only when it
//! has synced its whole log. From then on, and until the next epoch, it confirms only synced
//! records. A power loss then removes no record that the member has confirmed.

mod append;

use super::completeness::Completeness;
use super::own_group::OwnGroup;
use super::record_window::RecordWindow;
use super::silence::Silence;
use super::succession::{Succession, milliseconds};
use super::sync_waits::{SyncWait, SyncWaits};
use crate::engine::{Engine, Mutations};
use crate::limits::{LONGEST_WAIT, Limits};
use crate::target::{Action, CheckpointTrigger, Event, Start, SyncTimer};
use crate::tx::operation::ConnectionId;
use skep_cluster::groups::has_skipped;
use skep_cluster::lease_times::LeaseTimes;
use skep_format::log::Record;
use skep_format::metadata::Batch;
use skep_types::codec::Codec;
use skep_types::{ClusterMap, Epoch, Error, ErrorCode, GroupRecord, Lsn, Result};
use skep_wire::Request;
use skep_wire::frame::Header;
use skep_wire::log_shipping::{AwaitLogSync, CopyStore, LogHeld, ShipLog};
use skep_wire::management::AskTakeOver;
use std::sync::Arc;
use std::time::Duration;

/// A member with a complete store that is not the primary.
#[derive(Debug)]
pub struct Backup<E> {
    engine: E,
    own: OwnGroup,
    /// Log records that are not yet in the store. The first of these records follows the last
    /// record in the store.
    records: RecordWindow,
    /// The last record that is known to equal the primary's record of the same LSN. The member has
    /// compared or received this record in this epoch.
    matched: Lsn,
    /// The last record that the primary has reported as safe.
    safe: Lsn,
    sync: SyncTimer,
    waits: SyncWaits,
    /// Whether management may still carry out a request of this member to take over. If so, the
    /// member confirms only records that it has synced.
    confirms_only_synced: bool,
    checkpoints: CheckpointTrigger,
    limits: Limits,
    /// Error message for records that do not fit on the disk. `None` means that there is space.
    shortage: Option<String>,
    silence: Silence,
    completeness: Completeness,
    now: Duration,
    actions: Vec<Action>,
}

/// The state that is left when a backup member ends its role. A start as primary continues from
/// this state.
#[derive(Debug)]
pub struct Stopped<E> {
    /// The store of the member.
    pub engine: E,
    /// The log records that are not yet in the store.
    pub records: Vec<Record>,
    /// LSN and epoch of the record before `records`. Zero as the epoch means that the epoch is not
    /// known.
    pub previous: (Lsn, Epoch),
    /// LSN of the last record that the member has synced.
    pub synced: Lsn,
    /// When the member may reply to clients as the primary of the group.
    pub succession: Succession,
}

impl<E: Engine> Backup<E> {
    /// Opens a backup member with its engine and the records of its log. Skips records whose
    /// changes the engine already has. Records after [`Start::synced`] are not on the device yet.
    /// The promises of the member's earlier processes end within the time `promise` after the
    /// start.
    ///
    /// # Errors
    /// - `Corrupt` if a record is missing.
    /// - The error of the engine, if it fails.
    pub fn open(
        engine: E,
        records: impl IntoIterator<Item = Record>,
        start: Start,
        promise: Duration,
    ) -> Result<Self> {
        let stored = engine.applied()?.unwrap_or_default();
        let window = RecordWindow::read(stored, records)?;
        let synced = start.synced.unwrap_or(window.last()).min(window.last());
        let newest = start.epoch.max(window.last_epoch().unwrap_or_default());
        let confirms_only_synced = start.counted.contains(&start.target);
        Ok(Self {
            engine,
            own: OwnGroup::new(start.group, start.target, start.map, newest),
            sync: SyncTimer::new(synced, synced < window.last(), start.now),
            records: window,
            matched: stored,
            safe: stored,
            waits: SyncWaits::default(),
            confirms_only_synced,
            checkpoints: CheckpointTrigger::default(),
            limits: start.limits,
            shortage: None,
            silence: Silence::new(start.now, promise),
            completeness: Completeness::of_process(start.now, start.wall),
            now: start.now,
            actions: Vec::new(),
        })
    }

    /// Handles events as one batch. Returns the actions, which the caller must perform in order.
    ///
    /// # Errors
    /// - `Corrupt` if the primary ships a record that cannot be the next record.
    /// - The error of the engine, if it fails.
    ///
    /// The caller must not use the backup member again after an error.
    pub fn handle(
        &mut self,
        events: impl IntoIterator<Item = Event>,
        now: Duration,
    ) -> Result<Vec<Action>> {
        self.silence.begin_batch(self.now, now);
        self.now = now;
        self.store()?;
        for event in events {
            match event {
                Event::Request { connection, header, body } => {
                    self.on_request(connection, header, &body)?;
                }
                Event::Synced { lsn } => _ = self.sync.end(lsn),
                Event::Map(map) => self.set_map(map),
                Event::Checkpointed { .. } => self.checkpoints.end(),
                Event::FreeSpace { shortage } => self.shortage = shortage,
                // A backup member sends no requests.
                Event::Answer { .. }
                | Event::MemberReply { .. }
                | Event::CopyReply { .. }
                | Event::LogRead { .. }
                | Event::Tick => {}
            }
        }
        self.end_waits();
        self.ask_to_take_over();
        if self.confirms_only_synced && !self.has_synced_all() {
            // Replies of the primary wait for this sync.
            self.sync.request();
        }
        let mut actions = std::mem::take(&mut self.actions);
        if let Some(lsn) = self.sync.begin(self.records.last(), now) {
            actions.push(Action::Sync { lsn });
        }
        Ok(actions)
    }

    /// Returns the time at which the caller must send [`Event::Tick`] at the latest.
    pub fn next_tick(&self) -> Duration {
        if self.has_to_store() {
            return self.now;
        }
        let silence = self.silence.next_due(self.lease_times().take_over_after);
        let due = self.may_ask().then_some(silence).into_iter().chain(self.waits.next_due());
        due.chain(self.sync.next_due()).fold(self.now + LONGEST_WAIT, Duration::min)
    }

    /// Returns the newest cluster map that the backup member has received.
    pub fn map(&self) -> &Arc<ClusterMap> {
        self.own.map()
    }

    /// Sets the epoch of the record `lsn`, if it is the last record in the store. The log may not
    /// have this record, for example after a copy of the store. The caller calls this function
    /// before the first event.
    pub fn set_epoch_of(&mut self, lsn: Lsn, epoch: Epoch) {
        self.records.set_epoch_of(lsn, epoch);
    }

    /// Notes that the host may have lost log records that this member has confirmed. Until the
    /// member has received the missing records again, it does not take over.
    pub fn distrust(&mut self) {
        self.completeness.lacks_records = true;
    }

    /// Whether the host may have lost records that this member has confirmed.
    pub fn lacks_records(&self) -> bool {
        self.completeness.lacks_records
    }

    /// Whether the store has changes that the group lacks. The member then refuses all requests of
    /// the primary, and does not take over.
    pub fn diverges(&self) -> bool {
        self.completeness.diverges
    }

    /// Whether the member must remove its store and its log, because the member has agreed to
    /// receive a copy of the primary's store. The caller then ends this role.
    pub fn discards(&self) -> bool {
        self.completeness.discards
    }

    /// Whether this target is a member but not the primary of its group in the newest map.
    pub fn is_backup(&self) -> bool {
        self.own.is_backup()
    }

    /// Ends the role, and returns the store and the log records of the member.
    pub fn into_stopped(self) -> Stopped<E> {
        let records = self.records.from(Lsn::default()).cloned().collect();
        Stopped {
            engine: self.engine,
            records,
            previous: (self.records.before(), self.records.epoch_before()),
            synced: self.sync.synced(),
            succession: self.silence.succession(self.own.epoch()),
        }
    }

    /// Returns the time from the last batch until all promises of this member have ended. Until
    /// then, it replies to no client as the primary.
    pub fn promise_left(&self) -> Duration {
        self.silence.promise_left(self.now)
    }

    /// Whether this process has acknowledged a request of the primary that the newest map names. If
    /// this member was the primary before, the new primary then no longer waits for this member's
    /// lease ([`super::succession`]).
    pub fn has_acknowledged_primary(&self) -> bool {
        self.own.entry().is_some_and(|group| self.silence.has_acknowledged(group))
    }

    /// Returns the times of leases in the settings of the newest cluster map.
    pub fn lease_times(&self) -> LeaseTimes {
        self.limits.members.lease_times(self.own.map())
    }

    /// Returns the engine. Checkpoints and checks of invariants use it.
    pub fn engine(&self) -> &E {
        &self.engine
    }

    /// Returns the engine, for example for a checkpoint.
    pub fn engine_mut(&mut self) -> &mut E {
        &mut self.engine
    }

    /// Returns the last record of the log. The member may not have compared this record with the
    /// primary's record yet.
    pub fn last_logged(&self) -> Lsn {
        self.records.last()
    }

    /// Returns the highest epoch of the records in the log, including records that later records
    /// have replaced. The member must not become the primary according to a map of a lower epoch.
    pub fn newest_epoch(&self) -> Epoch {
        self.own.newest_epoch()
    }

    /// Returns the last synced record. The member may not have compared this record with the
    /// primary's record yet.
    pub fn synced(&self) -> Lsn {
        self.sync.synced()
    }

    /// Returns the progress that the backup member reports to the primary.
    pub fn held(&self) -> LogHeld {
        let synced = self.sync.synced().min(self.matched);
        LogHeld {
            epoch: self.epoch(),
            appended: if self.confirms_only_synced { synced } else { self.matched },
            synced,
            ship_after: self.matched,
            is_behind: false,
            needs_copy: false,
            process: self.completeness.process,
            lease_ms: milliseconds(self.lease_times().granted_lease()),
        }
    }

    fn epoch(&self) -> Epoch {
        self.own.epoch()
    }

    fn set_map(&mut self, map: Arc<ClusterMap>) {
        if let Some(before) = self.own.set_map(map) {
            // If epochs were skipped, management was restored from a backup, so another member may
            // have newer records.
            self.completeness.begin_epoch(has_skipped(before, self.epoch()));
            // The new epoch may have another primary, with other records.
            self.matched = self.records.before();
            // Management refuses all requests of the earlier epoch.
            self.confirms_only_synced = false;
            self.silence.begin_epoch(self.now);
        }
    }

    fn on_request(&mut self, connection: ConnectionId, header: Header, body: &[u8]) -> Result<()> {
        let protocol = |error: Error| Err(Error::new(ErrorCode::Protocol, error.context()));
        if let Err(refusal) = self.own.admit(&header) {
            self.reply(connection, header, Err(refusal));
            return Ok(());
        }
        self.silence.received(self.own.entry(), self.now);
        if self.completeness.diverges {
            self.reply(connection, header, Err(self.divergence()));
            return Ok(());
        }
        match header.message {
            ShipLog::ID => {
                let reply = match ShipLog::from_bytes(body) {
                    Ok(ship) => self.receive(ship)?,
                    Err(error) => protocol(error),
                };
                self.reply(connection, header, reply);
            }
            CopyStore::ID => {
                let state = (self.matched, (self.epoch(), self.own.serves()));
                let copied = CopyStore::from_bytes(body)
                    .map(|part| self.completeness.answer_copy(&part, state.0, state.1));
                let result = copied
                    .map(|it| it.to_bytes())
                    .map_err(|error| Error::new(ErrorCode::Protocol, error.context()));
                self.actions.push(Action::Reply { connection, request: header, result });
            }
            _ => match AwaitLogSync::from_bytes(body) {
                Ok(request) => self.await_sync(connection, header, &request),
                Err(error) => self.reply(connection, header, protocol(error)),
            },
        }
        Ok(())
    }

    /// Replies to a request of the primary. A successful reply grants a lease.
    fn reply(&mut self, connection: ConnectionId, request: Header, reply: Result<LogHeld>) {
        if reply.is_ok() {
            self.silence.promise(self.now + self.lease_times().take_over_after);
        }
        let result = reply.map(|held| held.to_bytes());
        self.actions.push(Action::Reply { connection, request, result });
    }

    /// Returns the error for all requests to this member while its store diverges.
    fn divergence(&self) -> Error {
        let (target, group, stored) = (self.own.target, self.own.group, self.records.before());
        let what = format!(
            "target {target} cannot follow the primary of group {group}: the store of the target \
             has changes up to record {stored} that the group lacks, since the group has continued \
             with older data"
        );
        Error::new(ErrorCode::Corrupt, what)
    }

    /// Whether this member may ask management to make it the primary. A primary that lacks records
    /// sends this request too, so that management can compare the last records of all members.
    fn may_ask(&self) -> bool {
        let is_role = self.own.serves() || self.lacks_records() && self.own.is_primary();
        is_role && self.has_synced_all() && !self.diverges()
    }

    /// Whether the device has all records of the log.
    fn has_synced_all(&self) -> bool {
        self.sync.synced() == self.records.last()
    }

    /// Asks management to make this member the primary, if the primary has been silent for too
    /// long.
    fn ask_to_take_over(&mut self) {
        let after = self.lease_times().take_over_after;
        if !self.may_ask() || !self.silence.asks(after, self.now) {
            return;
        }
        let last = self.records.last();
        let last_epoch = self.records.last_epoch().unwrap_or(self.records.epoch_before());
        let (group, epoch, target) = (self.own.group, self.epoch(), self.own.target);
        let lacks_records = self.lacks_records();
        // The caller adds the state of the group, which is in the member mark of this target.
        let record = GroupRecord::default();
        let request = AskTakeOver { group, epoch, target, lacks_records, last_epoch, last, record };
        self.confirms_only_synced |= !lacks_records;
        self.actions.push(Action::AskTakeOver(request));
    }

    /// Returns the last record whose changes the store may contain. This record is safe, and this
    /// member has synced it.
    fn last_to_store(&self) -> Lsn {
        self.safe.min(self.sync.synced()).min(self.matched)
    }

    /// Whether [`Self::handle`] begins with a write to the store. The caller should first submit
    /// all operations that it has begun, because the write blocks the thread.
    pub fn has_to_store(&self) -> bool {
        self.last_to_store() > self.records.before()
    }

    /// Writes the changes of records to the store that the store may contain and lacks. The primary
    /// waits for the replies of the batch that made them safe, so the next batch does this.
    fn store(&mut self) -> Result<()> {
        if !self.has_to_store() {
            return Ok(());
        }
        let last = self.last_to_store();
        let mut changes = Mutations::new();
        for record in self.records.take_up_to(last) {
            let batch = Batch::from_bytes(&record.payload).map_err(|error| {
                error.within(format_args!("cannot apply log record {}", record.lsn))
            })?;
            let mutations = batch.mutations.into_iter();
            changes.extend(mutations.map(|it| (it.key.0, it.value.map(|value| value.0))));
        }
        self.engine.apply(&changes, last)?;
        if self.checkpoints.begin(self.limits.checkpoint_log_bytes) {
            self.actions.push(Action::Checkpoint { lsn: last });
        }
        Ok(())
    }

    fn await_sync(&mut self, connection: ConnectionId, header: Header, request: &AwaitLogSync) {
        let oldest = self.waits.push((connection, header), request.synced, self.now);
        if let Some(SyncWait { connection, header, .. }) = oldest {
            self.reply(connection, header, Ok(self.held()));
        }
    }

    /// Replies to the `AwaitLogSync` requests whose wait has ended, because of a sync, the maximum
    /// waiting time or a new epoch.
    fn end_waits(&mut self) {
        let held = self.held();
        for wait in self.waits.take_ended(&held, self.now) {
            self.reply(wait.connection, wait.header, Ok(held));
        }
    }

    /// Checks the invariants of the type.
    ///
    /// # Panics
    /// Panics if an invariant is violated. The message is the violated invariant.
    pub fn check_invariants(&self) {
        let (stored, last) = (self.records.before(), self.records.last());
        let matched = self.matched;
        assert!(
            stored <= matched && matched <= last,
            "stored ({stored}) <= compared ({matched}) <= last record ({last})"
        );
        let synced = self.sync.synced();
        assert!(stored <= synced && synced <= last, "{stored} <= synced ({synced}) <= {last}");
        assert!(stored <= self.safe, "the store has safe records only");
        self.records.check_invariants();
        self.waits.check_invariants();
    }
}
