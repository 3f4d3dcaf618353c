//! Copies symbolic links, FIFOs, sockets and devices.

use crate::attributes;
use crate::failure::Failure;
use crate::publish::Temporary;
use crate::tree::{Directory, Entry, Seen};
use crate::version::Identity;
use rustix::fs::{FileType, Mode, mknodat, readlinkat, symlinkat};
use std::ffi::CString;
use std::os::unix::fs::MetadataExt;

/// Returns the target of an open symbolic link.
pub(crate) fn target(link: &Seen) -> Result<CString, Failure> {
    readlinkat(&link.file, "", Vec::new()).map_err(Failure::of("read the symbolic link"))
}

/// Copies an entry that is neither a directory nor a regular file. Returns the identity of the
/// copy.
pub(crate) fn copy(
    directory: &Directory,
    entry: &Entry,
    seen: &Seen,
    replaces: bool,
) -> Result<Identity, Failure> {
    let destination = directory.destination.as_ref().expect("not in a dry run");
    let context = &directory.context;
    let temporary = Temporary::new(context, destination, entry.copy());
    let parent = &destination.file;
    let kind = seen.kind();
    if kind == FileType::Symlink {
        let created = symlinkat(&target(seen)?, parent, &temporary.name);
        created.map_err(Failure::of("create the symbolic link"))?;
    } else {
        let mode = Mode::RUSR | Mode::WUSR;
        let created = mknodat(parent, &temporary.name, kind, mode, seen.metadata.rdev());
        created.map_err(Failure::of("create the FIFO, socket or device"))?;
    }
    let copy = temporary.open()?;
    // A new entry has exactly one name. If the entry has more names, another user has replaced it
    // by another entry.
    let is_ours = copy.kind() == kind
        && copy.metadata.nlink() == 1
        && (kind == FileType::Symlink || copy.metadata.rdev() == seen.metadata.rdev());
    if !is_ours {
        let reason = "another program has replaced the copy; copy the entry again with --resume";
        return Err(Failure::because("create the copy", reason));
    }
    let is_clean = !destination.gives_lists;
    let source = (&seen.file, &seen.metadata);
    attributes::copy_special(&context.options, source, &copy.file, is_clean)?;
    let identity = copy.identity();
    temporary.put_in_place(identity, entry.copy(), replaces)?;
    Ok(identity)
}
