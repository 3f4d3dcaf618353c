//! The walk over the tree: lists directories, checks each entry, and removes old entries.
//!
//! # Hazard: hostile users
//! Root purges directories in which any user may rename and replace entries at any moment. So each
//! directory is opened once, relative to the descriptor of its parent, without following a symbolic
//! link and without crossing a mount point. Entries are removed relative to the descriptor of their
//! directory. A user who replaces a directory by a symbolic link between two steps cannot lead the
//! purge to another directory: the purge continues in the directory that it has opened, wherever
//! the user has moved it.
//!
//! # Hazard: files that are replaced
//! A program may replace an old file by a new one with `rename` between the check and the removal.
//! So the check comes directly before the removal, and asks the file system. The kernel has no call
//! that removes a name only if it still leads to a certain file. Less than a millisecond passes
//! between the check and the removal. If the replacement happens in this time, the purge removes
//! the new file.

use super::entry::{EntryAttributes, OpenEntry, open_directory, open_entry};
use super::pass::{Action, Pass};
use super::totals::Totals;
use crate::failure::Failure;
use crate::tree;
use crate::walk::{BATCH, MOST_LEVELS};
use rustix::fs::{AtFlags, Dir, FileType, unlinkat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Number of entries in a unit of work. This number is small, so that all threads work on one
/// directory with many files. The number is also large enough that the threads rarely wait for each
/// other.
const ENTRIES: usize = 32;

/// Number of levels below the top at which a thread lists [`BATCH`] entries of a directory at a
/// time. At deeper levels, a thread lists only [`ENTRIES`] entries at a time. Without the smaller
/// batches, a user could create a tree of 2048 levels with many long names on each level. A full
/// batch of names of each level would be in memory at the same time.
const WIDE_LEVELS: usize = 32;

/// A unit of work for a thread.
pub(super) enum Work {
    /// Opens a directory.
    Directory { parent: Arc<Directory>, name: OsString },
    /// Lists the next entries of a directory.
    List { directory: Arc<Directory>, stream: Dir },
    /// Checks entries of a directory, and removes the old ones.
    Entries { directory: Arc<Directory>, names: Vec<OsString> },
}

/// A directory of the tree. The directory is open until the purge has processed all its entries.
/// [`Drop`] then removes the directory, if it is old and empty, and the user has asked for the
/// removal of empty directories.
pub(super) struct Directory {
    pass: Arc<Pass>,
    /// `None` means that this is the top directory, which is never removed.
    parent: Option<Arc<Directory>>,
    /// The name in the parent. Empty for the top directory. The whole path is not stored, because
    /// users may create very long ones.
    name: OsString,
    level: usize,
    file: File,
    /// The attributes before this run has removed entries from the directory.
    before: EntryAttributes,
    /// Whether an entry stays in the directory.
    keeps_entry: AtomicBool,
}

/// The result for one entry.
enum Fate {
    /// The entry was removed, is counted as an entry to remove, or had been removed by another
    /// program.
    Removed,
    Stays,
    /// The entry is a directory, for which another unit of work is needed.
    Directory,
}

/// Whether an entry could be removed.
enum Removal {
    Done,
    /// A program has changed, replaced or removed the entry.
    Changed,
    /// A program has the file open for writing.
    InUse,
}

impl Work {
    /// Returns the first units of work of a pass. `top` is the directory that is purged.
    pub(super) fn begin(pass: &Arc<Pass>, top: File) -> Result<Vec<Self>, Failure> {
        let gone = || Failure::because("purge", "a program has removed the directory");
        let before = EntryAttributes::of_file(&top)?.ok_or_else(gone)?;
        let directory = Directory {
            pass: pass.clone(),
            parent: None,
            name: OsString::new(),
            level: 0,
            file: top,
            before,
            keeps_entry: AtomicBool::new(false),
        };
        Ok(vec![directory.listing()?])
    }

    /// Does the unit of work, and returns the units that follow from it.
    pub(super) fn perform(self) -> Vec<Self> {
        let (directory, name, result) = match self {
            Self::Directory { parent, name } => {
                let result = if parent.pass.is_stopped() { Ok(None) } else { parent.open(&name) };
                (parent, Some(name), result.map(|work| work.into_iter().collect::<Vec<_>>()))
            }
            Self::List { directory, stream } => {
                let result = match directory.pass.is_stopped() {
                    true => Ok(Vec::new()),
                    false => list(&directory, stream),
                };
                (directory, None, result)
            }
            Self::Entries { directory, names } => return directory.check(names),
        };
        result.unwrap_or_else(|failure| {
            directory.keep_entry();
            let mut path = directory.path();
            path.extend(name);
            directory.pass.fail(&path, &failure);
            Vec::new()
        })
    }
}

/// Lists the next entries of a directory. The first unit in the result lists the remaining entries.
/// Threads take this unit last.
fn list(directory: &Arc<Directory>, mut stream: Dir) -> Result<Vec<Work>, Failure> {
    let limit = if directory.level < WIDE_LEVELS { BATCH } else { ENTRIES };
    let entries = tree::list(&mut stream, limit)?;
    let is_end = entries.len() < limit;
    let is_directory = |entry: &(OsString, FileType)| entry.1 == FileType::Directory;
    let (directories, others): (Vec<_>, Vec<_>) = entries.into_iter().partition(is_directory);
    let mut work = Vec::new();
    if !is_end {
        work.push(Work::List { directory: directory.clone(), stream });
    }
    let open = |(name, _)| Work::Directory { parent: directory.clone(), name };
    work.extend(directories.into_iter().map(open));
    let mut rest = others.into_iter().map(|(name, _)| name).peekable();
    while rest.peek().is_some() {
        let names = rest.by_ref().take(ENTRIES).collect();
        work.push(Work::Entries { directory: directory.clone(), names });
    }
    Ok(work)
}

impl Directory {
    /// Returns the unit of work that lists the directory.
    fn listing(self) -> Result<Work, Failure> {
        match Dir::read_from(&self.file) {
            Ok(stream) => Ok(Work::List { directory: Arc::new(self), stream }),
            Err(error) => {
                self.keep_entry();
                Err(Failure::of("list the directory")(error))
            }
        }
    }

    /// Returns the path below the top.
    fn path(&self) -> PathBuf {
        let ancestors = std::iter::successors(Some(self), |it| it.parent.as_deref());
        let names: Vec<_> = ancestors.map(|it| &it.name).collect();
        names.into_iter().rev().collect()
    }

    /// Records that an entry stays in the directory.
    fn keep_entry(&self) {
        self.keeps_entry.store(true, Ordering::Relaxed);
    }

    /// Opens a directory in this directory. `None` means that nothing in the opened directory is
    /// purged.
    fn open(self: &Arc<Self>, name: &OsStr) -> Result<Option<Work>, Failure> {
        let skip = |count: fn(&mut Totals)| {
            self.keep_entry();
            let mut totals = Totals::default();
            count(&mut totals);
            self.pass.add(totals);
            Ok(None)
        };
        if self.pass.options.selection.excludes(&self.path().join(name)) {
            return skip(|totals| totals.skipped.excluded += 1);
        }
        if self.level >= MOST_LEVELS {
            let reason = format!(
                "the directory is more than {MOST_LEVELS} levels below the top; purge it with a \
                 separate command"
            );
            return Err(Failure::because("purge the directory", reason));
        }
        let file = match open_directory(&self.file, name) {
            Ok(file) => file,
            Err(Errno::XDEV) => return skip(|totals| totals.skipped.mount_points += 1),
            // A program has removed the directory, or has replaced it by another entry.
            Err(Errno::NOENT | Errno::STALE | Errno::NOTDIR | Errno::LOOP) => {
                return skip(|totals| totals.skipped.changed += 1);
            }
            Err(error) => return Err(Failure::of("open the directory")(error)),
        };
        let Some(before) = EntryAttributes::of_file(&file)? else {
            return skip(|totals| totals.skipped.changed += 1);
        };
        let directory = Self {
            pass: self.pass.clone(),
            parent: Some(self.clone()),
            name: name.to_owned(),
            level: self.level + 1,
            file,
            before,
            keeps_entry: AtomicBool::new(false),
        };
        directory.listing().map(Some)
    }

    /// Checks entries of the directory, and removes the old ones.
    fn check(self: Arc<Self>, names: Vec<OsString>) -> Vec<Work> {
        let mut totals = Totals::default();
        let mut more = Vec::new();
        let directory = self.path();
        for name in names {
            if self.pass.is_stopped() {
                break;
            }
            let path = directory.join(&name);
            match self.entry(&path, &name, &mut totals) {
                Ok(Fate::Removed) => {}
                Ok(Fate::Stays) => self.keep_entry(),
                Ok(Fate::Directory) => more.push(Work::Directory { parent: self.clone(), name }),
                Err(failure) => {
                    self.keep_entry();
                    self.pass.fail(&path, &failure);
                }
            }
        }
        self.pass.add(totals);
        more
    }

    /// Checks an entry, and removes it if it is old. `path` is its path below the top.
    fn entry(&self, path: &Path, name: &OsStr, totals: &mut Totals) -> Result<Fate, Failure> {
        let pass = &self.pass;
        let file = match open_entry(&self.file, name)? {
            OpenEntry::Open(file) => file,
            OpenEntry::Absent => return Ok(Fate::Removed),
            OpenEntry::MountPoint => {
                totals.skipped.mount_points += 1;
                return Ok(Fate::Stays);
            }
        };
        let Some(entry) = self.attributes(&file)? else { return Ok(Fate::Removed) };
        drop(file);
        if entry.kind == FileType::Directory {
            return Ok(Fate::Directory);
        }
        totals.scanned += 1;
        pass.note_scanned();
        if entry.device != pass.device {
            totals.skipped.mount_points += 1;
            return Ok(Fate::Stays);
        }
        if !pass.is_selected(&entry) {
            return Ok(Fate::Stays);
        }
        if pass.options.selection.excludes(path) {
            totals.skipped.excluded += 1;
            return Ok(Fate::Stays);
        }
        if pass.action == Action::Remove {
            match self.remove(name, &entry)? {
                Removal::Done => {}
                Removal::Changed => {
                    totals.skipped.changed += 1;
                    return Ok(Fate::Stays);
                }
                Removal::InUse => {
                    totals.skipped.in_use += 1;
                    return Ok(Fate::Stays);
                }
            }
        }
        totals.add(path, &entry, pass.age_begin(&entry));
        pass.note_removed(path, &entry);
        Ok(Fate::Removed)
    }

    /// Reads the attributes that an entry had before this run removed another name of the file.
    /// `None` means that the entry does not exist any more.
    fn attributes(&self, file: &File) -> Result<Option<EntryAttributes>, Failure> {
        let Some(entry) = EntryAttributes::cached(file)? else { return Ok(None) };
        let Some(names) = self.pass.names.known(entry.inode) else { return Ok(Some(entry)) };
        // Another thread may have removed a name after the attributes were read.
        let present = EntryAttributes::of_file(file)?;
        Ok(present.map(|present| names.original(present)))
    }

    /// Removes an entry, unless it has changed since `seen` was read.
    fn remove(&self, name: &OsStr, seen: &EntryAttributes) -> Result<Removal, Failure> {
        let pass = &self.pass;
        pass.pace.take(1);
        let mut names = (seen.links > 1).then(|| pass.names.lock(seen.inode));
        let OpenEntry::Open(entry) = open_entry(&self.file, name)? else {
            return Ok(Removal::Changed);
        };
        let Some(present) = EntryAttributes::of_file(&entry)? else { return Ok(Removal::Changed) };
        let judged = names.as_ref().map_or(present, |names| names.original(present));
        // The kernel's dentry cache may still return a file that another host has replaced. Such a
        // file has no name left, or it has a new change time.
        if (judged.inode, judged.device, judged.kind) != (seen.inode, seen.device, seen.kind)
            || present.links == 0
            || pass.has_changed(&judged)
            || !pass.is_selected(&judged)
        {
            return Ok(Removal::Changed);
        }
        if judged.kind == FileType::RegularFile
            && let Some(is_written) = pass.options.is_written
            && is_written(&entry)
                .map_err(Failure::of("find out whether a program has the file open"))?
        {
            return Ok(Removal::InUse);
        }
        match unlinkat(&self.file, name, AtFlags::empty()) {
            Ok(()) => {}
            Err(Errno::NOENT | Errno::STALE | Errno::ISDIR) => return Ok(Removal::Changed),
            Err(error) => return Err(Failure::of("remove")(error)),
        }
        if let Some(names) = &mut names {
            let left = EntryAttributes::of_file(&entry).ok().flatten();
            names.removed(&judged, left);
        }
        Ok(Removal::Done)
    }

    /// Removes this directory from its parent if it is old, and no entry has stayed in it. In a
    /// pass that removes nothing, only counts the directory. Returns whether it was removed or
    /// counted.
    fn remove_empty(&self, parent: &Self) -> Result<bool, Failure> {
        let pass = &self.pass;
        let is_wanted = pass.options.empty_directories
            && pass.options.selection.includes_owner(self.before.uid)
            && pass.is_old(&self.before);
        if !is_wanted || self.keeps_entry.load(Ordering::Relaxed) {
            return Ok(false);
        }
        if pass.action == Action::Remove {
            let OpenEntry::Open(named) = open_entry(&parent.file, &self.name)? else {
                return Ok(false);
            };
            let present = EntryAttributes::of_file(&named)?;
            if present.is_none_or(|it| it.inode != self.before.inode) {
                return Ok(false);
            }
            match unlinkat(&parent.file, &self.name, AtFlags::REMOVEDIR) {
                Ok(()) => {}
                // A program has created an entry in the directory, uses it as a mount point, or has
                // removed or replaced it.
                Err(
                    Errno::NOTEMPTY
                    | Errno::EXIST
                    | Errno::BUSY
                    | Errno::NOENT
                    | Errno::NOTDIR
                    | Errno::STALE,
                ) => return Ok(false),
                Err(error) => return Err(Failure::of("remove the directory")(error)),
            }
        }
        let mut totals = Totals::default();
        totals.directories += 1;
        pass.add(totals);
        pass.note_removed(&self.path(), &self.before);
        Ok(true)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let Some(parent) = &self.parent else { return };
        if self.pass.is_stopped() {
            return;
        }
        let is_removed = self.remove_empty(parent).unwrap_or_else(|failure| {
            self.pass.fail(&self.path(), &failure);
            false
        });
        if !is_removed {
            parent.keep_entry();
        }
    }
}

#[cfg(test)]
mod tests;
