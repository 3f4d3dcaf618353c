//! The findings of the monitor, for `skep health check`. The monitor returns the findings of rules
//! that need the load of a minute, and the times at which findings began.
//!
//! The module [`super::check`] computes the findings for which a measurement of two seconds is
//! enough.

use super::problem::{Problem, Since};
use crate::access::Access;
use crate::monitor_address::{MonitorAddress, not_a_monitor};
use serde::Deserialize;
use serde_json::Value;
use skep_stats::balance::Balance;
use skep_stats::long_spans;
use skep_types::text::escape_controls;
use skep_types::{Error, ErrorCode, Result, Timestamp};
use std::time::Duration;

/// Time limit for the reply of the monitor. The command measures latencies for the same time.
const PATIENCE: Duration = Duration::from_secs(2);
/// The rule that reports missing backups. The monitor has a setting for the maximum age of a
/// backup. So this command evaluates the rule itself only if the monitor does not answer.
const NO_BACKUP: &str = "no-backup";

/// A finding of the monitor.
#[derive(Debug, Clone, Deserialize)]
struct MonitorFinding {
    rule: String,
    object: String,
    what: String,
    remedy: String,
    /// Time at which the monitor first saw the problem, in milliseconds since 1970.
    since_ms: Option<u64>,
    /// The finding that is the cause of this finding.
    cause: Option<Value>,
}

/// The balance of work in the last minute.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct WorkOfMinute {
    pub(super) span_seconds: f64,
    pub(super) metadata_work: Balance,
}

/// The reply of the monitor.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct MonitorHealth {
    now_ms: u64,
    /// Id of the cluster. Empty if the monitor has no cluster map yet.
    cluster: String,
    findings: Vec<MonitorFinding>,
    /// The balance of work. `None` means that the monitor has no cluster map yet.
    pub(super) balance: Option<WorkOfMinute>,
}

/// Asks the monitor of the cluster for its findings.
///
/// # Errors
/// - `TimedOut` or `Disconnected` if the monitor does not answer.
/// - `Configuration` if the password is missing or wrong.
/// - `InvalidArgument` if the monitor does not watch this cluster.
/// - `Protocol` if the reply is not the expected JSON.
/// - `NotReady` if the monitor has no cluster map yet.
pub(super) async fn ask(access: &Access, address: &MonitorAddress) -> Result<MonitorHealth> {
    let name = address.of(access);
    let late = || {
        let what = format!("cannot ask the monitor at {name}: no reply within {PATIENCE:?}");
        Error::new(ErrorCode::TimedOut, what)
    };
    let asking = address.ask(access, "/api/health");
    let value = skep_env::timeout(PATIENCE, asking).await.ok_or_else(late)??;
    let health: MonitorHealth = serde_json::from_value(value).map_err(|_| not_a_monitor(&name))?;
    health.check_map(&name)?;
    Ok(health)
}

/// Returns the line about the rules that were not evaluated, because the monitor did not answer.
pub(super) fn unchecked(error: &Error) -> String {
    format!(
        "growing queues, slow log syncs, uneven work and filling storage, without a monitor: {}",
        error.context()
    )
}

impl MonitorFinding {
    /// Returns the finding as a problem. `None` means that this command evaluates the rule itself,
    /// or that another finding is the cause of this finding.
    fn as_problem(&self, key: String, since: Option<Since>) -> Option<Problem> {
        if self.cause.is_some() {
            return None;
        }
        let mut rules = long_spans::RULES.into_iter().chain([NO_BACKUP]);
        Some(Problem {
            key,
            rule: rules.find(|rule| *rule == self.rule)?,
            what: escape_controls(&self.what).into_owned(),
            remedy: escape_controls(&self.remedy).into_owned(),
            since,
            ..Problem::default()
        })
    }
}

impl MonitorHealth {
    /// Returns an error if the monitor at `name` has no cluster map. Without a map, the monitor has
    /// evaluated no rule about the cluster.
    fn check_map(&self, name: &str) -> Result<()> {
        if self.cluster.is_empty() {
            let what = format!("the monitor at {name} has no cluster map yet");
            return Err(Error::new(ErrorCode::NotReady, what));
        }
        Ok(())
    }

