//! A tree that a program uses through a mount or on the local file system, with the open files of
//! this tree.

use crate::operation::{Lock, Place, Time, User};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Timespec,
    Timestamps, Uid, XattrFlags,
};
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};
use skep_testkit::tree;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Maximum number of files and directories that are open at the same time.
pub(crate) const SLOTS: usize = 6;
/// Minimum age of a time that a call has set explicitly. Newer times come from the clock.
const RECENT: Duration = Duration::from_secs(3 * 3600);
/// Flags of every open. Because of `NONBLOCK`, opening a pipe does not block.
const ALWAYS: OFlags = OFlags::NONBLOCK.union(OFlags::CLOEXEC);

type Outcome = io::Result<String>;

/// A tree, and the files and directories that the test has open in this tree.
#[derive(Debug)]
pub(crate) struct View {
    root: PathBuf,
    open: [Option<File>; SLOTS],
}

/// While this value exists, the thread makes its calls as another user.
struct Acting;

impl Acting {
    fn as_user(user: User) -> Self {
        set_thread_res_gid(None, Gid::from_raw(user.gid), None).expect("root may change its ids");
        set_thread_res_uid(None, Uid::from_raw(user.uid), None).expect("root may change its ids");
        Self
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        set_thread_res_uid(None, Uid::ROOT, None).expect("the thread can become root again");
        set_thread_res_gid(None, Gid::ROOT, None).expect("the thread can become root again");
    }
}

/// Runs `act` as `user`.
pub(crate) fn acting_as<T>(user: User, act: impl FnOnce() -> T) -> T {
    let _acting = Acting::as_user(user);
    act()
}

fn nothing<T, E: Into<io::Error>>(result: Result<T, E>) -> Outcome {
    result.map(|_| String::new()).map_err(Into::into)
}

/// Returns the time `seconds` of a file if a call has set this time explicitly. `None` means that
/// the time comes from the clock.
pub(crate) fn set_time(seconds: i64) -> Option<i64> {
    let now = SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_secs() as i64;
    let age = now.saturating_sub(seconds).unsigned_abs();
    (age > RECENT.as_secs()).then_some(seconds)
}

fn mode(bits: u32) -> Mode {
    Mode::from_raw_mode(bits)
}

fn hash(bytes: &[u8]) -> String {
    use std::hash::{DefaultHasher, Hasher};
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    format!("{} bytes {:x}", bytes.len(), hasher.finish())
}

fn shown(found: &Stat) -> String {
    let kind = FileType::from_raw_mode(found.st_mode);
    let len = if kind == FileType::Directory { 0 } else { found.st_size };
    let modified = set_time(found.st_mtime).map(|seconds| (seconds, found.st_mtime_nsec));
    let (links, uid, gid) = (found.st_nlink, found.st_uid, found.st_gid);
    format!("{:o} {len} {links} {uid}:{gid} {modified:?}", found.st_mode)
}

