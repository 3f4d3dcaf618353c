//! The second member of a metadata target's group: it gets the log records of the first member (the
//! primary) late, and takes over when the primary dies.
//!
//! The backup is a log disk and an engine without a state machine. Records and reports travel in
//! order, with delays. Management is not simulated: a take-over happens at the moment at which the
//! primary ends, and the ended process returns at once as the backup of the new primary. The backup
//! stores shipped records under the epoch of the primary that ships them.
//!
//! # Checks
//! - A take-over loses no change that a client has seen (`Witness::lose_unheld`).
//! - The logs of both members are equal up to the end of the shorter one.
//! - The store of no member is ahead of the log that the group continues.

use crate::disk::{LogDisk, SyncPoint};
use crate::knobs::{Knobs, PlantedBug, SLOW_SYNC_MICROS, USUAL_SYNC_MICROS};
use crate::target::applied;
use crate::world::{SimEvent, World};
use skep_format::log::{LogOwner, Record};
use skep_format::metadata::Batch;
use skep_metadata::engine::memory::MemoryEngine;
use skep_metadata::engine::{Engine, Mutations};
use skep_metadata::target::Event;
use skep_types::codec::Codec;
use skep_types::{ClusterId, Epoch, Lsn, TargetId};
use skep_wire::log_shipping::LogHeld;
use std::time::Duration;

/// Maximum time that a record or a report travels, in microseconds.
const USUAL_TRAVEL_MICROS: u64 = 3_000;
/// The same on a slow network.
const SLOW_TRAVEL_MICROS: u64 = 60_000;

/// A record on its way to the backup.
pub(crate) struct ShippedRecord {
    epoch: Epoch,
    lsn: Lsn,
    payload: Vec<u8>,
}

impl std::fmt::Debug for ShippedRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.epoch, self.lsn)
    }
}

/// The second member of a group.
#[derive(Debug)]
pub(crate) struct Backup {
    /// The target that is the backup now. The two targets of a group change roles.
    target: TargetId,
    engine: MemoryEngine,
    disk: LogDisk,
    appended: Lsn,
    synced: Lsn,
    is_syncing: bool,
    /// Record that the backup must have before it may take over.
    serves_from: Lsn,
    /// Time at which the last record on its way arrives. The connection keeps the order.
    last_record: Duration,
    /// Time at which the last report on its way arrives.
    last_report: Duration,
    /// With a planted bug: records that the primary has not synced yet.
    unsynced: Vec<(Lsn, Vec<u8>)>,
}

impl Backup {
    /// Creates an empty backup.
    pub(crate) fn new(target: TargetId, knobs: &Knobs, cluster: ClusterId) -> Self {
        let disk = LogDisk::new(LogOwner { cluster, target }, knobs.segment_bytes);
        Self::of_log(target, MemoryEngine::default(), disk, Lsn::default())
    }

    /// Creates the backup of a member whose log ends with the synced record `last`.
    fn of_log(target: TargetId, engine: MemoryEngine, disk: LogDisk, last: Lsn) -> Self {
        Self {
            target,
            engine,
            disk,
            appended: last,
            synced: last,
            is_syncing: false,
            serves_from: last,
            last_record: Duration::ZERO,
            last_report: Duration::ZERO,
            unsynced: Vec::new(),
        }
    }

    /// Returns the last record that the backup has synced.
    pub(crate) fn synced(&self) -> Lsn {
        self.synced
    }
}

/// Returns the last record of a member, from its log or from its store.
fn last_of(records: &[Record], engine: &MemoryEngine) -> Lsn {
    records.last().map(|it| it.lsn).max(applied(engine)).unwrap_or_default()
}

impl World {
    fn travel(&mut self) -> Duration {
        let is_slow = self.knobs.faults.slowness && self.random.percent(5);
        self.random.micros(50, if is_slow { SLOW_TRAVEL_MICROS } else { USUAL_TRAVEL_MICROS })
    }

    /// Connects the backup to a primary that has started with these records, and sends the records
    /// that the backup does not have.
    pub(crate) fn connect_backup(&mut self, index: usize, records: &[Record]) {
        let Some(backup) = &mut self.targets[index].backup else { return };
        backup.is_syncing = false;
        backup.unsynced.clear();
        let appended = backup.appended;
        for record in records.iter().filter(|it| it.lsn > appended) {
            self.ship(index, record.lsn, &record.payload);
        }
        self.report_progress(index);
        self.sync_backup(index);
    }

