//! Copies one regular file, or begins a large one.
//!
//! A new file is created under its own name. A file that replaces another one is written under the
//! name of an incomplete copy and renamed at the end, so that the old contents stay if the copy
//! fails. Its times are set last: a file with the length and the time of its source is complete.

use crate::attributes;
use crate::completion::{check_after, put_in_place};
use crate::context::Context;
use crate::data::{self, Failure, Files};
use crate::large::Large;
use crate::outcome::Counters;
use crate::plan::{LARGE, partial_names};
use crate::tree::{self, Directory, Entry};
use rustix::fs::{AtFlags, Mode, OFlags, openat, unlinkat};
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

/// Copies a regular file, whose copy may exist already. Returns the pieces of a large one.
pub(crate) fn copy(
    context: &Context<'_>,
    directory: &Arc<Directory>,
    entry: &Entry,
    existing: Option<&Metadata>,
) -> Result<Vec<(Arc<Large>, u64)>, Failure> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let source = openat(&directory.source, &entry.name, flags, Mode::empty());
    let source = File::from(source.map_err(Failure::of("open"))?);
    let metadata = source.metadata().map_err(Failure::of("look at"))?;
    let Some(parent) = directory.destination.as_ref().filter(|_| !context.options.is_dry_run)
    else {
        Counters::add(&context.counters.files, 1);
        Counters::add(&context.counters.bytes, metadata.len().min(metadata.blocks() * 512));
        return Ok(Vec::new());
    };
    if metadata.len() >= LARGE {
        return Large::begin(context, directory, entry, source, metadata);
    }
    let partial = existing.map(|_| partial_names(&entry.copy).0);
    let name = partial.as_deref().unwrap_or(&entry.copy);
    if partial.is_some() {
        tree::make_way(parent, name)?;
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let copy = openat(parent, name, flags, Mode::RUSR | Mode::WUSR);
    let copy = File::from(copy.map_err(Failure::of("create"))?);
    let files = Files { source: &source, destination: &copy };
    let copied = copy_small(context, files, &metadata).and_then(|()| match &partial {
        Some(partial) => put_in_place(parent, partial, &entry.copy),
        None => Ok(()),
    });
    if let Err(failure) = copied {
        // A part of a small file is worth nothing. The first error is the one to report.
        let _ = unlinkat(parent, name, AtFlags::empty());
        return Err(failure);
    }
    Counters::add(&context.counters.files, 1);
    check_after(context, files, &metadata)?;
    Ok(Vec::new())
}

fn copy_small(context: &Context<'_>, files: Files<'_>, metadata: &Metadata) -> Result<(), Failure> {
    let copied = |bytes| Counters::add(&context.counters.bytes, bytes);
    if metadata.len() > 0 {
        // Bytes after the last write are a hole.
        if metadata.blocks() * 512 < metadata.len() {
            let set = files.destination.set_len(metadata.len());
            set.map_err(Failure::of("set the length"))?;
        }
        data::copy(files, 0..metadata.len(), &context.pace, copied)?;
    }
    attributes::copy(files.source, files.destination, metadata)?;
    match context.options.sync {
        true => files.destination.sync_all().map_err(Failure::of("sync")),
        false => Ok(()),
    }
}

/// Compares a copy that a former run has made.
pub(crate) fn verify_existing(
    context: &Context<'_>,
    directory: &Directory,
    entry: &Entry,
) -> Result<(), Failure> {
    let Some(parent) = &directory.destination else { return Ok(()) };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open = |directory: &File, name: &OsStr| {
        openat(directory, name, flags, Mode::empty()).map(File::from)
    };
    let source = open(&directory.source, &entry.name).map_err(Failure::of("open"))?;
    let copy = open(parent, &entry.copy).map_err(Failure::of("open the copy"))?;
    let metadata = source.metadata().map_err(Failure::of("look at"))?;
    check_after(context, Files { source: &source, destination: &copy }, &metadata)
}
