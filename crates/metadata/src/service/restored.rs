//! The marks in the directory of a metadata target that was restored from a backup.
//!
//! With the mark `restored`, the next start skips all inode numbers, transaction numbers, start
//! numbers and versions that the target may have assigned after the backup. The target removes this
//! mark when its new start record and number reservation are safe. While the mark `removal-off`
//! exists, storage keeps chunk files without an inode. Only an administrator removes this mark. The
//! module `target::restored` owns the numbers, and the module `skep_store::restored` owns the names
//! of the mark files.
//!
//! Also detects that the directory of a primary is an old backup without a mark, because another
//! member of its group has later records ([`check_not_rolled_back`]).

use crate::engine::Engine;
use crate::target::MetadataTarget;
use crate::term::{self, Membership};
use skep_store::page_cache::MemberMarkFile;
use skep_store::restored::{self, REMOVAL_OFF_MARK, RESTORED_MARK};
use skep_types::map::{Condition, TargetHealth};
use skep_types::{Epoch, Error, ErrorCode, Result};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The marks `restored` and `removal-off` of one target's directory.
pub(super) struct RestoredMarks {
    directory: PathBuf,
    /// Whether the directory still has the mark `restored`.
    is_restored: Cell<bool>,
    is_removal_off: Cell<bool>,
    /// The newest group epoch in which management has received the report of this process that the
    /// target may lack records. `None` means that management has received no report.
    reported_in: Cell<Option<Epoch>>,
}

impl RestoredMarks {
    /// Reads whether the directory of a target has the mark `restored`, and whether it has the mark
    /// `removal-off`.
    ///
    /// # Errors
    /// Errors of the file system, which name the path.
    pub(super) fn read(directory: &Path) -> Result<Self> {
        Ok(Self {
            directory: directory.to_owned(),
            is_restored: Cell::new(restored::has(directory, RESTORED_MARK)?),
            is_removal_off: Cell::new(restored::has(directory, REMOVAL_OFF_MARK)?),
            reported_in: Cell::new(None),
        })
    }

    /// If the directory has the mark `restored`, makes the primary skip numbers that it may have
    /// assigned, and sets the mark `removal-off`. The caller calls this function before the
    /// primary's first event.
    pub(super) fn apply<E: Engine>(&self, target: &mut MetadataTarget<E>) -> Result<()> {
        if self.is_restored.get() {
            restored::mark(&self.directory, REMOVAL_OFF_MARK)?;
            self.is_removal_off.set(true);
            target.continue_above_copy();
            tracing::warn!(
                "{} was restored from a backup: new inode numbers begin above all numbers that \
                 were assigned after the backup was made, and storage removes no chunk file \
                 without an inode until `skep target restored --allow-removal` permits it",
                self.directory.display()
            );
        }
        Ok(())
    }

    /// Removes the mark `restored` of a member that has all records of its group. A member with all
    /// records needs to skip no numbers, because the records contain the number reservations of the
    /// group.
    ///
    /// # Errors
    /// Errors of the file system, which name the path.
    pub(super) fn forget_copy(&self) -> Result<()> {
        if self.is_restored.replace(false) {
            restored::unmark(&self.directory, RESTORED_MARK)?;
        }
        Ok(())
    }

    /// Whether the directory still has the mark `restored`.
    pub(super) fn is_restored(&self) -> bool {
        self.is_restored.get()
    }

    /// Notes that management has received, in the group epoch `epoch`, the report of this process
    /// that the target may lack records. Management receives a report only in the present epoch.
    pub(super) fn note_report(&self, epoch: Epoch) {
        self.reported_in.set(self.reported_in.get().max(Some(epoch)));
    }

    /// Whether the mark `restored` permits the target to act as the primary of a group of several
    /// members in the epoch `epoch`.
    ///
    /// In an epoch from before the restore, the target would assign the LSNs of its missing records
    /// to new records. A member that does not serve may have the missing records, with the same
    /// epoch, so no comparison of the two logs would find the difference. The cluster map of this
    /// process may be old, so only an epoch that has begun after a report of this process is
    /// certainly a new epoch. Management begins a new epoch because of the report
    /// ([`skep_cluster::losses`]).
    pub(super) fn permits_leading_in(&self, epoch: Epoch) -> bool {
        !self.is_restored.get() || self.reported_in.get().is_some_and(|reported| reported < epoch)
    }

