//! Targets that serve nothing although their data are open: the reasons, the log lines about them,
//! and the health that management gets.
//!
//! This module does not own the decision whether a target may act as the primary ([`super`]), or
//! whether its store diverges ([`crate::shipping`]).

use super::Parts;
use crate::former_group::compared_text;
use crate::service::opening::may_be_restored;
use crate::term::Membership;
use skep_types::Epoch;

/// The health text of a primary whose host may have lost log records.
const HALTED: &str = "the host of the target lost power, and may have lost log records that other \
                      members of the group have; the target waits until one of these members takes \
                      over";

/// The health text of a primary whose cluster map is too old.
const MAP_IS_OLD: &str = "the cluster map of this host is older than the last one that the target \
                          used before its restart, so another member of the group may be the \
                          primary; the target waits for the newest map from management";

/// The health text of a primary whose directory was restored from a backup.
const RESTORED: &str = "the target was restored from a backup, and may lack log records that other \
                        members of its group have; the target waits until one of these members \
                        takes over, or until management answers and lets the target continue alone";

/// The health text of a backup member whose store has changes that its group lacks.
const DIVERGES: &str = "the target has changes that its group lacks, since the group continued \
                        with older data, so the target serves nothing; to give these changes up, \
                        stop the service of the target, remove its directories `log` and `store`, \
                        and start the service";

impl Parts<'_> {
    /// Logs why the target does not act as the primary although the map names it as the primary,
    /// and stores this reason for the health of the target. `log_epoch` is the highest epoch of a
    /// record in its log.
    pub(super) fn show_halt(&self, membership: &Membership, log_epoch: Epoch) {
        let is_primary = membership.is_primary(self.target);
        let reason = is_primary.then(|| self.halt_reason(membership, log_epoch));
        let mut shown = self.shell.membership.halted.borrow_mut();
        // The reason `DIVERGES` concerns a backup member, and only `note_divergence` removes it.
        let diverges = reason.is_none() && shown.as_deref() == Some(DIVERGES);
        if *shown == reason || diverges {
            return;
        }
        match &reason {
            Some(reason) if reason == HALTED => tracing::error!("target {}: {reason}", self.target),
            Some(reason) => tracing::warn!("target {}: {reason}", self.target),
            None => {}
        }
        *shown = reason;
    }

    fn halt_reason(&self, membership: &Membership, log_epoch: Epoch) -> String {
        if may_be_restored(membership, log_epoch, &self.mark) {
            compared_text(membership.group, &self.mark.record())
        } else if self.has_old_map(membership, log_epoch) {
            MAP_IS_OLD.to_owned()
        } else if self.shell.marks.is_restored() {
            RESTORED.to_owned()
        } else {
            HALTED.to_owned()
        }
    }

    /// Logs that the store of a backup member has changes which its group lacks, or that the store
    /// has no such changes any more. Stores this fact for the health of the target.
    pub(super) fn note_divergence(&self, diverges: bool) {
        let mut halted = self.shell.membership.halted.borrow_mut();
        let is_noted = halted.as_deref() == Some(DIVERGES);
        if diverges && !is_noted {
            tracing::error!("target {}: {DIVERGES}", self.target);
            *halted = Some(DIVERGES.to_owned());
        } else if is_noted && !diverges {
            *halted = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::map::TargetHealth;

    /// The cluster map shortens longer texts, which would then lack the way out at their end.
    #[test]
    fn reasons_of_halted_targets_fit_into_the_cluster_map() {
        for reason in [HALTED, MAP_IS_OLD, RESTORED, DIVERGES] {
            assert!(reason.len() <= TargetHealth::MAX_PROBLEM_CHARS, "{reason}");
        }
    }
}
