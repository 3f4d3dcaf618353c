//! Targets that this node should serve but does not: the directory cannot be opened, or the target's
//! thread has ended with an error. The other targets of the node serve meanwhile.
//!
//! Owns the attempts to serve such a target again, and its report to management. Does not own the
//! end of the service: `targets` ends it if no target is left.

use super::targets::{ServingNode, is_known};
use super::{absolute, capacity};
use skep_types::map::{Capacity, Condition, TargetHealth};
use skep_types::{Error, Result};
use skep_wire::management::TargetReport;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

/// Pause before the first attempt to serve a target again. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Time after which a target that was served again counts as repaired.
const REPAIRED_AFTER: Duration = Duration::from_secs(300);
/// Interval at which the task looks for targets whose pause has passed.
const LOOK: Duration = Duration::from_millis(250);

/// A target that the node does not serve.
#[derive(Debug)]
pub(super) struct UnservedTarget {
    path: PathBuf,
    problem: String,
    pause: Duration,
    retry_at: Duration,
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
}

impl ServingNode {
    /// Returns the reports about the unserved targets that the cluster map contains.
    pub(super) fn reports_of_unserved(&self) -> Vec<TargetReport> {
        let (map, node) = (self.membership.map_cell().load(), self.membership.node());
        let unserved = self.unserved.borrow();
        let report = |unserved: &UnservedTarget| {
            let path = absolute(&unserved.path);
            let target = map.targets.iter().find(|it| it.node == node && it.path == path)?;
            Some(TargetReport {
                target: target.id,
                capacity: Capacity::default(),
                health: TargetHealth::new(Condition::Down, &unserved.problem),
            })
        };
        unserved.iter().filter_map(report).collect()
    }

    /// Tries to serve the unserved targets again, until this future is dropped.
    pub(super) async fn retry_unserved(self: Rc<Self>) {
        // Retry: a target that cannot be served. After 1 s, doubling to 60 s, without limit.
        loop {
            skep_env::sleep(LOOK).await;
            let now = skep_env::now();
            let due: Vec<_> = self
                .unserved
                .borrow()
                .iter()
                .filter(|it| it.retry_at <= now)
                .map(|it| (it.path.clone(), it.pause))
                .collect();
            for (path, pause) in due {
                let result = self.serve_again(&path, pause).await;
                let mut unserved = self.unserved.borrow_mut();
                let Some(at) = unserved.iter().position(|it| it.path == path) else { continue };
                match result {
                    Ok(()) => drop(unserved.swap_remove(at)),
                    Err(error) => {
                        unserved[at] =
                            UnservedTarget::new(&path, &error, Some(pause), Duration::ZERO);
                    }
                }
            }
        }
    }

    /// Opens a target and starts its thread. Registers the target if the map does not contain it.
    async fn serve_again(&self, path: &Path, pause: Duration) -> Result<()> {
        let mut directory = self.host.open_target(path, &self.node.borrow())?;
        let (map, node) = (self.membership.map_cell().load(), self.membership.node());
        if !is_known(&map, node, &directory) {
            let free_space = capacity::capacity(path, self.host.reserve);
            let claim = self.host.claim(&directory);
            let target = self.membership.add_target(claim, free_space).await?;
            directory.assign(node, target)?;
        }
        tracing::info!("this node has opened {} again", path.display());
        self.start(directory, Some(pause))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::ErrorCode;

    #[test]
    fn pauses_double_until_a_target_is_repaired() {
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
