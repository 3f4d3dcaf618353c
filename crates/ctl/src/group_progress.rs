//! The progress of the members of metadata groups, from the reports of the primaries of these
//! groups. `skep group status` shows the whole progress. `skep group list` and `skep health check`
//! show how far the members that do not serve are behind.

use crate::access::Access;
use crate::output::{counted, size, span};
use serde::Serialize;
use skep_env::Task;
use skep_rpc::{CallOptions, Channel, MapCell, Router};
use skep_types::map::Consistency;
use skep_types::{ClusterMap, Group, GroupId, MemberState, NodeId, Result, TargetId, TargetKind};
use skep_wire::log_shipping::{AskGroup, CopyProgress, GroupProgress, MemberProgress};
use std::collections::BTreeMap;
use std::time::Duration;

/// Time limit for the reply of a primary.
const PATIENCE: Duration = Duration::from_secs(3);
/// Maximum number of primaries that the command asks at the same time.
const MAX_QUESTIONS: usize = 64;

/// The replies of the primaries of groups.
pub(crate) type Replies = BTreeMap<GroupId, Result<GroupProgress>>;

/// Asks the primaries of `groups` for the progress of their members, several at the same time. The
/// caller must run inside an event loop.
pub(crate) async fn ask(
    access: &Access,
    map: &ClusterMap,
    groups: impl IntoIterator<Item = GroupId>,
) -> Replies {
    let cell = MapCell::new(map.clone(), NodeId::default());
    let router = Router::new(access.identity(), Channel::random(), cell);
    let groups: Vec<GroupId> = groups.into_iter().collect();
    let mut replies = Replies::new();
    for some in groups.chunks(MAX_QUESTIONS) {
        let asking = some.iter().map(|&group| {
            let router = router.clone();
            let reply = skep_env::spawn(async move {
                let options = CallOptions { time_left: Some(PATIENCE), ..CallOptions::default() };
                router.call(group, &AskGroup {}, options).await.map(|(progress, _)| progress)
            });
            (group, reply)
        });
        let asking: Vec<_> = asking.collect();
        for (group, reply) in asking {
            replies.insert(group, reply.await);
        }
    }
    replies
}

/// Returns the progress of a member. `None` means that the primary has no statistics of the member,
/// because the member has not answered the primary.
pub(crate) fn known(progress: &GroupProgress, target: TargetId) -> Option<&MemberProgress> {
    let member = progress.members.iter().find(|it| it.target == target);
    member.filter(|it| it.is_counted || it.silent_ms.is_some() || it.copy.is_some())
}

/// The progress of a copy of the primary's store.
#[derive(Debug, Serialize)]
pub(crate) struct CopyStatus {
    /// Total size of the keys and values that the member has received.
    pub(crate) bytes: u64,
    pub(crate) pairs: u64,
    /// Estimated number of key-value pairs in the whole store.
    pub(crate) total_pairs: u64,
    pub(crate) bytes_per_second: Option<u64>,
    /// Estimated number of seconds until the member has received all pairs.
    pub(crate) seconds_left: Option<u64>,
    /// The reason why the copy does not continue. `None` if the copy continues.
    pub(crate) problem: Option<String>,
}

impl CopyStatus {
    pub(crate) fn of(progress: &CopyProgress) -> Self {
        let CopyProgress { pair_count, total_pairs, pair_bytes, bytes_per_second, .. } = *progress;
        Self {
            bytes: pair_bytes,
            pairs: pair_count,
            total_pairs,
            bytes_per_second,
            seconds_left: progress.seconds_left(),
            problem: Some(progress.problem.clone()).filter(|it| !it.is_empty()),
        }
    }

    /// Returns the progress as a short text.
    pub(crate) fn words(&self) -> String {
        let percent = (self.pairs * 100).checked_div(self.total_pairs).unwrap_or(0).min(99);
        let mut words = format!("{percent} %, {}", size(self.bytes));
        words.push_str(&rate_and_time(self.bytes_per_second, self.seconds_left));
        words
    }
}

/// Returns a rate and the time left as the end of a text. Omits unknown values.
fn rate_and_time(bytes_per_second: Option<u64>, seconds_left: Option<u64>) -> String {
    let mut text = String::new();
    if let Some(rate) = bytes_per_second {
        text.push_str(&format!(", {}/s", size(rate)));
    }
    if let Some(left) = seconds_left {
        text.push_str(&format!(", {} left", span(left.saturating_mul(1000))));
    }
    text
}

/// The data that a member that does not serve lacks, compared with its primary, as JSON.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Lag {
    /// Number of the primary's log records that the member has not appended. `None` means that the
    /// primary does not have this number, or that the member gets a copy of the store.
    records: Option<u64>,
    /// Bytes of these log records, or the estimated bytes of the copy that the member lacks.
    bytes: Option<u64>,
    /// Whether the member gets a copy of the store.
    by_copy: bool,
    /// The rate at which the lag decreases.
    bytes_per_second: Option<u64>,
    /// Estimated number of seconds until the member lacks nothing.
    seconds_left: Option<u64>,
    /// The reason why the lag is unknown, or why the copy does not continue.
    problem: Option<String>,
}

impl Lag {
    fn unknown(problem: String) -> Self {
        Self { problem: Some(problem), ..Self::default() }
    }

