//! Calls to the local file system other than reads and writes: free space, allocation of space,
//! holes, removal of files, full syncs, and the mount of a directory.

mod extents;

use crate::event_loop::submit;
use crate::file::{File, check};
use io_uring::{opcode, types};
use std::ffi::CString;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Capacity and free space of a file system, in bytes and in inodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Capacity in bytes.
    pub total_bytes: u64,
    /// Space that is free for ordinary users, in bytes.
    pub free_bytes: u64,
    /// Maximum number of inodes; zero if the file system has no such limit.
    pub total_inodes: u64,
    /// Number of inodes that can still be created.
    pub free_inodes: u64,
}

/// Identifies a directory and its mount until the next boot of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MountMark {
    /// Device number of the file system.
    pub device: u64,
    /// Id of the mount. From Linux 6.8 on, the kernel never reuses an id before the next boot.
    pub mount: u64,
    /// Inode number of the directory.
    pub directory: u64,
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn checked(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the capacity and the free space of the file system that holds `path`. Blocks that the
/// file system reserves count neither as capacity nor as free, as in the percentages of `df(1)`. If
/// reserved blocks counted, a disk with a large reserve would count as nearly full.
///
/// # Errors
/// Returns the errors of `statvfs(3)`.
pub fn space(path: &Path) -> io::Result<Space> {
    let path = c_path(path)?;
    // SAFETY: all-zero is a valid `statvfs`, and the path ends with a zero byte.
    let stat = unsafe {
        let mut stat: libc::statvfs = std::mem::zeroed();
        checked(libc::statvfs(path.as_ptr(), &raw mut stat))?;
        stat
    };
    Ok(Space {
        total_bytes: stat
            .f_blocks
            .saturating_sub(stat.f_bfree)
            .saturating_add(stat.f_bavail)
            .saturating_mul(stat.f_frsize),
        free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
        total_inodes: stat.f_files,
        free_inodes: stat.f_favail,
    })
}

/// Returns the identity of a directory and of its mount.
///
/// # Errors
/// Returns the errors of `statx(2)`.
pub fn mount_mark(directory: &Path) -> io::Result<MountMark> {
    let path = c_path(directory)?;
    // SAFETY: all-zero is a valid `statx`, and the path ends with a zero byte.
    let stat = unsafe {
        let mut stat: libc::statx = std::mem::zeroed();
        // If both kinds of mount id are requested, the kernel returns the unique id if it supports
        // unique ids.
        let mask = libc::STATX_INO | libc::STATX_MNT_ID | libc::STATX_MNT_ID_UNIQUE;
        checked(libc::statx(libc::AT_FDCWD, path.as_ptr(), 0, mask, &raw mut stat))?;
        stat
    };
    Ok(MountMark {
        device: u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor),
        mount: stat.stx_mnt_id,
        directory: stat.stx_ino,
    })
}

/// Returns the random id that the kernel chose at boot.
///
/// # Errors
/// Returns an error if `/proc` is not mounted.
pub fn boot_id() -> io::Result<u128> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    u128::from_str_radix(&digits, 16).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Raises this process's limit of open files to the hard limit. Returns the limit that now applies.
pub fn raise_file_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for both calls. If the kernel refuses the new limit, the old limit
    // stays in force.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) != 0 {
            // With a valid pointer this call cannot fail. If the call fails nevertheless, return
            // 1024, the usual default limit.
            return 1024;
        }
        let raised = libc::rlimit { rlim_cur: limit.rlim_max, rlim_max: limit.rlim_max };
        if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) == 0 {
            limit = raised
        }
    }
    limit.rlim_cur
}

/// Removes a file through io_uring, since freeing the blocks of a long file takes time.
///
/// # Errors
/// Returns the errors of `unlink(2)`.
pub async fn remove_file(path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    let entry = opcode::UnlinkAt::new(types::Fd(libc::AT_FDCWD), path.as_ptr());
    // SAFETY: moving the path's owner into the box does not move the path's heap memory.
    let op = unsafe { submit(entry.build().into(), Box::new(path)) };
    check(op.await.0).map(|_| ())
}

impl File {
    /// Waits until data and all metadata of the file are on the device. The data of a directory are
    /// its entries.
    ///
    /// # Errors
    /// Returns the errors of `fsync(2)`. After an error the rules of [`Self::sync_data`] apply.
    pub async fn sync_all(&self) -> io::Result<()> {
        let entry = opcode::Fsync::new(types::Fd(self.as_raw_fd()));
        // SAFETY: the operation keeps the descriptor until the completion.
        let op = unsafe { submit(entry.build().into(), Box::new(self.clone())) };
        check(op.await.0).map(|_| ())
    }

