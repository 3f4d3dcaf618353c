//! A problem of a cluster, as `skep health check` prints it once and `--watch` follows it.

use serde::Serialize;

/// A problem with its remedy, as JSON.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Problem {
    /// Identifies the problem in all checks, although its text may change.
    #[serde(skip)]
    pub(super) key: String,
    /// Name of the rule that found the problem, as in alerts of the monitor.
    pub(super) rule: &'static str,
    pub(super) what: String,
    pub(super) remedy: String,
}
