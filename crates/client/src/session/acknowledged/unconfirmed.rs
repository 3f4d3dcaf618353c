//! The changes that a sync or an unmount must still make durable, and the changes that an unmount
//! reports as unconfirmed.

use super::{AcknowledgedChanges, Kept};
use crate::limits::SYNCED_AFTER;
use skep_types::{GroupId, SessionId};
use std::time::Duration;

impl AcknowledgedChanges {
    /// Returns whether acknowledged changes of a session may not be synced yet, or are lost and not
    /// replayed yet.
    pub(crate) fn may_be_unsynced(&self, group: GroupId, session: SessionId) -> bool {
        let may_be = |kept: &mut Kept| !kept.changes.is_empty() || kept.is_replaying;
        self.of(group, session, may_be).unwrap_or(false)
    }

    /// Returns whether acknowledged changes of this mount at a group may not be synced yet. Also
    /// returns true if the group has lost some changes, and no program has got an error for them
    /// yet.
    pub(crate) fn has_unsynced(&self, group: GroupId) -> bool {
        let count = |it: &Kept| it.changes.len() + it.lost.len() + it.stay_lost.len();
        let may_be = |it: &Kept| count(it) > 0 || it.is_replaying;
        self.with(|inner| inner.groups.get(&group).is_some_and(may_be))
    }

    /// Returns the number of changes at each group that the target may not have synced at the time
    /// `now`, or that it has lost. Groups without such changes are missing. Omits changes that are
    /// older than [`SYNCED_AFTER`]. So a mount without newer changes can be unmounted while
    /// metadata is stopped.
    pub(crate) fn unsettled(&self, now: Duration) -> Vec<(GroupId, usize)> {
        self.with(|inner| {
            let count = |it: &Kept| {
                let is_recent = now <= it.newest_at + SYNCED_AFTER;
                let unsynced = if is_recent { it.changes.len() } else { 0 };
                unsynced + it.lost.len() + it.stay_lost.len()
            };
            let counts = inner.groups.iter().map(|(group, it)| (*group, count(it)));
            let mut unsettled: Vec<_> = counts.filter(|(_, count)| *count > 0).collect();
            unsettled.sort_unstable();
            unsettled
        })
    }
}
