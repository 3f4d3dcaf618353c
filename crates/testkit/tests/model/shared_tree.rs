//! The shared names and their files: as a mount shows them while no call runs, and as the search
//! for an order of calls computes them.

use crate::shared_call::{HALF, LETTERS, NAMES, SharedNames, SharedPath, WHOLE};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;

/// The number of the directory with the shared names of the first level.
pub(crate) const ROOT: usize = 0;
/// The number of the first directory that a call creates.
pub(crate) const FIRST_NEW: usize = 1 + NAMES;

/// A file or directory with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Entry {
    /// A file, by its inode number. No two files have the same number (docs/semantics.md 1.8).
    File(u64),
    /// A directory, by its number in [`SharedTree`]. The number of a directory is not its inode
    /// number, because `mkdir` does not return the inode number.
    Directory(usize),
}

/// A directory with shared names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Directory {
    /// The inode number. `None` means that no call has found the directory yet.
    pub(crate) ino: Option<u64>,
    pub(crate) entries: [Option<Entry>; NAMES],
}

/// The bytes of a file from [`SharedNames::offset`] on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Contents {
    /// Number of bytes.
    pub(crate) len: u64,
    /// The value of each byte. 0 if the file is empty.
    pub(crate) byte: u8,
}

/// A place for an entry: the number of a directory, and the index of a name.
pub(crate) type Slot = (usize, usize);

/// The shared names, with their files and directories.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct SharedTree {
    /// The directories that have a name, and the root directory.
    pub(crate) directories: BTreeMap<usize, Directory>,
    /// The files by inode number. A file stays in this map after the removal of its last name.
    pub(crate) files: BTreeMap<u64, Contents>,
}

impl SharedTree {
    /// Returns a tree without names.
    pub(crate) fn empty() -> Self {
        Self { directories: BTreeMap::from([(ROOT, Directory::default())]), ..Self::default() }
    }

    /// Returns the entry at a place. Returns `None` if the entry does not exist, or if its
    /// directory was removed.
    pub(crate) fn entry(&self, (directory, name): Slot) -> Option<Entry> {
        self.directories.get(&directory)?.entries[name]
    }

    /// Sets the entry at a place of an existing directory.
    pub(crate) fn set(&mut self, (directory, name): Slot, entry: Option<Entry>) {
        if let Some(directory) = self.directories.get_mut(&directory) {
            directory.entries[name] = entry;
        }
    }

    /// Returns the inode number of a directory. Returns `None` if no call has found the directory
    /// yet.
    fn ino(&self, directory: usize) -> Option<u64> {
        self.directories.get(&directory)?.ino
    }

    /// Returns the number of names of a file.
    pub(crate) fn names_of(&self, file: u64) -> usize {
        let entries = self.directories.values().flat_map(|it| it.entries);
        entries.filter(|it| *it == Some(Entry::File(file))).count()
    }

    /// Whether a directory has no entry.
    pub(crate) fn is_empty(&self, directory: usize) -> bool {
        (0..NAMES).all(|name| self.entry((directory, name)).is_none())
    }

    /// Whether the tree is the same as the tree `shown` that a mount shows. Directories may have
    /// other numbers in `shown`.
    pub(crate) fn is_shown_as(&self, shown: &Self) -> bool {
        self.is_directory_shown_as(ROOT, shown, ROOT)
    }

    fn is_directory_shown_as(&self, own: usize, shown: &Self, other: usize) -> bool {
        (0..NAMES).all(|name| match (self.entry((own, name)), shown.entry((other, name))) {
            (None, None) => true,
            (Some(Entry::File(own)), Some(Entry::File(other))) => {
                own == other && self.files.get(&own) == shown.files.get(&other)
            }
            (Some(Entry::Directory(own)), Some(Entry::Directory(other))) => {
                let known = self.ino(own);
                (known.is_none() || known == shown.ino(other))
                    && self.is_directory_shown_as(own, shown, other)
            }
            _ => false,
        })
    }

