//! Tracks which sessions have a file open. Before an open makes a file *shared* (several sessions,
//! at least one writer), the target notifies every session that has it open, and each must
//! acknowledge: from then on its client may neither append at a locally cached end nor keep cached
//! pages. `docs/design/0008-shared-files.md` describes the whole.
//!
//! The store has the opens; this table is a copy by file, which follows each key that a transaction
//! writes ([`Sharing::on_write`]) and is loaded at the start. Notifications are in memory only:
//! after a restart the client sends again the open that needs them.
//!
//! # States of a file
//! ```text
//!               an open makes it shared         all have acknowledged or closed
//!   not shared -------------------------> notifying --------------------------> shared
//!       ^                                  (the open waits in `tx::locks`)         |
//!       +--------------------------------------------------------------------------+
//!              one session is left, or none that writes: nothing is sent
//! ```
//! For each session in `notifying`: the target numbers a notification (`pending`), replies with it
//! to the session's next `WaitNotifications`, and takes the session off the list when the client
//! acknowledges the number, closes the file, or ends.
//!
//! # Invariants
//! - Each session that has a shared file open was informed of that: by the reply to its open, or by
//!   a notification that it acknowledged. (Only the simulator can check this one.)
//! - A notification is complete when each awaited session has acknowledged or closed the file; so
//!   each awaited session has the file open.
//! - `pending` holds exactly the notifications that `notifications` awaits, by session.
//! - Each poll has one entry in `due`.

use crate::limits::WAIT_ANSWER;
use crate::tx::operation::ConnectionId;
use skep_format::metadata::session_open_of;
use skep_types::{InodeId, SessionId};
use skep_wire::frame::Header;
use skep_wire::limits::MAX_NOTIFICATIONS;
use skep_wire::sharing::Notification;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

/// A file about to be shared.
#[derive(Debug, Default)]
struct ShareNotification {
    /// Sessions that have acknowledged, or learned it by the reply to their open.
    acknowledged: BTreeSet<SessionId>,
    /// Sessions that have not acknowledged yet, each with the number of its notification.
    awaited: BTreeMap<SessionId, u64>,
}

/// A session's request for notifications.
#[derive(Debug)]
struct Poll {
    connection: ConnectionId,
    header: Header,
    until: Duration,
    /// The numbers of notifications that the client has received and not acknowledged.
    received: BTreeSet<u64>,
}

/// A reply to such a request.
#[derive(Debug)]
pub(crate) struct PollReply {
    pub(crate) connection: ConnectionId,
    pub(crate) header: Header,
    pub(crate) notifications: Vec<Notification>,
}

/// The sessions that have files open, and the notifications about files that become shared.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    /// Looked into, never walked through: its order is not that of a simulation.
    holders: HashMap<InodeId, Vec<SessionId>>,
    notifications: BTreeMap<InodeId, ShareNotification>,
    /// Notifications that each session has not acknowledged, by number.
    pending: BTreeMap<SessionId, BTreeMap<u64, InodeId>>,
    polls: BTreeMap<SessionId, Poll>,
    /// Polls by the time at which the target replies in any case.
    due: BTreeSet<(Duration, SessionId)>,
    /// Sessions for which a poll may have something to reply.
    to_notify: BTreeSet<SessionId>,
    /// Files whose notification has completed in this batch.
    completed: Vec<InodeId>,
}

impl Sharing {
    // ---- opens

    /// Takes in a key that a transaction has written, if it is an open file of a session.
    pub(crate) fn on_write(&mut self, key: &[u8], is_open: bool) {
        // Every key that is written passes here; most are of another kind.
        let Some((session, inode)) = session_open_of(key) else { return };
        if is_open {
            let holders = self.holders.entry(inode).or_default();
            if !holders.contains(&session) {
                holders.push(session);
            }
            return;
        }
        if let Some(holders) = self.holders.get_mut(&inode) {
            holders.retain(|holder| *holder != session);
            if holders.is_empty() {
                self.holders.remove(&inode);
            }
        }
        self.acknowledge(session, inode);
        // The session may open the file again, with a reply that does not mark it as shared.
        if let Some(notification) = self.notifications.get_mut(&inode) {
            notification.acknowledged.remove(&session);
        }
    }

    /// Sessions that have a file open.
    pub(crate) fn holders(&self, inode: InodeId) -> &[SessionId] {
        self.holders.get(&inode).map_or(&[], Vec::as_slice)
    }

    // ---- notifications

    /// Whether an open waits until this file may be shared.
    pub(crate) fn is_being_shared(&self, inode: InodeId) -> bool {
        self.notifications.contains_key(&inode)
    }

    /// The reply to a session's open marks the file as shared.
    pub(crate) fn acknowledged_by_open(&mut self, inode: InodeId, session: SessionId) {
        if let Some(notification) = self.notifications.get_mut(&inode) {
            notification.acknowledged.insert(session);
        }
    }

