//! The walk over the source: decides the necessary work for each directory and each other entry.
//!
//! Each entry is opened once with `O_PATH`, and all decisions about it are based on this
//! descriptor.

use crate::attributes;
use crate::context::Context;
use crate::failure::Failure;
use crate::file;
use crate::large::{Copied, Large};
use crate::links::{self, Claim, Finished, Links, Waiting};
use crate::outcome::Counters;
use crate::plan::{LARGE, is_reserved};
use crate::shares::Part;
use crate::special;
use crate::tree::{self, Destination, Directory, Entry, Seen};
use crate::version::{Identity, version_of};
use rustix::fs::{Dir, FileType};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum number of entries of a directory that a thread lists at a time. This limit ensures that
/// a directory of any size needs little memory.
pub(crate) const BATCH: usize = 1024;
/// Maximum depth of directories. The limit is needed because each directory on the path to an entry
/// is open. No path that the kernel accepts in one call is deeper.
pub(crate) const MOST_LEVELS: usize = 2048;

/// A unit of work for a thread.
#[derive(Debug)]
pub(crate) enum Work {
    /// Copies an entry. `kind` is the type that the listing of the directory shows.
    Entry { parent: Arc<Directory>, entry: Entry, kind: FileType },
    /// Lists the next entries of a directory.
    List { directory: Arc<Directory>, stream: Dir },
    /// Copies a piece of a large file.
    Piece { large: Arc<Large> },
}

/// The work of this process for an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Copy the entry.
    Entry,
    /// Begin a large file, or copy some of its pieces.
    Pieces,
    /// Nothing, because another process of the copy copies this entry.
    None,
}

/// The state that the walk needs.
#[derive(Debug)]
pub(crate) struct Walk {
    pub(crate) context: Arc<Context>,
    pub(crate) links: Links,
    /// For each pair of source and destination: the directory that contains the top of the
    /// destination.
    pub(crate) tops: Vec<Option<File>>,
}

impl Walk {
    /// Opens a directory of the source, and creates its copy. Returns the unit of work that lists
    /// it.
    pub(crate) fn directory(
        &self,
        parent: &Arc<Directory>,
        entry: &Entry,
    ) -> Result<Vec<Work>, Failure> {
        let context = &self.context;
        let source = tree::open_directory(&parent.source, &entry.name);
        let source = source.map_err(Failure::of("open the directory"))?;
        let before = source.metadata().map_err(Failure::of("read the attributes"))?;
        if parent.ancestors().count() > MOST_LEVELS {
            let reason = format!(
                "the directory is more than {MOST_LEVELS} levels below the source; copy this \
                 directory with a separate command"
            );
            return Err(Failure::because("copy the directory", reason));
        }
        refuse_loop(parent, Identity::of(&before))?;
        let is_dry_run = context.options.is_dry_run;
        let destination = match &parent.destination {
            None => None,
            Some(parent) if is_dry_run => {
                let found = tree::open_directory(&parent.file, entry.copy()).ok();
                found.map(|file| Destination::new(file, false)).transpose()?
            }
            Some(parent) => Some(tree::create_directory(&parent.file, entry.copy())?),
        };
        if let Some(destination) = &destination {
            refuse_own_source(parent, Identity::of(&before), destination.identity)?;
        }
        Counters::add(&context.counters.directories, 1);
        let is_left_out = context.options.one_file_system
            && parent.parent.is_some()
            && before.dev() != parent.before.dev();
        let stream = Dir::read_from(&source).map_err(Failure::of("list the directory"))?;
        let directory = Arc::new(Directory {
            context: context.clone(),
            parent: Some(parent.clone()),
            pair: parent.pair,
            key: parent.key.entry(&entry.name),
            name: entry.name.clone(),
            copy_name: entry.copy_name.clone(),
            source,
            before,
            destination,
            has_failed: AtomicBool::new(false),
        });
        if is_left_out {
            return Ok(Vec::new());
        }
        Counters::add(&context.counters.unread, 1);
        Ok(vec![Work::List { directory, stream }])
    }

