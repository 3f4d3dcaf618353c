//! A problem of a cluster. `skep health check` prints a problem once, and `--watch` prints the
//! start and the end of a problem.

use crate::output::{span, utc};
use serde::{Serialize, Serializer};
use skep_cluster::problems::lost_targets;
use skep_types::{ClusterMap, NodeId, TargetId, Timestamp};

/// A problem with its remedy, as JSON.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Problem {
    /// Identifies the problem. The key is the same in all checks, although the text may change.
    #[serde(skip)]
    pub(super) key: String,
    /// Name of the rule that found the problem. Alerts of the monitor have the same names.
    pub(super) rule: &'static str,
    pub(super) what: String,
    pub(super) remedy: String,
    /// The servers and targets whose outage is the problem.
    #[serde(skip)]
    pub(super) objects: Vec<Object>,
    /// Time in UTC at which the problem began, by the clock of this host. `None` means unknown.
    pub(super) since: Option<Since>,
    /// Whether the problem may have begun earlier than `since`, because `since` is the time at
    /// which the leader of management began to lead.
    pub(super) may_be_older: bool,
}

/// A server or a target that has an outage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Object {
    Node(NodeId),
    Target(TargetId),
}

/// The time at which a problem began.
#[derive(Debug, Clone, Copy)]
pub(super) struct Since {
    time: Timestamp,
    lasted_ms: u64,
}

impl Since {
    /// Returns the start of a problem that has lasted for `lasted_ms` at the time `now`.
    pub(super) fn before(now: Timestamp, lasted_ms: u64) -> Self {
        let now_ms = now.seconds.saturating_mul(1000) + i64::from(now.nanoseconds / 1_000_000);
        let begin_ms = now_ms.saturating_sub_unsigned(lasted_ms);
        let time = Timestamp { seconds: begin_ms.div_euclid(1000), nanoseconds: 0 };
        Self { time, lasted_ms }
    }

    /// Returns for how long the problem had lasted at the time of the check.
    pub(super) fn lasted_ms(self) -> u64 {
        self.lasted_ms
    }

    /// Returns the start time and the duration in parentheses. The caller appends this to the text
    /// of a problem.
    pub(super) fn as_text(self, may_be_older: bool) -> String {
        let (time, lasted) = (utc(self.time), span(self.lasted_ms));
        match may_be_older {
            true => format!(" (since {time}, when this management node began to lead, or earlier)"),
            false => format!(" (since {time}, for {lasted})"),
        }
    }
}

impl Serialize for Since {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&utc(self.time))
    }
}

impl Problem {
    /// Returns the text of the problem, followed by its start time.
    pub(super) fn what_and_since(&self) -> String {
        let since = self.since.map(|since| since.as_text(self.may_be_older));
        format!("{}{}", self.what, since.unwrap_or_default())
    }
}

/// Returns the permanent damage that the cluster map shows, as notes.
pub(super) fn notes(map: &ClusterMap) -> Vec<Problem> {
    let note = |it: skep_cluster::problems::Problem| Problem {
        key: it.what.clone(),
        rule: it.rule,
        what: it.what,
        remedy: it.remedy.to_owned(),
        ..Problem::default()
    };
    lost_targets(map).into_iter().map(note).collect()
}
