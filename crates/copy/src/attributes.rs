//! Copies owners, modes, times and extended attributes from a source to its copy.
//!
//! The changes have a fixed order: owner, extended attributes, mode, times. The owner comes first,
//! because a change of the owner clears capabilities and the bits `setuid` and `setgid`. The mode
//! comes after the extended attributes, because without root rights, the kernel sets no extended
//! attribute on a file without write permission. Also, an access control list may limit the rights
//! of the group, and this limit must be in place before the mode grants these rights.
//!
//! If the owners of a copy and of its source differ, the copy never has the bit `setuid`, because
//! the program would run as another user. The same holds for `setgid` and the group.

use crate::context::Options;
use crate::failure::Failure;
use rustix::fs::{
    AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, chownat, fchmod, fchown, fgetxattr,
    flistxattr, flistxattr_query, fremovexattr, fsetxattr, futimens, getxattr, removexattr,
    setxattr, utimensat,
};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{File, Metadata, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

/// Limits of the kernel, in bytes: for the list of a file's attribute names, and for one attribute
/// value (`XATTR_LIST_MAX`, `XATTR_SIZE_MAX`).
const LIST_LIMIT: usize = 64 << 10;
const VALUE_LIMIT: usize = 64 << 10;
/// The bits `setuid` and `setgid`.
const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;

fn times(metadata: &Metadata) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: metadata.atime(), tv_nsec: metadata.atime_nsec() },
        last_modification: Timespec { tv_sec: metadata.mtime(), tv_nsec: metadata.mtime_nsec() },
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns the owner and group to set. `None` leaves the owner or group of the copy unchanged.
fn owner(options: &Options, source: &Metadata) -> (Option<Uid>, Option<Gid>) {
    match (options.owners, is_root()) {
        (false, _) => (None, None),
        (true, false) => (None, Some(Gid::from_raw(source.gid()))),
        (true, true) => (Some(Uid::from_raw(source.uid())), Some(Gid::from_raw(source.gid()))),
    }
}

/// Returns the mode for a copy. `copy` contains the owner and the group of the copy.
fn mode(source: &Metadata, copy: &Metadata) -> u32 {
    let mut mode = source.mode() & 0o7777;
    if !source.is_dir() {
        if source.uid() != copy.uid() {
            mode &= !SET_USER;
        }
        if source.gid() != copy.gid() {
            mode &= !SET_GROUP;
        }
    }
    mode
}

/// Whether a copy already has the owner and the mode that [`copy()`] would set.
pub(crate) fn are_equal(options: &Options, source: &Metadata, copy: &Metadata) -> bool {
    let has_owner =
        !options.owners || !is_root() || (source.uid(), source.gid()) == (copy.uid(), copy.gid());
    has_owner && copy.mode() & 0o7777 == mode(source, copy)
}

/// Sets all attributes of the source on an open copy. `is_clean` means that the copy is new and has
/// inherited no access control list from its directory.
pub(crate) fn copy(
    options: &Options,
    source: &File,
    destination: &File,
    metadata: &Metadata,
    is_clean: bool,
) -> Result<(), Failure> {
    let (user, group) = owner(options, metadata);
    if user.is_some() || group.is_some() {
        let changed = fchown(destination, user, group);
        allowed(changed)?;
    }
    if options.xattrs {
        extended(source, destination, is_clean)?;
    }
    let now = destination.metadata().map_err(Failure::of("read the attributes of the copy"))?;
    let mode = Mode::from_raw_mode(mode(metadata, &now));
    fchmod(destination, mode).map_err(Failure::of("set the mode of the copy"))?;
    futimens(destination, &times(metadata)).map_err(Failure::of("set the times of the copy"))
}

/// Ignores the error of a change of owner or group if the user is not root, because a user who is
/// not root cannot set every group.
fn allowed(changed: rustix::io::Result<()>) -> Result<(), Failure> {
    match changed {
        Err(Errno::PERM | Errno::INVAL) if !is_root() => Ok(()),
        Err(error) => {
            let reason =
                format!("{}; use --no-owners to copy without owners", std::io::Error::from(error));
            // The caller recognises a full or lost file system by the error code, so this failure
            // must keep the code.
            let failure = Failure::of("set the owner of the copy")(error);
            match failure.is_full() || failure.is_lost() {
                true => Err(failure),
                false => Err(Failure::because("set the owner of the copy", reason)),
            }
        }
        Ok(()) => Ok(()),
    }
}

