//! Whether a target may act as the primary of its group, and the durable record of the group that
//! this decision needs.
//!
//! This module does not own the texts about a target that may not act as the primary
//! ([`super::halted`]), or the file of the record ([`skep_store::page_cache`]).

use super::Parts;
use crate::term::Membership;
use skep_cluster::groups::{has_skipped, is_undecided};
use skep_cluster::lease_times::{LeaseTimes, lowered_bound, raised_bound};
use skep_types::{ClusterMap, Epoch, Group, GroupRecord, Result};
use std::time::Duration;

impl Parts<'_> {
    /// Whether the target may act as the primary now. `log_epoch` is the highest epoch of a record
    /// in its log.
    pub(super) fn may_lead(&self, membership: &Membership, log_epoch: Epoch) -> bool {
        if !membership.is_primary(self.target) {
            return false;
        }
        // Management may already let a counted member serve, so a target with counted members is
        // not alone.
        let is_alone = !membership.has_others(self.target, true)
            && membership.counted(&self.mark.counted()).is_empty();
        let is_permitted = !membership.has_others(self.target, false)
            || self.shell.marks.permits_leading_in(membership.epoch());
        is_permitted
            && (is_alone || !self.mark.lacks_records())
            && !self.is_in_doubt(membership)
            && !self.has_old_map(membership, log_epoch)
    }

    /// Whether the map comes from a management that was restored from a backup, and that has not
    /// compared the logs of the members yet. No member leads then.
    pub(super) fn is_in_doubt(&self, membership: &Membership) -> bool {
        is_undecided(membership.epoch())
            || membership.precedes(&self.mark.record(), &self.mark.counted())
    }

    /// Whether other members may serve according to a newer map than that of `membership`.
    pub(super) fn has_old_map(&self, membership: &Membership, log_epoch: Epoch) -> bool {
        log_epoch > membership.epoch() || membership.is_older_than(&self.mark.counted())
    }

    /// Stores durably the epoch and the state of the group in `map`, if the target has a member
    /// mark.
    pub(super) fn record_group(&mut self, map: &ClusterMap) -> Result<()> {
        match map.group_of(self.target).filter(|_| self.mark.exists()) {
            None => Ok(()),
            Some(group) => {
                let record = self.record_after(group);
                self.mark.reach_epoch(group.epoch, map.version, record)
            }
        }
    }

    /// Returns the record of the group after a map with the state `group`. The record does not
    /// change while the map may come from a restored management that has not compared the members
    /// with this member. The record then shows which targets may have newer changes.
    fn record_after(&self, group: &Group) -> GroupRecord {
        let present = self.mark.record();
        let is_doubtful = is_undecided(group.epoch)
            || present.is_after(group)
            || self.mark.lacks_records() && has_skipped(present.epoch, group.epoch);
        if is_doubtful { present } else { present.followed_by(&GroupRecord::of(group)) }
    }

    /// Stores durably the epoch and the state of the group in `map`, and the bound of the promises
    /// that the settings in `map` permit. The caller calls this function before the backup member
    /// handles `map`.
    pub(super) fn note_map(&mut self, map: &ClusterMap) -> Result<()> {
        self.record_group(map)?;
        let times = LeaseTimes::of(&map.policy);
        self.mark.bound_promises(raised_bound(self.mark.promise_bound(), times.take_over_after))
    }

    /// Lowers the durable bound of a backup member's promises if the settings in `map` permit only
    /// shorter promises. The last promise ends after the time `promise_left`.
    pub(super) fn lower_promise_bound(
        &mut self,
        map: &ClusterMap,
        promise_left: Duration,
    ) -> Result<()> {
        let (bound, times) = (self.mark.promise_bound(), LeaseTimes::of(&map.policy));
        self.mark.bound_promises(lowered_bound(bound, times.take_over_after, promise_left))
    }
}
