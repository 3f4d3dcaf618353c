//! Faults that aim at the rules of leases. An isolation cuts the primary off from all other members
//! and from management, so that the primary continues with an old map. Clients still reach this
//! primary. During the isolation, another member becomes the primary, with other lease times or
//! after two moves of the role.
//!
//! # Clients only read
//! After a change that no backup member has appended, an isolated primary sends no further reply,
//! even if its lease is valid. A run with such a change would not show that the primary or its
//! successor relies on a wrong time. So clients begin no change from shortly before an isolation
//! until its end.
//!
//! # Planted bugs
//! Each of these planted bugs needs one order of events, which random faults rarely cause:
//!
//! - `IgnoreGrant`: the other members get a map with a shorter `take_over_after`, and the primary
//!   does not get this map. The promises of these members for the longer time end before the
//!   isolation begins.
//! - `ShortenPromise`: the other members get the map with the shorter time right after the start of
//!   the isolation.
//! - `ForgetPromise`: the processes of the other members are killed right after the isolation, and
//!   start again with the shorter time.
//! - `IgnoreWait`: an administrator moves the role of the isolated primary to a second member, and
//!   drops the isolated primary. Then the administrator moves the role to a third member, while the
//!   second member still waits for the lease of the isolated primary.
//! - `ForgetCounted`: the primary is isolated and killed while management marks another member as
//!   in sync.

use super::authority::group_of;
use super::cluster::{Cluster, GroupEvent};
use super::knobs::draw_lease_times;
use super::messages::Place;
use skep_cluster::lease_times::LeaseTimes;
use skep_cluster::limits::MIN_TAKE_OVER_AFTER_MS;
use skep_types::group_change::MemberChange;
use skep_types::{ClusterMap, MemberState, TargetId};
use std::time::Duration;

/// Time before an isolation in which clients begin no change, so that all members have usually
/// appended the earlier changes.
const QUIET: Duration = Duration::from_millis(300);
/// After a reduction of the lease times, at least this time remains for a take-over before the
/// lease of the isolated primary ends.
const TAKE_OVER: Duration = Duration::from_millis(200);

impl Cluster {
    /// An administrator changes the lease times. Often, some members get the map late.
    pub(super) fn change_lease_times(&mut self) {
        if self.random.percent(60) {
            for member in 0..self.members.len() {
                if self.random.percent(40) {
                    let until = self.now + self.random.micros(100_000, 6_000_000);
                    self.links.cut(Place::Management, Place::Member(member), until);
                }
            }
        }
        let times = draw_lease_times(&mut self.random);
        self.set_lease_times(times);
    }

    /// Publishes a map with other lease times, if a leader of management can commit them.
    pub(super) fn set_lease_times(&mut self, times: LeaseTimes) {
        if !self.authority.leaders.is_serving() {
            return;
        }
        let LeaseTimes { lease, take_over_after } = times;
        let mut map = ClusterMap::clone(self.map());
        map.policy.metadata_lease_ms = lease.as_millis() as u32;
        map.policy.metadata_take_over_after_ms = take_over_after.as_millis() as u32;
        self.publish(map);
    }

    /// Isolates the primary at about the time at which all other members receive new lease times.
    /// In some cases, also kills the processes of these members.
    pub(super) fn isolate_with_other_times(&mut self) {
        let present = LeaseTimes::of(&self.map().policy);
        let times = self.draw_shorter_times(present);
        let kills = self.knobs.faults.kills;
        if self.random.percent(if kills { 33 } else { 50 }) {
            let promise = present.take_over_after.saturating_sub(times.take_over_after).max(QUIET);
            let at = self.now + promise + self.random.micros(1, 300_000);
            let until = self.plan_isolation(at);
            let primary = Place::Member(self.index_of(group_of(self.map()).primary));
            self.links.cut(Place::Management, primary, until);
            return self.set_lease_times(times);
        }
        let at = self.now + QUIET;
        self.plan_isolation(at);
        let changed = at + self.random.micros(1, 100_000);
        self.at(changed, GroupEvent::SetLeaseTimes(times));
        if kills && self.random.percent(67) {
            let restarted = at + self.random.micros(1, 200_000);
            let backups = self.serving_backups();
            let count = if self.random.percent(70) { backups.len() } else { 1 };
            for target in backups.into_iter().take(count) {
                let member = self.index_of(target);
                self.at(restarted, GroupEvent::Restart { member });
            }
        }
    }

