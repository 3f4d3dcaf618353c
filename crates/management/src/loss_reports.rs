//! A member of a metadata group reports that it may lack records. This module stores such reports,
//! as soft state of one leader. Members report again every half second until their group changes. A
//! new leader begins without reports, so it decides only after the members have reported to it.
//!
//! [`skep_cluster::losses`] makes the decision.

use skep_cluster::losses::LossReport;
use skep_types::{Epoch, GroupId, TargetId};
use skep_wire::management::AskTakeOver;
use std::collections::BTreeMap;
use std::time::Duration;

/// Time for which a report is valid. Members report again every half second.
const VALID: Duration = Duration::from_secs(10);
/// If some members have not reported within this time after the first report of an epoch, an
/// administrator must act.
const PATIENCE: Duration = Duration::from_secs(10);
/// Minimum time between two log lines about a group that waits for reports.
const LINE_INTERVAL: Duration = Duration::from_secs(60);

/// The reports of the members of one group in one epoch, with the times of the reports.
#[derive(Debug, Default)]
struct GroupReports {
    epoch: Epoch,
    of_members: BTreeMap<TargetId, (LossReport, Duration)>,
    /// Time of the next log line, if the group still waits for reports at that time. `None` means
    /// that the group does not wait.
    line_at: Option<Duration>,
}

/// The reports of all groups.
#[derive(Debug, Default)]
pub(crate) struct LossReports(BTreeMap<GroupId, GroupReports>);

impl LossReports {
    /// Adds a report at the time `now`, and returns the valid reports of the group. The caller has
    /// checked that the group has this epoch and this member, so the number of reports has a limit.
    pub(crate) fn note(
        &mut self,
        report: &AskTakeOver,
        now: Duration,
    ) -> BTreeMap<TargetId, LossReport> {
        let reports = self.0.entry(report.group).or_default();
        if reports.epoch != report.epoch {
            *reports = GroupReports { epoch: report.epoch, ..GroupReports::default() };
        }
        let end = (report.last_epoch, report.last);
        let new = LossReport { end, record: report.record.clone() };
        reports.of_members.insert(report.target, (new, now));
        reports.of_members.retain(|_, (_, at)| now < *at + VALID);
        reports.of_members.iter().map(|(target, (report, _))| (*target, report.clone())).collect()
    }

    /// Notes that the group waits for further reports at the time `now`. Returns whether a log line
    /// about the wait is due.
    pub(crate) fn note_wait(&mut self, group: GroupId, now: Duration) -> bool {
        let reports = self.0.entry(group).or_default();
        let is_due = now >= *reports.line_at.get_or_insert(now + PATIENCE);
        if is_due {
            reports.line_at = Some(now + LINE_INTERVAL);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{GroupRecord, Lsn};

    const GROUP: GroupId = GroupId::new(1);

    #[test]
    fn loss_reports_expire_after_10_s_or_in_a_new_group_epoch() {
        let mut reports = LossReports::default();
        let mut count = |epoch, target, at| {
            let report = AskTakeOver {
                group: GROUP,
                epoch: Epoch::new(epoch),
                target: TargetId::new(target),
                lacks_records: true,
                last_epoch: Epoch::new(1),
                last: Lsn::new(7),
                record: GroupRecord::default(),
            };
            reports.note(&report, Duration::from_secs(at)).len()
        };
        assert_eq!([count(1, 1, 0), count(1, 2, 5), count(1, 2, 9)], [1, 2, 2]);
        assert_eq!(count(1, 2, 10), 1, "the first member has not reported for ten seconds");
        assert_eq!(count(2, 1, 11), 1, "an epoch begins without reports");
    }

    #[test]
    fn group_that_waits_for_reports_is_logged_at_long_intervals() {
        let mut reports = LossReports::default();
        let mut is_due = |at| reports.note_wait(GROUP, Duration::from_secs(at));
        let due = [0, 9, 10, 11, 69, 70].map(&mut is_due);
        assert_eq!(due, [false, false, true, false, false, true]);
    }
}
