//! The process of a metadata target: the real state machine, with a simulated log disk and an
//! engine in memory.

use crate::backup::BackupProcess;
use crate::disk::{LogDisk, SyncPoint};
use crate::knobs::{Knobs, PlantedBug, SLOW_SYNC_MICROS, USUAL_SYNC_MICROS};
use crate::network::{Node, Purpose};
use crate::plants;
use crate::replay;
use crate::world::{Phase, SimEvent, World, backup_of};
use skep_format::log::{LogOwner, Record};
use skep_format::metadata::{Batch, Key, Mutation};
use skep_metadata::engine::Engine;
use skep_metadata::engine::memory::MemoryEngine;
use skep_metadata::limits::SYNC_INTERVAL;
use skep_metadata::target::{Action, Event, MetadataTarget, Start};
use skep_types::codec::Codec;
use skep_types::{ClusterId, ClusterMap, Epoch, GroupId, Lsn, MapVersion, Result, TargetId};
use skep_wire::Request;
use skep_wire::frame::Header;
use skep_wire::metadata::{CompareSlots, ConfirmPrepared};
use std::sync::Arc;
use std::time::Duration;

/// Maximum time for which a process waits for the CPU.
const LONGEST_CPU_WAIT: Duration = Duration::from_millis(1);

/// The state of a stopped target: its engine, and the records of its log.
pub(crate) type StoppedState = (MemoryEngine, Vec<Record>);

/// The process of a metadata target. The process may be running or stopped.
#[derive(Debug)]
pub(crate) struct TargetProcess {
    pub(crate) life: u64,
    pub(crate) running: Option<MetadataTarget<MemoryEngine>>,
    /// The target that is the primary of the group at the moment.
    pub(crate) target: TargetId,
    /// Epoch of the group according to the cluster map that the process has.
    pub(crate) epoch: Epoch,
    /// Version of the cluster map that is in the target's replies to clients.
    pub(crate) fence: MapVersion,
    pub(crate) backup: Option<BackupProcess>,
    /// If the next start continues with the memory of a backup member, the LSN of the last synced
    /// record. `None` means that the next start reads the log.
    pub(crate) resumes_at: Option<Lsn>,
    /// LSN of the last record that the target has synced. A planted bug uses this field.
    pub(crate) synced: Lsn,
    /// The ends of earlier logs of the group. The simulation adds an entry when a member continues
    /// without records that the other member may still have. An entry contains the LSN of the last
    /// record in the group's log, and the new epoch.
    pub(crate) ends: Vec<(Lsn, Epoch)>,
    pub(crate) stopped: Option<StoppedState>,
    pub(crate) disk: LogDisk,
    pub(crate) inbox: Vec<Event>,
    is_scheduled: bool,
    /// Whether the process has not handled a batch yet.
    is_starting: bool,
    /// Whether the target's disk is full.
    is_full: bool,
    ticks: u64,
    /// The LSNs of the records that no finished sync covers, each with the time when it was
    /// appended.
    unsynced: Vec<(Lsn, Duration)>,
    /// Whether the host has lost power, and clients may still have to replay lost changes.
    has_lost_power: bool,
}

impl TargetProcess {
    pub(crate) fn new(index: usize, knobs: &Knobs, cluster: ClusterId) -> Self {
        let owner = LogOwner { cluster, target: TargetId::new(index as u32 + 1) };
        Self {
            life: 0,
            running: None,
            target: owner.target,
            epoch: Epoch::new(1),
            fence: MapVersion::default(),
            backup: knobs
                .has_backups
                .then(|| BackupProcess::new(backup_of(knobs, index), knobs, cluster)),
            resumes_at: None,
            synced: Lsn::default(),
            ends: Vec::new(),
            stopped: Some((MemoryEngine::default(), Vec::new())),
            disk: LogDisk::new(owner, knobs.segment_bytes),
            inbox: Vec::new(),
            is_scheduled: false,
            is_starting: false,
            is_full: false,
            ticks: 0,
            unsynced: Vec::new(),
            has_lost_power: false,
        }
    }

    /// Whether the target has no work in flight and has synced all its records.
    pub(crate) fn is_idle(&self) -> bool {
        let is_idle = self.running.as_ref().is_some_and(MetadataTarget::is_idle);
        let is_work = |event: &Event| !matches!(event, Event::Tick | Event::FreeSpace { .. });
        let has_work = self.inbox.iter().any(is_work);
        is_idle && !has_work && self.unsynced.is_empty()
    }
}

