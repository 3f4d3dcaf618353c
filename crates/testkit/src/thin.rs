//! A file system on a device that has less space than the file system assumes, as with thin
//! provisioning. Writes to the page cache succeed, but the later write-back of the pages by the
//! kernel fails.
//!
//! This module does not depend on a cluster, so that unit tests of other crates can use the module,
//! too.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Size that the file system assumes, in MiB.
const ASSUMED_MIB: u64 = 300;

/// An ext4 file system on a loop device. The image of the device is a sparse file in a tmpfs, the
/// *pool*. The size of the pool is the real space of the device. Dropping this value unmounts the
/// ext4 file system and the tmpfs.
#[derive(Debug)]
pub struct ThinDisk {
    directory: PathBuf,
}

fn succeeds<'a>(program: &str, arguments: impl IntoIterator<Item = &'a OsStr>) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|it| it.status.success())
}

/// Limits each request to a loop device to one page. For a longer request, if the pool has space
/// only for the first pages, the driver would report the whole request as written.
fn write_single_pages(device: &Path) {
    let name = device.file_name().expect("a device");
    let limit = Path::new("/sys/block").join(name).join("queue/max_sectors_kb");
    std::fs::write(limit, "4").expect("root may change the limit");
}

/// Whether the test runs as root, and so may mount file systems. Without root, this function prints
/// a line, and the test should pass without a check. As root, a mount that fails must fail the
/// test.
pub fn may_mount() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: only root can mount the file system of this test");
    }
    is_root
}

impl ThinDisk {
    /// Creates the disk in an empty directory. `pool_mib` is the real space of the device in MiB.
    /// If the test has no permission to mount, prints a line and returns `None`.
    ///
    /// # Panics
    /// Panics if the test runs as root and the disk cannot be created.
    pub fn new(directory: &Path, pool_mib: u64) -> Option<Self> {
        let this = Self { directory: directory.to_owned() };
        if !may_mount() {
            return None;
        }
        let (pool, disk, image) = (this.pool(), this.path(), this.image());
        for directory in [&pool, &disk] {
            std::fs::create_dir(directory).expect("an empty directory");
        }
        // Do not use huge pages, because a tmpfs with huge pages would give the device its space in
        // large pieces.
        let size = format!("size={pool_mib}m,huge=never");
        let tmpfs = ["-t", "tmpfs", "-o", &size, "skep-test"].map(OsStr::new);
        assert!(succeeds("mount", tmpfs.into_iter().chain([pool.as_os_str()])), "mount a tmpfs");
        let file = std::fs::File::create(&image).expect("a file in the pool");
        file.set_len(ASSUMED_MIB << 20).expect("a sparse file");
        // Do not use a journal, because ext4 would abort its journal when the device has no space.
        let format = ["-q", "-b", "4096", "-O", "^has_journal"].map(OsStr::new);
        assert!(succeeds("mkfs.ext4", format.into_iter().chain([image.as_os_str()])), "mkfs.ext4");
        let attached = Command::new("losetup").args(["--find", "--show"]).arg(&image).output();
        let device = attached.expect("losetup").stdout;
        let device = PathBuf::from(String::from_utf8_lossy(&device).trim());
        write_single_pages(&device);
        let both = [device.as_os_str(), disk.as_os_str()];
        assert!(succeeds("mount", both), "mount {}", image.display());
        // The kernel detaches the device at the end of the mount.
        assert!(succeeds("losetup", [OsStr::new("-d"), device.as_os_str()]), "losetup -d");
        Some(this)
    }

    fn pool(&self) -> PathBuf {
        self.directory.join("pool")
    }

    /// Returns the path of the image in the pool. Punching a hole into the image frees space of the
    /// pool.
    pub fn image(&self) -> PathBuf {
        self.pool().join("image")
    }

    /// Returns the path at which the file system is mounted.
    pub fn path(&self) -> PathBuf {
        self.directory.join("disk")
    }

    /// Changes the real space of the device to `pool_mib` MiB.
    ///
    /// # Panics
    /// Panics if the pool cannot be changed.
    pub fn resize(&self, pool_mib: u64) {
        let options = format!("remount,size={pool_mib}m");
        let arguments = ["-o", &options].map(OsStr::new);
        let pool = self.pool();
        assert!(succeeds("mount", arguments.into_iter().chain([pool.as_os_str()])), "{options}");
    }

    /// Returns the space of deleted files to the pool, so that new files must allocate space from
    /// the pool.
    ///
    /// # Panics
    /// Panics if the file system does not support trimming.
    pub fn trim(&self) {
        assert!(succeeds("fstrim", [self.path().as_os_str()]), "fstrim {}", self.path().display());
    }

    /// Drops all clean pages of the page cache, so that reads return the bytes on the device.
    ///
    /// # Panics
    /// Panics if the kernel refuses to drop the pages.
    pub fn drop_page_cache() {
        std::fs::write("/proc/sys/vm/drop_caches", "1").expect("root may drop the page cache");
    }
}

impl Drop for ThinDisk {
    fn drop(&mut self) {
        for path in [self.path(), self.pool()] {
            let _unmounted = succeeds("umount", [OsStr::new("-l"), path.as_os_str()]);
        }
    }
}
