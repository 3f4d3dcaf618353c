//! A problem of a cluster, as `skep health check` prints it once and `--watch` follows it.

use crate::output::{span, utc};
use serde::{Serialize, Serializer};
use skep_types::{NodeId, TargetId, Timestamp};

/// A problem with its remedy, as JSON.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Problem {
    /// Identifies the problem in all checks, although its text may change.
    #[serde(skip)]
    pub(super) key: String,
    /// Name of the rule that found the problem, as in alerts of the monitor.
    pub(super) rule: &'static str,
    pub(super) what: String,
    pub(super) remedy: String,
    /// The servers and targets whose outage is the problem.
    #[serde(skip)]
    pub(super) objects: Vec<Object>,
    /// Time in UTC at which the problem began, by the clock of this host. `None` means unknown.
    pub(super) since: Option<Since>,
    /// Whether the problem may have begun before `since`, when management had another leader.
    pub(super) may_be_older: bool,
}

/// A server or a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Object {
    Node(NodeId),
    Target(TargetId),
}

/// The beginning of a problem.
#[derive(Debug, Clone, Copy)]
pub(super) struct Since {
    time: Timestamp,
    lasted_ms: u64,
}

impl Since {
    /// Creates the beginning of a problem that has lasted for `lasted_ms` at `now`.
    pub(super) fn before(now: Timestamp, lasted_ms: u64) -> Self {
        let now_ms = now.seconds.saturating_mul(1000) + i64::from(now.nanoseconds / 1_000_000);
        let begin_ms = now_ms.saturating_sub_unsigned(lasted_ms);
        let time = Timestamp { seconds: begin_ms.div_euclid(1000), nanoseconds: 0 };
        Self { time, lasted_ms }
    }
}

impl Serialize for Since {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&utc(self.time))
    }
}

impl Problem {
    /// Returns the object and the fact, and since when the problem lasts.
    pub(super) fn what_and_since(&self) -> String {
        let Some(Since { time, lasted_ms }) = self.since else { return self.what.clone() };
        let (what, time) = (&self.what, utc(time));
        match self.may_be_older {
            true => format!(
                "{what} (since {time}, when this management node began to lead, or earlier)"
            ),
            false => format!("{what} (since {time}, for {})", span(lasted_ms)),
        }
    }
}
