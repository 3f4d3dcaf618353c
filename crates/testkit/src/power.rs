//! A disk that can lose its power. A power loss drops, keeps or tears each write that was not
//! flushed.
//!
//! The disk is a loop device on a file that the program `skep-volatile-disk` serves. This program
//! keeps each write in memory until the kernel flushes the disk. So if an `fsync` or the flush of a
//! journal is missing, a power loss destroys data, as on a real disk. Killing processes does not
//! simulate a power loss, because the kernel still writes back their dirty pages.
//!
//! A test simulates the power loss of a host in one of two ways:
//! - [`Disk::lose_power`] determines immediately which writes the power loss destroys. The
//!   processes of the host continue to run, but the disk discards their later writes. The test then
//!   kills these processes, and calls [`Disk::restore`].
//! - [`Disk::stall`] stops the disk first. After this call the disk completes no request, so no
//!   process can acknowledge an operation that the process must sync first. A test uses this
//!   function if processes of other hosts continue to run. The test then sends SIGKILL to the
//!   processes of the host, and then calls [`Disk::lose_power`] and [`Disk::restore`].

use crate::early_shell::EarlyShell;
use crate::files;
use crate::program::{clean_up, run};
use crate::random::Random;
use crate::scratch::{Scratch, mounts_below};
use crate::wait::{PATIENCE, eventually, wait_for};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// The file system of a [`Disk`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileSystem {
    /// XFS on sectors of 4 KiB, because XFS does not repair a torn metadata block.
    Xfs,
    /// ext4 on sectors of 512 bytes. The journal of ext4 contains whole blocks, so ext4 can repair
    /// torn metadata blocks.
    Ext4,
}

impl FileSystem {
    /// All file systems that a [`Disk`] can have.
    pub const ALL: [Self; 2] = [Self::Xfs, Self::Ext4];

    /// Length of a sector in bytes. A power loss can tear a write at the boundary of two sectors.
    fn sector(self) -> &'static str {
        match self {
            Self::Xfs => "4096",
            Self::Ext4 => "512",
        }
    }

    fn make(self, image: &Path) {
        match self {
            Self::Xfs => run("mkfs.xfs", ["-q", "-K", "-s", "size=4096", text(image)]),
            Self::Ext4 => run("mkfs.ext4", ["-q", "-E", "nodiscard", text(image)]),
        };
    }

    fn name(self) -> &'static str {
        match self {
            Self::Xfs => "xfs",
            Self::Ext4 => "ext4",
        }
    }
}

/// A mounted file system on a disk with a volatile write cache.
#[derive(Debug)]
pub struct Disk {
    file_system: FileSystem,
    /// The file that the loop device uses.
    file: PathBuf,
    mount_point: PathBuf,
    program: Child,
    commands: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
    /// The shell that mounts and unmounts the disk, even while a Skep mount waits for a service
    /// whose data is on the disk.
    shell: EarlyShell,
}

fn text(path: &Path) -> &str {
    path.to_str().expect("test directories have ASCII names")
}

/// Returns the path of the program `skep-volatile-disk`. Cargo builds this program together with
/// the tests.
fn program() -> PathBuf {
    let test = std::env::current_exe().expect("/proc names the executable");
    let place = test.ancestors().nth(2).expect("tests lie in target/<profile>/deps");
    place.join("skep-volatile-disk")
}

impl Disk {
    /// Creates a disk of `bytes` bytes with XFS inside `scratch`, and mounts it.
    ///
    /// # Panics
    /// Panics if XFS, FUSE or loop devices are missing, or if the test does not run as root.
    pub fn new(scratch: &Scratch, bytes: u64) -> Self {
        Self::with(scratch, "disk", FileSystem::Xfs, bytes)
    }