    /// Sends a record to the backup.
    pub(crate) fn ship(&mut self, index: usize, lsn: Lsn, payload: &[u8]) {
        if self.targets[index].backup.is_none() {
            return;
        }
        let travel = self.travel();
        let process = &mut self.targets[index];
        let (life, epoch) = (process.life, process.epoch);
        let Some(backup) = &mut process.backup else { return };
        backup.last_record = backup.last_record.max(self.now + travel);
        let (arrival, synced) = (backup.last_record, backup.synced);
        match self.knobs.plant {
            Some(PlantedBug::AnswerBeforeHeld) => self.progress(index, life, lsn, synced),
            Some(PlantedBug::StoreAheadOfSafe) => backup.unsynced.push((lsn, payload.to_vec())),
            _ => {}
        }
        let record = ShippedRecord { epoch, lsn, payload: payload.to_vec() };
        self.at(arrival, SimEvent::Ship { target: index, life, record });
    }

    /// Returns the backup if its primary still runs in this life: the members change roles when
    /// the primary ends.
    fn backup_in(&mut self, index: usize, life: u64) -> Option<&mut Backup> {
        let process = &mut self.targets[index];
        let is_it = process.life == life && process.running.is_some();
        process.backup.as_mut().filter(|_| is_it)
    }

    /// The backup gets a record.
    pub(crate) fn receive_record(&mut self, index: usize, life: u64, record: &ShippedRecord) {
        let Some(backup) = self.backup_in(index, life) else { return };
        if record.lsn.raw() != backup.appended.raw() + 1 {
            let (lsn, last) = (record.lsn, backup.appended);
            return self.fail(format!("backup {index} got record {lsn} after record {last}"));
        }
        let ShippedRecord { epoch, lsn, payload } = record;
        if let Err(error) = backup.disk.append(*epoch, *lsn, backup.synced, payload) {
            return self.fail(format!("backup {index}, record {lsn}: {error}"));
        }
        backup.appended = *lsn;
        self.report_progress(index);
        self.sync_backup(index);
    }

    fn sync_backup(&mut self, index: usize) {
        if self.targets[index].backup.is_none() {
            return;
        }
        let is_slow = self.knobs.faults.slowness && self.random.percent(10);
        let most = if is_slow { SLOW_SYNC_MICROS } else { USUAL_SYNC_MICROS };
        let pause = self.random.micros(50, 2 * most);
        let process = &mut self.targets[index];
        let life = process.life;
        let Some(backup) = &mut process.backup else { return };
        if backup.is_syncing || backup.synced == backup.appended {
            return;
        }
        backup.is_syncing = true;
        let (lsn, point) = (backup.appended, backup.disk.begin_sync());
        self.after(pause, SimEvent::BackupSynced { target: index, life, lsn, point });
    }

    /// The backup has synced its log up to `lsn`.
    pub(crate) fn backup_synced(&mut self, index: usize, life: u64, lsn: Lsn, point: &SyncPoint) {
        let Some(backup) = self.backup_in(index, life) else { return };
        backup.disk.end_sync(point);
        backup.is_syncing = false;
        backup.synced = backup.synced.max(lsn);
        self.report_progress(index);
        self.sync_backup(index);
    }

    /// The backup reports its progress to the primary.
    fn report_progress(&mut self, index: usize) {
        if self.targets[index].backup.is_none() {
            return;
        }
        let travel = self.travel();
        let process = &mut self.targets[index];
        let life = process.life;
        let Some(backup) = &mut process.backup else { return };
        backup.last_report = backup.last_report.max(self.now + travel);
        let (arrival, appended, synced) = (backup.last_report, backup.appended, backup.synced);
        self.at(arrival, SimEvent::Progress { target: index, life, appended, synced });
    }

    /// The primary gets a report of the backup.
    pub(crate) fn progress(&mut self, index: usize, life: u64, appended: Lsn, synced: Lsn) {
        let process = &mut self.targets[index];
        if process.life != life || process.running.is_none() {
            return;
        }
        let Some(backup) = &process.backup else { return };
        let (member, epoch) = (backup.target, process.epoch);
        let held = LogHeld { epoch, appended, synced, ship_after: appended, is_behind: false };
        process.inbox.push(Event::MemberReply { member, number: 0, result: Ok(held) });
        self.wake_target(index);
    }

