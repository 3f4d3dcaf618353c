//! The lifetime of sessions: the target loads them when it starts, clients renew them, and they
//! expire or end.

use crate::engine::Engine;
use crate::limits::LONGEST_WAIT;
use crate::sessions::table::SilentClients;
use crate::sharing::table::PollReply;
use crate::target::MetadataTarget;
use crate::tx::work::InternalWork;
use skep_cluster::limits::MAX_LEASE_MS;
use skep_format::metadata::{Key, SessionRecord, decode_value, expect_parsed, last_u64};
use skep_types::{Error, ErrorCode, Result, SessionId};
use skep_wire::metadata::KeepAliveReply;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

impl<E: Engine> MetadataTarget<E> {
    pub(crate) fn load_sessions(&mut self) -> Result<()> {
        let ends = self.table.scan(&Key::session_ends(), &[], usize::MAX)?;
        let session_of = |key: &[u8]| expect_parsed(key, last_u64(key).map(SessionId::new));
        let ended = ends.iter().map(|(key, _)| session_of(key)).collect::<Result<BTreeSet<_>>>()?;
        let (lease, now) = (self.lease(), self.shared.now);
        for (key, value) in self.table.scan(&Key::sessions(), &[], usize::MAX)? {
            let record: SessionRecord = decode_value(&key, &value)?;
            let session = session_of(&key)?;
            if ended.contains(&session) {
                self.add_ended_session(session);
            } else {
                self.sessions.load(session, &record, lease, now);
            }
        }
        Ok(())
    }

    pub(super) fn lease(&self) -> Duration {
        Duration::from_millis(u64::from(self.shared.map.policy.lease_ms))
    }

    /// Handles `KeepAlive`. Sets the lease of the session to the longer one of the cluster's lease
    /// and `client_lease_ms`, the lease that the client uses now. The reply contains the lease that
    /// the client must use from now on.
    pub(crate) fn keep_alive(
        &mut self,
        session: SessionId,
        client_lease_ms: u32,
    ) -> KeepAliveReply {
        let lease_ms = self.shared.map.policy.lease_ms;
        self.sessions.set_lease(session, lease_ms.max(client_lease_ms.min(MAX_LEASE_MS)));
        KeepAliveReply { lease_ms, start: self.shared.starts.current().unwrap_or(0) }
    }

    /// Restarts all leases, and the patience of the replay window, if the target's process or host
    /// was stopped for more than a quarter of a lease. Without a restart of the leases, sessions
    /// would end although their clients have sent renewals, which the target has not read yet.
    /// Shorter pauses do not matter, since clients renew several times per lease.
    pub(crate) fn restart_leases_after_pause(&mut self, now: Duration) {
        // The subtraction saturates, because the first batch may have the same time as the start.
        let pause = now.saturating_sub(self.shared.now);
        if pause > (self.lease() / 4).max(2 * LONGEST_WAIT) {
            tracing::warn!(
                "target {}: the process or host of this target did not run for {:.1} s; the leases \
                 of all clients begin again",
                self.target,
                pause.as_secs_f64()
            );
            self.sessions.restart_leases(now);
            self.sessions.replay.restart_patience(now);
        }
    }

    /// Expires the sessions that were not renewed for the time of a lease, and asks management to
    /// remove their clients from the cluster map. The target repeats this request until a map
    /// without the client arrives. Until then, it releases none of the client's locks and opens
    /// (docs/design/0006-fencing.md).
    ///
    /// If many clients are silent at the same time, the network of this target has probably failed.
    /// Management does not remove clients whose heartbeats it receives, so the sessions of these
    /// clients continue.
    pub(crate) fn expire_sessions(&mut self) {
        let lease = self.lease();
        let SilentClients { expired, doubtful } =
            self.sessions.expire(self.target, self.shared.now, lease);
        for client in expired {
            self.evict(client, false);
        }
        for client in doubtful {
            self.evict(client, true);
        }
    }

    /// Ends the sessions of clients that management has removed from the cluster map.
    pub(crate) fn end_sessions_of_removed(&mut self) {
        let map = Arc::clone(&self.shared.map);
        let removed = self.sessions.of_removed(&map);
        if !removed.is_empty() {
            self.raise_fence(map.version);
        }
        for session in removed {
            self.end_session(session);
        }
    }

    /// Ends a session. From now on, the target refuses requests of the session. A background job
    /// closes the files of the session in several small transactions.
    pub(crate) fn end_session(&mut self, session: SessionId) {
        if !self.sessions.remove(session) {
            return;
        }
        self.end_replay(session);
        for (connection, header) in self.shared.file_locks.end_waits_of(session) {
            let what = format!("cannot wait for the lock: session {session} has ended");
            self.refuse(connection, header, Error::new(ErrorCode::StaleSession, what));
        }
        if let Some(PollReply { connection, header, .. }) = self.shared.sharing.end_poll(session) {
            let what = format!("cannot wait for notifications: session {session} has ended");
            self.refuse(connection, header, Error::new(ErrorCode::StaleSession, what));
        }
        self.start_internal(InternalWork::RecordSessionEnd(session));
    }
}
