//! A copy by one process: its top directories, its work, and the locks on its destinations.

use crate::context::{Context, Options};
use crate::failure::Failure;
use crate::links::Links;
use crate::outcome::{Outcome, Progress};
use crate::plan::{Pair, is_temporary_of};
use crate::shares::{Key, Part};
use crate::threads::work_off;
use crate::tree::{self, Destination, Directory, Entry, Seen};
use crate::walk::{Walk, Work};
use rustix::fs::{FileType, FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use skep_types::{Error, ErrorCode, Result};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// A running copy.
#[derive(Debug)]
struct Run {
    walk: Walk,
}

/// The directories that contain a source and its copy.
#[derive(Debug)]
struct Top {
    parent: Arc<Directory>,
    entry: Entry,
    kind: FileType,
}

/// Copies the source of each pair to its destination. If `options.part` is not `Whole`, does only
/// this part of the copy. Calls `report` once per second, and at the end.
///
/// # Errors
/// - `NotFound` or `Io` if a source or the directory of a destination cannot be opened. In this
///   case nothing was copied.
/// - `InvalidArgument` if a destination is in a source, or a source is in its destination.
/// - `Busy` if another copy to the same destination runs on this host.
///
/// Problems of single entries are in the outcome.
pub fn copy(pairs: &[Pair], options: &Options, report: &dyn Fn(&Progress)) -> Result<Outcome> {
    let begin = Instant::now();
    raise_descriptor_limit();
    let pairs = &pairs.iter().map(behind_link).collect::<Result<Vec<_>>>()?[..];
    let context = Arc::new(Context::new(options));
    refuse_inside(pairs)?;
    let mut tops = Vec::new();
    for (number, pair) in pairs.iter().enumerate() {
        tops.push(top(&context, number, pair)?);
    }
    let destination = |top: &Top| top.parent.destination.as_ref().map(|it| it.file.try_clone());
    let destinations: Vec<_> =
        tops.iter().map(|it| destination(it).transpose()).collect::<std::io::Result<_>>()?;
    let walk = Walk { context: context.clone(), links: Links::default(), tops: destinations };
    let run = Run { walk };
    let mut work = Vec::new();
    // If `begin` fails, nothing was copied, so the drop of the open directories must not change
    // them.
    let locks = run.begin(&tops, &mut work).inspect_err(|_| context.stop())?;
    let report_progress = || report(&context.counters.progress(begin.elapsed()));
    work_off(work, options.threads, |unit| run.work(unit), report_progress);
    drop(locks);
    // If the copy has ended early, some names may still wait for the copy of their file. The
    // directories of these names are dropped without a report.
    run.walk.links.forget();
    drop(run);
    for it in &tops {
        if let Err(failure) = finish_top(&context, it) {
            context.problem(&it.parent.shown().join(&it.entry.name), &failure);
        }
    }
    report_progress();
    Ok(context.counters.outcome(options.is_dry_run, begin.elapsed()))
}

/// Raises the limit of open files of this process to the maximum, because each directory on the
/// path to an entry is open.
pub(crate) fn raise_descriptor_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        // If `setrlimit` fails, only the copy of very deep trees fails, and the copy reports this
        // failure as a problem.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
}

/// If the path of the source ends with a slash and leads to a symbolic link, replaces it by the
/// directory to which the link leads. The copy keeps the name of the link.
pub(crate) fn behind_link(pair: &Pair) -> Result<Pair> {
    let Pair { source, destination } = pair.clone();
    if !source.as_os_str().as_bytes().ends_with(b"/") {
        return Ok(Pair { source, destination });
    }
    let real = source.canonicalize();
    let source = real.map_err(|error| {
        Error::from(error).within(format_args!("cannot copy {}", source.display()))
    })?;
    Ok(Pair { source, destination })
}

