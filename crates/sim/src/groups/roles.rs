//! The roles of a member's process, their beginning, their batches of events, and their end. The
//! functions do the same as `service/roles.rs` and `service/copying.rs` of `crates/metadata`, but
//! without files and sockets.
//!
//! This module is not responsible for the actions of a role (`actions`).

use super::authority::{GROUP, group_of, has_others};
use super::cluster::{Cluster, GroupEvent};
use super::knobs::GroupBug;
use super::ledger::applied;
use super::member::{Contents, Role};
use super::messages::Place;
use skep_cluster::groups::has_skipped;
use skep_cluster::lease_times::LeaseTimes;
use skep_format::log::Record;
use skep_metadata::engine::memory::MemoryEngine;
use skep_metadata::limits::Limits;
use skep_metadata::shipping::backup::{Backup, Stopped};
use skep_metadata::shipping::copy_receiver::{CopyOutcome, CopyReceiver};
use skep_metadata::shipping::former_primary::FormerPrimary;
use skep_metadata::shipping::succession::Succession;
use skep_metadata::target::{Event, MetadataTarget, Start};
use skep_types::map::Policy;
use skep_types::{Epoch, Lsn, Result};
use std::sync::Arc;
use std::time::Duration;

/// The store and the log of a role that begins.
struct Opened {
    engine: MemoryEngine,
    records: Vec<Record>,
    epoch: Epoch,
    /// LSN and epoch of the record before the first record in `records`. Epoch zero means that this
    /// epoch is not known.
    previous: (Lsn, Epoch),
    synced: Option<Lsn>,
    succession: Succession,
}

impl Cluster {
    /// Starts the process of a member, or reopens its target, with the role that the member's map
    /// names.
    pub(super) fn open(&mut self, index: usize) {
        let reaches = self.links.is_open(Place::Member(index), Place::Management, self.now)
            && self.links.is_open(Place::Management, Place::Member(index), self.now)
            && self.now >= self.authority.is_back;
        let is_first = self.members[index].life == 0;
        let found = match is_first {
            true => Some(Arc::clone(self.map())),
            false => self.ask_map().filter(|_| reaches),
        };
        let life = self.new_number();
        let member = &mut self.members[index];
        member.clear_memory(life);
        if let Some(map) = found {
            member.set_map(map, self.now);
        }
        let (map, target) = (Arc::clone(&member.map), member.target);
        if map.group_of(target).is_none() {
            member.role = Role::Waiting;
            return self.send_map(Place::Member(index));
        }
        if member.mark.contents == Contents::Discarded {
            member.mark.exists = true;
            member.engine = MemoryEngine::default();
            member.disk.clear();
            member.mark.contents = Contents::Incomplete;
        }
        let result = match member.mark.contents {
            Contents::Incomplete => self.open_copying(index),
            Contents::Whole | Contents::Discarded => self.open_whole(index),
        };
        if let Err(error) = result {
            return self.fail(format!("{target} does not start: {error}"));
        }
        self.put(index, Event::Tick);
        // From now on, the node requests newer maps.
        self.send_map(Place::Member(index));
    }

    fn start_of(&self, index: usize, epoch: Epoch, synced: Option<Lsn>) -> Start {
        let member = &self.members[index];
        Start {
            group: GROUP,
            target: member.target,
            epoch,
            counted: member.mark.counted.of_epoch(group_of(&member.map)).to_vec(),
            synced,
            policy: self.knobs.policy,
            limits: self.knobs.limits.clone(),
            map: Arc::clone(&member.map),
            now: member.clock(self.now),
            wall: self.wall(),
        }
    }

    fn open_copying(&mut self, index: usize) -> Result<()> {
        let start = self.start_of(index, Epoch::default(), None);
        let member = &mut self.members[index];
        let engine = std::mem::take(&mut member.engine);
        member.role = Role::Copying(Box::new(CopyReceiver::open(engine, start)?));
        Ok(())
    }

