//! Requests of programs that a mount has not answered for a long time, because a server has
//! accepted a request and does not reply. No attempt to reach the server fails in this case. The
//! heartbeat reports these requests to management, so that `skep health check` names the mount.
//!
//! This module stores the newest reports of the workers of the process. The requests themselves and
//! the outages of groups ([`crate::outages`]) are outside this module. If a group does not answer
//! the process, the heartbeats report the outage of this group in place of the unanswered requests,
//! because the outage names the group.

use skep_types::GroupId;
use skep_wire::limits::MAX_WAIT_ERROR_CHARS;
use skep_wire::management::RequestWait;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The requests that programs have sent to one worker, and that have waited for a long time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unanswered {
    /// Number of requests that wait.
    pub requests: u32,
    /// Time at which the oldest request began.
    pub since: Duration,
    /// Description of the oldest request, for administrators.
    pub oldest: String,
}

/// The newest report of each worker. The mutex protects only this map. A worker locks it at each
/// check while requests wait for a long time, and once when the waits have ended.
static UNANSWERED: Mutex<BTreeMap<u64, Unanswered>> = Mutex::new(BTreeMap::new());

fn reported() -> MutexGuard<'static, BTreeMap<u64, Unanswered>> {
    UNANSWERED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The report of one worker. A drop of this value withdraws the report.
#[derive(Debug)]
pub struct UnansweredReport {
    worker: u64,
    is_set: bool,
}

impl UnansweredReport {
    /// Creates the report of a worker that has no request.
    #[expect(clippy::new_without_default, reason = "each value has a number of its own")]
    pub fn new() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self { worker: LAST.fetch_add(1, Ordering::Relaxed), is_set: false }
    }

    /// Replaces the report. `None` means that no request of the worker has waited for a long time.
    pub fn set(&mut self, unanswered: Option<Unanswered>) {
        let is_set = unanswered.is_some();
        match unanswered {
            Some(unanswered) => drop(reported().insert(self.worker, unanswered)),
            None if self.is_set => drop(reported().remove(&self.worker)),
            None => {}
        }
        self.is_set = is_set;
    }
}

impl Drop for UnansweredReport {
    fn drop(&mut self) {
        self.set(None);
    }
}

/// Returns one record for the waiting requests of all workers. Its group is zero.
pub(crate) fn wait(now: Duration) -> Option<RequestWait> {
    sum(&reported(), now)
}

fn sum(reported: &BTreeMap<u64, Unanswered>, now: Duration) -> Option<RequestWait> {
    let oldest = reported.values().min_by_key(|it| it.since)?;
    let age = now.saturating_sub(oldest.since);
    Some(RequestWait {
        group: GroupId::default(),
        since_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
        requests: reported.values().fold(0, |sum: u32, it| sum.saturating_add(it.requests)),
        error: oldest.oldest.chars().take(MAX_WAIT_ERROR_CHARS).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_wait_of_all_workers_names_the_oldest_request() {
        let of = |requests, second, oldest: &str| Unanswered {
            requests,
            since: Duration::from_secs(second),
            oldest: oldest.into(),
        };
        let mut workers = BTreeMap::from([(0, of(2, 107, "read")), (1, of(1, 104, "fsync"))]);
        let wait = sum(&workers, Duration::from_secs(113)).unwrap();
        assert_eq!((wait.group, wait.since_ms, wait.requests), (GroupId::default(), 9_000, 3));
        assert_eq!(wait.error, "fsync");
        workers.insert(1, of(1, 104, &"x".repeat(10_000)));
        let long = sum(&workers, Duration::from_secs(113)).unwrap();
        assert_eq!(long.error.len(), MAX_WAIT_ERROR_CHARS);
        workers.clear();
        assert_eq!(sum(&workers, Duration::from_secs(113)), None);
    }
}
