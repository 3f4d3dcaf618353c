//! The threads of a copy and their queue of work.
//!
//! A directory, an entry or a piece of a large file is one unit of work. Threads take the newest
//! unit first. So they finish a directory before they open its neighbours, and few directories are
//! open at a time.

use crate::context::{Context, Options};
use crate::data::Failure;
use crate::file;
use crate::large::Large;
use crate::links::{Deferred, Place};
use crate::outcome::{Counters, Outcome, Progress};
use crate::plan::Pair;
use crate::tree::{self, Directory, Entry, Tops};
use rustix::fs::FileType;
use skep_types::{Error, ErrorCode, Result};
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Time between two reports of the progress.
const REPORT: Duration = Duration::from_secs(1);

/// One unit of work.
#[derive(Debug)]
enum Work {
    /// Lists a directory, and creates its copy.
    Directory { parent: Arc<Directory>, entry: Entry },
    /// Copies any other entry.
    Entry { parent: Arc<Directory>, entry: Entry, kind: FileType },
    /// Copies a piece of a large file.
    Piece { large: Arc<Large>, index: u64 },
}

#[derive(Debug, Default)]
struct Queue {
    work: Vec<Work>,
    /// Threads that work on a unit, and may add others.
    busy: usize,
    has_ended: bool,
}

/// A running copy.
#[derive(Debug)]
struct Run<'a> {
    context: Context<'a>,
    deferred: Deferred,
    /// The lock protects the queue. It is never held during a system call on a file.
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// Copies all pairs, and calls `report` each second.
///
/// # Errors
/// - `NotFound` or `Io` if a source or the directory of a destination cannot be opened. Nothing was
///   copied then.
/// - `InvalidArgument` if a destination is in its source.
///
/// Problems of single entries are in the outcome.
pub fn copy(pairs: &[Pair], options: &Options, report: &dyn Fn(&Progress)) -> Result<Outcome> {
    let begin = Instant::now();
    let mut run = Run {
        context: Context::new(options),
        deferred: Deferred::default(),
        queue: Mutex::default(),
        changed: Condvar::new(),
    };
    let mut tops = Vec::new();
    for (number, pair) in pairs.iter().enumerate() {
        refuse_inside(pair)?;
        let (work, top) = run.top(number, pair)?;
        run.found(&work);
        run.queue.get_mut().expect("no thread has this lock yet").work.push(work);
        tops.push(top);
    }
    std::thread::scope(|scope| {
        for _ in 0..options.threads.max(1) {
            scope.spawn(|| run.work());
        }
        let mut reported = begin;
        loop {
            let queue = run.queue.lock().expect("no thread panics with this lock");
            if queue.has_ended {
                break;
            }
            drop(run.changed.wait_timeout(queue, REPORT));
            if reported.elapsed() >= REPORT {
                report(&run.context.counters.progress(begin.elapsed()));
                reported = Instant::now();
            }
        }
    });
    let deferred = std::mem::take(&mut run.deferred);
    if !options.is_dry_run && !run.context.is_stopped() {
        deferred.finish(&run.context, &tops);
    }
    Ok(run.context.counters.outcome(options.is_dry_run, begin.elapsed()))
}

/// Refuses a copy into its own source, which would never end.
fn refuse_inside(pair: &Pair) -> Result<()> {
    let named = |error: std::io::Error| {
        Error::from(error).within(format!("cannot copy {}", pair.source.display()))
    };
    if pair.source.symlink_metadata().map_err(named)?.is_symlink() {
        return Ok(());
    }
    let source = pair.source.canonicalize().map_err(named)?;
    let mut existing = std::path::absolute(&pair.destination).map_err(named)?;
    while !existing.exists() && existing.pop() {}
    let destination = existing.canonicalize().map_err(named)?;
    if !destination.starts_with(&source) {
        return Ok(());
    }
    let what = format!(
        "cannot copy {} to {}: the destination is the source or in it; name a destination outside",
        pair.source.display(),
        pair.destination.display()
    );
    Err(Error::new(ErrorCode::InvalidArgument, what))
}

/// Splits a path into its directory and its name there. A path without a name, such as `/` or `..`,
/// has the name `.`.
fn parent_and_name(path: &Path) -> (PathBuf, &OsStr) {
    match path.file_name() {
        Some(name) => (path.parent().unwrap_or(Path::new("")).to_owned(), name),
        None => (path.to_owned(), OsStr::new(".")),
    }
}

