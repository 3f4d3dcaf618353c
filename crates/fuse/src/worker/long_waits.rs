//! Log lines about requests of the kernel that have had no reply for a long time. With these lines,
//! the log of a mount shows why a program hangs.
//!
//! Decides when a log line is due, and writes its text. `worker.rs` has the list of requests in
//! progress. `meter.rs` logs a slow request after its end. Requests that wait for file locks cause
//! no lines, since their purpose is to wait.

use crate::following::EntryNames;
use skep_client::SilentTarget;
use skep_types::map::{Condition, Consistency, Reachability};
use skep_types::text::escape_controls;
use skep_types::{ClusterMap, InodeId, Target, TargetKind};
use skep_wire::management::RequestWait;
use std::time::Duration;

/// Time without a reply after which the mount logs a request.
const WORTH_A_LINE: Duration = Duration::from_secs(5);
/// Interval between two log lines while requests still wait.
const REPEAT: Duration = Duration::from_secs(60);

/// A line names a target if a request to the target has had no reply for at least this time. Before
/// this request, the operation may have waited for another target.
pub(super) const SILENT_AFTER: Duration = Duration::from_secs(1);
/// Maximum number of silent targets that a line names.
const MAX_NAMED: usize = 5;

/// A request to which the mount has not replied yet.
#[derive(Clone, Debug)]
pub(super) struct UnansweredRequest {
    /// Name of the operation, such as `open`.
    pub(super) operation: String,
    pub(super) inode: InodeId,
    /// The names in the request.
    pub(super) names: EntryNames,
    pub(super) pid: u32,
    /// Time since the worker took the request from the kernel.
    pub(super) age: Duration,
}

/// A line of the log.
#[derive(Debug)]
pub(super) enum Line {
    /// Requests wait.
    Wait(String),
    /// The line that is due when no request waits any more.
    End(&'static str),
}

/// State of the log lines of one worker.
#[derive(Debug, Default)]
pub(super) struct LongWaits {
    /// Time of the last line about requests that wait. `None` means that the last line reported
    /// the end of the waits, or that there was no line.
    last_line: Option<Duration>,
}

/// The targets that explain why requests wait.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Causes<'a> {
    /// The targets that have accepted requests of this worker and have not replied for long.
    pub(super) silent: &'a [SilentTarget],
    /// The groups to which requests of the mount fail, the longest outage first. The error of each
    /// group names its target.
    pub(super) failing: &'a [RequestWait],
    /// The storage targets for which a silent metadata target may wait ([`absent_storage`]).
    pub(super) absent: &'a [SilentTarget],
}

/// Returns the storage targets that no service serves, if a metadata target is among the targets
/// `silent`. The silent metadata target may wait until one of these storage targets truncates a
/// file or replies with a size.
pub(super) fn absent_storage(map: &ClusterMap, silent: &[SilentTarget]) -> Vec<SilentTarget> {
    let is_metadata = |id| map.target(id).is_some_and(|target| target.kind == TargetKind::Metadata);
    if !silent.iter().any(|it| is_metadata(it.target)) {
        return Vec::new();
    }
    let is_absent = |target: &&Target| {
        target.kind == TargetKind::Storage
            && target.consistency != Consistency::Bad
            && (target.reachability != Reachability::Online
                || matches!(target.health.condition, Condition::Down | Condition::Hung))
    };
    let named = |target: &Target| {
        let node = map.node(target.node).map(|node| node.name.clone()).unwrap_or_default();
        SilentTarget { target: target.id, node }
    };
    map.targets.iter().filter(is_absent).map(named).collect()
}

impl LongWaits {
    /// Returns the requests that have waited for long, for a report to management. `unanswered` is
    /// as in [`Self::line`].
    pub(super) fn summary(
        unanswered: &[UnansweredRequest],
        causes: Causes<'_>,
        now: Duration,
    ) -> Option<skep_client::Unanswered> {
        let long = unanswered.iter().filter(|request| request.age >= WORTH_A_LINE);
        let oldest = long.clone().max_by_key(|it| it.age)?;
        let UnansweredRequest { operation, inode, pid, age, .. } = oldest;
        Some(skep_client::Unanswered {
            requests: u32::try_from(long.count()).unwrap_or(u32::MAX),
            since: now.saturating_sub(*age),
            oldest: format!("{operation} of inode {inode} by process {pid}{}", causes.words()),
        })
    }