impl World {
    /// Starts a target from its log and its engine.
    pub(crate) fn start_target(&mut self, index: usize) {
        let start = Start {
            group: GroupId::new(index as u32 + 1),
            target: self.targets[index].target,
            epoch: Epoch::default(),
            counted: Vec::new(),
            synced: self.targets[index].resumes_at,
            policy: self.knobs.policy,
            limits: self.knobs.limits.clone(),
            map: Arc::clone(&self.map),
            now: self.now,
            wall: self.wall(),
        };
        let plant = self.knobs.plant;
        let replays = self.knobs.replays;
        let process = &mut self.targets[index];
        let Some((mut engine, mut records)) = process.stopped.take() else { return };
        process.resumes_at = None;
        let epoch = records.last().map(|it| it.epoch).unwrap_or_default();
        let start = Start { epoch, ..start };
        let known = applied(&engine).unwrap_or_default();
        plants::forget(plant, &mut engine, known, &mut records);
        match MetadataTarget::open(engine, records, start) {
            Ok(mut target) => {
                if replays && process.has_lost_power {
                    if plant != Some(PlantedBug::SkipReplayWindow) {
                        target.await_replay();
                    }
                    self.witness.replay_opened(index, self.now);
                }
                process.running = Some(target);
                process.is_starting = true;
                process.life += 1;
                process.fence = MapVersion::default();
                process.inbox.clear();
                process.is_scheduled = false;
                self.note_epoch(index);
                self.report_free_space(index);
            }
            Err(error) => self.fail(format!("target {index} does not start: {error}")),
        }
    }

    /// Delivers a request to a target.
    pub(crate) fn deliver_request(
        &mut self,
        target: usize,
        connection: u64,
        header: Header,
        body: Vec<u8>,
    ) {
        let body = replay::planted(self.knobs.plant, &header, body);
        let id = (header.session, header.slot, header.sequence);
        self.witness.request_arrived(id, &self.targets[target].inbox);
        self.targets[target].inbox.push(Event::Request { connection, header, body });
        self.wake_target(target);
    }

    /// Delivers the reply to a call of the target.
    pub(crate) fn deliver_answer(&mut self, target: usize, call: u64, result: Result<Vec<u8>>) {
        self.targets[target].inbox.push(Event::Answer { call, result });
        self.wake_target(target);
    }

    /// Fills a target's disk, or frees space on the disk.
    pub(crate) fn set_full(&mut self, target: usize, is_full: bool) {
        self.targets[target].is_full = is_full;
        self.report_free_space(target);
    }

    fn report_free_space(&mut self, target: usize) {
        let process = &mut self.targets[target];
        let shortage = process.is_full.then(|| format!("the disk of target {target} is full"));
        process.inbox.push(Event::FreeSpace { shortage });
        self.wake_target(target);
    }

    /// Delivers a cluster map to a target.
    pub(crate) fn deliver_map(&mut self, target: usize, map: Arc<ClusterMap>) {
        if self.targets[target].running.is_some() {
            self.targets[target].inbox.push(Event::Map(map));
            self.note_epoch(target);
            self.wake_target(target);
        }
    }

    /// Updates the epoch in the target's later requests.
    fn note_epoch(&mut self, target: usize) {
        let group = self.map.group(GroupId::new(target as u32 + 1));
        self.targets[target].epoch = group.map(|it| it.epoch).unwrap_or_default();
    }

    pub(crate) fn wake_target(&mut self, target: usize) {
        let process = &mut self.targets[target];
        if process.running.is_some() && !process.is_scheduled {
            process.is_scheduled = true;
            let life = process.life;
            let pause = self.random.micros(2, 150);
            self.after(pause, SimEvent::Run { target, life });
        }
    }

    pub(crate) fn tick_target(&mut self, target: usize, ticks: u64) {
        if self.targets[target].ticks == ticks {
            self.targets[target].inbox.push(Event::Tick);
            self.wake_target(target);
        }
    }

    pub(crate) fn synced(&mut self, target: usize, life: u64, lsn: Lsn, point: &SyncPoint) {
        let process = &mut self.targets[target];
        if process.life != life || process.running.is_none() {
            return;
        }
        process.disk.end_sync(point);
        process.unsynced.retain(|(record, _)| *record > lsn);
        process.synced = lsn;
        if self.knobs.plant != Some(PlantedBug::SyncTooSoon) {
            process.inbox.push(Event::Synced { lsn });
        }
        self.plant_at_sync(target, lsn);
        self.wake_target(target);
    }

    pub(crate) fn checkpointed(&mut self, target: usize, life: u64, lsn: Lsn) {
        let process = &mut self.targets[target];
        let Some(running) = process.running.as_mut().filter(|_| process.life == life) else {
            return;
        };
        running.engine_mut().checkpoint();
        process.disk.trim(lsn);
        process.inbox.push(Event::Checkpointed { lsn });
        self.wake_target(target);
    }

