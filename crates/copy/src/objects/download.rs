//! Copies objects of a bucket to files.
//!
//! One thread lists the objects in the order of their keys, and opens the directories. All other
//! threads copy. An object is read in the version that the listing shows, and written under a
//! temporary name.

mod files;

use super::Pair;
use super::local::{Defaults, Folder, Path, Top, umask};
use super::names::{Files, place};
use super::pieces::Large;
use super::pool::Pool;
use super::stored::{Kind, Stored};
use crate::context::{Context, Options};
use crate::failure::Failure;
use crate::outcome::{Counters, Outcome, Progress};
use crate::plan::LARGE;
use crate::run::{create_directories, parent_and_name};
use crate::shares::Part;
use crate::tree::{self, Seen};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use skep_s3::store::{Head, Object};
use skep_types::{Error, ErrorCode, Result};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// A unit of work for a thread.
enum Work<'a> {
    /// Copies an object to the file `name` in a directory.
    Object {
        folder: Arc<Folder<'a>>,
        object: Object,
        name: String,
    },
    /// Reads the attributes of a directory from the object that stands for the directory.
    Marker {
        folder: Arc<Folder<'a>>,
        object: Object,
    },
    Piece {
        large: Arc<Large<'a>>,
    },
}

/// A source of the copy in the bucket: one object, or a tree of objects.
enum Source<'a> {
    One { folder: Arc<Folder<'a>>, object: Object, name: String },
    Tree { folder: Arc<Folder<'a>>, prefix: String },
}

/// A running copy from a bucket.
struct Run<'a> {
    context: Arc<Context>,
    pool: Pool<Work<'a>>,
}

