//! Logs outages of peers. A log line names the peer, the time without an answer, and the number of
//! requests that wait for the peer. Another line reports the end of the outage.
//!
//! Owns the list of the groups to which requests fail. All threads of the process share the list,
//! so that each outage has one line at its start and one at its end. Does not own the retries
//! ([`crate::routing`]).

use crate::unanswered;
use skep_types::{Error, GroupId};
use skep_wire::limits::MAX_REPORTED_WAITS;
use skep_wire::limits::MAX_WAIT_ERROR_CHARS;
use skep_wire::management::RequestWait;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time for which requests must fail before the process logs an outage. It does not log shorter
/// outages, such as a restart of a service.
const WORTH_A_LINE: Duration = Duration::from_secs(5);

/// Time for which heartbeats must fail before the process logs an outage of management. A restart
/// of management, or the election of another leader, is shorter.
const MANAGEMENT_WORTH_A_LINE: Duration = Duration::from_secs(3);

/// The groups whose requests fail. The mutex protects only this map.
static FAILING: Mutex<BTreeMap<GroupId, Outage>> = Mutex::new(BTreeMap::new());
/// Number of entries in [`FAILING`], so that a reply takes no lock while no request fails.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// An outage of a group.
#[derive(Debug)]
struct Outage {
    /// Time of the first failure of a request to the group.
    since: Duration,
    /// Number of requests to the group that are being retried.
    waiting: usize,
    is_logged: bool,
    /// The error of the last attempt.
    error: String,
}

fn failing() -> MutexGuard<'static, BTreeMap<GroupId, Outage>> {
    FAILING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request that the router retries until its group answers. When this value is dropped, the
/// request no longer counts as waiting.
#[derive(Debug, Default)]
pub(crate) struct RepeatedRequest {
    /// The group to whose outage this request belongs. `None` while no attempt has failed.
    group: Option<GroupId>,
}

impl RepeatedRequest {
    /// Handles a failed attempt to send the request. Logs the outage as soon as it has lasted for
    /// [`WORTH_A_LINE`].
    pub(crate) fn failed(&mut self, group: GroupId, error: &Error, now: Duration) {
        let mut failing = failing();
        if self.group != Some(group) {
            self.leave(&mut failing);
            let new = Outage { since: now, waiting: 0, is_logged: false, error: String::new() };
            failing.entry(group).or_insert(new).waiting += 1;
            self.group = Some(group);
        }
        if let Some(outage) = failing.get_mut(&group) {
            outage.error = error.to_string();
        }
        if let Some(outage) = failing.get_mut(&group)
            && !outage.is_logged
            && now.saturating_sub(outage.since) >= WORTH_A_LINE
        {
            outage.is_logged = true;
            let waiting = match outage.waiting {
                1 => "1 request waits".to_owned(),
                count => format!("{count} requests wait"),
            };
            let seconds = (now - outage.since).as_secs();
            tracing::warn!(
                "group {group} has not answered for {seconds} s: {error}; {waiting}, and will \
                 continue when the group answers"
            );
        }
        COUNT.store(failing.len(), Ordering::Relaxed);
    }

    /// Removes this request from the outage that counts it. Removes the outage too if it counts no
    /// other request and was not logged.
    fn leave(&mut self, failing: &mut BTreeMap<GroupId, Outage>) {
        let Some(group) = self.group.take() else { return };
        if let Some(outage) = failing.get_mut(&group) {
            outage.waiting = outage.waiting.saturating_sub(1);
            if outage.waiting == 0 && !outage.is_logged {
                failing.remove(&group);
            }
        }
    }
}

impl Drop for RepeatedRequest {
    fn drop(&mut self) {
        if self.group.is_some() {
            let mut failing = failing();
            self.leave(&mut failing);
            COUNT.store(failing.len(), Ordering::Relaxed);
        }
    }
}

/// Returns the groups for which requests have waited longer than [`WORTH_A_LINE`], for a report to
/// management. If there is no such group, returns the requests that servers have accepted and do
/// not answer.
pub(crate) fn waits(now: Duration) -> Vec<RequestWait> {
    let failing = failing_waits(now);
    match failing.is_empty() {
        true => unanswered::wait(now).into_iter().collect(),
        false => failing,
    }
}

/// Returns the groups that do not answer requests of this process, the longest outage first.
pub fn failing_groups(now: Duration) -> Vec<RequestWait> {
    let mut waits = waits_longer_than(Duration::ZERO, now);
    waits.sort_by_key(|wait| std::cmp::Reverse(wait.since_ms));
    waits
}

fn failing_waits(now: Duration) -> Vec<RequestWait> {
    waits_longer_than(WORTH_A_LINE, now)
}

fn waits_longer_than(least: Duration, now: Duration) -> Vec<RequestWait> {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return Vec::new();
    }
    let failing = failing();
    let age = |outage: &Outage| now.saturating_sub(outage.since);
    let is_long = |(_, outage): &(&GroupId, &Outage)| outage.waiting > 0 && age(outage) >= least;
    let wait = |(group, outage): (&GroupId, &Outage)| RequestWait {
        group: *group,
        since_ms: u64::try_from(age(outage).as_millis()).unwrap_or(u64::MAX),
        requests: u32::try_from(outage.waiting).unwrap_or(u32::MAX),
        error: outage.error.chars().take(MAX_WAIT_ERROR_CHARS).collect(),
    };
    failing.iter().filter(is_long).take(MAX_REPORTED_WAITS).map(wait).collect()
}