/// Sets owner, access control list, mode and times of a copied link, FIFO, socket or device. `copy`
/// is open with `O_PATH`, so the changes affect the right entry even if a program replaces the
/// name. `is_clean` means that the copy has inherited no access control list from its directory.
pub(crate) fn copy_special(
    options: &Options,
    (source, metadata): (&File, &Metadata),
    copy: &File,
    is_clean: bool,
) -> Result<(), Failure> {
    let (user, group) = owner(options, metadata);
    if user.is_some() || group.is_some() {
        allowed(chownat(copy, "", user, group, AtFlags::EMPTY_PATH))?;
    }
    if !metadata.is_symlink() {
        let now = copy.metadata().map_err(Failure::of("read the attributes of the copy"))?;
        // This path leads to the open entry, even if the name of the entry leads to another entry
        // now.
        let path = format!("/proc/self/fd/{}", copy.as_raw_fd());
        if options.xattrs {
            let source = format!("/proc/self/fd/{}", source.as_raw_fd());
            list_of_special(&source, &path, is_clean)?;
        }
        let changed = std::fs::set_permissions(path, Permissions::from_mode(mode(metadata, &now)));
        changed.map_err(Failure::of("set the mode of the copy"))?;
    }
    let set = utimensat(copy, "", &times(metadata), AtFlags::EMPTY_PATH);
    set.map_err(Failure::of("set the times of the copy"))
}

/// Whether the extended attribute `name` is copied. Attributes that belong to the source's file
/// system, such as labels, signatures and stripe patterns, are not copied.
fn is_copied(name: &[u8]) -> bool {
    const LUSTRE: [&[u8]; 7] = [b"lov", b"lma", b"lmv", b"link", b"fid", b"som", b"hsm"];
    if let Some(rest) = name.strip_prefix(b"trusted.") {
        return !LUSTRE.contains(&rest) && !rest.starts_with(b"overlay.");
    }
    (name.starts_with(b"user.") && !name.starts_with(b"user.skep."))
        || name.starts_with(b"system.posix_acl_")
        || name == b"security.capability"
}

/// Returns the names of a file's extended attributes. Omits the attributes that are not copied.
fn names(file: &File) -> rustix::io::Result<Vec<Vec<u8>>> {
    match flistxattr_query(file) {
        Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Err(error) => return Err(error),
        Ok(_) => {}
    }
    let mut list = vec![0_u8; LIST_LIMIT];
    let len = flistxattr(file, &mut list[..])?;
    let names = list[..len].split(|byte| *byte == 0).filter(|name| is_copied(name));
    Ok(names.map(<[u8]>::to_vec).collect())
}

fn extended(source: &File, destination: &File, is_clean: bool) -> Result<(), Failure> {
    let wanted = names(source).map_err(Failure::of("list extended attributes"))?;
    if !is_clean {
        // Remove attributes that the source does not have: an inherited access control list, or an
        // attribute of an older copy, may give more users access than the source gives.
        let found = names(destination).map_err(Failure::of("list attributes of the copy"))?;
        for name in found.iter().filter(|name| !wanted.contains(name)) {
            match fremovexattr(destination, OsStr::from_bytes(name)) {
                Ok(()) | Err(Errno::NODATA) => {}
                Err(error) => {
                    return Err(Failure::of("remove an extended attribute of the copy")(error));
                }
            }
        }
    }
    if wanted.is_empty() {
        return Ok(());
    }
    let mut value = vec![0_u8; VALUE_LIMIT];
    for name in &wanted {
        let name = OsStr::from_bytes(name);
        let len = match fgetxattr(source, name, &mut value[..]) {
            Ok(len) => len,
            // A program has removed the attribute since the names were listed. The check of the
            // source's version reports the change.
            Err(Errno::NODATA) => continue,
            Err(error) => return Err(Failure::of("read an extended attribute")(error)),
        };
        match fsetxattr(destination, name, &value[..len], XattrFlags::empty()) {
            Ok(()) => {}
            Err(error @ (Errno::OPNOTSUPP | Errno::PERM | Errno::INVAL)) => {
                let reason = format!(
                    "{}: {}; use --no-xattrs to copy without extended attributes",
                    crate::failure::shown(name.as_ref()),
                    std::io::Error::from(error)
                );
                return Err(Failure::because("set an extended attribute of the copy", reason));
            }
            Err(error) => return Err(Failure::of("set an extended attribute of the copy")(error)),
        }
    }
    Ok(())
}

