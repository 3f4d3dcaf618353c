//! The change of roles in a metadata target's group. This file contains a model of management's
//! decisions, and the checks of both members at a change of roles.
//!
//! Management's processes are not simulated. The model decides as soon as a process ends, by the
//! rules of [`skep_cluster::groups`]. After a take-over, the ended process returns as a backup
//! member. The other processes receive the new map with delays. The model does not include leases.
//!
//! # Rules of the model
//! - A member that has lost power takes over only after it has received its lost records. If both
//!   members have lost power, the member with the longer log (by epoch and LSN) becomes the
//!   primary.
//! - The epoch rises whenever a member has lost power. Without a new epoch, a primary could lack
//!   some records that its backup member has, and give their LSNs to other records of the same
//!   epoch.
//! - A member that still has records that the group has lost removes these records before it takes
//!   over. A real member keeps such records, which is also correct, because no client has received
//!   a reply about these records. The simulation removes the records, because the reference model
//!   has already reverted their changes.
//!
//! # Checks
//! - A take-over loses no change whose reply a client has received (`Witness::lose_unheld`).
//! - Two records with the same epoch and LSN are equal in both members.
//! - No member's store contains changes that are missing from the log of the group after the change
//!   of roles.

use crate::backup::BackupProcess;
use crate::knobs::PlantedBug;
use crate::target::{StoppedState, applied};
use crate::world::{SimEvent, World};
use skep_cluster::groups;
use skep_format::log::Record;
use skep_metadata::shipping::backup::Stopped;
use skep_metadata::target::MetadataTarget;
use skep_types::group_change::{GroupChange, MemberChange};
use skep_types::{ClusterMap, Epoch, GroupId, Lsn, TargetId};

/// Returns the LSN of a member's last record, according to its log or its store.
fn last_of((engine, records): &StoppedState) -> Lsn {
    records.last().map(|it| it.lsn).max(applied(engine)).unwrap_or_default()
}

/// Returns the epoch and the LSN of the last record in a member's log.
fn length_of(state: &StoppedState) -> (Epoch, Lsn) {
    (state.1.last().map(|it| it.epoch).unwrap_or_default(), last_of(state))
}

/// Returns the LSN of the first record that differs between the members, although it has the same
/// epoch and LSN in both.
fn differing(one: &[Record], other: &[Record]) -> Option<Lsn> {
    let name = |record: &Record| (record.epoch, record.lsn);
    let is_differing = |record: &&Record| {
        other.iter().any(|it| name(it) == name(record) && it.payload != record.payload)
    };
    one.iter().find(is_differing).map(|it| it.lsn)
}

/// The decision about the roles of the two members.
struct Decision {
    /// Whether the backup member becomes the primary.
    takes_over: bool,
    /// If the backup member takes over with its records in memory, the LSN of its last synced
    /// record. In all other cases, `None`.
    synced: Option<Lsn>,
    is_power_loss: bool,
}

impl World {
    /// Applies changes of a group to the cluster map, and publishes the map.
    fn change_group(&mut self, index: usize, changes: &[(MemberChange, TargetId)]) {
        let id = GroupId::new(index as u32 + 1);
        let mut map = ClusterMap::clone(&self.map);
        let Some(group) = map.groups.iter_mut().find(|group| group.id == id) else { return };
        for (change, target) in changes {
            let (change, target, epoch) = (*change, *target, group.epoch);
            match groups::apply(group, &GroupChange { group: id, epoch, change, target }) {
                Ok(next) => *group = next,
                Err(error) => return self.fail(format!("management refuses {change:?}: {error}")),
            }
        }
        groups::check_invariants(group);
        let group = group.clone();
        self.trace.note(self.now, || format!("{group:?}"));
        self.publish(map);
    }

    /// After a member has lost power, removes the backup member from the group and then re-adds
    /// this member, so that the epoch of the group rises by two.
    fn renew_epoch(&mut self, index: usize) {
        let Some(member) = self.targets[index].backup.as_ref().map(|it| it.target) else { return };
        let changes = [(MemberChange::Drop, member), (MemberChange::MarkInSync, member)];
        self.change_group(index, &changes);
    }

    /// Kills the process of a group's backup member, or lets its host lose power. The backup member
    /// starts again after some time.
    pub(crate) fn end_backup(&mut self, index: usize, is_power_loss: bool) {
        let last = self.targets[index].running.as_ref().map(MetadataTarget::last_logged);
        let (Some(backup), Some(last)) = (&mut self.targets[index].backup, last) else { return };
        let Some(Stopped { mut engine, .. }) = backup.end() else { return };
        if is_power_loss {
            backup.disk.power_loss(&mut self.random);
            let survivors = self.random.index(engine.batches_since_checkpoint() + 1);
            engine = engine.after_power_loss(survivors);
            backup.is_caught_up = self.knobs.plant == Some(PlantedBug::PromoteAfterPowerLoss);
            backup.catches_up_at = last;
        }
        backup.stopped = Some((engine, Vec::new()));
        if let Err(error) = backup.recover() {
            return self.fail(format!("backup {index} cannot read its log: {error}"));
        }
        self.faults += 1;
        self.trace.note(self.now, || format!("backup {index} ends, power loss: {is_power_loss}"));
        if is_power_loss {
            self.renew_epoch(index);
        }
        self.restart_backup(index);
    }

    fn restart_backup(&mut self, index: usize) {
        let pause = self.random.micros(500, 300_000);
        self.after(pause, SimEvent::StartBackup { target: index });
    }