/// Copies the objects of each pair to the pair's path. If `options.part` is not `Whole`, does only
/// this part of the copy. Calls `report` once per second, and at the end.
///
/// # Errors
/// Returns `NotFound` if a source does not exist. Returns `InvalidArgument` if a source could be an
/// object or a tree, because both have its key. Returns `Busy` if another copy to the same
/// destination runs on this host. Also returns the error of a bucket or directory that cannot be
/// opened. Problems of single entries are in the outcome.
pub fn download(
    pairs: &[Pair<'_>],
    options: &Options,
    report: &dyn Fn(&Progress),
) -> Result<Outcome> {
    let begin = Instant::now();
    crate::run::raise_descriptor_limit();
    let run = Run { context: Arc::new(Context::new(options)), pool: Pool::new() };
    let (mut sources, mut locks) = (Vec::new(), Vec::new());
    for (number, pair) in pairs.iter().enumerate() {
        let source = run.source(number, pair).inspect_err(|_| run.context.stop())?;
        if let Source::Tree { folder, .. } = &source {
            locks.extend(run.lock(folder).inspect_err(|_| run.context.stop())?);
        }
        sources.push(source);
    }
    let counters = &run.context.counters;
    Counters::add(&counters.unread, 1);
    let produce = || {
        for source in sources {
            match source {
                Source::One { folder, object, name } => {
                    Counters::add(&counters.found, 1);
                    run.pool.add(Work::Object { folder, object, name });
                }
                Source::Tree { folder, prefix } => run.list(folder, &prefix),
            }
        }
        counters.unread.fetch_sub(1, Ordering::Relaxed);
    };
    run.pool.run(&run.context, report, produce, |work| run.perform(work));
    drop(locks);
    Ok(run.context.counters.outcome(options.is_dry_run, begin.elapsed()))
}

impl<'a> Run<'a> {
    /// Finds the object or the tree of a pair, and opens the directory for its copy.
    fn source(&self, number: usize, pair: &Pair<'a>) -> Result<Source<'a>> {
        let key = pair.key.as_str();
        let is_tree = key.is_empty() || key.ends_with('/');
        let prefix = if is_tree { key.to_owned() } else { format!("{key}/") };
        let head = if is_tree { None } else { pair.bucket.head(key)? };
        let has_more = !pair.bucket.list(&prefix, None)?.objects.is_empty();
        let shown = pair.shown(key);
        match (&head, has_more) {
            (Some(_), true) => {
                let what = format!(
                    "cannot copy {}: this key is an object, and other objects have keys below this \
                     key; add / to copy these other objects",
                    shown.display()
                );
                return Err(Error::new(ErrorCode::InvalidArgument, what));
            }
            (None, false) if !key.is_empty() => {
                let what = format!("cannot copy {}: no object has this key", shown.display());
                return Err(Error::new(ErrorCode::NotFound, what));
            }
            _ => {}
        }
        let (parent, name) = parent_and_name(&pair.path);
        let options = &self.context.options;
        let owner = parent.ancestors().find_map(|it| {
            let it = if it.as_os_str().is_empty() { std::path::Path::new(".") } else { it };
            it.metadata().ok()
        });
        let within = |error: std::io::Error| {
            let what = format!("cannot create the directory {}", parent.display());
            Error::from(error).within(what)
        };
        if !options.is_dry_run && !parent.as_os_str().is_empty() {
            create_directories(&parent, options.sync).map_err(within)?;
        }
        let named = |failure: Failure| {
            let what = format!("cannot {} {}", failure.what, pair.path.display());
            Error::from(failure.error).within(what)
        };
        let file = match tree::open_named(&parent) {
            Ok(file) => Some(file),
            Err(_) if options.is_dry_run => None,
            Err(failure) => return Err(named(failure)),
        };
        let owner = owner.map_or((0, 0), |it| (it.uid(), it.gid()));
        let defaults = Defaults { owner, umask: umask() };
        let top = Arc::new(Top { pair: pair.clone(), defaults });
        let only = head.is_some().then(|| name.to_owned());
        let above =
            Folder::above(top, self.context.clone(), (file, number), only).map_err(named)?;
        let above = Arc::new(above);
        let Some(head) = head else {
            // If the path of the destination has no name, such as `/`, `name` is `.`. In this case,
            // the folder is the directory at this path.
            let folder = above.below(name).map_err(named)?;
            return Ok(Source::Tree { folder, prefix });
        };
        let Head { size, etag, modified, .. } = head;
        let object = Object { key: key.to_owned(), size, etag, modified };
        let name = name.to_str().map(str::to_owned).ok_or_else(|| {
            let what = format!(
                "cannot copy to {}: the name of the destination is not UTF-8; name another \
                 destination",
                pair.path.display()
            );
            Error::new(ErrorCode::InvalidArgument, what)
        })?;
        Ok(Source::One { folder: above, object, name })
    }

    /// Locks the top directory of a destination in the same way as copies between file systems.
    fn lock(&self, folder: &Folder<'_>) -> Result<Option<File>> {
        let Some(destination) = &folder.destination else { return Ok(None) };
        if self.context.options.is_dry_run {
            return Ok(None);
        }
        let file = destination.file.try_clone()?;
        let kind = match self.context.options.part {
            Part::Share(_) => FlockOperation::NonBlockingLockShared,
            _ => FlockOperation::NonBlockingLockExclusive,
        };
        if flock(&file, kind) == Err(Errno::WOULDBLOCK) {
            let what = format!(
                "cannot copy to {}: another copy to this destination runs; wait for its end",
                folder.top.pair.path.display()
            );
            return Err(Error::new(ErrorCode::Busy, what));
        }
        Ok(Some(file))
    }

    /// Lists the objects of a tree, and adds a unit of work for each of them.
    fn list(&self, top: Arc<Folder<'a>>, prefix: &str) {
        let pair = top.top.pair.clone();
        let mut path = Path::new(top.clone());
        let (mut files, mut next) = (Files::default(), None);
        while !self.context.is_stopped() {
            let page = match pair.bucket.list(prefix, next.as_deref()) {
                Ok(page) => page,
                Err(error) => {
                    top.has_failed.store(true, Ordering::Relaxed);
                    let failure = Failure::of_store("list the objects")(error);
                    self.context.problem(&pair.shown(prefix), &failure);
                    return;
                }
            };
            for object in page.objects {
                let rest = &object.key[prefix.len()..];
                let shown = pair.shown(&object.key);
                if let Err(failure) = self.find(&mut path, &mut files, rest, object.clone()) {
                    top.has_failed.store(true, Ordering::Relaxed);
                    self.context.problem(&shown, &failure);
                }
            }
            next = page.next;
            if next.is_none() {
                return;
            }
        }
    }

    /// Adds the unit of work for an object.
    fn find(
        &self,
        path: &mut Path<'a>,
        files: &mut Files,
        rest: &str,
        object: Object,
    ) -> std::result::Result<(), Failure> {
        let counters = &self.context.counters;
        let refuse = |reason: String| Failure::because("copy", reason);
        let place = place(rest).map_err(refuse);
        if place.as_ref().map_or(true, |it| it.name.is_some()) {
            Counters::add(&counters.found, 1);
        }
        let place = place?;
        if let Some(other) = files.add(rest) {
            let reason = format!(
                "{other} is an object too, and its copy cannot be a file and a directory; rename \
                 one of the two objects"
            );
            return Err(refuse(reason));
        }
        if place.name.is_none() && object.size > 0 {
            let reason = "the key of this object ends with /, as the key of a directory, but the \
                          object has bytes; rename the object";
            return Err(refuse(reason.to_owned()));
        }
        let folder = path.enter(&place.directories)?;
        self.pool.add(match place.name {
            Some(name) => Work::Object { folder, object, name: name.to_owned() },
            None => Work::Marker { folder, object },
        });
        Ok(())
    }

    /// Does one unit of work, and returns the units that follow from it.
    fn perform(&self, work: Work<'a>) -> Vec<Work<'a>> {
        let (folder, key, result) = match work {
            Work::Object { folder, object, name } => {
                let result = self.object(&folder, &object, &name);
                (folder, object.key, result)
            }
            Work::Marker { folder, object } => {
                let result = self.marker(&folder, &object).map(|()| Vec::new());
                (folder, object.key, result)
            }
            Work::Piece { large } => {
                let result = large.step().map(|goes_on| match goes_on {
                    true => vec![Work::Piece { large: large.clone() }],
                    false => Vec::new(),
                });
                (large.folder.clone(), large.object.key.clone(), result)
            }
        };
        result.unwrap_or_else(|failure| {
            folder.has_failed.store(true, Ordering::Relaxed);
            self.context.problem(&folder.top.pair.shown(&key), &failure);
            Vec::new()
        })
    }

    /// Reads the attributes of a directory from the metadata of its object.
    fn marker(&self, folder: &Folder<'_>, object: &Object) -> std::result::Result<(), Failure> {
        let options = &self.context.options;
        if options.is_dry_run || !matches!(options.part, Part::Whole | Part::Finish) {
            return Ok(());
        }
        let head = folder.top.pair.bucket.head(&object.key);
        let head = head.map_err(Failure::of_store("read the object"))?;
        let stored = head.map(|it| Stored::of(&it.metadata));
        let stored = stored.filter(|it| it.kind() == Some(Kind::Directory));
        *folder.stored.lock().expect("no thread panics while it has the lock") = stored;
        Ok(())
    }

    fn object(
        &self,
        folder: &Arc<Folder<'a>>,
        object: &Object,
        name: &str,
    ) -> std::result::Result<Vec<Work<'a>>, Failure> {
        let context = &self.context;
        let options = &context.options;
        let is_large = object.size >= LARGE;
        let is_mine = match options.part {
            Part::Whole | Part::Finish => true,
            Part::Prepare => is_large,
            Part::Share(share) => is_large || share.has_entry(folder.share.entry(OsStr::new(name))),
        };
        if !is_mine {
            return Ok(Vec::new());
        }
        if options.part == Part::Prepare {
            Counters::add(&context.counters.large, 1);
        }
        let destination = folder.destination.as_ref();
        if let Some(names) = destination.and_then(|it| it.names.as_ref()) {
            names.claim(OsStr::new(name))?;
        }
        let existing = match destination.filter(|it| !it.is_new) {
            Some(destination) => Seen::open(&destination.file, OsStr::new(name))?,
            None => None,
        };
        if let Some(existing) = &existing {
            if existing.metadata.is_dir() {
                let reason = "a directory has this name at the destination; move this directory \
                              away";
                return Err(Failure::because("copy", reason));
            }
            if options.skips_complete(!is_large)
                && self.is_complete(folder, object, (existing, name))?
            {
                if !matches!(options.part, Part::Prepare) {
                    Counters::add(&context.counters.skipped, 1);
                }
                return Ok(Vec::new());
            }
        }
        if options.is_dry_run {
            Counters::add(&context.counters.files, 1);
            Counters::add(&context.counters.bytes, object.size);
            return Ok(Vec::new());
        }
        if is_large {
            let begun = Large::begin(folder, object, name, existing.is_some())?;
            let Some(large) = begun else { return Ok(Vec::new()) };
            return Ok((0..large.units()).map(|_| Work::Piece { large: large.clone() }).collect());
        }
        self.small(folder, object, (name, existing.is_some())).map(|()| Vec::new())
    }
}
