//! Simulates the second member of a metadata target's group. The backup member runs the real code
//! ([`skep_metadata::shipping::backup`]), with a simulated log disk and an engine in memory. The
//! module also simulates the network between the primary and the backup member.
//!
//! `take_over` changes the roles of the members.
//!
//! # Faults
//! The simulated network between the members loses, duplicates, delays and reorders requests and
//! replies. Some messages arrive after the members have changed roles. Faults kill the processes of
//! backup members, and power losses stop their hosts.

use crate::disk::{LogDisk, SyncPoint};
use crate::knobs::{Knobs, PlantedBug, SLOW_SYNC_MICROS, USUAL_SYNC_MICROS};
use crate::target::{StoppedState, applied};
use crate::world::{Phase, SimEvent, World};
use skep_format::log::LogOwner;
use skep_metadata::engine::Engine;
use skep_metadata::engine::Mutations;
use skep_metadata::engine::memory::MemoryEngine;
use skep_metadata::shipping::backup::{Backup, Stopped};
use skep_metadata::shipping::{MemberMessage, MemberRequest};
use skep_metadata::target::{Action, Event, Start, SyncPolicy};
use skep_types::codec::Codec;
use skep_types::{ClusterId, Epoch, GroupId, Lsn, Result, TargetId};
use skep_wire::Request;
use skep_wire::frame::Header;
use skep_wire::log_shipping::{AwaitLogSync, CopyStore, LogHeld, ShipLog};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Maximum delay of a message between members on a network that is not slow, in microseconds.
const USUAL_TRAVEL_MICROS: u64 = 3_000;
/// Maximum delay of a message between members on a slow network, in microseconds.
const SLOW_TRAVEL_MICROS: u64 = 60_000;
/// Maximum delay of the few messages that arrive very late, in microseconds.
const LATE_TRAVEL_MICROS: u64 = 1_500_000;

/// Identifies the sender of a request between members: its target, and the id of its process.
pub(crate) type Sender = (TargetId, u64);

/// The simulated process of a group's backup member.
#[derive(Debug)]
pub(crate) struct BackupProcess {
    /// The target that is currently the backup member. A take-over exchanges the roles of a group's
    /// two targets.
    pub(crate) target: TargetId,
    pub(crate) running: Option<Backup<MemoryEngine>>,
    pub(crate) stopped: Option<StoppedState>,
    pub(crate) disk: LogDisk,
    /// Id of the current process. Each start of the backup member's process gets a new id.
    life: u64,
    inbox: Vec<Event>,
    is_scheduled: bool,
    /// Whether the member may take over, because it has every record that both members had
    /// appended. After a power loss, the member must first receive all records up to
    /// `catches_up_at`.
    pub(crate) is_caught_up: bool,
    pub(crate) catches_up_at: Lsn,
    /// Requests to the backup member that have no reply yet. The key is a connection id, which the
    /// simulation assigns to each request. The value is the sender, and the sender's id for the
    /// request.
    requests: BTreeMap<u64, (Sender, u64)>,
    /// Latest arrival time of the messages that arrive in the order in which they were sent. The
    /// first element is for messages to the backup member, the second for messages to the primary.
    last_arrival: [Duration; 2],
    /// The records that the primary has not synced yet. Only the planted bug `StoreAheadOfSafe`
    /// uses this list.
    unsynced: Vec<(Lsn, Vec<u8>)>,
}

impl BackupProcess {
    /// Creates the backup member of a new group.
    pub(crate) fn new(target: TargetId, knobs: &Knobs, cluster: ClusterId) -> Self {
        let disk = LogDisk::new(LogOwner { cluster, target }, knobs.segment_bytes);
        Self::stopped(target, disk, (MemoryEngine::default(), Vec::new()))
    }

    /// Creates a stopped member from its log disk, and from the engine and the records in `state`.
    pub(crate) fn stopped(target: TargetId, disk: LogDisk, state: StoppedState) -> Self {
        Self {
            target,
            running: None,
            stopped: Some(state),
            disk,
            life: 0,
            inbox: Vec::new(),
            is_scheduled: false,
            is_caught_up: true,
            catches_up_at: Lsn::default(),
            requests: BTreeMap::new(),
            last_arrival: [Duration::ZERO; 2],
            unsynced: Vec::new(),
        }
    }

    /// Returns the LSN of the last record that the backup member has synced.
    pub(crate) fn synced(&self) -> Lsn {
        let stopped = self.stopped.as_ref();
        let stopped = stopped.map(|(engine, records)| {
            records.last().map(|it| it.lsn).max(applied(engine)).unwrap_or_default()
        });
        self.running.as_ref().map(Backup::synced).or(stopped).unwrap_or_default()
    }