/// Ends the outage of a group. Returns the outage if its start was logged.
fn end(group: GroupId) -> Option<Outage> {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let mut failing = failing();
    let ended = failing.remove(&group);
    COUNT.store(failing.len(), Ordering::Relaxed);
    ended.filter(|outage| outage.is_logged)
}

/// Handles a final reply of a group. Logs the end of the group's outage if its start was logged.
pub(crate) fn answered(group: GroupId, now: impl FnOnce() -> Duration) {
    if let Some(outage) = end(group) {
        let seconds = now().saturating_sub(outage.since).as_secs_f64();
        tracing::info!("group {group} answers again after {seconds:.1} s");
    }
}

/// Ends the outage of a group whose target an administrator has marked as lost, because the group
/// will not answer any more.
pub(crate) fn given_up(group: GroupId) {
    if end(group).is_some() {
        tracing::info!(
            "no request waits for group {group} any more, since its target was marked as lost"
        );
    }
}

/// An outage of management, as one node sees it.
#[derive(Debug, Default)]
pub(crate) struct ManagementOutage {
    /// Time of the first failure since the last reply.
    since: Option<Duration>,
    is_logged: bool,
}

impl ManagementOutage {
    /// Records a failed heartbeat. Logs the outage once it lasts long enough.
    pub(crate) fn failed(&mut self, error: &Error) {
        if let Some(silent) = self.is_due(skep_env::now()) {
            tracing::warn!(
                "lost contact with management for {:.1} s; I/O to servers that answer continues, \
                 and this node retries: {error}",
                silent.as_secs_f64()
            );
        }
    }

    /// Records a failure at `now`. Returns the length of the outage if its log line is due.
    fn is_due(&mut self, now: Duration) -> Option<Duration> {
        let silent = now.saturating_sub(*self.since.get_or_insert(now));
        let is_due = silent >= MANAGEMENT_WORTH_A_LINE && !self.is_logged;
        self.is_logged |= is_due;
        is_due.then_some(silent)
    }

    /// Records a reply of management. Logs the end of an outage whose start was logged.
    pub(crate) fn answered(&mut self) {
        let since = self.since.take();
        if let Some(since) = since.filter(|_| std::mem::take(&mut self.is_logged)) {
            let seconds = skep_env::now().saturating_sub(since).as_secs_f64();
            tracing::info!("management answers again after {seconds:.1} s");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::ErrorCode;

    #[test]
    fn short_outage_of_management_is_not_logged() {
        let mut outage = ManagementOutage::default();
        let at = Duration::from_secs;
        assert_eq!((outage.is_due(at(10)), outage.is_due(at(11))), (None, None));
        outage.answered();
        assert_eq!((outage.is_due(at(12)), outage.is_due(at(14))), (None, None));
        assert_eq!(outage.is_due(at(15)), Some(at(3)));
        assert_eq!(outage.is_due(at(16)), None);
    }

    fn logged(group: GroupId) -> Option<(usize, bool)> {
        failing().get(&group).map(|outage| (outage.waiting, outage.is_logged))
    }

    #[test]
    fn outage_of_a_group_is_logged_once_and_ends_with_a_reply() {
        let (group, error) = (GroupId::new(901), Error::new(ErrorCode::Disconnected, "refused"));
        let at = Duration::from_secs;
        let (mut one, mut two) = (RepeatedRequest::default(), RepeatedRequest::default());
        one.failed(group, &error, at(100));
        two.failed(group, &error, at(101));
        two.failed(group, &error, at(104));
        assert_eq!(logged(group), Some((2, false)));
        one.failed(group, &error, at(105));
        assert_eq!(logged(group), Some((2, true)));
        drop((one, two));
        // The end of the outage is logged too, even if the programs that waited were killed.
        assert_eq!(logged(group), Some((0, true)));
        answered(group, || at(133));
        assert_eq!(logged(group), None);
    }

    #[test]
    fn outage_of_a_group_ends_when_its_target_is_marked_as_lost() {
        let (group, error) = (GroupId::new(903), Error::new(ErrorCode::Disconnected, "refused"));
        let mut request = RepeatedRequest::default();
        request.failed(group, &error, Duration::from_secs(100));
        request.failed(group, &error, Duration::from_secs(106));
        assert_eq!(logged(group), Some((1, true)));
        given_up(group);
        drop(request);
        assert_eq!(logged(group), None);
    }

    #[test]
    fn short_outage_of_a_group_is_not_logged() {
        let (group, error) = (GroupId::new(902), Error::new(ErrorCode::Disconnected, "refused"));
        let mut request = RepeatedRequest::default();
        request.failed(group, &error, Duration::from_secs(100));
        drop(request);
        assert_eq!(logged(group), None);
    }
}
