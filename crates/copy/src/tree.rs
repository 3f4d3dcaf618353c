//! Directories of the two trees, and the entries in them that are not regular files.

use crate::attributes;
use crate::data::Failure;
use crate::plan::Version;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, mkdirat, mknodat, openat, openat2, readlinkat,
    symlinkat, unlinkat,
};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, Permissions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A directory of the source with its copy.
#[derive(Debug)]
pub(crate) struct Directory {
    /// Number of the pair of source and destination.
    pub(crate) pair: usize,
    /// Path of the source, for messages.
    pub(crate) shown: PathBuf,
    /// Path below the parent of the source's top.
    pub(crate) from: PathBuf,
    /// Path below the parent of the copy's top.
    pub(crate) to: PathBuf,
    pub(crate) source: File,
    /// `None`: it does not exist, in a dry run.
    pub(crate) destination: Option<File>,
    /// Whether this run has created the copy, so that nothing is in it.
    pub(crate) is_new: bool,
}

/// The directories that contain a source and its copy.
#[derive(Debug)]
pub(crate) struct Tops {
    pub(crate) source: File,
    /// `None`: it does not exist, in a dry run.
    pub(crate) destination: Option<File>,
}

/// An entry of a directory, and the name of its copy.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: OsString,
    pub(crate) copy: OsString,
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Opens a directory that the user named. Links in this path are followed.
pub(crate) fn open_named(path: &Path) -> Result<File, Failure> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let opened = rustix::fs::open(path, DIRECTORY, Mode::empty());
    opened.map(File::from).map_err(Failure::of("open the directory"))
}

/// Opens a directory below another one, without following any link.
pub(crate) fn open_below(top: impl AsFd, path: &Path) -> Result<File, Failure> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let resolve = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);
    let opened = openat2(top, path, DIRECTORY, Mode::empty(), resolve);
    opened.map(File::from).map_err(Failure::of("open the directory"))
}

/// Opens a directory by its name in another one.
pub(crate) fn open_directory(parent: impl AsFd, name: &OsStr) -> rustix::io::Result<File> {
    openat(parent, name, DIRECTORY.union(OFlags::NOFOLLOW), Mode::empty()).map(File::from)
}

/// Returns the attributes of an entry. `None` means that it does not exist.
pub(crate) fn attributes_of(parent: impl AsFd, name: &OsStr) -> Result<Option<Metadata>, Failure> {
    let flags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
    let file = match openat(parent, name, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(Failure::of("look at")(error)),
    };
    file.metadata().map(Some).map_err(Failure::of("look at"))
}

/// Returns the type of an entry by its attributes.
pub(crate) fn file_type(metadata: &Metadata) -> FileType {
    FileType::from_raw_mode(metadata.mode())
}

/// Returns the version of an entry's contents.
pub(crate) fn version(metadata: &Metadata) -> Version {
    Version { len: metadata.len(), modified: (metadata.mtime(), metadata.mtime_nsec()) }
}

/// Creates the copy of a directory, or opens it if it exists. The second value is whether it was
/// created.
pub(crate) fn create_directory(parent: impl AsFd, name: &OsStr) -> Result<(File, bool), Failure> {
    // Others may enter only when the copy has the mode of its source, at the end.
    let is_new = match mkdirat(&parent, name, Mode::RWXU) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(error) => return Err(Failure::of("create the directory")(error)),
    };
    match open_directory(parent, name) {
        Ok(file) => Ok((file, is_new)),
        Err(error) => Err(Failure::of("open the directory of the copy")(error)),
    }
}

/// Lists a directory, except for `.` and `..`.
pub(crate) fn list(directory: &File) -> Result<Vec<(OsString, FileType)>, Failure> {
    let mut entries = Vec::new();
    let failed = || Failure::of("list the directory");
    for entry in rustix::fs::Dir::read_from(directory).map_err(failed())? {
        let entry = entry.map_err(failed())?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            entries.push((OsString::from_vec(name.to_vec()), entry.file_type()));
        }
    }
    Ok(entries)
}

/// Removes the entry in the place of a copy. A directory there stays, and is an error.
pub(crate) fn make_way(parent: impl AsFd, name: &OsStr) -> Result<(), Failure> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(Failure::of("replace the entry at the destination")(error)),
    }
}

/// Copies a symbolic link, FIFO or device. The caller has removed an entry in its place.
pub(crate) fn copy_special(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    entry: &Entry,
    metadata: &Metadata,
) -> Result<(), Failure> {
    let kind = file_type(metadata);
    if kind == FileType::Symlink {
        let target = readlinkat(from, &entry.name, Vec::new());
        let target = target.map_err(Failure::of("read the symbolic link"))?;
        let created = symlinkat(&target, to, &entry.copy);
        created.map_err(Failure::of("create the symbolic link"))?;
    } else {
        let mode = Mode::from_raw_mode(metadata.mode() & 0o7777);
        let created = mknodat(to, &entry.copy, kind, mode, metadata.rdev());
        created.map_err(Failure::of("create the FIFO or device"))?;
    }
    attributes::copy_by_name(to, &entry.copy, metadata)?;
    if kind != FileType::Symlink {
        // The umask has changed the mode. The path names the open entry, so it follows no link.
        let flags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
        let opened = openat(to, &entry.copy, flags, Mode::empty());
        let opened = opened.map_err(Failure::of("open the copy"))?;
        let path = format!("/proc/self/fd/{}", opened.as_raw_fd());
        let mode = Permissions::from_mode(metadata.mode() & 0o7777);
        let changed = std::fs::set_permissions(path, mode);
        changed.map_err(Failure::of("set the mode of the copy"))?;
        attributes::copy_by_name(to, &entry.copy, metadata)?;
    }
    Ok(())
}
