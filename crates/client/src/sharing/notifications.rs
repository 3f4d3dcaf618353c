//! Being told by metadata that other clients have a file open too, and one of all may write. What
//! follows from it is in `docs/design/0008-shared-files.md`.
//!
//! One task for each session waits to be told, on the thread of the mount's background work: so no
//! worker has an answer outstanding for ever.
//!
//! # Hazard: a notification that overtakes the answer to an open
//! Metadata may tell that a file is shared before the answer to this mount's open of it is here,
//! which says that it isn't. So files that were notified lately are noted, and an open looks
//! whether its file was since it was asked for.

use crate::client::Client;
use crate::inode_state::InodeState;
use crate::limits::{CLOSE_PATIENCE, CONTENTION_PAUSE, MANAGEMENT_PAUSE, MAX_NOTED_NOTIFICATIONS};
use crate::session::request::ModifyOptions;
use crate::session::table::is_lost;
use skep_env::{Mailbox, MailboxSender};
use skep_rpc::CallOptions;
use skep_types::{GroupId, InodeId, Result, SessionId};
use skep_wire::limits::MAX_NOTIFICATIONS;
use skep_wire::sharing::{AcknowledgeNotifications, Notification, WaitNotifications};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashSet, VecDeque};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many notifications had come at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position(u64);

#[derive(Debug, Default)]
struct Inner {
    /// The newest, each with its number, oldest first.
    noted: VecDeque<(u64, InodeId)>,
    /// Where the thread takes them from that follows sessions.
    follower: Option<MailboxSender<(GroupId, SessionId)>>,
    /// Sessions that were opened before that thread ran.
    waiting: Vec<(GroupId, SessionId)>,
}

/// Notifications of a mount.
#[derive(Debug, Default)]
pub(crate) struct Notifications {
    /// Protects the fields alone; nothing is awaited under it.
    inner: Mutex<Inner>,
    /// How many have come.
    count: AtomicU64,
    /// Files that were found shared, ever.
    shared: AtomicU64,
}

impl Notifications {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many have come by now.
    pub(crate) fn position(&self) -> Position {
        Position(self.count.load(Ordering::Acquire))
    }

    /// Notes that a file was notified.
    fn note(&self, inode: InodeId) {
        let mut inner = self.inner();
        let number = self.count.fetch_add(1, Ordering::AcqRel) + 1;
        inner.noted.push_back((number, inode));
        if inner.noted.len() > MAX_NOTED_NOTIFICATIONS {
            inner.noted.pop_front();
        }
    }

    /// Whether a file was notified after some moment; also if so many others were that nobody knows
    /// any more.
    pub(crate) fn has_come_since(&self, position: Position, inode: InodeId) -> bool {
        if self.position() == position {
            return false;
        }
        let inner = self.inner();
        let is_forgotten = inner.noted.front().is_some_and(|(oldest, _)| *oldest > position.0 + 1);
        is_forgotten || inner.noted.iter().any(|it| it.0 > position.0 && it.1 == inode)
    }

