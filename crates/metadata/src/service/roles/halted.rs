//! Targets that serve nothing although their data are open: the reasons, the log lines about them,
//! and the health that management gets.
//!
//! Does not own the decision whether a target may act as the primary ([`super`]), or whether its
//! store diverges ([`crate::shipping`]).

use super::Parts;
use crate::service::opening::Contents;
use crate::term::Membership;
use skep_types::map::KnownReason;

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
                        members of its group have; it waits until one of them takes over, or until \
                        management has begun a new epoch of the group";

/// The health text of a backup member whose store has changes that its group lacks.
const DIVERGES: &str = "it has changes that its group lacks, since the group continued with older \
                        data, so it serves nothing; to give these changes up, stop its service, \
                        remove the directories `log` and `store` of the target, and start it";

impl Parts<'_> {
    /// Logs, and stores for the health, why the target does not act as the primary in the map.
    pub(super) fn halt(&self, membership: &Membership, contents: &Contents) {
        let reason = if contents.is_restored {
            KnownReason::ComparedAfterRestore.text()
        } else if self.has_old_map(membership, contents.epoch) {
            MAP_IS_OLD
        } else if self.shell.marks.is_restored() {
            RESTORED
        } else {
            HALTED
        };
        if reason == HALTED {
            tracing::error!("target {}: {reason}", self.target);
        } else {
            tracing::warn!("target {}: {reason}", self.target);
        }
        self.shell.membership.halted.set(Some(reason));
    }

    /// Logs, and stores for the health, that the store of a backup member has changes which its
    /// group lacks, or that this is no longer so.
    pub(super) fn note_divergence(&self, diverges: bool) {
        let halted = &self.shell.membership.halted;
        let is_noted = halted.get() == Some(DIVERGES);
        if diverges && !is_noted {
            tracing::error!("target {}: {DIVERGES}", self.target);
            halted.set(Some(DIVERGES));
        } else if is_noted && !diverges {
            halted.set(None);
        }
    }
}