    /// Allocates space for a range without changing the file's length or contents. A later write to
    /// this range cannot run out of space.
    ///
    /// # Errors
    /// Returns the errors of `fallocate(2)`, such as `Unsupported` if the file system lacks the
    /// call.
    pub fn reserve(&self, range: Range<u64>) -> io::Result<()> {
        self.allocate(libc::FALLOC_FL_KEEP_SIZE, range)
    }

    /// Frees the space of a range. The range becomes a hole.
    ///
    /// # Errors
    /// Returns the errors of `fallocate(2)`, such as `Unsupported` if the file system lacks holes.
    pub fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        self.allocate(libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE, range)
    }

    fn allocate(&self, mode: i32, range: Range<u64>) -> io::Result<()> {
        let (start, length) = (range.start as i64, (range.end - range.start) as i64);
        // SAFETY: the descriptor is open, and the call takes no pointers.
        checked(unsafe { libc::fallocate(self.as_raw_fd(), mode, start, length) })
    }

    /// Like [`Self::reserve`], but through io_uring. Callers use this function for long ranges,
    /// because their allocation takes time.
    ///
    /// # Errors
    /// Returns the errors of [`Self::reserve`].
    pub async fn reserve_through_ring(&self, range: Range<u64>) -> io::Result<()> {
        self.allocate_through_ring(libc::FALLOC_FL_KEEP_SIZE, range).await
    }

    /// Like [`Self::punch_hole`], but through io_uring. Callers use this function for long ranges,
    /// because the kernel needs time to free a long range. Space that was reserved beyond the end
    /// of the file may stay allocated.
    ///
    /// # Errors
    /// Returns the errors of [`Self::punch_hole`].
    pub async fn punch_through_ring(&self, range: Range<u64>) -> io::Result<()> {
        let mode = libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE;
        self.allocate_through_ring(mode, range).await
    }

    async fn allocate_through_ring(&self, mode: i32, range: Range<u64>) -> io::Result<()> {
        let fd = types::Fd(self.as_raw_fd());
        let entry = opcode::Fallocate::new(fd, range.end - range.start);
        let entry = entry.offset(range.start).mode(mode).build();
        // SAFETY: the operation keeps the descriptor until the completion.
        let op = unsafe { submit(entry.into(), Box::new(self.clone())) };
        check(op.await.0).map(|_| ())
    }

    /// Returns the offset of the first byte from `offset` on that is not in a hole. `None` means
    /// that there is only a hole up to the end of the file.
    ///
    /// # Errors
    /// Returns the errors of `lseek(2)`.
    pub fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        self.seek(offset, libc::SEEK_DATA)
    }

    /// Returns the offset of the first byte from `offset` on that is in a hole. If there is no such
    /// byte, returns the length of the file. `None` means that `offset` lies beyond the end of the
    /// file.
    ///
    /// # Errors
    /// Returns the errors of `lseek(2)`.
    pub fn next_hole(&self, offset: u64) -> io::Result<Option<u64>> {
        self.seek(offset, libc::SEEK_HOLE)
    }

    fn seek(&self, offset: u64, whence: i32) -> io::Result<Option<u64>> {
        // SAFETY: the descriptor is open, and the call takes no pointers. The call moves the file
        // position, which no other code uses.
        let at = unsafe { libc::lseek(self.as_raw_fd(), offset as i64, whence) };
        if at >= 0 {
            return Ok(Some(at as u64));
        }
        match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
            error => Err(error),
        }
    }

    /// Whether a range may contain bytes that are not in a hole.
    ///
    /// # Errors
    /// Returns the errors of `lseek(2)`.
    pub fn has_data(&self, range: Range<u64>) -> io::Result<bool> {
        Ok(self.next_data(range.start)?.is_some_and(|at| at < range.end))
    }

    /// Whether a part of a range is in a hole or beyond the end of the file. Such a part may still
    /// have reserved space, which [`Self::allocated_bytes`] counts.
    ///
    /// # Errors
    /// Returns the errors of `lseek(2)`.
    pub fn has_hole(&self, range: Range<u64>) -> io::Result<bool> {
        Ok(self.next_hole(range.start)?.is_none_or(|at| at < range.end))
    }

    /// Returns the number of bytes of a range for which the file has its own allocated space,
    /// because a caller has written or [reserved](Self::reserve) these bytes. On file systems that
    /// do not report reserved space (tmpfs), only written bytes count.
    ///
    /// # Errors
    /// Returns the errors of `ioctl(2)` and `lseek(2)`.
    pub fn allocated_bytes(&self, range: Range<u64>) -> io::Result<u64> {
        match extents::allocated(self.as_raw_fd(), range.clone()) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
            result => return result,
        }
        let (mut allocated, mut at) = (0, range.start);
        while let Some(data) = self.next_data(at)?.filter(|data| *data < range.end) {
            let end = self.next_hole(data)?.unwrap_or(range.end).min(range.end);
            allocated += end - data;
            at = end;
        }
        Ok(allocated)
    }

    /// Syncs the whole file system that holds this file. The call blocks, so only a thread that
    /// serves no requests may use this function.
    ///
    /// # Errors
    /// Returns the errors of `syncfs(2)`. These errors include write errors of other files of the
    /// file system.
    pub fn sync_file_system_now(&self) -> io::Result<()> {
        // SAFETY: the descriptor is open, and the call takes no pointers.
        checked(unsafe { libc::syncfs(self.as_raw_fd()) })
    }

    /// Syncs this file, and drops its pages from the page cache, so that later reads return the
    /// bytes on the device. The call blocks the thread.
    ///
    /// # Errors
    /// Returns the errors of `fsync(2)` and `posix_fadvise(2)`.
    pub fn drop_pages_now(&self) -> io::Result<()> {
        self.borrow_std().sync_all()?;
        // SAFETY: the descriptor is open, and the call takes no pointers. The call returns the
        // error number itself.
        match unsafe { libc::posix_fadvise(self.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
            0 => Ok(()),
            number => Err(io::Error::from_raw_os_error(number)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_and_holes_of_a_file_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let std_file = std::fs::File::create(dir.path().join("f")).unwrap();
        let file = File::from(std_file);
        file.borrow_std().set_len(64 << 20).unwrap();
        assert!(!file.has_data(0..64 << 20).unwrap());
        file.write_now(b"x", 32 << 20).unwrap();
        assert!(!file.has_data(0..1 << 20).unwrap());
        assert!(file.has_data(32 << 20..33 << 20).unwrap());
        assert!(file.has_hole(0..1 << 20).unwrap() && file.has_hole(64 << 20..65 << 20).unwrap());
        assert!(!file.has_hole(32 << 20..(32 << 20) + 1).unwrap());
        file.punch_hole(32 << 20..33 << 20).unwrap();
        assert!(!file.has_data(0..64 << 20).unwrap());
        assert!(!file.has_data(64 << 20..65 << 20).unwrap());
    }

    #[test]
    fn reserved_space_counts_as_allocated_not_as_data() {
        // The file is in the directory of the test program, since tmpfs does not report reserved
        // space.
        let beside = std::env::current_exe().unwrap();
        let dir = tempfile::tempdir_in(beside.parent().unwrap()).unwrap();
        let file = File::from(std::fs::File::create(dir.path().join("f")).unwrap());
        crate::block_on(async move {
            file.write_now(&[1; 8192], 0).unwrap();
            file.borrow_std().set_len(4 << 20).unwrap();
            file.reserve_through_ring(1 << 20..3 << 20).await.unwrap();
            assert_eq!(file.next_data(8192).unwrap(), None);
            assert_eq!(file.allocated_bytes(0..2 << 20).unwrap(), 8192 + (1 << 20));
            assert_eq!(file.allocated_bytes(4096..5000).unwrap(), 904);
            file.punch_through_ring(1 << 20..2 << 20).await.unwrap();
            assert_eq!(file.allocated_bytes(8192..4 << 20).unwrap(), 1 << 20);
            assert_eq!(
                (file.next_data(0).unwrap(), file.next_hole(0).unwrap()),
                (Some(0), Some(8192))
            );
        })
        .unwrap();
    }

    #[test]
    fn files_are_removed_and_directories_synced() {
        let dir = tempfile::tempdir().unwrap();
        let (path, file) = (dir.path().join("f"), dir.path().to_owned());
        std::fs::write(&path, "x").unwrap();
        let gone = path.clone();
        crate::block_on(async move {
            remove_file(&gone).await.unwrap();
            let error = remove_file(&gone).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::NotFound);
            let directory = File::from(std::fs::File::open(file).unwrap());
            directory.sync_all().await.unwrap();
            directory.sync_file_system_now().unwrap();
        })
        .unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn each_mounted_file_system_has_its_own_stable_identity() {
        let dir = tempfile::tempdir().unwrap();
        let mark = mount_mark(dir.path()).unwrap();
        assert_eq!(mark, mount_mark(dir.path()).unwrap());
        assert_ne!(mark.mount, mount_mark(Path::new("/proc")).unwrap().mount);
        assert!(space(dir.path()).unwrap().total_bytes > 0);
        assert_ne!(boot_id().unwrap(), 0);
    }
}
