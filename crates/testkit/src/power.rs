//! Simulates power losses: copies the contents of a disk at one moment, and restores these contents
//! later.
//!
//! The disk is an XFS on a loop device. Its backing file lies on a second XFS, which copies the
//! file by reflink while the disk is in use. The copy is instantaneous and lacks the data that the
//! kernel has not yet written to the disk. So the copy has exactly the contents that a machine
//! would find after a power loss at that moment. Killing processes does not simulate a power loss,
//! because the kernel still writes back their dirty pages.

use crate::program::{finish, run};
use crate::scratch::{Scratch, mounts_below};
use crate::wait::eventually;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A disk that, like a real disk, loses all data that was not yet written back when the power is
/// lost.
#[derive(Debug)]
pub struct Disk {
    host: PathBuf,
    disk: PathBuf,
    current: u32,
    next: u32,
}

fn text(path: &Path) -> &str {
    path.to_str().expect("test directories have ASCII names")
}

fn make_image(path: &Path, bytes: u64) {
    let file = fs::File::create(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    file.set_len(bytes).expect("a sparse file");
    drop(file);
    run("mkfs.xfs", ["-q", "-m", "reflink=1", text(path)]);
}

impl Disk {
    /// Creates a disk of `bytes` bytes inside `scratch`, and mounts it.
    ///
    /// # Panics
    /// Panics if XFS or loop devices are missing, or if the test does not run as root.
    pub fn new(scratch: &Scratch, bytes: u64) -> Self {
        let host = scratch.directory("host");
        let outer = scratch.join("host.image");
        // The image is sparse, and each copy takes up only the space of the writes since the
        // previous copy.
        make_image(&outer, bytes * 8);
        run("mount", ["-o", "loop", text(&outer), text(&host)]);
        let disk = scratch.directory("disk");
        let this = Self { host, disk, current: 0, next: 1 };
        make_image(&this.image(0), bytes);
        this.mount(0);
        this
    }

    fn image(&self, number: u32) -> PathBuf {
        self.host.join(format!("{number}.image"))
    }

    fn mount(&self, number: u32) {
        // A copy has the same UUID as the original. XFS mounts such a copy only with `nouuid`.
        let options = "loop,nouuid";
        run("mount", ["-o", options, text(&self.image(number)), text(&self.disk)]);
    }

    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        &self.disk
    }

    /// Copies the contents that the disk would have after a power loss at this moment. The disk may
    /// be in use. Returns the copy's number for [`Self::restore`].
    ///
    /// # Panics
    /// Panics if the copy fails.
    pub fn freeze_copy(&mut self) -> u32 {
        let number = self.next;
        self.next += 1;
        let (from, to) = (self.image(self.current), self.image(number));
        run("cp", ["--reflink=always", text(&from), text(&to)]);
        number
    }

    /// Replaces the disk's contents with copy `number`. No process may use the disk during this
    /// call.
    ///
    /// # Panics
    /// Panics if the disk is still in use, or the copy cannot be mounted.
    pub fn restore(&mut self, number: u32) {
        // Retry, because the kernel needs a moment to close the files of a killed process.
        let mut refusal = String::new();
        let freed = eventually(Duration::from_secs(20), || {
            let ended = finish(Command::new("umount").arg(&self.disk), Duration::from_secs(60));
            refusal = ended.stderr;
            ended.status.success().then_some(())
        });
        assert!(freed.is_some(), "{refusal}{}", users(&self.disk));
        fs::remove_file(self.image(self.current)).expect("the old image is not in use");
        self.mount(number);
        self.current = number;
    }
}

/// Lists the mounts below `disk` and the processes that use the disk. Both prevent an unmount of
/// the disk.
fn users(disk: &Path) -> String {
    let mut lines: Vec<_> =
        mounts_below(disk).iter().map(|it| format!("mounted: {}", it.display())).collect();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let process = process.path();
        let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        let places = ["cwd", "root", "exe"].map(|it| process.join(it));
        for place in open.map(|it| it.path()).chain(places) {
            if let Ok(target) = fs::read_link(&place)
                && target.starts_with(disk)
            {
                let state = fs::read_to_string(process.join("stat")).unwrap_or_default();
                lines.push(format!("{} -> {} ({state})", place.display(), target.display()));
            }
        }
    }
    lines.join("\n")
}
