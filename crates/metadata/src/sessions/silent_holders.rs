//! Silent clients. A client is silent if it has sent no request for some time while requests of
//! other clients wait for it. These requests wait for a lock that the silent client holds, or for
//! its acknowledgement that a file becomes shared.
//!
//! This module owns the search for these clients, and the metrics about them. The module
//! `sessions::lifetime` ends the waits: if a client sends no request for a whole lease, the target
//! asks management to remove the client.

use crate::engine::Engine;
use crate::target::MetadataTarget;
use skep_metrics::{Snapshot, Source, catalog};
use skep_types::{NodeId, SessionId, TargetId};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::Duration;

/// Maximum number of clients in the metrics. If more clients are silent at the same time, the
/// network has probably failed.
const MAX_HOLDERS: usize = 16;
/// A client counts as silent if it has sent no request for 1/`SILENT_PART` of its lease. A working
/// client renews its session several times in each lease.
const SILENT_PART: u32 = 2;

/// The silent clients that a search has found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FoundHolders {
    pub(crate) holders: Vec<SilentHolder>,
    /// Number of waits for locks that the search has not examined. The search is bounded, since the
    /// target's thread handles no requests meanwhile.
    pub(crate) unexamined: usize,
}

/// A silent client that blocks waiting requests of other clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SilentHolder {
    pub(crate) client: NodeId,
    /// Time since the client's last request.
    pub(crate) silent: Duration,
    /// Number of lock requests and opens of other clients that wait for this client.
    pub(crate) waits: usize,
}

impl<E: Engine> MetadataTarget<E> {
    /// Returns at most [`MAX_HOLDERS`] silent clients that block requests of other clients. The
    /// search takes a bounded time, because it visits each session once, and examines a bounded
    /// number of waits and locks.
    pub(crate) fn silent_holders(&self) -> FoundHolders {
        let is_idle = self.shared.file_locks.wait_count() == 0 && !self.shared.sharing.is_waiting();
        if is_idle {
            return FoundHolders::default();
        }
        let now = self.shared.now;
        let sessions = self.sessions.after(SessionId::default());
        let silent: Vec<_> = sessions
            .map(|(id, session)| (id, session, now.saturating_sub(session.renewed_at)))
            .filter(|(_, session, silent)| *silent * SILENT_PART > session.lease)
            .collect();
        if silent.is_empty() {
            return FoundHolders::default();
        }
        let (locks, unexamined) = self.shared.file_locks.waits_by_holder();
        let holders = silent.into_iter().filter_map(|(id, session, silent)| {
            let locks = locks.get(&id).copied().unwrap_or_default();
            let waits = locks + self.shared.sharing.awaited_from(id);
            (waits > 0).then_some(SilentHolder { client: session.client(), silent, waits })
        });
        FoundHolders { holders: holders.take(MAX_HOLDERS).collect(), unexamined }
    }
}

/// The metrics of one target about silent clients.
#[derive(Debug)]
pub(crate) struct SilentHolders {
    target: TargetId,
    /// The target's thread writes the list, and the thread that takes a snapshot of the metrics
    /// reads it. The target's thread never waits for this mutex: while the other thread reads the
    /// list, the target's thread skips the update.
    list: Mutex<FoundHolders>,
}

impl SilentHolders {
    pub(crate) fn new(target: TargetId) -> Arc<Self> {
        Arc::new(Self { target, list: Mutex::default() })
    }

    /// Replaces the list of silent clients.
    pub(crate) fn set(&self, found: FoundHolders) {
        match self.list.try_lock() {
            Ok(mut list) => *list = found,
            Err(TryLockError::Poisoned(poisoned)) => *poisoned.into_inner() = found,
            // The list is being read for a snapshot. Skip this update, because the next update
            // follows soon.
            Err(TryLockError::WouldBlock) => {}
        }
    }
}

impl Source for SilentHolders {
    fn collect(&self, snapshot: &mut Snapshot) {
        let found = self.list.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        let unexamined = i64::try_from(found.unexamined).unwrap_or(i64::MAX);
        let target = vec![("target", self.target.raw().to_string())];
        snapshot.number(&catalog::WAITS_UNEXAMINED, target, unexamined);
        for holder in found.holders {
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
