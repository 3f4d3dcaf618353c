//! The admission of requests: decides whether a request may run, and whether it is a retry.
//!
//! # Exactly once
//! A slot has at most one request in progress, and the sequence number increases with each request.
//! A retry of the last request in the slot gets the same reply: the transaction of a change also
//! stores the reply in the slot. A refusal is stored only in memory, because all connections on
//! which a retry could arrive end with the process.
//!
//! The replies in the slots of an ended session stay in the store for some time. So a client that
//! has lost its session can ask for the outcome of its last requests (`outcome`).
//!
//! A request that was delayed on an abandoned connection never runs after its retry. After the
//! retry, the slot has the same or a higher sequence number, so the target recognises the delayed
//! request. If a newer request arrives in the slot while an older request waits, the target drops
//! the older request.

use crate::engine::Engine;
use crate::handlers;
use crate::limits::{MAX_REPETITIONS, PARKED_RESERVE};
use crate::sessions::properties::{self, Property};
use crate::target::{MetadataTarget, PendingReply};
use crate::tx::operation::{ConnectionId, Source};
use crate::tx::shared::Shared;
use skep_format::metadata::{Key, SlotRecord, decode_value};
use skep_types::codec::Codec;
use skep_types::{Error, ErrorCode, Result, SessionId};
use skep_wire::file_locks::{EndWait, WaitLock};
use skep_wire::frame::{FLAG_DURABLE, Header};
use skep_wire::log_shipping::AskGroup;
use skep_wire::metadata::{
    AskDecision, AskOutcome, CloseSession, CompareSlots, EndReplay, KeepAlive, ListCoordinated,
    ListSessions, ListTransactions, OpenSession,
};
use skep_wire::sharing::{AcknowledgeNotifications, WaitNotifications};
use skep_wire::{Request, catalog};

impl<E: Engine> MetadataTarget<E> {
    /// Handles a request that has arrived.
    pub(crate) fn on_request(
        &mut self,
        connection: ConnectionId,
        header: Header,
        body: Vec<u8>,
    ) -> Result<()> {
        match self.admit(&header, &body) {
            Err(error) => self.refuse(connection, header, error),
            Ok(()) => match header.message {
                AskGroup::ID => self.report_group(connection, header),
                KeepAlive::ID => match KeepAlive::from_bytes(&body) {
                    Ok(KeepAlive { lease_ms }) => {
                        let reply = self.keep_alive(header.session, lease_ms);
                        self.reply_now(connection, header, reply.to_bytes());
                    }
                    Err(error) => {
                        let error = Error::new(ErrorCode::Protocol, error.context());
                        self.refuse(connection, header, error);
                    }
                },
                ListSessions::ID => match ListSessions::from_bytes(&body) {
                    Ok(request) => {
                        let reply = self.list_sessions(request)?;
                        self.reply_now(connection, header, reply.to_bytes());
                    }
                    Err(error) => {
                        let error = Error::new(ErrorCode::Protocol, error.context());
                        self.refuse(connection, header, error);
                    }
                },
                ListTransactions::ID => match ListTransactions::from_bytes(&body) {
                    Ok(request) => {
                        let reply = self.list_transactions(&request)?;
                        self.reply_now(connection, header, reply.to_bytes());
                    }
                    Err(error) => {
                        let error = Error::new(ErrorCode::Protocol, error.context());
                        self.refuse(connection, header, error);
                    }
                },
                ListCoordinated::ID => match ListCoordinated::from_bytes(&body) {
                    Ok(request) => {
                        let reply = self.list_coordinated(&request)?;
                        self.reply_now(connection, header, reply.to_bytes());
                    }
                    Err(error) => {
                        let error = Error::new(ErrorCode::Protocol, error.context());
                        self.refuse(connection, header, error);
                    }
                },
                CloseSession::ID => {
                    self.end_session(header.session);
                    self.reply_now(connection, header, Vec::new());
                }
                AskDecision::ID => match AskDecision::from_bytes(&body) {
                    Ok(asked) => {
                        let reply = self.decision(asked.transaction)?;
                        self.reply_now(connection, header, reply.to_bytes());
                    }
                    Err(error) => {
                        let error = Error::new(ErrorCode::Protocol, error.context());
                        self.refuse(connection, header, error);
                    }
                },
                AskOutcome::ID => self.send_outcome(connection, header, &body)?,
                CompareSlots::ID => match self.compare_slots(header.session)? {
                    Ok(reply) => self.reply_now(connection, header, reply.to_bytes()),
                    Err(error) => self.refuse(connection, header, error),
                },
                EndReplay::ID => {
                    self.end_replay(header.session);
                    self.reply_now(connection, header, Vec::new());
                }
                WaitLock::ID => self.wait_for_lock(connection, header, &body),
                EndWait::ID => match self.end_lock_wait(&header, &body) {
                    Ok(()) => self.reply_now(connection, header, Vec::new()),
                    Err(error) => self.refuse(connection, header, error),
                },
                WaitNotifications::ID => self.wait_for_notifications(connection, header, &body),
                AcknowledgeNotifications::ID => match self.take_acknowledgement(&header, &body) {
                    Ok(()) => self.reply_now(connection, header, Vec::new()),
                    Err(error) => self.refuse(connection, header, error),
                },
                _ => return self.start_request(connection, header, body),
            },
        }
        Ok(())
    }