    /// Ends the process. Returns its engine and its records in memory. With the engine and the
    /// records, a new primary can continue without reading the log.
    pub(crate) fn end(&mut self) -> Option<Stopped<MemoryEngine>> {
        self.inbox.clear();
        self.requests.clear();
        self.running.take().map(Backup::into_stopped)
    }

    /// Ends the process. Reads the log from the simulated disk, as the next start of the process
    /// does.
    pub(crate) fn recover(&mut self) -> Result<()> {
        if let Some(Stopped { engine, .. }) = self.end() {
            self.stopped = Some((engine, Vec::new()));
        }
        if let Some((_, records)) = &mut self.stopped {
            *records = self.disk.recover()?;
        }
        Ok(())
    }
}

impl World {
    /// Starts the backup member of a group from its log and its engine.
    pub(crate) fn start_backup(&mut self, index: usize) {
        let start = Start {
            group: GroupId::new(index as u32 + 1),
            target: TargetId::default(),
            epoch: Epoch::default(),
            counted: Vec::new(),
            synced: None,
            policy: SyncPolicy::Interval,
            limits: self.knobs.limits.clone(),
            map: Arc::clone(&self.map),
            now: self.now,
            wall: self.wall(),
        };
        let life = self.new_life();
        let Some(backup) = &mut self.targets[index].backup else { return };
        let Some((engine, records)) = backup.stopped.take() else { return };
        let start = Start { target: backup.target, ..start };
        match Backup::open(engine, records, start, Duration::ZERO) {
            Ok(running) => {
                backup.running = Some(running);
                backup.life = life;
                backup.is_scheduled = false;
                self.put_to_backup(index, Event::Tick);
            }
            Err(error) => self.fail(format!("backup {index} does not start: {error}")),
        }
    }

    fn put_to_backup(&mut self, index: usize, event: Event) {
        let Some(backup) = self.targets[index].backup.as_mut() else { return };
        if backup.running.is_none() {
            return;
        }
        backup.inbox.push(event);
        if !std::mem::replace(&mut backup.is_scheduled, true) {
            let life = backup.life;
            let pause = self.random.micros(2, 150);
            self.after(pause, SimEvent::RunBackup { target: index, life });
        }
    }

    /// Delivers the newest cluster map to a backup member.
    pub(crate) fn deliver_map_to_backup(&mut self, index: usize) {
        let map = Arc::clone(&self.map);
        self.put_to_backup(index, Event::Map(map));
    }

    // ---- messages

    /// Draws a random arrival time for a message that is sent now. `direction` is 0 for a message
    /// to the backup member, and 1 for a message to the primary. `None` means that the message is
    /// lost.
    fn arrival(&mut self, index: usize, direction: usize) -> Option<Duration> {
        let is_busy = self.phase == Phase::Busy;
        let is_faulty = is_busy && self.knobs.faults.breaks;
        if is_faulty && self.random.percent(2) {
            return None;
        }
        let is_late = is_faulty && self.random.percent(2);
        let is_slow = self.knobs.faults.slowness && self.random.percent(5);
        let is_in_order = !is_faulty || self.random.percent(90);
        let most = match (is_late, is_slow) {
            (true, _) => LATE_TRAVEL_MICROS,
            (_, true) => SLOW_TRAVEL_MICROS,
            _ => USUAL_TRAVEL_MICROS,
        };
        let arrival = self.now + self.random.micros(50, most);
        let backup = self.targets[index].backup.as_mut()?;
        if is_late || !is_in_order {
            return Some(arrival);
        }
        let last = &mut backup.last_arrival[direction];
        *last = arrival.max(*last);
        Some(*last)
    }

    /// Sends a request of the primary to the backup member.
    pub(crate) fn send_to_member(&mut self, index: usize, request: &MemberRequest) {
        let process = &self.targets[index];
        let from = (process.target, process.life);
        if self.knobs.plant == Some(PlantedBug::AnswerBeforeHeld)
            && let (MemberMessage::Ship(ship), Some(backup)) = (&request.message, &process.backup)
        {
            let last = Lsn::new(ship.first.raw() + ship.records.len() as u64 - 1);
            self.pretend_progress(index, last, backup.synced());
        }
        let copies = if self.knobs.faults.breaks && self.random.percent(3) { 2 } else { 1 };
        for _ in 0..copies {
            let Some(arrival) = self.arrival(index, 0) else { continue };
            let request = request.clone();
            self.at(arrival, SimEvent::ToMember { target: index, from, request });
        }
    }

