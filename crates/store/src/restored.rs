//! The marks of a directory that was restored from a backup.
//!
//! A restored directory lacks the changes since the backup. So its service would assign ids and
//! numbers that it already assigned after the backup was made. The first start with a marked
//! directory assigns only far higher ids and numbers. Owns the mark files only. The services own
//! the numbers.

use crate::atomic::{replace_atomically, sync_directory};
use skep_types::{Error, Result};
use std::path::Path;

/// Name of the mark of a restored directory. The next start of the service must assign only ids and
/// numbers above all that the service may have assigned.
pub const RESTORED_MARK: &str = "restored";
/// Name of the mark in the directory of a restored metadata target. While it exists, storage must
/// not remove chunk files that no inode of the target owns. An administrator removes the mark.
pub const REMOVAL_OFF_MARK: &str = "removal-off";

/// Whether a directory has a mark.
///
/// # Errors
/// Errors of the file system, which name the path.
pub fn has(directory: &Path, mark: &str) -> Result<bool> {
    let path = directory.join(mark);
    path.try_exists().map_err(|error| Error::from(error).within(path.display()))
}

/// Marks a directory durably. Blocks.
///
/// # Errors
/// Errors of the file system, which name the path.
pub fn mark(directory: &Path, mark: &str) -> Result<()> {
    replace_atomically(&directory.join(mark), b"")
}

/// Removes a mark durably, if the directory has it. Blocks.
///
/// # Errors
/// Errors of the file system, which name the path.
pub fn unmark(directory: &Path, mark: &str) -> Result<()> {
    let path = directory.join(mark);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        removed => removed.map_err(|error| Error::from(error).within(path.display()))?,
    }
    sync_directory(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mark_of_a_restore_is_set_and_deleted_independently() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        mark(path, RESTORED_MARK).unwrap();
        assert!(has(path, RESTORED_MARK).unwrap() && !has(path, REMOVAL_OFF_MARK).unwrap());
        for _ in 0..2 {
            unmark(path, RESTORED_MARK).unwrap();
            assert!(!has(path, RESTORED_MARK).unwrap());
        }
    }
}
