//! The user of the host that runs a service, and the files that this user needs.
//!
//! The units of systemd run services as an ordinary user. Administrators initialise, restore and
//! repair the directories of a service as root. So before each start, the unit runs
//! `skep KIND --give-to USER` as root, which calls the functions of this module. They give the
//! directories of the service to the user, and let the group of the user read the settings.
//!
//! # Hazard: files of a service that root changes
//!
//! A service must not gain access to other files of the host, not even after an attacker has taken
//! it over. A service can put symbolic links, hard links and other directories into its own
//! directories at any time. Therefore this module opens each file without following links, and
//! changes the owner of the opened file. It refuses files with several names. It changes a
//! directory of a target only if this directory contains a record of its identity. And it refuses
//! settings that the user could change, because they name the directories.

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, chownat, fstat, openat, statat};
use rustix::io::Errno;
use rustix::process::{Gid, Uid, geteuid};
use skep_store::identity::IDENTITY_FILE;
use skep_types::{Error, ErrorCode, Result};
use std::ffi::OsStr;
use std::fs::{DirBuilder, Metadata, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;

/// The file with the users of the host.
const USERS: &str = "/etc/passwd";
/// Maximum depth of the directories below a directory of a service. Services create fewer levels.
const MAX_DEPTH: usize = 16;
/// Mode of a new directory of a service. Only its owner can enter it.
const PRIVATE_MODE: u32 = 0o700;
/// Mode of new directories above a directory of a service.
const COMMON_MODE: u32 = 0o755;
/// Permission bit to read a file, and to enter a directory.
const READ: u32 = 0o4;
const ENTER: u32 = 0o1;
/// Flags to open a file for a change of its owner, without any effect on the file.
const OPEN: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A user of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceUser {
    /// The name of the user.
    pub name: String,
    /// The id of the user.
    pub uid: u32,
    /// The id of the primary group of the user.
    pub gid: u32,
}

fn refused(what: String) -> Error {
    Error::new(ErrorCode::Configuration, what)
}

fn failed(path: &Path) -> impl Fn(Errno) -> Error {
    move |error| Error::from(std::io::Error::from(error)).within(path.display())
}

fn io_failed(path: &Path) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::from(error).within(path.display())
}

impl ServiceUser {
    /// Finds a user of this host by name.
    ///
    /// # Errors
    /// - `Configuration` if the host has no such user.
    /// - `NotPermitted` if this process does not run as root, because only root can give files to
    ///   another user.
    pub fn find(name: &str) -> Result<Self> {
        if !geteuid().is_root() {
            let what = "only root can give files to another user: run this command as root";
            return Err(Error::new(ErrorCode::NotPermitted, what));
        }
        let users = std::fs::read_to_string(USERS).map_err(io_failed(Path::new(USERS)))?;
        user_in(&users, name).ok_or_else(|| {
            refused(format!(
                "{USERS} has no user '{name}': the packages of Skep create this user; without a \
                 package, run `useradd --system --user-group --no-create-home --shell \
                 /usr/sbin/nologin {name}`"
            ))
        })
    }

    /// Whether the permission bits of a file give the user an access. An access control list may
    /// give another answer.
    fn has_access(&self, file: &Metadata, access: u32) -> bool {
        let shift = if file.uid() == self.uid {
            6
        } else if file.gid() == self.gid {
            3
        } else {
            0
        };
        self.uid == 0 || (file.mode() >> shift) & access != 0
    }

    /// Lets the user read a configuration file, and enter its directory. If necessary, gives both
    /// to the group of the user. They still belong to root, so the service cannot change its own
    /// settings.
    ///
    /// # Errors
    /// - `Configuration` if the file belongs to the user.
    /// - Errors of the file system, with the path.
    pub fn share_settings(&self, file: &Path) -> Result<()> {
        let metadata = std::fs::metadata(file).map_err(io_failed(file))?;
        if metadata.uid() == self.uid && self.uid != 0 {
            return Err(refused(format!(
                "{0} belongs to the user {1}: a service must not change the settings that root \
                 reads; run `chown root {0}`",
                file.display(),
                self.name
            )));
        }
        self.share(file, READ)?;
        let file = std::path::absolute(file).map_err(io_failed(file))?;
        if let Some(parent) = file.parent() {
            self.share(parent, ENTER)?;
        }
        self.warn_of_closed_directories(&file);
        Ok(())
    }

