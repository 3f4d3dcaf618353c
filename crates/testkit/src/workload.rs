//! A mixed workload that records its acknowledged operations, for tests that kill processes or
//! simulate power losses.
//!
//! A [`Worker`] is the only user of its directory, so the expected contents follow from its own
//! operations. [`history`] records when each operation began, when the file system acknowledged it,
//! and which files the worker synced. After a crash, [`verify`] compares the directory with all
//! allowed states.
//!
//! There are three kinds of files:
//! - plain files, which are written once and then renamed, linked and unlinked
//! - a log, to which the worker appends through a handle that stays open
//! - a file whose blocks the worker overwrites in place
//!
//! In this workload, workers do not fill the disk and share no files. The test `model` covers
//! shared files.

mod history;
mod ongoing;
pub mod verify;

use crate::files;
use crate::random::Random;
pub use history::Crash;
use history::{History, Inodes, State};
use ongoing::{Blocks, Log};
use rustix::fs::{CWD, linkat};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// Number of subdirectories of each worker. A worker has several subdirectories, so that renames
/// move files between directories and between metadata targets.
const DIRECTORIES: usize = 4;
/// Number of names in each subdirectory. A subdirectory has few names, so that operations often use
/// the same name.
const NAMES: usize = 12;
/// Lengths of plain files in bytes: zero, within the inline bytes, and across chunk boundaries. All
/// bytes of a longer file are on storage, because its first write is larger than the inline bytes.
const LENGTHS: &[usize] = &[0, 1, 100, 4096, 16_384, 17_000, 20_000, 300_000, 1_500_000];

/// The part of the workload that one thread runs.
#[derive(Debug)]
pub struct Worker {
    /// The worker's directory. The path changes when the worker continues on a different mount.
    root: PathBuf,
    random: Random,
    history: History,
    inodes: Inodes,
    log: Log,
    blocks: Blocks,
    operations: Arc<AtomicU64>,
    longest_us: Arc<AtomicU64>,
}

/// The result of an operation. The error contains the call and the path.
type Outcome = Result<(), String>;

fn failed(what: &str, path: &Path) -> impl Fn(io::Error) -> String {
    move |error| format!("{what} {}: {error}", path.display())
}

impl Worker {
    /// Creates the worker's directory below `parent`, and syncs this directory.
    ///
    /// # Panics
    /// Panics if a file system call fails.
    pub fn new(parent: &Path, number: u64, seed: u64) -> Self {
        let root = parent.join(format!("worker-{number}"));
        fs::create_dir(&root).unwrap_or_else(|e| panic!("{}: {e}", root.display()));
        for index in 0..DIRECTORIES {
            files::create_dir(root.join(format!("d{index}")));
        }
        let mut random = Random::new(seed.wrapping_add(number));
        let log = Log::new(&root, random.number());
        let blocks = Blocks::new(&root, random.number());
        // Sync these names, because all checks need these names and a crash may lose names that
        // were not synced.
        let mut history = History::default();
        for name in std::iter::once(ongoing::LOG.into())
            .chain([ongoing::BLOCKS.into()])
            .chain((0..DIRECTORIES).map(|index| format!("d{index}")))
        {
            history.fixed(name);
        }
        // Open each directory, because only `fsync` of a directory makes the names in that
        // directory durable. A `syncfs` of a FUSE file system does not reach the mount.
        for name in history.all_names() {
            files::sync_all(&files::open(root.join(name)));
        }
        files::sync_all(&files::open(&root));
        files::sync_all(&files::open(parent));
        Self {
            root,
            random,
            history,
            inodes: Inodes::default(),
            log,
            blocks,
            operations: Arc::default(),
            longest_us: Arc::default(),
        }
    }

