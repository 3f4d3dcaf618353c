//! Sessions of clients: which there are, when they were last heard of, which slots are at work.
//!
//! What must survive a restart (the session, its slots' last replies, what it has open) is in the
//! store; here is what may be forgotten: leases start anew after a restart. That a session has
//! ended is in the store before anything follows from it, and stays there for a while, so that
//! neither a restart nor a late request brings it back.

use crate::engine::Engine;
use crate::limits::{LONGEST_WAIT, MAX_SLOTS};
use crate::sharing::table::Told;
use crate::target::{Action, MetadataTarget};
use crate::tx::context::Context;
use crate::tx::operation::{Internal, Stop};
use skep_cluster::limits::MAX_LEASE_MS;
use skep_format::metadata::{Key, SessionRecord, decode_value, last_u64};
use skep_types::codec::Codec;
use skep_types::{Error, ErrorCode, MapVersion, NodeId, Result, RetryClass, SessionId};
use skep_wire::frame::Header;
use skep_wire::metadata::{KeepAliveReply, OpenSession, OpenSessionReply};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Session {
    client: NodeId,
    pub(crate) slots: u32,
    pub(crate) heard: Duration,
    /// Its lease has run out. It ends when the cluster map says that its client was removed.
    is_expired: bool,
    /// By which its client renews. Another setting of the cluster takes its place when the client
    /// says that it knows, or at once if it is longer.
    pub(crate) lease: Duration,
}

/// See the file's description.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    all: BTreeMap<SessionId, Session>,
    /// Requests at work: slot to operation and sequence.
    running: HashMap<(SessionId, u32), (u64, u64)>,
    /// Slots whose last request was refused for good: its sequence and the refusal.
    refused: BTreeMap<Slot, (u64, Error)>,
    checked_at: Duration,
}

type Slot = (SessionId, u32);

fn milliseconds(number: u32) -> Duration {
    Duration::from_millis(u64::from(number))
}

impl Sessions {
    pub(crate) fn renew(&mut self, session: SessionId, now: Duration) {
        if let Some(session) = self.all.get_mut(&session) {
            session.heard = now;
        }
    }

    /// Checks that a request's session exists and that it has the slot.
    pub(crate) fn check(&self, header: &Header) -> Result<()> {
        let session = self.all.get(&header.session).ok_or_else(|| {
            let what = format!("session {} has ended or was never opened here", header.session);
            Error::new(ErrorCode::StaleSession, what)
        })?;
        if session.is_expired {
            return Err(evicted(header.session));
        }
        if header.slot >= session.slots {
            let what = format!("slot {} of {}", header.slot, session.slots);
            return Err(Error::new(ErrorCode::Protocol, what));
        }
        Ok(())
    }

    /// The sessions above one, by id.
    pub(crate) fn after(&self, id: SessionId) -> impl Iterator<Item = (SessionId, &Session)> {
        self.all.iter().filter(move |(session, _)| **session > id).map(|(id, it)| (*id, it))
    }

    /// Whether a session exists and hasn't ended.
    pub(crate) fn exists(&self, session: SessionId) -> bool {
        self.all.contains_key(&session)
    }

    /// Why nothing is done in a session; `None`: something may be.
    pub(crate) fn refusal(&self, session: SessionId) -> Option<Error> {
        match self.all.get(&session) {
            Some(Session { is_expired: false, .. }) => None,
            Some(_) => Some(evicted(session)),
            None => {
                let what = format!("session {session} has ended");
                Some(Error::new(ErrorCode::StaleSession, what))
            }
        }
    }

    /// The last refusal of a slot.
    pub(crate) fn refused(&self, slot: Slot) -> Option<&(u64, Error)> {
        self.refused.get(&slot)
    }

    /// Remembers the refusal of a slot's last request, if it is final.
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

    /// Notes that a session is open, by the request and its answer.
    pub(crate) fn opened(&mut self, session: SessionId, body: &[u8], reply: &[u8], now: Duration) {
        let (asked, reply) = (OpenSession::from_bytes(body), OpenSessionReply::from_bytes(reply));
        if let (Ok(OpenSession { client, .. }), Ok(reply)) = (asked, reply) {
            let known = self.all.get(&session);
            let lease = known.map_or(Duration::ZERO, |session| session.lease);
            let lease = lease.max(milliseconds(reply.lease_ms));
            let is_expired = known.is_some_and(|session| session.is_expired);
            let open = Session { client, slots: reply.slots, heard: now, is_expired, lease };
            self.all.insert(session, open);
        }
    }
}

fn evicted(session: SessionId) -> Error {
    let what = format!("nothing was heard in session {session} for a lease");
    Error::new(ErrorCode::Evicted, what)
}

/// `OpenSession`: opens the session in the header, or confirms it.
pub(crate) fn open_session<E: Engine>(context: &mut Context<'_, E>) -> Result<Vec<u8>, Stop> {
    let request = OpenSession::from_bytes(&context.op.body)
        .map_err(|error| Error::new(ErrorCode::Protocol, error.context()))?;
    let session = context.session()?;
    if context.shared.map.has_removed(request.client) {
        let what = format!("client {} was removed from the cluster map", request.client);
        return Err(Error::new(ErrorCode::Evicted, what).into());
    }
    let slots = request.slots.clamp(1, MAX_SLOTS);
    let record = match context.get::<SessionRecord>(&Key::Session(session))? {
        // A repetition must not take slots away that are in use.
        Some(record) => SessionRecord { slots: record.slots.max(slots), ..record },
        None => SessionRecord { client: request.client, slots },
    };
    context.put(&Key::Session(session), &record);
    let lease_ms = context.shared.map.policy.lease_ms;
    Ok(OpenSessionReply { slots: record.slots, lease_ms }.to_bytes())
}