impl Run<'_> {
    /// Counts work that the walk has found.
    fn found(&self, work: &Work) {
        let counters = &self.context.counters;
        match work {
            Work::Directory { .. } => Counters::add(&counters.unread, 1),
            Work::Entry { .. } => Counters::add(&counters.found, 1),
            Work::Piece { .. } => {}
        }
    }

    /// Opens the directories around a source and its copy.
    fn top(&self, number: usize, pair: &Pair) -> Result<(Work, Tops)> {
        let named = |path: &Path| {
            let path = path.display().to_string();
            move |failure: Failure| {
                let context = format!("cannot {} {path}", failure.what);
                Error::from(failure.error).within(context)
            }
        };
        let (source_parent, name) = parent_and_name(&pair.source);
        let (copy_parent, copy) = parent_and_name(&pair.destination);
        if !self.context.options.is_dry_run && !copy_parent.as_os_str().is_empty() {
            std::fs::create_dir_all(&copy_parent).map_err(|error| {
                let what = format!("cannot create the directory {}", copy_parent.display());
                Error::from(error).within(what)
            })?;
        }
        let source = tree::open_named(&source_parent).map_err(named(&source_parent))?;
        let destination = match tree::open_named(&copy_parent) {
            Ok(file) => Some(file),
            Err(_) if self.context.options.is_dry_run => None,
            Err(failure) => return Err(named(&copy_parent)(failure)),
        };
        let kind = tree::attributes_of(&source, name).map_err(named(&pair.source))?;
        let kind = kind.as_ref().map(tree::file_type).ok_or_else(|| {
            let what = format!("cannot copy {}: it does not exist", pair.source.display());
            Error::new(ErrorCode::NotFound, what)
        })?;
        let clone = |file: &File| file.try_clone();
        let tops = Tops {
            source: clone(&source)?,
            destination: destination.as_ref().map(clone).transpose()?,
        };
        let parent = Arc::new(Directory {
            pair: number,
            shown: source_parent,
            from: PathBuf::new(),
            to: PathBuf::new(),
            source,
            destination,
            is_new: false,
        });
        let entry = Entry { name: name.to_owned(), copy: copy.to_owned() };
        let work = match kind {
            FileType::Directory => Work::Directory { parent, entry },
            kind => Work::Entry { parent, entry, kind },
        };
        Ok((work, tops))
    }

    /// Takes work until the queue is empty and all other threads are idle.
    fn work(&self) {
        loop {
            let mut queue = self.queue.lock().expect("no thread panics with this lock");
            let work = loop {
                if let Some(work) = queue.work.pop() {
                    break work;
                }
                if queue.busy == 0 {
                    queue.has_ended = true;
                    self.changed.notify_all();
                    return;
                }
                queue = self.changed.wait(queue).expect("no thread panics with this lock");
            };
            queue.busy += 1;
            drop(queue);
            let more = if self.context.is_stopped() { Vec::new() } else { self.perform(work) };
            more.iter().for_each(|work| self.found(work));
            let mut queue = self.queue.lock().expect("no thread panics with this lock");
            queue.busy -= 1;
            let is_idle = queue.busy == 0;
            let count = more.len();
            queue.work.extend(more);
            drop(queue);
            if count > 1 || is_idle {
                self.changed.notify_all();
            }
        }
    }

    /// Does one unit of work, and returns the units that follow from it.
    fn perform(&self, work: Work) -> Vec<Work> {
        let (shown, result) = match work {
            Work::Directory { parent, entry } => {
                let result = self.directory(&parent, &entry);
                self.context.counters.unread.fetch_sub(1, Ordering::Relaxed);
                (parent.shown.join(&entry.name), result)
            }
            Work::Entry { parent, entry, kind } => {
                let result = self.entry(&parent, &entry, kind);
                (parent.shown.join(&entry.name), result)
            }
            Work::Piece { large, index } => {
                let result = large.copy_piece(&self.context, index).map(|()| Vec::new());
                (large.shown.clone(), result)
            }
        };
        result.unwrap_or_else(|failure| {
            self.context.problem(&shown, &failure);
            Vec::new()
        })
    }

    fn directory(
        &self,
        parent: &Arc<Directory>,
        entry: &Entry,
    ) -> std::result::Result<Vec<Work>, Failure> {
        let source = tree::open_directory(&parent.source, &entry.name);
        let source = source.map_err(Failure::of("open the directory"))?;
        let (destination, is_new) = match &parent.destination {
            None => (None, true),
            Some(parent) if self.context.options.is_dry_run => {
                let found = tree::open_directory(parent, &entry.copy).ok();
                let is_new = found.is_none();
                (found, is_new)
            }
            Some(parent) => {
                let (made, is_new) = tree::create_directory(parent, &entry.copy)?;
                (Some(made), is_new)
            }
        };
        Counters::add(&self.context.counters.directories, 1);
        let directory = Arc::new(Directory {
            pair: parent.pair,
            shown: parent.shown.join(&entry.name),
            from: parent.from.join(&entry.name),
            to: parent.to.join(&entry.copy),
            source,
            destination,
            is_new,
        });
        let place = Place { pair: parent.pair, to: directory.to.clone() };
        self.deferred.add_directory(&directory.shown, &directory.from, place);
        let entries = tree::list(&directory.source)?;
        let work = |(name, kind): (std::ffi::OsString, FileType)| {
            let entry = Entry { copy: name.clone(), name };
            let parent = directory.clone();
            match kind {
                FileType::Directory => Work::Directory { parent, entry },
                kind => Work::Entry { parent, entry, kind },
            }
        };
        Ok(entries.into_iter().map(work).collect())
    }

    fn entry(
        &self,
        parent: &Arc<Directory>,
        entry: &Entry,
        kind: FileType,
    ) -> std::result::Result<Vec<Work>, Failure> {
        let existing = match &parent.destination {
            Some(directory) if !parent.is_new => tree::attributes_of(directory, &entry.copy)?,
            _ => None,
        };
        let metadata = tree::attributes_of(&parent.source, &entry.name)?;
        let Some(metadata) = metadata else {
            let what = std::io::Error::other("a program removed it during the copy");
            return Err(Failure::of("copy")(what));
        };
        if kind == FileType::Unknown && metadata.is_dir() {
            return self.directory(parent, entry);
        }
        let is_complete = self.context.options.resume
            && existing.as_ref().is_some_and(|existing| is_same(&metadata, existing));
        if metadata.nlink() > 1 {
            let place = Place { pair: parent.pair, to: parent.to.join(&entry.copy) };
            let shown = parent.shown.join(&entry.name);
            let inode = (metadata.dev(), metadata.ino());
            if !self.deferred.is_first(inode, &shown, place) {
                if self.context.options.is_dry_run {
                    let counters = &self.context.counters;
                    let counter = if is_complete { &counters.skipped } else { &counters.others };
                    Counters::add(counter, 1);
                }
                return Ok(Vec::new());
            }
        }
        if is_complete {
            Counters::add(&self.context.counters.skipped, 1);
            if self.context.options.verify && metadata.is_file() && !self.context.options.is_dry_run
            {
                file::verify_existing(&self.context, parent, entry)?;
            }
            return Ok(Vec::new());
        }
        if existing.as_ref().is_some_and(Metadata::is_dir) {
            let what = "a directory has this name at the destination; move it away";
            return Err(Failure::of("copy")(std::io::Error::other(what)));
        }
        match tree::file_type(&metadata) {
            FileType::RegularFile => {
                let pieces = file::copy(&self.context, parent, entry, existing.as_ref())?;
                let work = |(large, index)| Work::Piece { large, index };
                Ok(pieces.into_iter().map(work).collect())
            }
            FileType::Socket => {
                let what = "it is a socket, which only its own program can create; leave it out";
                Err(Failure::of("copy")(std::io::Error::other(what)))
            }
            _ => self.special(parent, entry, &metadata).map(|()| Vec::new()),
        }
    }

    fn special(
        &self,
        parent: &Directory,
        entry: &Entry,
        metadata: &Metadata,
    ) -> std::result::Result<(), Failure> {
        use std::os::fd::AsFd;
        if let Some(directory) =
            parent.destination.as_ref().filter(|_| !self.context.options.is_dry_run)
        {
            if !parent.is_new {
                tree::make_way(directory, &entry.copy)?;
            }
            tree::copy_special(parent.source.as_fd(), directory.as_fd(), entry, metadata)?;
        }
        Counters::add(&self.context.counters.others, 1);
        Ok(())
    }
}

/// Whether a copy is complete: its times were set after its contents.
fn is_same(source: &Metadata, copy: &Metadata) -> bool {
    tree::file_type(source) == tree::file_type(copy)
        && tree::version(source) == tree::version(copy)
        && source.rdev() == copy.rdev()
}

#[cfg(test)]
mod tests;