/// Whether a copy has the extended attributes that it should get from its source, and no other
/// extended attributes. Ignores attributes that are never copied. Attributes that only the copy has
/// must not stay, since an old access control list or capability may give rights that the source
/// does not give.
pub(crate) fn are_extended_equal(source: &File, copy: &File) -> Result<bool, Failure> {
    let list = |file: &File| {
        let mut names = names(file).map_err(Failure::of("list extended attributes"))?;
        names.sort_unstable();
        Ok(names)
    };
    let names = list(source)?;
    if names != list(copy)? {
        return Ok(false);
    }
    let mut values = [vec![0_u8; VALUE_LIMIT], vec![0_u8; VALUE_LIMIT]];
    for name in names.iter().map(|name| OsStr::from_bytes(name)) {
        let [of_source, of_copy] = &mut values;
        let read = |file: &File, value: &mut [u8]| match fgetxattr(file, name, value) {
            Ok(len) => Ok(Some(len)),
            Err(Errno::NODATA) => Ok(None),
            Err(error) => Err(Failure::of("read an extended attribute")(error)),
        };
        let lens = (read(source, &mut of_source[..])?, read(copy, &mut of_copy[..])?);
        let (Some(len), Some(other)) = lens else { return Ok(false) };
        if of_source[..len] != of_copy[..other] {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Name of the extended attribute that contains the access control list of an entry.
const LIST: &str = "system.posix_acl_access";

/// Copies the access control list of the source to a FIFO, socket or device. `path` and `source`
/// are paths below `/proc/self/fd` of the open copy and of the open source. `is_clean` means that
/// the copy has inherited no access control list from its directory.
fn list_of_special(source: &str, path: &str, is_clean: bool) -> Result<(), Failure> {
    let mut value = vec![0_u8; VALUE_LIMIT];
    match getxattr(source, LIST, &mut value[..]) {
        Ok(len) => setxattr(path, LIST, &value[..len], XattrFlags::empty())
            .map_err(Failure::of("set the access control list of the copy")),
        Err(Errno::NODATA | Errno::OPNOTSUPP) if is_clean => Ok(()),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => match removexattr(path, LIST) {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
            Err(error) => Err(Failure::of("remove the access control list of the copy")(error)),
        },
        Err(error) => Err(Failure::of("read the access control list")(error)),
    }
}

/// Removes the access control list and the extended attributes that a new entry has inherited from
/// its directory, or that an older copy has left.
pub(crate) fn clear(copy: &File) -> Result<(), Failure> {
    for name in names(copy).map_err(Failure::of("list attributes of the copy"))? {
        match fremovexattr(copy, OsStr::from_bytes(&name)) {
            Ok(()) | Err(Errno::NODATA) => {}
            Err(error) => {
                return Err(Failure::of("remove an extended attribute of the copy")(error));
            }
        }
    }
    Ok(())
}

/// Whether new entries inherit an access control list from a directory.
pub(crate) fn gives_lists(directory: &File) -> bool {
    // If the call fails with an unexpected error, assume that the directory has a default access
    // control list. This assumption is safe, because the caller checks each new entry.
    let found = fgetxattr(directory, "system.posix_acl_default", &mut [0_u8; 0]);
    !matches!(found, Err(Errno::NODATA | Errno::OPNOTSUPP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xattrs_of_the_source_file_system_are_not_copied() {
        let copied = ["user.note", "system.posix_acl_access", "security.capability", "trusted.x"];
        let left =
            ["user.skep.pattern", "security.selinux", "security.ima", "trusted.lov", "lustre.lov"];
        assert!(copied.iter().all(|name| is_copied(name.as_bytes())));
        assert!(!left.iter().any(|name| is_copied(name.as_bytes())));
    }

    #[test]
    fn copy_with_another_owner_loses_the_setuid_bit() {
        let program = tempfile::NamedTempFile::new().unwrap();
        let other = tempfile::NamedTempFile::new().unwrap();
        program.as_file().set_permissions(Permissions::from_mode(0o6755)).unwrap();
        let [source, mut copy] = [&program, &other].map(|it| it.as_file().metadata().unwrap());
        assert_eq!(mode(&source, &copy), 0o6755);
        if is_root() {
            fchown(other.as_file(), Some(Uid::from_raw(1)), Some(Gid::from_raw(1))).unwrap();
            copy = other.as_file().metadata().unwrap();
            assert_eq!(mode(&source, &copy), 0o755);
        }
    }
}
