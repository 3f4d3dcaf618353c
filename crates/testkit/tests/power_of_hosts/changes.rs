//! Random changes of two equal trees, one tree on a mount and one tree in a local directory. After
//! a power loss, both trees must be equal.

use rustix::fs::{FallocateFlags, XattrFlags, fallocate, fsetxattr};
use skep_testkit::{Random, files};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Lengths of writes in bytes: within a granule, within the inline bytes, across granules, and over
/// several chunks.
const LENGTHS: &[usize] = &[1, 10, 4096, 5000, 70_000, 300_000, 1_500_000];
const DIRECTORIES: usize = 3;
const NAMES: usize = 8;
const O_SYNC: i32 = 0o4_010_000;
const O_DSYNC: i32 = 0o10_000;

/// Whether the program syncs each change in the way that docs/semantics.md 3.3 requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Syncs {
    Each,
    Never,
}

/// Two equal trees, one tree on a mount and one tree in a local directory.
pub(crate) struct Twins {
    random: Random,
    syncs: Syncs,
    local: PathBuf,
    mounted: PathBuf,
}

/// A change of a tree. Each path is relative to the root of the tree.
#[derive(Debug, Clone)]
enum Change {
    Write { path: String, offset: u64, bytes: Vec<u8>, with: &'static str },
    Truncate { path: String, len: u64 },
    Allocate { path: String, offset: u64, len: u64, flags: FallocateFlags },
    Mode { path: String, mode: u32 },
    Attribute { path: String, value: Vec<u8> },
    Rename { from: String, to: String },
    Link { from: String, to: String },
    Unlink { path: String },
    Symlink { path: String, target: String },
    Directory { path: String },
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |it| it.0)
}

impl Change {
    /// Makes the change in the tree below `root`. If `syncs` is true, also syncs the change.
    fn make(&self, root: &Path, syncs: bool) -> io::Result<()> {
        let at = |path: &String| root.join(path);
        let sync_directories = |paths: &[&String]| -> io::Result<()> {
            for path in paths.iter().filter(|_| syncs) {
                File::open(root.join(parent(path)))?.sync_all()?;
            }
            Ok(())
        };
        let sync = |file: &File| if syncs { file.sync_all() } else { Ok(()) };
        let open = |path: &String| OpenOptions::new().write(true).open(at(path));
        match self {
            Self::Write { path, offset, bytes, with } => {
                let mut options = OpenOptions::new();
                options.write(true).create(true).truncate(false);
                match *with {
                    "O_SYNC" if syncs => options.custom_flags(O_SYNC),
                    "O_DSYNC" if syncs => options.custom_flags(O_DSYNC),
                    _ => &mut options,
                };
                let file = options.open(at(path))?;
                file.write_all_at(bytes, *offset)?;
                match *with {
                    "fsync" => sync(&file)?,
                    "fdatasync" if syncs => file.sync_data()?,
                    _ => {}
                }
                sync_directories(&[path])
            }
            Self::Truncate { path, len } => {
                let file = open(path)?;
                file.set_len(*len)?;
                sync(&file)
            }
            Self::Allocate { path, offset, len, flags } => {
                let file = open(path)?;
                fallocate(&file, *flags, *offset, *len)?;
                sync(&file)
            }
            Self::Mode { path, mode } => {
                let file = open(path)?;
                file.set_permissions(fs::Permissions::from_mode(*mode))?;
                sync(&file)
            }
            Self::Attribute { path, value } => {
                let file = open(path)?;
                fsetxattr(&file, "user.power", value, XattrFlags::empty())?;
                sync(&file)
            }
            Self::Rename { from, to } => {
                fs::rename(at(from), at(to))?;
                sync_directories(&[from, to])
            }
            Self::Link { from, to } => {
                fs::hard_link(at(from), at(to))?;
                sync_directories(&[to])
            }
            Self::Unlink { path } => {
                fs::remove_file(at(path))?;
                sync_directories(&[path])
            }
            Self::Symlink { path, target } => {
                symlink(target, at(path))?;
                sync_directories(&[path])
            }
            Self::Directory { path } => {
                match at(path).is_dir() {
                    true => fs::remove_dir(at(path))?,
                    false => fs::create_dir(at(path))?,
                }
                sync_directories(&[path])
            }
        }
    }
}