    /// Lists the next entries of a directory. The first unit in the result lists the remaining
    /// entries. Threads take this unit last.
    pub(crate) fn list(
        &self,
        directory: Arc<Directory>,
        mut stream: Dir,
    ) -> Result<Vec<Work>, Failure> {
        let counters = &self.context.counters;
        let entries = tree::list(&mut stream, BATCH);
        let is_end = entries.as_ref().map_or(true, |it| it.len() < BATCH);
        if is_end {
            counters.unread.fetch_sub(1, Ordering::Relaxed);
        }
        let work = |(name, kind): (std::ffi::OsString, FileType)| {
            tree::count_found(counters, kind);
            let entry = Entry { copy_name: None, name };
            Work::Entry { parent: directory.clone(), entry, kind }
        };
        // Threads take the last unit of this list first.
        let mut all: Vec<_> = entries?.into_iter().map(work).collect();
        if !is_end {
            all.insert(0, Work::List { directory, stream });
        }
        Ok(all)
    }

    /// Copies an entry, and returns the units of work that follow from it.
    pub(crate) fn entry(
        &self,
        parent: Arc<Directory>,
        entry: Entry,
        kind: FileType,
    ) -> Result<Vec<Work>, Failure> {
        if is_reserved(&entry.name) || is_reserved(entry.copy()) {
            let reason = "names that begin with .skep-copy- are reserved for incomplete copies; \
                          rename the file, or finish the copy that has created it";
            return Err(Failure::because("copy", reason));
        }
        if let Some(names) = parent.destination.as_ref().and_then(|it| it.names.as_ref()) {
            names.claim(entry.copy())?;
        }
        if kind == FileType::Directory {
            return self.directory(&parent, &entry);
        }
        if let Part::Share(share) = self.context.options.part
            && kind != FileType::Unknown
            && !share.has_large()
            && !share.has_entry(parent.key.entry(&entry.name))
        {
            return Ok(Vec::new());
        }
        let Some(seen) = Seen::open(&parent.source, &entry.name)? else {
            return Err(Failure::because("copy", "a program removed the source during the copy"));
        };
        if seen.kind() == FileType::Directory {
            self.context.counters.found.fetch_sub(1, Ordering::Relaxed);
            return self.directory(&parent, &entry);
        }
        let role = self.role(&parent, &entry, &seen);
        if role == Role::None {
            return Ok(Vec::new());
        }
        let existing = match &parent.destination {
            Some(destination) if !destination.is_new => {
                Seen::open(&destination.file, entry.copy())?
            }
            _ => None,
        };
        if let Some(existing) = &existing {
            self.refuse_existing(&seen, existing)?;
        }
        let names = seen.metadata.nlink();
        if role == Role::Pieces {
            return self.pieces(&parent, &entry, &seen, existing.as_ref()).map(as_work);
        }
        if names < 2 {
            return self.content(&parent, &entry, &seen, existing.as_ref()).map(as_work);
        }
        let version = version_of(&seen.metadata);
        let mut waiting = Some(Waiting { parent: parent.clone(), entry, kind });
        let claim = self.links.claim(version, names, &mut waiting)?;
        let Some(Waiting { entry, .. }) = waiting else { return Ok(Vec::new()) };
        match claim {
            Claim::Wait => Ok(Vec::new()),
            Claim::Link(finished) => {
                self.link(&parent, &entry, &finished, existing.as_ref()).map(|()| Vec::new())
            }
            Claim::Copy => match self.content(&parent, &entry, &seen, existing.as_ref()) {
                Ok(Copied::Begun(large)) => Ok(as_work(Copied::Begun(large))),
                // No process of a share copies files with several names, so this does not occur.
                Ok(Copied::Left) => Ok(Vec::new()),
                Ok(Copied::Complete(copy)) => {
                    let name = entry.copy().to_owned();
                    let (pair, directory) = (parent.pair, parent.below());
                    let finished = Finished { pair, directory, name, copy };
                    Ok(again(self.links.finish(version, finished)))
                }
                Err(failure) => {
                    parent.has_failed.store(true, Ordering::Relaxed);
                    self.context.problem(&parent.shown().join(&entry.name), &failure);
                    Ok(again(self.links.fail(version)))
                }
            },
        }
    }

