//! The upper bound on the remaining duration of a member's promises not to take over. The simulated
//! member mark contains this bound. The module also has the planted bugs that break promises. The
//! functions do the same as `service/roles.rs` of `crates/metadata`, but without files.

use super::authority::group_of;
use super::knobs::GroupBug;
use super::member::{Member, Role};
use skep_cluster::lease_times::{LeaseTimes, bound_of_primary, lowered_bound, raised_bound};
use skep_metadata::shipping::succession::Succession;
use skep_metadata::target::Event;
use std::time::Duration;

impl Member {
    /// Returns the setting `take_over_after` in the map of the process.
    fn take_over_after(&self) -> Duration {
        LeaseTimes::of(&self.map.policy).take_over_after
    }

    /// Returns the time for which a starting process waits because of the promises of the member's
    /// previous process.
    pub(super) fn promise_bound(&self, plant: Option<GroupBug>) -> Duration {
        match plant {
            Some(GroupBug::ForgetPromise) => self.take_over_after(),
            _ => self.mark.promise_bound,
        }
    }

    /// Records the epoch in the member mark and raises the bound in the mark, before a backup
    /// member starts with the map of the process.
    pub(super) fn raise_promise_bound(&mut self) {
        let (epoch, version) = (group_of(&self.map).epoch, self.map.version);
        self.mark.counted = self.mark.counted.after_map(epoch, version);
        let after = self.take_over_after();
        self.mark.promise_bound = raised_bound(self.mark.promise_bound, after);
    }

    /// Records the epoch in the member mark and raises the bound in the mark, before a backup
    /// member handles maps.
    pub(super) fn raise_promise_bound_for(&mut self, events: &[Event]) {
        for event in events {
            if let (Event::Map(map), Role::Backup(_)) = (event, &self.role) {
                let epoch = group_of(map).epoch;
                self.mark.counted = self.mark.counted.after_map(epoch, map.version);
                let after = LeaseTimes::of(&map.policy).take_over_after;
                self.mark.promise_bound = raised_bound(self.mark.promise_bound, after);
            }
        }
    }

    /// Lowers the bound in the member mark after a batch of events, if the promises permit a lower
    /// bound.
    pub(super) fn lower_promise_bound(&mut self) {
        let bound = self.mark.promise_bound;
        self.mark.promise_bound = match &self.role {
            Role::Backup(backup) => {
                lowered_bound(bound, self.take_over_after(), backup.promise_left())
            }
            Role::Primary(primary) => bound_of_primary(bound, primary.wait_left()),
            Role::Former(_) | Role::Copying(_) | Role::Down | Role::Waiting => bound,
        };
    }

    /// For a planted bug: returns the time from which a new primary replies to clients if its last
    /// promise lasts only for the current `take_over_after`.
    pub(super) fn shorten_promise(&self, succession: Succession) -> Succession {
        let shortened = self.granted_at + self.take_over_after();
        Succession::at(shortened.min(succession.answers_from()))
    }
}
