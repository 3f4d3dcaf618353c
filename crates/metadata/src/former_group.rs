//! A target's record of the state of its group. After a restore of management from a backup, the
//! cluster map may be older than this record, and may show the target in no group. The target then
//! reports the record to management, which compares the logs of the recorded members.
//!
//! [`skep_format::member_mark`] owns the record. The module `service::members` owns the reports of
//! a target that is a member of its group.

use skep_cluster::groups::is_undecided;
use skep_metrics::LineLimit;
use skep_rpc::Management;
use skep_store::page_cache::MemberMarkFile;
use skep_types::map::{Condition, KnownReason, TargetHealth};
use skep_types::{ClusterMap, Epoch, Group, GroupId, GroupRecord, Lsn, MapVersion, TargetId};
use skep_wire::management::AskTakeOver;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Maximum time for which the target waits for management's reply to a report.
const PATIENCE: Duration = Duration::from_secs(1);
/// Minimum time between two reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(2);

/// Management was restored from a backup, and compares a target's log with the logs of the members
/// in `record`. Returns the health text of this target.
pub(crate) fn compared_text(group: GroupId, record: &GroupRecord) -> String {
    let text = KnownReason::ComparedAfterRestore.text();
    if record.members.is_empty() {
        return text.to_owned();
    }
    let members: Vec<_> = record.members.iter().map(TargetId::to_string).collect();
    format!("{text}: group {group} had the members {}", members.join(", "))
}

/// The recorded state of the group to which a target belonged. In the cluster map, the target is in
/// no group.
pub(crate) struct FormerGroup {
    group: GroupId,
    target: TargetId,
    record: GroupRecord,
    /// A version of the cluster map that has the epoch of the record, or a later epoch.
    version: MapVersion,
    management: Rc<Management>,
    report_at: Cell<Duration>,
    is_reporting: Rc<Cell<bool>>,
    /// Limits the rate of log lines about the group.
    lines: LineLimit,
}

impl FormerGroup {
    /// Returns the recorded state in the member mark of `target`. `None` means that the target has
    /// recorded no state.
    pub(crate) fn of(
        mark: &MemberMarkFile,
        target: TargetId,
        management: &Rc<Management>,
    ) -> Option<Self> {
        let (group, record) = (mark.group()?, mark.record());
        (record.epoch > Epoch::default()).then(|| Self {
            group,
            target,
            record,
            version: mark.counted().version,
            management: Rc::clone(management),
            report_at: Cell::default(),
            is_reporting: Rc::default(),
            lines: LineLimit::default(),
        })
    }

    /// Returns the health of this target, which is in no group. The condition is `Serving`, so that
    /// management refuses to remove the target.
    pub(crate) fn health(&self, map: &ClusterMap) -> TargetHealth {
        let Self { group, record, version, .. } = self;
        match earlier_state(map, *group, record, *version) {
            None => TargetHealth::default(),
            Some(_) => TargetHealth::new(Condition::Serving, &compared_text(*group, record)),
        }
    }

    /// Reports the record to management if `map` may be older than the record and a report is due.
    /// Management then makes the target a member again.
    pub(crate) fn report(&self, map: &ClusterMap) {
        let found = earlier_state(map, self.group, &self.record, self.version);
        let (now, Some(group)) = (skep_env::now(), found) else { return };
        if now < self.report_at.get() || self.is_reporting.replace(true) {
            return;
        }
        self.report_at.set(now + REPORT_INTERVAL);
        if self.lines.is_due(now) {
            let text = compared_text(self.group, &self.record);
            tracing::warn!("target {}, which is in no group now: {text}", self.target);
        }
        let request = AskTakeOver {
            group: self.group,
            epoch: group.epoch,
            target: self.target,
            lacks_records: true,
            last_epoch: Epoch::default(),
            last: Lsn::default(),
            record: self.record.clone(),
        };
        let (management, is_reporting) =
            (Rc::clone(&self.management), Rc::clone(&self.is_reporting));
        skep_env::spawn(async move {
            if let Err(error) = management.call_once(&request, PATIENCE).await {
                tracing::debug!("cannot report the state of group {}: {error:#}", request.group);
            }
            is_reporting.set(false);
        })
        .detach();
    }
}

/// Returns the group in `map` if `map` may have an earlier state of the group than `record`,
/// although the version of `map` is at least `version`. The map with the recorded state had the
/// version `version`. So a map with an earlier state comes from a management that was restored from
/// a backup. If the target has left its group, `record` has the earlier state. An undecided epoch
/// is above all recorded epochs, so only management can compare the states.
fn earlier_state<'a>(
    map: &'a ClusterMap,
    group: GroupId,
    record: &GroupRecord,
    version: MapVersion,
) -> Option<&'a Group> {
    let may_be_earlier = |group: &Group| record.is_after(group) || is_undecided(group.epoch);
    map.group(group).filter(|group| may_be_earlier(group) && map.version >= version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{ClusterId, TargetKind};

    #[test]
    fn text_about_a_restore_names_the_recorded_members() {
        let members = [1003, 1004, 1005, 1006].map(TargetId::new).to_vec();
        let record = GroupRecord { epoch: Epoch::new(7), members };
        let text = compared_text(GroupId::new(5), &record);
        let health = TargetHealth::new(Condition::Down, &text);
        assert_eq!(health.known_reason(), Some(KnownReason::ComparedAfterRestore));
        let end = "group g5 had the members t1003, t1004, t1005, t1006";
        assert!(health.problem.ends_with(end), "{health:?}");
    }

    #[test]
    fn target_that_has_left_its_group_reports_no_earlier_state() {
        let (group, own) = (GroupId::new(5), TargetId::new(4));
        let record = GroupRecord { epoch: Epoch::new(7), members: vec![own] };
        let mut map = ClusterMap::empty(ClusterId::default());
        map.version = MapVersion::new(10);
        let is_restored =
            |map: &ClusterMap| earlier_state(map, group, &record, MapVersion::new(9)).is_some();
        assert!(!is_restored(&map), "the group does not exist");
        map.groups.push(Group::of_one(group, TargetKind::Metadata, TargetId::new(3)));
        assert!(is_restored(&map), "the map is from a backup");
        map.version = MapVersion::new(8);
        assert!(!is_restored(&map), "this host has an old map");
        map.version = MapVersion::new(10);
        map.groups[0].epoch = Epoch::new(8);
        assert!(!is_restored(&map), "the target has left the group");
        map.groups[0].epoch = Epoch::new(1 << 32);
        assert!(is_restored(&map), "another member has reported first");
    }
}
