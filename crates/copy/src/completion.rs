//! The end of one file's copy: its name, the check that its source has not changed, and the
//! comparison of the bytes.

use crate::context::Context;
use crate::data::{self, Failure, Files};
use crate::outcome::Counters;
use rustix::fs::{Advice, fadvise, renameat};
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;

/// Gives a complete copy its name.
pub(crate) fn put_in_place(parent: &File, partial: &OsStr, name: &OsStr) -> Result<(), Failure> {
    renameat(parent, partial, parent, name).map_err(Failure::of("put the copy in its place"))
}

/// Reports a source that has changed during the copy, and compares the bytes if the user asks.
pub(crate) fn check_after(
    context: &Context<'_>,
    files: Files<'_>,
    before: &Metadata,
) -> Result<(), Failure> {
    let changed = |it: &Metadata| {
        (it.len(), it.mtime(), it.mtime_nsec())
            != (before.len(), before.mtime(), before.mtime_nsec())
    };
    let has_changed = || files.source.metadata().map(|now| changed(&now));
    let is_changed = has_changed().map_err(Failure::of("look at"))?;
    if !is_changed && context.options.verify {
        verify(context, files, before.len())?;
    }
    if is_changed || has_changed().map_err(Failure::of("look at"))? {
        // A later run sees that the copy has not the time of its source, and copies it again.
        let reason = "a program changed it during the copy; copy it again with --resume";
        return Err(Failure::of("copy")(std::io::Error::other(reason)));
    }
    Ok(())
}

fn verify(context: &Context<'_>, files: Files<'_>, len: u64) -> Result<(), Failure> {
    // Otherwise the kernel would answer from its own pages, which were never stored.
    files.destination.sync_data().map_err(Failure::of("sync"))?;
    let _ = fadvise(files.destination, 0, None, Advice::DontNeed);
    let compared = |bytes| Counters::add(&context.counters.verified, bytes);
    match data::difference(files, len, compared)? {
        None => Ok(()),
        Some(position) => {
            let what = format!("the copy differs from the source at byte {position}");
            Err(Failure::of("verify")(std::io::Error::other(what)))
        }
    }
}
