//! Directory trees, taken down so that two can be compared.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::fs;
use std::hash::Hasher;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What a tree has at one path.
#[derive(Clone, PartialEq, Eq)]
pub struct Node {
    /// Type and permissions.
    pub mode: u32,
    /// Length of a file; nothing else's means the same on two file systems.
    pub len: u64,
    /// Number of links of a file.
    pub links: u64,
    /// Hash of a file's bytes.
    pub hash: u64,
    /// Where a symbolic link points.
    pub target: Option<PathBuf>,
    /// Seconds of the modification time, if wanted.
    pub modified: Option<i64>,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:o} {} bytes, {} links, {:x}", self.mode, self.len, self.links, self.hash)?;
        if let Some(target) = &self.target {
            write!(f, " -> {}", target.display())?;
        }
        self.modified.map_or(Ok(()), |time| write!(f, ", modified {time}"))
    }
}

/// Hash of a file's bytes.
///
/// # Panics
/// If it can't be read.
pub fn hash_of_file(path: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    let mut file = fs::File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).unwrap_or_else(|e| panic!("{}: {e}", path.display())) {
            0 => return hasher.finish(),
            count => hasher.write(&buffer[..count]),
        }
    }
}

fn node(path: &Path, with_times: bool) -> Node {
    let found = fs::symlink_metadata(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let is_link = found.file_type().is_symlink();
    let mut node = Node {
        mode: found.mode(),
        len: 0,
        links: 0,
        hash: 0,
        target: is_link.then(|| fs::read_link(path).expect("a link can be read")),
        modified: (with_times && !is_link).then(|| found.mtime()),
    };
    if found.is_file() {
        node.len = found.len();
        node.links = found.nlink();
        node.hash = hash_of_file(path);
    }
    node
}

/// Everything below a directory, by its path from there.
///
/// # Panics
/// If something can't be read.
pub fn take(root: &Path, with_times: bool) -> BTreeMap<PathBuf, Node> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(directory) = waiting.pop() {
        let entries = fs::read_dir(&directory);
        for entry in entries.unwrap_or_else(|e| panic!("{}: {e}", directory.display())) {
            let path = entry.unwrap_or_else(|e| panic!("{}: {e}", directory.display())).path();
            let node = node(&path, with_times);
            if node.mode & 0o170_000 == 0o040_000 {
                waiting.push(path.clone());
            }
            let short = path.strip_prefix(root).expect("found below the root").to_owned();
            assert!(found.insert(short, node).is_none(), "{} is listed twice", path.display());
        }
    }
    found
}

/// Checks that two trees are the same.
///
/// # Panics
/// With the first differences, if they aren't.
pub fn assert_same(expected: &Path, found: &Path, with_times: bool) {
    let (left, right) = (take(expected, with_times), take(found, with_times));
    let paths: std::collections::BTreeSet<_> = left.keys().chain(right.keys()).collect();
    let differences: Vec<_> = paths
        .iter()
        .filter(|path| left.get(**path) != right.get(**path))
        .take(20)
        .map(|path| {
            format!("{}: {:?}, not {:?}", path.display(), right.get(*path), left.get(*path))
        })
        .collect();
    assert!(
        differences.is_empty(),
        "{} differs from {}:\n{}",
        found.display(),
        expected.display(),
        differences.join("\n")
    );
}
