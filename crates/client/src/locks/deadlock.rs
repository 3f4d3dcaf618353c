//! The search for deadlock cycles of POSIX lock waiters over several metadata targets
//! (docs/design/0005-locks.md). `skep_cluster::deadlock` defines a cycle. At most one task of a
//! mount searches at a time, for all waiters of the mount. The task requests the lock waits of all
//! metadata targets twice, and uses only waits that are in both replies.

use crate::client::Client;
use crate::limits::{DEADLOCK_SEARCH_TIMEOUT, MAX_DEADLOCK_WAITS};
use crate::session::ids::client_of;
use skep_cluster::deadlock::{LockOwner, LockWaits};
use skep_rpc::CallOptions;
use skep_types::{Error, ErrorCode, GroupId, Result};
use skep_wire::file_locks::{ListWaits, LockParty};

impl Client {
    /// Returns whether the wait `wait` of the lock owner `owner` must end with an error to resolve
    /// a deadlock cycle over several metadata targets. Also returns `false` if no search for a
    /// cycle is possible now. The waiter then searches again later.
    pub(crate) async fn must_give_way(&self, owner: u64, wait: u64) -> bool {
        let groups = self.metadata_groups();
        // If there is only one metadata target, it detects all deadlock cycles by itself.
        if groups.len() < 2 {
            return false;
        }
        let waiter = (self.mount().node(), owner);
        let search = &self.mount().deadlock;
        if let Some(waits) = search.recent(skep_env::now())
            && waits.has(waiter, wait)
        {
            return waits.gives_way(waiter, wait);
        }
        let Some(turn) = search.begin() else { return false };
        let began = skep_env::now();
        let looking = skep_env::timeout(DEADLOCK_SEARCH_TIMEOUT, self.steady_waits(&groups));
        match looking.await.unwrap_or_else(|| Err(no_answer())) {
            Ok(waits) => {
                let gives_way = waits.gives_way(waiter, wait);
                turn.finish(began, waits);
                gives_way
            }
            Err(error) => {
                tracing::debug!("cannot search for deadlock cycles: {error:#}");
                false
            }
        }
    }

    async fn steady_waits(&self, groups: &[GroupId]) -> Result<LockWaits> {
        let first = self.lock_waits(groups).await?;
        Ok(first.steady(&self.lock_waits(groups).await?))
    }

    /// Requests the waits for POSIX locks from all metadata targets, up to about
    /// `MAX_DEADLOCK_WAITS`.
    async fn lock_waits(&self, groups: &[GroupId]) -> Result<LockWaits> {
        let mut waits = LockWaits::default();
        for group in groups {
            let mut after = Some(LockParty::default());
            while let Some(request) = after.map(|after| ListWaits { after }) {
                let options = CallOptions { trace: self.next_trace(), ..CallOptions::default() };
                let (page, _) = self.router().call(*group, &request, options).await?;
                for it in page.waits {
                    waits.add(party(it.waiter), it.wait, it.holders.into_iter().map(party));
                }
                after = page.next.filter(|_| waits.len() < MAX_DEADLOCK_WAITS);
            }
        }
        Ok(waits)
    }
}

fn no_answer() -> Error {
    Error::new(ErrorCode::TimedOut, "at least one metadata target does not reply")
}

fn party(it: LockParty) -> LockOwner {
    (client_of(it.session), it.owner)
}