impl<E: Engine> MetadataTarget<E> {
    pub(crate) fn load_sessions(&mut self) -> Result<()> {
        let ends = self.table.scan(&Key::session_ends(), &[], usize::MAX)?;
        let ended: BTreeSet<_> =
            ends.iter().filter_map(|(key, _)| last_u64(key).map(SessionId::new)).collect();
        for (key, value) in self.table.scan(&Key::sessions(), &[], usize::MAX)? {
            let record: SessionRecord = decode_value(&key, &value)?;
            let Some(session) = last_u64(&key).map(SessionId::new) else { continue };
            if ended.contains(&session) {
                self.background.ending.push_back(session);
            } else {
                let heard = self.shared.now;
                let SessionRecord { client, slots } = record;
                let lease = self.lease();
                let open = Session { client, slots, heard, is_expired: false, lease };
                self.sessions.all.insert(session, open);
            }
        }
        Ok(())
    }

    fn lease(&self) -> Duration {
        milliseconds(self.shared.map.policy.lease_ms)
    }

    /// A client renews its lease, and hears by which one it has to renew from now on.
    pub(crate) fn keep_alive(&mut self, session: SessionId, known_ms: u32) -> KeepAliveReply {
        let lease_ms = self.shared.map.policy.lease_ms;
        if let Some(session) = self.sessions.all.get_mut(&session) {
            session.lease = milliseconds(lease_ms.max(known_ms.min(MAX_LEASE_MS)));
        }
        KeepAliveReply { lease_ms }
    }

    /// Lets all leases begin anew if the target itself stood still (its process or its host was
    /// stopped): what clients sent meanwhile it couldn't hear, and hears only now. Short pauses
    /// don't matter, since clients renew several times in a lease.
    pub(crate) fn notice_standstill(&mut self, now: Duration) {
        let pause = now.saturating_sub(self.shared.now);
        if pause > (self.lease() / 4).max(2 * LONGEST_WAIT) {
            tracing::warn!("the target stood still for {pause:?}: leases begin anew");
            self.sessions.all.values_mut().for_each(|session| session.heard = now);
        }
    }

    /// Refuses sessions of which nothing was heard for a lease, and asks for their clients to be
    /// removed from the cluster map, until they are. Before that nothing of them is given to others
    /// (docs/design/0006-fencing.md).
    pub(crate) fn expire_sessions(&mut self) {
        let lease = self.lease();
        let now = self.shared.now;
        if now < self.sessions.checked_at + lease / 8 {
            return;
        }
        self.sessions.checked_at = now;
        let mut silent = BTreeSet::new();
        for (id, session) in &mut self.sessions.all {
            let is_silent = now > session.heard + session.lease.max(lease);
            if is_silent && !std::mem::replace(&mut session.is_expired, true) {
                let client = session.client;
                tracing::info!("nothing was heard of client {client} in session {id} for a lease");
            }
            if session.is_expired {
                silent.insert(session.client);
            }
        }
        self.actions.extend(silent.into_iter().map(|client| Action::Evict { client }));
    }

    /// Ends the sessions of clients that were removed from the cluster map.
    pub(crate) fn end_sessions_of_removed(&mut self) {
        let map = Arc::clone(&self.shared.map);
        let all = self.sessions.all.iter();
        let removed: Vec<_> =
            all.filter(|(_, it)| map.has_removed(it.client)).map(|(id, _)| *id).collect();
        if !removed.is_empty() {
            self.fence = self.fence.max(map.version);
        }
        for session in removed {
            self.end_session(session);
        }
    }

    /// The newest cluster map in which a client was missing whose sessions were ended for that: who
    /// is told anything here must not be served by anybody who knows only an older one.
    pub fn fence(&self) -> MapVersion {
        self.fence
    }

    /// Ends a session: refused from now on; what it had open is closed step by step.
    pub(crate) fn end_session(&mut self, session: SessionId) {
        if self.sessions.all.remove(&session).is_some() {
            let refused = &mut self.sessions.refused;
            let slots: Vec<Slot> =
                refused.range((session, 0)..=(session, u32::MAX)).map(|(slot, _)| *slot).collect();
            slots.iter().for_each(|slot| drop(refused.remove(slot)));
            for (connection, header) in self.shared.file_locks.end_waits_of(session) {
                let what = format!("session {session} has ended");
                self.refuse(connection, header, Error::new(ErrorCode::StaleSession, what));
            }
            if let Some(Told { connection, header, .. }) = self.shared.sharing.end_poll(session) {
                let what = format!("session {session} has ended");
                self.refuse(connection, header, Error::new(ErrorCode::StaleSession, what));
            }
            self.start_internal(Internal::SessionEnded(session));
        }
    }
}