    /// Returns the counter of acknowledged operations, which other threads may read.
    pub fn operations(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.operations)
    }

    /// Returns the time of the longest finished operation in microseconds. Other threads may read
    /// this time, and set the time to 0.
    pub fn longest_us(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.longest_us)
    }

    /// Returns the worker's directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Lets the worker continue in the same directory below `parent`. `parent` belongs to a
    /// different mount, or to a newer mount at the same mount point.
    ///
    /// # Panics
    /// Panics if the log cannot be opened.
    pub fn moved_to(&mut self, parent: &Path) {
        let name =
            self.root.file_name().expect("the directory of the workload has a name").to_owned();
        self.root = parent.join(name);
        self.log.reopen(&self.root);
    }

    /// Closes the worker's open log file, so that the mount can be unmounted.
    pub fn close(&mut self) {
        self.log.close();
    }

    /// Runs one operation at a time until `stop` is set.
    ///
    /// # Errors
    /// Returns the error of the first operation that fails. The failed operation may or may not
    /// have taken effect, and [`verify`] accepts either case.
    pub fn run(&mut self, stop: &AtomicBool) -> Outcome {
        while !stop.load(Ordering::Relaxed) {
            let began = Instant::now();
            self.step()?;
            let took = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
            self.longest_us.fetch_max(took, Ordering::Relaxed);
            self.operations.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn step(&mut self) -> Outcome {
        match self.random.below(20) {
            0..=4 => self.create(),
            5..=7 => self.rename(),
            8 | 9 => self.unlink(),
            10 => self.link(),
            11 => self.symlink(),
            12 => self.directory(),
            13 | 14 => self.log.append(&mut self.random),
            15 | 16 => self.blocks.overwrite(&self.root, &mut self.random),
            _ => self.look(),
        }
    }

    fn name(&mut self) -> String {
        format!("d{}/n{}", self.random.below(DIRECTORIES), self.random.below(NAMES))
    }

    /// Returns a random name of a plain file. `None` means that the directory has no plain file.
    fn file(&mut self) -> Option<String> {
        let files = self.history.names(|state| matches!(state, State::File { .. }));
        (!files.is_empty()).then(|| self.random.one_of(&files))
    }

    fn create(&mut self) -> Outcome {
        let name = self.name();
        if *self.history.now(&name) != State::Absent {
            return self.unlink();
        }
        let length = self.random.one_of(LENGTHS);
        let content = Arc::new(self.random.bytes(length));
        let synced = self.random.below(3) == 0;
        let path = self.root.join(&name);
        let started = Instant::now();
        self.history.begins(&name, State::Partial { inode: None });
        let failed = failed("create", &path);
        let options = OpenOptions::new().write(true).create_new(true).mode(0o640).clone();
        let mut file = options.open(&path).map_err(&failed)?;
        let inode = file.metadata().map_err(&failed)?.ino();
        file.write_all(&content).map_err(&failed)?;
        if synced {
            file.sync_all().map_err(&failed)?;
        }
        drop(file);
        // Check the length, because `drop` ignores the result of close(2). If close(2) failed,
        // metadata may not have the new length.
        let len = fs::metadata(&path).map_err(&failed)?.len();
        if len != content.len() as u64 {
            return Err(format!(
                "{} has {len} bytes after its close, not {}",
                path.display(),
                content.len()
            ));
        }
        self.inodes.created(inode, started, synced);
        self.history.settles(&name, started, State::File { inode, content, synced }, synced);
        Ok(())
    }

    fn rename(&mut self) -> Outcome {
        let Some(from) = self.file() else { return self.create() };
        let to = self.name();
        let (moved, replaced) = (self.history.now(&from).clone(), self.history.now(&to).clone());
        let clash = matches!(replaced, State::Directory | State::Symlink(_));
        let is_same = moved.inode().is_some() && moved.inode() == replaced.inode();
        if clash || is_same {
            return Ok(());
        }
        let started = Instant::now();
        if let Some(inode) = replaced.inode() {
            self.inodes.loses_a_name(inode, started);
        }
        self.history.begins(&from, State::Absent);
        self.history.begins(&to, moved.clone());
        let (source, target) = (self.root.join(&from), self.root.join(&to));
        fs::rename(&source, &target).map_err(failed("rename to", &target))?;
        self.history.settles(&from, started, State::Absent, false);
        self.history.settles(&to, started, moved, false);
        Ok(())
    }

    fn unlink(&mut self) -> Outcome {
        let files = self.history.names(|it| {
            matches!(it, State::File { .. } | State::Partial { .. } | State::Symlink(_))
        });
        if files.is_empty() {
            return Ok(());
        }
        let name = self.random.one_of(&files);
        let started = Instant::now();
        if let Some(inode) = self.history.now(&name).inode() {
            self.inodes.loses_a_name(inode, started);
        }
        self.history.begins(&name, State::Absent);
        let path = self.root.join(&name);
        fs::remove_file(&path).map_err(failed("unlink", &path))?;
        self.history.settles(&name, started, State::Absent, false);
        Ok(())
    }

    fn link(&mut self) -> Outcome {
        let Some(from) = self.file() else { return self.create() };
        let to = self.name();
        if *self.history.now(&to) != State::Absent {
            return Ok(());
        }
        let state = self.history.now(&from).clone();
        let started = Instant::now();
        if let Some(inode) = state.inode() {
            self.inodes.gets_a_name(inode);
        }
        self.history.begins(&to, state.clone());
        let (source, target) = (self.root.join(&from), self.root.join(&to));
        linkat(CWD, &source, CWD, &target, rustix::fs::AtFlags::empty())
            .map_err(io::Error::from)
            .map_err(failed("link to", &target))?;
        self.history.settles(&to, started, state, false);
        Ok(())
    }

    fn symlink(&mut self) -> Outcome {
        let name = self.name();
        if *self.history.now(&name) != State::Absent {
            return Ok(());
        }
        let target = PathBuf::from(format!("../points/to/{}", self.random.number()));
        let started = Instant::now();
        self.history.begins(&name, State::Symlink(target.clone()));
        let path = self.root.join(&name);
        symlink(&target, &path).map_err(failed("symlink", &path))?;
        self.history.settles(&name, started, State::Symlink(target), false);
        Ok(())
    }

    /// Creates or removes a random directory.
    fn directory(&mut self) -> Outcome {
        let name = self.name();
        let path = self.root.join(&name);
        let started = Instant::now();
        let after = match self.history.now(&name) {
            State::Absent => State::Directory,
            State::Directory => State::Absent,
            _ => return Ok(()),
        };
        self.history.begins(&name, after.clone());
        if after == State::Directory {
            fs::create_dir(&path).map_err(failed("mkdir", &path))?;
        } else {
            fs::remove_dir(&path).map_err(failed("rmdir", &path))?;
        }
        self.history.settles(&name, started, after, false);
        Ok(())
    }

    /// Reads a random file during the run, and compares it with the written bytes. Panics if a byte
    /// differs, because no crash could explain the difference.
    fn look(&mut self) -> Outcome {
        let Some(name) = self.file() else { return Ok(()) };
        let path = self.root.join(&name);
        let found = fs::read(&path).map_err(failed("read", &path))?;
        let State::File { content, .. } = self.history.now(&name) else { return Ok(()) };
        if let Some(at) = verify::first_difference(content, &found) {
            panic!("a read of {} before the end of the run was wrong: {at}", path.display());
        }
        Ok(())
    }
}
