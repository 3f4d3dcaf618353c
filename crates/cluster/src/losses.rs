//! The choice of a primary when each serving member of a group may lack records that it had
//! confirmed: after the hosts of all these members have lost power, or after management was
//! restored from a backup.
//!
//! Pure functions over the reports of the members. Does not own the rules for changes of a group
//! ([`crate::groups`]), and does not retry the changes.

use crate::groups;
use skep_types::group_change::MemberChange;
use skep_types::{Epoch, Group, GroupRecord, Lsn, MemberState, TargetId};
use std::collections::{BTreeMap, BTreeSet};

/// Epoch and LSN of a member's last record.
pub type LogEnd = (Epoch, Lsn);

/// The report of a member that may lack records.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LossReport {
    /// The end of the member's log. Zero if the member has no complete store.
    pub end: LogEnd,
    /// The last state of the group that the member has recorded.
    pub record: GroupRecord,
}

/// The result of the comparison of logs after a restore of management.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// The reports of these targets are missing, and one of the targets may have all changes of the
    /// group. If the list is empty, all members have reported that their logs are empty.
    Wait(BTreeSet<TargetId>),
    /// The changes of the group, in the order in which they must be made. After these changes, only
    /// the member with the longest log serves.
    Changes(Vec<(MemberChange, TargetId)>),
}

/// Compares the logs of a group in an undecided epoch ([`crate::groups::is_undecided`]).
///
/// The cluster map may be older than the last changes of the group, so management finds the members
/// that served last in the records of the members. The newest record is the record with the highest
/// epoch. Management waits until all members in the newest record have reported, and none of these
/// reports has a newer record. Then one of these members has all changes of the group: only a
/// primary adds a serving member, and this primary records the member durably in the same epoch
/// before it asks management. So each later serving member would be in a newer record. The longest
/// log of the members contains all changes (see [`changes`]).
///
/// If no member has a record, management waits for all serving members. Management does not wait
/// for a member that an administrator has dropped in this state.
pub fn choice_after_restore(group: &Group, reports: &BTreeMap<TargetId, LossReport>) -> Choice {
    let is_dropped = |id: &TargetId| {
        group.members.iter().any(|it| it.target == *id && it.state != MemberState::Serving)
    };
    let mut needed = needed_reports(group, reports);
    needed.retain(|it| !reports.contains_key(it) && !is_dropped(it));
    if !needed.is_empty() {
        return Choice::Wait(needed);
    }
    let serving: Vec<TargetId> = groups::serving(group).collect();
    let ends = serving.iter().filter_map(|it| {
        let end = reports.get(it)?.end;
        (end > LogEnd::default()).then_some((end, *it == group.primary, *it))
    });
    let Some((.., longest)) = ends.max() else { return Choice::Wait(BTreeSet::new()) };
    let others = serving.iter().filter(|it| **it != longest && **it != group.primary);
    let mut changes: Vec<_> = others.map(|it| (MemberChange::Drop, *it)).collect();
    changes.push(match longest == group.primary {
        // Only an undecided epoch permits a hand-over to the present primary.
        true => (MemberChange::HandOver, longest),
        false => (MemberChange::TakeOver, longest),
    });
    Choice::Changes(changes)
}