    fn open_whole(&mut self, index: usize) -> Result<()> {
        let records = self.members[index].disk.recover()?;
        let now = self.members[index].clock(self.now);
        let plant = self.knobs.plant;
        let member = &mut self.members[index];
        let engine = std::mem::take(&mut member.engine);
        let epoch = records.last().map(|it| it.epoch).unwrap_or_default();
        let is_empty = records.is_empty() && applied(&engine) == Lsn::default();
        let group = group_of(&member.map);
        if has_skipped(epoch, group.epoch) || is_empty && member.mark.exists {
            member.mark.lacks_records = true;
        }
        if plant == Some(GroupBug::TrustAfterPowerLoss) {
            member.mark.lacks_records = false;
        }
        let had_other = group.primary_since.raw() > 1;
        let succession = match had_other {
            true => Succession::at(now + self.members[index].promise_bound(plant)),
            false => Succession::default(),
        };
        let (previous, synced) = (self.members[index].mark.copied, None);
        let opened = Opened { engine, records, epoch, previous, synced, succession };
        if self.may_lead(index, epoch) {
            self.open_primary(index, opened)
        } else {
            self.open_backup(index, opened)
        }
    }

    /// Whether the map of a process names this process as the primary, and the process may act as
    /// the primary. `log_epoch` is the highest epoch of a record in its log.
    fn may_lead(&self, index: usize, log_epoch: Epoch) -> bool {
        let member = &self.members[index];
        let group = group_of(&member.map);
        let is_alone = !has_others(&member.map, member.target, true)
            && member.mark.counted.waiting_of(group).next().is_none();
        let lacks = member.mark.lacks_records && !is_alone;
        let is_old = log_epoch > group.epoch
            || member.mark.counted.are_newer_than(member.map.version, group);
        group.primary == member.target && !lacks && !is_old
    }

    fn open_backup(&mut self, index: usize, opened: Opened) -> Result<()> {
        let member = &self.members[index];
        let (counted, map) = (&member.mark.counted, &member.map);
        let is_old = counted.are_newer_than(map.version, group_of(map));
        let epoch = if is_old { opened.epoch.max(counted.epoch) } else { opened.epoch };
        let start = self.start_of(index, epoch, None);
        let member = &mut self.members[index];
        member.raise_promise_bound();
        let promise = member.promise_bound(self.knobs.plant);
        let mut backup = Backup::open(opened.engine, opened.records, start, promise)?;
        let (lsn, epoch) = opened.previous;
        if epoch > Epoch::default() {
            backup.set_epoch_of(lsn, epoch);
        }
        member.mark.exists = true;
        if member.mark.lacks_records {
            backup.distrust();
        }
        member.role = Role::Backup(Box::new(backup));
        Ok(())
    }

    fn open_primary(&mut self, index: usize, opened: Opened) -> Result<()> {
        let Opened { engine, mut records, epoch, previous, synced, succession } = opened;
        if let Some(synced) = synced
            && self.knobs.plant == Some(GroupBug::DropUnsynced)
        {
            records.retain(|it| it.lsn <= synced);
            self.members[index].disk.cut(synced.max(applied(&engine)));
        }
        let mut start = self.start_of(index, epoch, synced);
        if self.knobs.plant == Some(GroupBug::AnswerWithoutLease) {
            start.limits = without_lease(&start.limits);
        }
        let member = &mut self.members[index];
        let is_alone = !has_others(&member.map, member.target, true);
        let is_excused = member.lost_power && member.is_excused && is_alone;
        if has_others(&member.map, member.target, false) {
            member.mark.exists = true;
            let (epoch, version) = (group_of(&member.map).epoch, member.map.version);
            member.mark.counted = member.mark.counted.after_map(epoch, version);
        }
        member.mark.lacks_records = false;
        (member.lost_power, member.is_excused) = (false, false);
        member.term = group_of(&member.map).primary_since;
        let process = (member.target, member.life);
        let begun =
            self.ledger.begin_primary(process, member.term, (&engine, &records[..]), is_excused);
        self.check(begun);
        let mut primary = MetadataTarget::open(engine, records, start)?;
        let (lsn, epoch) = previous;
        if epoch > Epoch::default() {
            primary.set_epoch_of(lsn, epoch);
        }
        primary.succeed(succession);
        self.note(|| format!("{} begins as the primary", process.0));
        self.members[index].role = Role::Primary(Box::new(primary));
        Ok(())
    }

