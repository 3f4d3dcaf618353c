//! The report of `skep why`: the phases and findings for a scope.

use super::cause::Thresholds;
use super::causes::causes;
use super::evidence::{Evidence, MAX_NAMED};
use super::phases::{Phase, phases};
use super::scope::Scope;
use crate::operation::SlowOperation;
use serde::{Deserialize, Serialize};
use skep_cluster::problems::{Problem, problems_of_map, severity_word};
use skep_types::{ClusterMap, TargetId};

/// A cause of slowness, or a problem of a target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Name of the rule.
    pub rule: String,
    /// `warning` or `critical`.
    pub severity: String,
    /// The object that has the problem, such as `t7`.
    pub object: String,
    /// A description of the object and of the fact.
    pub what: String,
    /// The effect, and the remedy for an administrator.
    pub remedy: String,
}

/// Returns the problems that the map shows: problems of the whole cluster, and problems of the
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
            severity: severity_word(problem.severity).into(),
            object: problem.target.map_or_else(|| "cluster".into(), |id| id.to_string()),
            what: problem.what,
            remedy: problem.remedy.into(),
        })
        .collect()
}

/// The report about a time span.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Length of the time span, in seconds.
    pub span_seconds: f64,
    /// Number of completed requests.
    pub requests: u64,
    /// Sum of the times of the completed requests.
    pub seconds: f64,
    /// The phases, the longest first.
    pub phases: Vec<Phase>,
    /// The causes of slowness, and the problems of targets.
    pub findings: Vec<Finding>,
    /// The requests that still wait for a target that does not answer, or for a lock. No phase
    /// contains them, because phases contain only requests that have ended. The caller adds this
    /// list.
    #[serde(default)]
    pub waiting: Vec<Finding>,
    /// The slowest operations of the last minutes whose records the services still have. The caller
    /// adds these operations.
    #[serde(default)]
    pub slowest: Vec<SlowOperation>,
    /// Services that sent no statistics, each with the reason. Also a text about the targets whose
    /// statistics may lack requests of the client, user or job in the scope.
    pub unreachable: Vec<String>,
}

/// Explains where the requests in a scope spent their time.
pub fn explain(
    evidence: &Evidence,
    map: &ClusterMap,
    scope: &Scope,
    thresholds: &Thresholds,
) -> Report {
    let (phases, all) = phases(evidence, map, scope);
    let found = causes(evidence, map, thresholds).into_iter().filter(|cause| scope.has(cause));
    let mut findings: Vec<Finding> = found
        .map(|cause| Finding {
            rule: cause.rule.into(),
            severity: severity_word(cause.severity).into(),
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
    let left_out = evidence.targets.values().filter(|it| it.may_leave_out(&scope.focus)).count();
    Report {
        span_seconds: evidence.span_ns as f64 / 1e9,
        requests: all.requests,
        seconds: all.all_ns() as f64 / 1e9,
        phases,
        findings,
        waiting: Vec::new(),
        slowest: Vec::new(),
        unreachable: (left_out > 0).then(|| left_out_text(left_out)).into_iter().collect(),
    }
}

fn left_out_text(targets: usize) -> String {
    let targets = match targets {
        1 => "1 target".to_owned(),
        many => format!("{many} targets"),
    };
    format!(
        "{targets}, where {MAX_NAMED} other clients, users or jobs had more load; `skep why` \
         without --since shows these statistics"
    )
}
