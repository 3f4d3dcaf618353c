//! The wait of a target's thread until its target is a member of a group, and its role then.
//!
//! A new target may wait for a group (setting `metadata-copies`). Until it has one, its thread
//! opens neither log nor store. Does not own the end of a role, which the loops of the service
//! notice (`service::roles`).

use skep_env::Mailbox;
use skep_rpc::Router;
use skep_service::TargetEvent;
use skep_service::host::Ready;
use skep_types::map::{MemberState, TargetHealth};
use skep_types::{ClusterMap, Epoch, Error, ErrorCode, Group, GroupId, Result, TargetId};
use std::sync::Arc;

/// The group of a target in one version of the cluster map.
#[derive(Debug, Clone)]
pub(crate) struct Membership {
    pub(crate) group: GroupId,
    /// The cluster map that names the target as a member.
    pub(crate) map: Arc<ClusterMap>,
}

impl Membership {
    /// Returns the membership of a target. `None` means that it has no group.
    pub(crate) fn of(map: Arc<ClusterMap>, target: TargetId) -> Option<Self> {
        let group = map.group_of(target)?.id;
        Some(Self { group, map })
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

    /// Whether the group has other members, or only others that serve.
    pub(crate) fn has_others(&self, target: TargetId, serving_only: bool) -> bool {
        let is_other = |it: &skep_types::GroupMember| {
            it.target != target && (!serving_only || it.state == MemberState::Serving)
        };
        self.entry().is_some_and(|group| group.members.iter().any(is_other))
    }

    /// Whether another member has been the primary before the present term.
    pub(crate) fn had_other_primary(&self) -> bool {
        self.entry().is_some_and(|group| group.primary_since.raw() > 1)
    }

    /// Whether the group has been created with its present members, and has not changed since.
    pub(crate) fn is_new(&self) -> bool {
        self.entry().is_some_and(|group| group.epoch.raw() == 1)
    }
}

/// Waits until the target is a member of a group. Meanwhile the target counts as ready, answers
/// probes and closes connections. Returns `None` if the service ends.
///
/// # Errors
/// An error of the mailbox.
pub(crate) async fn await_membership(
    router: &Router,
    target: TargetId,
    events: &Mailbox<TargetEvent>,
    ready: &mut Option<Ready>,
) -> Result<Option<Membership>> {
    loop {
        if let Some(membership) = Membership::of(router.map(), target) {
            return Ok(Some(membership));
        }
        if let Some(ready) = ready.take() {
            tracing::info!("target {target} waits for a group");
            ready.report();
        }
        match events.receive().await? {
            // The peer has an older cluster map, or a newer one. It connects again.
            TargetEvent::Connection { socket, .. } => drop(socket),
            TargetEvent::Probe(probe) => probe.answer(TargetHealth::default()),
            TargetEvent::MapChanged => {}
            TargetEvent::Stop => return Ok(None),
        }
    }
}

/// Returns the error for the end of a target's thread when its role ends. The node then opens the
/// target again.
pub(crate) fn ended(group: GroupId) -> Error {
    let context = format!("this target has another role in group {group} now");
    Error::new(ErrorCode::Deposed, context)
}
