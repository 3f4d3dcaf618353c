//! The primary's relation to the other members of its group. This module decides when the primary
//! may reply to clients, which changes of the group it requests from management, and what it
//! reports to administrators.
//!
//! The module `shipping::shipper` owns the requests to the members. The module `gates` owns the
//! replies that wait for the members.

use crate::engine::Engine;
use crate::shipping::succession::Succession;
use crate::target::{Action, MetadataTarget};
use crate::tx::operation::ConnectionId;
use skep_types::codec::Codec;
use skep_types::group_change::{GroupChange, MemberChange};
use skep_types::map::CapacityPool;
use skep_types::{ClusterMap, Epoch, Lsn, Result, TargetId};
use skep_wire::frame::Header;
use skep_wire::log_shipping::GroupProgress;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

impl<E: Engine> MetadataTarget<E> {
    /// Sets the time from which the target may reply to clients, because the previous primary of
    /// the group may still reply. The caller calls this function before the first event.
    pub fn succeed(&mut self, succession: Succession) {
        self.shipper.succeed(succession);
    }

    /// Sets the epoch of the record `lsn`, which precedes the records that were passed to
    /// [`MetadataTarget::open`]. The caller calls this function before the first event. The target
    /// ignores the epoch if it has already removed some of these records from its memory.
    pub fn set_epoch_of(&mut self, lsn: Lsn, epoch: Epoch) {
        self.shipper.set_epoch_of(lsn, epoch);
    }

    /// Returns the time from the last batch until the leases of all earlier primaries have ended.
    pub fn wait_left(&self) -> Duration {
        self.shipper.answers_from().saturating_sub(self.shared.now)
    }

    /// Returns the newest cluster map that the target has handled.
    pub(crate) fn map(&self) -> &Arc<ClusterMap> {
        &self.shared.map
    }

    /// Returns the serving members that have confirmed the whole log in reply to a request that the
    /// target sent at the time `since` or later. Leaves out members whose service stops.
    pub(crate) fn complete_members(&self, since: Duration) -> Vec<TargetId> {
        self.shipper.complete_since(since)
    }

    /// Returns a serving member that has confirmed a later record than the last record of this
    /// target, in a reply of the present epoch. Also returns the LSN of this later record. In this
    /// case, the target has lost records, for example because its directory is an old backup.
    pub(crate) fn member_ahead(&self) -> Option<(TargetId, Lsn)> {
        self.shipper.member_ahead()
    }

    /// Makes the target send a request to each other member at the end of the next batch, even if
    /// no request is due yet.
    pub(crate) fn ask_members(&mut self) {
        self.shipper.renew_leases();
    }

    /// Whether the target may reply to clients at the time of the batch. If not, another member may
    /// have become the primary.
    pub(crate) fn may_answer(&self) -> bool {
        self.may_answer_at(self.shared.now)
    }

    /// Whether the target may reply to clients at the time `now`. The caller checks this right
    /// before it sends the replies of a batch. The batch may have waited for a slow disk, and the
    /// lease may have ended meanwhile.
    pub fn may_answer_at(&self, now: Duration) -> bool {
        self.shipper.holds_lease(self.member_lease(), now)
    }

    /// Queues the replies that the caller must not send, because the lease has ended during the
    /// batch. The target sends these replies when it has its lease again. If another member is the
    /// primary by then, the clients send their requests to that member again.
    pub fn hold_replies(&mut self, replies: Vec<Action>) {
        for reply in replies {
            if let Action::Reply { connection, request, result } = reply {
                self.gates.hold_until_lease(connection, request, result);
            }
        }
    }

    /// Returns the duration of a lease, which begins when the primary sends a request that the
    /// member acknowledges.
    fn member_lease(&self) -> Duration {
        self.shared.limits.members.lease_times(&self.shared.map).lease
    }

    /// Updates the list of members for which replies wait. Adds absent members that lack only a few
    /// records, and removes counted members that no longer confirm records.
    pub(super) fn count_members(&mut self) -> Result<()> {
        let has_ended = self.shipper.end_counting(self.member_lease(), self.shared.now);
        let begun = self.shipper.begin_to_count();
        if !has_ended && begun.is_empty() {
            return Ok(());
        }
        self.gates.set_others(self.shipper.counted());
        for (member, progress) in begun {
            self.gates.acknowledge(member, progress);
        }
        self.release_gated()
    }

    /// Returns the changes of the group that the target requests from management now. If the target
    /// requests to drop a member, replies also wait for the syncs of this target until the next
    /// epoch, because this target may become the only serving member. If its own disk hangs, the
    /// target requests to hand the group over to a member whose disk does not hang.
    pub(super) fn group_changes(&mut self) -> Vec<GroupChange> {
        if self.shipper.waits_for_hanging_disk() {
            // A member whose disk hangs still confirms records, so *held* rises with each record.
            // Under load, the syncs of this target would never reach *held*. But the target
            // requests the drop of the member only when it has synced all records up to *held*.
            self.gates.hold_only_synced();
        }
        let (needed, epoch) = (self.gates.needed_to_serve(), self.gates.epoch());
        let (group, synced, now) = (self.shared.group, self.gates.synced(), self.shared.now);
        let mut changes = self.shipper.changes(needed, synced, self.member_lease(), now);
        if changes.iter().any(|(change, _)| *change == MemberChange::Drop) {
            self.gates.hold_only_synced();
        }
        if changes.is_empty()
            && let Some(hanging) = self.gates.hanging_sync(now)
        {
            // Choose a member with free space: a primary with a full disk would hand the group
            // back.
            let map = &self.shared.map;
            let has_space = |member| {
                map.target(member).is_none_or(|it| it.capacity_pool != CapacityPool::Emergency)
            };
            let successor = self.shipper.successor(hanging, now, has_space);
            changes.extend(successor.map(|member| (MemberChange::HandOver, member)));
        }
        let of = |(change, target)| GroupChange { group, epoch, change, target };
        changes.into_iter().map(of).collect()
    }

    /// Returns the members of the group whose disks hang, including this target.
    pub(crate) fn hanging_disks(&self) -> BTreeSet<TargetId> {
        let own = self.gates.hanging_sync(self.shared.now).map(|_| self.target);
        self.shipper.hanging_disks().chain(own).collect()
    }

    /// Whether replies also wait for the syncs of this target. These syncs count if the target has
    /// asked management to drop a member in this epoch.
    pub(crate) fn replies_wait_for_own_disk(&self) -> bool {
        self.gates.holds_only_synced()
    }

    /// Replies to `AskGroup`. The reply does not wait for the other members, because administrators
    /// need it most when a member is absent.
    pub(crate) fn report_group(&mut self, connection: ConnectionId, request: Header) {
        let log = self.gates.group_log();
        let report = GroupProgress {
            epoch: log.epoch,
            primary: self.target,
            last: self.last_logged(),
            synced: self.gates.synced(),
            held: log.held,
            safe: log.safe,
            may_answer: self.may_answer(),
            kept_bytes: self.shipper.kept_bytes(),
            members: self.shipper.members(self.engine().approximate_pairs(), self.shared.now),
        };
        let result = Ok(report.to_bytes());
        self.batch.actions.push(Action::Reply { connection, request, result });
    }
}
