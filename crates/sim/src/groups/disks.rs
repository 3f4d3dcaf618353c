//! Faults of the disks of members, in some runs.
//!
//! - A disk *hangs*: it completes no sync and no checkpoint, and a process that opens its target
//!   waits. Appends still succeed, because they only reach the page cache. A primary that is
//!   deposed during this time replies to its successor without its disk
//!   (`service/former_primary.rs` of `crates/metadata`).
//! - A disk is almost *full*: a backup member and the receiver of a copy refuse data. A primary
//!   first tries to hand its group over, as in `service/hand_over.rs` of `crates/metadata`.
//! - A batch of a primary *stalls*, since a read or an append waits for the disk. The process
//!   performs the rest of the batch later, and does nothing else until then. Before its replies,
//!   the primary checks its lease again.
//!
//! The module has random numbers of its own. So runs without these faults do not depend on these
//! numbers.

use super::authority::{GROUP, group_of};
use super::cluster::{Cluster, GroupEvent};
use super::knobs::GroupBug;
use super::member::Role;
use super::messages::Ask;
use skep_metadata::limits::HAND_OVER_LIMIT;
use skep_metadata::target::{Action, Event};
use skep_types::group_change::{GroupChange, MemberChange};
use skep_types::{MemberState, TargetId};
use std::time::Duration;

/// Shortest and longest time between two faults of disks, in microseconds.
const PAUSE_MICROS: (u64, u64) = (1_000_000, 6_000_000);
/// Shortest and longest time for which a disk hangs, in microseconds. A primary stops waiting for
/// the disk of a member after 3 s.
const HANG_MICROS: (u64, u64) = (500_000, 12_000_000);
/// Shortest and longest time for which a disk is full, in microseconds.
const FULL_MICROS: (u64, u64) = (50_000, 8_000_000);
/// Shortest and longest time for which a batch stalls, in microseconds.
const STALL_MICROS: (u64, u64) = (50_000, 9_000_000);

/// The state of a member's disk, and the batch that waits for it.
#[derive(Debug, Default)]
pub(super) struct DiskState {
    hangs_until: Duration,
    /// Time since which the disk is full. `None` means that the disk has space.
    full_since: Option<Duration>,
    full_until: Duration,
    /// Whether the next batch with replies stalls.
    stalls: bool,
    /// The actions of a stalled batch that the process has not performed yet.
    left: Option<Vec<Action>>,
}

impl DiskState {
    /// Ends all faults, but keeps the remaining actions of a stalled batch.
    pub(super) fn heal(&mut self) {
        *self = Self { left: self.left.take(), ..Self::default() };
    }

    /// Forgets the batch of a process that has ended.
    pub(super) fn end_process(&mut self) {
        self.left = None;
    }

    /// Whether the disk hangs.
    pub(super) fn hangs(&self, now: Duration) -> bool {
        now < self.hangs_until
    }

    fn is_full(&self, now: Duration) -> bool {
        now < self.full_until
    }
}

impl Cluster {
    /// Plans the next fault of a disk, if this run has such faults.
    pub(super) fn schedule_disk_fault(&mut self) {
        if self.knobs.faults.disks {
            let pause = self.of_disks.micros(PAUSE_MICROS.0, PAUSE_MICROS.1);
            self.after(pause, GroupEvent::DiskFault);
        }
    }

    /// Injects a fault of a member's disk.
    pub(super) fn disk_fault(&mut self) {
        if !self.is_busy {
            return;
        }
        self.schedule_disk_fault();
        self.faults += 1;
        let (now, random) = (self.now, &mut self.of_disks);
        let only_stalls = self.knobs.plant == Some(GroupBug::AnswerAfterStall);
        let which = if only_stalls { 2 } else { random.below(3) };
        let is_of_primary = which == 2 || random.percent(50);
        let micros = [HANG_MICROS, FULL_MICROS, STALL_MICROS][which as usize];
        let until = now + random.micros(micros.0, micros.1);
        let any = random.index(self.members.len());
        let primary = self.index_of(group_of(self.map()).primary);
        let member = if is_of_primary { primary } else { any };
        self.note(|| format!("disk fault {which} of member {member} until {until:?}"));
        let disk = &mut self.members[member].disk_state;
        match which {
            0 => disk.hangs_until = until,
            1 => {
                (disk.full_since, disk.full_until) = (Some(now), until);
                self.ledger.witness.has_seen_full_disks = true;
            }
            _ => disk.stalls = true,
        }
    }

