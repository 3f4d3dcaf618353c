//! The repeated attempts of a node to serve the targets that the node cannot serve at the moment.
//!
//! The module `unserved` computes the pauses between the attempts, and `targets` starts the threads
//! of targets.

use super::targets::{ServingNode, is_known};
use super::{capacity, known_group};
use skep_store::identity::Directory;
use skep_types::{Result, TargetId};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

/// Interval at which the node looks for targets whose pause between two attempts has ended.
const LOOK: Duration = Duration::from_millis(250);

impl ServingNode {
    /// Repeats the attempts to serve the unserved targets until this future is dropped.
    pub(super) async fn retry_unserved(self: Rc<Self>) {
        // Retry: the node tries again to serve a target after a pause of 1 s, which doubles up to
        // 60 s, without limit.
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
                        unserved[at].failed_again(&error, skep_env::now());
                    }
                }
            }
        }
    }

    /// Registers a target of the running node, unless the map already contains it. Returns the id
    /// of a newly registered target.
    pub(super) async fn register_late(&self, directory: &Directory) -> Result<Option<TargetId>> {
        if is_known(&self.membership.map_cell().load(), self.membership.node(), directory) {
            return Ok(None);
        }
        let free_space = capacity::capacity(directory.path(), self.host.reserve);
        let (claim, group) = (self.host.claim(directory), known_group::read(directory.path()));
        self.membership.add_target(claim, free_space, group).await.map(Some)
    }

    /// Opens a target and starts its thread. Registers the target if the map does not contain it.
    async fn serve_again(&self, path: &Path, pause: Duration) -> Result<()> {
        let mut directory = self.host.open_target(path, &self.node.borrow())?;
        if let Some(target) = self.register_late(&directory).await? {
            directory.assign(self.membership.node(), target)?;
        }
        tracing::info!("this node has reopened the target in {}", path.display());
        self.start(directory, Some(pause))
    }
}
