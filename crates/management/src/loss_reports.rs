//! A member of a metadata group reports that it may have lost records. This module stores such
//! reports, as soft state of one leader. Members report again every half second until their group
//! changes. A new leader begins without reports, so it decides only after each serving member has
//! reported to it.
//!
//! [`skep_cluster::losses`] makes the decision.

use skep_cluster::losses::LogEnd;
use skep_types::{Epoch, GroupId, TargetId};
use skep_wire::management::AskTakeOver;
use std::collections::BTreeMap;
use std::time::Duration;

/// Time for which a report is valid. Members report again every half second.
const VALID: Duration = Duration::from_secs(10);

/// The reports of the members of one group in one epoch, with the times of the reports.
#[derive(Debug, Default)]
struct GroupReports {
    epoch: Epoch,
    ends: BTreeMap<TargetId, (LogEnd, Duration)>,
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
    ) -> BTreeMap<TargetId, LogEnd> {
        let reports = self.0.entry(report.group).or_default();
        if reports.epoch != report.epoch {
            *reports = GroupReports { epoch: report.epoch, ..GroupReports::default() };
        }
        reports.ends.insert(report.target, ((report.last_epoch, report.last), now));
        reports.ends.retain(|_, (_, at)| now < *at + VALID);
        reports.ends.iter().map(|(target, (end, _))| (*target, *end)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::Lsn;

    #[test]
    fn loss_reports_expire_after_10_s_or_in_a_new_group_epoch() {
        let mut reports = LossReports::default();
        let mut count = |epoch, target, at| {
            let report = AskTakeOver {
                group: GroupId::new(1),
                epoch: Epoch::new(epoch),
                target: TargetId::new(target),
                lacks_records: true,
                last_epoch: Epoch::new(1),
                last: Lsn::new(7),
            };
            reports.note(&report, Duration::from_secs(at)).len()
        };
        assert_eq!([count(1, 1, 0), count(1, 2, 5), count(1, 2, 9)], [1, 2, 2]);
        assert_eq!(count(1, 2, 10), 1, "the first member has not reported for ten seconds");
        assert_eq!(count(2, 1, 11), 1, "an epoch begins without reports");
    }
}
