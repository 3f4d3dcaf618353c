//! The attributes of an entry that decide whether a purge removes it, and how they are read.

use crate::failure::Failure;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags, StatxTimestamp, makedev,
    openat, openat2, statx,
};
use rustix::io::Errno;
use skep_types::Timestamp;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsFd;

/// The times from which a purge counts the age of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgeBasis {
    /// The newer of two times: the last modification, and the last change of attributes.
    Change,
    /// The time of the last modification.
    Modification,
}

/// Attributes of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntryAttributes {
    pub(crate) kind: FileType,
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// Number of names (hard links) of the entry.
    pub(crate) links: u32,
    pub(crate) uid: u32,
    /// Length of a regular file in bytes. Zero for other entries.
    pub(crate) bytes: u64,
    pub(crate) modified: Timestamp,
    pub(crate) changed: Timestamp,
}

impl EntryAttributes {
    fn of(found: &Statx) -> Self {
        let kind = FileType::from_raw_mode(u32::from(found.stx_mode));
        Self {
            kind,
            device: makedev(found.stx_dev_major, found.stx_dev_minor),
            inode: found.stx_ino,
            links: found.stx_nlink,
            uid: found.stx_uid,
            bytes: if kind == FileType::RegularFile { found.stx_size } else { 0 },
            modified: timestamp(found.stx_mtime),
            changed: timestamp(found.stx_ctime),
        }
    }

    /// Reads the attributes of an open entry. The kernel may return attributes that it has cached.
    /// `None` means that the entry does not exist any more.
    pub(crate) fn cached(file: &File) -> Result<Option<Self>, Failure> {
        read(file, AtFlags::EMPTY_PATH)
    }

    /// Reads the present attributes of an open entry from the file system. `None` means that the
    /// entry does not exist any more.
    pub(crate) fn of_file(file: &File) -> Result<Option<Self>, Failure> {
        read(file, AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC)
    }

    /// Returns the time from which the age of the entry counts. `now` is the time of the file
    /// system.
    pub(crate) fn age_begin(&self, basis: AgeBasis, now: Timestamp) -> Timestamp {
        // The owner can set the time of the last modification to any year. A file with a time in
        // the future would never be old, so the purge uses the time of the last change instead.
        // Only the file system sets that time.
        let modified = if self.modified > now { self.changed } else { self.modified };
        match basis {
            AgeBasis::Change => modified.max(self.changed),
            AgeBasis::Modification => modified,
        }
    }
}

fn read(file: &File, flags: AtFlags) -> Result<Option<EntryAttributes>, Failure> {
    match statx(file, "", flags, StatxFlags::BASIC_STATS) {
        Ok(found) => Ok(Some(EntryAttributes::of(&found))),
        Err(Errno::NOENT | Errno::STALE) => Ok(None),
        Err(error) => Err(Failure::of("read the attributes")(error)),
    }
}

fn timestamp(time: StatxTimestamp) -> Timestamp {
    Timestamp { seconds: time.tv_sec, nanoseconds: time.tv_nsec }
}

/// The result of opening a name of a directory with `O_PATH`. Opening an entry in this way has no
/// effect on the entry.
pub(crate) enum OpenEntry {
    Open(File),
    /// No entry has the name.
    Absent,
    /// A file system is mounted on the entry.
    MountPoint,
}

/// Opens the entry `name` of the directory `parent`. Does not follow a symbolic link.
///
/// # Hazard: mounts of users
/// A user may mount a FUSE file system on a file or directory of the tree, and stop its process. A
/// thread that asked this file system for attributes would wait without end, or get an error that
/// looks like the loss of the whole tree. So no call of the purge crosses a mount point.
pub(crate) fn open_entry(parent: &File, name: &OsStr) -> Result<OpenEntry, Failure> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat2(parent, name, flags, Mode::empty(), ResolveFlags::NO_XDEV) {
        Ok(file) => Ok(OpenEntry::Open(File::from(file))),
        Err(Errno::NOENT | Errno::STALE) => Ok(OpenEntry::Absent),
        Err(Errno::XDEV) => Ok(OpenEntry::MountPoint),
        Err(error) => Err(Failure::of("open")(error)),
    }
}

/// Opens the directory `name` in the directory `parent`. Fails with `LOOP` or `NOTDIR` if the name
/// leads to a symbolic link, and with `XDEV` if a file system is mounted on the directory, even if
/// the mount shows the same file system.
pub(crate) fn open_directory(parent: impl AsFd, name: &OsStr) -> rustix::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    openat2(parent, name, flags, Mode::empty(), resolve).map(File::from)
}

/// Returns the time of a file system: the clock that sets the times of its files. The function
/// reads this time from a file without a name that is created in `directory`. `None` means that the
/// file system does not support files without a name, or that this user may not create a file.
pub(crate) fn clock_of(directory: &File) -> Option<Timestamp> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = openat(directory, ".", flags, Mode::RUSR | Mode::WUSR).ok()?;
    EntryAttributes::of_file(&File::from(file)).ok().flatten().map(|it| it.changed)
}

#[cfg(test)]
impl EntryAttributes {
    /// Returns the attributes of an empty file of root that has one name. Its times are 0.
    pub(crate) fn of_empty_file() -> Self {
        Self {
            kind: FileType::RegularFile,
            device: 1,
            inode: 2,
            links: 1,
            uid: 0,
            bytes: 0,
            modified: Timestamp::default(),
            changed: Timestamp::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanoseconds: 0 }
    }

    fn with_times(modified: i64, changed: i64) -> EntryAttributes {
        let file = EntryAttributes::of_empty_file();
        EntryAttributes { modified: at(modified), changed: at(changed), ..file }
    }

    #[test]
    fn age_basis_is_the_mtime_or_the_newer_of_mtime_and_ctime() {
        let check = |modified, changed, by_change, by_modification| {
            let entry = with_times(modified, changed);
            let begin = |basis| entry.age_begin(basis, at(1000));
            assert_eq!(begin(AgeBasis::Change), at(by_change));
            assert_eq!(begin(AgeBasis::Modification), at(by_modification));
        };
        // A program has unpacked a file with its old time, or has renamed the file.
        check(10, 500, 500, 10);
        check(500, 500, 500, 500);
        // The owner has set a time in the future.
        check(5000, 400, 400, 400);
    }

    #[test]
    fn clock_of_a_file_system_is_near_the_clock_of_the_host() {
        let scratch = tempfile::TempDir::new().unwrap();
        let directory = File::open(scratch.path()).unwrap();
        let before = skep_env::wall_time().seconds;
        if let Some(clock) = clock_of(&directory) {
            assert!((clock.seconds - before).abs() < 60, "{clock:?} {before}");
        }
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
    }
}
