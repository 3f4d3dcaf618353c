//! The calls that all threads make on the shared names: the random choice of a call, and its
//! execution through a mount.
//!
//! The shared names are a few names in the root directory of the file system, and the same names in
//! each directory that has such a name. Metadata targets share the directories of the root, so
//! calls often concern several metadata targets. A call never gives a directory a name in another
//! directory, so the shared names have two levels at most.

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use skep_testkit::Random;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Number of shared names in each directory.
pub(crate) const NAMES: usize = 3;
/// The shared names in a directory. In the root directory, each of these names has a prefix.
pub(crate) const LETTERS: [&str; NAMES] = ["a", "b", "c"];
/// Number of bytes that a call writes. A write of this length is atomic (docs/semantics.md 2.5).
pub(crate) const WHOLE: u64 = 1024;
/// Number of bytes of a write that a truncation may keep.
pub(crate) const HALF: u64 = 512;
/// Maximum number of attempts at a call that fails with `ESTALE`.
const MAX_ATTEMPTS: usize = 20;

/// A shared name in the root directory, or a name in the directory with such a name. The numbers
/// are indices of [`LETTERS`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SharedPath {
    pub(crate) directory: Option<usize>,
    pub(crate) name: usize,
}

impl fmt::Debug for SharedPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(directory) = self.directory {
            write!(f, "{}/", LETTERS[directory])?;
        }
        write!(f, "{}", LETTERS[self.name])
    }
}

/// A call on shared names. A call on the bytes of a file opens the file, and closes the file at its
/// end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SharedCall {
    /// Creates a file with `O_EXCL`.
    Create(SharedPath),
    /// Creates a directory in the root directory.
    MakeDirectory(usize),
    Unlink(SharedPath),
    /// Removes a directory in the root directory.
    RemoveDirectory(usize),
    Rename(SharedPath, SharedPath, RenameFlags),
    Link(SharedPath, SharedPath),
    /// Writes this byte [`WHOLE`] times by a single `pwrite`.
    Write(SharedPath, u8),
    /// Truncates a file to this number of the bytes that [`SharedCall::Write`] writes.
    Truncate(SharedPath, u64),
    Read(SharedPath),
    /// `lstat`.
    LookUp(SharedPath),
    /// Lists the root directory, or the directory with this name.
    List(Option<usize>),
}

/// The result of a successful call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SharedResult {
    Done,
    /// The inode number of a file that the call has created or found.
    File(u64),
    /// The inode number of a directory that the call has found.
    Directory(u64),
    /// The number of bytes that the call has read, and the value of each byte. The value is 0 if
    /// the number is 0.
    Bytes(u64, u8),
    /// The call has read bytes of different values.
    MixedBytes,
    /// For each name, how often the listing contains this name.
    Listed([usize; NAMES]),
}

/// The result of a call, or its error.
pub(crate) type CallResult = Result<SharedResult, Errno>;

/// A call that has returned, with the times of its begin and its end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Recorded {
    pub(crate) call: SharedCall,
    pub(crate) result: CallResult,
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
}

impl Recorded {
    /// Whether two calls ran at the same time at some moment.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.began <= other.ended && other.began <= self.ended
    }
}

/// The shared names as a mount shows them.
#[derive(Debug, Clone)]
pub(crate) struct SharedNames {
    /// The mount point.
    root: PathBuf,
    /// The first part of the names in the root directory.
    prefix: String,
    /// The offset at which calls read and write files.
    pub(crate) offset: u64,
}

impl SharedNames {
    pub(crate) fn new(root: &Path, prefix: &str, offset: u64) -> Self {
        Self { root: root.to_owned(), prefix: prefix.to_owned(), offset }
    }

    pub(crate) fn path(&self, path: SharedPath) -> PathBuf {
        match path.directory {
            Some(directory) => self.top(directory).join(LETTERS[path.name]),
            None => self.top(path.name),
        }
    }

