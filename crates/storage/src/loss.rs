//! Records whether an administrator has marked this target as lost (`skep target remove --lost`).
//!
//! The module writes and reads the mark file `lost` in the directory of a lost target, and refuses
//! the requests to such a target. The cluster map contains the administrator's decision. On a
//! sender with this map, `skep_rpc::routing` refuses these requests and sends nothing.
//!
//! # Hazard
//! A lost disk may come back. The chunk files on such a disk lack the writes, truncations and
//! removals since the loss. If the target served these files under an old map, a program would read
//! old bytes after another program got `EIO` for these bytes. So the target marks its directory
//! when it gets the map in which it is lost. A target whose directory has the mark file refuses
//! requests after each restart and under each map.

use skep_store::restored;
use skep_types::map::{Condition, Consistency, TargetHealth};
use skep_types::{ClusterMap, Error, ErrorCode, Result, TargetId};
use std::cell::Cell;
use std::path::{Path, PathBuf};

/// Name of the mark file in the directory of a lost target.
const LOST_MARK: &str = "lost";

/// Whether one target is lost, and whether its mark file exists.
#[derive(Debug)]
pub(crate) struct Loss {
    directory: PathBuf,
    target: TargetId,
    is_lost: Cell<bool>,
    /// Whether the mark file is durable.
    is_marked: Cell<bool>,
}

impl Loss {
    /// Creates the loss state of a target: reads from its directory whether the target is lost, and
    /// logs a loss. This call blocks.
    ///
    /// # Errors
    /// Errors of the file system, with the path.
    pub(crate) fn open(directory: &Path, target: TargetId) -> Result<Self> {
        let is_marked = restored::has(directory, LOST_MARK)?;
        let directory = directory.to_owned();
        let is_lost = Cell::new(is_marked);
        let loss = Self { directory, target, is_lost, is_marked: Cell::new(is_marked) };
        if is_marked {
            loss.log();
        }
        Ok(loss)
    }

    /// If the target is lost in `map`, marks the directory of the target durably, and logs the loss
    /// once. If the mark file cannot be written, the target still refuses requests until the
    /// process ends, and this function repeats the write with each newer map. This call blocks.
    pub(crate) fn note(&self, map: &ClusterMap) {
        let is_bad = |target: &skep_types::Target| target.consistency == Consistency::Bad;
        if self.is_marked.get() || !map.target(self.target).is_some_and(is_bad) {
            return;
        }
        match restored::mark(&self.directory, LOST_MARK) {
            Ok(()) => self.is_marked.set(true),
            Err(error) => tracing::error!(
                "cannot mark {} as lost: {error}; this process refuses requests for target {}; \
                 remove the target from the settings of its service before the next start",
                self.directory.display(),
                self.target
            ),
        }
        if !self.is_lost.replace(true) {
            self.log();
        }
    }

    fn log(&self) {
        tracing::error!(
            "target {} ({}) was marked as lost, and refuses all requests; remove the target from \
             the settings of its service. To use its disk again, add a new target in an empty \
             directory",
            self.target,
            self.directory.display()
        );
    }

    /// Whether the target is lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.get()
    }

    /// Refuses requests if the target is lost.
    ///
    /// # Errors
    /// `TargetLost` with the target and its directory.
    pub(crate) fn check(&self) -> Result<()> {
        if !self.is_lost.get() {
            return Ok(());
        }
        let what = format!(
            "target {} ({}) was marked as lost, with all bytes of this target; restore the file \
             from a backup, or copy the file if it had no bytes on this target (`skep target \
             remove --lost {}` lists the files that lost bytes)",
            self.target,
            self.directory.display(),
            self.target.raw()
        );
        Err(Error::new(ErrorCode::TargetLost, what))
    }

    /// Returns the read-only condition that a lost target reports to management. `None` means that
    /// the target is not lost.
    pub(crate) fn health(&self) -> Option<TargetHealth> {
        let problem = "the target was marked as lost, and refuses all requests";
        self.is_lost.get().then(|| TargetHealth::new(Condition::ReadOnly, problem))
    }
}