    /// Creates a disk named `name` inside `scratch`, and mounts it. Prints the random seed that
    /// determines the effects of its power losses. The environment variable `SKEP_TEST_SEED` sets
    /// this seed.
    ///
    /// # Panics
    /// Panics like [`Self::new`].
    pub fn with(scratch: &Scratch, name: &str, file_system: FileSystem, bytes: u64) -> Self {
        let seed = Random::seed_of_run();
        let [file, live, durable] =
            ["device", "live", "durable"].map(|it| scratch.join(&format!("{name}.{it}")));
        let mount_point = scratch.directory(name);
        files::set_len(&files::create(&durable), bytes);
        file_system.make(&durable);
        run("cp", ["--sparse=always", text(&durable), text(&live)]);
        drop(files::create(&file));
        let mut program = Command::new(program())
            .args([&file, &live, &durable])
            .args([bytes.to_string(), seed.to_string()])
            .arg(&mount_point)
            // Use a separate process group. A signal to the process group of the test must not end
            // the program before the program has removed its mounts.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("`cargo test -p skep-testkit` builds skep-volatile-disk");
        let commands = program.stdin.take();
        let replies = BufReader::new(program.stdout.take().expect("a pipe"));
        let shell = EarlyShell::new();
        let mut this = Self { file_system, file, mount_point, program, commands, replies, shell };
        assert_eq!(this.reply(), "ready", "skep-volatile-disk");
        this.mount();
        println!("disk {name}: {}, seed {seed}", file_system.name());
        this
    }

    fn reply(&mut self) -> String {
        let mut line = String::new();
        self.replies.read_line(&mut line).expect("a line of skep-volatile-disk");
        line.trim_end().to_owned()
    }

    fn command(&mut self, command: &str) -> String {
        let commands = self.commands.as_mut().expect("open until the drop");
        writeln!(commands, "{command}").expect("skep-volatile-disk runs");
        let reply = self.reply();
        assert!(!reply.is_empty(), "skep-volatile-disk has ended");
        reply
    }

    fn mount(&self) {
        let (shell, sector) = (&self.shell, self.file_system.sector());
        let file = text(&self.file);
        let device = shell.run(&["losetup", "--find", "--show", "--sector-size", sector, file]);
        let device = device.trim();
        let place = text(&self.mount_point);
        let mounted = shell.try_run(&["mount", "-t", self.file_system.name(), device, place]);
        // The loop device exists until the file system is unmounted.
        shell.run(&["losetup", "--detach", device]);
        mounted.unwrap_or_else(|why| panic!("{why}"));
    }

    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        &self.mount_point
    }

    /// After this call and until the next power loss, the disk acknowledges flushes without
    /// carrying them out. A test calls this function to show that its checks detect the lost data.
    pub fn ignore_flushes(&mut self) {
        self.command("ignore-flushes");
    }

    /// Makes the disk slow. Until the next power loss, the disk then carries out one request at a
    /// time. Each read, write and flush takes at least `delay`. The function rounds `delay` down to
    /// milliseconds.
    pub fn slow_down(&mut self, delay: Duration) {
        self.command(&format!("slow {}", delay.as_millis()));
    }

    /// Stops the disk. After this call, the disk completes no request.
    pub fn stall(&mut self) {
        self.command("stall");
    }

    /// Simulates a power loss, and ends a stall. The disk keeps all flushed writes, and a random
    /// part of the other writes. The disk may be in use. Until [`Self::restore`], the disk serves
    /// requests and discards all writes.
    pub fn lose_power(&mut self) {
        let losses = self.command(&format!("lose {}", self.file_system.sector()));
        println!("    power loss of {}: {losses}", self.mount_point.display());
    }

    /// Ends the power loss of the disk, and mounts its file system. No process may use the disk
    /// during this call.
    ///
    /// # Panics
    /// Panics if the disk is still in use, or if the file system cannot be mounted.
    pub fn restore(&mut self) {
        // Retry the unmount, because the kernel needs a moment to close the files of a killed
        // process.
        let mut refusal = String::new();
        let freed = eventually(Duration::from_secs(20), || {
            let ended = self.shell.try_run(&["umount", text(&self.mount_point)]);
            ended.map_err(|why| refusal = why).ok()
        });
        assert!(freed.is_some(), "{refusal}{}", users(&self.mount_point));
        wait_for("the loop device is free", PATIENCE, || {
            let devices = self.shell.run(&["losetup", "--associated", text(&self.file)]);
            devices.trim().is_empty().then_some(())
        });
        self.command("restore");
        self.mount();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // End a stall and a slow phase, because an unmount writes to the disk.
        if let Some(commands) = &mut self.commands {
            let _result = writeln!(commands, "lose 512");
        }
        clean_up(Command::new("umount").arg("--lazy").arg(&self.mount_point));
        // The program ends at the end of its input. Before its end, the program completes all
        // requests.
        drop(self.commands.take());
        let ended = eventually(PATIENCE, || self.program.try_wait().transpose());
        if ended.is_none() {
            let _result = self.program.kill();
            let _result = self.program.wait();
        }
    }
}

/// Lists the mounts below `disk` and the processes that use the disk. These mounts and processes
/// prevent an unmount of the disk.
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
