//! Tracks which sessions have a file open. A file is *shared* if several sessions have it open and
//! at least one of them may write. Before an open makes a file shared, the target notifies every
//! session that has the file open, and each of these sessions must acknowledge. A client that has
//! acknowledged may neither append at a cached end of file nor keep cached pages.
//! `docs/design/0008-shared-files.md` describes the whole design.
//!
//! The opens are records in the store. This table has the same opens in memory, by file. The target
//! loads the table at its start, and updates it with each key that a transaction writes
//! ([`Sharing::on_write`]). Notifications are only in memory, because after a restart of the
//! target, the client repeats the open that requires them.
//!
//! # States of a file
//! ```text
//!               an open makes it shared         all have acknowledged or closed
//!   not shared -------------------------> notifying --------------------------> shared
//!       ^                                  (the open waits in `tx::locks`)         |
//!       +--------------------------------------------------------------------------+
//!              one session is left, or none that writes: nothing is sent
//! ```
//! In the state `notifying`, the target assigns a number to the notification of each session
//! (`pending`), and sends the notification in the reply to the session's next `WaitNotifications`.
//! The target stops waiting for a session when the client acknowledges the number or closes the
//! file, or when the session ends.
//!
//! # Invariants
//! - Each session that has a shared file open was informed that the file is shared: by the reply to
//!   its open, or by a notification that the session has acknowledged. Held by the checker
//!   `check_sharing` of the simulator.
//! - A notification awaits only sessions that have the file open. A notification is complete when
//!   each of these sessions has acknowledged it or has closed the file.
//! - `pending` has exactly the notifications that `notifications` awaits, by session.
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

/// The notification that a file is about to be shared.
#[derive(Debug, Default)]
struct ShareNotification {
    /// Sessions that have acknowledged the notification, or have received a reply to their open
    /// that marks the file as shared.
    acknowledged: BTreeSet<SessionId>,
    /// Sessions that have not acknowledged the notification yet, each with the number of its
    /// notification.
    awaited: BTreeMap<SessionId, u64>,
}

/// A parked `WaitNotifications` of a session.
#[derive(Debug)]
struct Poll {
    connection: ConnectionId,
    header: Header,
    until: Duration,
    /// Numbers of notifications that the client has received but not acknowledged.
    received: BTreeSet<u64>,
}

/// A reply to a `WaitNotifications`.
#[derive(Debug)]
pub(crate) struct PollReply {
    pub(crate) connection: ConnectionId,
    pub(crate) header: Header,
    pub(crate) notifications: Vec<Notification>,
}

/// The sessions that have files open, and the notifications about files that become shared.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    /// The sessions that have each file open. Code must not iterate over this map, because the
    /// order of a hash map would make simulations irreproducible.
    holders: HashMap<InodeId, Vec<SessionId>>,
    notifications: BTreeMap<InodeId, ShareNotification>,
    /// Notifications that the sessions have not acknowledged, by session and number.
    pending: BTreeMap<SessionId, BTreeMap<u64, InodeId>>,
    polls: BTreeMap<SessionId, Poll>,
    /// Sessions with a parked poll, by the time at which the target must reply to the poll.
    due: BTreeSet<(Duration, SessionId)>,
    /// Sessions with a parked poll that may have notifications to return.
    to_notify: BTreeSet<SessionId>,
    /// Files whose notification has completed in this batch.
    completed: Vec<InodeId>,
}

impl Sharing {
    // ---- opens

    /// Updates the table if `key` is the open of a file by a session. A transaction has written
    /// this key, or has deleted it (`is_open` is false).
    pub(crate) fn on_write(&mut self, key: &[u8], is_open: bool) {
        // A fast path, because this function gets every written key, and most keys are not opens.
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
        // Forget that the session has acknowledged, because the session may open the file again,
        // and the reply to that open may not mark the file as shared.
        if let Some(notification) = self.notifications.get_mut(&inode) {
            notification.acknowledged.remove(&session);
        }
    }

    /// Returns the sessions that have a file open.
    pub(crate) fn holders(&self, inode: InodeId) -> &[SessionId] {
        self.holders.get(&inode).map_or(&[], Vec::as_slice)
    }

    // ---- notifications

