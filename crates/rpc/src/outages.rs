//! Logs outages of peers. A log line names the peer, the time without an answer, and the number of
//! requests that wait for the peer. Another line reports the end of the outage.
//!
//! This module is responsible for the list of the groups to which requests fail. All threads of the
//! process share the list, so that each outage has one line at its start and one at its end. This
//! module is not responsible for the retries ([`crate::routing`]).

use crate::unanswered;
use skep_types::{Error, GroupId, utc};
use skep_wire::limits::MAX_REPORTED_WAITS;
use skep_wire::limits::MAX_WAIT_ERROR_CHARS;
use skep_wire::management::RequestWait;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time for which requests must fail before the process logs an outage. The process does not log
/// shorter outages, such as a restart of a service.
const WORTH_A_LINE: Duration = Duration::from_secs(5);

/// Time for which heartbeats must fail before the process logs an outage of management. A restart
/// of management, or the election of another leader, takes less than this time.
const MANAGEMENT_WORTH_A_LINE: Duration = Duration::from_secs(3);

/// The groups whose requests fail. The mutex protects only this map.
static FAILING: Mutex<BTreeMap<GroupId, Outage>> = Mutex::new(BTreeMap::new());
/// Number of entries in [`FAILING`], so that a reply takes no lock while no request fails.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// An outage of a group.
#[derive(Debug)]
struct Outage {
    /// Time at which this process sent the first failed request. The process notices the loss of a
    /// host only some seconds after the loss, so the time of the first failure would be too late.
    since: Duration,
    /// Time of the first failure of a request to the group.
    failing_since: Duration,
    /// Number of requests to the group that are being retried.
    waiting: usize,
    is_logged: bool,
    /// The error of the last request to the group.
    error: String,
}

fn failing() -> MutexGuard<'static, BTreeMap<GroupId, Outage>> {
    FAILING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request that the router retries until its group answers. When this value is dropped, the
/// request no longer counts as waiting.
#[derive(Debug)]
pub(crate) struct RepeatedRequest {
    /// The group to whose outage this request belongs. `None` while no attempt has failed.
    group: Option<GroupId>,
    /// Time of the first attempt to send the request to the group.
    began: Duration,
}

impl RepeatedRequest {
    /// Creates the record of a request whose first attempt begins at `began`.
    pub(crate) const fn new(began: Duration) -> Self {
        Self { group: None, began }
    }

    /// Handles a failed attempt to send the request. Logs the outage as soon as it has lasted for
    /// [`WORTH_A_LINE`].
    pub(crate) fn failed(&mut self, group: GroupId, error: &Error, now: Duration) {
        // All threads share the table, so format the error before the thread takes the lock.
        let text = error.to_string();
        let mut failing = failing();
        if self.group != Some(group) {
            if self.group.is_some() {
                // The request waited for another group until now, so its wait for `group` begins
                // now.
                self.began = now;
            }
            self.leave(&mut failing);
            let new = Outage {
                since: self.began,
                failing_since: now,
                waiting: 0,
                is_logged: false,
                error: String::new(),
            };
            let outage = failing.entry(group).or_insert(new);
            outage.waiting += 1;
            outage.since = outage.since.min(self.began);
            self.group = Some(group);
        }
        if let Some(outage) = failing.get_mut(&group) {
            outage.error = text;
        }
        if let Some(outage) = failing.get_mut(&group)
            && !outage.is_logged
            && now.saturating_sub(outage.failing_since) >= WORTH_A_LINE
        {
            outage.is_logged = true;
            let waiting = match outage.waiting {
                1 => "1 request waits".to_owned(),
                count => format!("{count} requests wait"),
            };
            let silent = now.saturating_sub(outage.since);
            tracing::warn!(
                "group {group} has not answered for {} s, since {}: {error}; {waiting}, and will \
                 continue when the group answers",
                silent.as_secs(),
                time_before(silent)
            );
        }
        COUNT.store(failing.len(), Ordering::Relaxed);
    }

    /// Removes this request from the outage that counts it. Also removes an outage that counts no
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
    let is_long = |(_, outage): &(&GroupId, &Outage)| {
        outage.waiting > 0 && now.saturating_sub(outage.failing_since) >= least
    };
    let wait = |(group, outage): (&GroupId, &Outage)| RequestWait {
        group: *group,
        since_ms: u64::try_from(age(outage).as_millis()).unwrap_or(u64::MAX),
        requests: u32::try_from(outage.waiting).unwrap_or(u32::MAX),
        error: outage.error.chars().take(MAX_WAIT_ERROR_CHARS).collect(),
    };
    failing.iter().filter(is_long).take(MAX_REPORTED_WAITS).map(wait).collect()
}