/// Returns an error for a copy into one of its own sources, because this copy would never end.
fn refuse_inside(pairs: &[Pair]) -> Result<()> {
    let named = |path: &Path, error: std::io::Error| {
        let what = format!("cannot copy {}", path.display());
        match error.kind() {
            std::io::ErrorKind::NotFound => {
                Error::new(ErrorCode::NotFound, format!("{what}: it does not exist"))
            }
            _ => Error::from(error).within(what),
        }
    };
    let mut sources = HashMap::new();
    for Pair { source, .. } in pairs {
        let metadata = source.symlink_metadata().map_err(|error| named(source, error))?;
        // A symbolic link is copied as a link, so the directory to which it leads is not walked.
        if !metadata.is_symlink() {
            let real = source.canonicalize().map_err(|error| named(source, error))?;
            sources.insert(real, source);
        }
    }
    for Pair { destination, .. } in pairs {
        let absolute = std::path::absolute(destination);
        let mut existing = absolute.map_err(|error| named(destination, error))?;
        while !existing.exists() && existing.pop() {}
        let existing = existing.canonicalize().map_err(|error| named(destination, error))?;
        if let Some(source) = existing.ancestors().find_map(|it| sources.get(it)) {
            let what = format!(
                "cannot copy {} to {}: the destination is the source or is in the source; name a \
                 destination outside of the source",
                source.display(),
                destination.display()
            );
            return Err(Error::new(ErrorCode::InvalidArgument, what));
        }
    }
    Ok(())
}

/// Creates the missing directories of a path. With `sync`, also syncs them.
pub(crate) fn create_directories(path: &Path, sync: bool) -> std::io::Result<()> {
    let missing: Vec<_> = path.ancestors().take_while(|it| !it.exists()).collect();
    std::fs::create_dir_all(path)?;
    for created in missing.iter().filter(|_| sync) {
        // The parent directory contains the name of the new directory, so it must be synced.
        if let Some(parent) = created.parent() {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            File::open(parent)?.sync_all()?;
        }
    }
    Ok(())
}

/// Splits a path into its parent directory and its name. A path without a name, such as `/` or
/// `..`, gets the name `.`.
pub(crate) fn parent_and_name(path: &Path) -> (PathBuf, &OsStr) {
    match path.file_name() {
        Some(name) => (path.parent().unwrap_or(Path::new("")).to_owned(), name),
        None => (path.to_owned(), OsStr::new(".")),
    }
}

fn named(path: &Path) -> impl Fn(Failure) -> Error {
    let path = path.display().to_string();
    move |failure: Failure| {
        let context = format!("cannot {} {path}", failure.what);
        Error::from(failure.error).within(context)
    }
}

/// Opens the directory that contains a source, and the directory that contains its copy.
fn top(context: &Arc<Context>, number: usize, pair: &Pair) -> Result<Top> {
    let (source_parent, name) = parent_and_name(&pair.source);
    let (copy_parent, copy) = parent_and_name(&pair.destination);
    let source = tree::open_source_parent(&source_parent).map_err(named(&source_parent))?;
    let seen = Seen::open(&source, name).map_err(named(&pair.source))?;
    let kind = seen.as_ref().map(Seen::kind).ok_or_else(|| {
        let what = format!("cannot copy {}: it does not exist", pair.source.display());
        Error::new(ErrorCode::NotFound, what)
    })?;
    let is_dry_run = context.options.is_dry_run;
    if !is_dry_run && !copy_parent.as_os_str().is_empty() {
        create_directories(&copy_parent, context.options.sync).map_err(|error| {
            let what = format!("cannot create the directory {}", copy_parent.display());
            Error::from(error).within(what)
        })?;
    }
    let destination = match tree::open_named(&copy_parent) {
        Ok(file) => Some(Destination::new(file, false).map_err(named(&copy_parent))?),
        Err(_) if is_dry_run => None,
        Err(failure) => return Err(named(&copy_parent)(failure)),
    };
    let before = source.metadata()?;
    let parent = Arc::new(Directory {
        context: context.clone(),
        parent: None,
        pair: number,
        key: Key::of_pair(number),
        name: source_parent.into_os_string(),
        copy_name: None,
        source,
        before,
        destination,
        has_failed: AtomicBool::new(false),
    });
    let copy_name = (copy != name).then(|| copy.to_owned());
    Ok(Top { parent, entry: Entry { name: name.to_owned(), copy_name }, kind })
}

