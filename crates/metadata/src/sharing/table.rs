//! Which sessions have a file open, and what has to happen before several of them do of which one
//! writes: those who have it must know first, since what they do alone (appending where they know
//! the end, keeping pages) they may not do any longer. The whole is described in
//! `docs/design/0008-shared-files.md`.
//!
//! Who has what open is in the store; this table is a copy by file, which follows each key that a
//! transaction writes ([`Sharing::wrote`]) and is loaded at the start. What is being notified is in
//! memory only: after a restart the request that needs it comes again.
//!
//! # Invariants
//! - A file that several sessions have open, one of them for writing, is known as shared to all of
//!   them: by the answer to their open, or by a notification that they acknowledged.
//! - A notification ends when all who had to know do, or have the file open no longer.

use crate::limits::WAIT_ANSWER;
use crate::tx::operation::ConnectionId;
use skep_format::metadata::session_open_of;
use skep_types::{InodeId, SessionId};
use skep_wire::frame::Header;
use skep_wire::limits::MAX_NOTIFICATIONS;
use skep_wire::sharing::Notification;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

/// A file whose holders are being told that it is shared.
#[derive(Debug, Default)]
struct NotifiedFile {
    /// Sessions that know.
    informed: BTreeSet<SessionId>,
    /// Those that don't, and the number under which each was told.
    missing: BTreeMap<SessionId, u64>,
}

/// A request to be told of notifications.
#[derive(Debug)]
struct Poll {
    connection: ConnectionId,
    header: Header,
    until: Duration,
    /// What the session is at already.
    known: BTreeSet<u64>,
}

/// An answer to such a request.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) connection: ConnectionId,
    pub(crate) header: Header,
    pub(crate) notifications: Vec<Notification>,
}

/// See the file's description.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    /// Looked into, never walked through: its order is not that of a simulation.
    holders: HashMap<InodeId, Vec<SessionId>>,
    notified: BTreeMap<InodeId, NotifiedFile>,
    /// What each session was told, or is to be, and hasn't acknowledged.
    pending: BTreeMap<SessionId, BTreeMap<u64, InodeId>>,
    polls: BTreeMap<SessionId, Poll>,
    /// Polls by the time at which they are answered in any case.
    due: BTreeSet<(Duration, SessionId)>,
    /// Sessions that may have something to be told.
    news: BTreeSet<SessionId>,
    /// Files whose notification has ended in this batch.
    ended: Vec<InodeId>,
}

impl Sharing {
    // ---- who has what open

    /// Takes in a key that a transaction has written, if it is about an open file.
    pub(crate) fn wrote(&mut self, key: &[u8], is_there: bool) {
        let Some((session, inode)) = session_open_of(key) else { return };
        if is_there {
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
        self.knows(session, inode);
        // It may open the file again, and be told that it is alone.
        if let Some(notified) = self.notified.get_mut(&inode) {
            notified.informed.remove(&session);
        }
    }

    /// Sessions that have a file open.
    pub(crate) fn holders(&self, inode: InodeId) -> &[SessionId] {
        self.holders.get(&inode).map_or(&[], Vec::as_slice)
    }

    // ---- notifications

    /// Whether somebody waits to share a file.
    pub(crate) fn is_being_shared(&self, inode: InodeId) -> bool {
        self.notified.contains_key(&inode)
    }

    /// A session learns by the answer to its open that a file is shared.
    pub(crate) fn informed_by_open(&mut self, inode: InodeId, session: SessionId) {
        if let Some(notified) = self.notified.get_mut(&inode) {
            notified.informed.insert(session);
        }
    }

    /// Has sessions told that a file is shared, under a number that was never used; whether all of
    /// them know already.
    pub(crate) fn notify(&mut self, inode: InodeId, others: &[SessionId], number: u64) -> bool {
        let notified = self.notified.entry(inode).or_default();
        for session in others {
            if notified.informed.contains(session) || notified.missing.contains_key(session) {
                continue;
            }
            notified.missing.insert(*session, number);
            self.pending.entry(*session).or_default().insert(number, inode);
            self.news.insert(*session);
        }
        notified.missing.is_empty()
    }

    /// A session knows what it was told under these numbers.
    pub(crate) fn acknowledged(&mut self, session: SessionId, numbers: &[u64]) {
        for number in numbers {
            let inode = self.pending.get(&session).and_then(|pending| pending.get(number));
            if let Some(inode) = inode.copied() {
                self.knows(session, inode);
            }
        }
    }

    /// A session needn't be waited for any longer.
    fn knows(&mut self, session: SessionId, inode: InodeId) {
        let Some(notified) = self.notified.get_mut(&inode) else { return };
        let Some(number) = notified.missing.remove(&session) else { return };
        notified.informed.insert(session);
        if notified.missing.is_empty() {
            self.ended.push(inode);
        }
        if let Some(pending) = self.pending.get_mut(&session) {
            pending.remove(&number);
            if pending.is_empty() {
                self.pending.remove(&session);
            }
        }
    }

    /// Files whose notification has ended since this was last asked. Who waited for it runs again in the
    /// same batch; who knows is remembered until [`Self::end_batch`].
    pub(crate) fn take_ended(&mut self) -> Vec<InodeId> {
        std::mem::take(&mut self.ended)
    }

    /// Forgets notifications that have ended.
    pub(crate) fn end_batch(&mut self) {
        if !self.notified.is_empty() {
            self.notified.retain(|_, notified| !notified.missing.is_empty());
        }
    }

    // ---- telling

    /// Keeps a session's request to be told of notifications other than `known`. Gives the one before,
    /// which is to be answered with nothing.
    pub(crate) fn poll(
        &mut self,
        connection: ConnectionId,
        header: Header,
        known: Vec<u64>,
        now: Duration,
    ) -> Option<Told> {
        let session = header.session;
        let before = self.end_poll(session);
        let until = now + WAIT_ANSWER;
        self.due.insert((until, session));
        self.news.insert(session);
        let known = known.into_iter().collect();
        self.polls.insert(session, Poll { connection, header, until, known });
        before
    }

    /// Takes out a session's request.
    pub(crate) fn end_poll(&mut self, session: SessionId) -> Option<Told> {
        let Poll { connection, header, until, .. } = self.polls.remove(&session)?;
        self.due.remove(&(until, session));
        Some(Told { connection, header, notifications: Vec::new() })
    }

    /// Requests that are to be answered now.
    pub(crate) fn tell(&mut self, now: Duration) -> Vec<Told> {
        let mut told = Vec::new();
        for session in std::mem::take(&mut self.news) {
            let Some(poll) = self.polls.get(&session) else { continue };
            let pending = self.pending.get(&session).into_iter().flatten();
            let new = pending.filter(|(number, _)| !poll.known.contains(number));
            let notifications: Vec<_> = new
                .map(|(number, inode)| Notification { number: *number, inode: *inode })
                .take(MAX_NOTIFICATIONS)
                .collect();
            if !notifications.is_empty() {
                told.extend(self.end_poll(session).map(|it| Told { notifications, ..it }));
            }
        }
        while let Some((until, session)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            self.due.remove(&(until, session));
            told.extend(self.end_poll(session));
        }
        told
    }
}