    /// Adds the findings that only the monitor has. Sets the start time of each problem that the
    /// monitor has found too, unless the problem already has a start time. `now` is the time of
    /// this host.
    pub(super) fn complete(&self, problems: &mut Vec<Problem>, now: Timestamp) {
        for finding in &self.findings {
            let key = format!("{} {}", finding.rule, finding.object);
            let lasted_ms = finding.since_ms.map(|since| self.now_ms.saturating_sub(since));
            let since = lasted_ms.map(|lasted_ms| Since::before(now, lasted_ms));
            match problems.iter_mut().find(|problem| problem.key == key) {
                Some(problem) => problem.since = problem.since.or(since),
                None => problems.extend(finding.as_problem(key, since)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn health() -> MonitorHealth {
        let finding = |rule: &str, object: &str, cause: Value| {
            json!({
                "rule": rule, "severity": "warning", "object": object, "what": "it\u{1b}[2J",
                "remedy": "wait", "since_ms": 1_800_000_000_000_u64, "cause": cause,
            })
        };
        let reply = json!({
            "now_ms": 1_800_000_090_000_u64,
            "cluster": "c1",
            "findings": [
                finding("target-slow", "t7", Value::Null),
                finding("queue-growing", "t8", Value::Null),
                finding("queue-growing", "t9", json!({ "rule": "target-slow", "object": "t9" })),
                finding("target-offline", "t3", Value::Null),
            ],
            "balance": { "span_seconds": 60, "storage_space": {}, "metadata_work": {
                "targets": 2, "percent": 80.5, "reason": null,
                "highest": { "target": 1, "percent": 62.0 },
            } },
        });
        serde_json::from_value(reply).unwrap()
    }

    #[test]
    fn health_check_adds_findings_and_start_times_of_the_monitor() {
        let now = Timestamp { seconds: 1_700_000_000, nanoseconds: 0 };
        let own = |key: &str, since| Problem { key: key.into(), since, ..Problem::default() };
        let known = Some(Since::before(now, 5_000));
        let mut problems = vec![own("target-slow t7", None), own("target-down t1", known)];
        health().complete(&mut problems, now);
        let lasted = |problem: &Problem| problem.since.map(Since::lasted_ms);
        let shown: Vec<_> = problems.iter().map(|it| (it.key.as_str(), lasted(it))).collect();
        let expected = [
            ("target-slow t7", Some(90_000)),
            ("target-down t1", Some(5_000)),
            ("queue-growing t8", Some(90_000)),
        ];
        assert_eq!(shown, expected);
        assert_eq!(
            (problems[2].rule, problems[2].what.contains('\u{1b}')),
            ("queue-growing", false)
        );
    }

    #[test]
    fn monitor_does_not_replace_a_start_time_from_management() {
        let now = Timestamp { seconds: 1_700_000_000, nanoseconds: 0 };
        let since = Some(Since::before(now, 5_000));
        let mut problems =
            vec![Problem { key: "target-offline t3".into(), since, ..Problem::default() }];
        health().complete(&mut problems, now);
        assert_eq!(problems[0].since.map(Since::lasted_ms), Some(5_000));
    }

    #[test]
    fn health_check_refuses_a_monitor_without_a_cluster_map() {
        assert!(health().check_map("127.0.0.1:7480").is_ok());
        let young = MonitorHealth { cluster: String::new(), ..health() };
        let refused = young.check_map("127.0.0.1:7480").unwrap_err();
        assert!(unchecked(&refused).ends_with("127.0.0.1:7480 has no cluster map yet"));
    }

    #[test]
    fn line_about_a_missing_monitor_is_short() {
        let error = Error::new(ErrorCode::Disconnected, "no reply");
        let line = unchecked(&error);
        assert!(line.len() < 100 && line.ends_with("without a monitor: no reply"), "{line}");
    }
}
