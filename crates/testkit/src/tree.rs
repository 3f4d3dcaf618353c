//! Directory trees, taken down so that two can be compared.

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

/// Longest value of an extended attribute.
const LONGEST_VALUE: usize = 1 << 16;
/// Longest list of names of extended attributes.
const LONGEST_LIST: usize = 1 << 16;

/// What a tree has at each path below its root.
pub type Tree = BTreeMap<PathBuf, Node>;

/// What a tree has at one path.
#[derive(Clone, PartialEq, Eq)]
pub struct Node {
    /// Type and permissions.
    pub mode: u32,
    /// User and group.
    pub owner: (u32, u32),
    /// Length of a file; nothing else's means the same on two file systems.
    pub len: u64,
    /// Number of links.
    pub links: u64,
    /// The first path to the same inode, if that isn't this one.
    pub same_as: Option<PathBuf>,
    /// Hash of a file's bytes.
    pub hash: u64,
    /// Where a symbolic link points.
    pub target: Option<PathBuf>,
    /// Extended attributes, access control lists among them.
    pub attributes: BTreeMap<OsString, Vec<u8>>,
    /// Seconds of the modification time, if wanted.
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
            write!(f, ", {}={value:02x?}", name.display())?;
        }
        self.modified.map_or(Ok(()), |time| write!(f, ", modified {time}"))
    }
}

/// Hash of a file's bytes.
///
/// # Errors
/// Those of opening and reading it.
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

/// Extended attributes of what a path itself leads to, by name.
///
/// # Errors
/// Those of listing and reading them.
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

/// Everything below a directory, by its path from there.
///
/// # Errors
/// Those of the first that can't be read, with its path.
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

/// As [`read`].
///
/// # Panics
/// If something can't be read.
pub fn take(root: &Path, with_times: bool) -> Tree {
    read(root, with_times).unwrap_or_else(|error| panic!("{error}"))
}

/// A line for each path, up to `most`, at which one tree isn't as another.
pub fn differences(expected: &Tree, found: &Tree, most: usize) -> Vec<String> {
    let paths: BTreeSet<_> = expected.keys().chain(found.keys()).collect();
    let differing = paths.iter().filter(|path| expected.get(**path) != found.get(**path));
    let line = |path: &&PathBuf| {
        format!("{}: {:?}, not {:?}", path.display(), found.get(*path), expected.get(*path))
    };
    differing.take(most).map(line).collect()
}

/// Checks that two trees are the same.
///
/// # Panics
/// With the first differences, if they aren't.
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