/// For a source that is not a directory, removes the incomplete copies of the source that killed
/// runs have left beside the copy. If `options.sync` is set, also syncs the directory that contains
/// the copy.
fn finish_top(context: &Context, top: &Top) -> std::result::Result<(), Failure> {
    let Some(destination) = top.parent.destination.as_ref() else { return Ok(()) };
    if context.options.is_dry_run || context.is_stopped() {
        return Ok(());
    }
    let is_last = matches!(context.options.part, Part::Whole | Part::Finish);
    if top.kind != FileType::Directory && is_last {
        let failed = || Failure::of("list the destination directory");
        for entry in rustix::fs::Dir::read_from(&destination.file).map_err(failed())? {
            let name = entry.map_err(failed())?.file_name().to_bytes().to_vec();
            let name = OsString::from_vec(name);
            if is_temporary_of(&name, top.entry.copy()) {
                tree::remove_leftover(&destination.file, &name)?;
            }
        }
    }
    match context.options.sync {
        true => destination.file.sync_all().map_err(Failure::of("sync the directory")),
        false => Ok(()),
    }
}

impl Run {
    /// Creates the top directories of all copies before any entry is copied into them. Adds the
    /// first units of work to `all`. Returns the locks on these directories.
    fn begin(&self, tops: &[Top], all: &mut Vec<Work>) -> Result<Vec<File>> {
        let mut locks = Vec::new();
        for it in tops {
            tree::count_found(&self.walk.context.counters, it.kind);
            let (parent, entry) = (it.parent.clone(), &it.entry);
            let shown = parent.shown().join(&entry.name);
            let work = match it.kind {
                FileType::Directory => {
                    let work = self.walk.directory(&parent, entry).map_err(named(&shown))?;
                    self.walk.context.counters.unread.fetch_sub(1, Ordering::Relaxed);
                    for unit in &work {
                        locks.extend(lock(unit).inspect_err(|_| self.walk.context.stop())?);
                    }
                    work
                }
                kind => {
                    let entry =
                        Entry { name: entry.name.clone(), copy_name: entry.copy_name.clone() };
                    vec![Work::Entry { parent, entry, kind }]
                }
            };
            all.extend(work);
        }
        Ok(locks)
    }

    /// Does one unit of work, unless the copy ends early. Returns the units that follow from it.
    fn work(&self, work: Work) -> Vec<Work> {
        if self.walk.context.is_stopped() { Vec::new() } else { self.perform(work) }
    }

    /// Does one unit of work, and returns the units that follow from it.
    fn perform(&self, work: Work) -> Vec<Work> {
        let context = &self.walk.context;
        let (directory, name, result) = match work {
            Work::Entry { parent, entry, kind } => {
                let name = entry.name.clone();
                let result = self.walk.entry(parent.clone(), entry, kind);
                if kind == FileType::Directory {
                    context.counters.unread.fetch_sub(1, Ordering::Relaxed);
                }
                (parent, Some(name), result)
            }
            Work::List { directory, stream } => {
                (directory.clone(), None, self.walk.list(directory, stream))
            }
            Work::Piece { large } => return self.walk.piece(large),
        };
        result.unwrap_or_else(|failure| {
            directory.has_failed.store(true, Ordering::Relaxed);
            let shown = directory.shown();
            let shown = name.map_or_else(|| shown.clone(), |name| shown.join(name));
            context.problem(&shown, &failure);
            Vec::new()
        })
    }
}

/// Locks the top directory of a destination, so that two runs on one host do not copy to this
/// directory at the same time. Two runs on different hosts cause no damage, because each run writes
/// under its own temporary names, but both runs do the same work. The processes of the shares of
/// one copy share the lock.
fn lock(unit: &Work) -> Result<Option<File>> {
    let Work::List { directory, .. } = unit else { return Ok(None) };
    let Some(destination) = &directory.destination else { return Ok(None) };
    if directory.context.options.is_dry_run {
        return Ok(None);
    }
    let file = destination.file.try_clone()?;
    let kind = match directory.context.options.part {
        Part::Share(_) => FlockOperation::NonBlockingLockShared,
        Part::Whole | Part::Prepare | Part::Finish => FlockOperation::NonBlockingLockExclusive,
    };
    if flock(&file, kind) == Err(Errno::WOULDBLOCK) {
        let what = format!(
            "cannot copy {}: another `skep copy` copies to this destination; wait until that copy \
             has ended",
            directory.shown().display()
        );
        return Err(Error::new(ErrorCode::Busy, what));
    }
    Ok(Some(file))
}

#[cfg(test)]
mod tests;
