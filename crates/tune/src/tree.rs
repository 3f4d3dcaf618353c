//! Reads and writes files below a root directory, and finds files by patterns with `*`.

use skep_types::{Error, Result};
use std::path::{Path, PathBuf};

/// A root directory. The methods take absolute paths, which are resolved below the root directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    root: PathBuf,
}

impl Tree {
    /// Returns the tree below a root directory.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Returns the real path of the file `path`, which begins with the root directory.
    pub fn real(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Returns the text of a file. `None` means that the file does not exist or cannot be read. For
    /// example, some kernels refuse to read a file whose setting the machine does not support.
    pub(crate) fn read(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.real(path)).ok()
    }

    /// Searches for a file `name`: first in `path`, after its symbolic links are followed, and then
    /// in each directory above. Returns the text of the first such file. `None` means that no
    /// directory has such a file.
    pub(crate) fn read_above(&self, path: &str, name: &str) -> Option<String> {
        let root = self.root.canonicalize().ok()?;
        let first = self.real(path).canonicalize().ok()?;
        let directories = first.ancestors().take_while(|it| it.starts_with(&root));
        directories.map(|it| it.join(name)).find_map(|it| std::fs::read_to_string(it).ok())
    }

    /// Searches for a directory `name`: first in `path`, after its symbolic links are followed, and
    /// then in each directory above. Returns the sorted names of the entries of the first such
    /// directory. The list is empty if no directory has the name `name`.
    pub(crate) fn names_above(&self, path: &str, name: &str) -> Vec<String> {
        let canonical = |path: &Path| path.canonicalize().ok();
        let (Some(root), Some(first)) = (canonical(&self.root), canonical(&self.real(path))) else {
            return Vec::new();
        };
        let mut directories = first.ancestors().take_while(|it| it.starts_with(&root));
        match directories.find(|it| it.join(name).is_dir()) {
            Some(directory) => names_in(&directory.join(name)),
            None => Vec::new(),
        }
    }

    /// Returns the last name of the path to which a symbolic link points. `None` means that the
    /// link does not exist.
    pub(crate) fn link_name(&self, path: &str) -> Option<String> {
        let target = std::fs::read_link(self.real(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// Returns the text of a file. `None` means that the file does not exist.
    pub(crate) fn read_if_exists(&self, path: &str) -> Result<Option<String>> {
        match std::fs::read_to_string(self.real(path)) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::from(error).within(format!("cannot read {path}"))),
        }
    }

    /// Writes `text` to an existing file of the kernel. The text is written by one call, since the
    /// kernel takes each write as a whole value.
    pub(crate) fn set(&self, path: &str, text: &str) -> Result<()> {
        use std::io::Write;
        let mut options = std::fs::OpenOptions::new();
        let opened = options.write(true).truncate(true).open(self.real(path));
        opened.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| {
            Error::from(error).within(format!("cannot write '{}' to {path}", text.trim()))
        })
    }

    /// Creates or replaces a file durably. Creates its parent directories if they do not exist.
    pub(crate) fn replace(&self, path: &str, text: &str) -> Result<()> {
        let real = self.real(path);
        if let Some(parent) = real.parent() {
            std::fs::create_dir_all(parent).map_err(|error| {
                Error::from(error).within(format!("cannot create {}", parent.display()))
            })?;
        }
        skep_store::atomic::replace_atomically(&real, text.as_bytes())
    }

    /// Removes a file durably. Succeeds if the file does not exist.
    pub(crate) fn remove(&self, path: &str) -> Result<()> {
        let real = self.real(path);
        match std::fs::remove_file(&real) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(Error::from(error).within(format!("cannot remove {path}"))),
            Ok(()) => {
                let parent = real.parent().unwrap_or(Path::new("/"));
                Ok(std::fs::File::open(parent).and_then(|directory| directory.sync_all())?)
            }
        }
    }

    /// Returns the sorted names of the entries of a directory. The list is empty if the directory
    /// cannot be read.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        names_in(&self.real(path))
    }

    /// Returns the paths of all existing files that match a pattern. Each component of the pattern
    /// may contain one `*`.
    pub(crate) fn matches(&self, pattern: &str) -> Vec<String> {
        let mut found = vec![String::new()];
        for component in pattern.split('/').filter(|it| !it.is_empty()) {
            let extend = |path: &String| -> Vec<String> {
                let Some((start, end)) = component.split_once('*') else {
                    return vec![format!("{path}/{component}")];
                };
                let is_match = |name: &String| {
                    let is_long = name.len() >= start.len() + end.len();
                    is_long && name.starts_with(start) && name.ends_with(end)
                };
                let names = self.names(path).into_iter().filter(is_match);
                names.map(|name| format!("{path}/{name}")).collect()
            };
            found = found.iter().flat_map(extend).collect();
        }
        found.retain(|path| self.real(path).is_file());
        found
    }
}

/// Returns the sorted names of the entries of a directory. The list is empty if the directory
/// cannot be read.
fn names_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}