    /// Returns the lag as the object of a sentence that begins with "the target lacks".
    pub(crate) fn words(&self) -> String {
        let problem = self.problem.as_deref();
        let mut words = match (self.by_copy, self.bytes, self.records) {
            (true, Some(bytes), _) => format!("about {} of a copy of the store", size(bytes)),
            (true, None, _) => "a copy of the store, which has not begun".to_owned(),
            (false, _, Some(0)) => "no log records any more, and will serve soon".to_owned(),
            (false, bytes, Some(records)) => {
                let bytes = bytes.map_or_else(String::new, |it| format!(" ({})", size(it)));
                format!("{}{bytes}", counted(records, "log record", "log records"))
            }
            (false, _, None) => "an unknown number of log records".to_owned(),
        };
        words.push_str(&rate_and_time(self.bytes_per_second, self.seconds_left));
        match (problem, self.by_copy) {
            (Some(problem), true) => words + "; the copy waits: " + problem,
            (Some(problem), false) => words + ": " + problem,
            (None, _) => words,
        }
    }
}

/// The replies of the primaries of all metadata groups with a member that does not serve, and the
/// time of these replies.
#[derive(Debug)]
pub(crate) struct LagSample {
    time: Duration,
    replies: Replies,
}

impl LagSample {
    /// Asks the primaries of all metadata groups with a member that does not serve. Sends nothing
    /// if all members serve. The caller must run inside an event loop.
    pub(crate) async fn take(access: &Access, map: &ClusterMap) -> Self {
        let groups = map.groups.iter().filter(|it| is_incomplete(it));
        Self::of(access, map, groups.map(|it| it.id).collect()).await
    }

    /// Begins [`Self::take`] in a task, so that the caller can continue during the requests.
    pub(crate) fn begin(access: &Access, map: &ClusterMap) -> Task<Self> {
        let (access, map) = (access.clone(), map.clone());
        skep_env::spawn(async move { Self::take(&access, &map).await })
    }

    /// Takes another sample. Skips the primaries that did not reply to this sample, because
    /// requests to these primaries would only delay the command.
    pub(crate) async fn take_again(&self, access: &Access, map: &ClusterMap) -> Self {
        let is_known = |group: &&Group| self.replies.get(&group.id).is_none_or(Result::is_ok);
        let groups = map.groups.iter().filter(|it| is_incomplete(it)).filter(is_known);
        Self::of(access, map, groups.map(|it| it.id).collect()).await
    }

    async fn of(access: &Access, map: &ClusterMap, groups: Vec<GroupId>) -> Self {
        let replies = match groups.is_empty() {
            true => Replies::new(),
            false => ask(access, map, groups).await,
        };
        Self { replies, time: skep_env::now() }
    }

    /// Returns the lags of all members that do not serve. The rates at which members get log
    /// records are known only with an `earlier` sample.
    pub(crate) fn lags(&self, map: &ClusterMap, earlier: Option<&Self>) -> BTreeMap<TargetId, Lag> {
        let is_lost = |target: TargetId| {
            map.target(target).is_none_or(|it| it.consistency == Consistency::Bad)
        };
        let mut lags = BTreeMap::new();
        for group in map.groups.iter().filter(|it| is_incomplete(it)) {
            for member in group.members.iter().filter(|it| it.state != MemberState::Serving) {
                if is_lost(member.target) {
                    continue;
                }
                let reply = self.replies.get(&group.id);
                let reply = reply.or_else(|| earlier?.replies.get(&group.id));
                let rate = earlier.and_then(|it| self.log_rate(it, group.id, member.target));
                lags.extend(reply.map(|it| (member.target, lag(it, member.target, rate))));
            }
        }
        lags
    }

    /// Returns the rate at which a member has caught up since `earlier`, in bytes of log records
    /// per second. `None` means that the lag has not decreased, that a sample does not contain the
    /// lag, or that the epoch of the group has changed.
    fn log_rate(&self, earlier: &Self, group: GroupId, target: TargetId) -> Option<u64> {
        let missing = |sample: &Self| {
            let progress = sample.replies.get(&group)?.as_ref().ok()?;
            Some((progress.epoch, known(progress, target)?.missing_bytes?))
        };
        let ((former, before), (epoch, now)) = (missing(earlier)?, missing(self)?);
        let milliseconds = self.time.saturating_sub(earlier.time).as_millis();
        let gained = u128::from(before.saturating_sub(now)) * 1000;
        let rate = u64::try_from(gained.checked_div(milliseconds)?).ok()?;
        (former == epoch && rate > 0).then_some(rate)
    }
}

/// Whether `group` is a metadata group with a member that does not serve.
fn is_incomplete(group: &Group) -> bool {
    group.kind == TargetKind::Metadata
        && group.members.iter().any(|it| it.state != MemberState::Serving)
}

/// Returns the lag of a member, from the reply of its primary. `log_rate` is the rate at which the
/// member catches up, in bytes of log records per second.
fn lag(reply: &Result<GroupProgress>, target: TargetId, log_rate: Option<u64>) -> Lag {
    let progress = match reply {
        Ok(progress) => progress,
        Err(error) => {
            return Lag::unknown(format!(
                "the primary of its group does not answer: {}",
                error.context()
            ));
        }
    };
    let Some(member) = known(progress, target) else {
        let what = "the target has not answered its primary since the group changed";
        return Lag::unknown(what.into());
    };
    if let Some(copy) = &member.copy {
        let CopyStatus { bytes_per_second, seconds_left, problem, .. } = CopyStatus::of(copy);
        return Lag {
            bytes: copy.missing_bytes(),
            by_copy: true,
            bytes_per_second,
            seconds_left,
            problem,
            records: None,
        };
    }
    if member.needs_copy {
        return Lag { by_copy: true, ..Lag::default() };
    }
    let records = progress.last.raw().saturating_sub(member.appended.raw());
    let seconds = log_rate.and_then(|rate| member.missing_bytes?.checked_div(rate));
    Lag {
        records: Some(records),
        bytes: member.missing_bytes,
        by_copy: false,
        bytes_per_second: log_rate,
        seconds_left: seconds,
        problem: None,
    }
}

#[cfg(test)]
#[path = "group_progress/tests.rs"]
mod tests;
