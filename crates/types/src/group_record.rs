//! The last state of a metadata group that a member of this group has recorded. The member stores
//! the record in its own directory. A cluster map that is older than the record comes from a
//! management that was restored from a backup (docs/design/0014-metadata-groups.md, "Restored
//! management").
//!
//! The crate `skep_metadata` owns the rule that decides when a member records a state. The module
//! `skep_cluster::losses` decides which member continues the group.

use crate::codec::record;
use crate::{Epoch, Group, MemberState, TargetId};

record! {
    /// The newest state of a metadata group that a member has recorded durably.
    #[derive(Default)]
    pub struct GroupRecord {
        /// Epoch of the group. Zero means that the member has recorded no state.
        pub epoch: Epoch,
        /// The members that may have all changes of the group in this epoch, in ascending order.
        /// These members are the serving members, and the members that the primary has asked
        /// management to mark as in sync.
        pub members: Vec<TargetId>,
    }
}

impl GroupRecord {
    /// Returns the record of the state `group`.
    pub fn of(group: &Group) -> Self {
        let serving = group.members.iter().filter(|it| it.state == MemberState::Serving);
        let mut members: Vec<TargetId> = serving.map(|it| it.target).collect();
        members.sort_unstable();
        Self { epoch: group.epoch, members }
    }

    /// Whether `group` is an earlier state than this record. The removal of a member raises the
    /// epoch. So a state that lacks a recorded member in the same epoch is earlier too.
    pub fn is_after(&self, group: &Group) -> bool {
        let is_missing = |member: &TargetId| group.members.iter().all(|it| it.target != *member);
        self.epoch > group.epoch || self.epoch == group.epoch && self.members.iter().any(is_missing)
    }

    /// Returns the record after the state `next`. In the same epoch, all members of both records
    /// stay in the record, because a request for one of them may still be carried out.
    #[must_use]
    pub fn followed_by(&self, next: &Self) -> Self {
        if next.epoch != self.epoch {
            return next.clone();
        }
        let all = next.members.iter().copied();
        all.fold(self.clone(), |record, member| record.with_member(self.epoch, member))
    }

    /// Returns the record with one more member, if the record is of the epoch `epoch`.
    #[must_use]
    pub fn with_member(mut self, epoch: Epoch, member: TargetId) -> Self {
        if self.epoch == epoch
            && let Err(at) = self.members.binary_search(&member)
        {
            self.members.insert(at, member);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GroupId, GroupMember, TargetKind};

    const ONE: TargetId = TargetId::new(1);
    const TWO: TargetId = TargetId::new(2);

    fn group(epoch: u64, others: &[(TargetId, MemberState)]) -> Group {
        let mut group = Group::of_one(GroupId::new(7), TargetKind::Metadata, ONE);
        group.epoch = Epoch::new(epoch);
        let member = |(target, state): &(TargetId, MemberState)| GroupMember {
            target: *target,
            state: *state,
        };
        group.members.extend(others.iter().map(member));
        group
    }

    #[test]
    fn record_has_serving_and_requested_members_of_an_epoch() {
        let serving = GroupRecord::of(&group(2, &[(TWO, MemberState::Serving)]));
        assert_eq!(serving.members, [ONE, TWO]);
        let alone = GroupRecord::of(&group(3, &[(TWO, MemberState::Waiting)]));
        assert_eq!(alone.members, [ONE]);
        let requested = alone.clone().with_member(Epoch::new(3), TWO);
        assert_eq!(requested.members, [ONE, TWO]);
        assert_eq!(alone.clone().with_member(Epoch::new(4), TWO), alone, "a later epoch");
        assert_eq!(requested.followed_by(&alone), requested, "the request may still succeed");
        let next = GroupRecord { epoch: Epoch::new(4), members: vec![ONE] };
        assert_eq!(requested.followed_by(&next), next);
    }

    #[test]
    fn state_without_a_recorded_member_is_earlier_than_the_record() {
        let record = GroupRecord { epoch: Epoch::new(3), members: vec![ONE, TWO] };
        assert!(record.is_after(&group(2, &[(TWO, MemberState::Serving)])));
        assert!(record.is_after(&group(3, &[])));
        assert!(!record.is_after(&group(3, &[(TWO, MemberState::Waiting)])));
        assert!(!record.is_after(&group(4, &[])));
        assert!(!GroupRecord::default().is_after(&group(1, &[])));
    }
}
