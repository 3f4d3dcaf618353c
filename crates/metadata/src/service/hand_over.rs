//! Hands a group over to another member when the disk of the primary is almost full, so that
//! programs do not get `ENOSPC` while another member has free space.
//!
//! Decides when to hand the group over, and to which member. [`crate::free_space`] measures the
//! free space, and management changes the group. If no other member has free space, the target
//! refuses new data, like a target in a group of one.

use crate::limits::HAND_OVER_LIMIT;
use crate::term::Membership;
use skep_types::group_change::{GroupChange, MemberChange};
use skep_types::map::{CapacityPool, Reachability};
use skep_types::{ClusterMap, Group, MemberState, TargetId};
use std::time::Duration;

/// The attempt to hand the group over.
#[derive(Debug, Default)]
pub(super) struct HandOver {
    began: Option<Duration>,
}

impl HandOver {
    /// Returns the change that the primary `own` requests from management because its disk is
    /// almost full. `None` means that the target must refuse new data, because no other member can
    /// take over, or because the attempt has lasted for [`HAND_OVER_LIMIT`].
    pub(super) fn on_shortage(
        &mut self,
        membership: &Membership,
        own: TargetId,
        now: Duration,
    ) -> Option<GroupChange> {
        let began = *self.began.get_or_insert(now);
        let group = membership.map.group(membership.group)?;
        let found = successor(&membership.map, group, |it| it != own);
        let target = found.filter(|_| now < began + HAND_OVER_LIMIT)?;
        let (group, epoch) = (group.id, group.epoch);
        Some(GroupChange { group, epoch, change: MemberChange::HandOver, target })
    }

    /// Ends the attempt, because the disk has free space again.
    pub(super) fn on_space(&mut self) {
        self.began = None;
    }
}

/// Returns the serving member with the most free space, among the members for which `is_fit` holds
/// and whose target is online and not in the capacity pool `Emergency`. `None` means that there is
/// no such member.
pub(super) fn successor(
    map: &ClusterMap,
    group: &Group,
    is_fit: impl Fn(TargetId) -> bool,
) -> Option<TargetId> {
    let serving = group.members.iter().filter(|it| it.state == MemberState::Serving);
    let others = serving.map(|it| it.target).filter(|it| is_fit(*it));
    let fit = others.filter_map(|id| map.target(id)).filter(|target| {
        target.reachability == Reachability::Online
            && target.capacity_pool != CapacityPool::Emergency
            && target.capacity.free_bytes > 0
    });
    fit.max_by_key(|target| (target.capacity.free_bytes, target.id)).map(|target| target.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::map::Capacity;
    use skep_types::{ClusterId, GroupId, GroupMember, NodeId, Target, TargetKind};
    use std::sync::Arc;

    /// Returns the membership of target 1, the primary of a group. `free` contains the free bytes
    /// of each serving member.
    fn membership(free: &[u64]) -> Membership {
        let id = |at: usize| TargetId::new(at as u32 + 1);
        let target = |(at, free_bytes): (usize, &u64)| Target {
            reachability: Reachability::Online,
            capacity: Capacity {
                total_bytes: 1 << 40,
                free_bytes: *free_bytes,
                ..Capacity::default()
            },
            ..Target::new(id(at), TargetKind::Metadata, NodeId::new(at as u32 + 1), "/t")
        };
        let member = |at| GroupMember { target: id(at), state: MemberState::Serving };
        let group = Group {
            members: (0..free.len()).map(member).collect(),
            primary: id(0),
            ..Group::of_one(GroupId::new(1), TargetKind::Metadata, id(0))
        };
        let targets = free.iter().enumerate().map(target).collect();
        let map =
            ClusterMap { targets, groups: vec![group], ..ClusterMap::empty(ClusterId::default()) };
        Membership { group: GroupId::new(1), target: id(0), map: Arc::new(map) }
    }

    #[test]
    fn full_primary_hands_over_to_the_member_with_most_free_space() {
        let found = HandOver::default().on_shortage(
            &membership(&[9, 3, 5]),
            TargetId::new(1),
            Duration::ZERO,
        );
        let change = found.expect("a successor");
        assert_eq!((change.target, change.change), (TargetId::new(3), MemberChange::HandOver));
    }

    #[test]
    fn primary_keeps_its_group_if_all_other_members_are_full() {
        for free in [&[0][..], &[0, 0], &[0, 0, 0]] {
            let own = TargetId::new(1);
            let found = HandOver::default().on_shortage(&membership(free), own, Duration::ZERO);
            assert_eq!(found, None, "{free:?}");
        }
    }

    #[test]
    fn failed_hand_over_is_retried_only_after_space_was_freed() {
        let (membership, own) = (membership(&[0, 5]), TargetId::new(1));
        let mut attempt = HandOver::default();
        assert!(attempt.on_shortage(&membership, own, Duration::ZERO).is_some());
        assert!(attempt.on_shortage(&membership, own, HAND_OVER_LIMIT).is_none());
        attempt.on_space();
        assert!(attempt.on_shortage(&membership, own, HAND_OVER_LIMIT).is_some());
    }
}