    /// After the primary has ended, decides which member continues as the primary, and checks the
    /// two members. Returns the LSN of the last record in the group's log.
    pub(crate) fn choose_primary(&mut self, index: usize, is_power_loss: bool) -> Lsn {
        let lose_both = is_power_loss && self.random.percent(30);
        let is_chosen = is_power_loss || self.random.percent(60);
        let process = &mut self.targets[index];
        let (Some(mut backup), Some(own)) = (process.backup.take(), process.stopped.take()) else {
            return Lsn::default();
        };
        if !(lose_both || is_chosen && backup.is_caught_up) {
            let last = last_of(&own);
            process.backup = Some(backup);
            process.stopped = Some(own);
            if is_power_loss {
                self.continue_alone(index, last);
            }
            return last;
        }
        let was_running = backup.running.is_some();
        // Choose at random whether a running backup member takes over with its records in memory,
        // or whether the member reads its log first.
        let takes_memory = was_running && !lose_both && self.random.percent(50);
        let stopped = backup.end();
        let synced = stopped.as_ref().map(|it| it.synced).filter(|_| takes_memory);
        if let Some(Stopped { engine, records, .. }) = stopped {
            backup.stopped = Some((engine, records));
        }
        if lose_both {
            backup.disk.power_loss(&mut self.random);
            backup.stopped = backup.stopped.map(|(engine, _)| {
                let survivors = self.random.index(engine.batches_since_checkpoint() + 1);
                (engine.after_power_loss(survivors), Vec::new())
            });
        }
        if !takes_memory && let Err(error) = backup.recover() {
            self.fail(format!("backup {index} cannot read its log: {error}"));
            return Lsn::default();
        }
        let Some(mut other) = backup.stopped.take() else { return Lsn::default() };
        let synced = match self.first_lost(index, &other.1) {
            Some(lost) => {
                let last = Lsn::new(lost.raw() - 1);
                backup.disk.cut(last);
                other.1.retain(|record| record.lsn <= last);
                synced.map(|synced| synced.min(last))
            }
            None => synced,
        };
        if let Some(lsn) = differing(&own.1, &other.1) {
            self.fail(format!("the members of target {index} have different records {lsn}"));
        }
        let takes_over = !lose_both || length_of(&other) > length_of(&own);
        let decision = Decision { takes_over, synced, is_power_loss };
        let last = self.assign_roles(index, (own, backup, other), &decision);
        let result = match lose_both {
            true => self.witness.power_loss(index, last),
            false => self.witness.lose_unheld(index, last),
        };
        self.check(result);
        last
    }

    /// Returns the LSN of the first of a member's records that the group has lost.
    fn first_lost(&self, index: usize, records: &[Record]) -> Option<Lsn> {
        let ends = &self.targets[index].ends;
        let is_lost = |record: &&Record| {
            ends.iter().any(|(last, epoch)| record.lsn > *last && record.epoch < *epoch)
        };
        records.iter().find(is_lost).map(|record| record.lsn)
    }

    /// Records that the group continues after the record `last` in its current epoch.
    fn note_end(&mut self, index: usize, last: Lsn) {
        let group = self.map.group(GroupId::new(index as u32 + 1));
        let epoch = group.map(|it| it.epoch).unwrap_or_default();
        self.targets[index].ends.push((last, epoch));
    }

    /// Lets a primary that has lost power stay the primary, because its backup member has not
    /// caught up yet.
    fn continue_alone(&mut self, index: usize, last: Lsn) {
        self.renew_epoch(index);
        self.note_end(index, last);
        if let Some(backup) = &mut self.targets[index].backup {
            backup.catches_up_at = last;
        }
        let result = self.witness.power_loss(index, last);
        self.check(result);
    }

    /// Makes one member the primary and the other member its backup, in a new epoch. Returns
    /// the LSN of the last record in the group's log.
    fn assign_roles(
        &mut self,
        index: usize,
        (own, backup, other): (StoppedState, BackupProcess, StoppedState),
        decision: &Decision,
    ) -> Lsn {
        let takes_over = decision.takes_over;
        let process = &mut self.targets[index];
        let (mut disk, mut member) = (backup.disk, backup.target);
        let (primary, ended) = if takes_over { (other, own) } else { (own, other) };
        if takes_over {
            std::mem::swap(&mut process.target, &mut member);
            std::mem::swap(&mut process.disk, &mut disk);
        }
        let last = last_of(&primary);
        let is_ahead = applied(&ended.0) > Some(last);
        let mut backup = BackupProcess::stopped(member, disk, ended);
        // If the primary's process was killed without a power loss, the target still has every
        // record that it sent to the backup member. So the target counts as caught up.
        backup.is_caught_up =
            !decision.is_power_loss || self.knobs.plant == Some(PlantedBug::PromoteAfterPowerLoss);
        backup.catches_up_at = last;
        process.backup = Some(backup);
        process.stopped = Some(primary);
        process.resumes_at = decision.synced.filter(|_| takes_over);
        self.trace.note(self.now, || format!("target {index}: take-over {takes_over}, {last}"));
        if is_ahead {
            self.fail(format!("the store of a member of target {index} is ahead of record {last}"));
        }
        if takes_over {
            let by = self.targets[index].target;
            let changes = [(MemberChange::TakeOver, by), (MemberChange::MarkInSync, member)];
            self.change_group(index, &changes);
        } else {
            self.renew_epoch(index);
        }
        self.note_end(index, last);
        self.restart_backup(index);
        last
    }
}