    /// Runs the target's handler with the events that have arrived. Executes the actions that the
    /// handler returns.
    pub(crate) fn run_target(&mut self, index: usize, life: u64) {
        let (now, wall) = (self.now, self.wall());
        let process = &mut self.targets[index];
        let Some(running) = process.running.as_mut().filter(|_| process.life == life) else {
            return;
        };
        process.is_scheduled = false;
        let events = std::mem::take(&mut process.inbox);
        let actions = match running.handle(events, now, wall) {
            Ok(actions) => actions,
            Err(error) => return self.fail(format!("target {index} has failed: {error}")),
        };
        if let Err(error) = running.check_invariants() {
            return self.fail(format!("target {index} cannot read its store: {error}"));
        }
        if running.stuck_transactions() > 0 {
            return self.fail(format!("target {index} cannot carry out a decision"));
        }
        process.ticks += 1;
        process.has_lost_power &= running.is_replaying();
        process.fence = running.fence();
        let (ticks, due) = (process.ticks, running.next_tick().max(now + Duration::from_micros(1)));
        self.at(due, SimEvent::Tick { target: index, ticks });
        // The process may be killed at any moment, even between two actions that the handler
        // returned in one call.
        let faults = self.knobs.faults;
        let may_end = (faults.kills || faults.power_losses) && self.phase == Phase::Busy;
        let ends_after =
            (may_end && self.random.below(400) == 0).then(|| self.random.index(actions.len() + 1));
        for (number, action) in actions.into_iter().enumerate() {
            if ends_after == Some(number) {
                break;
            }
            self.act(index, action);
        }
        self.targets[index].is_starting = false;
        if ends_after.is_some() {
            let is_power_loss = faults.power_losses && (!faults.kills || self.random.percent(50));
            self.end_target(index, is_power_loss);
        }
    }

    fn act(&mut self, index: usize, action: Action) {
        match action {
            Action::Append { epoch, lsn, synced, payload } => {
                self.trace.note(self.now, || describe(index, lsn, &payload));
                let process = &mut self.targets[index];
                if let Err(error) = process.disk.append(epoch, lsn, synced, &payload) {
                    return self.fail(format!("target {index}, record {lsn}: {error}"));
                }
                process.unsynced.push((lsn, self.now));
                self.plant_at_append(index, lsn, &payload);
                self.note_truncations(index, lsn, &payload);
                let (storages, targets) = (&self.storages, self.targets.len());
                let size = |record: &_| Self::chunk_size(storages, targets, record);
                let result = self.witness.check_record(index, lsn, &payload, &size);
                self.check(result);
                let until = (self.now, self.knobs.lease);
                let result = self.witness.check_replay_order(index, &payload, until);
                self.check(result);
            }
            Action::Sync { lsn } => {
                let is_slow = self.knobs.faults.slowness && self.random.percent(10);
                let most = if is_slow { SLOW_SYNC_MICROS } else { USUAL_SYNC_MICROS };
                let pause = self.random.micros(50, most);
                let process = &mut self.targets[index];
                let (life, point) = (process.life, process.disk.begin_sync());
                if self.knobs.plant == Some(PlantedBug::SyncTooSoon) {
                    process.inbox.push(Event::Synced { lsn });
                    self.wake_target(index);
                }
                self.after(pause, SimEvent::Synced { target: index, life, lsn, point });
            }
            // Ignore this request. The model of management changes groups only when a process ends
            // or starts (`take_over`).
            Action::ChangeGroup(_) => {}
            Action::Evict { client, unless_heard } => {
                // Some requests to management are lost. The target repeats a lost request.
                if self.random.percent(80) {
                    let pause = self.random.micros(100, 50_000);
                    self.after(pause, SimEvent::Evict { client, unless_heard });
                }
            }
            Action::Reply { connection, request, result } => {
                let tag = request.tag;
                self.trace.note(self.now, || format!("target {index} replies to tag {tag}"));
                let plant = self.knobs.plant;
                let result = result.map(|body| plants::reply(plant, request.message, body));
                if let (Ok(body), CompareSlots::ID) = (&result, request.message) {
                    self.check_slots(index, request.session, body);
                }
                if let (Ok(body), ConfirmPrepared::ID) = (&result, request.message) {
                    self.note_confirmed(index, tag, body);
                }
                let number = ((connection, tag), request.sequence);
                self.network.change_numbers.extend(result.is_ok().then_some(number));
                self.reply(connection, request.tag, result);
            }
            Action::Call { call, request } => {
                let plant = self.knobs.plant;
                let is_starting = self.targets[index].is_starting;
                let (message, body) = (request.message, &request.body);
                let reply = plants::suppressed_call(plant, message, body, is_starting);
                if let Some(reply) = reply {
                    return self.deliver_answer(index, call, reply);
                }
                let running = self.targets[index].running.as_ref();
                let header = Header {
                    message: request.message,
                    message_version: request.message_version,
                    lowest_map: running.map(MetadataTarget::fence).unwrap_or_default(),
                    ..Header::default()
                };
                let node = Node::Target(index);
                self.call(node, request.group, header, request.body, Purpose::Target(call));
            }
            Action::SendToMember(request) => self.send_to_member(index, &request),
            Action::Truncate { after } => {
                self.fail(format!("primary {index} removes records after {after}"));
            }
            Action::AskTakeOver(request) => {
                self.fail(format!("primary {index} must not ask to take over: {request:?}"));
            }
            Action::ReadLog(read) => self.fail(format!("primary {index} must not read {read:?}")),
            Action::Checkpoint { lsn } => {
                let life = self.targets[index].life;
                let pause = self.random.micros(500, 30_000);
                self.after(pause, SimEvent::Checkpointed { target: index, life, lsn });
            }
        }
    }

