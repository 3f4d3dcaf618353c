//! The report of `skep why`: phases and findings of a scope.

use super::cause::{Cause, Thresholds};
use super::causes::causes;
use super::evidence::Evidence;
use super::phases::{Phase, phases};
use crate::operation::SlowOperation;
use serde::{Deserialize, Serialize};
use skep_cluster::problems::{Problem, Severity, problems_of_map};
use skep_types::{ClusterMap, TargetId};

/// The requests that a report is about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// Only requests to these targets. `None` means all targets.
    pub targets: Option<Vec<u32>>,
    /// Only requests of this client. `None` means all clients.
    pub client: Option<u32>,
}

impl Scope {
    /// Whether a cause makes requests of this scope slow.
    fn has(&self, cause: &Cause) -> bool {
        let meets = |targets: &Vec<u32>| {
            cause.targets.is_empty() || cause.targets.iter().any(|id| targets.contains(id))
        };
        // The link of another client slows none of this client's requests.
        let is_of_other = cause.rule == "link-slow"
            && self.client.is_some()
            && cause.client.is_some_and(|client| Some(client) != self.client);
        self.targets.as_ref().is_none_or(meets) && !is_of_other
    }
}

/// A cause of slowness, or a problem of a target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Name of the rule.
    pub rule: String,
    /// `warning` or `critical`.
    pub severity: String,
    /// The object, such as `t7`.
    pub object: String,
    /// The object and the fact.
    pub what: String,
    /// The effect, and the remedy.
    pub remedy: String,
}

/// Returns the problems that the map shows: the problems of the cluster, and the problems of the
/// targets in the scope.
pub(crate) fn findings_of_map(
    map: &ClusterMap,
    is_in_scope: impl Fn(TargetId) -> bool,
) -> Vec<Finding> {
    let is_in_scope = |problem: &Problem| problem.target.is_none_or(&is_in_scope);
    let of_map = problems_of_map(map).into_iter().filter(is_in_scope);
    of_map
        .map(|problem| Finding {
            rule: problem.rule.into(),
            severity: severity_word(problem.severity),
            object: problem.target.map_or_else(|| "cluster".into(), |id| id.to_string()),
            what: problem.what,
            remedy: problem.remedy.into(),
        })
        .collect()
}

/// The report of a span.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Length of the span.
    pub span_seconds: f64,
    /// Number of completed requests.
    pub requests: u64,
    /// Sum of the times of the completed requests.
    pub seconds: f64,
    /// The phases, the longest first.
    pub phases: Vec<Phase>,
    /// The causes of slowness, and the problems of targets.
    pub findings: Vec<Finding>,
    /// The slowest operations of the last minutes, as far as services have their records. The
    /// caller adds these operations.
    #[serde(default)]
    pub slowest: Vec<SlowOperation>,
    /// Services without figures, each with the reason.
    pub unreachable: Vec<String>,
}

fn severity_word(severity: Severity) -> String {
    match severity {
        Severity::Warning => "warning".into(),
        Severity::Critical => "critical".into(),
    }
}

/// Explains where the time of the requests in a scope went.
pub fn explain(
    evidence: &Evidence,
    map: &ClusterMap,
    scope: &Scope,
    thresholds: &Thresholds,
) -> Report {
    let (phases, all) = phases(evidence, map, scope.targets.as_deref(), scope.client);
    let found = causes(evidence, map, thresholds).into_iter().filter(|cause| scope.has(cause));
    let mut findings: Vec<Finding> = found
        .map(|cause| Finding {
            rule: cause.rule.into(),
            severity: severity_word(cause.severity),
            object: cause.object,
            what: cause.what,
            remedy: cause.remedy,
        })
        .collect();
    let is_in_scope = |target: Option<skep_types::TargetId>| match (&scope.targets, target) {
        (Some(targets), Some(id)) => targets.contains(&id.raw()),
        _ => true,
    };
    findings.extend(findings_of_map(map, |target| is_in_scope(Some(target))));
    let ns = all.stages_ns.iter().fold(0_u64, |sum, ns| sum.saturating_add(*ns));
    Report {
        span_seconds: evidence.span_ns as f64 / 1e9,
        requests: all.requests,
        seconds: ns as f64 / 1e9,
        phases,
        findings,
        slowest: Vec::new(),
        unreachable: Vec::new(),
    }
}
