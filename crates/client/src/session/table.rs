//! The sessions of a mount, one at each metadata group. All threads of the mount share them. No
//! I/O. Callers pass times and client ids as arguments.

use crate::session::acknowledged::AcknowledgedChanges;
use crate::session::change_requests::ChangeRequests;
use crate::session::ids::{client_of, session_id};
use skep_env::{IdMap, SharedNotify};
use skep_types::{Error, ErrorCode, GroupId, NodeId, SessionId};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Returns whether an error means that the group refuses the session of the request.
pub(crate) fn is_lost(error: &Error) -> bool {
    matches!(error.code(), ErrorCode::StaleSession | ErrorCode::Evicted)
}

/// Converts the lease in a group's reply to a duration of at least one millisecond.
pub(crate) fn lease_of(milliseconds: u32) -> Duration {
    Duration::from_millis(u64::from(milliseconds.max(1)))
}

/// The client assumes this lease for a new session until the group has sent the actual lease.
const USUAL_LEASE: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy)]
struct GroupSession {
    id: SessionId,
    /// Number of slots that the group granted; zero means that the session is not open yet.
    slots: u32,
    lease: Duration,
    /// Time at which the client sent the last request whose reply confirmed the session.
    confirmed_at: Duration,
    is_renewing: bool,
    /// The client id of the lost session that this session replaces, until all its files are open
    /// again. If several sessions were lost one after the other, the client id of the first of
    /// these sessions.
    replaces: Option<NodeId>,
    /// Whether a task restores the opens that the group's target has lost.
    is_restoring: bool,
    /// The newest start number of the group's target for which the client has compared its opens
    /// with the opens at the target. Zero means that the client has not compared its opens yet.
    start: u64,
}

/// The state of the session at a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SessionState {
    Open {
        id: SessionId,
        slots: u32,
    },
    Unopened {
        id: SessionId,
    },
    Renewing,
    /// The session replaces a lost one, but its renewal has failed: files of the lost session are
    /// not open again. No operation may use the session before another renewal has succeeded. Until
    /// these files are open again, the group deletes each of them together with its last name.
    Unrestored {
        id: SessionId,
    },
}

/// The slots and the lease that a group granted to a session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Granted {
    pub(crate) slots: u32,
    pub(crate) lease: Duration,
    /// The start number of the target when it opened the session.
    pub(crate) start: u64,
}

/// The sessions of a mount. [`GroupSessions`] protects this value by a mutex.
///
/// # Invariants
/// No two sessions have the same id, and the counter in each session id is at most `next_counter`.
#[derive(Debug, Default)]
struct Sessions {
    groups: IdMap<GroupId, GroupSession>,
    /// Counter in the id of the newest session.
    next_counter: u32,
}

impl Sessions {
    fn new_session(&mut self, node: NodeId) -> GroupSession {
        self.next_counter += 1;
        GroupSession {
            id: session_id(node, self.next_counter),
            slots: 0,
            lease: USUAL_LEASE,
            confirmed_at: Duration::ZERO,
            is_renewing: false,
            replaces: None,
            is_restoring: false,
            start: 0,
        }
    }

    fn check_invariants(&self) {
        let mut counters: Vec<_> =
            self.groups.values().map(|session| session.id.raw() as u32).collect();
        counters.sort_unstable();
        assert!(counters.is_sorted_by(|a, b| a < b), "two sessions have one id: {self:?}");
        assert!(counters.last().is_none_or(|last| *last <= self.next_counter), "{self:?}");
    }
}

/// The sessions of a mount, one at each metadata group.
#[derive(Debug, Default)]
pub(crate) struct GroupSessions {
    /// The mutex protects only the table. A thread locks it at its first request to a group, after
    /// the reply to a change, and after the loss of a session. Requests that only read take no
    /// lock.
    inner: Mutex<Sessions>,
    /// Notifies tasks on all threads that a session was replaced, or that a renewal or the
    /// restoration of opens has ended.
    changed: SharedNotify,
    pub(crate) changes: AcknowledgedChanges,
    pub(crate) requests: ChangeRequests,
}

