//! Records directory trees, so that a test can compare two trees.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::hash::Hasher;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Maximum length of the value of an extended attribute, in bytes.
const LONGEST_VALUE: usize = 1 << 16;
/// Maximum length of the list of a file's extended attribute names, in bytes.
const LONGEST_LIST: usize = 1 << 16;
/// Maximum number of bytes of an extended attribute's value that the text of a [`Node`] shows.
const SHOWN_BYTES: usize = 32;

/// The files and directories of a tree. The paths are relative to the root of the tree.
pub type Tree = BTreeMap<PathBuf, Node>;

/// Attributes and contents of one file, directory or symbolic link.
#[derive(Clone, PartialEq, Eq)]
pub struct Node {
    /// File type and permissions.
    pub mode: u32,
    /// User id and group id.
    pub owner: (u32, u32),
    /// Length of a regular file in bytes. Zero for other kinds of entries, because their lengths
    /// differ between file systems.
    pub len: u64,
    /// Number of hard links.
    pub links: u64,
    /// For a further name of a hard-linked file, the first path (in ascending order) with the same
    /// inode. `None` if no earlier path has this inode.
    pub same_as: Option<PathBuf>,
    /// Hash of a regular file's contents. Zero for other kinds.
    pub hash: u64,
    /// The target of a symbolic link.
    pub target: Option<PathBuf>,
    /// Extended attributes by name, including access control lists.
    pub attributes: BTreeMap<OsString, Vec<u8>>,
    /// Modification time in seconds. `None` for symbolic links, or if the caller did not request
    /// times.
    pub modified: Option<i64>,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (uid, gid) = self.owner;
        write!(f, "{:o} of {uid}:{gid}, {} bytes, {} links", self.mode, self.len, self.links)?;
        write!(f, ", {:x}", self.hash)?;
        if let Some(first) = &self.same_as {
            write!(f, ", the same as {}", first.display())?;
        }
        if let Some(target) = &self.target {
            write!(f, " -> {}", target.display())?;
        }
        for (name, value) in &self.attributes {
            write!(f, ", {}={}", name.display(), shown(value))?;
        }
        self.modified.map_or(Ok(()), |time| write!(f, ", modified {time}"))
    }
}

/// Formats the value of an extended attribute as hexadecimal digits. For a value that is longer
/// than [`SHOWN_BYTES`], the text consists of the first bytes, the length and the hash of the
/// value. So different values have different texts.
fn shown(value: &[u8]) -> String {
    let first = &value[..value.len().min(SHOWN_BYTES)];
    let digits: String = first.iter().map(|byte| format!("{byte:02x}")).collect();
    if value.len() <= SHOWN_BYTES {
        return format!("0x{digits}");
    }
    let mut hasher = DefaultHasher::new();
    hasher.write(value);
    format!("0x{digits}... ({} bytes, hash {:x})", value.len(), hasher.finish())
}

/// Returns the hash of a file's contents.
///
/// # Errors
/// Returns an error if the file cannot be opened or read.
pub fn hash_of_file(path: &Path) -> io::Result<u64> {
    let mut hasher = DefaultHasher::new();
    let mut file = fs::File::open(path)?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.finish()),
            count => hasher.write(&buffer[..count]),
        }
    }
}

/// Returns the extended attributes of a path by name. Does not follow a symbolic link at its end.
///
/// # Errors
/// Returns an error if the attributes cannot be listed or read.
pub fn attributes(path: &Path) -> io::Result<BTreeMap<OsString, Vec<u8>>> {
    let mut names = vec![0; LONGEST_LIST];
    let len = rustix::fs::llistxattr(path, &mut names[..])?;
    let names = names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names
        .map(|name| {
            let mut value = vec![0; LONGEST_VALUE];
            let len = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value[..])?;
            value.truncate(len);
            Ok((OsStr::from_bytes(name).to_owned(), value))
        })
        .collect()
}