    /// Lets the user read a secret of root that this user's service needs, such as a token. If
    /// necessary, makes the user its owner. A secret must not be readable by a group.
    ///
    /// # Errors
    /// Errors of the file system, with the path.
    pub fn share_secret(&self, file: &Path) -> Result<()> {
        let metadata = std::fs::metadata(file).map_err(io_failed(file))?;
        if metadata.is_file() && !self.has_access(&metadata, READ) {
            chown(file, Some(self.uid), None).map_err(io_failed(file))?;
            tracing::info!("{} belongs to the user {} now", file.display(), self.name);
        }
        self.warn_of_closed_directories(&std::path::absolute(file).map_err(io_failed(file))?);
        Ok(())
    }

    /// Gives a file or a directory of root's group to the group of the user, with one permission
    /// bit.
    fn share(&self, path: &Path, access: u32) -> Result<()> {
        let metadata = std::fs::metadata(path).map_err(io_failed(path))?;
        let is_free = metadata.gid() == 0 || metadata.gid() == self.gid;
        if self.has_access(&metadata, access) || !is_free {
            return Ok(());
        }
        chown(path, None, Some(self.gid)).map_err(io_failed(path))?;
        let mode = metadata.mode() & 0o7777 | access << 3;
        std::fs::set_permissions(path, Permissions::from_mode(mode)).map_err(io_failed(path))?;
        tracing::info!("the group of the user {} has access to {} now", self.name, path.display());
        Ok(())
    }

    /// Logs a warning for each directory above a file that the user cannot enter. This is no error,
    /// since the directory may have an access control list.
    fn warn_of_closed_directories(&self, path: &Path) {
        for directory in path.ancestors().skip(1) {
            let Ok(metadata) = std::fs::metadata(directory) else { continue };
            if !self.has_access(&metadata, ENTER) {
                tracing::warn!(
                    "the user {} cannot enter {}, so its service cannot reach {}: run `chmod o+x \
                     {}`, or use another directory",
                    self.name,
                    directory.display(),
                    path.display(),
                    directory.display()
                );
            }
        }
    }

    /// Gives the directory of a node or of a target to the user, with all files in it that belong
    /// to others. Returns the number of files and directories whose owner has changed. Changes
    /// nothing if the directory is not initialised.
    ///
    /// If a subdirectory belongs to the user, everything in it does. So the function reads only the
    /// top of a directory that it has given to the user before.
    ///
    /// # Errors
    /// - `Configuration` if a file has several names, or if directories are nested too deeply.
    /// - Errors of the file system, with the path.
    pub fn take_directory(&self, path: &Path) -> Result<u64> {
        let ignore = || {
            tracing::warn!(
                "{} has no record of a service or target ({IDENTITY_FILE}), so its owner stays: \
                 mount its disk, or initialise it with --init",
                path.display()
            );
            Ok(0)
        };
        let top = match open_top(path) {
            Err(Errno::NOENT) => return ignore(),
            top => top.map_err(failed(path))?,
        };
        // Look for the record in the opened directory, and not at the path. Otherwise the service
        // could replace the directory between these two steps.
        match statat(&top, IDENTITY_FILE, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(record) if FileType::from_raw_mode(record.st_mode) == FileType::RegularFile => {}
            _ => return ignore(),
        }
        self.take(&top, path)
    }

    /// Like [`Self::take_directory`], for a directory without a record of its identity. Creates the
    /// directory if it is missing. No other user may be able to change the path.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::take_directory`].
    pub fn take_plain_directory(&self, path: &Path) -> Result<u64> {
        create(path, PRIVATE_MODE)?;
        self.take(&open_top(path).map_err(failed(path))?, path)
    }