    /// Implements planted bugs: the primary has synced its log up to `lsn`, and takes that for
    /// safe.
    pub(crate) fn plant_at_sync(&mut self, index: usize, lsn: Lsn) {
        let process = &mut self.targets[index];
        let life = process.life;
        match self.knobs.plant {
            Some(PlantedBug::EffectBeforeSafe) => self.progress(index, life, lsn, lsn),
            Some(PlantedBug::StoreAheadOfSafe) => {
                let (Some(backup), Some(running)) = (&mut process.backup, &mut process.running)
                else {
                    return;
                };
                for (lsn, payload) in backup.unsynced.extract_if(.., |(it, _)| *it <= lsn) {
                    let batch = Batch::from_bytes(&payload).map(|it| it.mutations);
                    let changes: Mutations = batch
                        .unwrap_or_default()
                        .into_iter()
                        .map(|it| (it.key.0, it.value.map(|value| value.0)))
                        .collect();
                    // An engine in memory cannot fail.
                    let _ = running.engine_mut().apply(&changes, lsn);
                }
            }
            _ => {}
        }
    }

    /// Decides which member goes on after the primary has ended, and checks the two members.
    /// Returns the last record of the group's log.
    ///
    /// After a power loss of the primary alone, the backup takes over, because the primary may have
    /// lost records that it acknowledged. After a power loss of both, the longest log wins.
    pub(crate) fn choose_primary(&mut self, index: usize, is_power_loss: bool) -> Lsn {
        let lose_both = is_power_loss && self.random.percent(30);
        let is_chosen = is_power_loss || self.random.percent(60);
        let process = &mut self.targets[index];
        let (backup, stopped) = (process.backup.take(), process.stopped.take());
        let (Some(mut backup), Some((engine, records))) = (backup, stopped) else {
            return Lsn::default();
        };
        let last = last_of(&records, &engine);
        // A member that returned without some records serves only after it has them.
        let is_serving = backup.appended >= backup.serves_from;
        if lose_both {
            backup.disk.power_loss(&mut self.random);
            let survivors = self.random.index(backup.engine.batches_since_checkpoint() + 1);
            backup.engine = backup.engine.after_power_loss(survivors);
        } else if !(is_chosen && is_serving) {
            process.backup = Some(backup);
            process.stopped = Some((engine, records));
            if is_power_loss {
                let result = self.witness.power_loss(index, last);
                self.check(result);
            }
            return last;
        }
        let of_backup = match backup.disk.recover() {
            Ok(records) => records,
            Err(error) => {
                self.fail(format!("backup {index} cannot read its log: {error}"));
                return last;
            }
        };
        let last_of_backup = last_of(&of_backup, &backup.engine);
        let is_equal = |record: &Record| {
            let other = of_backup.iter().find(|it| it.lsn == record.lsn);
            other.is_none_or(|it| it.payload == record.payload)
        };
        let differing = records.iter().find(|it| !is_equal(it)).map(|it| it.lsn);
        let takes_over = is_serving && (!lose_both || last_of_backup > last);
        let common = last.min(last_of_backup);
        let is_ahead = if takes_over {
            process.epoch = Epoch::new(process.epoch.raw() + 1);
            let ended = std::mem::replace(&mut process.target, backup.target);
            let mut disk = std::mem::replace(&mut process.disk, backup.disk);
            disk.cut(common);
            process.stopped = Some((backup.engine, of_backup));
            let is_ahead = applied(&engine) > Some(common);
            process.backup = Some(Backup::of_log(ended, engine, disk, common));
            is_ahead
        } else {
            let Backup { target, engine: of_backup, disk, .. } = backup;
            let is_ahead = applied(&of_backup) > Some(common);
            process.stopped = Some((engine, records));
            process.backup = Some(Backup::of_log(target, of_backup, disk, last_of_backup));
            is_ahead
        };
        let last = if takes_over { last_of_backup } else { last };
        if let Some(backup) = &mut process.backup {
            backup.serves_from = last;
        }
        self.trace.note(self.now, || {
            format!("target {index}: take-over {takes_over}, both lost power {lose_both}, {last}")
        });
        let result = match lose_both {
            true => self.witness.power_loss(index, last),
            false => self.witness.lose_unheld(index, last),
        };
        self.check(result);
        if let Some(lsn) = differing {
            self.fail(format!("the members of target {index} have different records {lsn}"));
        }
        if is_ahead {
            self.fail(format!("the store of a member of target {index} is ahead of {common}"));
        }
        last
    }
}
