//! Clients that have stopped to send requests while requests of other clients wait for them: for a
//! lock that they hold, or for their acknowledgement that a file becomes shared.
//!
//! Owns their computation and the figures about them. Does not own the end of their sessions
//! (`sessions::lifetime`): after a lease without a request, the target asks management to remove
//! the client, and the waits end.

use crate::engine::Engine;
use crate::target::MetadataTarget;
use skep_metrics::{Snapshot, Source, catalog};
use skep_types::{NodeId, SessionId, TargetId};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::Duration;

/// Maximum number of clients in the figures. If more clients are silent at once, the network is the
/// more probable fault.
const MAX_HOLDERS: usize = 16;
/// Part of its lease for which a client must be silent. A client renews its session several times
/// in a lease.
const SILENT_PART: u32 = 2;

/// A silent client for which requests wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SilentHolder {
    pub(crate) client: NodeId,
    /// Time since its last request.
    pub(crate) silent: Duration,
    /// Number of locks and opens of other clients that wait for it.
    pub(crate) waits: usize,
}

impl<E: Engine> MetadataTarget<E> {
    /// Returns the silent clients for which requests wait, at most [`MAX_HOLDERS`].
    pub(crate) fn silent_holders(&self) -> Vec<SilentHolder> {
        let is_idle = self.shared.file_locks.wait_count() == 0 && !self.shared.sharing.is_waiting();
        if is_idle {
            return Vec::new();
        }
        let now = self.shared.now;
        let sessions = self.sessions.after(SessionId::default());
        let silent = sessions
            .map(|(id, session)| (id, session, now.saturating_sub(session.renewed_at)))
            .filter(|(_, session, silent)| *silent * SILENT_PART > session.lease);
        let holders = silent.filter_map(|(id, session, silent)| {
            let locks = self.shared.file_locks.waits_for(id);
            let waits = locks + self.shared.sharing.awaited_from(id);
            (waits > 0).then_some(SilentHolder { client: session.client(), silent, waits })
        });
        holders.take(MAX_HOLDERS).collect()
    }
}

/// The figures about silent clients of one target.
#[derive(Debug)]
pub(crate) struct SilentHolders {
    target: TargetId,
    /// The target's thread writes, the thread of a snapshot reads. Neither waits: the writer skips
    /// an update while the list is being read.
    list: Mutex<Vec<SilentHolder>>,
}

impl SilentHolders {
    pub(crate) fn new(target: TargetId) -> Arc<Self> {
        Arc::new(Self { target, list: Mutex::default() })
    }

    /// Replaces the list.
    pub(crate) fn set(&self, holders: Vec<SilentHolder>) {
        match self.list.try_lock() {
            Ok(mut list) => *list = holders,
            Err(TryLockError::Poisoned(poisoned)) => *poisoned.into_inner() = holders,
            // A snapshot reads the list. The next update follows soon.
            Err(TryLockError::WouldBlock) => {}
        }
    }
}

impl Source for SilentHolders {
    fn collect(&self, snapshot: &mut Snapshot) {
        let list = self.list.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        for holder in list {
            let labels = vec![
                ("target", self.target.raw().to_string()),
                ("client", holder.client.raw().to_string()),
            ];
            let silent_ns = i64::try_from(holder.silent.as_nanos()).unwrap_or(i64::MAX);
            snapshot.number(&catalog::CLIENT_SILENT, labels.clone(), silent_ns);
            let waits = i64::try_from(holder.waits).unwrap_or(i64::MAX);
            snapshot.number(&catalog::CLIENT_WAITS, labels, waits);
        }
    }
}
