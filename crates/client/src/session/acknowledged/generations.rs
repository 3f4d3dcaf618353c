//! Truncate generations in lost changes. The open of an `open` with `O_TRUNC` is replayed without
//! the truncation, so the file keeps an older generation than the one that later changes name. No
//! I/O.

use super::AcknowledgedChanges;
use skep_types::{GroupId, InodeId, SessionId};

impl AcknowledgedChanges {
    /// Puts the truncate generation `present` of a file in place of the generation `lost`, in all
    /// lost changes that are not replayed yet. A replayed change keeps the new generation for the
    /// next replay.
    pub(crate) fn set_generation(
        &self,
        (group, session): (GroupId, SessionId),
        inode: InodeId,
        lost: u64,
        present: u64,
    ) {
        self.of(group, session, |kept| {
            let requests = kept.lost.iter_mut().filter_map(|change| change.kept.as_mut());
            requests.for_each(|request| request.set_generation(inode, lost, present));
        });
    }
}
