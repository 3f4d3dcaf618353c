//! The waiting requests of a mount: programs have sent them, and the mount has not replied yet. A
//! program requests this list by an extended attribute (`skep why`).
//!
//! Owns the list of each worker's requests in flight, and of the targets that have accepted
//! requests of the worker but do not reply. Each worker replaces its list when it checks its
//! requests. Owns the encoded reply, and the rule that decides which requests a user may see: the
//! user's own requests, or all requests for root. `worker.rs` owns the checks, and
//! `skep_client::failing_groups` the list of groups that accept no requests.

use skep_types::codec::record;
use skep_types::{ClusterMap, InodeId, TargetId};
use skep_wire::management::RequestWait;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Maximum number of requests in a reply. The kernel limits the value of an attribute to 64 KiB.
const MAX_LISTED: usize = 200;
/// Maximum number of groups in a reply that have accepted requests and do not reply. An
/// administrator would not read a longer list.
const MAX_SILENT: usize = 16;
/// The error of a group whose target has accepted requests and does not reply.
const SILENT: &str = "the target has accepted the request, and has not replied";

record! {
    /// A program's request to which the mount has not replied yet.
    pub struct WaitingRequest {
        /// Name of the operation, such as `open`.
        pub operation: String,
        /// The inode of the request.
        pub inode: InodeId,
        /// The process that waits. Zero for a process of another container.
        pub pid: u32,
        /// Time since a check of the mount first found the request, in milliseconds.
        pub for_ms: u64,
        /// Whether the request waits for a lock of another program.
        pub is_for_lock: bool,
    }
}

record! {
    /// A user's requests to which the mount has not replied.
    #[derive(Default)]
    pub struct WaitingRequests {
        /// The requests, the oldest first; at most 200.
        pub requests: Vec<WaitingRequest>,
        /// Number of all waiting requests, listed or not.
        pub count: u64,
        /// The groups that do not answer requests of this mount. The groups that accept no requests
        /// come first, the longest outage first. The groups that have accepted requests without a
        /// reply follow.
        pub groups: Vec<RequestWait>,
    }
}

/// A request in flight, as a worker reports it.
#[derive(Debug, Clone)]
pub(crate) struct Waiter {
    pub(crate) operation: String,
    pub(crate) inode: InodeId,
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    /// Time of the first check that found the request.
    pub(crate) since: Duration,
    pub(crate) is_for_lock: bool,
}

/// The requests in flight of one worker.
#[derive(Debug)]
struct WorkerReport {
    waiters: Vec<Waiter>,
    /// The targets that have accepted requests of the worker and do not reply.
    silent: Vec<TargetId>,
}

#[derive(Debug, Default)]
struct Reports {
    last_worker: u64,
    by_worker: BTreeMap<u64, WorkerReport>,
}

impl Reports {
    /// Returns the groups that have accepted requests and do not reply, each with the requests of
    /// all workers that wait for the group. Leaves out requests that wait for locks.
    fn silent_groups(&self, map: &ClusterMap, now: Duration) -> Vec<RequestWait> {
        let mut found: BTreeMap<_, RequestWait> = BTreeMap::new();
        for WorkerReport { waiters, silent } in self.by_worker.values() {
            let waiting = waiters.iter().filter(|it| !it.is_for_lock);
            let Some(oldest) = waiting.clone().map(|it| it.since).min() else { continue };
            let requests = u32::try_from(waiting.count()).unwrap_or(u32::MAX);
            for group in silent.iter().filter_map(|target| map.group_of(*target)) {
                let wait = found.entry(group.id).or_insert_with(|| RequestWait {
                    group: group.id,
                    since_ms: 0,
                    requests: 0,
                    error: SILENT.to_owned(),
                });
                wait.since_ms = wait.since_ms.max(milliseconds(now.saturating_sub(oldest)));
                wait.requests = wait.requests.saturating_add(requests);
            }
        }
        found.into_values().take(MAX_SILENT).collect()
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The requests in flight of all workers of a mount.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// The mutex protects only the reports. Workers take it at their checks while requests wait.
    reports: Mutex<Reports>,
}

impl Waiting {
    fn reports(&self) -> MutexGuard<'_, Reports> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the id of a new worker, which the worker uses in its reports.
    pub(crate) fn new_worker(&self) -> u64 {
        let mut reports = self.reports();
        reports.last_worker += 1;
        reports.last_worker
    }

