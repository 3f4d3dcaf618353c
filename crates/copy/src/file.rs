//! Copies one regular file. Only begins the copy of a large file, whose pieces [`crate::large`]
//! copies.
//!
//! All bytes are read through one descriptor, and the version of the source is compared before and
//! after the copy. A copy gets its name only when it has all bytes and attributes, is synced, and
//! its source is unchanged.

use crate::attributes;
use crate::data::{self, Files, is_sparse};
use crate::failure::Failure;
use crate::large::{Copied, Large};
use crate::outcome::Counters;
use crate::plan::{LARGE, Version};
use crate::publish::Temporary;
use crate::shares::Part;
use crate::tree::{Directory, Entry, Seen};
use crate::verification;
use crate::version::{expect_complete, version_of};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

/// Copies a regular file. `replaces` means that the destination already has an entry with the name
/// of the copy.
pub(crate) fn copy(
    directory: &Arc<Directory>,
    entry: &Entry,
    seen: &Seen,
    replaces: bool,
) -> Result<Copied, Failure> {
    let context = &directory.context;
    let counters = &context.counters;
    let metadata = &seen.metadata;
    if context.options.is_dry_run {
        Counters::add(&counters.files, 1);
        Counters::add(&counters.bytes, metadata.len().min(metadata.blocks().saturating_mul(512)));
        return Ok(Copied::Complete(seen.identity()));
    }
    let source = seen.open_file(&directory.source, &entry.name)?;
    if metadata.len() >= LARGE {
        return Large::begin(directory, entry, source, metadata, replaces);
    }
    let destination = directory.destination.as_ref().expect("not in a dry run");
    let version = version_of(metadata);
    let temporary = Temporary::new(context, destination, entry.copy());
    let copy = temporary.create()?;
    copy_bytes(directory, Files { source: &source, destination: &copy }, version)?;
    let is_clean = !destination.gives_lists;
    attributes::copy(&context.options, &source, &copy, metadata, is_clean)?;
    if context.options.sync {
        copy.sync_all().map_err(Failure::of("sync"))?;
    }
    if context.options.verify {
        let stored = verification::open(&destination.file, &temporary.name, &copy)?;
        let compared = |bytes| Counters::add(&counters.verified, bytes);
        verification::compare(&source, &stored, 0..version.len, compared)?;
    }
    let identity = expect_complete(&source, &copy, version)?;
    temporary.put_in_place(identity, entry.copy(), replaces)?;
    Counters::add(&counters.files, 1);
    Ok(Copied::Complete(identity))
}

fn copy_bytes(directory: &Directory, files: Files<'_>, version: Version) -> Result<(), Failure> {
    let context = &directory.context;
    if version.len == 0 {
        let found = files.source.read_at(&mut [0], 0).map_err(Failure::of("read"))?;
        if found > 0 {
            let reason = "the file has bytes although its length is 0, because the kernel \
                          generates its contents at each read; copy this file with cat";
            return Err(Failure::because("copy", reason));
        }
        return Ok(());
    }
    let is_sparse = is_sparse(files.source)?;
    if is_sparse {
        // If the source ends with a hole, the copy gets its full length here.
        let set = files.destination.set_len(version.len);
        set.map_err(Failure::of("set the length"))?;
    }
    let copied = |bytes| Counters::add(&context.counters.bytes, bytes);
    data::copy(files, 0..version.len, is_sparse, &context.pace, copied)
}

/// Checks a file that a previous run has copied. Compares the bytes of the file with the source if
/// the user requests verification, and sets the attributes of the file if they differ. Returns
/// `false` if the attributes differ and the file may belong to another user or to another copy
/// (`is_own` is false). In this case the caller must copy the file again.
pub(crate) fn check_existing(
    directory: &Directory,
    entry: &Entry,
    (seen, existing): (&Seen, &Seen),
    is_own: bool,
) -> Result<bool, Failure> {
    let context = &directory.context;
    let options = &context.options;
    let is_equal = attributes::are_equal(options, &seen.metadata, &existing.metadata);
    // In a copy by several hosts, the process of a share has already compared and synced this file.
    let is_checked = options.part == Part::Finish && seen.metadata.nlink() < 2;
    let verify = options.verify && !is_checked;
    let is_done = is_equal && (is_checked || (!options.verify && !options.sync && !options.xattrs));
    if options.is_dry_run || is_done {
        return Ok(true);
    }
    let destination = directory.destination.as_ref().expect("not in a dry run");
    let source = seen.open_file(&directory.source, &entry.name)?;
    let copy = existing.open_file(&destination.file, entry.copy())?;
    let version = version_of(&seen.metadata);
    let is_equal = is_equal && (!options.xattrs || attributes::are_extended_equal(&source, &copy)?);
    if !is_equal && !is_own {
        return Ok(false);
    }
    if verify {
        let stored = verification::open(&destination.file, entry.copy(), &copy)?;
        let compared = |bytes| Counters::add(&context.counters.verified, bytes);
        verification::compare(&source, &stored, 0..version.len, compared)?;
        expect_complete(&source, &copy, version)?;
    }
    if !is_equal {
        attributes::copy(options, &source, &copy, &seen.metadata, false)?;
    }
    if options.sync {
        // The previous run may have copied the file without a sync.
        copy.sync_all().map_err(Failure::of("sync"))?;
    }
    Ok(true)
}