    /// Notes that a file was found shared.
    pub(crate) fn note_shared(&self) {
        self.shared.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether any file was ever found shared: almost never one is.
    pub(crate) fn has_shared(&self) -> bool {
        self.shared.load(Ordering::Relaxed) > 0
    }

    /// Has a session followed, on the thread of the background work.
    pub(crate) fn follow(&self, group: GroupId, session: SessionId) {
        let mut inner = self.inner();
        let inner = &mut *inner;
        match &inner.follower {
            // It has space for more sessions than there are groups.
            Some(follower) => {
                let _ = follower.send((group, session));
            }
            None => inner.waiting.push((group, session)),
        }
    }

    fn set_follower(&self, follower: MailboxSender<(GroupId, SessionId)>) {
        let mut inner = self.inner();
        for session in std::mem::take(&mut inner.waiting) {
            let _ = follower.send(session);
        }
        inner.follower = Some(follower);
    }
}

/// Sessions that wait to be followed: more than a mount has.
const MAX_FOLLOWED: usize = 1 << 16;

/// Follows each session of the mount. Never ends.
pub(crate) async fn follow_sessions(client: Client) {
    let (sender, mailbox) = match Mailbox::new(MAX_FOLLOWED) {
        Ok(both) => both,
        Err(error) => return tracing::error!("notifications can't be followed: {error}"),
    };
    client.mount().notifications.set_follower(sender);
    let followed = Rc::new(RefCell::new(HashSet::new()));
    while let Ok((group, session)) = mailbox.receive().await {
        // Two threads may have opened it at once.
        if !followed.borrow_mut().insert(session) {
            continue;
        }
        let (client, followed) = (client.clone(), Rc::clone(&followed));
        skep_env::spawn(async move {
            client.follow_session(group, session).await;
            followed.borrow_mut().remove(&session);
        })
        .detach();
    }
}

impl Client {
    async fn follow_session(&self, group: GroupId, session: SessionId) {
        let at_work = Rc::new(RefCell::new(BTreeSet::new()));
        while self.mount().sessions.is_current(group, session) && !self.mount().is_ending() {
            let known: Vec<_> = at_work.borrow().iter().copied().collect();
            if known.len() >= MAX_NOTIFICATIONS {
                skep_env::sleep(CONTENTION_PAUSE).await;
                continue;
            }
            let options = CallOptions { session, ..CallOptions::default() };
            let notifications =
                match self.router().call(group, &WaitNotifications { known }, options).await {
                    Ok((answer, _)) => answer.notifications,
                    Err(error) if is_lost(&error) && !self.mount().is_ending() => {
                        return self.renew_session(group, session, &error).await;
                    }
                    Err(error) => {
                        tracing::debug!("session {session}: notifications can't be heard: {error}");
                        skep_env::sleep(MANAGEMENT_PAUSE).await;
                        continue;
                    }
                };
            for notification in notifications {
                at_work.borrow_mut().insert(notification.number);
                let (client, at_work) = (self.clone(), Rc::clone(&at_work));
                skep_env::spawn(async move {
                    client.handle_notification((group, session), notification).await;
                    at_work.borrow_mut().remove(&notification.number);
                })
                .detach();
            }
        }
    }

    /// Does what a notification asks for, and says so.
    async fn handle_notification(
        &self,
        (group, session): (GroupId, SessionId),
        notification: Notification,
    ) {
        let mount = self.mount();
        mount.notifications.note(notification.inode);
        if let Some(state) = mount.inodes.get(notification.inode)
            && let Err(error) = self.begin_to_share(&state).await
        {
            // Its size is found out when this client has closed it or has gone.
            tracing::debug!("file {}: {error}", notification.inode);
        }
        let request = AcknowledgeNotifications { numbers: vec![notification.number] };
        let options = CallOptions { session, ..CallOptions::default() };
        if let Err(error) = self.router().call(group, &request, options).await {
            tracing::debug!("notification {}: {error}", notification.number);
        }
    }

    async fn begin_to_share(&self, state: &Arc<InodeState>) -> Result<()> {
        // Metadata hears of the close in a moment: then nobody has to share anything.
        let life = state.life();
        let patience = skep_env::now() + CLOSE_PATIENCE;
        while state.is_being_closed() && skep_env::now() < patience {
            skep_env::sleep(CONTENTION_PAUSE).await;
        }
        // Opened again it is as the answer to that open says.
        if state.life().is_none() || state.life() != life {
            return Ok(());
        }
        self.mount().share(state);
        // They go to an end that nobody else knows yet.
        while state.has_lone_appends() {
            skep_env::sleep(CONTENTION_PAUSE).await;
        }
        match state.unreported() {
            Some(report) if !report.must_measure => {
                self.report_written(state, ModifyOptions::default()).await.map(|_| ())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_sees_notifications_that_arrived_since_it_was_sent() {
        let notifications = Notifications::default();
        let (a, b) = (InodeId::new(1), InodeId::new(2));
        notifications.note(a);
        let before = notifications.position();
        assert!(!notifications.has_come_since(before, a), "that one came before");
        notifications.note(b);
        assert!(notifications.has_come_since(before, b));
        assert!(!notifications.has_come_since(before, a));
        for _ in 0..MAX_NOTED_NOTIFICATIONS {
            notifications.note(b);
        }
        assert!(notifications.has_come_since(before, a), "so many have come that nobody knows");
        assert!(!notifications.has_come_since(notifications.position(), a));
    }
}