    /// Checks the conditions that every request must meet.
    fn admit(&mut self, header: &Header, body: &[u8]) -> Result<()> {
        let known = catalog::message(header.message).filter(|line| line.service == "metadata");
        let line = known.ok_or_else(|| {
            let what = format!(
                "cannot execute message {}: a metadata target does not serve this message",
                header.message
            );
            Error::new(ErrorCode::Unsupported, what)
        })?;
        self.check_addressee(header)?;
        self.senders.check(header, &self.shared.map)?;
        if header.session.raw() != 0 {
            self.sessions.renew(header.session, self.shared.now);
        }
        if line.modifies || properties::has(header.message, Property::NeedsSession) {
            self.sessions.check(header)?;
        }
        // A client's request for a sync also contains a start number. Without this check, the reply
        // to the request would confirm all earlier changes as durable before the client has found
        // out which of these changes are lost.
        let is_sync = header.is_durable() && header.start() != 0;
        if line.modifies || header.message == EndReplay::ID || is_sync {
            self.check_start(header)?;
        }
        self.check_replay_window(header)?;
        if line.modifies && header.sequence == 0 {
            let what =
                format!("cannot accept request {}: the request has no sequence number", line.name);
            return Err(Error::new(ErrorCode::Protocol, what));
        }
        if let Some(inode) = handlers::home_inode(header.message, body)
            && self.shared.map.shard_group(inode.shard()) != Some(self.shared.group)
        {
            let (shard, group) = (inode.shard(), self.shared.group);
            let what = format!(
                "cannot use inode {inode}: group {group} does not serve shard {shard}, to which \
                 this inode belongs"
            );
            return Err(Error::new(ErrorCode::StaleMap, what));
        }
        self.check_transaction(header, body)?;
        let most = if properties::has(header.message, Property::Unlimited) {
            usize::MAX
        } else if line.modifies {
            self.shared.limits.parked
        } else {
            self.shared.limits.parked + PARKED_RESERVE
        };
        if self.operations.len() >= most {
            return Err(Error::new(
                ErrorCode::LimitReached,
                "cannot accept the request: too many requests wait on this target",
            ));
        }
        Ok(())
    }

    /// Checks that a request is addressed to this target as the primary of its group, in the epoch
    /// of this target's cluster map. Also checks that this map has at least the version that the
    /// request requires. The target checks this before it checks the session, because only the
    /// primary has the sessions of the group. Another member would reply `StaleSession`, after
    /// which the client would abandon its session and its locks.
    fn check_addressee(&self, header: &Header) -> Result<()> {
        let Shared { group: own, ref map, .. } = self.shared;
        let stale = |what: String| Err(Error::new(ErrorCode::StaleMap, what));
        if header.group != own {
            return stale(format!(
                "cannot execute the request: this target serves group {own}, not group {}",
                header.group
            ));
        }
        if !self.is_primary() {
            return stale(format!(
                "cannot execute the request: this target is no longer the primary of group {own}"
            ));
        }
        let epoch = map.group(own).map(|group| group.epoch).unwrap_or_default();
        if header.epoch != epoch {
            return stale(format!(
                "cannot execute the request: the request is for epoch {} of group {own}, but this \
                 target has epoch {epoch}",
                header.epoch
            ));
        }
        if header.lowest_map > map.version {
            return stale(format!(
                "cannot execute the request: the request needs cluster map {}, but this target has \
                 cluster map {}",
                header.lowest_map, map.version
            ));
        }
        Ok(())
    }

