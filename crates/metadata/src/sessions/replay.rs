//! The replay of lost changes after a power loss of the target's host. Before clients change
//! anything else, they send again the changes that the target had acknowledged and has lost
//! (`Replay`).
//!
//! This module does not own the order of the changes (`replay_window`), or their execution
//! (`handlers::replay`).
//!
//! # Invariants
//! - While the replay window is open, the target executes no request of clients except lost
//!   changes, and prepares no steps of other targets. The target also refuses requests that read
//!   the namespace, so no program and no storage target sees the state without the lost changes.
//! - After the target has refused or dropped a replayed change, it replays no change that removes
//!   or replaces a name. The replay of a removal could remove the last name of a file, because the
//!   refused change would have added another name.
//! - Only sessions that were opened before the start take part in the replay. After a session has
//!   ended its replay, it cannot take part again until the next start.
//!
//! `ReplayWindow::check_invariants` checks the state of the window.
//!
//! Held by the tests `lost_link_is_replayed_before_any_new_change`,
//! `no_unlink_is_replayed_after_a_failed_replay` and `replay_ends_after_a_lease_without_progress`,
//! and by the checker `check_replay_order` of the simulator.

use crate::engine::Engine;
use crate::sessions::properties::{self, Property};
use crate::sessions::replay_window::Dropped;
use crate::target::MetadataTarget;
use crate::tx::operation::Operation;
use skep_types::codec::Codec;
use skep_types::{Error, ErrorCode, Result, SessionId};
use skep_wire::frame::Header;
use skep_wire::metadata::Replay;
use skep_wire::{Request, catalog};

impl<E: Engine> MetadataTarget<E> {
    /// Opens the replay window for all sessions in the store. The caller calls this function before
    /// the first event, if the host may have lost changes that the target has acknowledged.
    pub fn await_replay(&mut self) {
        let sessions: Vec<_> = self.sessions.after(SessionId::default()).map(|it| it.0).collect();
        if !sessions.is_empty() {
            tracing::warn!(
                "target {} may have lost acknowledged changes. The target waits until the clients \
                 of all its sessions ({}) have repeated these changes, or until no client has \
                 repeated one for the time of a lease; other operations wait until then",
                self.target,
                sessions.len()
            );
        }
        self.sessions.replay.open(sessions.into_iter(), self.shared.now);
    }

    /// Whether the replay window is open.
    pub fn is_replaying(&self) -> bool {
        self.sessions.replay.is_open()
    }

    /// Refuses a request while the replay window is open, unless it is [`Property::DuringReplay`].
    ///
    /// # Errors
    /// `Busy`, so the sender sends the request again.
    pub(super) fn check_replay_window(&self, header: &Header) -> Result<()> {
        if !self.sessions.replay.is_open()
            || properties::has(header.message, Property::DuringReplay)
        {
            return Ok(());
        }
        let what = "cannot execute the request yet: clients repeat changes that a power loss of \
                    this target has reverted";
        Err(Error::new(ErrorCode::Busy, what))
    }

    /// Returns whether an operation may run now. A replayed change may run only when it is the next
    /// change in the order of the replay.
    ///
    /// # Errors
    /// `Stale` for a replayed change of a session that takes no part in the replay, or for the
    /// removal of a name after another replayed change has failed.
    pub(crate) fn may_run(&mut self, op: &Operation) -> Result<bool> {
        let Some(header) = op.header().filter(|it| it.message == Replay::ID) else {
            return Ok(true);
        };
        let session = header.session;
        if !self.sessions.replay.takes_part(session) {
            let what = format!(
                "cannot repeat the change: the target does not wait for repeated changes of \
                 session {session}, because its host has not lost power, or because the replay of \
                 this session has ended"
            );
            return Err(Error::new(ErrorCode::Stale, what));
        }
        let Replay { start, change, message, .. } = Replay::from_bytes(&op.body)
            .map_err(|error| Error::new(ErrorCode::Protocol, error.context()))?;
        self.sessions.replay.announce(session, (start, change), op.id, self.shared.now);
        if self.sessions.replay.turn() != Some(op.id) {
            return Ok(false);
        }
        if self.sessions.replay.has_failed() && catalog::removes_name(message) {
            let what = "cannot repeat the removal of a name: another lost change could not be \
                        repeated, so the file may have no other name";
            return Err(Error::new(ErrorCode::Stale, what));
        }
        Ok(true)
    }

    /// Wakes the operation with the next change in the order of the replay.
    pub(crate) fn wake_replay(&mut self) {
        self.operations.wake(self.sessions.replay.turn());
    }

    /// Updates the replay window after the end of an operation whose request has the header
    /// `header`. `failed` means that the target has refused the request.
    pub(crate) fn after_replay(&mut self, header: &Header, operation: u64, failed: bool) {
        if header.message == Replay::ID {
            self.sessions.replay.executed(header.session, operation, failed, self.shared.now);
            self.wake_replay();
        }
    }

    /// Ends the replay of a session, because its client has no more lost changes or because the
    /// session has ended.
    pub(crate) fn end_replay(&mut self, session: SessionId) {
        if !self.sessions.replay.takes_part(session) {
            return;
        }
        let announced = self.sessions.replay.end(session, self.shared.now);
        self.operations.wake(announced);
        self.wake_replay();
        self.note_closed_window();
    }

    /// Drops sessions from the replay if there was no progress for the time of a lease.
    pub(crate) fn drop_stalled_replays(&mut self) {
        if !self.sessions.replay.is_open() {
            return;
        }
        let (now, lease) = (self.shared.now, self.lease());
        if self.shared.starts.current().is_none() || !self.may_answer() {
            // Clients cannot compare their changes yet, so they have had no time to repeat lost
            // changes.
            self.sessions.replay.restart_patience(now);
            return;
        }
        let Dropped { sessions, operations } = self.sessions.replay.drop_stalled(now, lease);
        if sessions.is_empty() {
            return;
        }
        tracing::warn!(
            "target {}: the clients of some sessions ({}) have repeated no lost changes for the \
             time of a lease, so the target no longer waits for these clients; their lost changes \
             stay lost",
            self.target,
            sessions.len()
        );
        self.operations.wake(operations);
        self.wake_replay();
        self.note_closed_window();
    }

    fn note_closed_window(&self) {
        if !self.sessions.replay.is_open() {
            tracing::info!("target {}: the replay of lost changes has ended", self.target);
        }
    }
}