    fn take(&self, top: &OwnedFd, path: &Path) -> Result<u64> {
        if let Ok(path) = std::path::absolute(path) {
            self.warn_of_closed_directories(&path);
        }
        let stat = fstat(top).map_err(failed(path))?;
        if stat.st_uid != self.uid {
            tracing::info!("giving all files in {} to the user {}", path.display(), self.name);
        }
        let mut change = OwnerChange { user: self, top: stat, count: 0 };
        change.of_entries(top, path, 0)?;
        if stat.st_uid != self.uid {
            change.of_file(top, path)?;
        }
        Ok(change.count)
    }
}

/// Opens the top directory. The administrator has chosen its path, which may contain symbolic
/// links.
fn open_top(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

/// Creates a directory with a mode, and the missing directories above it, which all users can
/// enter. The modes do not depend on the umask, which is private in the units.
fn create(path: &Path, mode: u32) -> Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent().filter(|it| !it.as_os_str().is_empty()) {
        create(parent, COMMON_MODE)?;
    }
    DirBuilder::new().mode(mode).create(path).map_err(io_failed(path))?;
    std::fs::set_permissions(path, Permissions::from_mode(mode)).map_err(io_failed(path))
}

/// Finds a user in the text of the file `/etc/passwd`.
fn user_in(text: &str, name: &str) -> Option<ServiceUser> {
    let line = text.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut ids = line.split(':').skip(2).map(str::parse::<u32>);
    let (Some(Ok(uid)), Some(Ok(gid))) = (ids.next(), ids.next()) else { return None };
    Some(ServiceUser { name: name.to_owned(), uid, gid })
}

/// A running change of the owner of all files below one directory.
struct OwnerChange<'a> {
    user: &'a ServiceUser,
    /// The status of the top directory.
    top: Stat,
    /// Number of files and directories whose owner was changed.
    count: u64,
}

impl OwnerChange<'_> {
    /// Changes the owner of all entries of a directory, and of everything below them. `depth` is
    /// the number of directories between the directory and the top.
    fn of_entries(&mut self, directory: &OwnedFd, path: &Path, depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            let shown = path.display();
            return Err(refused(format!(
                "{shown} is more than {MAX_DEPTH} directories deep: services create no such \
                 directories; move it away"
            )));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let readable = openat(directory, c".", flags, Mode::empty()).map_err(failed(path))?;
        for entry in Dir::new(readable).map_err(failed(path))? {
            let entry = entry.map_err(failed(path))?;
            let name = entry.file_name();
            // ext4 creates `lost+found`, which must still belong to root.
            if name == c"." || name == c".." || (depth == 0 && name == c"lost+found") {
                continue;
            }
            let path = path.join(OsStr::from_bytes(name.to_bytes()));
            match openat(directory, name, OPEN, Mode::empty()) {
                // A running service has removed the file.
                Err(Errno::NOENT) => {}
                file => self.of_entry(&file.map_err(failed(&path))?, &path, depth)?,
            }
        }
        Ok(())
    }

    /// Changes the owner of an entry. The owner of a directory changes after that of its entries.
    /// So if this process is interrupted, the next one continues with the remaining entries.
    fn of_entry(&mut self, file: &OwnedFd, path: &Path, depth: usize) -> Result<()> {
        let stat = fstat(file).map_err(failed(path))?;
        if stat.st_uid == self.user.uid {
            return Ok(());
        }
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            // Another file system is mounted here. If it belongs to the service, its directory is
            // in the settings.
            if stat.st_dev != self.top.st_dev {
                return Ok(());
            }
            self.of_entries(file, path, depth + 1)?;
        } else if stat.st_nlink > 1 {
            return Err(refused(format!(
                "{} belongs to user {} and has several names: one of them may be a file of this \
                 host that is not part of Skep; remove the name here, or run `chown {}` on it",
                path.display(),
                stat.st_uid,
                self.user.name
            )));
        }
        self.of_file(file, path)
    }

    fn of_file(&mut self, file: &OwnedFd, path: &Path) -> Result<()> {
        let (uid, gid) = (Uid::from_raw(self.user.uid), Gid::from_raw(self.user.gid));
        chownat(file, c"", Some(uid), Some(gid), AtFlags::EMPTY_PATH).map_err(failed(path))?;
        self.count += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