/// Returns the targets whose reports management needs. These targets are the members in the newest
/// record of the reports, or all serving members if no member has a record. One of these targets
/// has all changes of the group.
pub fn needed_reports(
    group: &Group,
    reports: &BTreeMap<TargetId, LossReport>,
) -> BTreeSet<TargetId> {
    let newest = reports.values().map(|it| it.record.epoch).max().unwrap_or_default();
    if newest == Epoch::default() {
        return groups::serving(group).collect();
    }
    let records = reports.values().filter(|it| it.record.epoch == newest);
    records.flat_map(|it| it.record.members.iter().copied()).collect()
}

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
    let serving: Vec<TargetId> = groups::serving(group).collect();
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
        assert!(with_end(0, 0).is_empty(), "a member with an incomplete store cannot lead");
        assert_eq!(with_end(1, 9), [(MemberChange::Drop, TARGETS[1])]);
        let (change, target) = with_end(1, 9)[0];
        let change = GroupChange { group: group.id, epoch: group.epoch, change, target };
        let next = groups::apply(&group, &change).unwrap();
        assert_eq!((next.epoch, next.primary), (Epoch::new(2), TARGETS[0]));
    }

    /// Returns the report of a member. `record` has an epoch and members, and `lsn` is the end of
    /// its log in this epoch.
    fn report(record: (u64, &[u32]), lsn: u64) -> LossReport {
        let epoch = Epoch::new(record.0);
        let members = record.1.iter().map(|id| TargetId::new(*id)).collect();
        LossReport { end: (epoch, Lsn::new(lsn)), record: GroupRecord { epoch, members } }
    }

    fn choice(group: &Group, reports: &[(u32, LossReport)]) -> Choice {
        let of = |(id, report): &(u32, LossReport)| (TargetId::new(*id), report.clone());
        choice_after_restore(group, &reports.iter().map(of).collect())
    }

    fn waits_for(ids: &[u32]) -> Choice {
        Choice::Wait(ids.iter().map(|id| TargetId::new(*id)).collect())
    }

    /// The backup of management is older than the addition of target 3, which served last.
    #[test]
    fn group_waits_for_members_named_only_in_member_reports() {
        let of_two = groups::create(GroupId::new(1), TargetKind::Metadata, &TARGETS[..2]).unwrap();
        let group = groups::reopen(&of_two, Epoch::default(), &[]);
        let one = (1, report((4, &[1, 2]), 90));
        let two = (2, report((5, &[2, 3]), 50));
        assert_eq!(choice(&group, &[]), waits_for(&[1, 2]));
        assert_eq!(choice(&group, std::slice::from_ref(&one)), waits_for(&[2]));
        assert_eq!(choice(&group, &[one.clone(), two.clone()]), waits_for(&[3]));
        let group = groups::reopen(&group, Epoch::default(), &TARGETS);
        let all = [one, two, (3, report((7, &[3]), 60))];
        let Choice::Changes(changes) = choice(&group, &all) else { panic!("all have reported") };
        let mut next = group.clone();
        for (change, target) in changes {
            let change = GroupChange { group: next.id, epoch: next.epoch, change, target };
            next = groups::apply(&next, &change).unwrap();
        }
        groups::check_invariants(&next);
        assert_eq!((next.primary, next.primary_since), (TARGETS[2], next.epoch));
        let serving = groups::serving(&next).count();
        assert!(serving == 1 && !groups::is_undecided(next.epoch));
    }

    /// The backup of management is older than the replacement of target 1, whose disk is gone.
    #[test]
    fn restored_group_does_not_wait_for_former_members() {
        let of_two = groups::create(GroupId::new(1), TargetKind::Metadata, &TARGETS[..2]).unwrap();
        let group = groups::reopen(&of_two, Epoch::default(), &[]);
        let two = (2, report((9, &[2]), 50));
        let take_over = Choice::Changes(vec![(MemberChange::TakeOver, TARGETS[1])]);
        assert_eq!(choice(&group, &[two]), take_over);
        let one = (1, report((9, &[1]), 50));
        let stays = vec![(MemberChange::Drop, TARGETS[1]), (MemberChange::HandOver, TARGETS[0])];
        assert_eq!(choice(&group, &[one]), Choice::Changes(stays));
    }

    #[test]
    fn group_does_not_wait_for_a_member_dropped_by_a_command() {
        let of_two = groups::create(GroupId::new(1), TargetKind::Metadata, &TARGETS[..2]).unwrap();
        let group = groups::reopen(&of_two, Epoch::default(), &[]);
        let one = (1, report((4, &[1, 2]), 90));
        assert_eq!(choice(&group, std::slice::from_ref(&one)), waits_for(&[2]));
        let (epoch, change, target) = (group.epoch, MemberChange::Drop, TARGETS[1]);
        let change = GroupChange { group: group.id, epoch, change, target };
        let dropped = groups::apply(&group, &change).unwrap();
        let stays = Choice::Changes(vec![(MemberChange::HandOver, TARGETS[0])]);
        assert_eq!(choice(&dropped, &[one]), stays);
        // An incomplete store reports an empty log.
        let empty = LossReport { record: report((4, &[1]), 0).record, ..LossReport::default() };
        assert_eq!(choice(&dropped, &[(1, empty)]), waits_for(&[]));
    }

    #[test]
    fn no_primary_is_chosen_before_all_members_report_their_logs() {
        assert_eq!(chosen([Some((1, 5)), Some((1, 9)), None]), None);
        assert_eq!(chosen([None, None, None]), None);
    }
}
