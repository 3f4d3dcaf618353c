//! The change of the owner of all files below one directory of a service.
//!
//! While root changes the owners, the user may replace names in directories that belong to the
//! user. So root opens each file without following links or entering mounts, and changes the owner
//! of the opened file.
//!
//! # The lock file records a complete change
//!
//! The owner of the lock file changes last. As long as the lock file does not belong to the user
//! and its group, the next change checks all files. If root opens a directory after this command,
//! the lock file gets the group of root (`skep_store::identity`). So the next change also finds
//! files that root has created below the top.

use super::{ServiceUser, failed, refused};
use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, ResolveFlags, Stat, chownat, flock,
    fstat, openat, openat2, statat,
};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use skep_store::identity::LOCK_FILE;
use skep_types::Result;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Maximum depth of the directories below a directory of a service. Services create fewer levels.
const MAX_DEPTH: usize = 16;
/// Flags to open a file for a change of its owner, without any effect on the file.
const OPEN: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// The kernel setting that lets users make hard links only to files that they can change.
const PROTECTION: &str = "/proc/sys/fs/protected_hardlinks";

/// Locks a directory of a service, so that no service of root creates further files during the
/// change. Returns `None` if the directory has no lock file.
fn lock(top: &OwnedFd, path: &Path) -> Result<Option<OwnedFd>> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(top, LOCK_FILE, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        file => file.map_err(failed(path))?,
    };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Err(refused(format!(
            "another process has locked {}: stop the service before you give its files to a user",
            path.display()
        ))),
        locked => locked.map(|()| Some(file)).map_err(failed(path)),
    }
}

/// Whether a directory contains the first name of `known`, or no names except those in `known`.
pub(super) fn has_only(directory: &OwnedFd, known: &[&str]) -> rustix::io::Result<bool> {
    let is_first = |name: &[u8]| known.first().is_some_and(|it| it.as_bytes() == name);
    let ignored = [".", "..", "lost+found"];
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut has_other = false;
    for entry in Dir::new(openat(directory, c".", flags, Mode::empty())?)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if is_first(name) {
            return Ok(true);
        }
        has_other |= !known.iter().chain(&ignored).any(|it| it.as_bytes() == name);
    }
    Ok(!has_other)
}

/// A running change of the owner of all files below one directory.
pub(super) struct OwnerChange<'a> {
    user: &'a ServiceUser,
    /// Whether to also check the files in directories that already belong to the user.
    is_full: bool,
    /// Whether the kernel (`PROTECTION`) prevents the user from making hard links to files of root.
    is_protected: bool,
    /// Number of files and directories whose owner this process has changed.
    count: u64,
}

