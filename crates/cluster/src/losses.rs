//! The choice of a primary after the hosts of all serving members of a group have lost power. Each
//! of these members may lack records that it had confirmed.
//!
//! A pure function over the reports of the members. Does not own the rules for changes of a group
//! ([`crate::groups`]), and does not retry the changes.

use skep_types::group_change::MemberChange;
use skep_types::{Epoch, Group, Lsn, MemberState, TargetId};
use std::collections::BTreeMap;

/// Epoch and LSN of a member's last record.
pub type LogEnd = (Epoch, Lsn);

/// Returns the changes of the group, in the order in which they must be made. After these changes,
/// only the member with the longest log serves. Returns no changes unless every serving member has
/// reported a loss in the current epoch.
///
/// A primary that serves alone may report a loss too. Such a primary may have asked management to
/// mark a member as in sync, and must not lead as long as this request may succeed. The drop of a
/// member that does not serve begins a new epoch, which revokes the request.
///
/// Every log has all safe records, because a record is safe only when every serving member has
/// synced it. Some logs may lack records that are not safe, and the longest log contains the most
/// of these records.
pub fn changes(
    group: &Group,
    reports: &BTreeMap<TargetId, LogEnd>,
) -> Vec<(MemberChange, TargetId)> {
    let serving = group.members.iter().filter(|it| it.state == MemberState::Serving);
    let serving: Vec<TargetId> = serving.map(|it| it.target).collect();
    let ends: Option<Vec<(LogEnd, bool, TargetId)>> = serving
        .iter()
        .map(|it| reports.get(it).map(|end| (*end, *it == group.primary, *it)))
        .collect();
    let Some((end, _, longest)) = ends.and_then(|ends| ends.into_iter().max()) else {
        return Vec::new();
    };
    let others = serving.iter().filter(|it| **it != longest && **it != group.primary);
    let mut changes: Vec<_> = others.map(|it| (MemberChange::Drop, *it)).collect();
    if longest != group.primary {
        changes.push((MemberChange::TakeOver, longest));
    }
    // A target whose store is an incomplete copy reports an empty log. Such a target cannot lead in
    // any epoch.
    if changes.is_empty() && end > LogEnd::default() {
        let absent = group.members.iter().find(|it| it.state != MemberState::Serving);
        changes.extend(absent.map(|it| (MemberChange::Drop, it.target)));
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups;
    use skep_types::group_change::GroupChange;
    use skep_types::{GroupId, TargetKind};

    const TARGETS: [TargetId; 3] = [TargetId::new(1), TargetId::new(2), TargetId::new(3)];

    /// Returns the primary and the number of serving members after the changes. `None` means that
    /// there are no changes. `ends` are the log ends that the three members report.
    fn chosen(ends: [Option<(u64, u64)>; 3]) -> Option<(u32, usize)> {
        let mut group = groups::create(GroupId::new(1), TargetKind::Metadata, &TARGETS).unwrap();
        let reports = TARGETS.iter().zip(ends).filter_map(|(target, end)| {
            end.map(|(epoch, lsn)| (*target, (Epoch::new(epoch), Lsn::new(lsn))))
        });
        let changes = changes(&group, &reports.collect());
        for (change, target) in &changes {
            let (change, target) = (*change, *target);
            let change = GroupChange { group: group.id, epoch: group.epoch, change, target };
            group = groups::apply(&group, &change).unwrap();
            assert_eq!(group.epoch.raw(), change.epoch.raw() + 1, "each change begins an epoch");
        }
        let serving = group.members.iter().filter(|it| it.state == MemberState::Serving).count();
        (!changes.is_empty()).then_some((group.primary.raw(), serving))
    }

    #[test]
    fn member_with_the_longest_log_becomes_primary_after_a_loss() {
        assert_eq!(chosen([Some((1, 5)), Some((1, 9)), Some((1, 7))]), Some((2, 1)));
        assert_eq!(chosen([Some((1, 5)), Some((1, 9)), Some((2, 3))]), Some((3, 1)));
        assert_eq!(chosen([Some((1, 9)), Some((1, 9)), Some((1, 9))]), Some((1, 1)));
    }

    #[test]
    fn primary_without_backup_members_gets_a_new_epoch_after_loss() {
        let mut group = groups::create(GroupId::new(1), TargetKind::Metadata, &TARGETS).unwrap();
        group.members[1..].iter_mut().for_each(|it| it.state = MemberState::Waiting);
        let with_end = |epoch, lsn| {
            let end = (Epoch::new(epoch), Lsn::new(lsn));
            changes(&group, &BTreeMap::from([(TARGETS[0], end)]))
        };
        assert!(with_end(0, 0).is_empty(), "a copy of the store is incomplete");
        assert_eq!(with_end(1, 9), [(MemberChange::Drop, TARGETS[1])]);
        let (change, target) = with_end(1, 9)[0];
        let change = GroupChange { group: group.id, epoch: group.epoch, change, target };
        let next = groups::apply(&group, &change).unwrap();
        assert_eq!((next.epoch, next.primary), (Epoch::new(2), TARGETS[0]));
    }

    #[test]
    fn no_primary_is_chosen_before_all_members_report_their_logs() {
        assert_eq!(chosen([Some((1, 5)), Some((1, 9)), None]), None);
        assert_eq!(chosen([None, None, None]), None);
    }
}