    /// Whether an open of this file waits for acknowledgements by sessions.
    pub(crate) fn is_being_shared(&self, inode: InodeId) -> bool {
        self.notifications.contains_key(&inode)
    }

    /// Whether an open of this file waits for the acknowledgement of a session.
    pub(crate) fn awaits(&self, inode: InodeId, session: SessionId) -> bool {
        self.notifications.get(&inode).is_some_and(|it| it.awaited.contains_key(&session))
    }

    /// Whether an open of any file waits for acknowledgements by sessions.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Returns the number of files whose opens wait for the acknowledgement of a session.
    pub(crate) fn awaited_from(&self, session: SessionId) -> usize {
        self.pending.get(&session).map_or(0, BTreeMap::len)
    }

    /// Notes that a session need not acknowledge that a file becomes shared, because the reply to
    /// the session's open marks the file as shared.
    pub(crate) fn acknowledged_by_open(&mut self, inode: InodeId, session: SessionId) {
        if let Some(notification) = self.notifications.get_mut(&inode) {
            notification.acknowledged.insert(session);
        }
    }

    /// Notifies the sessions `others` that a file becomes shared. `number` is the id of the
    /// notification, which must be new. Returns whether no acknowledgement is missing.
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

    /// Handles a session's acknowledgement of the notifications with the ids `numbers`.
    pub(crate) fn acknowledged(&mut self, session: SessionId, numbers: &[u64]) {
        for number in numbers {
            // A number is unknown if the client sends an acknowledgement twice, or if the target
            // has restarted.
            let inode = self.pending.get(&session).and_then(|pending| pending.get(number));
            if let Some(inode) = inode.copied() {
                self.acknowledge(session, inode);
            }
        }
    }

    /// Stops waiting for a session's acknowledgement about a file. Does nothing if the target does
    /// not wait for it.
    fn acknowledge(&mut self, session: SessionId, inode: InodeId) {
        // For nearly all files, there is no notification, and nothing to do.
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

    /// Removes and returns the files whose notification is complete. The opens that waited for it
    /// run again in the same batch. These operations need the acknowledgements, which the table
    /// keeps until [`Self::end_batch`].
    pub(crate) fn take_completed(&mut self) -> Vec<InodeId> {
        std::mem::take(&mut self.completed)
    }

    /// Removes the notifications that all sessions have acknowledged.
    pub(crate) fn end_batch(&mut self) {
        if !self.notifications.is_empty() {
            self.notifications.retain(|_, notification| !notification.awaited.is_empty());
        }
    }

    // ---- polls

    /// Parks a session's poll. The reply to the poll will have the notifications whose numbers are
    /// not in `received`. If an earlier poll of the session was parked, returns an empty reply to
    /// it.
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

    /// Removes a session's parked poll, and returns an empty reply to it.
    pub(crate) fn end_poll(&mut self, session: SessionId) -> Option<PollReply> {
        let Poll { connection, header, until, .. } = self.polls.remove(&session)?;
        self.due.remove(&(until, session));
        Some(PollReply { connection, header, notifications: Vec::new() })
    }

    /// Removes the parked polls that have notifications or have waited for the maximum time.
    /// Returns the replies to them.
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

    /// Panics if an invariant of the module is violated at the end of a batch.
    pub(crate) fn check_invariants(&self) {
        let mut awaited = BTreeSet::new();
        for (inode, notification) in &self.notifications {
            assert!(
                !notification.awaited.is_empty(),
                "the notification about file {inode} waits for at least one session"
            );
            for (session, number) in &notification.awaited {
                assert!(
                    self.holders(*inode).contains(session),
                    "session {session} has file {inode} open, since the notification waits for the \
                     session"
                );
                assert!(
                    !notification.acknowledged.contains(session),
                    "the notification about file {inode} waits for session {session} until its \
                     acknowledgement"
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
        assert_eq!(due, self.due, "each poll has one entry in the list of due polls");
        assert!(self.completed.is_empty(), "the opens that waited for a notification have run");
    }

    /// Returns the number of pairs of a session and a file that the session has open. Checks
    /// compare it with the store.
    pub(crate) fn open_count(&self) -> usize {
        self.holders.values().map(Vec::len).sum()
    }
}