    /// Reads the tree through a mount. No call may run during this read.
    ///
    /// # Errors
    /// Describes the name whose attributes, entries or bytes contradict each other, or the error of
    /// a call.
    pub(crate) fn read(names: &SharedNames) -> Result<Self, String> {
        let mut tree = Self::empty();
        let mut found = Vec::new();
        tree.read_directory(names, None, ROOT, &mut found)?;
        for (path, metadata) in found {
            let (wanted, size) = match tree.entry_at(path) {
                Some(Entry::Directory(number)) => (2, Some(tree.count(number))),
                _ => (tree.names_of(metadata.ino()) as u64, None),
            };
            let (links, shown) = (metadata.nlink(), metadata.size());
            if links != wanted || size.is_some_and(|size| size != shown) {
                return Err(format!("{path:?} has {links} links and size {shown}\n{tree}"));
            }
        }
        Ok(tree)
    }

    fn entry_at(&self, path: SharedPath) -> Option<Entry> {
        let Some(directory) = path.directory else { return self.entry((ROOT, path.name)) };
        match self.entry((ROOT, directory)) {
            Some(Entry::Directory(number)) => self.entry((number, path.name)),
            _ => None,
        }
    }

    fn count(&self, directory: usize) -> u64 {
        (0..NAMES).filter(|name| self.entry((directory, *name)).is_some()).count() as u64
    }

    /// Reads the directory with the name `directory`, stores its entries under the number `number`,
    /// and adds the paths in this directory to `found`.
    fn read_directory(
        &mut self,
        names: &SharedNames,
        directory: Option<usize>,
        number: usize,
        found: &mut Vec<(SharedPath, Metadata)>,
    ) -> Result<(), String> {
        let listed = names.list(directory);
        let listed = listed.map_err(|error| format!("list {directory:?}: {error}"))?;
        for (name, count) in listed.into_iter().enumerate() {
            let path = SharedPath { directory, name };
            let metadata = match fs::symlink_metadata(names.path(path)) {
                Ok(metadata) => Some(metadata),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
                Err(error) => return Err(format!("lookup of {path:?}: {error}")),
            };
            if count != usize::from(metadata.is_some()) {
                let exists = metadata.is_some();
                return Err(format!(
                    "the listing has {path:?} {count} times; lookup finds it: {exists}"
                ));
            }
            let Some(metadata) = metadata else { continue };
            let ino = metadata.ino();
            if metadata.is_dir() {
                let child = 1 + name;
                if number != ROOT {
                    return Err(format!("{path:?} is a directory"));
                }
                self.directories.insert(child, Directory { ino: Some(ino), ..Default::default() });
                self.set((number, name), Some(Entry::Directory(child)));
                self.read_directory(names, Some(name), child, found)?;
            } else {
                self.set((number, name), Some(Entry::File(ino)));
                let contents = read_contents(names, path)?;
                if self.files.insert(ino, contents).is_some_and(|it| it != contents) {
                    return Err(format!("{path:?} has other bytes under another name"));
                }
            }
            found.push((path, metadata));
        }
        Ok(())
    }
}

fn read_contents(names: &SharedNames, path: SharedPath) -> Result<Contents, String> {
    let bytes = fs::read(names.path(path)).map_err(|error| format!("read {path:?}: {error}"))?;
    let lengths = [0, HALF, WHOLE];
    let len = lengths.into_iter().find(|len| names.file_len(*len) == bytes.len() as u64);
    let len = len.ok_or_else(|| format!("{path:?} has {} bytes", bytes.len()))?;
    let (hole, written) = bytes.split_at(bytes.len() - len as usize);
    let byte = written.first().copied().unwrap_or(0);
    match hole.iter().all(|it| *it == 0) && written.iter().all(|it| *it == byte) {
        true => Ok(Contents { len, byte }),
        false => Err(format!("{path:?} has bytes that no single call has written")),
    }
}

impl fmt::Display for SharedTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, directory) in &self.directories {
            write!(f, "    directory {number}, inode {:?}:", directory.ino)?;
            for (letter, entry) in LETTERS.iter().zip(directory.entries) {
                match entry {
                    Some(Entry::File(ino)) => {
                        let contents = self.files.get(&ino).copied().unwrap_or_default();
                        write!(f, " {letter} = file {ino} {contents:?}")?;
                    }
                    Some(Entry::Directory(child)) => {
                        write!(f, " {letter} = directory {child}")?;
                    }
                    None => {}
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
