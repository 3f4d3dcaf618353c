//! Owners, modes, times and extended attributes of copies.
//!
//! A process without root copies no owner, as `cp` does: only root may give files away.

use crate::data::Failure;
use rustix::fs::{
    AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, chownat, fchmod, fchown, fgetxattr,
    flistxattr, flistxattr_query, fsetxattr, futimens, utimensat,
};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

/// Attributes that belong to the file system of the source: figures of Skep, labels of its host.
const NOT_COPIED: [&[u8]; 2] = [b"user.skep.", b"security.selinux"];
/// Limits of the kernel for the list of names and for a value (`XATTR_LIST_MAX`, `XATTR_SIZE_MAX`).
const LIST_LIMIT: usize = 64 << 10;
const VALUE_LIMIT: usize = 64 << 10;

fn times(metadata: &Metadata) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: metadata.atime(), tv_nsec: metadata.atime_nsec() },
        last_modification: Timespec { tv_sec: metadata.mtime(), tv_nsec: metadata.mtime_nsec() },
    }
}

fn owner(metadata: &Metadata) -> Option<(Uid, Gid)> {
    let is_root = rustix::process::geteuid().is_root();
    is_root.then(|| (Uid::from_raw(metadata.uid()), Gid::from_raw(metadata.gid())))
}

fn mode(metadata: &Metadata) -> Mode {
    Mode::from_raw_mode(metadata.mode() & 0o7777)
}

/// Gives an open copy all attributes of its source. The times are last, since they show a later run
/// that the copy is complete.
pub(crate) fn copy(
    source: impl AsFd,
    destination: impl AsFd,
    metadata: &Metadata,
) -> Result<(), Failure> {
    let destination = destination.as_fd();
    if let Some((user, group)) = owner(metadata) {
        let changed = fchown(destination, Some(user), Some(group));
        changed.map_err(Failure::of("set the owner of the copy"))?;
    }
    fchmod(destination, mode(metadata)).map_err(Failure::of("set the mode of the copy"))?;
    let extended = extended(source.as_fd(), destination);
    futimens(destination, &times(metadata)).map_err(Failure::of("set the times of the copy"))?;
    // A copy without them is complete except for them, so a later run would not repair it.
    extended
}

/// Gives a link, FIFO or device its owner, mode and times.
pub(crate) fn copy_by_name(
    directory: BorrowedFd<'_>,
    name: &OsStr,
    metadata: &Metadata,
) -> Result<(), Failure> {
    if let Some((user, group)) = owner(metadata) {
        let changed = chownat(directory, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW);
        changed.map_err(Failure::of("set the owner of the copy"))?;
    }
    let set = utimensat(directory, name, &times(metadata), AtFlags::SYMLINK_NOFOLLOW);
    set.map_err(Failure::of("set the times of the copy"))
}

fn extended(source: BorrowedFd<'_>, destination: BorrowedFd<'_>) -> Result<(), Failure> {
    match flistxattr_query(source) {
        Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(()),
        _ => {}
    }
    let mut list = vec![0_u8; LIST_LIMIT];
    let len = flistxattr(source, &mut list[..]);
    let len = len.map_err(Failure::of("list extended attributes"))?;
    let mut value = vec![0_u8; VALUE_LIMIT];
    for name in list[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        if NOT_COPIED.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        let name = OsStr::from_bytes(name);
        let len = match fgetxattr(source, name, &mut value[..]) {
            Ok(len) => len,
            // It was removed meanwhile, or the file system calculates it for each read.
            Err(Errno::NODATA) => continue,
            Err(error) => return Err(Failure::of("read an extended attribute")(error)),
        };
        let set = fsetxattr(destination, name, &value[..len], XattrFlags::empty());
        set.map_err(Failure::of("set an extended attribute of the copy"))?;
    }
    Ok(())
}