    fn refuse_existing(&self, seen: &Seen, existing: &Seen) -> Result<(), Failure> {
        if existing.identity() == seen.identity() {
            let reason = "the source and the entry at the destination are the same file; name \
                          another destination";
            return Err(Failure::because("copy", reason));
        }
        if existing.metadata.is_dir() {
            let reason = "a directory has this name at the destination; move this directory away";
            return Err(Failure::because("copy", reason));
        }
        Ok(())
    }

    /// Copies the content of an entry that is not a directory.
    fn content(
        &self,
        parent: &Arc<Directory>,
        entry: &Entry,
        seen: &Seen,
        existing: Option<&Seen>,
    ) -> Result<Copied, Failure> {
        let counters = &self.context.counters;
        let is_large = seen.metadata.is_file() && seen.metadata.len() >= LARGE;
        let by_earlier_part = seen.metadata.nlink() < 2 && !is_large;
        if let Some(existing) = existing
            && self.context.options.skips_complete(by_earlier_part)
            && is_complete(seen, existing)?
        {
            let is_file = seen.metadata.is_file();
            let (options, found) = (&self.context.options, &existing.metadata);
            // If the existing file has a second name, this name may belong to another user or
            // another copy.
            let is_own =
                found.nlink() == 1 && (!options.owners || found.uid() == seen.metadata.uid());
            let is_equal = attributes::are_equal(options, &seen.metadata, found);
            let is_there = match is_file {
                true if is_equal || is_own => {
                    file::check_existing(parent, entry, (seen, existing), is_own)?
                }
                true => false,
                false => is_equal,
            };
            if is_there {
                Counters::add(&counters.skipped, 1);
                return Ok(Copied::Complete(existing.identity()));
            }
        }
        if seen.metadata.is_file() {
            return file::copy(parent, entry, seen, existing.is_some());
        }
        let identity = match self.context.options.is_dry_run {
            true => seen.identity(),
            false => special::copy(parent, entry, seen, existing.is_some())?,
        };
        Counters::add(&counters.others, 1);
        Ok(Copied::Complete(identity))
    }

    /// Returns the work of this process for an entry that is not a directory.
    fn role(&self, parent: &Directory, entry: &Entry, seen: &Seen) -> Role {
        let has_several_names = seen.metadata.nlink() > 1;
        let is_large = seen.metadata.is_file() && seen.metadata.len() >= LARGE;
        let part = self.context.options.part;
        if part == Part::Prepare && is_large && !has_several_names {
            Counters::add(&self.context.counters.large, 1);
        }
        match part {
            Part::Whole | Part::Finish => Role::Entry,
            // The names of one file may be in several shares, so the last part of the copy copies
            // such files.
            Part::Prepare | Part::Share(_) if has_several_names => Role::None,
            Part::Prepare if is_large => Role::Pieces,
            Part::Prepare => Role::None,
            Part::Share(share) if share.has_entry(parent.key.entry(&entry.name)) => Role::Entry,
            Part::Share(_) if is_large => Role::Pieces,
            Part::Share(_) => Role::None,
        }
    }

    /// Begins a large file, or copies some of its pieces. Another process completes the file.
    fn pieces(
        &self,
        parent: &Arc<Directory>,
        entry: &Entry,
        seen: &Seen,
        existing: Option<&Seen>,
    ) -> Result<Copied, Failure> {
        if let Some(existing) = existing
            && self.context.options.resume
            && is_complete(seen, existing)?
        {
            return Ok(Copied::Left);
        }
        file::copy(parent, entry, seen, existing.is_some())
    }

