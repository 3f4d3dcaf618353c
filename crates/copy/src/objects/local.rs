//! Directories of the destination, to which objects are copied.
//!
//! A listing is sorted, so all objects of one directory follow each other. The thread that lists
//! the keys has the directories of the current key open. When the last unit of work in a directory
//! has ended, the directory gets its attributes and is synced.

use super::Pair;
use super::stored::Stored;
use crate::attributes;
use crate::context::Context;
use crate::failure::Failure;
use crate::outcome::Counters;
use crate::plan::is_temporary_of;
use crate::shares::{Key, Part};
use crate::tree::{self, Destination, Seen};
use rustix::fs::{
    AtFlags, Gid, Mode, Timespec, Timestamps, Uid, chownat, fchmod, fchown, futimens, utimensat,
};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Attributes that a copy gets if the metadata of its object contain no attributes, or may not
/// determine the owner.
#[derive(Debug, Clone, Copy)]
pub(super) struct Defaults {
    /// Owner and group of the directory that contains the destination. The process sets owner and
    /// group only if it runs as root.
    pub(super) owner: (u32, u32),
    /// The permission bits that the umask removes from new files.
    pub(super) umask: u32,
}

/// Returns the umask of this process. Reads it from /proc, because `umask(2)` would change it for a
/// moment.
pub(super) fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|it| it.strip_prefix("Umask:"));
    line.and_then(|it| u32::from_str_radix(it.trim(), 8).ok()).unwrap_or(0o022)
}

/// The state that all entries of one source share.
#[derive(Debug)]
pub(super) struct Top<'a> {
    pub(super) pair: Pair<'a>,
    pub(super) defaults: Defaults,
}

/// A directory of the destination.
#[derive(Debug)]
pub(super) struct Folder<'a> {
    pub(super) top: Arc<Top<'a>>,
    pub(super) context: Arc<Context>,
    /// `None` means that this is the directory that contains the top of the destination.
    parent: Option<Arc<Folder<'a>>>,
    pub(super) share: Key,
    /// The key of the directory in the form that messages show.
    shown: PathBuf,
    /// `None` means that the directory does not exist, which occurs in a dry run only.
    pub(super) destination: Option<Destination>,
    /// The attributes in the metadata of the object that stands for the directory.
    pub(super) stored: Mutex<Option<Stored>>,
    /// Whether the copy of an entry has failed. If so, incomplete copies in the directory are not
    /// removed.
    pub(super) has_failed: AtomicBool,
    /// The name of the copy, if the source is a single object. In this case the folder is the
    /// directory that contains the copy.
    only: Option<OsString>,
}

impl<'a> Folder<'a> {
    /// Creates the folder of the directory that contains the copy of a single object, or that
    /// contains the top directory of a tree. `file` is this directory, open. `None` means that the
    /// directory does not exist, which occurs in a dry run only.
    pub(super) fn above(
        top: Arc<Top<'a>>,
        context: Arc<Context>,
        (file, number): (Option<File>, usize),
        only: Option<OsString>,
    ) -> Result<Self, Failure> {
        let destination = file.map(|file| Destination::new(file, false)).transpose()?;
        Ok(Self {
            shown: top.pair.shown(&top.pair.key),
            top,
            context,
            parent: None,
            share: Key::of_pair(number),
            destination,
            stored: Mutex::new(None),
            has_failed: AtomicBool::new(false),
            only,
        })
    }

