//! The membership of a target in its group. The target's thread waits until the target is a member
//! of a group, and later checks that it is still a member of the same group.
//!
//! A new target may wait for a group (setting `metadata-copies`). Until it has a group, its thread
//! opens neither log nor store. The loops in `service::roles` detect the end of a role.

use crate::former_group::FormerGroup;
use skep_env::Mailbox;
use skep_format::member_mark::CountedMembers;
use skep_rpc::Router;
use skep_service::TargetEvent;
use skep_service::host::Ready;
use skep_types::map::{MemberState, TargetHealth};
use skep_types::{
    ClusterMap, Epoch, Error, ErrorCode, Group, GroupId, GroupRecord, Result, TargetId,
};
use std::sync::Arc;

/// The membership of a target in its group, in one version of the cluster map.
#[derive(Debug, Clone)]
pub(crate) struct Membership {
    pub(crate) group: GroupId,
    pub(crate) target: TargetId,
    /// The cluster map in which the target is a member of the group.
    pub(crate) map: Arc<ClusterMap>,
}

impl Membership {
    /// Returns the membership of a target. `None` means that the target has no group.
    pub(crate) fn of(map: Arc<ClusterMap>, target: TargetId) -> Option<Self> {
        let group = map.group_of(target)?.id;
        Some(Self { group, target, map })
    }

    /// Checks that the target is still a member of the same group in the newer map `map`, and
    /// returns the membership with this map.
    ///
    /// # Errors
    /// `Deposed` if the target is not a member of the group any more. The role of the target has
    /// then ended.
    pub(crate) fn check_same(&self, map: Arc<ClusterMap>) -> Result<Self> {
        let (group, target) = (self.group, self.target);
        Self::of(map, target).filter(|it| it.group == group).ok_or_else(|| {
            let what = format!(
                "cannot continue the role of target {target}: this target is no longer a member of \
                 group {group}"
            );
            Error::new(ErrorCode::Deposed, what)
        })
    }

    /// Whether the target is a serving member.
    pub(crate) fn serves(&self, target: TargetId) -> bool {
        let serves =
            |it: &skep_types::GroupMember| it.target == target && it.state == MemberState::Serving;
        self.entry().is_some_and(|group| group.members.iter().any(serves))
    }

    fn entry(&self) -> Option<&Group> {
        self.map.group(self.group)
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.entry().map(|group| group.epoch).unwrap_or_default()
    }

    /// Whether the target is the primary.
    pub(crate) fn is_primary(&self, target: TargetId) -> bool {
        self.entry().is_some_and(|group| group.primary == target)
    }

    /// Whether the group has other members. If `serving_only`, only serving members count.
    pub(crate) fn has_others(&self, target: TargetId, serving_only: bool) -> bool {
        let is_other = |it: &skep_types::GroupMember| {
            it.target != target && (!serving_only || it.state == MemberState::Serving)
        };
        self.entry().is_some_and(|group| group.members.iter().any(is_other))
    }

    /// Whether this map is older than the map of the epoch that the target has recorded in its
    /// member mark.
    pub(crate) fn is_older_than(&self, counted: &CountedMembers) -> bool {
        self.entry().is_some_and(|group| counted.are_newer_than(self.map.version, group))
    }

    /// Whether this map has an earlier state of the group than `record`, although it is not older
    /// than the map of the epoch in `counted`. So management was restored from a backup that is
    /// older than the record. `record` and `counted` are in the member mark of the target.
    pub(crate) fn precedes(&self, record: &GroupRecord, counted: &CountedMembers) -> bool {
        self.map.version >= counted.version
            && self.entry().is_some_and(|group| record.is_after(group))
    }

    /// Returns the members that do not serve in this map, but that management may have marked as in
    /// sync at the request of this target.
    pub(crate) fn counted(&self, counted: &CountedMembers) -> Vec<TargetId> {
        let Some(group) = self.entry() else { return Vec::new() };
        counted.waiting_of(group).collect()
    }

    /// Returns the members about which the target has sent requests to management in the epoch of
    /// this map.
    pub(crate) fn requested(&self, counted: &CountedMembers) -> Vec<TargetId> {
        let Some(group) = self.entry() else { return Vec::new() };
        counted.of_epoch(group).to_vec()
    }

    /// Whether another member may have been the primary before the current term.
    pub(crate) fn had_other_primary(&self) -> bool {
        self.entry().is_some_and(|group| group.primary_since.raw() > 1)
    }

    /// Whether the group has not changed since it was created.
    pub(crate) fn is_new(&self) -> bool {
        self.entry().is_some_and(|group| group.epoch.raw() == 1)
    }
}

/// Waits until the target is a member of a group. Meanwhile the target is reported as ready,
/// replies to probes and closes connections. If the cluster map is older than `former`, the state
/// of the group that the target has recorded, the target reports this state to management. Returns
/// `None` when the service ends.
///
/// # Errors
/// Returns the error if the mailbox fails.
pub(crate) async fn await_membership(
    router: &Router,
    target: TargetId,
    events: &Mailbox<TargetEvent>,
    ready: &mut Option<Ready>,
    former: Option<&FormerGroup>,
) -> Result<Option<Membership>> {
    let mut has_waited = false;
    loop {
        if let Some(membership) = Membership::of(router.map(), target) {
            if has_waited {
                let group = membership.group;
                let role = if membership.is_primary(target) { ", as its primary" } else { "" };
                tracing::info!("target {target} is a member of metadata group {group} now{role}");
            }
            return Ok(Some(membership));
        }
        has_waited = true;
        if let Some(ready) = ready.take() {
            tracing::info!(
                "target {target} serves nothing until `skep group create` or `skep group add` puts \
                 it into a group"
            );
            ready.report();
        }
        let map = router.map();
        // The node probes the target once a second, so a report follows at most a second after it
        // is due.
        if let Some(former) = former {
            former.report(&map);
        }
        match events.receive().await? {
            // The peer has an older or a newer cluster map, in which this target has a group. The
            // peer will connect again.
            TargetEvent::Connection { socket, .. } => drop(socket),
            TargetEvent::Probe(probe) => {
                probe.answer(former.map_or_else(TargetHealth::default, |it| it.health(&map)));
            }
            TargetEvent::MapChanged => {}
            TargetEvent::Stop => return Ok(None),
        }
    }
}

/// Returns the error that ends a target's thread when the target must take another role. The
/// service then opens the target again.
pub(crate) fn ended(group: GroupId) -> Error {
    let context = format!("the role of this target in group {group} has changed");
    Error::new(ErrorCode::Deposed, context)
}