impl Twins {
    /// Creates equal trees below `mount` and `local`, and syncs the tree on the mount.
    pub(crate) fn new(mount: &Path, local: &Path, seed: u64, syncs: Syncs) -> Self {
        let name = format!("tree-{seed}");
        let [local, mounted] = [local, mount].map(|it| it.join(&name));
        for root in [&local, &mounted] {
            for number in 0..DIRECTORIES {
                files::create_dir_all(root.join(format!("d{number}")));
            }
        }
        files::syncfs(mount);
        Self { random: Random::new(seed), syncs, local, mounted }
    }

    /// Returns the tree in the local directory.
    pub(crate) fn local(&self) -> &Path {
        &self.local
    }

    /// Returns the path of the tree relative to the mount point.
    pub(crate) fn name(&self) -> &Path {
        Path::new(self.mounted.file_name().expect("the tree has a name"))
    }

    fn name_of(&mut self, kind: char) -> String {
        format!("d{}/{kind}{}", self.random.below(DIRECTORIES), self.random.below(NAMES))
    }

    /// Returns the path of a random regular file or of a new file, and the length of the file.
    fn file(&mut self) -> (String, u64) {
        let path = self.name_of('f');
        let len = fs::metadata(self.local.join(&path)).map_or(0, |it| it.len());
        (path, len)
    }

    fn next(&mut self) -> Change {
        let (path, len) = self.file();
        let exists = self.local.join(&path).exists();
        let some_offset = self.random.below(usize::try_from(len).expect("64 bits") + 1) as u64;
        match self.random.below(14) {
            6 if exists => Change::Truncate { path, len: some_offset },
            7 if exists => Change::Truncate { path, len: len + 100_000 },
            8 if exists => {
                let flags = self.random.one_of(&[
                    FallocateFlags::empty(),
                    FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                    FallocateFlags::ZERO_RANGE,
                ]);
                Change::Allocate { path, offset: some_offset, len: 50_000, flags }
            }
            9 if exists => {
                let mode = self.random.one_of(&[0o600, 0o640, 0o751]);
                Change::Mode { path, mode }
            }
            10 if exists => {
                let len = 1 + self.random.below(300);
                Change::Attribute { path, value: self.random.bytes(len) }
            }
            11 if exists => self.new_name(path),
            12 if exists => Change::Unlink { path },
            13 => match self.random.below(2) {
                0 => Change::Directory { path: self.name_of('s') },
                _ => {
                    let path = format!("{}-{}", self.name_of('l'), self.random.number());
                    Change::Symlink { path, target: format!("../{}", self.random.number()) }
                }
            },
            _ => {
                let len = self.random.one_of(LENGTHS);
                let bytes = self.random.bytes(len);
                let with = self.random.one_of(&["fsync", "fdatasync", "O_SYNC", "O_DSYNC"]);
                Change::Write { path, offset: some_offset, bytes, with }
            }
        }
    }

    fn new_name(&mut self, from: String) -> Change {
        let to = self.name_of('f');
        match self.random.below(2) {
            _ if from == to => Change::Unlink { path: from },
            0 if !self.local.join(&to).exists() => Change::Link { from, to },
            _ => Change::Rename { from, to },
        }
    }

    /// Makes `count` changes in both trees. Makes each change first in the local tree, so that the
    /// mount performs the last call.
    pub(crate) fn change(&mut self, count: usize) {
        for _ in 0..count {
            let change = self.next();
            let made = change.make(&self.local, false);
            made.unwrap_or_else(|error| panic!("{change:?} of the local tree: {error}"));
            let made = change.make(&self.mounted, self.syncs == Syncs::Each);
            made.unwrap_or_else(|error| panic!("{}: {error}", change.shown()));
        }
    }
}

impl Change {
    /// Describes the change for failure messages. Omits the written bytes.
    fn shown(&self) -> String {
        match self {
            Self::Write { path, offset, bytes, with } => {
                format!("write of {} bytes at {offset} of {path} with {with}", bytes.len())
            }
            other => format!("{other:?}"),
        }
    }
}
