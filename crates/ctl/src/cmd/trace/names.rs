//! The names of the inodes whose operations `skep trace` shows: a path, and the entries of a
//! directory.
//!
//! Does not own the records of operations. New entries are found when an operation on an unknown
//! inode arrives, at most once in an interval: the list of a large directory costs requests.

use super::Inode;
use skep_types::{Error, Result};
use std::collections::HashMap;
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum number of entries. Operations on further ones are not shown.
const MAX_ENTRIES: usize = 100_000;
/// Shortest time between two lists of the directory.
const LIST_EVERY: Duration = Duration::from_secs(1);

/// The watched inodes with their names.
#[derive(Debug)]
pub(crate) struct WatchedNames {
    path: PathBuf,
    is_directory: bool,
    names: HashMap<u64, String>,
    listed_at: Option<Duration>,
}

impl WatchedNames {
    /// Watches the inode at `path`, and its entries if it is a directory.
    ///
    /// # Errors
    /// Errors of the file system, with the path.
    pub(crate) fn of(path: &Path, inode: Inode) -> Result<Self> {
        let metadata = std::fs::symlink_metadata(path);
        let metadata = metadata.map_err(|error| Error::from(error).within(path.display()))?;
        let is_directory = metadata.is_dir();
        let names = HashMap::from([(inode.raw(), String::new())]);
        Ok(Self { path: path.to_owned(), is_directory, names, listed_at: None })
    }

    /// Returns the name of an inode below the path, or `None` if it is not watched.
    pub(crate) fn name_of(&mut self, inode: Inode, now: Duration) -> Option<String> {
        let is_due = self.listed_at.is_none_or(|at| now.saturating_sub(at) >= LIST_EVERY);
        if !self.names.contains_key(&inode.raw()) && self.is_directory && is_due {
            self.listed_at = Some(now);
            self.list();
        }
        self.names.get(&inode.raw()).cloned()
    }

    /// Adds the entries of the directory. Names of removed files stay, since records of their last
    /// operations may still arrive.
    fn list(&mut self) {
        let Ok(entries) = std::fs::read_dir(&self.path) else { return };
        for entry in entries.flatten() {
            if self.names.len() >= MAX_ENTRIES {
                return;
            }
            let name = entry.file_name().to_string_lossy().into_owned();
            self.names.entry(entry.ino()).or_insert(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn new_entries_are_found_when_they_are_used() {
        let place = tempfile::tempdir().unwrap();
        let inode_of = |path: &Path| Inode::new(std::fs::metadata(path).unwrap().ino());
        let mut names = WatchedNames::of(place.path(), inode_of(place.path())).unwrap();
        let at = Duration::from_secs;
        assert_eq!(names.name_of(inode_of(place.path()), at(5)).as_deref(), Some(""));
        let file = place.path().join("file");
        std::fs::write(&file, "x").unwrap();
        assert_eq!(names.name_of(inode_of(&file), at(6)).as_deref(), Some("file"));
        assert_eq!(names.name_of(Inode::new(u64::MAX), at(6)), None);
        let second = place.path().join("second");
        std::fs::write(&second, "x").unwrap();
        assert_eq!(names.name_of(inode_of(&second), at(6)), None, "the list is too new");
        assert_eq!(names.name_of(inode_of(&second), at(7)).as_deref(), Some("second"));
        // A file has no entries.
        let mut one = WatchedNames::of(&file, inode_of(&file)).unwrap();
        assert_eq!(one.name_of(inode_of(&second), at(9)), None);
    }
}