    /// Handles a request that arrives at the receiving target. The target may have changed its role
    /// since the primary sent the request.
    pub(crate) fn receive_from_primary(
        &mut self,
        index: usize,
        from: Sender,
        request: &MemberRequest,
    ) {
        let (epoch, message, body) = match &request.message {
            MemberMessage::Ship(ship) => (ship.epoch, ShipLog::ID, ship.to_bytes()),
            MemberMessage::AwaitSync(wait) => (wait.epoch, AwaitLogSync::ID, wait.to_bytes()),
            MemberMessage::Copy(part) => (part.epoch, CopyStore::ID, part.to_bytes()),
        };
        let connection = self.new_life();
        let group = GroupId::new(index as u32 + 1);
        let header = Header {
            message,
            group,
            epoch,
            sender_group: group,
            sender_epoch: epoch,
            ..Header::default()
        };
        if self.targets[index].target == request.member {
            if self.targets[index].running.is_some() {
                self.targets[index].inbox.push(Event::Request { connection, header, body });
                self.wake_target(index);
            }
            return;
        }
        let is_planted = self.knobs.plant == Some(PlantedBug::AcceptOlderEpoch);
        let Some(backup) = &mut self.targets[index].backup else { return };
        let Some(running) = &backup.running else { return };
        backup.requests.insert(connection, (from, request.number));
        let event = match &request.message {
            MemberMessage::Ship(ship) if is_planted => {
                let epoch = running.held().epoch;
                let header = Header { epoch, sender_epoch: epoch, ..header };
                let body = ShipLog { epoch, ..ship.clone() }.to_bytes();
                Event::Request { connection, header, body }
            }
            _ => Event::Request { connection, header, body },
        };
        self.put_to_backup(index, event);
    }

    fn reply_to_primary(&mut self, index: usize, connection: u64, result: &Result<Vec<u8>>) {
        let Some(backup) = &mut self.targets[index].backup else { return };
        let member = backup.target;
        let Some((to, number)) = backup.requests.remove(&connection) else { return };
        let decoded = match result {
            Ok(body) => LogHeld::from_bytes(body),
            Err(error) => Err(error.clone()),
        };
        let Some(arrival) = self.arrival(index, 1) else { return };
        let reply = MemberReply { member, to, number, result: decoded };
        self.at(arrival, SimEvent::FromMember { target: index, reply });
    }

    /// Handles the arrival of a reply. Passes the reply to the process that sent the request, if
    /// this process still runs.
    pub(crate) fn receive_from_member(&mut self, index: usize, reply: MemberReply) {
        let MemberReply { member, to, number, result } = reply;
        let process = &mut self.targets[index];
        if process.running.is_some() && (process.target, process.life) == to {
            process.inbox.push(Event::MemberReply { member, number, result });
            self.wake_target(index);
        }
    }

    // ---- the process

    /// Runs the backup member on the events that have arrived.
    pub(crate) fn run_backup(&mut self, index: usize, life: u64) {
        let now = self.now;
        let Some(backup) = self.targets[index].backup.as_mut().filter(|it| it.life == life) else {
            return;
        };
        let Some(running) = &mut backup.running else { return };
        backup.is_scheduled = false;
        let actions = match running.handle(std::mem::take(&mut backup.inbox), now) {
            Ok(actions) => actions,
            Err(error) => return self.fail(format!("backup {index} has failed: {error}")),
        };
        running.check_invariants();
        backup.is_caught_up |= running.held().appended >= backup.catches_up_at;
        let due = running.next_tick().max(now + Duration::from_micros(1));
        self.at(due, SimEvent::TickBackup { target: index, life });
        for action in actions {
            self.act_as_backup(index, action);
        }
    }

    /// Handles the expiry of a timer of the backup member.
    pub(crate) fn tick_backup(&mut self, index: usize, life: u64) {
        let is_it = |it: &&mut BackupProcess| it.life == life && it.running.is_some();
        let Some(backup) = self.targets[index].backup.as_mut().filter(is_it) else { return };
        let running = backup.running.as_ref();
        // Ignore this timer if a later event has set a new timer.
        if running.is_some_and(|it| it.next_tick() <= self.now) {
            self.put_to_backup(index, Event::Tick);
        }
    }