impl<'a> OwnerChange<'a> {
    /// Makes `user` the owner of a directory, and of all files in it that belong to root. Returns
    /// the number of files and directories whose owner has changed.
    ///
    /// # Errors
    /// - `Configuration` for a file that may be part of the host, for directories that are nested
    ///   too deeply, and for a directory that another process serves.
    /// - Errors of the file system, with the path.
    pub(super) fn run(user: &'a ServiceUser, top: &OwnedFd, path: &Path) -> Result<u64> {
        let lock_path = path.join(LOCK_FILE);
        let is_full = match statat(top, LOCK_FILE, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => true,
            stat => {
                let stat = stat.map_err(failed(&lock_path))?;
                (stat.st_uid, stat.st_gid) != (user.uid, user.gid)
            }
        };
        let lock = if is_full { lock(top, &lock_path)? } else { None };
        let is_protected =
            std::fs::read_to_string(PROTECTION).is_ok_and(|value| value.trim() != "0");
        let mut change = Self { user, is_full, is_protected, count: 0 };
        change.of_entries(top, path, 0)?;
        let top_stat = fstat(top).map_err(failed(path))?;
        if let Some(lock) = lock {
            let stat = fstat(&lock).map_err(failed(&lock_path))?;
            change.refuse_foreign(&stat, &lock_path, top_stat.st_uid == user.uid)?;
            change.of_file(&lock, &lock_path)?;
        }
        if top_stat.st_uid != user.uid {
            change.of_file(top, path)?;
        }
        Ok(change.count)
    }

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
        let is_of_user = fstat(&readable).map_err(failed(path))?.st_uid == self.user.uid;
        for entry in Dir::new(readable).map_err(failed(path))? {
            let entry = entry.map_err(failed(path))?;
            let name = entry.file_name();
            // ext4 creates `lost+found`, which belongs to root, and its owner must not change. The
            // owner of the lock file changes last, in `run`.
            let is_kept = name == c"lost+found" || name.to_bytes() == LOCK_FILE.as_bytes();
            if name == c"." || name == c".." || (depth == 0 && is_kept) {
                continue;
            }
            let path = path.join(OsStr::from_bytes(name.to_bytes()));
            match openat2(directory, name, OPEN, Mode::empty(), ResolveFlags::NO_XDEV) {
                // A running service has removed the file in the meantime, so there is nothing to
                // change.
                Err(Errno::NOENT) => {}
                Err(Errno::XDEV) => {
                    let mounted = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
                    if mounted.is_ok_and(|it| it.st_uid != self.user.uid) {
                        self.warn_of_mount(&path);
                    }
                }
                file => self.of_entry(&file.map_err(failed(&path))?, &path, depth, is_of_user)?,
            }
        }
        Ok(())
    }

    fn warn_of_mount(&self, path: &Path) {
        tracing::warn!(
            "{0} is a mount, so the command does not change the owners of its files: if they are \
             part of the service, run `chown -R {1}: {0}`",
            path.display(),
            self.user.name
        );
    }

    /// Changes the owner of an entry. The owner of a directory changes after the owners of its
    /// entries. So if this process is interrupted, the next process continues with the remaining
    /// entries. `is_of_user` states whether the directory of the entry belongs to the user.
    fn of_entry(
        &mut self,
        file: &OwnedFd,
        path: &Path,
        depth: usize,
        is_of_user: bool,
    ) -> Result<()> {
        let stat = fstat(file).map_err(failed(path))?;
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let has_owner = stat.st_uid == self.user.uid;
        if !has_owner {
            self.refuse_foreign(&stat, path, is_of_user)?;
        }
        if is_directory && (self.is_full || !has_owner) {
            self.of_entries(file, path, depth + 1)?;
        }
        if has_owner {
            return Ok(());
        }
        self.of_file(file, path)
    }

    /// Refuses a file that may be part of the host, and not of Skep.
    fn refuse_foreign(&self, stat: &Stat, path: &Path, is_of_user: bool) -> Result<()> {
        let kind = FileType::from_raw_mode(stat.st_mode);
        let is_directory = kind == FileType::Directory;
        let problem = if stat.st_uid != 0 && stat.st_uid != self.user.uid {
            "belongs neither to root nor to the user of the service"
        } else if matches!(kind, FileType::BlockDevice | FileType::CharacterDevice) {
            "is a device"
        } else if !is_directory && stat.st_nlink > 1 {
            "has several hard links"
        } else if !is_directory && is_of_user && stat.st_uid == 0 && !self.is_protected {
            // The service could have linked the file, and could have removed its other name after
            // the link.
            "may be a hard link that the service has made, because `sysctl fs.protected_hardlinks` \
             is 0"
        } else {
            return Ok(());
        };
        Err(refused(format!(
            "{} (user {}) {problem}: the file may be part of this host and not of Skep; remove the \
             file from this directory, or run `chown -h {}` on the file",
            path.display(),
            stat.st_uid,
            self.user.name
        )))
    }

    fn of_file(&mut self, file: &OwnedFd, path: &Path) -> Result<()> {
        let (uid, gid) = (Uid::from_raw(self.user.uid), Gid::from_raw(self.user.gid));
        chownat(file, c"", Some(uid), Some(gid), AtFlags::EMPTY_PATH).map_err(failed(path))?;
        self.count += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: u32 = 65_534;

    /// Without `fs.protected_hardlinks`, a service can link a file of root into its directory. The
    /// file then has two names, and the other name may be removed.
    #[test]
    fn file_that_the_user_may_have_linked_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::write(scratch.path().join("shadow"), "").unwrap();
        let stat = rustix::fs::stat(scratch.path().join("shadow")).unwrap();
        let user = ServiceUser { name: "skep".into(), uid: OTHER, gid: OTHER };
        let change =
            |is_protected| OwnerChange { user: &user, is_full: true, is_protected, count: 0 };
        let path = Path::new("shadow");
        let error = change(false).refuse_foreign(&stat, path, true).unwrap_err();
        assert!(error.context().contains("fs.protected_hardlinks"), "{error}");
        change(false).refuse_foreign(&stat, path, false).unwrap();
        change(true).refuse_foreign(&stat, path, true).unwrap();
    }

    #[test]
    fn file_of_a_third_user_is_refused() {
        let user = ServiceUser { name: "skep".into(), uid: OTHER, gid: OTHER };
        let change = OwnerChange { user: &user, is_full: true, is_protected: true, count: 0 };
        let mut stat = rustix::fs::stat("/proc/self/exe").unwrap();
        stat.st_uid = 1234;
        let error = change.refuse_foreign(&stat, Path::new("file"), true).unwrap_err();
        assert!(error.context().contains("belongs neither to root"), "{error}");
    }
}