    /// Opens or creates the directory `name` in this directory.
    pub(super) fn below(self: &Arc<Self>, name: &OsStr) -> Result<Arc<Self>, Failure> {
        let is_dry_run = self.context.options.is_dry_run;
        if let Some(names) = self.destination.as_ref().and_then(|it| it.names.as_ref()) {
            names.claim(name)?;
        }
        let destination = match &self.destination {
            None => None,
            Some(parent) if is_dry_run => {
                let found = tree::open_directory(&parent.file, name).ok();
                found.map(|file| Destination::new(file, false)).transpose()?
            }
            Some(parent) => Some(tree::create_directory(&parent.file, name)?),
        };
        Counters::add(&self.context.counters.directories, 1);
        Ok(Arc::new(Self {
            top: self.top.clone(),
            context: self.context.clone(),
            parent: Some(self.clone()),
            share: self.share.entry(name),
            // For the top directory of a tree, messages show the key of its pair.
            shown: match self.parent.is_none() {
                true => self.shown.clone(),
                false => self.shown.join(name),
            },
            destination,
            stored: Mutex::new(None),
            has_failed: AtomicBool::new(false),
            only: None,
        }))
    }

    /// Sets the attributes of a directory whose entries are all complete, and syncs it.
    fn complete(&self, destination: &Destination) -> Result<(), Failure> {
        let options = &self.context.options;
        let sync = || match options.sync {
            true => destination.file.sync_all().map_err(Failure::of("sync the directory")),
            false => Ok(()),
        };
        match options.part {
            Part::Prepare => return Ok(()),
            // Other hosts are still copying into the directory, so the directory gets its
            // attributes in the last part of the copy.
            Part::Share(_) => return sync(),
            Part::Whole | Part::Finish => {}
        }
        if self.parent.is_none() {
            self.remove_leftovers_of_top(destination)?;
            return sync();
        }
        if !destination.is_new && !self.has_failed.load(Ordering::Relaxed) {
            tree::remove_leftovers(&destination.file)?;
        }
        let stored = self.stored.lock().expect("no thread panics while it has the lock").take();
        // A directory that existed before the copy keeps its own attributes if the bucket has no
        // attributes for the directory. When the last part of a copy by several hosts runs, the
        // first part has created the directory. Other users cannot enter the directory until its
        // attributes are set.
        let is_ours = destination.is_new || options.part == Part::Finish;
        match stored {
            Some(stored) => self.set(&destination.file, &stored, 0o777, None)?,
            None if is_ours => self.set(&destination.file, &Stored::default(), 0o777, None)?,
            None => {}
        }
        sync()
    }

    fn remove_leftovers_of_top(&self, destination: &Destination) -> Result<(), Failure> {
        let Some(only) = &self.only else { return Ok(()) };
        let failed = || Failure::of("list the destination directory");
        for entry in rustix::fs::Dir::read_from(&destination.file).map_err(failed())? {
            let name = entry.map_err(failed())?.file_name().to_bytes().to_vec();
            let name = OsString::from_vec(name);
            if is_temporary_of(&name, only) {
                tree::remove_leftover(&destination.file, &name)?;
            }
        }
        Ok(())
    }

    /// Returns the owner and group that an entry gets. `None` means that neither is changed.
    fn owner(&self, stored: &Stored) -> Option<(Uid, Gid)> {
        let options = &self.context.options;
        let is_set = options.owners && rustix::process::geteuid().is_root();
        let (uid, gid) = match (self.top.defaults.owner, options.store_owners) {
            ((uid, gid), true) => (stored.uid.unwrap_or(uid), stored.gid.unwrap_or(gid)),
            (owner, false) => owner,
        };
        is_set.then(|| (Uid::from_raw(uid), Gid::from_raw(gid)))
    }

    /// Sets the attributes of an open file or directory. `mode` and `modified` are used if the
    /// metadata of the object contain no mode or no time.
    pub(super) fn set(
        &self,
        file: &File,
        stored: &Stored,
        mode: u32,
        modified: Option<i64>,
    ) -> Result<(), Failure> {
        if let Some((uid, gid)) = self.owner(stored) {
            fchown(file, Some(uid), Some(gid)).map_err(Failure::of("set the owner of the copy"))?;
        }
        if self.context.options.xattrs && self.destination.as_ref().is_none_or(|it| it.gives_lists)
        {
            attributes::clear(file)?;
        }
        let permissions = stored.permissions(self.context.options.store_owners);
        let mode = permissions.unwrap_or(mode & !self.top.defaults.umask);
        fchmod(file, Mode::from_raw_mode(mode)).map_err(Failure::of("set the mode of the copy"))?;
        match stored.modified.or(modified.map(|it| (it, 0))) {
            Some(time) => {
                futimens(file, &times(time)).map_err(Failure::of("set the times of the copy"))
            }
            None => Ok(()),
        }
    }