    /// Lets a backup member become the primary, with its store and its log.
    fn promote(&mut self, index: usize) {
        let Role::Backup(backup) = std::mem::replace(&mut self.members[index].role, Role::Down)
        else {
            return;
        };
        let Stopped { engine, records, previous, synced, mut succession } = backup.into_stopped();
        if self.knobs.plant == Some(GroupBug::ShortenPromise) {
            succession = self.members[index].shorten_promise(succession);
        }
        let opened = Opened {
            epoch: records.last().map_or(previous.1, |record| record.epoch),
            engine,
            records,
            previous,
            synced: Some(synced),
            succession,
        };
        match self.open_primary(index, opened) {
            Ok(()) => self.put(index, Event::Tick),
            Err(error) => self.fail(format!("member {index} cannot take over: {error}")),
        }
    }

    /// Passes the events of a batch to the role, performs its actions, and changes the role if
    /// necessary.
    pub(super) fn handle_as_role(&mut self, index: usize, events: Vec<Event>) {
        let (now, wall) = (self.members[index].clock(self.now), self.wall());
        let member = &mut self.members[index];
        member.raise_promise_bound_for(&events);
        let result = match &mut member.role {
            Role::Primary(it) => it.handle(events, now, wall),
            Role::Backup(it) => it.handle(events, now),
            Role::Former(it) => Ok(it.handle(events)),
            Role::Copying(it) => it.handle(events, now),
            Role::Waiting if member.map.group_of(member.target).is_some() => {
                return self.end_role(index);
            }
            Role::Down | Role::Waiting => return,
        };
        let actions = match result {
            Ok(actions) => actions,
            Err(error) => return self.fail(format!("member {index} has failed: {error}")),
        };
        let mut diverges = false;
        if let Role::Backup(backup) = &member.role {
            member.mark.lacks_records = backup.lacks_records();
            member.lost_power &= backup.lacks_records();
            member.is_excused &= backup.lacks_records();
            diverges = backup.diverges() && self.knobs.plant.is_none();
        }
        member.lower_promise_bound();
        if diverges {
            return self.fail(format!("member {index} has changes that its group lacks"));
        }
        let is_deposed = matches!(&member.role, Role::Primary(it) if !it.is_primary());
        if is_deposed && self.knobs.plant != Some(GroupBug::GoOnDeposed) {
            return self.end_role(index);
        }
        self.check_role(index);
        if self.stalls(index, &actions) {
            return self.stall(index, actions);
        }
        // The process may be killed at any moment, even between two actions.
        let faults = self.knobs.faults;
        let may_end = (faults.kills || faults.power_losses) && self.is_busy;
        let ends = may_end && self.random.below(2_000) == 0;
        let ends_after = ends.then(|| self.random.index(actions.len() + 1));
        for (number, action) in actions.into_iter().enumerate() {
            if ends_after == Some(number) {
                break;
            }
            self.act(index, action);
        }
        if ends {
            return self.end_process(index, faults.power_losses && !faults.kills);
        }
        self.change_role(index);
    }

    /// Checks the invariants of the role.
    fn check_role(&mut self, index: usize) {
        let result = match &self.members[index].role {
            Role::Primary(primary) => primary.check_invariants(),
            Role::Backup(backup) => {
                backup.check_invariants();
                Ok(())
            }
            Role::Copying(receiver) => {
                receiver.check_invariants();
                Ok(())
            }
            Role::Down | Role::Waiting | Role::Former(_) => Ok(()),
        };
        if let Err(error) = result {
            self.fail(format!("member {index} cannot read its store: {error}"));
        }
    }