    /// Replaces the list of a worker's requests in flight. `silent` has the targets that have
    /// accepted requests of the worker and do not reply.
    pub(crate) fn set(&self, worker: u64, waiters: Vec<Waiter>, silent: Vec<TargetId>) {
        let mut reports = self.reports();
        match waiters.is_empty() {
            true => reports.by_worker.remove(&worker),
            false => reports.by_worker.insert(worker, WorkerReport { waiters, silent }),
        };
    }

    /// Returns the requests that a program of the user `uid` may see. `groups` are the groups that
    /// accept no requests.
    pub(crate) fn answer(
        &self,
        uid: u32,
        mut groups: Vec<RequestWait>,
        map: &ClusterMap,
        now: Duration,
    ) -> WaitingRequests {
        let reports = self.reports();
        let mut silent = reports.silent_groups(map, now);
        silent.retain(|wait| groups.iter().all(|known| known.group != wait.group));
        groups.append(&mut silent);
        let all = reports.by_worker.values().flat_map(|report| &report.waiters);
        let mut seen: Vec<&Waiter> = all.filter(|it| uid == 0 || it.uid == uid).collect();
        seen.sort_by_key(|it| it.since);
        let to_request = |it: &&Waiter| WaitingRequest {
            operation: it.operation.clone(),
            inode: it.inode,
            pid: it.pid,
            for_ms: milliseconds(now.saturating_sub(it.since)),
            is_for_lock: it.is_for_lock,
        };
        WaitingRequests {
            requests: seen.iter().take(MAX_LISTED).map(to_request).collect(),
            count: seen.len() as u64,
            groups,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{ClusterId, Group, GroupId, TargetKind};

    fn map() -> ClusterMap {
        let mut map = ClusterMap::empty(ClusterId::default());
        map.groups = vec![Group::of_one(GroupId::new(6), TargetKind::Storage, TargetId::new(7))];
        map
    }

    fn waiter(uid: u32, second: u64) -> Waiter {
        Waiter {
            operation: "open".into(),
            inode: InodeId::new(9),
            pid: 7,
            uid,
            since: Duration::from_secs(second),
            is_for_lock: false,
        }
    }

    #[test]
    fn users_see_their_own_waiting_requests_and_root_sees_all() {
        let waiting = Waiting::default();
        let (one, two) = (waiting.new_worker(), waiting.new_worker());
        waiting.set(one, vec![waiter(1000, 20), waiter(1001, 10)], Vec::new());
        waiting.set(two, vec![waiter(1000, 15)], Vec::new());
        let ages = |uid| {
            let answer = waiting.answer(uid, Vec::new(), &map(), Duration::from_secs(21));
            answer.requests.iter().map(|it| it.for_ms / 1000).collect::<Vec<_>>()
        };
        assert_eq!(ages(1000), [6, 1]);
        assert_eq!(ages(0), [11, 6, 1]);
        assert_eq!(ages(2000), Vec::<u64>::new());
        waiting.set(one, Vec::new(), Vec::new());
        assert_eq!(ages(0), [6]);
    }

    #[test]
    fn target_that_accepted_a_request_and_does_not_reply_is_named() {
        let (waiting, now) = (Waiting::default(), Duration::from_secs(21));
        let silent = vec![TargetId::new(7), TargetId::new(70)];
        let lock = Waiter { is_for_lock: true, ..waiter(1000, 5) };
        waiting.set(waiting.new_worker(), vec![waiter(1000, 20), lock.clone()], silent.clone());
        let groups = |known| waiting.answer(1000, known, &map(), now).groups;
        let found = groups(Vec::new());
        let [wait] = &found[..] else { panic!("{found:?}") };
        assert_eq!((wait.group.raw(), wait.since_ms, wait.requests), (6, 1000, 1));
        assert_eq!(wait.error, SILENT);
        let refused = RequestWait { error: "refused".into(), ..wait.clone() };
        assert_eq!(groups(vec![refused.clone()]), [refused], "each group appears once");
        let locks = Waiting::default();
        locks.set(locks.new_worker(), vec![lock], silent);
        assert!(locks.answer(0, Vec::new(), &map(), now).groups.is_empty());
    }

    #[test]
    fn list_of_waiting_requests_is_bounded() {
        let waiting = Waiting::default();
        waiting.set(waiting.new_worker(), vec![waiter(0, 1); MAX_LISTED + 5], Vec::new());
        let answer = waiting.answer(0, Vec::new(), &map(), Duration::from_secs(2));
        assert_eq!((answer.requests.len(), answer.count), (MAX_LISTED, MAX_LISTED as u64 + 5));
    }
}