    /// Sets the attributes of a symbolic link, which is open with `O_PATH`.
    pub(super) fn set_link(&self, link: &Seen, stored: &Stored) -> Result<(), Failure> {
        if let Some((uid, gid)) = self.owner(stored) {
            let changed = chownat(&link.file, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH);
            changed.map_err(Failure::of("set the owner of the copy"))?;
        }
        match stored.modified {
            Some(time) => utimensat(&link.file, "", &times(time), AtFlags::EMPTY_PATH)
                .map_err(Failure::of("set the times of the copy")),
            None => Ok(()),
        }
    }

    /// Whether a file already has the owner and mode that [`Self::set`] would set.
    pub(super) fn has_attributes(&self, found: &std::fs::Metadata, stored: &Stored) -> bool {
        let owner = self.owner(stored).map(|(uid, gid)| (uid.as_raw(), gid.as_raw()));
        let permissions = stored.permissions(self.context.options.store_owners);
        owner.is_none_or(|it| it == (found.uid(), found.gid()))
            && permissions.is_none_or(|it| it == found.mode() & 0o7777)
    }
}

fn times((tv_sec, tv_nsec): (i64, i64)) -> Timestamps {
    let time = Timespec { tv_sec, tv_nsec };
    Timestamps { last_access: time, last_modification: time }
}

impl Drop for Folder<'_> {
    fn drop(&mut self) {
        let Some(destination) = &self.destination else { return };
        if self.context.options.is_dry_run || self.context.is_stopped() {
            return;
        }
        if let Err(failure) = self.complete(destination) {
            self.context.problem(&self.shown, &failure);
        }
    }
}

/// The open directories on the path to the current key of a listing.
pub(super) struct Path<'a> {
    /// The top directory of the tree.
    top: Arc<Folder<'a>>,
    /// The directories below the top, each with its name. `None` in place of a directory means that
    /// it could not be created. This failure was already reported.
    open: Vec<(String, Option<Arc<Folder<'a>>>)>,
}

impl<'a> Path<'a> {
    pub(super) fn new(top: Arc<Folder<'a>>) -> Self {
        Self { top, open: Vec::new() }
    }

    /// Returns the directory with the path `names` below the top. Closes the open directories that
    /// are not on this path.
    ///
    /// # Errors
    /// Returns the failure if a directory cannot be created.
    pub(super) fn enter(&mut self, names: &[&str]) -> Result<Arc<Folder<'a>>, Failure> {
        let same = self.open.iter().zip(names).take_while(|(open, name)| open.0 == **name).count();
        // A lower directory must be completed before the directory that contains it.
        while self.open.len() > same {
            self.open.pop();
        }
        let mut folder = match self.open.last() {
            None => self.top.clone(),
            Some((_, Some(folder))) => folder.clone(),
            Some((_, None)) => return Err(lost()),
        };
        for name in &names[same..] {
            match folder.below(OsStr::new(name)) {
                Ok(below) => {
                    self.open.push(((*name).to_owned(), Some(below.clone())));
                    folder = below;
                }
                Err(failure) => {
                    folder.has_failed.store(true, Ordering::Relaxed);
                    self.open.push(((*name).to_owned(), None));
                    return Err(failure);
                }
            }
        }
        Ok(folder)
    }
}

fn lost() -> Failure {
    Failure::because(
        "copy",
        "the directory of this entry cannot be created; another problem in this list has the \
         reason",
    )
}
