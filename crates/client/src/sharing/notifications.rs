//! Recent sharing notifications from metadata. A notification means that other clients also have a
//! file open, and that at least one client may write. No I/O.
//!
//! # Hazard: a notification that overtakes the reply to an open
//! The notification that a file is shared may arrive before the reply to this mount's own open of
//! the file, and the file may be "not shared" in this reply. So the mount records the files of
//! recent notifications. Each open checks whether a notification for its file has arrived since the
//! mount sent the open.

use crate::limits::MAX_NOTED_NOTIFICATIONS;
use skep_env::MailboxSender;
use skep_types::{GroupId, InodeId, SessionId};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A position in the sequence of notifications: the number of notifications that had arrived at
/// some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position(u64);

#[derive(Debug, Default)]
struct NotificationLog {
    /// The newest notifications, each with its sequence number, oldest first.
    noted: VecDeque<(u64, InodeId)>,
    /// The mailbox of the background task that follows sessions; `None` until the task has started.
    follower: Option<MailboxSender<(GroupId, SessionId)>>,
    /// Sessions that the mount opened before the background task started.
    waiting: Vec<(GroupId, SessionId)>,
}

/// The sharing notifications of a mount.
#[derive(Debug, Default)]
pub(crate) struct Notifications {
    /// The mutex protects only this log. No task awaits while it holds this mutex.
    inner: Mutex<NotificationLog>,
    /// Number of notifications that have arrived.
    count: AtomicU64,
    /// Number of times that a file has become shared.
    shared: AtomicU64,
}

impl Notifications {
    fn inner(&self) -> MutexGuard<'_, NotificationLog> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of notifications that have arrived so far.
    pub(crate) fn position(&self) -> Position {
        Position(self.count.load(Ordering::Acquire))
    }

    /// Records a notification for a file.
    pub(crate) fn note(&self, inode: InodeId) {
        let mut inner = self.inner();
        let number = self.count.fetch_add(1, Ordering::AcqRel) + 1;
        inner.noted.push_back((number, inode));
        if inner.noted.len() > MAX_NOTED_NOTIFICATIONS {
            inner.noted.pop_front();
        }
    }

    /// Returns whether a notification for a file has arrived after `position`. If the log has
    /// dropped notifications that arrived after `position`, returns `true`, because a dropped
    /// notification may have been for this file.
    pub(crate) fn has_come_since(&self, position: Position, inode: InodeId) -> bool {
        if self.position() == position {
            return false;
        }
        let inner = self.inner();
        let is_forgotten = inner.noted.front().is_some_and(|(oldest, _)| *oldest > position.0 + 1);
        is_forgotten || inner.noted.iter().any(|it| it.0 > position.0 && it.1 == inode)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_detects_notifications_that_arrived_before_its_reply() {
        let notifications = Notifications::default();
        let (a, b) = (InodeId::new(1), InodeId::new(2));
        notifications.note(a);
        let before = notifications.position();
        assert!(
            !notifications.has_come_since(before, a),
            "the notification arrived before the open"
        );
        notifications.note(b);
        assert!(notifications.has_come_since(before, b));
        assert!(!notifications.has_come_since(before, a));
        for _ in 0..MAX_NOTED_NOTIFICATIONS {
            notifications.note(b);
        }
        assert!(
            notifications.has_come_since(before, a),
            "the log no longer has notifications that old"
        );
        assert!(!notifications.has_come_since(notifications.position(), a));
    }
}