    /// Returns the line that is due at `now`, if any. `unanswered` has all requests in flight in
    /// any order, without the requests that wait for locks.
    pub(super) fn line(
        &mut self,
        unanswered: &[UnansweredRequest],
        causes: Causes<'_>,
        now: Duration,
    ) -> Option<Line> {
        let is_long = |request: &&UnansweredRequest| request.age >= WORTH_A_LINE;
        let count = unanswered.iter().filter(is_long).count();
        let Some(oldest) = unanswered.iter().filter(is_long).max_by_key(|it| it.age) else {
            let text = "all requests that had waited for more than 5 s have been answered";
            return self.last_line.take().map(|_| Line::End(text));
        };
        if self.last_line.is_some_and(|last| now.saturating_sub(last) < REPEAT) {
            return None;
        }
        self.last_line = Some(now);
        let UnansweredRequest { operation, inode, names, pid, age } = oldest;
        Some(Line::Wait(format!(
            "requests of programs that have waited for more than 5 s: {count}; the oldest is \
             {operation} of {} by process {pid}, for {} s{}{}; `skep health check` shows the \
             service or target that does not answer",
            names.object(*inode),
            age.as_secs(),
            causes.words(),
            causes.absent_words()
        )))
    }
}

impl Causes<'_> {
    /// Returns the clause about the storage targets for which a silent metadata target may wait.
    fn absent_words(self) -> String {
        let names: Vec<_> = self.absent.iter().take(MAX_NAMED).map(ToString::to_string).collect();
        let more = match self.absent.len().saturating_sub(MAX_NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        match &names[..] {
            [] => String::new(),
            [one] => format!(
                "; storage target {one} is not served, and the metadata target may wait for the \
                 storage target"
            ),
            several => format!(
                "; storage targets {}{more} are not served, and the metadata target may wait for \
                 the storage targets",
                several.join(", ")
            ),
        }
    }

    /// Returns the clause that names the targets that do not reply. A target that refuses
    /// connections is named with its error.
    fn words(self) -> String {
        let Self { silent, failing, .. } = self;
        let names: Vec<_> = silent.iter().take(MAX_NAMED).map(ToString::to_string).collect();
        match (&names[..], silent.len().saturating_sub(MAX_NAMED), failing) {
            ([], _, []) => String::new(),
            ([], _, [first, rest @ ..]) => {
                let more = match rest.len() {
                    0 => String::new(),
                    more => format!(" (further groups: {more})"),
                };
                format!(", without a reply from {}{more}", escape_controls(&first.error))
            }
            ([one], ..) => format!(", without a reply from target {one}"),
            (several, 0, _) => format!(", without a reply from targets {}", several.join(", ")),
            (several, more, _) => {
                format!(", without a reply from targets {} and {more} more", several.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{ClusterId, GroupId, Node, NodeId, NodeKind, TargetId};

    fn silent_target(id: u32, node: &str) -> SilentTarget {
        SilentTarget { target: TargetId::new(id), node: node.into() }
    }

    fn unanswered(pid: u32, seconds: u64) -> UnansweredRequest {
        UnansweredRequest {
            operation: "open".into(),
            inode: InodeId::new(9),
            names: EntryNames::default(),
            pid,
            age: Duration::from_secs(seconds),
        }
    }

    #[test]
    fn summary_counts_long_waits_and_names_the_oldest() {
        let (none, now) = (Causes::default(), Duration::from_secs(105));
        let found =
            LongWaits::summary(&[unanswered(7, 5), unanswered(8, 6), unanswered(9, 1)], none, now);
        let found = found.unwrap();
        assert_eq!((found.requests, found.since), (2, Duration::from_secs(99)));
        assert_eq!(found.oldest, "open of inode 0-9 by process 8");
        assert_eq!(LongWaits::summary(&[unanswered(9, 4)], none, now), None);
    }

    #[test]
    fn cause_of_a_wait_names_at_most_five_targets() {
        let targets: Vec<_> = (1..8).map(|id| silent_target(id, "")).collect();
        let cause = |silent| Causes { silent, ..Causes::default() }.words();
        assert_eq!(cause(&[]), "");
        assert_eq!(cause(&targets[..1]), ", without a reply from target t1");
        let named = [silent_target(1, "metadata-1")];
        assert_eq!(cause(&named), ", without a reply from target t1 on metadata-1");
        let many = cause(&targets);
        assert!(many.ends_with("targets t1, t2, t3, t4, t5 and 2 more"), "{many}");
    }

    #[test]
    fn cause_of_a_wait_names_a_target_that_refuses_connections() {
        let wait = |group| RequestWait {
            group: GroupId::new(group),
            since_ms: 20_000,
            requests: 1,
            error: "target t3 on storage-1: 10.0.0.5:7420: Connection refused".into(),
        };
        let words = |failing: &[RequestWait]| Causes { failing, ..Causes::default() }.words();
        let one =
            ", without a reply from target t3 on storage-1: 10.0.0.5:7420: Connection refused";
        assert_eq!(words(&[wait(1)]), one);
        assert_eq!(words(&[wait(1), wait(2)]), format!("{one} (further groups: 1)"));
    }

    #[test]
    fn silent_metadata_target_may_wait_for_an_absent_storage_target() {
        let mut map = ClusterMap::empty(ClusterId::default());
        map.nodes = vec![Node::online(NodeId::new(4), NodeKind::Storage, "storage-2")];
        let target = |id, kind| Target::online(TargetId::new(id), kind, NodeId::new(4));
        map.targets = vec![target(1, TargetKind::Metadata), target(5, TargetKind::Storage)];
        let silent = [silent_target(1, "metadata-1")];
        assert_eq!(absent_storage(&map, &silent), []);
        map.targets[1].reachability = Reachability::Offline;
        let absent = absent_storage(&map, &silent);
        assert_eq!(absent, [silent_target(5, "storage-2")]);
        assert_eq!(absent_storage(&map, &[silent_target(5, "")]), [], "the mount asks it itself");
        let causes = Causes { silent: &silent, failing: &[], absent: &absent };
        let line = LongWaits::default().line(&[unanswered(7, 6)], causes, Duration::ZERO);
        let Some(Line::Wait(text)) = &line else { panic!("no line about a wait: {line:?}") };
        let words = "without a reply from target t1 on metadata-1; storage target t5 on storage-2 \
                     is not served, and the metadata target may wait for the storage target; `skep";
        assert!(text.contains(words), "{text}");
    }

    #[test]
    fn line_about_a_long_wait_has_the_name_in_the_request() {
        let mut request = unanswered(7, 6);
        request.names.name = b"data".to_vec();
        let line = LongWaits::default().line(&[request], Causes::default(), Duration::ZERO);
        let Some(Line::Wait(text)) = &line else { panic!("no line about a wait: {line:?}") };
        assert!(text.contains("the oldest is open of 'data' in directory 0-9 by"), "{text}");
    }

    #[test]
    fn long_wait_is_logged_once_a_minute_and_at_its_end() {
        let mut waits = LongWaits::default();
        let silent = [3, 5].map(|id| silent_target(id, "storage-1"));
        let mut line = |requests: &[UnansweredRequest], at| match waits.line(
            requests,
            Causes { silent: &silent, ..Causes::default() },
            Duration::from_secs(at),
        ) {
            Some(Line::Wait(text)) => text,
            Some(Line::End(text)) => text.to_owned(),
            None => String::new(),
        };
        assert_eq!(line(&[unanswered(7, 4)], 104), "");
        let first = line(&[unanswered(7, 5), unanswered(8, 6), unanswered(9, 1)], 105);
        assert!(first.contains("waited for more than 5 s: 2; the oldest"), "{first}");
        let words = "by process 8, for 6 s, without a reply from targets t3 on storage-1, t5 on \
                     storage-1;";
        assert!(first.contains(words), "{first}");
        assert_eq!(line(&[unanswered(7, 64)], 164), "");
        assert!(line(&[unanswered(7, 65)], 165).contains("5 s: 1;"));
        assert!(line(&[unanswered(9, 1)], 166).starts_with("all requests"));
        assert_eq!(line(&[], 167), "");
    }
}