fn node(path: &Path, found: &fs::Metadata, with_times: bool) -> io::Result<Node> {
    let is_link = found.file_type().is_symlink();
    Ok(Node {
        mode: found.mode(),
        owner: (found.uid(), found.gid()),
        len: if found.is_file() { found.len() } else { 0 },
        links: found.nlink(),
        same_as: None,
        hash: if found.is_file() { hash_of_file(path)? } else { 0 },
        target: if is_link { Some(fs::read_link(path)?) } else { None },
        attributes: attributes(path)?,
        modified: (with_times && !is_link).then(|| found.mtime()),
    })
}

/// Records all entries below `root`, with their modification times if `with_times` is true.
///
/// # Errors
/// Returns an error with the path if an entry cannot be read, or if a directory lists an entry
/// twice.
pub fn read(root: &Path, with_times: bool) -> io::Result<Tree> {
    let mut tree = Tree::new();
    let mut names: BTreeMap<(u64, u64), Vec<PathBuf>> = BTreeMap::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(directory) = waiting.pop() {
        let of = |path: &Path| {
            let shown = path.display().to_string();
            move |error: io::Error| io::Error::new(error.kind(), format!("{shown}: {error}"))
        };
        for entry in fs::read_dir(&directory).map_err(of(&directory))? {
            let path = entry.map_err(of(&directory))?.path();
            let found = fs::symlink_metadata(&path).map_err(of(&path))?;
            let node = node(&path, &found, with_times).map_err(of(&path))?;
            if found.is_dir() {
                waiting.push(path.clone());
            }
            let short = path.strip_prefix(root).unwrap_or(&path).to_owned();
            names.entry((found.dev(), found.ino())).or_default().push(short.clone());
            if tree.insert(short, node).is_some() {
                return Err(io::Error::other(format!("{} is listed twice", path.display())));
            }
        }
    }
    for mut same in names.into_values().filter(|names| names.len() > 1) {
        same.sort();
        for path in &same[1..] {
            if let Some(node) = tree.get_mut(path) {
                node.same_as = Some(same[0].clone());
            }
        }
    }
    Ok(tree)
}

/// Records a tree like [`read`], but panics on errors.
///
/// # Panics
/// Panics if an entry cannot be read, or if a directory lists an entry twice.
pub fn take(root: &Path, with_times: bool) -> Tree {
    read(root, with_times).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns one line for each path at which the trees differ. Returns at most `most` lines.
pub fn differences(expected: &Tree, found: &Tree, most: usize) -> Vec<String> {
    let paths: BTreeSet<_> = expected.keys().chain(found.keys()).collect();
    let differing = paths.iter().filter(|path| expected.get(**path) != found.get(**path));
    let line = |path: &&PathBuf| {
        format!("{}: {:?}, not {:?}", path.display(), found.get(*path), expected.get(*path))
    };
    differing.take(most).map(line).collect()
}

/// Checks that two trees are equal.
///
/// # Panics
/// Panics if the trees differ. The message shows the first differences.
pub fn assert_same(expected: &Path, found: &Path, with_times: bool) {
    let differences = differences(&take(expected, with_times), &take(found, with_times), 20);
    assert!(
        differences.is_empty(),
        "{} differs from {}:\n{}",
        found.display(),
        expected.display(),
        differences.join("\n")
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_attribute_value_is_shown_completely() {
        assert_eq!(shown(&[0x00, 0x7f, 0xff]), "0x007fff");
        assert_eq!(shown(&[]), "0x");
        assert_eq!(shown(&[1; SHOWN_BYTES]), format!("0x{}", "01".repeat(SHOWN_BYTES)));
    }

    #[test]
    fn different_long_attribute_values_have_different_texts() {
        let value = vec![0xab; 1_000];
        let mut other = value.clone();
        other[999] = 0;
        assert!(shown(&value).starts_with(&format!("0x{}... (", "ab".repeat(SHOWN_BYTES))));
        assert!(shown(&value).contains("(1000 bytes, hash "), "{}", shown(&value));
        assert!(shown(&value).len() < 130, "{}", shown(&value));
        assert_ne!(shown(&value), shown(&other));
    }
}