    /// Ends the role of a backup member or of a receiver of a copy, if the map gives the process
    /// another role.
    fn change_role(&mut self, index: usize) {
        let log_epoch = match &self.members[index].role {
            Role::Backup(backup) => backup.newest_epoch(),
            _ => Epoch::default(),
        };
        let may_lead = self.may_lead(index, log_epoch);
        let member = &mut self.members[index];
        let is_member = member.map.group_of(member.target).is_some();
        match &member.role {
            Role::Backup(_) | Role::Copying(_) if !is_member => self.end_role(index),
            Role::Backup(backup) if backup.discards() => {
                member.mark.contents = Contents::Discarded;
                self.end_role(index);
            }
            Role::Backup(_) if may_lead => self.promote(index),
            Role::Copying(receiver) => match receiver.outcome() {
                CopyOutcome::Running => {}
                CopyOutcome::Complete => {
                    let checked = self.ledger.check_store(member.target, receiver.engine());
                    member.mark.contents = Contents::Whole;
                    member.mark.copied = receiver.last_record();
                    self.copies += 1;
                    self.check(checked);
                    self.end_role(index);
                }
                CopyOutcome::Discard => {
                    member.mark.contents = Contents::Discarded;
                    self.end_role(index);
                }
            },
            _ => {}
        }
    }

    /// Ends the role of a process, which then opens its target again. Until then, a former primary
    /// whose disk hangs replies to its successor.
    pub(super) fn end_role(&mut self, index: usize) {
        let was_primary = matches!(self.members[index].role, Role::Primary(_));
        self.keep_store(index);
        let life = self.new_number();
        let member = &mut self.members[index];
        member.clear_memory(life);
        if was_primary && member.disk_state.hangs(self.now) {
            let former = FormerPrimary::new(GROUP, member.target, Arc::clone(&member.map));
            member.role = Role::Former(Box::new(former));
        }
        let pause = self.random.micros(100, 20_000);
        self.after(pause, GroupEvent::Open { member: index, life });
    }

    /// Takes the store from the role. The process has no role from now on.
    fn keep_store(&mut self, index: usize) {
        let member = &mut self.members[index];
        match std::mem::replace(&mut member.role, Role::Down) {
            Role::Primary(it) => member.engine = it.engine().clone(),
            Role::Backup(it) => member.engine = it.engine().clone(),
            Role::Copying(it) => member.engine = it.engine().clone(),
            Role::Down | Role::Waiting | Role::Former(_) => {}
        }
    }

    /// Kills the process of a member, or lets its host lose power. The process starts again after
    /// some time.
    pub(super) fn end_process(&mut self, index: usize, is_power_loss: bool) {
        self.note(|| format!("member {index} ends, power loss: {is_power_loss}"));
        self.keep_store(index);
        let life = self.new_number();
        let member = &mut self.members[index];
        member.clear_memory(life);
        member.forget_unstored_maps(self.now, &mut self.random);
        member.stopped_until = Duration::ZERO;
        if is_power_loss || self.random.percent(50) {
            let survivors = self.random.index(member.engine.batches_since_checkpoint() + 1);
            member.engine = member.engine.after_power_loss(survivors);
        }
        if is_power_loss {
            member.disk.power_loss(&mut self.random);
            member.lost_power = true;
            member.mark.lacks_records |= member.mark.exists;
            self.excuse_losses();
        }
        let most = if self.is_busy { 6_000_000 } else { 100_000 };
        let pause = self.random.micros(5_000, most);
        self.after(pause, GroupEvent::Open { member: index, life });
    }
}

/// Returns the limits of a primary that needs no lease.
fn without_lease(limits: &Limits) -> Limits {
    let mut limits = limits.clone();
    limits.members.leases =
        Some(LeaseTimes { lease: Duration::MAX, ..LeaseTimes::of(&Policy::default()) });
    limits
}
