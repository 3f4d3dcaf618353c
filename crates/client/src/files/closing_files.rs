//! The deferred closes of one thread, which sends several of them together. No I/O.

use crate::files::handles::HandleId;
use crate::files::open_file::OpenFile;
use skep_env::IdMap;
use skep_types::GroupId;
use std::cell::RefCell;
use std::sync::Arc;

/// A handle whose close has not been sent to metadata yet, and its file.
pub(crate) type ClosingFile = (HandleId, Arc<OpenFile>);

/// Handles that one thread has closed, and that are still open at metadata, by group. The handles
/// stay in the table of handles until metadata has replied. So after a lost session, the mount
/// opens their files again in the next session, and each close still matches an open.
#[derive(Debug, Default)]
pub(crate) struct DeferredCloses(RefCell<IdMap<GroupId, Vec<ClosingFile>>>);

impl DeferredCloses {
    /// Adds a close. Returns `true` if it is the only close that waits to be sent to the group.
    pub(crate) fn add(&self, group: GroupId, closing: ClosingFile) -> bool {
        let mut waiting = self.0.borrow_mut();
        let queue = waiting.entry(group).or_default();
        queue.push(closing);
        queue.len() == 1
    }

    /// Removes and returns all closes that wait to be sent to a group.
    pub(crate) fn take(&self, group: GroupId) -> Vec<ClosingFile> {
        self.0.borrow_mut().remove(&group).unwrap_or_default()
    }
}
