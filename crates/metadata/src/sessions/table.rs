//! The table of sessions: their leases, and the slots that have a request in progress.
//!
//! The store has the state that must survive a restart: the session, the last replies of its slots,
//! and its open files. The leases in this table need not survive a restart, because all leases
//! restart when the target starts. The target logs the end of a session before it releases the
//! session's locks and opens. The record of the end stays in the store for some time, so that
//! neither a restart nor a late request reopens the session.
//!
//! # States of a session
//! ```text
//!             OpenSession              no renewal for a lease
//!   (unknown) -----------> open ------------------------------> expired
//!                           |   <-- KeepAlive or any other         |
//!                           |       request renews it              | a cluster map without
//!              CloseSession,|                                      | the client arrives
//!              or a map     |                                      |
//!              without the  v                                      v
//!              client      ended: the target logs the end, then closes files and releases
//!                          locks in pieces (`background/session_end.rs`), and forgets it
//! ```
//! If more than a quarter of the clients are silent at the same time, their sessions do not expire.
//! The target asks management to remove only the clients whose heartbeats management does not
//! receive either.
//!
//! The target refuses requests of an expired session with `Evicted`, and asks management to remove
//! the client. An expired session keeps its opens and locks until the session has ended.
//!
//! # Invariants
//! - For each slot in `running`, the target has the operation.
//! - `refused` has only slots of sessions that have not ended.

use crate::sessions::replay_window::ReplayWindow;
use skep_format::metadata::SessionRecord;
use skep_types::codec::Codec;
use skep_types::{ClusterMap, Error, ErrorCode, NodeId, Result, RetryClass, SessionId, TargetId};
use skep_wire::Request;
use skep_wire::frame::Header;
use skep_wire::limits::REPLAY_SLOT;
use skep_wire::metadata::{OpenSession, OpenSessionReply, Replay};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Session {
    client: NodeId,
    pub(crate) slots: u32,
    pub(crate) renewed_at: Duration,
    /// Whether the lease has run out without a renewal. An expired session ends when a cluster map
    /// without its client arrives.
    is_expired: bool,
    /// Lease that the client has acknowledged. If the cluster's settings change to a longer lease,
    /// the longer lease applies immediately. A shorter lease applies as soon as the client has
    /// acknowledged it.
    pub(crate) lease: Duration,
}

impl Session {
    /// Returns the client that opened the session.
    pub(crate) fn client(&self) -> NodeId {
        self.client
    }
}

/// The sessions of a target that have not ended.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    all: BTreeMap<SessionId, Session>,
    /// Requests in progress, by slot. The value has the id of the operation and the sequence
    /// number of the request.
    running: HashMap<(SessionId, u32), (u64, u64)>,
    /// Slots whose last request was refused with an error for which a retry cannot succeed. The
    /// value has the sequence number of the request and the error.
    refused: BTreeMap<Slot, (u64, Error)>,
    /// The sessions whose clients replay changes that a power loss has reverted.
    pub(crate) replay: ReplayWindow,
    checked_at: Duration,
    /// Whether the last check found that the target itself may be disconnected
    /// ([`may_be_cut_off`]).
    is_cut_off: bool,
}

/// Clients that have not renewed their sessions for the time of a lease.
#[derive(Debug, Default)]
pub(crate) struct SilentClients {
    /// Clients with an expired session. Management must remove them.
    pub(crate) expired: BTreeSet<NodeId>,
    /// Clients that may be silent because the network of this target has failed. Management removes
    /// such a client only if management does not receive the client's heartbeats either. Until then
    /// the session of the client stays valid.
    pub(crate) doubtful: BTreeSet<NodeId>,
}

/// Whether the target itself may be disconnected from its clients. The target assumes this if more
/// than a quarter of its `all` clients are silent, unless only one of several clients is silent. If
/// the assumption is wrong because the clients have died, management receives no heartbeats from
/// them and removes them anyway.
fn may_be_cut_off(silent: usize, all: usize) -> bool {
    silent * 4 > all && (silent > 1 || silent == all)
}

/// Whether three or more clients are silent. Then the network of the target has probably failed.
/// One or two silent clients have more likely failed themselves.
fn is_many(silent: usize) -> bool {
    silent > 2
}

/// Returns the log line about `silent` clients of `all` clients that have not renewed their
/// sessions.
fn silence_line(own: TargetId, silent: usize, all: usize) -> String {
    let cause = match is_many(silent) {
        true => {
            "perhaps because the network of this host has failed; management does not evict \
             clients whose heartbeats it receives; check this network"
        }
        false => {
            "because they have failed or cannot reach this target; management evicts them, unless \
             it receives their heartbeats"
        }
    };
    format!(
        "target {own}: {silent} of {all} clients have not renewed their sessions for the time of a \
         lease, {cause}"
    )
}