    /// Isolates the primary of three serving members. An administrator makes the second member the
    /// primary, drops the isolated member, and makes the third member the primary.
    pub(super) fn isolate_and_move_twice(&mut self) {
        let former = group_of(self.map()).primary;
        let [second, third] = self.serving_backups()[..] else { return };
        let at = self.now + QUIET;
        self.plan_isolation(at);
        let moved = at + self.random.micros(1, 50_000);
        self.at(moved, GroupEvent::Change { change: MemberChange::HandOver, target: second });
        let dropped = moved + self.random.micros(1, 50_000);
        self.at(dropped, GroupEvent::Change { change: MemberChange::Drop, target: former });
        let again = dropped + self.random.micros(10_000, 800_000);
        self.at(again, GroupEvent::Change { change: MemberChange::HandOver, target: third });
    }

    /// Isolates the primary and kills its process, while management marks another member as in
    /// sync. The process starts again immediately. It does not have the map in which the marked
    /// member serves.
    pub(super) fn isolate_and_restart(&mut self) {
        let member = self.index_of(group_of(self.map()).primary);
        let client = Place::Client(self.random.index(self.clients.len()));
        let at = self.now + self.random.micros(1, 50_000);
        let until = self.plan_isolation(at);
        self.links.cut(Place::Management, Place::Member(member), until);
        self.links.cut(Place::Management, client, until);
        let restarted = at + self.random.micros(1, 100_000);
        self.at(restarted, GroupEvent::Restart { member });
    }

    /// Draws lease times with a `take_over_after` that is shorter than the current lease of a
    /// primary. If the limits of the settings permit no such value, draws any lease times.
    fn draw_shorter_times(&mut self, present: LeaseTimes) -> LeaseTimes {
        let most = present.lease.saturating_sub(TAKE_OVER).as_millis() as u64;
        let least = u64::from(MIN_TAKE_OVER_AFTER_MS).max(most / 2);
        if most < least {
            return draw_lease_times(&mut self.random);
        }
        let take_over_after = Duration::from_millis(self.random.within(least, most));
        let times = LeaseTimes { lease: Duration::ZERO, take_over_after };
        LeaseTimes { lease: times.granted_lease(), ..times }
    }

    /// Plans that the primary is isolated at the time `at`, and returns the end of the isolation.
    fn plan_isolation(&mut self, at: Duration) -> Duration {
        let LeaseTimes { lease, take_over_after } = LeaseTimes::of(&self.map().policy);
        let until = at + lease.max(take_over_after) + self.random.micros(100_000, 3_000_000);
        self.only_reads = at.saturating_sub(QUIET)..until;
        self.at(at, GroupEvent::Isolate { until });
        until
    }

    /// Cuts the primary off from all members and from management, and one client from management.
    /// This client still reaches the primary, which serves the client until the lease of the
    /// primary ends.
    pub(super) fn isolate_primary(&mut self, until: Duration) {
        let primary = self.index_of(group_of(self.map()).primary);
        let others = (0..self.members.len()).filter(|it| *it != primary).map(Place::Member);
        let others: Vec<_> = others.chain([Place::Management]).collect();
        for other in others {
            self.links.cut(Place::Member(primary), other, until);
            self.links.cut(other, Place::Member(primary), until);
        }
        let client = Place::Client(self.random.index(self.clients.len()));
        self.links.cut(Place::Management, client, until);
    }

    /// Kills the process of a member. The process starts again immediately.
    pub(super) fn restart(&mut self, member: usize) {
        self.end_process(member, false);
        let life = self.members[member].life;
        let pause = self.random.micros(5_000, 100_000);
        self.after(pause, GroupEvent::Open { member, life });
    }

    /// Returns the serving members that are not the primary.
    pub(super) fn serving_backups(&self) -> Vec<TargetId> {
        let group = group_of(self.map());
        let is_serving_backup = |it: &&skep_types::GroupMember| {
            it.state == MemberState::Serving && it.target != group.primary
        };
        group.members.iter().filter(is_serving_backup).map(|it| it.target).collect()
    }

    /// Returns the index of a target in the list of members.
    pub(super) fn index_of(&self, target: TargetId) -> usize {
        self.members.iter().position(|it| it.target == target).unwrap_or_default()
    }
}
