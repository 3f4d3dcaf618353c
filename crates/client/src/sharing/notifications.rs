//! Recent sharing notifications from metadata. A notification means that other clients also have a
//! file open, and that at least one client may write. No I/O.
//!
//! # Hazard: a notification that overtakes the reply to an open
//! The notification that a file is shared may arrive before the reply to this mount's own open of
//! the file, and the file may be "not shared" in this reply. So the mount records the files of
//! recent notifications. Each open checks whether a notification for its file has arrived since the
//! mount sent the open.

use crate::files::recent_files::RecentFiles;
use skep_env::MailboxSender;
use skep_types::{GroupId, SessionId};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The sessions whose notifications the mount follows.
#[derive(Debug, Default)]
struct FollowedSessions {
    /// The mailbox of the background task that follows sessions; `None` until the task has started.
    follower: Option<MailboxSender<(GroupId, SessionId)>>,
    /// Sessions that the mount opened before the background task started.
    waiting: Vec<(GroupId, SessionId)>,
}

/// The sharing notifications of a mount.
#[derive(Debug, Default)]
pub(crate) struct Notifications {
    /// The mutex protects only this value. No task awaits while it holds this mutex.
    inner: Mutex<FollowedSessions>,
    /// The files of the newest notifications.
    pub(crate) recent: RecentFiles,
    /// Number of times that any file of the mount has become shared.
    shared: AtomicU64,
}

impl Notifications {
    fn inner(&self) -> MutexGuard<'_, FollowedSessions> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a file has become shared.
    pub(crate) fn note_shared(&self) {
        self.shared.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether any file was ever shared. On almost all mounts, this is never the case.
    pub(crate) fn has_shared(&self) -> bool {
        self.shared.load(Ordering::Relaxed) > 0
    }

    /// Asks the background task to wait for notifications in a session.
    pub(crate) fn follow(&self, group: GroupId, session: SessionId) {
        let mut inner = self.inner();
        let inner = &mut *inner;
        match &inner.follower {
            // The send cannot fail, because the mailbox has space for more sessions than there are
            // groups.
            Some(follower) => {
                let _ = follower.send((group, session));
            }
            None => inner.waiting.push((group, session)),
        }
    }

    pub(crate) fn set_follower(&self, follower: MailboxSender<(GroupId, SessionId)>) {
        let mut inner = self.inner();
        for session in std::mem::take(&mut inner.waiting) {
            let _ = follower.send(session);
        }
        inner.follower = Some(follower);
    }
}
