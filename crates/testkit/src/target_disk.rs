//! A separate file system for one target of a stopped cluster. A test can cause the failures that
//! real disks have.
//!
//! This module creates and removes the image, its loop device and the mount at the target's path.
//! Dropping a [`TargetDisk`] unmounts the file system. Dropping a [`Frozen`] thaws the file system.
//! A kill of the test's process also thaws the file system.

use crate::files;
use crate::program::{clean_up, finish, run};
use crate::wait::{PATIENCE, eventually, wait_for};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Size in bytes of the file system. The image is a sparse file, so the image occupies little
/// space. The file system is large, because Skep prefers targets with much free space for new
/// files.
const BYTES: u64 = 64 << 30;

/// The file system of a [`TargetDisk`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskKind {
    /// ext4 with a journal, which becomes read-only after an error.
    Ext4,
    /// XFS.
    Xfs,
    /// ext4 without a journal, on a device that has less space than the file system assumes.
    Thin {
        /// Real space of the device in MiB.
        pool_mib: u64,
    },
}

/// A separate file system for one target.
#[derive(Debug)]
pub struct TargetDisk {
    path: PathBuf,
    kind: DiskKind,
}

/// A frozen file system. Dropping this value thaws the file system.
#[derive(Debug)]
pub struct Frozen {
    /// A shell that thaws the file system at the end of its input. The input also ends if the
    /// test's process is killed.
    shell: Child,
}

/// Python program that shuts down a file system by XFS_IOC_GOINGDOWN, which ext4 also supports.
/// With the flag 2, the file system does not even write its journal, as if the device had been
/// removed.
const SHUT_DOWN: &str = "import fcntl, os, struct, sys\n\
    fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587d, struct.pack('I', 2))\n";

fn text(path: &Path) -> &str {
    path.to_str().expect("test directories have ASCII names")
}

impl TargetDisk {
    /// Moves the directory of a stopped target to a separate file system.
    ///
    /// # Panics
    /// Panics if the test does not run as root, or if the file system cannot be created.
    pub fn under(path: &Path, kind: DiskKind) -> Self {
        let disk = Self { path: path.to_owned(), kind };
        let old = path.with_extension("old");
        files::rename(path, &old);
        files::create_dir(path);
        if let DiskKind::Thin { pool_mib } = kind {
            files::create_dir(disk.pool());
            // Do not use huge pages, because a tmpfs with huge pages would give the device its
            // space in large pieces.
            let size = format!("size={pool_mib}m,huge=never");
            run("mount", ["-t", "tmpfs", "-o", &size, "skep-test", text(&disk.pool())]);
        }
        let image = disk.image();
        files::set_len(&files::create(&image), BYTES);
        let quickly = "lazy_itable_init=1,lazy_journal_init=1,nodiscard";
        match kind {
            DiskKind::Xfs => run("mkfs.xfs", ["-q", "-K", text(&image)]),
            DiskKind::Ext4 => run("mkfs.ext4", ["-q", "-E", quickly, "-J", "size=4", text(&image)]),
            DiskKind::Thin { .. } => {
                run("mkfs.ext4", ["-q", "-E", quickly, "-O", "^has_journal", text(&image)])
            }
        };
        disk.mount();
        for entry in files::read_dir(&old) {
            let entry = entry.expect("an entry").path();
            run("cp", ["-a", text(&entry), text(path)]);
        }
        files::syncfs(path);
        // Remove the old directory, because `skep fsck` refuses two directories of the same target.
        files::remove_dir_all(&old);
        disk
    }

    fn pool(&self) -> PathBuf {
        self.path.with_extension("pool")
    }

    fn image(&self) -> PathBuf {
        match self.kind {
            DiskKind::Thin { .. } => self.pool().join("image"),
            _ => self.path.with_extension("image"),
        }
    }

    fn mount(&self) {
        let options = match self.kind {
            DiskKind::Ext4 => "loop,errors=remount-ro",
            DiskKind::Xfs => "loop",
            // Without `noinit_itable`, the kernel would initialise inode tables in the background,
            // and so use up the space of the device.
            DiskKind::Thin { .. } => "loop,noinit_itable",
        };
        run("mount", ["-o", options, text(&self.image()), text(&self.path)]);
    }

    /// Makes an ext4 file system report an error. The file system then becomes read-only.
    ///
    /// # Panics
    /// Panics if the file system is not ext4.
    pub fn trigger_error(&self) {
        let device = run("findmnt", ["-n", "-o", "SOURCE", text(&self.path)]);
        let device = device.trim().trim_start_matches("/dev/");
        files::write(format!("/sys/fs/ext4/{device}/trigger_fs_error"), "a test\n");
    }

    /// Shuts the file system down. After this call, every access fails, as if the device had been
    /// removed.
    ///
    /// # Panics
    /// Panics if the kernel refuses to shut the file system down.
    pub fn shut_down(&self) {
        run("python3", ["-c", SHUT_DOWN, text(&self.path)]);
    }

    /// Freezes the file system. Writes to the file system wait until the caller drops the result.
    ///
    /// # Panics
    /// Panics if the kernel refuses to freeze the file system.
    #[must_use]
    pub fn freeze(&self) -> Frozen {
        Frozen::new(&self.path)
    }

    /// Changes the real space of a thin device to `pool_mib` MiB.
    ///
    /// # Panics
    /// Panics if the device is not thin.
    pub fn resize(&self, pool_mib: u64) {
        run("mount", ["-o", &format!("remount,size={pool_mib}m"), text(&self.pool())]);
    }

    /// Unmounts the file system and then mounts the same file system, as after the repair of a
    /// device. No process may use the disk during this call.
    ///
    /// If another mount namespace still contains the mount after `umount`, the failed file system
    /// stays active. `mount` would then use the old loop device. So this function waits until no
    /// loop device uses the image.
    ///
    /// # Panics
    /// Panics if the disk is still in use.
    pub fn mount_again(&self) {
        let mut refusal = String::new();
        // Retry the unmount, because the kernel needs a moment to close the files of a killed
        // process.
        let freed = eventually(PATIENCE, || {
            let ended = finish(Command::new("umount").arg(&self.path), PATIENCE);
            refusal = ended.stderr;
            ended.status.success().then_some(())
        });
        assert!(freed.is_some(), "{refusal}");
        wait_for("no loop device has the image of the disk", PATIENCE, || {
            run("losetup", ["-j", text(&self.image())]).trim().is_empty().then_some(())
        });
        self.mount();
    }
}

impl Frozen {
    /// Freezes the file system that is mounted at `path`.
    ///
    /// # Panics
    /// Panics if the kernel refuses to freeze the file system.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        let script = "fsfreeze --freeze \"$0\" && echo frozen && read -r _; \
                      fsfreeze --unfreeze \"$0\"";
        let mut shell = Command::new("sh")
            .args(["-c", script, text(path)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell can be started");
        let stdout = shell.stdout.take().expect("a pipe");
        let frozen = Self { shell };
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).expect("a line of the shell");
        assert_eq!(line, "frozen\n", "fsfreeze {}", path.display());
        frozen
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        // Wait until the shell has ended. The shell thaws the file system before it ends.
        let _ended = self.shell.wait();
    }
}

impl Drop for TargetDisk {
    fn drop(&mut self) {
        for path in [self.path.clone(), self.pool()] {
            clean_up(Command::new("umount").arg("-l").arg(path));
        }
        let _gone = std::fs::remove_file(self.image());
    }
}
