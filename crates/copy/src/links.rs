//! The end of a copy: hard links, and the attributes of directories.
//!
//! Hard links are created when the first name of their file is complete. Directories get their
//! modes and times after everything in them, since each new entry changes the time of a directory,
//! and a mode without write permission would prevent new entries.

use crate::attributes;
use crate::context::Context;
use crate::data::Failure;
use crate::outcome::Counters;
use crate::tree::{Tops, attributes_of, make_way, open_below};
use rustix::fs::{AtFlags, linkat};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// A copy: the pair that it belongs to, and its path below the top of the destination.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) pair: usize,
    pub(crate) to: PathBuf,
}

#[derive(Debug)]
struct Link {
    shown: PathBuf,
    first: Place,
    place: Place,
}

#[derive(Debug)]
struct Made {
    shown: PathBuf,
    from: PathBuf,
    place: Place,
}

/// Everything that is done at the end. Each lock protects its collection and is held for one
/// operation on it.
#[derive(Debug, Default)]
pub(crate) struct Deferred {
    /// The first name of each file with several, by device and inode of the source.
    first: Mutex<HashMap<(u64, u64), Place>>,
    links: Mutex<Vec<Link>>,
    /// In the order of creation: a directory comes before those in it.
    directories: Mutex<Vec<Made>>,
}

impl Deferred {
    /// Whether the caller copies a file with several names: it has the first of them. Other names
    /// become links at the end.
    pub(crate) fn is_first(&self, inode: (u64, u64), shown: &Path, place: Place) -> bool {
        let mut first = self.first.lock().expect("no thread panics with this lock");
        let Some(found) = first.get(&inode) else {
            first.insert(inode, place);
            return true;
        };
        let link = Link { shown: shown.to_owned(), first: found.clone(), place };
        self.links.lock().expect("no thread panics with this lock").push(link);
        false
    }

    pub(crate) fn add_directory(&self, shown: &Path, from: &Path, place: Place) {
        let made = Made { shown: shown.to_owned(), from: from.to_owned(), place };
        self.directories.lock().expect("no thread panics with this lock").push(made);
    }

    /// Creates the links, then sets the attributes of directories from the innermost outwards.
    pub(crate) fn finish(self, context: &Context<'_>, tops: &[Tops]) {
        for it in self.links.into_inner().expect("no thread panics with this lock") {
            match link(tops, &it) {
                Ok(true) => Counters::add(&context.counters.others, 1),
                Ok(false) => Counters::add(&context.counters.skipped, 1),
                Err(failure) => context.problem(&it.shown, &failure),
            }
        }
        let directories = self.directories.into_inner().expect("no thread panics with this lock");
        for it in directories.iter().rev() {
            if let Err(failure) = complete(context, tops, it) {
                context.problem(&it.shown, &failure);
            }
        }
    }
}

fn split(path: &Path) -> (&Path, &OsStr) {
    (path.parent().unwrap_or(Path::new("")), path.file_name().unwrap_or_default())
}

/// Creates a hard link. Returns false if it exists.
fn link(tops: &[Tops], it: &Link) -> Result<bool, Failure> {
    let top = |pair: usize| tops[pair].destination.as_ref().expect("not in a dry run");
    let (first_parent, first_name) = split(&it.first.to);
    let (parent, name) = split(&it.place.to);
    let first = open_below(top(it.first.pair), first_parent)?;
    let directory = open_below(top(it.place.pair), parent)?;
    let of = |directory, name| {
        let found = attributes_of(directory, name)?;
        Ok(found.map(|it| (it.dev(), it.ino())))
    };
    let existing = of(&directory, name)?;
    if existing.is_some() {
        if existing == of(&first, first_name)? {
            return Ok(false);
        }
        make_way(&directory, name)?;
    }
    let linked = linkat(&first, first_name, &directory, name, AtFlags::empty());
    linked.map_err(Failure::of("create the hard link"))?;
    Ok(true)
}

fn complete(context: &Context<'_>, tops: &[Tops], it: &Made) -> Result<(), Failure> {
    let tops = &tops[it.place.pair];
    let source = open_below(&tops.source, &it.from)?;
    let top = tops.destination.as_ref().expect("not in a dry run");
    let directory = open_below(top, &it.place.to)?;
    let metadata = source.metadata().map_err(Failure::of("look at"))?;
    attributes::copy(&source, &directory, &metadata)?;
    match context.options.sync {
        true => directory.sync_all().map_err(Failure::of("sync")),
        false => Ok(()),
    }
}