    fn act_as_backup(&mut self, index: usize, action: Action) {
        let synced_by_primary = self.targets[index].synced;
        let Some(backup) = &mut self.targets[index].backup else { return };
        let life = backup.life;
        match action {
            Action::Append { epoch, lsn, synced, payload } => {
                let is_planted = self.knobs.plant == Some(PlantedBug::KeepPrimarySynced);
                let synced = if is_planted { synced_by_primary.max(synced) } else { synced };
                if let Err(error) = backup.disk.append(epoch, lsn, synced, &payload) {
                    self.fail(format!("backup {index}, record {lsn}: {error}"));
                }
            }
            Action::Truncate { after } => backup.disk.cut(after),
            Action::Sync { lsn } => {
                let is_slow = self.knobs.faults.slowness && self.random.percent(10);
                let most = if is_slow { SLOW_SYNC_MICROS } else { USUAL_SYNC_MICROS };
                let pause = self.random.micros(50, 2 * most);
                let point = backup.disk.begin_sync();
                self.after(pause, SimEvent::BackupSynced { target: index, life, lsn, point });
            }
            Action::Reply { connection, result, .. } => {
                self.reply_to_primary(index, connection, &result);
            }
            Action::Checkpoint { lsn } => {
                let pause = self.random.micros(500, 30_000);
                self.after(pause, SimEvent::BackupCheckpointed { target: index, life, lsn });
            }
            other => self.fail(format!("backup {index} must not return the action {other:?}")),
        }
    }

    fn backup_in(&mut self, index: usize, life: u64) -> Option<&mut BackupProcess> {
        let is_it = |it: &&mut BackupProcess| it.life == life && it.running.is_some();
        self.targets[index].backup.as_mut().filter(is_it)
    }

    /// Records that the backup member has synced its log up to `lsn`.
    pub(crate) fn backup_synced(&mut self, index: usize, life: u64, lsn: Lsn, point: &SyncPoint) {
        let Some(backup) = self.backup_in(index, life) else { return };
        backup.disk.end_sync(point);
        self.put_to_backup(index, Event::Synced { lsn });
    }

    /// Records that the backup member has made its engine durable up to `lsn`.
    pub(crate) fn backup_checkpointed(&mut self, index: usize, life: u64, lsn: Lsn) {
        let Some(backup) = self.backup_in(index, life) else { return };
        let Some(running) = &mut backup.running else { return };
        running.engine_mut().checkpoint();
        backup.disk.trim(lsn);
        self.put_to_backup(index, Event::Checkpointed { lsn });
    }

    // ---- planted bugs

    fn pretend_progress(&mut self, index: usize, appended: Lsn, synced: Lsn) {
        let process = &mut self.targets[index];
        let Some(backup) = &process.backup else { return };
        let (member, epoch) = (backup.target, process.epoch);
        let held = LogHeld {
            epoch,
            appended,
            synced,
            ship_after: appended,
            is_behind: false,
            needs_copy: false,
            process: 0,
            lease_ms: 0,
        };
        process.inbox.push(Event::MemberReply { member, number: 0, result: Ok(held) });
        self.wake_target(index);
    }

    /// If the bug `StoreAheadOfSafe` is planted, remembers a record that the primary appends.
    pub(crate) fn plant_at_append(&mut self, index: usize, lsn: Lsn, payload: &[u8]) {
        if self.knobs.plant == Some(PlantedBug::StoreAheadOfSafe)
            && let Some(backup) = &mut self.targets[index].backup
        {
            backup.unsynced.push((lsn, payload.to_vec()));
        }
    }

    /// Implements planted bugs. When the primary has synced its log up to `lsn`, the primary
    /// wrongly assumes that the backup member has synced the same records.
    pub(crate) fn plant_at_sync(&mut self, index: usize, lsn: Lsn) {
        let process = &mut self.targets[index];
        match self.knobs.plant {
            Some(PlantedBug::EffectBeforeSafe) => self.pretend_progress(index, lsn, lsn),
            Some(PlantedBug::StoreAheadOfSafe) => {
                let (Some(backup), Some(running)) = (&mut process.backup, &mut process.running)
                else {
                    return;
                };
                for (lsn, payload) in backup.unsynced.extract_if(.., |(it, _)| *it <= lsn) {
                    // Ignore the result, because an engine in memory never fails.
                    let _ = running.engine_mut().apply(&changes_of(&payload), lsn);
                }
            }
            _ => {}
        }
    }
}

fn changes_of(payload: &[u8]) -> Mutations {
    let batch = skep_format::metadata::Batch::from_bytes(payload).map(|it| it.mutations);
    let mutations = batch.unwrap_or_default().into_iter();
    mutations.map(|it| (it.key.0, it.value.map(|value| value.0))).collect()
}

/// The reply of a backup member to a request.
#[derive(Debug)]
pub(crate) struct MemberReply {
    member: TargetId,
    to: Sender,
    number: u64,
    result: Result<LogHeld>,
}