pub(crate) type Slot = (SessionId, u32);

fn milliseconds(number: u32) -> Duration {
    Duration::from_millis(u64::from(number))
}

impl Sessions {
    /// Adds a session that the target has found in its store at its start.
    pub(crate) fn load(
        &mut self,
        id: SessionId,
        record: &SessionRecord,
        lease: Duration,
        now: Duration,
    ) {
        let SessionRecord { client, slots } = *record;
        let session = Session { client, slots, renewed_at: now, is_expired: false, lease };
        self.all.insert(id, session);
    }

    /// Sets the lease of a session to a lease that the client has acknowledged.
    pub(crate) fn set_lease(&mut self, session: SessionId, lease_ms: u32) {
        if let Some(session) = self.all.get_mut(&session) {
            session.lease = milliseconds(lease_ms);
        }
    }

    /// Restarts the leases of all sessions.
    pub(crate) fn restart_leases(&mut self, now: Duration) {
        self.all.values_mut().for_each(|session| session.renewed_at = now);
    }

    /// Finds the sessions whose lease has run out, and returns their clients. Expires these
    /// sessions, unless the metadata target itself may be disconnected. `lease` is the minimum
    /// lease of a session. Returns no clients if the last check was less than `lease / 8` ago.
    /// `own` is the id of this target for log messages.
    pub(crate) fn expire(
        &mut self,
        own: TargetId,
        now: Duration,
        lease: Duration,
    ) -> SilentClients {
        let mut clients = SilentClients::default();
        if now < self.checked_at + lease / 8 {
            return clients;
        }
        self.checked_at = now;
        let is_silent = |session: &Session| now > session.renewed_at + session.lease.max(lease);
        let live = || self.all.values().filter(|session| !session.is_expired);
        let all: BTreeSet<_> = live().map(|session| session.client).collect();
        let heard: BTreeSet<_> =
            live().filter(|session| !is_silent(session)).map(|session| session.client).collect();
        let silent = all.len() - heard.len();
        let is_cut_off = may_be_cut_off(silent, all.len());
        if is_cut_off && !self.is_cut_off {
            match is_many(silent) {
                true => tracing::warn!("{}", silence_line(own, silent, all.len())),
                false => tracing::info!("{}", silence_line(own, silent, all.len())),
            }
        }
        self.is_cut_off = is_cut_off;
        for session in self.all.values_mut() {
            if !session.is_expired && is_silent(session) {
                if is_cut_off && !heard.contains(&session.client) {
                    clients.doubtful.insert(session.client);
                    continue;
                }
                session.is_expired = true;
                let client = session.client;
                tracing::info!(
                    "target {own}: client {client} has sent nothing for the time of a lease, so \
                     the target asks management to evict the client"
                );
            }
            if session.is_expired {
                clients.expired.insert(session.client);
            }
        }
        clients
    }

    /// Returns the sessions whose clients management has removed from the cluster map.
    pub(crate) fn of_removed(&self, map: &ClusterMap) -> Vec<SessionId> {
        let removed = self.all.iter().filter(|(_, session)| map.has_removed(session.client));
        removed.map(|(id, _)| *id).collect()
    }

    /// Removes a session. Returns `false` if the session does not exist.
    pub(crate) fn remove(&mut self, session: SessionId) -> bool {
        let slots = (session, 0)..=(session, u32::MAX);
        let refused: Vec<Slot> = self.refused.range(slots).map(|(slot, _)| *slot).collect();
        refused.iter().for_each(|slot| drop(self.refused.remove(slot)));
        self.all.remove(&session).is_some()
    }

    pub(crate) fn renew(&mut self, session: SessionId, now: Duration) {
        if let Some(session) = self.all.get_mut(&session) {
            session.renewed_at = now;
        }
    }

