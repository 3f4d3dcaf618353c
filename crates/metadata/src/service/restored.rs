//! The marks in the directory of a metadata target that was put back from a copy.
//!
//! `restored` makes a start continue with higher numbers. The target removes it when these numbers
//! are safe. `removal-off` keeps storage from removing chunk files; only an administrator removes
//! it. Does not own the numbers (`target::restored`) or the files' names (`skep_store::restored`).

use crate::engine::Engine;
use crate::target::MetadataTarget;
use skep_store::restored::{self, REMOVAL_OFF_MARK, RESTORED_MARK};
use skep_types::map::{Condition, TargetHealth};
use skep_types::{Error, ErrorCode, Result};
use std::cell::Cell;
use std::path::{Path, PathBuf};

/// The marks of one target.
pub(super) struct RestoredMarks {
    directory: PathBuf,
    /// Whether the directory still has the mark `restored`.
    is_restored: Cell<bool>,
    is_removal_off: Cell<bool>,
}

impl RestoredMarks {
    /// Reads the marks of a directory.
    ///
    /// # Errors
    /// Errors of the file system, with the path.
    pub(super) fn read(directory: &Path) -> Result<Self> {
        Ok(Self {
            directory: directory.to_owned(),
            is_restored: Cell::new(restored::has(directory, RESTORED_MARK)?),
            is_removal_off: Cell::new(restored::has(directory, REMOVAL_OFF_MARK)?),
        })
    }

    /// Makes a primary act on the marks before its first event.
    pub(super) fn apply<E: Engine>(&self, target: &mut MetadataTarget<E>) -> Result<()> {
        if self.is_restored.get() {
            restored::mark(&self.directory, REMOVAL_OFF_MARK)?;
            self.is_removal_off.set(true);
            target.continue_above_copy();
            tracing::warn!(
                "{} was put back from a copy: the numbers of new inodes continue above all that \
                 were assigned since, and storage removes no chunk file without an inode until \
                 `skep target restored --allow-removal` permits it",
                self.directory.display()
            );
        }
        Ok(())
    }

    /// Removes the mark `restored` of a member that has all records of its group. Such a member
    /// continues with the numbers of the group.
    ///
    /// # Errors
    /// Errors of the file system, with the path.
    pub(super) fn forget_copy(&self) -> Result<()> {
        if self.is_restored.replace(false) {
            restored::unmark(&self.directory, RESTORED_MARK)?;
        }
        Ok(())
    }

    /// Whether storage must not remove chunk files without an inode.
    pub(super) fn is_removal_off(&self) -> bool {
        self.is_removal_off.get()
    }

    /// Removes the mark `restored` when the higher numbers are safe.
    ///
    /// # Errors
    /// `Configuration` if the target has proved to be an old copy. The directory is then marked, so
    /// the next start continues with higher numbers.
    pub(super) fn after_batch<E: Engine>(&self, target: &MetadataTarget<E>) -> Result<()> {
        if self.is_restored.get() && target.has_safe_numbers() {
            restored::unmark(&self.directory, RESTORED_MARK)?;
            self.is_restored.set(false);
        }
        let Some(inode) = target.newer_inode() else { return Ok(()) };
        restored::mark(&self.directory, RESTORED_MARK)?;
        let what = format!(
            "{} is an old copy: storage has bytes of inode {inode}, which this target has not \
             assigned; the next start continues with higher numbers",
            self.directory.display()
        );
        Err(Error::new(ErrorCode::Configuration, what))
    }

    /// Checks whether the mark `removal-off` still exists, and returns the health of the target.
    pub(super) fn health(&self) -> TargetHealth {
        if !self.is_removal_off.get() {
            return TargetHealth::default();
        }
        // If the disk returns an error, the target assumes that the mark still exists.
        if matches!(restored::has(&self.directory, REMOVAL_OFF_MARK), Ok(false)) {
            self.is_removal_off.set(false);
            tracing::info!("{}: storage may remove chunk files again", self.directory.display());
            return TargetHealth::default();
        }
        let problem =
            "was put back from a copy, so storage removes no chunk files without an inode";
        TargetHealth::new(Condition::Serving, problem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removal_stays_off_until_its_mark_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        restored::mark(path, REMOVAL_OFF_MARK).unwrap();
        let marks = RestoredMarks {
            directory: path.to_owned(),
            is_restored: Cell::new(false),
            is_removal_off: Cell::new(true),
        };
        assert!(marks.health().problem.contains("copy"));
        assert!(marks.is_removal_off());
        restored::unmark(path, REMOVAL_OFF_MARK).unwrap();
        assert_eq!(marks.health(), TargetHealth::default());
        assert!(!marks.is_removal_off());
    }
}
