//! When a target writes the mark of the page cache ([`skep_store::page_cache_mark`]). An old mark
//! makes the next primary of this directory wait until its clients have replayed lost changes.

use super::Parts;
use crate::engine::fjall_engine::FjallEngine;
use crate::target::MetadataTarget;
use crate::term::Membership;
use skep_types::{Epoch, Result};

impl Parts<'_> {
    /// Stores durably that this boot's page cache has all acknowledged changes. Does nothing while
    /// clients replay lost changes, so that the replay is repeated if the process ends during it.
    pub(super) fn mark_page_cache(&mut self, target: &MetadataTarget<FjallEngine>) -> Result<()> {
        if target.is_replaying() { Ok(()) } else { self.page_cache.begin() }
    }

    /// Like [`Self::mark_page_cache`], for a backup member. Does nothing while the member lacks
    /// records. If acknowledged changes may be lost, also does nothing while the target may still
    /// lead and wait for the replay of these changes. The target may lead if the cluster map names
    /// it as the primary, or if the map is old, since a newer map may name it. `log_epoch` is the
    /// highest epoch of a record in the log.
    pub(super) fn mark_page_cache_of_member(
        &mut self,
        membership: &Membership,
        log_epoch: Epoch,
    ) -> Result<()> {
        let replays = self.page_cache.has_lost_changes()
            && (membership.is_primary(self.target) || self.has_old_map(membership, log_epoch));
        if self.mark.lacks_records() || replays { Ok(()) } else { self.page_cache.begin() }
    }
}