    fn top(&self, name: usize) -> PathBuf {
        self.root.join(format!("{}{}", self.prefix, LETTERS[name]))
    }

    /// Returns how often the listing of a directory contains each shared name.
    pub(crate) fn list(&self, directory: Option<usize>) -> Result<[usize; NAMES], Errno> {
        let (path, prefix) = match directory {
            Some(directory) => (self.top(directory), ""),
            None => (self.root.clone(), self.prefix.as_str()),
        };
        let mut counts = [0; NAMES];
        for entry in std::fs::read_dir(path).map_err(errno)? {
            let name = entry.map_err(errno)?.file_name();
            let letter = name.to_str().and_then(|name| name.strip_prefix(prefix));
            for (count, known) in counts.iter_mut().zip(LETTERS) {
                *count += usize::from(letter == Some(known));
            }
        }
        Ok(counts)
    }

    fn open(&self, path: SharedPath, flags: OFlags) -> Result<File, Errno> {
        let mode = Mode::from_raw_mode(0o644);
        let opened = rustix::fs::open(self.path(path), flags | OFlags::CLOEXEC, mode);
        opened.map(File::from)
    }

    /// Makes a call, and records this call.
    pub(crate) fn record(&self, call: SharedCall) -> Recorded {
        let began = Instant::now();
        let result = self.call(call);
        Recorded { call, result, began, ended: Instant::now() }
    }

    /// Makes a call, and repeats the call if it fails with `ESTALE`, in at most [`MAX_ATTEMPTS`]
    /// attempts. A call that fails with `ESTALE` has changed nothing, and the kernel has already
    /// repeated such a call once (docs/semantics.md 1.4).
    pub(crate) fn call(&self, call: SharedCall) -> CallResult {
        let mut result = self.attempt(call);
        for _ in 1..MAX_ATTEMPTS {
            if result != Err(Errno::STALE) {
                break;
            }
            result = self.attempt(call);
        }
        result
    }

    fn attempt(&self, call: SharedCall) -> CallResult {
        match call {
            SharedCall::Create(path) => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
                let found = self.open(path, flags)?.metadata().map_err(errno)?;
                return Ok(SharedResult::File(found.ino()));
            }
            SharedCall::MakeDirectory(name) => {
                rustix::fs::mkdir(self.top(name), Mode::from_raw_mode(0o755))?;
            }
            SharedCall::Unlink(path) => {
                rustix::fs::unlinkat(CWD, self.path(path), AtFlags::empty())?;
            }
            SharedCall::RemoveDirectory(name) => {
                rustix::fs::unlinkat(CWD, self.top(name), AtFlags::REMOVEDIR)?;
            }
            SharedCall::Rename(from, to, flags) => {
                rustix::fs::renameat_with(CWD, self.path(from), CWD, self.path(to), flags)?;
            }
            SharedCall::Link(from, to) => {
                let (from, to) = (self.path(from), self.path(to));
                rustix::fs::linkat(CWD, from, CWD, to, AtFlags::empty())?;
            }
            SharedCall::Write(path, byte) => {
                let (file, bytes) = (self.open(path, OFlags::WRONLY)?, [byte; WHOLE as usize]);
                let written = rustix::io::pwrite(&file, &bytes, self.offset)?;
                assert_eq!(written, bytes.len(), "length of a write to {path:?}");
            }
            SharedCall::Truncate(path, len) => {
                rustix::fs::ftruncate(self.open(path, OFlags::WRONLY)?, self.file_len(len))?;
            }
            SharedCall::Read(path) => return self.read(path),
            SharedCall::LookUp(path) => {
                let found = std::fs::symlink_metadata(self.path(path)).map_err(errno)?;
                return Ok(match found.is_dir() {
                    true => SharedResult::Directory(found.ino()),
                    false => SharedResult::File(found.ino()),
                });
            }
            SharedCall::List(directory) => return self.list(directory).map(SharedResult::Listed),
        }
        Ok(SharedResult::Done)
    }

    fn read(&self, path: SharedPath) -> CallResult {
        // The buffer is larger than any file that the calls write.
        let mut bytes = [0_u8; WHOLE as usize + 1];
        let file = self.open(path, OFlags::RDONLY)?;
        let len = rustix::io::pread(&file, &mut bytes[..], self.offset)?;
        let byte = bytes[0];
        Ok(match bytes[..len].iter().all(|it| *it == byte) {
            true => SharedResult::Bytes(len as u64, byte),
            false => SharedResult::MixedBytes,
        })
    }

    /// Returns the length of a file with `len` bytes from [`SharedNames::offset`] on. A file
    /// without such bytes is empty.
    pub(crate) fn file_len(&self, len: u64) -> u64 {
        if len == 0 { 0 } else { self.offset + len }
    }
}

fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

impl SharedCall {
    /// Returns a random call for a burst.
    ///
    /// A burst either has calls that exchange directories, or calls that remove or replace a
    /// directory. In a burst with both kinds of calls, the kernel of a mount could look up a
    /// directory for `rmdir` while another mount exchanges this directory. That kernel would then
    /// treat the wrong directory as removed, until all calls that use this directory have returned.
    pub(crate) fn random(random: &mut Random, exchanges_directories: bool) -> Self {
        let path = any_path(random);
        let name = random.below(NAMES);
        match random.below(30) {
            0..=5 => Self::Create(path),
            6 | 7 => Self::MakeDirectory(name),
            8..=10 => Self::Unlink(path),
            11 | 12 if !exchanges_directories => Self::RemoveDirectory(name),
            11..=18 => rename(random, exchanges_directories),
            19 | 20 => {
                let mut to = any_path(random);
                while to == path {
                    to = any_path(random);
                }
                Self::Link(path, to)
            }
            21 | 22 => Self::Write(path, any_byte(random)),
            23 => Self::Truncate(path, random.one_of(&[0, HALF])),
            24 | 25 => Self::Read(path),
            26 | 27 => Self::LookUp(path),
            28 => Self::List(None),
            _ => Self::List(Some(name)),
        }
    }

    /// Whether the call may change the bytes of a file.
    pub(crate) fn changes_bytes(self) -> bool {
        matches!(self, Self::Write(..) | Self::Truncate(..))
    }
}

/// Returns a random byte that a hole of a file does not have.
pub(crate) fn any_byte(random: &mut Random) -> u8 {
    1 + random.below(255) as u8
}

fn in_directory(random: &mut Random) -> SharedPath {
    SharedPath { directory: Some(random.below(NAMES)), name: random.below(NAMES) }
}

fn any_path(random: &mut Random) -> SharedPath {
    match random.below(3) {
        0 => in_directory(random),
        _ => SharedPath { directory: None, name: random.below(NAMES) },
    }
}

/// Returns a rename that gives no directory a name in another directory. So such a rename never
/// moves a name of the root directory into a directory.
fn rename(random: &mut Random, exchanges_directories: bool) -> SharedCall {
    let (any, no_replace) = (RenameFlags::empty(), RenameFlags::NOREPLACE);
    let exchange = RenameFlags::EXCHANGE;
    let of_root = match exchanges_directories {
        true => [no_replace, exchange, exchange],
        false => [any, any, no_replace],
    };
    let top = |name| SharedPath { directory: None, name };
    match random.below(4) {
        0 | 1 => {
            let (from, distance) = (random.below(NAMES), 1 + random.below(NAMES - 1));
            let to = (from + distance) % NAMES;
            SharedCall::Rename(top(from), top(to), random.one_of(&of_root))
        }
        2 => {
            let to = top(random.below(NAMES));
            SharedCall::Rename(in_directory(random), to, random.one_of(&[any, no_replace]))
        }
        _ => {
            let (from, mut to) = (in_directory(random), in_directory(random));
            while to == from {
                to = in_directory(random);
            }
            SharedCall::Rename(from, to, random.one_of(&[any, any, no_replace, exchange]))
        }
    }
}
