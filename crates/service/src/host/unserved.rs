//! Targets that this node should serve but does not, because the directory cannot be opened, or the
//! target's thread has ended with an error. The node continues to serve its other targets.
//!
//! This module computes the pause until the next attempt to serve such a target, and the target's
//! report to management. The module `retries` makes the attempts. The module `targets` decides
//! whether the service ends because no target is left.

use super::absolute;
use skep_types::map::{Capacity, Condition, KnownReason, TargetHealth};
use skep_types::{ClusterMap, Error, NodeId};
use skep_wire::management::TargetReport;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Pause before the first new attempt to serve a target. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause between two attempts to serve a target.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Interval of the log lines about an unchanged problem.
const LINE_INTERVAL: Duration = Duration::from_secs(600);
/// A target counts as repaired when the node has served it for this time since its last start.
const REPAIRED_AFTER: Duration = Duration::from_secs(300);

/// A target that the node does not serve.
#[derive(Debug)]
pub(super) struct UnservedTarget {
    pub(super) path: PathBuf,
    problem: String,
    /// Whether the node opens the target again only because its role in its group has changed.
    is_reopening: bool,
    /// The pause before the next attempt to serve the target.
    pub(super) pause: Duration,
    /// Time of the next attempt to serve the target.
    pub(super) retry_at: Duration,
    /// Time of the last log line about the problem.
    logged_at: Duration,
}

impl UnservedTarget {
    /// Creates the entry of a target that could not be served. `last_pause` is the pause before the
    /// last attempt to serve the target. `served` is the time for which the node served the target
    /// after that attempt.
    pub(super) fn new(
        path: &Path,
        error: &Error,
        last_pause: Option<Duration>,
        served: Duration,
    ) -> Self {
        let pause = match last_pause {
            Some(last) if served < REPAIRED_AFTER => (last * 2).min(LONGEST_PAUSE),
            _ => FIRST_PAUSE,
        };
        log(path, error);
        let logged_at = skep_env::now();
        let retry_at = logged_at + pause;
        let problem = error.context().to_owned();
        let path = path.to_owned();
        Self { path, problem, is_reopening: false, pause, retry_at, logged_at }
    }

    /// Records that another attempt to serve the target has failed at `now`. Logs a new problem
    /// immediately, and repeats the log line of an unchanged problem only at long intervals.
    pub(super) fn failed_again(&mut self, error: &Error, now: Duration) {
        if self.is_worth_a_line(error, now) {
            log(&self.path, error);
            self.logged_at = now;
        }
        self.problem = error.context().to_owned();
        self.is_reopening = false;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        self.retry_at = now + self.pause;
    }

    fn is_worth_a_line(&self, error: &Error, now: Duration) -> bool {
        self.problem != error.context() || now.saturating_sub(self.logged_at) >= LINE_INTERVAL
    }

    /// Creates the entry of a target whose thread has ended because the target's role in its group
    /// has changed. The node opens the target again immediately.
    pub(super) fn to_reopen(path: &Path, reason: &Error) -> Self {
        tracing::info!("this node reopens the target in {}: {reason}", path.display());
        let now = skep_env::now();
        Self {
            path: path.to_owned(),
            problem: KnownReason::Reopens.text().to_owned(),
            is_reopening: true,
            pause: FIRST_PAUSE,
            retry_at: now,
            logged_at: now,
        }
    }

    /// Whether the node opens the target again only because its role in its group has changed.
    pub(super) fn is_reopening(&self) -> bool {
        self.is_reopening
    }

    /// Returns the reason why the target is not served.
    pub(super) fn problem(&self) -> &str {
        &self.problem
    }

    /// Returns the report about the target for management. `None` means that `map` does not contain
    /// the target at `node`.
    pub(super) fn report(&self, map: &ClusterMap, node: NodeId) -> Option<TargetReport> {
        let path = absolute(&self.path);
        let target = map.targets.iter().find(|it| it.node == node && it.path == path)?;
        Some(TargetReport {
            target: target.id,
            capacity: Capacity::default(),
            health: TargetHealth::new(Condition::Down, &self.problem),
        })
    }
}

fn log(path: &Path, error: &Error) {
    let path = path.display().to_string();
    // Many errors begin with the path. Remove the path from the error, because the log line already
    // contains it.
    let reason = error.context().strip_prefix(&format!("{path}: ")).unwrap_or(error.context());
    tracing::error!(
        "this node does not serve the target in {path}: {reason}; the node retries at intervals of \
         up to {} s",
        LONGEST_PAUSE.as_secs()
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::ErrorCode;

    #[test]
    fn pauses_between_attempts_to_open_a_target_double() {
        let error = Error::new(ErrorCode::Io, "no disk");
        let pause = |last, served| {
            UnservedTarget::new(Path::new("/d"), &error, last, Duration::from_secs(served)).pause
        };
        assert_eq!(pause(None, 0), FIRST_PAUSE);
        assert_eq!(pause(Some(FIRST_PAUSE), 3), 2 * FIRST_PAUSE);
        assert_eq!(pause(Some(LONGEST_PAUSE), 3), LONGEST_PAUSE);
        assert_eq!(pause(Some(LONGEST_PAUSE), 300), FIRST_PAUSE);
    }

    #[test]
    fn unchanged_problem_of_a_target_is_logged_at_long_intervals() {
        let missing = Error::new(ErrorCode::Io, "no disk");
        let mut target = UnservedTarget::new(Path::new("/d"), &missing, None, Duration::ZERO);
        let at = |seconds| target.logged_at + Duration::from_secs(seconds);
        let (soon, later) = (at(31), at(700));
        assert!(!target.is_worth_a_line(&missing, soon));
        assert!(target.is_worth_a_line(&Error::new(ErrorCode::Io, "no space"), soon));
        assert!(target.is_worth_a_line(&missing, later));
        target.failed_again(&missing, later);
        assert!(!target.is_worth_a_line(&missing, later + Duration::from_secs(60)));
        assert_eq!(target.pause, 2 * FIRST_PAUSE);
    }
}
