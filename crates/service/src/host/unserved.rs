//! Targets that this node should serve but does not, because the directory cannot be opened, or the
//! target's thread has ended with an error. The other targets of the node serve meanwhile.
//!
//! This module owns the pause until the next attempt to serve such a target, and the target's
//! report to management. It does not own the attempts (`retries`) or the end of the service, which
//! `targets` ends if no target is left.

use super::absolute;
use skep_types::map::{Capacity, Condition, TargetHealth};
use skep_types::{ClusterMap, Error, NodeId};
use skep_wire::management::TargetReport;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Pause before the first attempt to serve a target again. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause between two attempts to serve a target.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Time after which a target that was served again counts as repaired.
const REPAIRED_AFTER: Duration = Duration::from_secs(300);

/// A target that the node does not serve.
#[derive(Debug)]
pub(super) struct UnservedTarget {
    pub(super) path: PathBuf,
    problem: String,
    /// The pause before the next attempt to serve the target.
    pub(super) pause: Duration,
    /// Time of the next attempt to serve the target.
    pub(super) retry_at: Duration,
}

impl UnservedTarget {
    /// Creates the entry of a target that could not be served. `last_pause` is the pause before the
    /// last attempt, `served` the time for which that attempt served the target.
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
        tracing::error!(
            "this node does not serve {}: {error}; it tries again in {} s",
            path.display(),
            pause.as_secs()
        );
        let retry_at = skep_env::now() + pause;
        Self { path: path.to_owned(), problem: error.context().to_owned(), pause, retry_at }
    }

    /// Creates the entry of a target whose role in its group has changed, so that its thread has
    /// ended. The node opens it again at once.
    pub(super) fn to_reopen(path: &Path, reason: &Error) -> Self {
        tracing::warn!("this node opens {} again: {reason}", path.display());
        let problem = reason.context().to_owned();
        Self { path: path.to_owned(), problem, pause: FIRST_PAUSE, retry_at: skep_env::now() }
    }

    /// Returns the reason why the target is not served.
    pub(super) fn problem(&self) -> &str {
        &self.problem
    }

    /// Returns the report about the target. `None` means that `map` does not contain it at `node`.
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

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::ErrorCode;

    #[test]
    fn pauses_between_open_attempts_double() {
        let error = Error::new(ErrorCode::Io, "no disk");
        let pause = |last, served| {
            UnservedTarget::new(Path::new("/d"), &error, last, Duration::from_secs(served)).pause
        };
        assert_eq!(pause(None, 0), FIRST_PAUSE);
        assert_eq!(pause(Some(FIRST_PAUSE), 3), 2 * FIRST_PAUSE);
        assert_eq!(pause(Some(LONGEST_PAUSE), 3), LONGEST_PAUSE);
        assert_eq!(pause(Some(LONGEST_PAUSE), 300), FIRST_PAUSE);
    }
}