    /// Checks that the session of a request exists, has not expired, and has the slot of the
    /// request.
    pub(crate) fn check(&self, header: &Header) -> Result<()> {
        let session = self.all.get(&header.session).ok_or_else(|| {
            let what = format!(
                "cannot execute the request: session {} has ended, or was never opened at this \
                 target",
                header.session
            );
            Error::new(ErrorCode::StaleSession, what)
        })?;
        if session.is_expired {
            return Err(evicted(header.session));
        }
        let slot = header.slot;
        let is_of_replay = header.message == Replay::ID;
        let what = if is_of_replay != (slot == REPLAY_SLOT) {
            format!(
                "cannot use slot {slot}: slot {REPLAY_SLOT} is reserved for requests that replay \
                 changes, and these use no other slot"
            )
        } else if !is_of_replay && slot >= session.slots {
            format!("cannot use slot {slot}: the session has {} slots", session.slots)
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorCode::Protocol, what))
    }

    /// Iterates over the sessions with ids above `id`, in ascending order.
    pub(crate) fn after(&self, id: SessionId) -> impl Iterator<Item = (SessionId, &Session)> {
        self.all.iter().filter(move |(session, _)| **session > id).map(|(id, it)| (*id, it))
    }

    /// Whether a session exists and has not ended.
    pub(crate) fn exists(&self, session: SessionId) -> bool {
        self.all.contains_key(&session)
    }

    /// Returns the error for the requests of a session that has ended or expired. `None` means that
    /// the target accepts the requests of this session.
    pub(crate) fn refusal(&self, session: SessionId) -> Option<Error> {
        match self.all.get(&session) {
            Some(Session { is_expired: false, .. }) => None,
            Some(_) => Some(evicted(session)),
            None => {
                let what = format!("cannot execute the request: session {session} has ended");
                Some(Error::new(ErrorCode::StaleSession, what))
            }
        }
    }

    /// Returns the sequence number and the error of the slot's last request, if it was refused with
    /// an error for which a retry cannot succeed.
    pub(crate) fn refused(&self, slot: Slot) -> Option<&(u64, Error)> {
        self.refused.get(&slot)
    }

    /// Stores the refusal of the slot's last request in memory, if a retry cannot succeed.
    pub(crate) fn refuse(&mut self, slot: Slot, sequence: u64, error: &Error) {
        if self.exists(slot.0) && error.code().retry_class() == RetryClass::Never {
            self.refused.insert(slot, (sequence, error.clone()));
        }
    }

    pub(crate) fn running(&self, slot: Slot) -> Option<(u64, u64)> {
        self.running.get(&slot).copied()
    }

    pub(crate) fn set_running(&mut self, slot: Slot, operation: u64, sequence: u64) {
        self.running.insert(slot, (operation, sequence));
    }

    pub(crate) fn clear_running(&mut self, slot: Slot, operation: u64) {
        if self.running.get(&slot).is_some_and(|(id, _)| *id == operation) {
            self.running.remove(&slot);
        }
    }

    pub(crate) fn clear_running_slot(&mut self, slot: Slot) {
        self.running.remove(&slot);
        self.refused.remove(&slot);
    }

    /// Iterates over the slots that have a request in progress, each with the id of its operation.
    pub(crate) fn all_running(&self) -> impl Iterator<Item = (Slot, u64)> + '_ {
        self.running.iter().map(|(slot, (operation, _))| (*slot, *operation))
    }

    /// Panics if an invariant of the module is violated.
    pub(crate) fn check_invariants(&self) {
        self.replay.check_invariants();
        for (session, slot) in self.refused.keys() {
            let open = self.all.get(session);
            assert!(
                open.is_some_and(|open| *slot < open.slots || *slot == REPLAY_SLOT),
                "slot {slot}, for which a refusal is stored, is a slot of the open session \
                 {session}"
            );
        }
    }

    /// Adds or updates a session after an `OpenSession` has succeeded. `body` is the request,
    /// `reply` the reply.
    pub(crate) fn opened(&mut self, session: SessionId, body: &[u8], reply: &[u8], now: Duration) {
        let (asked, reply) = (OpenSession::from_bytes(body), OpenSessionReply::from_bytes(reply));
        if let (Ok(OpenSession { client, .. }), Ok(reply)) = (asked, reply) {
            let known = self.all.get(&session);
            let lease = known.map_or(Duration::ZERO, |session| session.lease);
            let lease = lease.max(milliseconds(reply.lease_ms));
            let is_expired = known.is_some_and(|session| session.is_expired);
            let open = Session { client, slots: reply.slots, renewed_at: now, is_expired, lease };
            self.all.insert(session, open);
        }
    }
}

fn evicted(session: SessionId) -> Error {
    let what = format!(
        "cannot execute the request: the client did not renew session {session} for the time of a \
         lease"
    );
    Error::new(ErrorCode::Evicted, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_about_few_silent_clients_does_not_blame_the_target() {
        let own = TargetId::new(2);
        let line = silence_line(own, 1, 1);
        assert!(line.starts_with("target t2: 1 of 1 clients have not renewed"), "{line}");
        assert!(!line.contains("network of this host"), "{line}");
        assert!(silence_line(own, 7, 9).contains("check this network"));
    }
}