impl GroupSessions {
    fn with<T>(&self, f: impl FnOnce(&mut Sessions) -> T) -> T {
        f(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs `f` on the session at a group, if the id of that session is still `id`. Otherwise
    /// returns `None`.
    fn update<T>(
        &self,
        group: GroupId,
        id: SessionId,
        f: impl FnOnce(&mut GroupSession) -> T,
    ) -> Option<T> {
        self.with(|table| {
            // Ignore a reply for a session that another thread has replaced while the reply was in
            // flight.
            table.groups.get_mut(&group).filter(|session| session.id == id).map(f)
        })
    }

    /// Returns all sessions for which `is_wanted` returns `true`.
    fn select(&self, is_wanted: impl Fn(&GroupSession) -> bool) -> Vec<(GroupId, SessionId)> {
        self.with(|table| {
            let wanted = table.groups.iter().filter(|(_, session)| is_wanted(session));
            wanted.map(|(group, session)| (*group, session.id)).collect()
        })
    }

    /// Returns the state of the session at a group. If there is no session, adds an unopened
    /// session for the client `node`.
    pub(crate) fn find_or_add(&self, group: GroupId, node: NodeId) -> SessionState {
        self.with(|table| {
            let session = match table.groups.get(&group) {
                Some(session) => *session,
                None => {
                    let session = table.new_session(node);
                    table.groups.insert(group, session);
                    if cfg!(debug_assertions) {
                        table.check_invariants();
                    }
                    session
                }
            };
            match session {
                GroupSession { is_renewing: true, .. } => SessionState::Renewing,
                GroupSession { replaces: Some(_), id, .. } => SessionState::Unrestored { id },
                GroupSession { slots: 0, id, .. } => SessionState::Unopened { id },
                GroupSession { id, slots, .. } => SessionState::Open { id, slots },
            }
        })
    }

    /// Records that a group opened a session. `sent_at` is the time at which the client sent the
    /// request. Does nothing if another thread has already opened the session, so that the start
    /// number of the first reply stays. If the target has started again since, this number shows
    /// that the opens must be compared.
    pub(crate) fn opened(
        &self,
        group: GroupId,
        id: SessionId,
        granted: Granted,
        sent_at: Duration,
    ) {
        self.update(group, id, |session| {
            if session.slots > 0 {
                return;
            }
            session.slots = granted.slots;
            session.lease = granted.lease;
            session.start = granted.start;
            session.confirmed_at = sent_at;
        });
    }

    /// Returns the lease that the group has last granted to a session.
    pub(crate) fn lease(&self, group: GroupId, id: SessionId) -> Duration {
        self.update(group, id, |session| session.lease).unwrap_or(USUAL_LEASE)
    }

    /// Records that a group confirmed a session. `sent_at` is the time at which the client sent the
    /// request, and `lease` is the new lease of the session.
    pub(crate) fn confirmed(
        &self,
        group: GroupId,
        id: SessionId,
        sent_at: Duration,
        lease: Duration,
    ) {
        self.update(group, id, |session| {
            session.confirmed_at = session.confirmed_at.max(sent_at);
            session.lease = lease;
        });
    }

    /// Returns whether the target of a group has started again since the session last recorded the
    /// target's start number. The target may then have lost opens of the session. `start` is the
    /// start number in the target's reply. Zero means that the start number is unknown.
    pub(crate) fn may_have_lost_opens(&self, group: GroupId, id: SessionId, start: u64) -> bool {
        let is_new = self.update(group, id, |session| start != 0 && session.start != start);
        is_new.unwrap_or(false)
    }

    /// Records that the client has compared the opens of a session with the target of a group, and
    /// that the target has all these opens. `start` is the start number of the target.
    pub(crate) fn has_opens(&self, group: GroupId, id: SessionId, start: u64) {
        self.update(group, id, |session| session.start = start);
    }

    /// Begins to restore the opens of a session. Returns `None` while another task does this, or if
    /// another thread has replaced the session.
    pub(crate) fn begin_restoring(&self, group: GroupId, id: SessionId) -> Option<Restoring<'_>> {
        let is_begun = self.update(group, id, |session| {
            let is_other_restoring = std::mem::replace(&mut session.is_restoring, true);
            !is_other_restoring
        });
        is_begun?.then(|| Restoring { sessions: self, group, id })
    }

    /// Returns the session at a group if its lease may have run out at `now`, or if files of a lost
    /// session are not open again in it.
    pub(crate) fn doubtful(&self, group: GroupId, now: Duration) -> Option<SessionId> {
        self.with(|table| {
            let session = table.groups.get(&group)?;
            let is_whole = !session.is_renewing && session.replaces.is_none();
            let is_sure = now < session.confirmed_at + session.lease && is_whole;
            (!is_sure).then_some(session.id)
        })
    }

    /// Replaces the session `lost` by a new session whose renewal begins now. Returns the id of the
    /// new session, or `None` if another thread has already replaced `lost`.
    pub(crate) fn replace(
        &self,
        group: GroupId,
        lost: SessionId,
        node: NodeId,
    ) -> Option<SessionId> {
        let replaced = self.with(|table| {
            let before = *table.groups.get(&group).filter(|session| session.id == lost)?;
            let new = GroupSession {
                is_renewing: true,
                replaces: before.replaces.or(Some(client_of(lost))),
                // The lease that the group granted last, until a reply of the group contains
                // another lease.
                lease: before.lease,
                ..table.new_session(node)
            };
            table.groups.insert(group, new);
            if cfg!(debug_assertions) {
                table.check_invariants();
            }
            Some(new.id)
        });
        // A task that waits for the restoration of the opens of `lost` needs to wait no longer.
        self.changed.notify();
        replaced
    }

    /// Begins another renewal of the session `id`, whose previous renewal has failed. Returns
    /// `false` if another thread has begun one, or if the session needs no renewal.
    pub(crate) fn begin_renewal(&self, group: GroupId, id: SessionId) -> bool {
        let is_begun = self.update(group, id, |session| {
            let is_begun = session.replaces.is_some() && !session.is_renewing;
            session.is_renewing |= is_begun;
            is_begun
        });
        is_begun.unwrap_or(false)
    }

    /// Records that the renewal of the session `id` has ended. `is_restored` means that all files
    /// of the lost session are open again. Does nothing if another session has replaced `id`: the
    /// renewal of that session is still running.
    pub(crate) fn renewed(&self, group: GroupId, id: SessionId, is_restored: bool) {
        self.update(group, id, |session| {
            session.is_renewing = false;
            if is_restored {
                session.replaces = None;
            }
        });
        self.changed.notify();
    }

    /// Returns the client id of the lost session whose files are not open again in the session
    /// `id`. `None` means that there are no such files.
    pub(crate) fn unrestored(&self, group: GroupId, id: SessionId) -> Option<NodeId> {
        self.update(group, id, |session| session.replaces).flatten()
    }

    /// Returns whether the session at a group is being renewed.
    pub(crate) fn is_renewing(&self, group: GroupId) -> bool {
        self.with(|table| table.groups.get(&group).is_some_and(|session| session.is_renewing))
    }

    /// Waits until the session at a group is not being renewed. Cancel-safe.
    pub(crate) async fn await_renewal(&self, group: GroupId) {
        self.changed.wait_until(|| (!self.is_renewing(group)).then_some(())).await;
    }

    /// Waits until no task restores the opens of a session, or another session has replaced the
    /// session. Cancel-safe.
    pub(crate) async fn await_restoring(&self, group: GroupId, id: SessionId) {
        let has_ended = || {
            let is_restoring = self.update(group, id, |session| session.is_restoring);
            (!is_restoring.unwrap_or(false)).then_some(())
        };
        self.changed.wait_until(has_ended).await;
    }

    /// Returns whether `id` is the current session at a group.
    pub(crate) fn is_current(&self, group: GroupId, id: SessionId) -> bool {
        self.with(|table| table.groups.get(&group).is_some_and(|session| session.id == id))
    }

    /// Returns all sessions that are open and not being renewed.
    pub(crate) fn open_sessions(&self) -> Vec<(GroupId, SessionId)> {
        self.select(|session| session.slots > 0 && !session.is_renewing)
    }

    /// Returns all sessions that need the background work of the mount: the open ones, whose leases
    /// must be renewed, and those whose renewal has failed.
    pub(crate) fn to_keep(&self) -> Vec<(GroupId, SessionId)> {
        self.select(|session| {
            (session.slots > 0 || session.replaces.is_some()) && !session.is_renewing
        })
    }

    /// Returns the shortest lease of all sessions.
    pub(crate) fn shortest_lease(&self) -> Duration {
        let leases =
            |table: &mut Sessions| table.groups.values().map(|session| session.lease).min();
        self.with(leases).unwrap_or(USUAL_LEASE)
    }
}

/// A task that restores the opens of a session. Another task may begin when this value is dropped.
#[derive(Debug)]
pub(crate) struct Restoring<'a> {
    sessions: &'a GroupSessions,
    group: GroupId,
    id: SessionId,
}

impl Drop for Restoring<'_> {
    fn drop(&mut self) {
        self.sessions.update(self.group, self.id, |session| session.is_restoring = false);
        self.sessions.changed.notify();
    }
}

#[cfg(test)]
mod tests;
