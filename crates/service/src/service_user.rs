//! The user of the host that runs a service, and the files that this user needs.
//!
//! The units of systemd run services as an ordinary user. Administrators initialise, restore and
//! repair the directories of a service as root. So before each start, the unit runs `skep KIND
//! --give-to USER` as root, which calls the functions of this module. These functions make the user
//! the owner of the service's directories, and let the group of the user read the settings.
//!
//! # Hazard: files of a service that root changes
//!
//! A service must not gain access to other files of the host, even if an attacker controls the
//! service. A service can put symbolic links, hard links and other directories into its own
//! directories at any time. A service can also write the list of its added targets. So this module
//! follows these rules:
//!
//! - This module opens each file below a directory without following links, and changes the owner
//!   of the opened file (`owners`).
//! - The user gets a directory of root only under three conditions: root has named the directory,
//!   the directory contains the record of a service, and no other user can add files to it. So root
//!   does not give `/tmp` to the user.
//! - A path that root has named must not lead through a directory in which the user could replace
//!   the next name.
//! - Root does not follow the links in `/proc`, which may lead into a mount namespace of the user.

mod owners;

use crate::host::{ADDED_TARGETS_FILE, parse_added_targets};
use owners::OwnerChange;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat, openat2, statat,
};
use rustix::io::Errno;
use rustix::process::geteuid;
use skep_store::identity::IDENTITY_FILE;
use skep_types::{Error, ErrorCode, Result};
use std::ffi::OsStr;
use std::fs::{DirBuilder, File, Metadata, Permissions};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

