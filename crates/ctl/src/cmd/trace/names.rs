//! The names of the inodes whose operations `skep trace` shows: the path in the arguments and, for
//! a directory, its entries.
//!
//! The record of a lookup or of a creation contains the name and the inode of the entry. So the
//! command shows all operations on a new file. For other entries, the command lists the directory
//! again when a record of an operation on an unknown inode arrives. The command lists the directory
//! at most once per [`LIST_EVERY`], because listing a large directory costs many requests.

use super::Inode;
use crate::in_time::LOOKUP_PATIENCE;
use skep_fuse::EntryNames;
use skep_types::{Error, Result};
use std::collections::HashMap;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

/// Maximum number of watched entries. The command does not show operations on further entries.
const MAX_ENTRIES: usize = 100_000;
/// Minimum time between two listings of the directory.
const LIST_EVERY: Duration = Duration::from_secs(1);

/// The inodes whose operations the command shows, with their names.
#[derive(Debug)]
pub(crate) struct WatchedNames {
    path: PathBuf,
    /// The inode at `path`.
    inode: Inode,
    is_directory: bool,
    owner: u32,
    /// Names from listings of the directory.
    names: HashMap<u64, String>,
    /// Names from operations. Names from operations are newer than the names from listings.
    learned: HashMap<u64, String>,
    listed_at: Option<Duration>,
    /// The channel through which a thread that did not list the directory in time sends the
    /// entries.
    listing: Option<Receiver<Entries>>,
}

/// The inodes of the entries of a directory, with their names.
type Entries = Vec<(u64, String)>;

impl WatchedNames {
    /// Watches the inode at `path`, and its entries if the inode is a directory.
    ///
    /// # Errors
    /// Errors of the file system, with the path.
    pub(crate) fn of(path: &Path, inode: Inode) -> Result<Self> {
        let metadata = std::fs::symlink_metadata(path);
        let metadata = metadata.map_err(|error| {
            Error::from(error)
                .within(format_args!("cannot read the attributes of {}", path.display()))
        })?;
        let is_directory = metadata.is_dir();
        let names = HashMap::from([(inode.raw(), String::new())]);
        Ok(Self {
            path: path.to_owned(),
            inode,
            is_directory,
            owner: metadata.uid(),
            names,
            learned: HashMap::new(),
            listed_at: None,
            listing: None,
        })
    }

    /// Whether this user is neither root nor the owner of the path. In this case, the command does
    /// not show operations of other users on the path.
    pub(crate) fn is_of_another_user(&self) -> bool {
        let user = rustix::process::geteuid();
        !user.is_root() && user.as_raw() != self.owner
    }

    /// Stores the names of the directory's entries from the record of a successful operation on
    /// `inode`.
    pub(crate) fn learn(&mut self, inode: Inode, names: &EntryNames) {
        let name = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let other = names.other_inode;
        if !self.is_directory || inode != self.inode || names.name.is_empty() {
            return;
        }
        if names.new_name.is_empty() {
            if other != Inode::default() && other != self.inode {
                self.add_learned(other, name(&names.name));
            }
        } else if other == self.inode
            && let Some(renamed) = self.inode_of(&name(&names.name))
        {
            self.add_learned(renamed, name(&names.new_name));
        }
    }

    fn add_learned(&mut self, inode: Inode, name: String) {
        if self.learned.len() >= MAX_ENTRIES {
            // The next listing finds the entries that still exist.
            self.learned.clear();
        }
        self.learned.insert(inode.raw(), name);
    }

    fn inode_of(&self, name: &str) -> Option<Inode> {
        let has_name = |it: &(&u64, &String)| it.1 == name;
        let is_current = |it: &(&u64, &String)| !self.learned.contains_key(it.0);
        let listed = || self.names.iter().filter(is_current).find(has_name);
        let found = self.learned.iter().find(has_name).or_else(listed);
        found.map(|(inode, _)| Inode::new(*inode))
    }

    /// Returns the name of an inode relative to the path. `None` if the inode is not watched.
    pub(crate) fn name_of(&mut self, inode: Inode, now: Duration) -> Option<String> {
        let is_due = self.listed_at.is_none_or(|at| now.saturating_sub(at) >= LIST_EVERY);
        if let Some(name) = self.learned.get(&inode.raw()) {
            return Some(name.clone());
        }
        if !self.names.contains_key(&inode.raw()) && self.is_directory && is_due {
            self.listed_at = Some(now);
            self.list();
        }
        self.names.get(&inode.raw()).cloned()
    }

    /// Adds the entries of the directory to the watched inodes. The function keeps the names of
    /// removed files, because records of operations on these files may still arrive.
    ///
    /// A separate thread lists the directory, because the servers of the directory may be absent.
    /// If the thread does not end in time, a later call adds the entries.
    fn list(&mut self) {
        let listing = self.listing.take().or_else(|| {
            let (sender, receiver) = sync_channel(1);
            let path = self.path.clone();
            let run = move || drop(sender.send(entries_of(&path)));
            skep_env::spawn_thread("skep-names".into(), None, run).ok()?;
            Some(receiver)
        });
        let Some(listing) = listing else { return };
        let entries = match listing.recv_timeout(LOOKUP_PATIENCE) {
            Ok(entries) => entries,
            Err(RecvTimeoutError::Timeout) => {
                self.listing = Some(listing);
                return;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        for (inode, name) in entries {
            if self.names.len() >= MAX_ENTRIES {
                return;
            }
            self.names.entry(inode).or_insert(name);
        }
    }
}

/// Lists a directory, up to [`MAX_ENTRIES`] entries. The result is empty if this user may not list
/// the directory.
fn entries_of(directory: &Path) -> Entries {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let named = entries.map(|it| (it.ino(), it.file_name().to_string_lossy().into_owned()));
    named.take(MAX_ENTRIES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_is_listed_at_most_once_a_second_for_unknown_inodes() {
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
        // If the watched path is a file, `WatchedNames` lists no directory, and so finds no other
        // file.
        let mut one = WatchedNames::of(&file, inode_of(&file)).unwrap();
        assert_eq!(one.name_of(inode_of(&second), at(9)), None);
    }
}