    fn link(
        &self,
        parent: &Directory,
        entry: &Entry,
        finished: &Finished,
        existing: Option<&Seen>,
    ) -> Result<(), Failure> {
        let counters = &self.context.counters;
        if existing.is_some_and(|existing| existing.identity() == finished.copy) {
            Counters::add(&counters.skipped, 1);
            return Ok(());
        }
        if !self.context.options.is_dry_run {
            let top = self.tops[finished.pair].as_ref().expect("not in a dry run");
            links::link(parent, entry.copy(), finished, top, existing.is_some())?;
        }
        Counters::add(&counters.others, 1);
        Ok(())
    }

    /// Copies a piece of a large file, and returns the units of work that have to be done next.
    pub(crate) fn piece(&self, large: Arc<Large>) -> Vec<Work> {
        use crate::large::Step;
        let has_links = large.metadata.nlink() > 1;
        match large.step() {
            Ok(Step::More) => vec![Work::Piece { large }],
            Ok(Step::End) => Vec::new(),
            Ok(Step::Complete(copy)) if has_links => {
                let directory = &large.directory;
                let (pair, name) = (directory.pair, large.copy_name.clone());
                let finished = Finished { pair, directory: directory.below(), name, copy };
                again(self.links.finish(large.version, finished))
            }
            Ok(Step::Complete(_)) => Vec::new(),
            Err(failure) => {
                large.directory.has_failed.store(true, Ordering::Relaxed);
                self.context.problem(&large.shown(), &failure);
                match has_links {
                    true => again(self.links.fail(large.version)),
                    false => Vec::new(),
                }
            }
        }
    }
}

/// Returns the units of work for a large file whose copy has begun: one unit for each thread that
/// may work on the file.
fn as_work(copied: Copied) -> Vec<Work> {
    match copied {
        Copied::Complete(_) | Copied::Left => Vec::new(),
        Copied::Begun(large) => {
            let pieces = crate::plan::piece_count(large.version.len);
            let threads = large.directory.context.options.threads as u64;
            (0..pieces.min(threads)).map(|_| Work::Piece { large: large.clone() }).collect()
        }
    }
}

/// Returns the units of work for names that have waited for the copy of their file.
fn again(waiting: Vec<Waiting>) -> Vec<Work> {
    let work = |it: Waiting| Work::Entry { parent: it.parent, entry: it.entry, kind: it.kind };
    waiting.into_iter().map(work).collect()
}

/// Whether a previous run has completed the copy, and the source has not changed since. A copy gets
/// its name only when it is complete, so its kind, length and time suffice for this decision.
fn is_complete(seen: &Seen, existing: &Seen) -> Result<bool, Failure> {
    let (source, copy) = (&seen.metadata, &existing.metadata);
    let is_equal = seen.kind() == existing.kind()
        && (source.len(), source.mtime(), source.mtime_nsec(), source.rdev())
            == (copy.len(), copy.mtime(), copy.mtime_nsec(), copy.rdev());
    match is_equal && seen.kind() == FileType::Symlink {
        true => Ok(special::target(seen)? == special::target(existing)?),
        false => Ok(is_equal),
    }
}

/// Returns a failure if a source directory is itself the copy of one of its ancestors. A second
/// mount of the destination can have this effect. Without the failure, the copy would never end.
fn refuse_loop(parent: &Directory, source: Identity) -> Result<(), Failure> {
    let is_copy = |it: &Directory| {
        it.parent.is_some() && it.destination.as_ref().is_some_and(|it| it.identity == source)
    };
    match parent.ancestors().any(is_copy) {
        true => Err(Failure::because(
            "copy the directory",
            "the directory is the destination of this copy; name a destination outside of the \
             source",
        )),
        false => Ok(()),
    }
}

/// Returns a failure if a directory would be copied into itself or into one of its ancestors in the
/// source. Such a copy would replace entries of the source.
fn refuse_own_source(parent: &Directory, source: Identity, copy: Identity) -> Result<(), Failure> {
    let is_source = |it: &Directory| it.parent.is_some() && Identity::of(&it.before) == copy;
    match source == copy || parent.ancestors().any(is_source) {
        true => Err(Failure::because(
            "copy the directory",
            "the copy of the directory would be in the source; name a destination outside of the \
             source",
        )),
        false => Ok(()),
    }
}
