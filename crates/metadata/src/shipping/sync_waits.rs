//! The requests of a primary that wait for the next sync of a backup member.
//!
//! This module does not own the syncs or the sending of replies ([`super::backup`]).

use crate::limits::{AWAIT_SYNC, MAX_SYNC_WAITS};
use crate::tx::operation::ConnectionId;
use skep_types::Lsn;
use skep_wire::frame::Header;
use skep_wire::log_shipping::LogHeld;
use std::collections::VecDeque;
use std::time::Duration;

/// An `AwaitLogSync` request that has no reply yet.
#[derive(Debug)]
pub(super) struct SyncWait {
    pub(super) connection: ConnectionId,
    pub(super) header: Header,
    /// The reply waits until the backup member has synced a later record than this record.
    synced: Lsn,
    until: Duration,
}

/// The requests that wait, oldest first.
#[derive(Debug, Default)]
pub(super) struct SyncWaits(VecDeque<SyncWait>);

impl SyncWaits {
    /// Adds a request. If too many requests wait, removes and returns the oldest request, to which
    /// the caller must reply.
    pub(super) fn push(
        &mut self,
        (connection, header): (ConnectionId, Header),
        synced: Lsn,
        now: Duration,
    ) -> Option<SyncWait> {
        self.0.push_back(SyncWait { connection, header, synced, until: now + AWAIT_SYNC });
        if self.0.len() > MAX_SYNC_WAITS { self.0.pop_front() } else { None }
    }

    /// Removes and returns the requests whose wait has ended, because of a sync, the maximum
    /// waiting time or a new epoch.
    pub(super) fn take_ended(&mut self, held: &LogHeld, now: Duration) -> VecDeque<SyncWait> {
        let has_ended = |wait: &SyncWait| {
            held.synced > wait.synced || now >= wait.until || wait.header.epoch != held.epoch
        };
        let (ended, waiting) = std::mem::take(&mut self.0).into_iter().partition(has_ended);
        self.0 = waiting;
        ended
    }

    /// Returns the time at which the first wait ends.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.0.iter().map(|wait| wait.until).min()
    }

    /// Panics if too many requests wait.
    pub(super) fn check_invariants(&self) {
        assert!(self.0.len() <= MAX_SYNC_WAITS, "at most MAX_SYNC_WAITS requests wait");
    }
}