    /// Whether storage must keep the chunk files that no inode owns.
    pub(super) fn is_removal_off(&self) -> bool {
        self.is_removal_off.get()
    }

    /// Removes the mark `restored` if the new start record and number reservation are safe.
    ///
    /// # Errors
    /// `Configuration` if storage has a chunk file of an inode that the target has not assigned, so
    /// the target's directory is an old backup. This function then sets the mark `restored`, so the
    /// next start skips numbers.
    pub(super) fn after_batch<E: Engine>(&self, target: &MetadataTarget<E>) -> Result<()> {
        if self.is_restored.get() && target.has_safe_numbers() {
            restored::unmark(&self.directory, RESTORED_MARK)?;
            self.is_restored.set(false);
        }
        let Some(inode) = target.newer_inode() else { return Ok(()) };
        restored::mark(&self.directory, RESTORED_MARK)?;
        let what = format!(
            "the directory {} is an old backup: storage has bytes of inode {inode}, and this \
             target has not assigned this inode number. The target stops; after its next start, it \
             assigns only numbers that were never used",
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
            tracing::info!(
                "{}: storage may remove chunk files without an inode again",
                self.directory.display()
            );
            return TargetHealth::default();
        }
        let problem = "the target was restored from a backup, so storage removes no chunk files \
                       without an inode until `skep target restored --allow-removal` permits it";
        TargetHealth::new(Condition::Serving, problem)
    }
}

/// Ends the role of the primary of a new group if another member has records of this epoch that the
/// log of `target` lacks. The directory of `target` is then a backup that was made before the
/// creation of the group, and has no mark `restored`. The next start removes its store and its log,
/// and gets a copy from the member that takes over.
///
/// In the first epoch of a group, all members have served since its creation, so the other member
/// has all acknowledged changes. In a later epoch, this function does nothing, because an
/// administrator may have decided that `target` continues without the records of another member. A
/// target without a member mark does not lead in a later epoch (`opening::mark_old_backup`).
///
/// # Errors
/// - `Deposed` if another member has such records.
/// - Errors of the file system, which name the path.
pub(super) fn check_not_rolled_back<E: Engine>(
    target: &MetadataTarget<E>,
    membership: &Membership,
    mark: &mut MemberMarkFile,
) -> Result<()> {
    let Some((member, lsn)) = target.member_ahead() else { return Ok(()) };
    let newest = Membership { map: Arc::clone(target.map()), ..membership.clone() };
    if !newest.is_new() {
        return Ok(());
    }
    tracing::error!(
        "the directory of target {} is an old backup, or was emptied: target {member} of the same \
         metadata group {} has log record {lsn}, and the log of this target ends earlier; target \
         {member} takes over, and this target removes its store and gets a copy",
        newest.target,
        newest.group
    );
    mark.discard()?;
    Err(term::ended(newest.group))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restored_target_removes_no_chunk_file_until_permitted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        restored::mark(path, REMOVAL_OFF_MARK).unwrap();
        let marks = RestoredMarks {
            directory: path.to_owned(),
            is_restored: Cell::new(false),
            is_removal_off: Cell::new(true),
            reported_in: Cell::new(None),
        };
        assert!(marks.health().problem.contains("backup"));
        assert!(marks.is_removal_off());
        restored::unmark(path, REMOVAL_OFF_MARK).unwrap();
        assert_eq!(marks.health(), TargetHealth::default());
        assert!(!marks.is_removal_off());
    }

    /// The process may begin with an old cluster map, whose epoch is not the newest epoch of the
    /// group.
    #[test]
    fn restored_primary_leads_only_in_an_epoch_after_its_report() {
        let marks = RestoredMarks {
            directory: PathBuf::new(),
            is_restored: Cell::new(true),
            is_removal_off: Cell::new(false),
            reported_in: Cell::new(None),
        };
        let permits = |epoch| marks.permits_leading_in(Epoch::new(epoch));
        assert!(!permits(5));
        assert!(!permits(6), "the newest epoch from before the restore may be 6");
        marks.note_report(Epoch::new(6));
        assert!(!permits(6) && permits(7));
        marks.note_report(Epoch::new(5));
        assert!(!permits(6), "a late reply to an earlier report");
        marks.is_restored.set(false);
        assert!(permits(5), "the target has all records of its group");
    }
}