    /// Notifies sessions that a file becomes shared, under a number that was never used. Returns
    /// whether all of them have acknowledged already.
    pub(crate) fn notify(&mut self, inode: InodeId, others: &[SessionId], number: u64) -> bool {
        let notification = self.notifications.entry(inode).or_default();
        for session in others {
            if notification.acknowledged.contains(session)
                || notification.awaited.contains_key(session)
            {
                continue;
            }
            notification.awaited.insert(*session, number);
            self.pending.entry(*session).or_default().insert(number, inode);
            self.to_notify.insert(*session);
        }
        notification.awaited.is_empty()
    }

    /// A session acknowledges the notifications with these numbers.
    pub(crate) fn acknowledged(&mut self, session: SessionId, numbers: &[u64]) {
        for number in numbers {
            // Unknown: the client repeats an acknowledgement, or the target has restarted.
            let inode = self.pending.get(&session).and_then(|pending| pending.get(number));
            if let Some(inode) = inode.copied() {
                self.acknowledge(session, inode);
            }
        }
    }

    /// Stops waiting for a session, if the file awaits it.
    fn acknowledge(&mut self, session: SessionId, inode: InodeId) {
        // Nearly every close is of a file that awaits nothing.
        let Some(notification) = self.notifications.get_mut(&inode) else { return };
        let Some(number) = notification.awaited.remove(&session) else { return };
        notification.acknowledged.insert(session);
        if notification.awaited.is_empty() {
            self.completed.push(inode);
        }
        let pending =
            self.pending.get_mut(&session).expect("an awaited session has a pending notification");
        pending.remove(&number);
        if pending.is_empty() {
            self.pending.remove(&session);
        }
    }

    /// Takes out the files whose notification has completed. The opens that waited run again in the
    /// same batch; acknowledgements are remembered until [`Self::end_batch`].
    pub(crate) fn take_completed(&mut self) -> Vec<InodeId> {
        std::mem::take(&mut self.completed)
    }

    /// Forgets notifications that are complete.
    pub(crate) fn end_batch(&mut self) {
        if !self.notifications.is_empty() {
            self.notifications.retain(|_, notification| !notification.awaited.is_empty());
        }
    }

    // ---- polls

    /// Parks a session's request for notifications other than `received`. Returns the reply to the
    /// request before, without notifications.
    pub(crate) fn poll(
        &mut self,
        connection: ConnectionId,
        header: Header,
        received: Vec<u64>,
        now: Duration,
    ) -> Option<PollReply> {
        let session = header.session;
        let before = self.end_poll(session);
        let until = now + WAIT_ANSWER;
        self.due.insert((until, session));
        self.to_notify.insert(session);
        let received = received.into_iter().collect();
        self.polls.insert(session, Poll { connection, header, until, received });
        before
    }

    /// Takes out a session's request, with a reply without notifications.
    pub(crate) fn end_poll(&mut self, session: SessionId) -> Option<PollReply> {
        let Poll { connection, header, until, .. } = self.polls.remove(&session)?;
        self.due.remove(&(until, session));
        Some(PollReply { connection, header, notifications: Vec::new() })
    }

    /// Takes out the requests that have a reply now.
    pub(crate) fn due_replies(&mut self, now: Duration) -> Vec<PollReply> {
        let mut replies = Vec::new();
        for session in std::mem::take(&mut self.to_notify) {
            let Some(poll) = self.polls.get(&session) else { continue };
            let pending = self.pending.get(&session).into_iter().flatten();
            let new = pending.filter(|(number, _)| !poll.received.contains(number));
            let notifications: Vec<_> = new
                .map(|(number, inode)| Notification { number: *number, inode: *inode })
                .take(MAX_NOTIFICATIONS)
                .collect();
            if !notifications.is_empty() {
                let reply = self.end_poll(session);
                replies.extend(reply.map(|reply| PollReply { notifications, ..reply }));
            }
        }
        while let Some((_, session)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            let reply = self.end_poll(session);
            replies.push(reply.expect("each entry of `due` has a poll"));
        }
        replies
    }

    /// Panics if an invariant of the module is broken at the end of a batch.
    pub(crate) fn check_invariants(&self) {
        let mut awaited = BTreeSet::new();
        for (inode, notification) in &self.notifications {
            assert!(
                !notification.awaited.is_empty(),
                "the notification about file {inode} awaits a session"
            );
            for (session, number) in &notification.awaited {
                assert!(
                    self.holders(*inode).contains(session),
                    "session {session}, which is awaited, has file {inode} open"
                );
                assert!(
                    !notification.acknowledged.contains(session),
                    "session {session} is awaited for file {inode} until it acknowledges"
                );
                awaited.insert((*session, *number, *inode));
            }
        }
        let pending: BTreeSet<_> = self
            .pending
            .iter()
            .flat_map(|(session, all)| {
                all.iter().map(move |(number, inode)| (*session, *number, *inode))
            })
            .collect();
        assert_eq!(pending, awaited, "each awaited session has its notification pending");
        let due: BTreeSet<_> = self.polls.iter().map(|(id, poll)| (poll.until, *id)).collect();
        assert_eq!(due, self.due, "each poll is due once");
        assert!(self.completed.is_empty(), "the opens that waited for a notification have run");
    }

    /// The number of open files of sessions, for checks against the store.
    pub(crate) fn open_count(&self) -> usize {
        self.holders.values().map(Vec::len).sum()
    }
}