/// Returns the date and time `span` before now, for a line of the log.
fn time_before(span: Duration) -> String {
    let mut time = skep_env::wall_time();
    time.seconds -= i64::try_from(span.as_secs()).unwrap_or_default();
    utc(time)
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

/// Handles the reply of a group after which the router does not repeat the request. Logs the end of
/// the group's outage if its start was logged.
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

/// An outage of management, as one node observes the outage.
#[derive(Debug, Default)]
pub(crate) struct ManagementOutage {
    /// Time of the first failure since the last reply.
    since: Option<Duration>,
    /// Time of the last reply. `None` before the first reply.
    last_reply: Option<Duration>,
    is_logged: bool,
}

impl ManagementOutage {
    /// Records a failed heartbeat. Logs the outage when it has lasted for
    /// [`MANAGEMENT_WORTH_A_LINE`].
    pub(crate) fn failed(&mut self, error: &Error) {
        if let Some(silent) = self.is_due(skep_env::now()) {
            tracing::warn!(
                "lost contact with management for {:.1} s, since {}; I/O to servers that answer \
                 continues, and this node retries: {error}",
                silent.as_secs_f64(),
                time_before(silent)
            );
        }
    }

    /// Records a failure at `now`. Returns the time since the last reply if the log line of the
    /// outage is due.
    fn is_due(&mut self, now: Duration) -> Option<Duration> {
        let failing_since = *self.since.get_or_insert(now);
        let failing = now.saturating_sub(failing_since);
        let is_due = failing >= MANAGEMENT_WORTH_A_LINE && !self.is_logged;
        self.is_logged |= is_due;
        is_due.then(|| now.saturating_sub(self.last_reply.unwrap_or(failing_since)))
    }

    /// Records a reply of management. Logs the end of an outage whose start was logged.
    pub(crate) fn answered(&mut self) {
        if let Some(silent) = self.end(skep_env::now()) {
            let seconds = silent.as_secs_f64();
            tracing::info!("management answers again after {seconds:.1} s");
        }
    }

    /// Records a reply at `now`. Returns the time since the previous reply if this reply ends an
    /// outage whose start was logged.
    fn end(&mut self, now: Duration) -> Option<Duration> {
        let failing_since = self.since.take();
        let last_reply = self.last_reply.replace(now);
        let ended = failing_since.filter(|_| std::mem::take(&mut self.is_logged));
        ended.map(|since| now.saturating_sub(last_reply.unwrap_or(since)))
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
        assert_eq!(outage.end(at(11)), None);
        assert_eq!((outage.is_due(at(12)), outage.is_due(at(14))), (None, None));
        assert_eq!(outage.is_due(at(15)), Some(at(4)), "the last reply came at 11 s");
        assert_eq!(outage.is_due(at(16)), None);
        assert_eq!(outage.end(at(20)), Some(at(9)));
        assert_eq!(outage.end(at(21)), None);
    }

    #[test]
    fn time_of_an_outage_counts_from_the_first_unanswered_request() {
        let (group, error) = (GroupId::new(904), Error::new(ErrorCode::Disconnected, "silent"));
        let at = Duration::from_secs;
        // The request was sent at 100 s, and the loss of the host was noticed at 111 s.
        let mut request = RepeatedRequest::new(at(100));
        request.failed(group, &error, at(111));
        request.failed(group, &error, at(115));
        assert_eq!(logged(group), Some((1, false)));
        request.failed(group, &error, at(116));
        assert_eq!(logged(group), Some((1, true)));
        let wait = failing_groups(at(120)).into_iter().find(|wait| wait.group == group).unwrap();
        assert_eq!(wait.since_ms, 20_000);
        drop(request);
        let outage = end(group).unwrap();
        assert_eq!(outage.since, at(100));
    }

    fn logged(group: GroupId) -> Option<(usize, bool)> {
        failing().get(&group).map(|outage| (outage.waiting, outage.is_logged))
    }

    #[test]
    fn outage_of_a_group_is_logged_once_and_ends_with_a_reply() {
        let (group, error) = (GroupId::new(901), Error::new(ErrorCode::Disconnected, "refused"));
        let at = Duration::from_secs;
        let (mut one, mut two) = (RepeatedRequest::new(at(100)), RepeatedRequest::new(at(101)));
        one.failed(group, &error, at(100));
        two.failed(group, &error, at(101));
        two.failed(group, &error, at(104));
        assert_eq!(logged(group), Some((2, false)));
        one.failed(group, &error, at(105));
        assert_eq!(logged(group), Some((2, true)));
        drop((one, two));
        // The process also logs the end of the outage, even if the programs that waited were
        // killed.
        assert_eq!(logged(group), Some((0, true)));
        answered(group, || at(133));
        assert_eq!(logged(group), None);
    }

    #[test]
    fn outage_of_a_group_ends_when_its_target_is_marked_as_lost() {
        let (group, error) = (GroupId::new(903), Error::new(ErrorCode::Disconnected, "refused"));
        let mut request = RepeatedRequest::new(Duration::from_secs(100));
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
        let mut request = RepeatedRequest::new(Duration::from_secs(100));
        request.failed(group, &error, Duration::from_secs(100));
        drop(request);
        assert_eq!(logged(group), None);
    }
}