    /// If an event waits for a disk that hangs, returns the time at which the event may happen.
    /// `None` means that the event may happen now.
    pub(super) fn hangs_until(&mut self, event: &GroupEvent) -> Option<Duration> {
        let member = match event {
            GroupEvent::Synced { member, .. }
            | GroupEvent::Checkpointed { member, .. }
            | GroupEvent::Open { member, .. } => *member,
            _ => return None,
        };
        let until = self.members[member].disk_state.hangs_until;
        (until > self.now).then(|| until + self.of_disks.micros(1, 3_000))
    }

    /// Adds a measurement of the free space to the events of a member's batch. For
    /// `HAND_OVER_LIMIT` after its disk became full, a primary instead asks management to hand the
    /// group over to another member.
    pub(super) fn measure_space(&mut self, index: usize, events: &mut Vec<Event>) {
        if !self.knobs.faults.disks || self.asks_for_successor(index) {
            return;
        }
        let is_full = self.members[index].disk_state.is_full(self.now);
        let shortage = is_full.then(|| "the disk is full".to_owned());
        events.insert(0, Event::FreeSpace { shortage });
    }

    /// If a member is a primary whose disk is full and another serving member has space, asks
    /// management to hand the group over. Returns whether the member has sent this request.
    fn asks_for_successor(&mut self, index: usize) -> bool {
        let (now, member) = (self.now, &self.members[index]);
        let Some(since) = member.disk_state.full_since else { return false };
        let is_primary = matches!(member.role, Role::Primary(_));
        let is_short = member.disk_state.is_full(now) && now < since + HAND_OVER_LIMIT;
        let group = group_of(&member.map);
        let has_space = |target: TargetId| {
            let other = self.members.iter().find(|it| it.target == target);
            other.is_some_and(|it| !it.disk_state.is_full(now))
        };
        let serving = group.members.iter().filter(|it| it.state == MemberState::Serving);
        let mut others = serving.map(|it| it.target).filter(|it| *it != member.target);
        let successor = others.find(|it| has_space(*it));
        let Some(target) = successor.filter(|_| is_primary && is_short) else { return false };
        let (epoch, change) = (group.epoch, MemberChange::HandOver);
        let change = GroupChange { group: GROUP, epoch, change, target };
        self.ask_management(index, Ask::Change(change, epoch));
        true
    }

    /// Whether the actions of a member's batch stall.
    pub(super) fn stalls(&mut self, index: usize, actions: &[Action]) -> bool {
        let member = &mut self.members[index];
        let is_primary = matches!(member.role, Role::Primary(_));
        let replies = actions.iter().any(|it| matches!(it, Action::Reply { .. }));
        is_primary && replies && std::mem::take(&mut member.disk_state.stalls)
    }

    /// Performs the first actions of a batch, and keeps the other actions until the disk has
    /// answered.
    pub(super) fn stall(&mut self, index: usize, mut actions: Vec<Action>) {
        let is_reply = |action: &Action| matches!(action, Action::Reply { .. });
        let reply = actions.iter().position(is_reply).unwrap_or(actions.len());
        let left = actions.split_off(self.of_disks.index(reply + 1));
        let until = self.now + self.of_disks.micros(STALL_MICROS.0, STALL_MICROS.1);
        for action in actions {
            self.act(index, action);
        }
        self.note(|| format!("the batch of member {index} stalls until {until:?}"));
        let member = &mut self.members[index];
        member.disk_state.left = Some(left);
        member.stopped_until = member.stopped_until.max(until);
        let life = member.life;
        self.at(until, GroupEvent::Continue { member: index, life });
    }

    /// Performs the remaining actions of a batch that has stalled. A primary sends its replies only
    /// if it still has its lease.
    pub(super) fn continue_batch(&mut self, index: usize) {
        let member = &mut self.members[index];
        let Some(actions) = member.disk_state.left.take() else { return };
        let now = member.clock(self.now);
        let may_reply = match &member.role {
            Role::Primary(primary) => primary.may_answer_at(now),
            _ => true,
        };
        let may_reply = may_reply || self.knobs.plant == Some(GroupBug::AnswerAfterStall);
        let mut unsent = Vec::new();
        for action in actions {
            match action {
                Action::Reply { .. } if !may_reply => unsent.push(action),
                action => self.act(index, action),
            }
        }
        if let Role::Primary(primary) = &mut self.members[index].role {
            primary.hold_replies(unsent);
        }
    }
}