    fn start_request(
        &mut self,
        connection: ConnectionId,
        mut header: Header,
        body: Vec<u8>,
    ) -> Result<()> {
        let modifies = catalog::message(header.message).is_some_and(|line| line.modifies);
        if modifies && self.ran_before(connection, &mut header, &body)? {
            return Ok(());
        }
        if header.message == OpenSession::ID && self.has_ended(header.session)? {
            let what = format!(
                "cannot open session {}: this session has ended; open another session",
                header.session
            );
            self.refuse(connection, header, Error::new(ErrorCode::StaleSession, what));
            return Ok(());
        }
        if modifies {
            let slot = (header.session, header.slot);
            // The client has abandoned an older request that still waits in this slot. If the older
            // request ran later, it could undo the newer request, and its reply would replace the
            // newer reply in the slot.
            if let Some((older, _)) = self.sessions.running(slot)
                && let Some(op) = self.operations.take(older)
            {
                let what = "cannot execute the request: a newer request has used its slot";
                self.fail(op, Error::new(ErrorCode::Stale, what))?;
            }
            self.sessions.set_running(slot, self.operations.next_id(), header.sequence);
        }
        self.operations.start(Source::Peer { connection, header }, body);
        Ok(())
    }

    /// Replies to a retry of the slot's last request, and refuses older requests. Returns `false`
    /// if the request is new, or if it must run again because the target has undone it. A request
    /// that runs again becomes durable.
    fn ran_before(
        &mut self,
        connection: ConnectionId,
        header: &mut Header,
        body: &[u8],
    ) -> Result<bool> {
        let slot = (header.session, header.slot);
        let mut newest = 0;
        if let Some(record) = self.slot_record(slot)? {
            if record.sequence == header.sequence {
                // If the request was executed and its reply was lost, send the stored reply. The
                // slot does not contain the number of the change, and without this number the
                // client could not replay the change. So the reply waits until the change is safe.
                // A durable reply shows the client that all earlier changes are safe, also changes
                // that were executed between this request and its repetition.
                let is_undone = record.is_undone();
                let after = if header.is_durable() { self.newest_record() } else { record.lsn };
                let (request, result) = (header.clone(), Ok(record.reply.0));
                let reply = PendingReply { connection, request, change: Some(0), result };
                // If the request was undone, but the undo is not *safe* yet, the transaction is
                // still staged. When the undo is *safe*, the target refuses this repetition, and
                // the client sends it again.
                let Some(reply) = self.hold_if_staged(reply, after) else { return Ok(true) };
                if !is_undone {
                    self.reply_committed(body, reply, Some(after))?;
                    return Ok(true);
                }
                // The target has undone the request, so it runs again. A power loss could remove
                // the second execution, but not the record of the undone request. This record has
                // the same sequence number, so the client would take the second execution for
                // stored, and would not replay it. So the reply must wait until the second
                // execution is *safe*.
                header.flags |= FLAG_DURABLE;
            }
            newest = record.sequence;
        }
        if let Some((sequence, error)) = self.sessions.refused(slot) {
            if *sequence == header.sequence {
                let error = error.clone();
                self.refuse(connection, header.clone(), error);
                return Ok(true);
            }
            newest = newest.max(*sequence);
        }
        if let Some((id, sequence)) = self.sessions.running(slot) {
            if sequence == header.sequence {
                // The request is still running. The target will reply on every connection on which
                // the request has arrived, because the client may read only one of them.
                if let Some(op) = self.operations.get_mut(id) {
                    op.repetitions.push((connection, header.clone()));
                    if op.repetitions.len() > MAX_REPETITIONS {
                        op.repetitions.remove(0);
                    }
                }
                return Ok(true);
            }
            newest = newest.max(sequence);
        }
        if newest > header.sequence {
            let what = "cannot execute the request: a newer request has used its slot";
            self.refuse(connection, header.clone(), Error::new(ErrorCode::Stale, what));
            return Ok(true);
        }
        Ok(false)
    }

    /// Whether a session has ended. An `OpenSession` request for an ended session is a late retry,
    /// and must not reopen the session. The target later deletes the stored replies of the session,
    /// and a late retry of another request would then run a second time.
    pub(super) fn has_ended(&self, session: SessionId) -> Result<bool> {
        Ok(self.table.get(&Key::SessionEnd(session).to_bytes())?.is_some())
    }

    pub(super) fn slot_record(&self, slot: (SessionId, u32)) -> Result<Option<SlotRecord>> {
        let key = Key::Slot(slot.0, slot.1).to_bytes();
        let value = self.table.get(&key)?;
        value.map(|value| decode_value(&key, &value)).transpose()
    }
}