impl View {
    /// Creates a view of the tree below `root`, without open files.
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root, open: Default::default() }
    }

    fn at(&self, place: &Place) -> io::Result<PathBuf> {
        Ok(match place {
            Place::Root(path) => self.root.join(path),
            Place::Open(slot, path) => self.path_of(*slot)?.join(path),
        })
    }

    fn file(&self, slot: usize) -> io::Result<&File> {
        self.open[slot].as_ref().ok_or_else(|| rustix::io::Errno::BADF.into())
    }

    fn path_of(&self, slot: usize) -> io::Result<PathBuf> {
        Ok(format!("/proc/self/fd/{}", self.file(slot)?.as_raw_fd()).into())
    }

    fn open_at(&self, place: &Place, flags: OFlags, bits: u32) -> io::Result<File> {
        Ok(rustix::fs::open(self.at(place)?, flags | ALWAYS, mode(bits))?.into())
    }

    pub(crate) fn create(&self, place: &Place, bits: u32) -> Outcome {
        nothing(self.open_at(place, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, bits))
    }

    pub(crate) fn make_directory(&self, place: &Place, bits: u32) -> Outcome {
        nothing(rustix::fs::mkdir(self.at(place)?, mode(bits)))
    }

    pub(crate) fn make_node(&self, place: &Place, kind: FileType, bits: u32) -> Outcome {
        // Device nodes in the tree are null devices.
        let device = rustix::fs::makedev(1, 3);
        nothing(rustix::fs::mknodat(CWD, self.at(place)?, kind, mode(bits), device))
    }

    pub(crate) fn make_symlink(&self, target: &Path, place: &Place) -> Outcome {
        nothing(rustix::fs::symlink(target, self.at(place)?))
    }

    pub(crate) fn link(&self, from: &Place, to: &Path, flags: AtFlags) -> Outcome {
        nothing(rustix::fs::linkat(CWD, self.at(from)?, CWD, self.root.join(to), flags))
    }

    pub(crate) fn rename(&self, from: &Place, to: &Path, flags: RenameFlags) -> Outcome {
        let (from, to) = (self.at(from)?, self.root.join(to));
        let rename = || rustix::fs::renameat_with(CWD, &from, CWD, &to, flags);
        let mut result = rename();
        if result == Err(rustix::io::Errno::STALE) {
            // The other mount may have moved a directory, and this kernel may still have the old
            // path in its cache. The kernel cannot refresh its cache during a rename
            // (docs/semantics.md 1.4), so refresh the cache by a stat.
            for path in [&from, &to] {
                std::fs::symlink_metadata(path).ok();
            }
            result = rename();
        }
        nothing(result)
    }

    pub(crate) fn unlink(&self, place: &Place, flags: AtFlags) -> Outcome {
        nothing(rustix::fs::unlinkat(CWD, self.at(place)?, flags))
    }

    pub(crate) fn write(&self, place: &Place, flags: OFlags, at: u64, bytes: &[u8]) -> Outcome {
        let file = self.open_at(place, OFlags::WRONLY | flags, 0)?;
        nothing(file.write_all_at(bytes, at))
    }

    pub(crate) fn truncate(&self, place: &Place, len: u64) -> Outcome {
        nothing(self.open_at(place, OFlags::WRONLY, 0)?.set_len(len))
    }

    pub(crate) fn set_permissions(&self, place: &Place, bits: u32) -> Outcome {
        nothing(std::fs::set_permissions(self.at(place)?, PermissionsExt::from_mode(bits)))
    }

    pub(crate) fn set_owner(
        &self,
        place: &Place,
        (uid, gid): (Option<u32>, Option<u32>),
        flags: AtFlags,
    ) -> Outcome {
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        nothing(rustix::fs::chownat(CWD, self.at(place)?, uid, gid, flags))
    }

    pub(crate) fn set_times(
        &self,
        place: &Place,
        (accessed, modified): (Time, Time),
        flags: AtFlags,
    ) -> Outcome {
        let time = |time| match time {
            Time::At(seconds, nanoseconds) => Timespec { tv_sec: seconds, tv_nsec: nanoseconds },
            Time::Now => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
            Time::Omit => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        };
        let times = Timestamps { last_access: time(accessed), last_modification: time(modified) };
        nothing(rustix::fs::utimensat(CWD, self.at(place)?, &times, flags))
    }

    pub(crate) fn set_attribute(
        &self,
        place: &Place,
        name: &str,
        value: &[u8],
        flags: XattrFlags,
    ) -> Outcome {
        nothing(rustix::fs::lsetxattr(self.at(place)?, name, value, flags))
    }

    /// Calls `stat` before the query, because without a `stat` the kernel may have an outdated
    /// access control list in its cache (docs/semantics.md 1.17).
    pub(crate) fn get_attribute(&self, place: &Place, name: &str) -> Outcome {
        rustix::fs::statat(CWD, self.at(place)?, AtFlags::SYMLINK_NOFOLLOW).ok();
        let mut value = [0; 1000];
        let len = rustix::fs::lgetxattr(self.at(place)?, name, &mut value[..])?;
        Ok(format!("{:02x?}", &value[..len]))
    }

    pub(crate) fn remove_attribute(&self, place: &Place, name: &str) -> Outcome {
        nothing(rustix::fs::lremovexattr(self.at(place)?, name))
    }

    pub(crate) fn read(&self, place: &Place) -> Outcome {
        let file = self.open_at(place, OFlags::RDONLY, 0)?;
        if !file.metadata()?.is_file() {
            return Ok("not a file".into());
        }
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        Ok(format!("{:x}", tree::hash_of_file(Path::new(&path))?))
    }

    pub(crate) fn read_link(&self, place: &Place) -> Outcome {
        Ok(format!("{:?}", std::fs::read_link(self.at(place)?)?))
    }

    pub(crate) fn list(&self, place: &Place) -> Outcome {
        let entry = |entry: io::Result<std::fs::DirEntry>| {
            let entry = entry?;
            Ok(format!("{:?} {:?}", entry.file_name(), entry.file_type()?))
        };
        let names: io::Result<Vec<_>> = std::fs::read_dir(self.at(place)?)?.map(entry).collect();
        let mut names = names?;
        names.sort();
        Ok(names.join(" "))
    }

    pub(crate) fn look(&self, place: &Place, flags: AtFlags) -> Outcome {
        Ok(shown(&rustix::fs::statat(CWD, self.at(place)?, flags)?))
    }

    /// Opens a file in the slot `slot`. The slot must be free.
    pub(crate) fn open(&mut self, slot: usize, place: &Place, flags: OFlags, bits: u32) -> Outcome {
        let file = self.open_at(place, flags, bits)?;
        let kind = file.metadata()?.file_type();
        // If the opened file is a pipe, close this file, because a pipe connects only programs of
        // the same mount.
        if !kind.is_fifo() {
            self.open[slot] = Some(file);
        }
        Ok(format!("{kind:?}"))
    }

    /// Unlocks the file, and then closes it. After a close without an unlock, the lock would still
    /// conflict with locks of other mounts for a moment.
    pub(crate) fn close(&mut self, slot: usize) -> Outcome {
        self.lock_open(slot, Lock::Unlock)?;
        self.open[slot] = None;
        Ok(String::new())
    }

    pub(crate) fn name_open(&self, slot: usize, path: &Path) -> Outcome {
        let (from, to) = (self.path_of(slot)?, self.root.join(path));
        nothing(rustix::fs::linkat(CWD, from, CWD, to, AtFlags::SYMLINK_FOLLOW))
    }

    pub(crate) fn read_open(&self, slot: usize, at: u64, len: usize) -> Outcome {
        let (file, mut bytes, mut done) = (self.file(slot)?, vec![0; len], 0);
        while done < len {
            match file.read_at(&mut bytes[done..], at + done as u64)? {
                0 => break,
                count => done += count,
            }
        }
        Ok(hash(&bytes[..done]))
    }

    /// Calls `stat` after the write, so that the mount reports the write's time. Without this
    /// `stat`, the mount could report this time late, and so replace a time that another mount has
    /// set since the write (docs/semantics.md 2.4).
    pub(crate) fn write_open(&self, slot: usize, at: u64, bytes: &[u8]) -> Outcome {
        let file = self.file(slot)?;
        file.metadata()?;
        let result = nothing(file.write_all_at(bytes, at));
        file.metadata()?;
        result
    }

    pub(crate) fn truncate_open(&self, slot: usize, len: u64) -> Outcome {
        nothing(self.file(slot)?.set_len(len))
    }

    /// Like `write_open`, calls `stat` after the change.
    pub(crate) fn allocate_open(
        &self,
        slot: usize,
        how: FallocateFlags,
        offset: u64,
        len: u64,
    ) -> Outcome {
        let file = self.file(slot)?;
        let result = nothing(rustix::fs::fallocate(file, how, offset, len));
        file.metadata()?;
        result
    }

    /// Calls `stat` before the copy, because the kernel copies only up to the file size in its
    /// cache (docs/semantics.md 2.13). Like `write_open`, also calls `stat` after the change.
    pub(crate) fn copy_open(
        &self,
        slot: usize,
        (mut from, mut to): (u64, u64),
        len: usize,
    ) -> Outcome {
        let file = self.file(slot)?;
        file.metadata()?;
        let mut copied = 0;
        // Repeat the call, because the file system decides how many bytes a single call copies.
        while copied < len {
            let (source, place) = (Some(&mut from), Some(&mut to));
            match rustix::fs::copy_file_range(file, source, file, place, len - copied)? {
                0 => break,
                some => copied += some,
            }
        }
        file.metadata()?;
        Ok(copied.to_string())
    }

    /// Whether the open file in the slot is a directory or device that was removed. The test does
    /// not compare calls on such files. The kernel does not send opens of devices to FUSE, so the
    /// results depend on the mount's cache.
    fn is_left_over(&self, slot: usize) -> io::Result<bool> {
        let found = self.file(slot)?.metadata()?;
        Ok(!found.is_file() && found.nlink() == 0)
    }

    pub(crate) fn look_open(&self, slot: usize) -> Outcome {
        if self.is_left_over(slot)? {
            return Ok("left over".into());
        }
        Ok(shown(&rustix::fs::fstat(self.file(slot)?)?))
    }

    pub(crate) fn set_permissions_open(&self, slot: usize, bits: u32) -> Outcome {
        if self.is_left_over(slot)? {
            return Ok("left over".into());
        }
        nothing(self.file(slot)?.set_permissions(PermissionsExt::from_mode(bits)))
    }

    pub(crate) fn sync_open(&self, slot: usize) -> Outcome {
        nothing(self.file(slot)?.sync_all())
    }

    /// Locks or unlocks a regular file. For files of other kinds, the kernel does not send lock
    /// requests to FUSE.
    pub(crate) fn lock_open(&self, slot: usize, lock: Lock) -> Outcome {
        let file = self.file(slot)?;
        if !file.metadata()?.is_file() {
            return Ok("not a file".into());
        }
        nothing(rustix::fs::flock(file, lock.call()))
    }
}
