//! The faults of a run. This module is responsible for the choice of each fault, and the end of all
//! faults.

use super::authority::{add_target, group_of};
use super::cluster::{Cluster, GroupEvent};
use super::member::{MAP_STORAGE_MICROS, Member};
use super::messages::Place;
use skep_types::group_change::MemberChange;
use skep_types::{ClusterMap, MemberState, TargetId, TargetKind};
use std::time::Duration;

/// Maximum number of targets that a run adds to the group.
const MAX_REPLACEMENTS: usize = 4;

impl Cluster {
    pub(super) fn schedule_fault(&mut self) {
        let mean = self.knobs.mean_fault_pause.as_micros() as u64;
        let pause = self.random.micros(mean / 4, mean * 2);
        self.after(pause, GroupEvent::Fault);
    }

    /// Injects one of the enabled faults.
    pub(super) fn fault(&mut self) {
        if !self.is_busy {
            return;
        }
        self.schedule_fault();
        let faults = self.knobs.faults;
        let member = self.any_member();
        let which = self.random.below(12);
        let is_enabled = match which {
            0 => faults.kills,
            1 | 2 => faults.power_losses,
            3 | 4 => faults.stops,
            5 | 6 => faults.cuts,
            7 => faults.management_stops || faults.hand_overs,
            8 => faults.replacements,
            9 => faults.settings,
            10 => faults.settings && faults.cuts,
            _ => faults.hand_overs && faults.cuts,
        };
        if !is_enabled {
            return;
        }
        self.faults += 1;
        match which {
            0 => self.end_process(member, false),
            1 => self.end_process(member, true),
            2 => {
                for member in 0..self.members.len() {
                    self.end_process(member, true);
                }
            }
            3 | 4 => {
                let pause = self.random.micros(100_000, 9_000_000);
                self.members[member].stopped_until = self.now + pause;
            }
            5 | 6 => self.cut_links(member),
            7 if faults.hand_overs && self.random.percent(60) => self.hand_over(),
            7 => self.authority.is_back = self.now + self.random.micros(10_000, 4_000_000),
            8 => self.replace(),
            9 => self.change_lease_times(),
            10 => self.isolate_with_other_times(),
            _ => self.isolate_and_move_twice(),
        }
    }

    /// The simulation calls this method before management publishes a change of the group. In some
    /// cases, the method plans a kill of all members' processes, or of the primary's process,
    /// before these processes have stored the new map.
    pub(super) fn plan_restart(&mut self, change: MemberChange) {
        let faults = self.knobs.faults;
        if !self.is_busy || !faults.kills {
            return;
        }
        if change == MemberChange::MarkInSync && faults.cuts && self.random.percent(30) {
            self.isolate_and_restart();
        } else if faults.management_stops && self.random.percent(30) {
            let pause = self.random.micros(1_000, MAP_STORAGE_MICROS);
            self.after(pause, GroupEvent::RestartAll);
        }
    }

    /// Kills the processes of all members while management does not reply. Some processes start
    /// with older maps.
    pub(super) fn restart_all(&mut self) {
        if !self.is_busy {
            return;
        }
        self.faults += 1;
        self.authority.is_back = self.now + self.random.micros(500_000, 9_000_000);
        for member in 0..self.members.len() {
            self.end_process(member, false);
        }
    }

    /// Returns a member of the group. Prefers the primary.
    fn any_member(&mut self) -> usize {
        let group = group_of(self.map()).clone();
        let member = self.random.index(group.members.len());
        let target = match self.random.percent(40) {
            true => group.primary,
            false => group.members[member].target,
        };
        self.members.iter().position(|it| it.target == target).unwrap_or_default()
    }

    /// Cuts links of a member: to one other member, or to all members and management. In most
    /// cases, clients still reach this member.
    fn cut_links(&mut self, member: usize) {
        let own = Place::Member(member);
        let others = (0..self.members.len()).filter(|it| *it != member).map(Place::Member);
        let mut others: Vec<_> = others.collect();
        match self.random.below(4) {
            0 => others = self.random.pick(&others).into_iter().collect(),
            1 => {}
            2 => others.push(Place::Management),
            _ => {
                others.push(Place::Management);
                others.extend((0..self.clients.len()).map(Place::Client));
            }
        }
        let until = self.now + self.random.micros(100_000, 9_000_000);
        // Cut one direction, the other direction, or both.
        let directions = self.random.below(4);
        for other in others {
            if directions != 0 {
                self.links.cut(own, other, until);
            }
            if directions != 1 {
                self.links.cut(other, own, until);
            }
        }
    }

    /// An administrator makes another serving member the primary. Sometimes the previous primary
    /// and a client get the map late.
    fn hand_over(&mut self) {
        if self.random.percent(60) {
            let until = self.now + self.random.micros(100_000, 4_000_000);
            let primary = group_of(self.map()).primary;
            let former = self.members.iter().position(|it| it.target == primary);
            let client = self.random.index(self.clients.len());
            let late = [Place::Member(former.unwrap_or_default()), Place::Client(client)];
            late.into_iter().for_each(|it| self.links.cut(Place::Management, it, until));
        }
        let serving = self.serving_backups();
        if let Some(target) = self.random.pick(&serving) {
            self.administrate(MemberChange::HandOver, target);
        }
    }

    /// An administrator replaces a member by a new target without data. The primary is never
    /// replaced.
    fn replace(&mut self) {
        let may_add = self.members.len() < self.knobs.members + MAX_REPLACEMENTS;
        if !may_add || !self.authority.leaders.is_serving() {
            return;
        }
        let group = group_of(self.map()).clone();
        let backups = group.members.iter().filter(|it| it.target != group.primary);
        let backups: Vec<_> = backups.cloned().collect();
        let Some(old) = self.random.pick(&backups) else { return };
        if old.state == MemberState::Serving && !self.administrate(MemberChange::Drop, old.target) {
            return;
        }
        if !self.administrate(MemberChange::Remove, old.target) {
            return;
        }
        let target = TargetId::new(self.members.len() as u32 + 1);
        let mut map = ClusterMap::clone(self.map());
        add_target(&mut map, target, TargetKind::Metadata);
        self.publish(map);
        let map = std::sync::Arc::clone(self.map());
        let member = Member::new(target, &self.knobs, &map, &mut self.random);
        self.members.push(member);
        self.administrate(MemberChange::Add, target);
        self.open(self.members.len() - 1);
    }

    /// Ends all faults: from now on, no message is lost, and each process runs.
    pub(super) fn end_faults(&mut self) {
        self.is_busy = false;
        self.links.heal();
        self.authority.is_back = Duration::ZERO;
        self.authority.leaders.end_former();
        for member in &mut self.members {
            member.stopped_until = Duration::ZERO;
            member.disk_state.heal();
        }
    }
}