/// The file with the users of the host.
const USERS: &str = "/etc/passwd";
/// Maximum number of symbolic links on a path that root has named.
const MAX_LINKS: usize = 16;
/// Maximum size of a list of added targets in bytes.
const MAX_LIST: usize = 1 << 20;
/// Mode of a new directory of a service, which only the owner of the directory can enter.
const PRIVATE_MODE: u32 = 0o700;
/// Mode of new directories above a directory of a service.
const COMMON_MODE: u32 = 0o755;
/// Permission bits to read a file, to change a file or a directory, and to enter a directory.
const READ: u32 = 0o4;
const WRITE: u32 = 0o2;
const ENTER: u32 = 0o1;
/// Mode bits that let users other than the owner add files to a directory.
const SHARED: u32 = 0o022;
/// Mode bit of a directory in which users can replace only their own files.
const STICKY: u32 = 0o1000;
/// Name of the directory with the settings of Skep. The group of the user may get access to a
/// directory with this name.
const SETTINGS_DIRECTORY: &str = "skep";

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

    /// Whether the permission bits of a file give the user an access. Ignores access control lists,
    /// which may grant or deny the access.
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

    /// Whether the user could change a file, or replace a name in a directory.
    fn can_change(&self, file: &Metadata) -> bool {
        let is_open = file.mode() & STICKY == 0 && self.has_access(file, WRITE);
        self.uid != 0 && (file.uid() == self.uid || is_open)
    }

    /// Refuses a path that the user could redirect to another file, by a change of a directory on
    /// the path or of a symbolic link. The file itself may belong to the user, or be missing.
    /// `links` is the number of symbolic links that were followed to get `path`.
    fn refuse_replaceable(&self, path: &Path, links: usize) -> Result<()> {
        let path = std::path::absolute(path).map_err(io_failed(path))?;
        for step in path.ancestors() {
            let Ok(found) = std::fs::symlink_metadata(step) else { continue };
            if found.is_symlink() {
                if links == MAX_LINKS || (self.uid != 0 && found.uid() == self.uid) {
                    return Err(self.replaceable(&path, step));
                }
                let target = std::fs::read_link(step).map_err(io_failed(step))?;
                let directory = step.parent().unwrap_or(Path::new("/"));
                self.refuse_replaceable(&directory.join(target), links + 1)?;
            }
            let is_above = step != path;
            if is_above && std::fs::metadata(step).is_ok_and(|it| self.can_change(&it)) {
                return Err(self.replaceable(&path, step));
            }
        }
        Ok(())
    }

    fn replaceable(&self, path: &Path, step: &Path) -> Error {
        refused(format!(
            "the user {} could replace {1}, because this user can change {2}: root must not change \
             the owner of such a file; run `chown root {2}` and `chmod go-w {2}`, or move the file",
            self.name,
            path.display(),
            step.display()
        ))
    }

    /// Lets the user read a configuration file, and enter the file's directory if this directory
    /// belongs to Skep, as `/etc/skep` does. If necessary, changes the group of the file and of the
    /// directory to the group of the user. File and directory still belong to root, so the service
    /// cannot change its own settings.
    ///
    /// # Errors
    /// - `Configuration` if the user could change or replace the file.
    /// - Errors of the file system, with the path.
    pub fn share_settings(&self, file: &Path) -> Result<()> {
        let metadata = std::fs::metadata(file).map_err(io_failed(file))?;
        if self.can_change(&metadata) {
            return Err(refused(format!(
                "the user {1} can change {0}: a service must not change the settings that root \
                 reads; run `chown root {0}` and `chmod go-w {0}`",
                file.display(),
                self.name
            )));
        }
        self.refuse_replaceable(file, 0)?;
        self.share(file, READ)?;
        let file = std::path::absolute(file).map_err(io_failed(file))?;
        // Other directories, such as the home of root, contain other files.
        let is_of_skep = |it: &&Path| it.file_name() == Some(OsStr::new(SETTINGS_DIRECTORY));
        if let Some(parent) = file.parent().filter(is_of_skep) {
            self.share(parent, ENTER)?;
        }
        self.warn_of_closed_directories(&file);
        Ok(())
    }

    /// Lets the user read a secret of root that this user's service needs, such as a token. If
    /// necessary, makes the user the owner of the file. A secret must not be readable by a group.
    ///
    /// # Errors
    /// - `Configuration` if the user could replace the file, or if the file has several names.
    /// - Errors of the file system, with the path.
    pub fn share_secret(&self, file: &Path) -> Result<()> {
        let metadata = std::fs::metadata(file).map_err(io_failed(file))?;
        if metadata.is_file() && !self.has_access(&metadata, READ) {
            self.refuse_replaceable(file, 0)?;
            if metadata.nlink() > 1 {
                let what = "has several hard links, so root does not change its owner: make a copy \
                            of the file, and use the copy";
                return Err(refused(format!("{} {what}", file.display())));
            }
            chown(file, Some(self.uid), None).map_err(io_failed(file))?;
            tracing::info!("{} belongs to the user {} now", file.display(), self.name);
        }
        self.warn_of_closed_directories(&std::path::absolute(file).map_err(io_failed(file))?);
        Ok(())
    }

    /// Changes the group of a file or directory from the group of root to the group of the user.
    /// The group gets only the permission bits `access`, so that the user gains no write access
    /// that the group of root had.
    fn share(&self, path: &Path, access: u32) -> Result<()> {
        let metadata = std::fs::metadata(path).map_err(io_failed(path))?;
        let is_free = metadata.gid() == 0 || metadata.gid() == self.gid;
        if self.has_access(&metadata, access) || !is_free {
            return Ok(());
        }
        // Change the mode before the group, so that the user has no further access at any moment.
        let mode = (metadata.mode() & 0o7707) | (access << 3);
        std::fs::set_permissions(path, Permissions::from_mode(mode)).map_err(io_failed(path))?;
        chown(path, None, Some(self.gid)).map_err(io_failed(path))?;
        tracing::info!("the group of the user {} now has access to {}", self.name, path.display());
        Ok(())
    }

    /// Logs a warning for each directory above a file that the user cannot enter. Such a directory
    /// causes no error, because it may have an access control list that lets the user enter.
    fn warn_of_closed_directories(&self, path: &Path) {
        for directory in path.ancestors().skip(1) {
            let Ok(metadata) = std::fs::metadata(directory) else { continue };
            if !self.has_access(&metadata, ENTER) {
                tracing::warn!(
                    "the user {} cannot enter {}, so the service of this user cannot reach {}: run \
                     `chmod o+x {}`, or use another directory",
                    self.name,
                    directory.display(),
                    path.display(),
                    directory.display()
                );
            }
        }
    }

    /// Makes the user the owner of a directory of a node or target, and of all files of root in
    /// this directory. Root has named `path`. Returns the number of files and directories whose
    /// owner has changed. Changes nothing if the directory is not initialised.
    ///
    /// After a complete change, the next call reads only the top of the directory, unless root has
    /// opened the directory in between, as `skep fsck` does.
    ///
    /// # Errors
    /// - `Configuration` if a third user can change the directory, or if the user could replace a
    ///   directory of root. Also if a file has several names or belongs to a third user, or if
    ///   directories are nested too deeply.
    /// - `Configuration` if a process serves a directory of root.
    /// - Errors of the file system, with the path.
    pub fn take_directory(&self, path: &Path) -> Result<u64> {
        let Some(top) = self.open_initialised(path)? else { return Ok(0) };
        self.take(&top, path)
    }

    /// Like [`Self::take_directory`], for a path that the user has named. Changes owners only below
    /// a directory that already belongs to the user, and ignores other directories.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::take_directory`].
    pub fn take_own_directory(&self, path: &Path) -> Result<u64> {
        let Some(top) = self.open_initialised(path)? else { return Ok(0) };
        if fstat(&top).map_err(failed(path))?.st_uid != self.uid {
            tracing::warn!(
                "{0} does not belong to the user {1}, and is not in the settings, so the command \
                 does not change its owner: if it is a target of this service, run `chown -R {1}: \
                 {0}`",
                path.display(),
                self.name
            );
            return Ok(0);
        }
        self.take(&top, path)
    }

    /// Opens a directory. `None` means that the directory does not contain the record of an
    /// identity.
    fn open_initialised(&self, path: &Path) -> Result<Option<OwnedFd>> {
        let ignore = || {
            tracing::warn!(
                "{} has no record of a service or target ({IDENTITY_FILE}), so the command does \
                 not change its owner: mount its disk, or initialise it with --init",
                path.display()
            );
            Ok(None)
        };
        let top = match open_top(path) {
            Err(Errno::NOENT) => return ignore(),
            top => top.map_err(failed(path))?,
        };
        // Look for the record in the opened directory, and not at the path. With the path, the
        // service could replace the directory between the two steps.
        match statat(&top, IDENTITY_FILE, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(record) if FileType::from_raw_mode(record.st_mode) == FileType::RegularFile => {
                Ok(Some(top))
            }
            Err(error) if error != Errno::NOENT => Err(failed(path)(error)),
            _ => ignore(),
        }
    }

    /// Like [`Self::take_directory`], for a directory without a record of its identity. Creates the
    /// directory if it is missing. `known` are the names of the service's files in the directory.
    ///
    /// # Errors
    /// - `Configuration` if a directory of root contains other files, but not the first of `known`.
    /// - The same errors as [`Self::take_directory`].
    pub fn take_plain_directory(&self, path: &Path, known: &[&str]) -> Result<u64> {
        let top = match open_top(path) {
            Err(Errno::NOENT) => {
                self.refuse_replaceable(path, 0)?;
                create(path, PRIVATE_MODE)?;
                open_top(path)
            }
            top => top,
        };
        let top = top.map_err(failed(path))?;
        let is_own = fstat(&top).map_err(failed(path))?.st_uid == self.uid;
        if !is_own && !owners::has_only(&top, known).map_err(failed(path))? {
            return Err(refused(format!(
                "{0} has files, but no '{1}', so it may belong to another program, and the command \
                 does not change the owners of the files: name another directory in the settings, \
                 or run `chown -R {2}: {0}`",
                path.display(),
                known.first().copied().unwrap_or_default(),
                self.name
            )));
        }
        self.take(&top, path)
    }

    fn take(&self, top: &OwnedFd, path: &Path) -> Result<u64> {
        if let Ok(path) = std::path::absolute(path) {
            self.warn_of_closed_directories(&path);
        }
        let stat = fstat(top).map_err(failed(path))?;
        if stat.st_uid != self.uid {
            self.refuse_replaceable(path, 0)?;
            // In a directory such as `/tmp`, a record of a service proves nothing, because every
            // user could have created the record.
            if stat.st_uid != 0 || stat.st_mode & SHARED != 0 {
                return Err(refused(format!(
                    "another user than root can change {0}, so its files may not be part of Skep, \
                     and the command does not change their owners: if they are part of Skep, run \
                     `chown root {0}` and `chmod go-w {0}`",
                    path.display()
                )));
            }
            tracing::info!("giving all files in {} to the user {}", path.display(), self.name);
        }
        OwnerChange::run(self, top, path)
    }

    /// Reads the list of the added targets in the directory of a node. Also returns whether root
    /// has written the list. The user may write anything into its own list. A missing list counts
    /// as empty.
    ///
    /// # Errors
    /// - `Configuration` if the list is not a regular file, is too large, or is not UTF-8.
    /// - Errors of the file system, with the path.
    pub fn added_targets(&self, node: &Path) -> Result<(Vec<PathBuf>, bool)> {
        let file_path = node.join(ADDED_TARGETS_FILE);
        let top = match open_top(node) {
            Err(Errno::NOENT) => return Ok((Vec::new(), false)),
            top => top.map_err(failed(node))?,
        };
        // The user may have put a link or a pipe at this path. So do not follow a link, and do not
        // wait for a pipe.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let list = match openat(&top, ADDED_TARGETS_FILE, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok((Vec::new(), false)),
            list => list.map_err(failed(&file_path))?,
        };
        let (top, list_stat) =
            (fstat(&top).map_err(failed(node))?, fstat(&list).map_err(failed(&file_path))?);
        let is_of_root = |it: &Stat| it.st_uid == 0 && it.st_mode & SHARED == 0;
        let is_trusted = is_of_root(&top) && is_of_root(&list_stat);
        let mut text = String::new();
        if FileType::from_raw_mode(list_stat.st_mode) != FileType::RegularFile {
            return Err(refused(format!("{} is not a regular file", file_path.display())));
        }
        let read = File::from(list).take(MAX_LIST as u64).read_to_string(&mut text);
        let size = read.map_err(io_failed(&file_path))?;
        if size == MAX_LIST {
            let what = format!(
                "cannot read {}: the file has {MAX_LIST} bytes or more",
                file_path.display()
            );
            return Err(refused(what));
        }
        Ok((parse_added_targets(&text).collect(), is_trusted))
    }
}

/// Opens the top directory. The administrator has chosen its path, which may contain symbolic
/// links. The path must not contain links such as `/proc/PID/root`, which lead into the mount
/// namespace of a process. In such a namespace, a user can mount any directory of the host below a
/// directory of the user.
fn open_top(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)
}

/// Creates a directory with a mode. Also creates the missing directories above it, so that all
/// users can enter them. The modes do not depend on the umask, which is private in the units.
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

#[cfg(test)]
mod tests;
