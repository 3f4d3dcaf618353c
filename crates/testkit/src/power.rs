//! Power losses: a disk whose contents can be had as they were at one moment.
//!
//! The disk is an XFS on a loop device. Its backing file lies on another XFS and is copied by
//! reflink while everything runs: at once, and without what the file system on the disk holds in
//! memory only. Mounting the copy shows what a machine finds that lost its power at that moment;
//! killing processes alone wouldn't, since the kernel still has all that they wrote.

use crate::program::{finish, run};
use crate::scratch::{Scratch, mounts_below};
use crate::wait::eventually;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A disk that survives power losses as disks do.
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
    /// Makes one of this size inside a directory, and mounts it.
    ///
    /// # Panics
    /// If the machine lacks XFS, loop devices or root.
    pub fn new(scratch: &Scratch, bytes: u64) -> Self {
        let host = scratch.directory("host");
        let outer = scratch.join("host.image");
        // Sparse; what copies don't share is what was written between them.
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
        // Copies have the identity of the original, which isn't mounted at the same time.
        let options = "loop,nouuid";
        run("mount", ["-o", options, text(&self.image(number)), text(&self.disk)]);
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.disk
    }

    /// Keeps what the disk holds at this moment, while it is in use; gives a number for
    /// [`Self::restore`].
    ///
    /// # Panics
    /// If copying fails.
    pub fn freeze_copy(&mut self) -> u32 {
        let number = self.next;
        self.next += 1;
        let (from, to) = (self.image(self.current), self.image(number));
        run("cp", ["--reflink=always", text(&from), text(&to)]);
        number
    }

    /// Puts a copy in the place of the disk: whoever used the disk must be gone.
    ///
    /// # Panics
    /// If the disk is still in use, or the copy can't be mounted.
    pub fn restore(&mut self, number: u32) {
        // Files of processes that were just killed are let go a moment later.
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

/// What keeps a disk from being unmounted: what is mounted below it, and which processes use it.
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