    /// Ends the process of a target. After a kill, all written bytes are preserved. After a power
    /// loss, only the synced bytes are certain to be preserved.
    pub(crate) fn end_target(&mut self, index: usize, is_power_loss: bool) {
        let process = &mut self.targets[index];
        let Some(running) = process.running.take() else { return };
        self.faults += 1;
        self.trace.note(self.now, || format!("target {index} ends, power loss: {is_power_loss}"));
        let mut engine = running.engine().clone();
        if is_power_loss || self.random.percent(50) {
            let survivors = self.random.index(engine.batches_since_checkpoint() + 1);
            engine = engine.after_power_loss(survivors);
        }
        let oldest = process.unsynced.first().map(|(_, at)| *at);
        process.has_lost_power |= is_power_loss;
        if is_power_loss {
            process.disk.power_loss(&mut self.random);
        }
        let last_written = process.unsynced.last().map(|(lsn, _)| *lsn);
        process.unsynced.clear();
        let records = match process.disk.recover() {
            Ok(records) => records,
            Err(error) => return self.fail(format!("target {index} cannot read its log: {error}")),
        };
        // A trimmed log may have no record after the checkpoint. So also consider the last record
        // that the checkpoint covers.
        let last = records.last().map(|it| it.lsn).max(applied(&engine));
        process.stopped = Some((engine, records));
        if let Some(lost_from) = oldest.filter(|_| is_power_loss) {
            self.check_age(index, lost_from);
        }
        if !is_power_loss && last_written.is_some_and(|written| last != Some(written)) {
            return self.fail(format!("a kill of target {index} lost records: {last:?}"));
        }
        self.forget_truncations_of_removed();
        if self.targets[index].backup.is_some() {
            let last = self.choose_primary(index, is_power_loss);
            self.forget_truncations(index, last);
        } else if is_power_loss {
            self.forget_truncations(index, last.unwrap_or_default());
            let result = self.witness.power_loss(index, last.unwrap_or_default());
            self.check(result);
        }
        let node = Node::Target(index);
        self.network.forget_calls(node);
        self.break_all(node, if is_power_loss { 1_500_000 } else { 5_000 });
        let pause = self.random.micros(500, 600_000);
        self.after(pause, SimEvent::Restart { node });
    }

    /// Checks the losses of a power loss with the sync policy `interval`. At most the records of
    /// one sync interval may be lost. On slow disks, the records of two syncs may be lost: the sync
    /// in flight, and the next sync. The next sync covers the records that the target appended
    /// during the sync in flight.
    fn check_age(&mut self, index: usize, oldest: Duration) {
        let is_slow = self.knobs.faults.slowness;
        let two_slow_syncs = Duration::from_micros(2 * SLOW_SYNC_MICROS);
        let longest = if is_slow { two_slow_syncs } else { SYNC_INTERVAL };
        let age = self.now - oldest;
        if age > longest + LONGEST_CPU_WAIT {
            self.fail(format!("target {index} left a record unsynced for {age:?}"));
        }
    }
}

/// Formats a record as a line of the trace.
fn describe(index: usize, lsn: Lsn, payload: &[u8]) -> String {
    let batch = Batch::from_bytes(payload);
    let changes = batch.map(|it| it.mutations).unwrap_or_default();
    let show = |change: &Mutation| {
        let sign = if change.value.is_some() { '+' } else { '-' };
        format!(" {sign}{}", change.key.0.escape_ascii())
    };
    format!("target {index} logs {lsn}:{}", changes.iter().map(show).collect::<String>())
}

/// Returns the LSN of the last record whose effect an engine contains.
pub(crate) fn applied(engine: &MemoryEngine) -> Option<Lsn> {
    let value = engine.get(&Key::Applied.to_bytes()).ok().flatten();
    value.and_then(|it| Lsn::from_bytes(&it).ok())
}
